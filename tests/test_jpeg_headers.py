"""Headers of many images at once say what those of one image say."""
import cv2
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.images import MAX_PIXELS, CorruptImage, image_size
from common.jpeg_headers import LAYOUTS, are_decodable


def jpeg(quality=90, size=(12, 14), *options):
    image = np.random.RandomState(quality).randint(0, 255, size + (3,), np.uint8)
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, quality] + list(options))[1].tobytes()


def asked(images):
    """What are_decodable says of images that lie one behind the other."""
    ends = np.cumsum([len(image) for image in images])
    data = np.frombuffer(b''.join(images), np.uint8)
    return are_decodable(data, ends - [len(image) for image in images], ends)


def is_decodable(image):
    try:
        image_size(image)
    except CorruptImage:
        return False
    return True


def giant(image):
    """The image with a height and width that no one has memory for."""
    place = image.index(b'\xff\xc0') + 5
    return image[:place] + b'\xff\xdc\xff\xdc' + image[place + 4:]


def test_usual_images_pass_whatever_their_quality_and_size():
    images = [jpeg(quality, size) for quality in (20, 75, 95) for size in ((12, 14), (112, 112))]
    assert asked(images).all()


def test_what_must_be_asked_alone():
    good = jpeg()
    png = cv2.imencode('.png', np.zeros((4, 4, 3), np.uint8))[1].tobytes()
    images = [good, good[:-1], good[:-2] + b'\0\0', b'', b'\xff', png, giant(good), b'\0' * 500, good + b'\0', good]
    assert asked(images).tolist() == [True] + [False] * 8 + [True]
    assert MAX_PIXELS < 0xffdc**2


def test_a_few_layouts_are_known_each():
    images = [jpeg(50 + number % 2, (12, 12), cv2.IMWRITE_JPEG_RST_INTERVAL, number % 2) for number in range(6)]
    images += [jpeg(50, (12, 12), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)]
    assert asked(images).all()


def test_images_of_more_layouts_are_left_to_be_asked():
    good = jpeg()
    comments = [b'\xff\xfe' + (2 + number).to_bytes(2, 'big') + b'c' * number for number in range(LAYOUTS + 3)]
    images = [good[:2] + comment + good[2:] for comment in comments]
    assert asked(images).tolist() == [True] * LAYOUTS + [False] * 3
    assert all(map(is_decodable, images))


@given(st.lists(st.tuples(st.sampled_from([20, 90]), st.integers(0, 400), st.integers(0, 255), st.integers(0, 3)),
                min_size=1, max_size=12))
def test_nothing_passes_that_would_not_pass_alone(changes):
    images = []
    for quality, place, byte, kind in changes:
        image = bytearray(jpeg(quality))
        if kind == 0:
            image[place % len(image)] = byte
        elif kind == 1:
            del image[place % len(image):]
        elif kind == 2:
            image = bytearray(giant(bytes(image)))
        images.append(bytes(image))
    for image, passes in zip(images, asked(images)):
        assert is_decodable(image) or not passes
