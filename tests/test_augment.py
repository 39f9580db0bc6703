"""Augmentation as a function of the drawn numbers, against plain NumPy."""
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recognition.augment import FILL, NUM_DRAWS, Augment, compress, cut_square, jitter
from tests.make_sets import picture

FACTOR = st.floats(0.875, 1.125)


def rows(count, seed=0):
    return Augment.draw(np.random.RandomState(seed), count)


def test_nothing_asked_nothing_done():
    image = picture(0)
    assert Augment().apply(image, rows(1)[0]) is image


def test_half_the_images_are_mirrored():
    image, mirrored = picture(1), picture(1)[:, ::-1]
    results = [Augment(mirror=True).apply(image.copy(), row) for row in rows(200)]
    share = np.mean([(result == mirrored).all() for result in results])
    assert 0.4 < share < 0.6
    assert all((result == mirrored).all() or (result == image).all() for result in results)


def test_cut_squares_lie_anywhere():
    found = []
    for row in rows(300):
        image = np.zeros((30, 40, 3), np.uint8)
        changed = Augment(cutoff=8).apply(image, row) == FILL
        assert (changed.all(axis=2) == changed.any(axis=2)).all()
        found.append(changed[..., 0])
    found = np.array(found)
    assert 0.4 < found.any(axis=(1, 2)).mean() < 0.6
    assert found.sum(axis=(1, 2)).max() == 64 and found.any(axis=0).all()


def test_cut_square_at_a_corner():
    image = np.zeros((10, 10, 3), np.uint8)
    cut_square(image, 0, 9, 6)
    assert (image[:3, 6:] == FILL).all() and image.astype(int).sum() == FILL * 3 * 3 * 4


@given(FACTOR, FACTOR, FACTOR)
def test_jitter_equals_the_steps_in_any_order(brightness, contrast, saturation):
    image = picture(2, (16, 12)) // 2 + 40                     # far from 0 and 255
    weights = np.array([0.114, 0.587, 0.299])
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        expected = image.astype(np.float64)
        for step in order:
            grey = (expected * weights).sum(axis=2, keepdims=True)
            expected = (expected * brightness, expected * contrast + (1 - contrast) * grey.mean(),
                        expected * saturation + (1 - saturation) * grey)[step]
        difference = np.abs(jitter(image, brightness, contrast, saturation) - expected)
        assert difference.max() < 0.9                          # OpenCV has 10 bits for a factor


def test_jitter_is_clipped():
    bright = jitter(np.full((4, 4, 3), 250, np.uint8), 1.125, 1, 1)
    assert (bright == 255).all()
    assert (jitter(picture(3), 1, 1, 1) == picture(3)).all()


def test_color_two_adds_artefacts_to_half_the_images():
    image, draws = picture(4), rows(100)
    same = [(Augment(color=1).apply(image, row) == Augment(color=2).apply(image, row)).all() for row in draws]
    assert 0.3 < np.mean(same) < 0.7
    assert all((Augment(color=1).apply(image, row) != image).any() for row in draws)


@pytest.mark.parametrize('quality', [2, 20])
def test_artefacts_are_those_of_jpeg(quality):
    encoded = cv2.imencode('.jpg', picture(5), [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    assert (compress(picture(5), quality) == cv2.imdecode(encoded, cv2.IMREAD_COLOR)).all()


def test_rows_do_not_depend_on_the_settings():
    assert rows(3).shape == (3, NUM_DRAWS) and (rows(3) == rows(7)[:3]).all()
