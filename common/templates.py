"""Templates from embeddings of images: the mean over the images of a medium, the sum over media, divided by its length.

That sum is linear in the images, so it is built image by image, in any order, and no embedding has to be kept. D
embedding size, m images, t templates; see MediaList.
"""
import numpy as np

from common.drop_noisy import unit


class TemplatePool:
    """Sums up the templates of a MediaList."""

    def __init__(self, media_list, embedding_size, use_norm=False, scores=None):
        """use_norm: embeddings keep their lengths, as weights, else each is divided by its own; scores (m,): factors
        on the images, those of a detector; None: 1."""
        self._use_norm, self._scores = use_norm, scores
        order = np.argsort(media_list.image, kind='stable')
        self._begins = np.searchsorted(media_list.image[order], np.arange(len(media_list.names) + 1))
        self._templates, self._weights = media_list.template[order], image_weights(media_list)[order]
        self._sums = np.zeros((len(media_list.template_ids), embedding_size))

    def add(self, first, embeddings):
        """embeddings (k, D): of the images first, first + 1, ..."""
        rows = np.asarray(embeddings, np.float64)
        if not self._use_norm:
            rows = unit(rows)
        if self._scores is not None:
            rows = rows * self._scores[first:first + len(rows), None]
        for image, row in enumerate(rows, first):
            for line in range(self._begins[image], self._begins[image + 1]):
                self._sums[self._templates[line]] += self._weights[line] * row

    def templates(self):
        """(t, D) float32 of length 1; a sum of zeros stays one."""
        return unit(self._sums).astype(np.float32)


def image_weights(media_list):
    """(n,): of each line, 1 / number of images of its medium in its template."""
    keys = np.stack([media_list.template, media_list.media], axis=1)
    _, medium, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return 1.0 / counts[medium.reshape(-1)]


def pair_cosines(templates, first, second, block):
    """(k,) float32: of templates first[i] and second[i], `block` pairs at a time; the block changes no bit of them."""
    cosines = np.empty(len(first), np.float32)
    for start in range(0, len(first), block):
        here = slice(start, start + block)
        np.einsum('ij,ij->i', templates[first[here]], templates[second[here]], out=cosines[here])
    return cosines
