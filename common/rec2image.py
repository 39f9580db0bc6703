"""Export the images of a training set as files LABEL/KEY.jpg, their bytes unchanged.

    rec2image --input set --output photos
"""
import os
import re
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np
from tqdm import tqdm

from common.any_set import open_any_set, record_path
from common.command import new_folder, refuse_output, run_tool, tool_parser
from common.errors import UsageError, UserError
from common.face_labels import read_labels
from common.face_record import FLOAT32, read_property
from common.recordio import unpack

BEGINS = ((b'\xff\xd8', '.jpg'), (b'\x89PNG', '.png'), (b'BM', '.bmp'), (b'RIFF', '.webp'))
OTHER = '.bin'                       # ending of what is no image
_RANGE = re.compile('([0-9]{1,15})(?:-([0-9]{1,15}))?')
_CHUNK = 1 << 16


def make_parser():
    parser = tool_parser(
        'rec2image', 'Export the images of a training set, indexed or shuffled, as files LABEL/KEY.jpg; their bytes '
        'stay unchanged.', 'rec2image --input set --output photos --labels 0-9,100')
    add = parser.add_argument
    add('--input', required=True, metavar='X', help='folder of the set, or its .rec')
    add('--output', required=True, metavar='DIR', help='folder to create')
    add('--labels', metavar='0-9,100', help='only these classes (default: all)')
    return parser


def run(args):
    ranges = parse_labels(args.labels) if args.labels is not None else None
    path = record_path(args.input)
    refuse_output(args.output, '--output', [os.path.dirname(path)])
    found = read_property(os.path.dirname(path))
    with open_any_set(path) as face_set, new_folder(args.output) as partial:
        count, odd = export(face_set, partial, ranges, found.label_format if found else FLOAT32)
    print('%s: %d images' % (os.path.abspath(args.output), count))
    if odd:
        print('%d of them are no JPEG, PNG, BMP or WebP; their names end with %s' % (odd, OTHER))


def parse_labels(text):
    """'0-9,100' -> [(0, 9), (100, 100)]. UsageError."""
    ranges = []
    for part in text.split(','):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise UsageError('--labels %s: numbers and ranges such as 0-9,100 are expected' % text)
        ranges.append((int(found.group(1)), int(found.group(2) or found.group(1))))
        if ranges[-1][0] > ranges[-1][1]:
            raise UsageError('--labels %s: the range %s is empty' % (text, part))
    return ranges


def export(face_set, folder, ranges=None, label_format=FLOAT32):
    """Write images into a folder that exists; returns (their number, how many are no images).

    ranges: [(first, last), ...] of classes, None: all. UserError for a label that is no class id, or if none is chosen.
    """
    count, odd, made = 0, 0, set()
    with tqdm(total=face_set.num_images, desc='export', unit=' images', disable=None) as bar:
        for position, label in labelled(face_set, ranges, label_format, bar.update):
            target = os.path.join(folder, str(label))
            if label not in made:
                os.mkdir(target)
                made.add(label)
            encoded = bytes(_image(face_set, position))
            ending = next((ending for begin, ending in BEGINS if encoded.startswith(begin)), OTHER)
            with open(os.path.join(target, '%d%s' % (face_set.keys[position], ending)), 'wb') as stream:
                stream.write(encoded)
            count, odd = count + 1, odd + (ending == OTHER)
    if count == 0:
        raise UserError('%s has no image of the classes of --labels' % face_set.path)
    return count, odd


def labelled(face_set, ranges, label_format, update):
    """Yield (position, label) of the chosen images."""
    for start in range(0, face_set.num_images, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, face_set.num_images))
        labels = read_labels(face_set, positions, label_format)
        if (labels < 0).any():
            raise UserError('%s has no class id as label; rec_inspect lists such records'
                            % face_set.name(int(positions[labels < 0][0])))
        for position, label in zip(positions.tolist(), labels.tolist()):
            if ranges is None or any(first <= label <= last for first, last in ranges):
                yield position, label
            update()


def _image(face_set, position):
    try:
        return unpack(face_set.read(position))[1]
    except ValueError as error:
        raise UserError('%s: %s' % (face_set.name(position), error)) from None


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
