"""A picture of sample faces: one row per identity, its label at the left."""
import os

import cv2
import numpy as np

from common.errors import UserError
from common.files import replacing
from common.images import CorruptImage, decode_bgr
from common.recordio import unpack

TILE, MARGIN = 112, 104              # pixels of a face; of the column with the labels
NUM_IDENTITIES, PER_IDENTITY = 16, 10
_WHITE, _RED = (255, 255, 255), (0, 0, 255)


def write_contact_sheet(path, face_set, labels):
    """Write a PNG with faces of identities that are evenly spread over the labels (n,) of all images."""
    data = cv2.imencode('.png', draw_sheet(face_set, labels))[1].tobytes()
    with replacing(path) as partial:
        partial.write_bytes(data)


def draw_sheet(face_set, labels):
    """uint8 (h, w, 3) B, G, R. A face that cannot be decoded is a red cross."""
    classes = np.unique(labels[labels >= 0])
    if len(classes) == 0:
        raise UserError('%s: no image has a label that could be drawn' % face_set.path)
    chosen = classes[np.linspace(0, len(classes) - 1, min(NUM_IDENTITIES, len(classes))).astype(np.int64)]
    sheet = np.zeros((TILE * len(chosen), MARGIN + TILE * PER_IDENTITY, 3), np.uint8)
    for row, number in enumerate(chosen):
        band = sheet[row * TILE:(row + 1) * TILE]
        cv2.putText(band, str(number), (4, TILE // 2), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _WHITE)
        for place, position in enumerate(np.flatnonzero(labels == number)[:PER_IDENTITY]):
            left = MARGIN + place * TILE
            band[:, left:left + TILE] = _face(face_set, position)
    return sheet


def _face(face_set, position):
    try:
        return decode_bgr(unpack(face_set.read(position))[1], (TILE, TILE))
    except (CorruptImage, UserError, ValueError):
        cross = np.zeros((TILE, TILE, 3), np.uint8)
        cv2.line(cross, (0, 0), (TILE, TILE), _RED, 3)
        cv2.line(cross, (TILE, 0), (0, TILE), _RED, 3)
        return cross


def check_sheet_path(path):
    """UserError if the picture cannot be written there, or would replace something."""
    if not path.endswith('.png'):
        raise UserError('--contact-sheet %s: a name that ends with .png is expected' % path)
    if os.path.lexists(path):
        raise UserError('--contact-sheet %s is there already: name another, or remove it first' % path)
