"""List the images that lie far from the main center of their class: mislabelled ones, mostly.

Of the centers of a class that was trained with sub_centers, the main one is nearest to most of its images. What is
further from it than an angle is dropped [Sub-center ArcFace, ECCV 2020]. No image is touched: the output is lists.
"""
import os
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np

from common.array_files import map_array
from common.class_rows import ClassRows
from common.command import new_folder, refuse_output, run_tool, tool_parser
from common.errors import UsageError, UserError
from common.progress import progress_bar

KEPT, DROPPED, COUNTS = 'kept.txt', 'dropped.tsv', 'counts.tsv'
_CHUNK = 4096


def make_parser():
    parser = tool_parser('drop_noisy', __doc__, 'drop_noisy --centers models/r50-arcface-emore/model-0001.head '
                         '--embeddings embeddings.npy --labels labels.npy --keys keys.npy --output cleaned')
    add = parser.add_argument
    add('--centers', required=True, metavar='DIR', help='folder PREFIX-NNNN.head of a checkpoint')
    add('--embeddings', required=True, metavar='X.npy', help='(n, D) floats, one row per training image')
    add('--labels', required=True, metavar='X.npy', help='(n,) whole numbers, the class of each row')
    add('--keys', metavar='X.npy', help='(n,) whole numbers, the record key of each row (default: rows from 0 on)')
    add('--angle', type=float, default=75.0, metavar='DEGREES',
        help='largest angle between a kept image and the main center (default: 75)')
    add('--output', required=True, metavar='DIR', help='folder to make: %s, %s, %s' % (KEPT, DROPPED, COUNTS))
    return parser


def run(args):
    if not 0 < args.angle <= 180:
        raise UsageError('--angle %s: degrees, above 0 and up to 180, are expected' % args.angle)
    refuse_output(args.output, '--output', [args.centers])
    centers = ClassRows(args.centers, 'centers')
    embeddings = load_array(args.embeddings, '--embeddings', 2, 'f')
    labels = load_array(args.labels, '--labels', 1, 'iu', len(embeddings))
    keys = load_array(args.keys, '--keys', 1, 'iu', len(embeddings)) if args.keys else np.arange(len(embeddings))
    check_fit(args, centers, embeddings, labels)
    labels = labels.astype(np.int64)
    cosines = center_cosines(args.embeddings, embeddings, labels, centers)
    main_center = main_centers(cosines, labels, centers.num_classes)
    angles = np.degrees(np.arccos(cosines[np.arange(len(labels)), main_center[labels]]))
    dropped = angles > args.angle
    with new_folder(args.output) as folder:
        write_keys(os.path.join(folder, KEPT), keys, dropped)
        write_dropped(os.path.join(folder, DROPPED), keys, labels, angles, dropped)
        empty = write_counts(os.path.join(folder, COUNTS), labels, dropped, main_center)
    print('%s: %d images kept, %d dropped (%.2f%%)' % (os.path.abspath(args.output), len(labels) - dropped.sum(),
                                                       dropped.sum(), 100.0 * dropped.mean()))
    if empty:
        print('%d classes have no image left' % empty)


def load_array(path, flag, ndim, kinds, length=None):
    """Map an array of so many dimensions and these kinds of numbers (of NumPy dtypes). UserError for anything else."""
    try:
        array = map_array(path)
    except UserError as error:
        raise UserError('%s: %s is no array written by numpy.save (%s)' % (flag, path, error)) from None
    if array.ndim != ndim or array.dtype.kind not in kinds:
        raise UserError('%s: %s holds %s of shape %s; %s of shape %s are expected' % (
            flag, path, array.dtype, array.shape, 'floats' if kinds == 'f' else 'whole numbers',
            '(images, numbers)' if ndim == 2 else '(images,)'))
    if length is not None and len(array) != length:
        raise UserError('%s: %s is of %d images, --embeddings of %d' % (flag, path, len(array), length))
    return array


def check_fit(args, centers, embeddings, labels):
    """UserError unless all images have a class that has centers, of as many numbers as they."""
    if len(centers.row_shape) not in (1, 2) or centers.row_shape[-1] != embeddings.shape[1]:
        raise UserError('%s has centers of shape %s, %s embeddings of %d numbers: they are of different networks'
                        % (args.centers, centers.row_shape, args.embeddings, embeddings.shape[1]))
    if not len(labels):
        raise UserError('%s holds no images' % args.embeddings)
    wrong = np.flatnonzero((labels < 0) | (labels >= centers.num_classes))
    if len(wrong):
        raise UserError('--labels: row %d of %s is class %d, %s has classes 0 to %d' % (
            wrong[0], args.labels, labels[wrong[0]], args.centers, centers.num_classes - 1))


def center_cosines(path, embeddings, labels, centers):
    """(n, J) float64 in [-1, 1], of each row and the centers of its class; 0 where either is 0."""
    cosines = []
    with progress_bar(total=len(labels), desc='angles', unit=' images', disable=None) as bar:
        for start in range(0, len(labels), _CHUNK):
            rows = np.array(embeddings[start:start + _CHUNK], np.float64)
            if not np.isfinite(rows).all():
                place = start + np.flatnonzero(~np.isfinite(rows).all(axis=1))[0]
                raise UserError('--embeddings: row %d of %s is not finite' % (place, path))
            own = centers.take(labels[start:start + _CHUNK]).astype(np.float64)
            own = own.reshape(len(rows), -1, rows.shape[1])                                         # (m, J, D)
            cosines.append(np.matmul(unit(own), unit(rows)[:, :, None])[:, :, 0])
            bar.update(len(rows))
    return np.clip(np.concatenate(cosines), -1.0, 1.0)


def unit(rows):
    """Rows (..., D) divided by their length; 0 stays 0."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def main_centers(cosines, labels, num_classes):
    """(num_classes,): which center of a class is the nearest of most of its rows; the first of equal ones."""
    num_centers = cosines.shape[1]
    places = labels * num_centers + cosines.argmax(axis=1)
    counts = np.bincount(places, minlength=num_classes * num_centers)
    return counts.reshape(num_classes, num_centers).argmax(axis=1)


def write_keys(path, keys, dropped):
    with open(path, 'w', encoding='ascii') as stream:
        for start in range(0, len(keys), _CHUNK):
            kept = keys[start:start + _CHUNK][~dropped[start:start + _CHUNK]]
            stream.write(''.join('%d\n' % key for key in kept.tolist()))


def write_dropped(path, keys, labels, angles, dropped):
    """The furthest first."""
    rows = np.flatnonzero(dropped)
    rows = rows[np.argsort(-angles[rows], kind='stable')]
    with open(path, 'w', encoding='ascii') as stream:
        stream.write('key\tclass\tdegrees\n')
        for row in rows.tolist():
            stream.write('%d\t%d\t%.2f\n' % (keys[row], labels[row], angles[row]))


def write_counts(path, labels, dropped, main_center):
    """A line for each class with images; returns how many of them lose all."""
    before = np.bincount(labels, minlength=len(main_center))
    after = np.bincount(labels[~dropped], minlength=len(main_center))
    with open(path, 'w', encoding='ascii') as stream:
        stream.write('class\timages\tkept\tmain_center\n')
        for label in np.flatnonzero(before).tolist():
            stream.write('%d\t%d\t%d\t%d\n' % (label, before[label], after[label], main_center[label]))
    return int(((before > 0) & (after == 0)).sum())


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
