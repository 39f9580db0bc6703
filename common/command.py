"""What the command lines of the tools share: examples in --help, exit codes, checks of paths, work on threads."""
import argparse
import collections
import concurrent.futures
import contextlib
import glob
import itertools
import os
import re
import sys

from common.errors import UsageError, UserError
from common.files import replacing
from common.logs import logging_to_console
from common.progress import progress_bar
from common.temporary_folder import locked, remove_leftovers

AHEAD = 8                            # items per thread that are begun before their results are wanted
_SIZE = re.compile(r'([1-9][0-9]{0,4})[xX]([1-9][0-9]{0,4})')


def tool_parser(name, description, example):
    """Parser of the tool common/NAME.py, whose --help ends with an example."""
    return argparse.ArgumentParser(prog=name, allow_abbrev=False, description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter,
                                   epilog='example:\n  ' + example)


def run_tool(parser, run, argv=None):
    """Parse the command line and run(args); returns the exit code.

    What run returns or 0; 1 wrong file, 2 wrong flag, each with one line that says so; 130 interrupted.
    """
    args = parser.parse_args(argv)
    with logging_to_console():
        try:
            return run(args) or 0
        except UserError as error:
            sys.stderr.write('error: %s\n' % ' '.join(str(error).splitlines()))
            return error.exit_code
        except KeyboardInterrupt:
            sys.stderr.write('interrupted\n')
            return 130


def parse_size(text, flag='--resize'):
    """'none' -> None, '112x96' -> (112, 96), that is height x width. UsageError."""
    if text == 'none':
        return None
    found = _SIZE.fullmatch(text)
    if not found:
        raise UsageError('%s %s: none, or HEIGHTxWIDTH such as 112x112, is expected' % (flag, text))
    return int(found.group(1)), int(found.group(2))


def parse_image_size(text):
    """--image-size '112x96' -> (112, 96), that is height x width. UsageError."""
    size = parse_size(text, '--image-size')
    if size is None:
        raise UsageError('--image-size none: HEIGHTxWIDTH such as 112x112 is expected')
    return size


def require_range(value, flag, lowest, highest):
    """UsageError unless lowest <= value <= highest."""
    if not lowest <= value <= highest:
        raise UsageError('%s %d: a number from %d to %d is expected' % (flag, value, lowest, highest))


def refuse_output(path, flag, sources=()):
    """UserError if the output is there already, has no folder to stand in, or is inside one of the source folders."""
    real = os.path.realpath(path)
    if os.path.lexists(os.path.abspath(path)):
        raise UserError('%s %s is there already: name another, or remove it first' % (flag, os.path.abspath(path)))
    if not os.path.isdir(os.path.dirname(real)):
        raise UserError('%s %s: there is no folder %s to write it into' % (flag, path, os.path.dirname(real)))
    for source in map(os.path.realpath, sources):
        if os.path.isdir(source) and os.path.commonpath([source, real]) == source:
            raise UserError('%s %s is inside the source %s: name a folder elsewhere' % (flag, path, source))


@contextlib.contextmanager
def new_folder(path):
    """Make a temporary folder that becomes `path` at the end; what a killed run left beside it is removed first."""
    folder, name = os.path.split(os.path.abspath(path))
    remove_leftovers(os.path.join(glob.escape(folder), '.%s.*.partial' % glob.escape(name)))
    with replacing(path) as partial, locked(str(partial)):
        yield str(partial)


def on_threads(function, items, num_threads, description, total=None):
    """Yield function(item) of every item, in order, with a progress bar; a bounded number is begun ahead."""
    items, waiting = iter(items), collections.deque()
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool, \
            progress_bar(total=total, desc=description, unit=' images', disable=None) as bar:
        try:
            for item in itertools.islice(items, AHEAD * num_threads):
                waiting.append(pool.submit(function, item))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in itertools.islice(items, 1))
                bar.update()
                yield result
        finally:
            for future in waiting:
                future.cancel()
