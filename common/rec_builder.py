"""Build a training set (train.rec, train.idx, property) from photos: folders of identities, or a list file.

    rec_builder --input photos --output set --resize 112x112
"""
import collections
import os
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

from common.command import new_folder, on_threads, parse_size, refuse_output, require_range, run_tool, tool_parser
from common.errors import UsageError, UserError
from common.face_record import FLOAT32, SPLIT, SPLIT24
from common.identity_set import IdentitySetWriter
from common.photo_files import DEFAULT_QUALITY, PhotoReader, list_identities, natural_key, printable, read_table

SHOWN = 10                           # unreadable photos that are printed; all are in a file
LABELS, UNREADABLE = 'labels.tsv', 'unreadable.tsv'


def make_parser():
    parser = tool_parser(
        'rec_builder', 'Build a training set (train.rec, train.idx, property) from photos. Identities are numbered in '
        'natural order (2 before 10); labels.tsv in the output says which class is which.',
        'rec_builder --input photos --output set --resize 112x112')
    add = parser.add_argument
    add('--input', required=True, metavar='X', help='folder with IDENTITY/PHOTO.jpg, or a text file with lines '
        'PATH<tab>LABEL (paths start at the folder of the file, or at --root)')
    add('--output', required=True, metavar='DIR', help='folder to create')
    add('--root', metavar='DIR', help='folder at which the paths of a list file start')
    add('--resize', default='none', metavar='HxW', help='resize photos of another size whole, and save those as JPEG '
        '(default: none, all bytes unchanged)')
    add('--quality', type=int, metavar='N', help='of JPEGs that are resized (default: %d)' % DEFAULT_QUALITY)
    add('--threads', type=int, default=os.cpu_count() or 1, metavar='N', help='default: %(default)s')
    add('--strict', action='store_true', help='stop at the first unreadable photo instead of leaving it out')
    return parser


def run(args):
    size = parse_size(args.resize)
    require_range(args.threads, '--threads', 1, 256)
    check_quality(args.quality, size)
    refuse_output(args.output, '--output', [args.input])
    classes = find_classes(args.input, args.root)
    with new_folder(args.output) as partial:
        report = build(classes, partial, PhotoReader(size, args.quality), args.threads, args.strict)
    report.show(os.path.abspath(args.output))


def check_quality(quality, size):
    """UsageError for a JPEG quality that is out of range or would not be used."""
    if quality is not None:
        require_range(quality, '--quality', 1, 100)
        if size is None:
            raise UsageError('--quality %d: nothing is encoded anew without --resize HxW' % quality)


def find_classes(source, root):
    """{name: [path, ...]}, the classes in their order. UserError."""
    if os.path.isdir(source):
        if root is not None:
            raise UsageError('--root %s: only a list file needs it' % root)
        found = list_identities(source)
    else:
        base, found = root or os.path.dirname(os.path.abspath(source)), {}
        for _, (path, label) in read_table(source, ('PATH', 'LABEL')):
            found.setdefault(label, []).append(os.path.join(base, path))
        found = {label: found[label] for label in sorted(found, key=natural_key)}
    for name in found:
        if any(sign in name for sign in '\t\r\n'):
            raise UserError('%r: a tab or a line break in the name of an identity; rename it' % name)
    if not found:
        raise UserError('%s lists no photos' % os.path.abspath(source))
    return found


class Report:
    """What was built."""

    def __init__(self, counts, sizes, unreadable):
        """counts: images of each class; sizes: Counter of (h, w); unreadable: Photos."""
        self.counts, self.sizes, self.unreadable = counts, sizes, unreadable

    def show(self, folder):
        empty = self.counts.count(0)
        print('%s: %d images of %d identities' % (folder, sum(self.counts), len(self.counts)))
        if empty:
            print('%d identities have no readable photo' % empty)
        if len(self.sizes) > 1:
            print('photos have %d sizes: they are resized when they are read; --resize does it once' % len(self.sizes))
        for photo in self.unreadable[:SHOWN]:
            print('left out: %s: %s' % (printable(photo.path), photo.reason))
        if len(self.unreadable) > SHOWN:
            print('... %d photos were left out, all are listed in %s' % (len(self.unreadable), UNREADABLE))


def build(classes, folder, reader, num_threads, strict=False):
    """Write a set into a temporary folder that exists; returns a Report. UserError if no photo can be read."""
    label_format = SPLIT24 if len(classes) > SPLIT else FLOAT32
    extra = {'label_format': label_format} if label_format != FLOAT32 else {}
    numbers = (number for number, paths in enumerate(classes.values()) for _ in paths)
    paths = (path for paths in classes.values() for path in paths)
    sizes, unreadable = collections.Counter(), []
    with IdentitySetWriter(folder, len(classes), label_format) as writer:
        photos = on_threads(reader, paths, num_threads, 'photos', sum(map(len, classes.values())))
        for number, photo in zip(numbers, photos):
            if photo.reason is None:
                writer.add(number, photo.encoded)
                sizes[photo.size] += 1
            elif strict:
                raise UserError('%s: %s; mend or remove it, or leave --strict out' % (photo.path, photo.reason))
            else:
                unreadable.append(photo)
        if not sizes:
            raise UserError('none of %d photos can be read, the first is %s: %s'
                            % (len(unreadable), unreadable[0].path, unreadable[0].reason))
        writer.finish(sizes.most_common(1)[0][0], extra)
    _write_table(folder, LABELS, ((str(number), name) for number, name in enumerate(classes)))
    if unreadable:
        _write_table(folder, UNREADABLE, ((photo.path, photo.reason) for photo in unreadable))
    return Report(writer.counts, sizes, unreadable)


def _write_table(folder, name, rows):
    with open(os.path.join(folder, name), 'w', encoding='utf-8', errors='surrogateescape') as stream:
        stream.writelines('%s\t%s\n' % row for row in rows)


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
