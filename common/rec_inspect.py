"""Say what is in a training set and whether it is sound.

    rec_inspect --input set --walk --decode
"""
import collections
import os
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np
from tqdm import tqdm

from common.any_set import is_shuffled, open_any_set, record_path
from common.command import on_threads, require_range, run_tool, tool_parser
from common.contact_sheet import check_sheet_path, write_contact_sheet
from common.errors import UsageError, UserError
from common.face_labels import read_labels
from common.face_record import FLOAT32, read_property
from common.images import CorruptImage, decode_bgr, image_size
from common.index_builder import rebuild_index
from common.integrity import compare_with_index, md5_of, walk_file
from common.io_test import measure, measure_decoding
from common.recordio import unpack
from common.sequential_set import find_parts

SAMPLES = 256                        # images that are decoded without --decode
SHOWN = 10                           # of a kind that are printed
BOUNDS = 0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000        # of the rows of the histogram
BAR = 40                             # characters of its longest bar
_CHUNK = 1 << 17                     # labels that are read at once


def make_parser():
    parser = tool_parser(
        'rec_inspect', 'Say what is in a training set, indexed or shuffled, and whether it is sound: exit code 1 if '
        'anything is wrong.', 'rec_inspect --input set --walk --decode --contact-sheet faces.png')
    add = parser.add_argument
    add('--input', required=True, metavar='X', help='folder of the set, or its .rec')
    add('--walk', action='store_true', help='look at every record, and compare with the index')
    add('--md5', nargs='?', const='', metavar='DIGITS', help='print the MD5 of the .rec; compare it, if one is given')
    add('--decode', action='store_true', help='decode all images (default: %d of them)' % SAMPLES)
    add('--contact-sheet', metavar='X.png', help='draw sample faces, a row per identity')
    add('--rebuild-index', action='store_true', help='first write the .idx anew')
    add('--force', action='store_true', help='let --rebuild-index replace an .idx')
    add('--io-test', action='store_true', help='measure reading at random and front to back (about 10 s): will '
        'converting with rec2shufrec pay?')
    add('--threads', type=int, default=os.cpu_count() or 1, metavar='N', help='default: %(default)s')
    return parser


def run(args):
    check_flags(args)
    path = record_path(args.input)
    if args.rebuild_index:
        if is_shuffled(path):
            raise UserError('%s is a shuffled set: it is read without an index' % path)
        print('index          %d lines written' % rebuild_index(path, args.force))
    problems = list(check_files(find_parts(path), args.walk, args.md5))
    try:
        inspected = Inspection(open_any_set(path))
        with inspected.face_set:
            problems += inspected.report(args.decode, args.threads)
            if args.contact_sheet:
                write_contact_sheet(args.contact_sheet, inspected.face_set, inspected.labels)
            decode_rate = measure_decoding(inspected.face_set) if args.io_test else None
    except UserError as error:
        if not problems:
            raise
        problems.append(str(error))
    else:
        if args.io_test:
            print('\n'.join(inspected.test_disk(decode_rate).lines()))
    return conclude(problems)


def check_flags(args):
    require_range(args.threads, '--threads', 1, 256)
    if args.force and not args.rebuild_index:
        raise UsageError('--force: only --rebuild-index needs it')
    if args.contact_sheet:
        check_sheet_path(args.contact_sheet)


def conclude(problems):
    """Print what is wrong; returns the exit code."""
    for problem in problems[:SHOWN]:
        print('PROBLEM        %s' % problem)
    if len(problems) > SHOWN:
        print('PROBLEM        ... and %d more' % (len(problems) - SHOWN))
    print('result         %s' % ('%d problems' % len(problems) if problems else 'no problems found'))
    return 1 if problems else 0


def check_files(paths, walks, md5):
    """Yield problems of the .rec files of a set: of their records if `walks`, of the MD5 unless it is None."""
    if md5 and len(paths) > 1:
        raise UsageError('--md5 %s: the set has %d files; give no digits to see those of each' % (md5, len(paths)))
    for path in paths:
        if walks:
            starts, problems = walk_file(path)
            print('walk           %d whole records in %s' % (len(starts), os.path.basename(path)))
            yield from problems
            yield from compare_with_index(path, starts)
        if md5 is not None:
            found = md5_of(path)
            print('md5            %s %s' % (found, os.path.basename(path)))
            if md5 and md5.lower() != found:
                yield '%s: the MD5 should be %s: copy the file again' % (path, md5)


