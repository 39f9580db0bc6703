"""Encoded images -> RGB planes of one size. JPEG, PNG, BMP and WebP are read.

One rule for all readers. Colour order is RGB; grey becomes three equal planes, transparency is dropped, EXIF
orientation is ignored (face sets are aligned already). An image of another size is resized whole, both sides
independently: INTER_AREA where neither side grows, else INTER_LINEAR. Nothing is cropped.

What counts as corrupt: anything OpenCV cannot decode; a JPEG without its end marker or a PNG without its end
chunk, because OpenCV fills the missing part of a cut file with grey and says nothing; an image that states more
than MAX_PIXELS (looked up before anything is decoded). Not noticed: wrong bytes inside the compressed data.
"""
import struct

import cv2
import numpy as np

MAX_PIXELS = 1 << 26                 # 67 million, 192 MiB decoded; a face has some 10,000
_COLOUR = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
JPEG_BEGIN, _JPEG_END = b'\xff\xd8', b'\xff\xd9'
_PNG_BEGIN, _PNG_END = b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'
_JPEG_FRAMES = frozenset(range(0xc0, 0xd0)) - {0xc4, 0xc8, 0xcc}
_JPEG_SEGMENT, _JPEG_FRAME = struct.Struct('>BBH'), struct.Struct('>xxxxxHH')


class CorruptImage(Exception):
    """The bytes are not an image that can be used; the text says why. The caller knows the record."""


def decode_rgb(encoded, size, out=None):
    """Encoded image (bytes-like) -> uint8 (3, h, w), planes R, G, B, for size (h, w).

    out: C-contiguous uint8 (3, h, w), filled and returned. CorruptImage if the bytes are no good.
    """
    if out is None:
        out = np.empty((3,) + tuple(size), np.uint8)
    return to_planes(decode_bgr(encoded, size), out)


def decode_bgr(encoded, size):
    """Encoded image (bytes-like) -> uint8 (h, w, 3), B, G, R as OpenCV has it. CorruptImage as above."""
    image_size(encoded)
    return decode_checked(encoded, size)


def decode_checked(encoded, size):
    """decode_bgr for an image that image_size() has let through."""
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), _COLOUR)        # (h0, w0, 3)
    except cv2.error as error:
        raise CorruptImage('OpenCV: %s' % ' '.join(str(error).split())) from None
    if image is None:
        raise CorruptImage('%d bytes that OpenCV cannot decode' % len(encoded))
    return image if image.shape[:2] == tuple(size) else resize(image, size)


def decode_many(encoded, size):
    """decode_checked for a list of uint8 arrays; None in place of an image that must be looked at by itself."""
    try:
        images = [cv2.imdecode(one, _COLOUR) for one in encoded]
    except cv2.error:
        return [None] * len(encoded)
    shape = tuple(size) + (3,)
    return [image if image is not None and image.shape == shape else None for image in images]


def to_planes(image, out):
    """(h, w, 3) B, G, R -> out (3, h, w), planes R, G, B."""
    cv2.split(image, [out[2], out[1], out[0]])
    return out


def resize(image, size):
    """(h0, w0, 3) -> (h, w, 3) by the rule of this module."""
    height, width = size
    shrinks = height <= image.shape[0] and width <= image.shape[1]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def image_size(encoded):
    """(h, w) that the header of an encoded image states.

    CorruptImage for what must not reach the decoder: no image, a cut one, a giant.
    """
    try:
        if encoded[:2] == JPEG_BEGIN:
            width, height = _jpeg_size(encoded)
        elif encoded[:8] == _PNG_BEGIN:
            width, height = _png_size(encoded)
        else:
            width, height = _other_size(encoded)
    except struct.error:
        raise CorruptImage('an image of %d bytes that ends inside its header' % len(encoded)) from None
    if width * height > MAX_PIXELS:
        raise CorruptImage('an image of %d x %d pixels; at most %d pixels are read' % (width, height, MAX_PIXELS))
    return height, width


def _jpeg_size(encoded):
    """(width, height) from the frame header of a JPEG; an end marker must follow it."""
    position = jpeg_segments(encoded)[-1]
    # The end marker is the last thing in the file but for padding. Thumbnails, before the frame, have their own;
    # compressed data cannot contain it.
    if encoded[-2:] != _JPEG_END and _JPEG_END not in bytes(encoded[position:]):
        raise CorruptImage('a JPEG of %d bytes without its end: it was cut' % len(encoded))
    height, width = _JPEG_FRAME.unpack_from(encoded, position)
    return width, height


def jpeg_segments(encoded):
    """Positions of the segments of a JPEG, the last that of its frame. CorruptImage, struct.error."""
    positions = [2]
    while True:
        marker, kind, length = _JPEG_SEGMENT.unpack_from(encoded, positions[-1])
        if kind in _JPEG_FRAMES:
            return positions
        if marker != 0xff:
            raise CorruptImage('a JPEG with a damaged header (byte %d)' % positions[-1])
        positions.append(positions[-1] + (2 + length if kind != 0xff else 1))  # 0xff may be repeated as filler


def _png_size(encoded):
    """(width, height) of a PNG; its end chunk must be there."""
    if encoded[-8:] != _PNG_END and _PNG_END not in bytes(encoded[8:]):
        raise CorruptImage('a PNG of %d bytes without its end: it was cut' % len(encoded))
    return struct.unpack_from('>II', encoded, 16)


def _other_size(encoded):
    """(width, height) of a BMP or WebP; anything else is refused, so that no format skips the size check."""
    if encoded[:2] == b'BM':
        width, height = struct.unpack_from('<ii', encoded, 18)
        return abs(width), abs(height)
    if encoded[:4] == b'RIFF' and encoded[8:12] == b'WEBP':
        return _webp_size(encoded)
    if len(encoded) == 0:
        raise CorruptImage('no bytes where an image should be')
    raise CorruptImage('%d bytes that are not a JPEG, PNG, BMP or WebP image' % len(encoded))


def _webp_size(encoded):
    kind = bytes(encoded[12:16])
    if kind == b'VP8X':
        low_width, high_width, low_height, high_height = struct.unpack_from('<HBHB', encoded, 24)
        return (high_width << 16 | low_width) + 1, (high_height << 16 | low_height) + 1
    if kind == b'VP8L':
        bits, = struct.unpack_from('<I', encoded, 21)
        return (bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1
    width, height = struct.unpack_from('<HH', encoded, 26)
    return width & 0x3fff, height & 0x3fff
