"""Embeddings of many images: of a folder of photos, or of a training set, indexed or shuffled.

The output folder holds embeddings.npy (n, D) float32, labels.npy (n,) int64 and keys.npy (n,) int64, a row for every
image that could be decoded: what drop_noisy takes. Of photos, names.txt holds their paths, a line for each row.
"""
import concurrent.futures
import os
import sys
import time

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np

from common.ahead import ahead
from common.array_files import RowFile
from common.command import new_folder, refuse_output, require_range, run_tool, tool_parser
from common.embedding_files import EMBEDDINGS, LABELS, NAMES
from common.errors import UserError
from common.image_source import decoded_batches, open_source
from common.network_flags import add_network, add_running, check_network_flags, open_embedder
from common.progress import progress_bar

KEYS, CLASSES, UNREADABLE = 'keys.npy', 'labels.tsv', 'unreadable.tsv'
SHOWN = 10                           # unreadable images that are printed


def make_parser():
    parser = tool_parser('shardface-embed', __doc__, 'shardface-embed --model models/r50-arcface-emore/model,1 '
                         '--input photos --output embedded --flip --normalize')
    add = parser.add_argument
    add_network(add, required=True)
    add_running(add)
    add('--input', required=True, metavar='X', help='folder of a set, or its .rec; else a folder with '
        'IDENTITY/PHOTO.jpg, or with photos')
    add('--list', metavar='X.txt', help='names of photos below --input, at any depth, a line each; they have no labels')
    add('--output', required=True, metavar='DIR', help='folder to create')
    add('--flip', action='store_true', help='the sum of the embeddings of an image and of its mirror image')
    add('--normalize', action='store_true', help='divide each embedding by its length')
    add('--threads', type=int, default=os.cpu_count() or 1, metavar='N', help='that read and decode (default: '
        '%(default)s)')
    add('--strict', action='store_true', help='stop at the first unreadable image instead of leaving it out')
    return parser


def run(args):
    size = check_network_flags(args)
    require_range(args.threads, '--threads', 1, 256)
    source = open_source(args.input, args.list)
    try:
        refuse_output(args.output, '--output', [args.input])
        embedder = open_embedder(args, size)
        began = time.monotonic()
        with new_folder(args.output) as folder:
            os.makedirs(folder, exist_ok=True)
            unreadable = embed_source(source, embedder, size, args, folder)
            write_tables(source, folder, unreadable)
        count, seconds = len(source) - len(unreadable), max(time.monotonic() - began, 1e-9)
        print('%s: %d images, %d numbers each; %.0f images/s' % (
            os.path.abspath(args.output), count, embedder.embedding_size, len(source) / seconds))
        show(source, unreadable)
    finally:
        source.close()


def embed_source(source, embedder, size, args, folder):
    """Write the three arrays into a folder; returns [(position, reason), ...] of images that cannot be used."""
    unreadable = []
    paths = [os.path.join(folder, name) for name in (EMBEDDINGS, LABELS, KEYS)]
    with RowFile(paths[0], '<f4', (embedder.embedding_size,)) as embeddings, RowFile(paths[1], '<i8') as labels, \
            RowFile(paths[2], '<i8') as keys, concurrent.futures.ThreadPoolExecutor(args.threads) as pool, \
            progress_bar(total=len(source), desc='embed', unit=' images', disable=None) as bar:
        for positions, images, reasons in ahead(decoded_batches(source, size, args.batch_size, pool)):
            good = np.array([reason is None for reason in reasons])
            for position in positions[~good].tolist():
                unreadable.append((position, reasons[position - positions[0]]))
                if args.strict:
                    raise UserError('%s: %s; mend or remove it, or leave --strict out'
                                    % (source.name(position), unreadable[-1][1]))
            rows = embedded(embedder, images, args.flip, args.normalize)[:len(positions)][good]
            if not np.isfinite(rows).all():
                wrong = positions[good][~np.isfinite(rows).all(axis=1)][0]
                raise UserError('the embedding of %s is NaN or infinite: take another epoch' % source.name(int(wrong)))
            embeddings.add(rows)
            labels.add(source.labels(positions[good]))
            keys.add(source.keys[positions[good]])
            bar.update(len(positions))
    if len(unreadable) == len(source):
        raise UserError('none of %d images can be read, the first is %s: %s'
                        % (len(source), source.name(0), unreadable[0][1]))
    return unreadable


def embedded(embedder, images, flip, normalize):
    """images (B, 3, h, w) -> (B, D) float32."""
    rows = embedder(images)
    if flip:
        rows = rows + embedder(images[..., ::-1])
    if normalize:
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(length > 0, length, 1)
    return rows


def write_tables(source, folder, unreadable):
    """The names that rows and classes have, and what was left out."""
    left_out = {position for position, _ in unreadable}
    if source.names is not None:
        write_lines(folder, NAMES, (name for row, name in enumerate(source.names) if row not in left_out))
    if source.classes is not None:
        write_lines(folder, CLASSES, ('%d\t%s' % pair for pair in enumerate(source.classes)))
    if unreadable:
        write_lines(folder, UNREADABLE, ('%d\t%s\t%s' % (source.keys[row], source.name(row), reason)
                                         for row, reason in unreadable))


def write_lines(folder, name, lines):
    with open(os.path.join(folder, name), 'w', encoding='utf-8', errors='surrogateescape') as stream:
        stream.writelines(line + '\n' for line in lines)


def show(source, unreadable):
    for position, reason in unreadable[:SHOWN]:
        print('left out: %s: %s' % (source.name(position), reason))
    if len(unreadable) > SHOWN:
        print('... %d images were left out, all are listed in %s' % (len(unreadable), UNREADABLE))


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
