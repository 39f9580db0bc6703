"""What image_size() says, for many images in memory at once: for JPEGs whose headers are built alike."""
import struct

import numpy as np

from common.images import JPEG_BEGIN, MAX_PIXELS, CorruptImage, jpeg_segments

LAYOUTS = 4                          # different headers that are tried; sets of one source have one or two
_SIZE = 5                            # bytes from the frame's segment on, where height and width stand
_END = 2


def are_decodable(data, begins, ends):
    """(n,) bool: True where data[begin:end] is a JPEG that image_size() lets through; False where it must be asked.

    data: (m,) uint8; begins, ends: (n,) int64. An image passes if its segments, up to the frame, are as long as those
    of an image that was looked at, and it ends with an end marker.
    """
    known = np.zeros(len(begins), bool)
    open_rows = np.flatnonzero(ends - begins > _END)
    ended = (data[ends[open_rows] - 2] == 0xff) & (data[ends[open_rows] - 1] == 0xd9)
    open_rows = open_rows[ended]
    for _ in range(LAYOUTS):
        if not len(open_rows):
            break
        like = _like_first(data, begins[open_rows], ends[open_rows])
        known[open_rows[like]] = True
        open_rows = open_rows[1:][~like[1:]]                   # the first has been tried, whatever came out
    return known


def _like_first(data, begins, ends):
    """(n,) bool: which images have the segments of the first, and few enough pixels; none if the first is no JPEG."""
    image = data[begins[0]:ends[0]].data
    try:
        positions = np.array(jpeg_segments(image) if image[:2] == JPEG_BEGIN else [], np.int64)
    except (CorruptImage, struct.error):
        positions = []
    if not len(positions):
        return np.zeros(len(begins), bool)
    heads = (positions[:, None] + np.arange(4)).reshape(-1)    # marker and length of each
    places = np.concatenate([[0, 1], heads])
    fits = ends - begins > positions[-1] + _SIZE + 4
    like = fits.copy()
    rows = np.flatnonzero(fits)
    like[rows] = (data[begins[rows, None] + places] == data[begins[0] + places]).all(axis=1)
    rows = np.flatnonzero(like)
    sizes = data[begins[rows, None] + positions[-1] + np.arange(_SIZE, _SIZE + 4)].astype(np.int64)
    height, width = sizes[:, 0] << 8 | sizes[:, 1], sizes[:, 2] << 8 | sizes[:, 3]
    like[rows] = height * width <= MAX_PIXELS
    return like
