"""Why shuffled sets are not read by MXNet's own reader: what it does with images that are not as they should be."""
import numpy as np
import pytest

from common.images import decode_rgb
from common.mxnet_loader import mx
from tests.make_sets import encode, jpeg, picture
from tests.make_shuffled import sequential_set

SHAPE = (3, 112, 112)


@pytest.fixture
def open_native(tmp_path):
    """ImageRecordUInt8Iter of eight images, front to back; images: {i: encoded image} of those that differ."""
    def make(images=()):
        path = sequential_set(tmp_path, range(8), images)
        return mx.io.ImageRecordUInt8Iter(path_imgrec=path, data_shape=SHAPE, batch_size=8, verbose=False)
    return make


def batch(images):
    return next(images).data[0].asnumpy()


def test_good_images_have_the_same_pixels(open_native):
    for number, image in enumerate(batch(open_native())):
        assert np.array_equal(image, decode_rgb(jpeg(number), SHAPE[1:]))


def test_one_corrupt_image_and_nothing_comes_any_more(open_native):
    with pytest.raises(mx.base.MXNetError):
        open_native({5: b'g' * 80})


def test_a_cut_image_is_made_up_without_a_word(open_native):
    image = batch(open_native({5: jpeg(5)[:2000]}))[5]
    whole = decode_rgb(jpeg(5), SHAPE[1:])
    assert np.array_equal(image[:, 0], whole[:, 0]) and not np.array_equal(image, whole)


@pytest.mark.parametrize('size', [(160, 160), (60, 96)])
def test_an_image_of_another_size_is_not_resized_whole(open_native, size):
    encoded = encode(picture(5, size), '.png')
    assert not np.array_equal(batch(open_native({5: encoded}))[5], decode_rgb(encoded, SHAPE[1:]))
