"""What values a setting may take. Every kind reads a value of a config.py or the text of a command line."""
import math
import numbers
import operator
import re


class Kind:
    """A set of values. Calling it turns a value or a text into the one form used later, or raises ValueError."""

    def __init__(self, read, expects):
        """read: value -> value, ValueError or TypeError for others; expects: the set in words."""
        self.read, self.expects = read, expects

    def __call__(self, value):
        try:
            return self.read(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError('%s is expected' % self.expects) from None


def whole(low=0, high=None):
    """A whole number in [low, high]."""
    def read(value):
        number = int(value if isinstance(value, str) else operator.index(value))
        return within(number, low, high)
    return Kind(read, 'a whole number %s' % bounds(low, high))


def real(low=None, high=None, above=None, below=None):
    """A finite number in [low, high], or with open ends: above < number < below."""
    def read(value):
        if not isinstance(value, (str, numbers.Real)) or isinstance(value, bool):
            raise TypeError(value)
        number = float(value)
        if not math.isfinite(number) or (above is not None and number <= above) or (
                below is not None and number >= below):
            raise ValueError(value)
        return within(number, low, high)
    return Kind(read, 'a number %s' % bounds(low, high, above, below))


def within(number, low, high):
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(number)
    return number


def bounds(low, high, above=None, below=None):
    """'>= 0 and < 1'"""
    ends = [('>=', low), ('>', above), ('<=', high), ('<', below)]
    return ' and '.join('%s %s' % end for end in ends if end[1] is not None)


def switch():
    """True or False."""
    texts = {'true': True, '1': True, 'yes': True, 'on': True, 'false': False, '0': False, 'no': False, 'off': False}

    def read(value):
        if isinstance(value, str):
            value = texts.get(value.strip().lower(), value)
        if value not in (True, False):                         # 1 and 0 are equal to them
            raise ValueError(value)
        return bool(value)
    return Kind(read, 'True or False')


def one_of(*names):
    """One of the given texts."""
    def read(value):
        if value not in names:
            raise ValueError(value)
        return value
    return Kind(read, 'one of %s' % ', '.join(names))


def text(pattern='.*', expects='a text'):
    """A text that matches a regular expression as a whole."""
    def read(value):
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL):
            raise ValueError(value)
        return value
    return Kind(read, expects)


def or_texts(kind):
    """Also a list of such texts."""
    def read(value):
        return list(map(kind.read, value)) if isinstance(value, (list, tuple)) else kind.read(value)
    return Kind(read, '%s or a list of them' % kind.expects)


def wholes(low, example, count=None, ascending=False):
    """A list of whole numbers, from a list or a text such as "2,4", "[2, 4]", "2 4" or ""."""
    def read(value):
        found = [whole(low).read(item) for item in items(value)]
        if (count is not None and len(found) != count) or (ascending and sorted(set(found)) != found):
            raise ValueError(value)
        return found
    return Kind(read, '%s whole numbers %s%s, such as %s,' % (
        count or 'a list of', bounds(low, None), ' in ascending order' if ascending else '', example))


def names():
    """A list of names, from a list or a text such as "lfw,agedb_30"."""
    def read(value):
        found = items(value)
        if not all(isinstance(item, str) and item for item in found):
            raise ValueError(value)
        return found
    return Kind(read, 'a list of names such as lfw,agedb_30')


def items(value):
    """Members of a list or tuple, or of a text that lists them with commas or blanks, in brackets or without."""
    if not isinstance(value, str):
        return list(value)
    body = value.strip()
    if body[:1] + body[-1:] in ('[]', '()'):
        body = body[1:-1].strip()
    return [item.strip('\'"') for item in re.split(r'\s*,\s*|\s+', body)] if body else []


def steps_or_minutes():
    """A whole number of steps, or minutes: a text such as 30m or 0.5m."""
    def read(value):
        if isinstance(value, str) and value.strip().endswith('m'):
            return '%gm' % real(above=0).read(value.strip()[:-1])
        return whole(0).read(value)
    return Kind(read, 'a whole number of steps, or minutes such as 30m,')


def or_word(word, kind):
    """Also that text."""
    def read(value):
        return word if value == word else kind.read(value)
    return Kind(read, '%s or %s' % (kind.expects, word))


def or_none(kind):
    """Also None, which leaves the choice to the program."""
    def read(value):
        return None if value is None or value in ('None', 'none') else kind.read(value)
    return Kind(read, '%s or None' % kind.expects)
