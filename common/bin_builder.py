"""Build a verification set (NAME.bin) from photos: a list of pairs, or folders of identities to draw pairs from.

    bin_builder --input photos --num-pairs 6000 --output val.bin
"""
import os
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np

from common.command import on_threads, parse_size, refuse_output, require_range, run_tool, tool_parser
from common.errors import UsageError, UserError
from common.pair_sampling import make_pairs
from common.photo_files import DEFAULT_QUALITY, PhotoReader, list_identities, read_table
from common.rec_builder import check_quality
from common.verification import write_bin

FLAGS = {'0': False, '1': True}


def make_parser():
    parser = tool_parser(
        'bin_builder', 'Build a verification set (NAME.bin) from photos.',
        'bin_builder --input photos --num-pairs 6000 --seed 0 --output val.bin')
    add = parser.add_argument
    add('--input', required=True, metavar='X', help='text file with lines PATH<tab>PATH<tab>1 (same person) or 0 '
        '(different people), or folder with IDENTITY/PHOTO.jpg to draw pairs from')
    add('--output', required=True, metavar='NAME.bin', help='file to create')
    add('--root', metavar='DIR', help='folder at which the paths of a list start (default: that of the list)')
    add('--num-pairs', type=int, metavar='N', help='pairs to draw from a folder, half of them same')
    add('--seed', type=int, metavar='N', help='of the drawing (default: 0)')
    add('--resize', default='none', metavar='HxW', help='resize photos of another size whole, and save those as JPEG '
        '(default: none, all bytes unchanged)')
    add('--quality', type=int, metavar='N', help='of JPEGs that are resized (default: %d)' % DEFAULT_QUALITY)
    add('--threads', type=int, default=os.cpu_count() or 1, metavar='N', help='default: %(default)s')
    return parser


def run(args):
    size = parse_size(args.resize)
    require_range(args.threads, '--threads', 1, 256)
    check_quality(args.quality, size)
    if not args.output.endswith('.bin'):
        raise UsageError('--output %s: a name that ends with .bin is expected' % args.output)
    refuse_output(args.output, '--output', [args.input])
    paths, same = find_pairs(args)
    images = read_photos(paths, PhotoReader(size, args.quality), args.threads)
    write_bin(args.output, [images[path] for path in paths], same)
    print('%s: %d pairs, %d of them same, of %d photos'
          % (os.path.abspath(args.output), len(same), np.count_nonzero(same), len(images)))


def find_pairs(args):
    """-> (2n paths, (n,) flags). UserError, UsageError for flags that do not belong to the input."""
    if os.path.isdir(args.input):
        if args.num_pairs is None or args.root is not None:
            raise UsageError('--input %s is a folder: --num-pairs is needed, --root is not' % args.input)
        require_range(args.num_pairs, '--num-pairs', 1, 10**8)
        require_range(args.seed or 0, '--seed', 0, 2**32 - 1)
        return draw_pairs(list_identities(args.input), args.num_pairs, args.seed or 0)
    for value, flag in ((args.num_pairs, '--num-pairs'), (args.seed, '--seed')):
        if value is not None:
            raise UsageError('%s %d: a list states its pairs; only a folder needs it' % (flag, value))
    return read_pairs(args.input, args.root)


def draw_pairs(identities, num_pairs, seed):
    """Pairs from {identity: paths}: the same for the same seed."""
    paths = [path for photos in identities.values() for path in photos]
    labels = np.repeat(np.arange(len(identities)), [len(photos) for photos in identities.values()])
    index, same = make_pairs(labels, num_pairs, np.random.RandomState(seed))
    return [paths[number] for number in index.ravel()], same


def read_pairs(path, root=None):
    """Pairs of a list file. UserError names the line that is none."""
    base, paths, same = root or os.path.dirname(os.path.abspath(path)), [], []
    for number, (first, second, flag) in read_table(path, ('PATH', 'PATH', '0 or 1')):
        if flag not in FLAGS:
            raise UserError('%s line %d: the third column must be 0 or 1, it is %r'
                            % (os.path.abspath(path), number, flag[:20]))
        paths += [os.path.join(base, first), os.path.join(base, second)]
        same.append(FLAGS[flag])
    if not same:
        raise UserError('%s lists no pairs' % os.path.abspath(path))
    return paths, same


def read_photos(paths, reader, num_threads):
    """{path: encoded image}. UserError for one that cannot be read: no pair can do without it."""
    distinct, images = list(dict.fromkeys(paths)), {}
    for photo in on_threads(reader, distinct, num_threads, 'photos', len(distinct)):
        if photo.reason is not None:
            raise UserError('%s: %s; mend it, or take it out of the input' % (photo.path, photo.reason))
        images[photo.path] = photo.encoded
    return images


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
