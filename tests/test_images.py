"""Decoding: colours, formats, the resize rule, and what is refused."""
import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.images import MAX_PIXELS, CorruptImage, decode_rgb, resize
from tests.make_sets import encode, jpeg, picture

ENDINGS = ['.jpg', '.png', '.bmp', '.webp']


def solid(size, colour=(240, 120, 10)):
    return np.full(size + (len(colour),), colour, np.uint8)


def with_frame_size(encoded, width, height):
    """A JPEG that states another size."""
    frame = encoded.index(b'\xff\xc0')
    return encoded[:frame + 5] + struct.pack('>HH', height, width) + encoded[frame + 9:]


def png_of(width, height):
    """The smallest PNG that states a size, its data being a bomb in intention."""
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0))
            + chunk(b'IDAT', zlib.compress(bytes(1000))) + chunk(b'IEND', b''))


@pytest.mark.parametrize('ending', ENDINGS)
@pytest.mark.parametrize('size', [(112, 112), (160, 160), (96, 96), (60, 130)])
def test_planes_are_red_green_blue(ending, size):
    planes = decode_rgb(memoryview(encode(solid(size), ending)), (112, 96))
    assert planes.shape == (3, 112, 96) and planes.dtype == np.uint8
    assert np.abs(planes.reshape(3, -1).astype(int) - [[240], [120], [10]]).max() <= 3


def test_grey_and_transparent_images():
    grey = picture(1)[..., 0]
    assert (decode_rgb(encode(grey, '.png'), (112, 112)) == grey).all()
    rgba = np.dstack([picture(2), picture(3)[..., 0]])
    assert (decode_rgb(encode(rgba, '.png'), (112, 112)) == rgba[..., :3].transpose(2, 0, 1)).all()


def test_an_array_can_be_filled():
    batch = np.zeros((2, 3, 112, 112), np.uint8)
    assert decode_rgb(encode(picture(4), '.png'), (112, 112), batch[1]).base is not None
    assert (batch[1] == picture(4).transpose(2, 0, 1)).all() and not batch[0].any()


def test_exif_orientation_is_ignored():
    exif = b'Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0'       # rotate by 90 degrees
    plain = jpeg(5, (40, 80))
    turned = plain[:2] + b'\xff\xe1' + struct.pack('>H', len(exif) + 2) + exif + plain[2:]
    assert (decode_rgb(turned, (40, 80)) == decode_rgb(plain, (40, 80))).all()


@pytest.mark.parametrize('size, interpolation', [
    ((160, 160), cv2.INTER_AREA), ((112, 113), cv2.INTER_AREA), ((96, 96), cv2.INTER_LINEAR),
    ((60, 130), cv2.INTER_LINEAR), ((300, 100), cv2.INTER_LINEAR),
])
def test_resize_rule(size, interpolation):
    image = picture(6, size)
    expected = cv2.resize(image, (112, 112), interpolation=interpolation)
    assert (resize(image, (112, 112)) == expected).all()
    assert (decode_rgb(encode(image, '.png'), (112, 112)) == expected.transpose(2, 0, 1)).all()


@given(st.floats(0, 0.999), st.sampled_from(ENDINGS[:2]))
def test_cut_images_are_corrupt(share, ending):
    encoded = encode(picture(7), ending)
    with pytest.raises(CorruptImage):
        decode_rgb(encoded[:int(share * len(encoded))], (112, 112))


def test_cut_jpeg_with_thumbnail_is_corrupt():
    thumbnail, plain = jpeg(8, (16, 16)), jpeg(9)
    with_thumbnail = plain[:2] + b'\xff\xe1' + struct.pack('>H', len(thumbnail) + 2) + thumbnail + plain[2:]
    assert (decode_rgb(with_thumbnail, (112, 112)) == decode_rgb(plain, (112, 112))).all()
    with pytest.raises(CorruptImage, match='it was cut'):
        decode_rgb(with_thumbnail[:-20], (112, 112))


def test_padding_after_the_end_is_harmless():
    plain = jpeg(10)
    assert (decode_rgb(plain + bytes(999), (112, 112)) == decode_rgb(plain, (112, 112))).all()
    filled = plain[:2] + b'\xff\xff\xff' + plain[2:]          # filler before a marker
    assert (decode_rgb(filled, (112, 112)) == decode_rgb(plain, (112, 112))).all()


@given(st.binary(max_size=200), st.sampled_from([b'', b'\xff\xd8', b'\x89PNG\r\n\x1a\n', b'BM', b'RIFF\0\0\0\0WEBPVP8 ',
                                                 b'\xff\xd8\xff\xc0\0\x08\x08\0\x01\0\x01\xff\xd9']))
def test_garbage_is_corrupt(data, start):
    with pytest.raises(CorruptImage):
        decode_rgb(start + data, (112, 112))


@pytest.mark.parametrize('encoded', [
    with_frame_size(jpeg(11), 65500, 65500), png_of(65500, 65500), png_of(2**31 - 1, 1),
    b'BM' + bytes(16) + struct.pack('<ii', 40000, -40000) + bytes(30),
    b'RIFF\0\0\0\0WEBPVP8X' + bytes(8) + b'\xff\xff\x00\xff\xff\x00' + bytes(20),
    b'RIFF\0\0\0\0WEBPVP8L' + bytes(5) + b'\xff\xff\xff\xff' + bytes(20),
    b'RIFF\0\0\0\0WEBPVP8 ' + bytes(10) + b'\xff\x3f\xff\x3f' + bytes(20),
])
def test_giants_are_refused_before_they_are_decoded(encoded, monkeypatch):
    monkeypatch.setattr(cv2, 'imdecode', None)
    with pytest.raises(CorruptImage, match='at most %d pixels' % MAX_PIXELS):
        decode_rgb(encoded, (112, 112))


def test_other_formats_are_named():
    with pytest.raises(CorruptImage, match='no bytes'):
        decode_rgb(b'', (112, 112))
    with pytest.raises(CorruptImage, match='not a JPEG, PNG, BMP or WebP'):
        decode_rgb(encode(picture(12), '.tiff'), (112, 112))
