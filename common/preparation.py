"""Decoding the images of a set on the way to another one: to check them, or to bring them to one size."""
import concurrent.futures
import itertools
import os

import cv2

from common.images import CorruptImage, decode_bgr, image_size
from common.recordio import RecordFile, unpack

JPEG_QUALITY = 95


class Preparation:
    """Decodes images on threads, to check them or to bring them to one size."""

    def __init__(self, size=None, threads=None):
        """size (h, w): images of another size are resized and encoded as JPEG again; None: no bytes are changed."""
        self._size = size
        self._threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._pool.shutdown()

    def __call__(self, images):
        """List of encoded images -> list of encoded images, with CorruptImage where one cannot be decoded."""
        step = -(-len(images) // self._threads) or 1
        parts = [images[start:start + step] for start in range(0, len(images), step)]
        return list(itertools.chain.from_iterable(self._pool.map(self._prepare_all, parts)))

    def _prepare_all(self, images):
        return [self._prepare(image) for image in images]

    def _prepare(self, image):
        try:
            size = image_size(image)
            decoded = decode_bgr(image, self._size or size)
        except CorruptImage as error:
            return error
        if self._size in (None, size):
            return image
        return cv2.imencode('.jpg', decoded, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()


def first_image_size(path):
    """(h, w) of the first image of a .rec that can be decoded; None if there is none among the first 1000 records."""
    with RecordFile(path) as record_file:
        for _, payload in itertools.islice(record_file.walk(), 1000):
            try:
                return image_size(unpack(payload)[1])
            except (ValueError, CorruptImage):
                continue
    return None