class Inspection:
    """What there is to say about an opened set."""

    def __init__(self, face_set):
        self.face_set, self.property = face_set, read_property(os.path.dirname(find_parts_of(face_set)[0]))
        label_format, count = self.property.label_format if self.property else FLOAT32, face_set.num_images
        self.labels = np.concatenate([
            read_labels(face_set, np.arange(start, min(start + _CHUNK, count)), label_format)
            for start in tqdm(range(0, count, _CHUNK), desc='labels', unit=' x %d' % _CHUNK, disable=None)])
        self.classes, self.counts = np.unique(self.labels[self.labels >= 0], return_counts=True)

    @property
    def num_classes(self):
        """As `property` says, else the largest label + 1."""
        return self.property.num_classes if self.property else int(self.labels.max()) + 1

    @property
    def num_empty(self):
        """Classes without images."""
        return self.num_classes - np.count_nonzero(self.classes < self.num_classes)

    def report(self, decodes_all, num_threads):
        """Print everything; returns the problems."""
        face_set = self.face_set
        print('set            %s, %.1f MB' % (face_set.path, face_set.record_file.size / 1e6))
        print('layout         %s' % ('identity records' if face_set.num_metadata else 'images only'))
        print('images         %d' % face_set.num_images)
        print('metadata       %d records without image' % face_set.num_metadata)
        print('identities     %d' % len(self.classes))
        problems = list(self.check_labels())
        for line in histogram(self.counts, self.num_empty):
            print(line)
        problems += self.check_images(decodes_all, num_threads)
        return problems

    def check_labels(self):
        """Print the range and what is missing; yield problems."""
        if len(self.classes):
            print('labels         %d to %d' % (self.classes[0], self.classes[-1]))
        print('classes        %d (%s)' % (self.num_classes, 'as property says' if self.property
                                         else 'no property file: the largest label + 1'))
        first = np.arange(min(self.num_classes, len(self.classes) + SHOWN))
        missing = np.setdiff1d(first, self.classes)[:SHOWN]    # the first ones cannot be further away
        if len(missing):
            print('without images %d classes, the first: %s'
                  % (self.num_empty, ' '.join(map(str, missing))))
        for wrong, what in ((self.labels < 0, 'have no class id as label'),
                            (self.labels >= self.num_classes, 'have a label outside [0, %d)' % self.num_classes)):
            if wrong.any():
                yield '%d images %s, the first is %s' % (wrong.sum(), what, self.face_set.name(int(wrong.argmax())))

    def check_images(self, decodes_all, num_threads):
        """Print the sizes of all or of some images; returns problems."""
        count = self.face_set.num_images
        sample = count if decodes_all else min(SAMPLES, count)
        positions = np.linspace(0, count - 1, sample).astype(np.int64)
        sizes, problems = collections.Counter(), []
        for size, problem in on_threads(self._look, positions, num_threads, 'images', len(positions)):
            if problem:
                problems.append(problem)
            else:
                sizes[size] += 1
        shown = ['%dx%d %d' % (size + (number,)) for size, number in sizes.most_common(SHOWN)]
        print('sizes          %s (height x width, of %d images%s)'
              % (', '.join(shown) or 'none', len(positions), '' if decodes_all else '; --decode looks at all'))
        return problems

    def _look(self, position):
        """-> ((h, w), None) or (None, problem)"""
        try:
            encoded = unpack(self.face_set.read(position))[1]
            size = image_size(encoded)
            decode_bgr(encoded, size)
            return size, None
        except (UserError, ValueError, CorruptImage) as error:
            return None, '%s: %s' % (self.face_set.name(position), error)

    def test_disk(self, decode_rate):
        """Rates of the first file of the set, which is closed by now."""
        path = find_parts_of(self.face_set)[0]
        offsets = np.sort(self.face_set.offsets)
        return measure(path, offsets[offsets < os.path.getsize(path)], decode_rate)


def find_parts_of(face_set):
    """Paths of the files of an opened set."""
    return [file.path for file in getattr(face_set.record_file, 'files', [face_set.record_file])]


def histogram(counts, num_empty):
    """Lines: how many classes have how many images. counts: images of each class that has some."""
    rows = np.bincount(np.searchsorted(BOUNDS, counts, 'right') - 1, minlength=len(BOUNDS))
    rows[0] = num_empty
    last = max(np.flatnonzero(rows), default=0)
    for row, number in enumerate(rows[:last + 1]):
        stop = BOUNDS[row + 1] - 1 if row + 1 < len(BOUNDS) else None
        label = '%d or more' % BOUNDS[row] if stop is None else '%d' % stop if stop == BOUNDS[row] \
            else '%d to %d' % (BOUNDS[row], stop)
        bar = '#' * -(-BAR * int(number) // int(rows.max() or 1))
        yield ('%14s images %10d classes %s' % (label, number, bar)).rstrip()


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
