"""The images that a template protocol lists: as crops or aligned by their five points, or their saved embeddings."""
import concurrent.futures
import os

import numpy as np

from common.ahead import ahead
from common.alignment import align
from common.embed import embedded
from common.errors import UserError
from common.image_source import FileSource, decoded_batches
from common.images import decode_bgr, image_size, to_planes
from common.progress import progress_bar

_BATCH = 4096                        # saved embeddings that are read at once


class ListedImages(FileSource):
    """Images of a folder that a file lists; all must be there. points (m, 5, 2): to align by; None: crops."""

    def __init__(self, folder, names, points=None):
        super().__init__(folder, names)
        self._points = points
        missing = [position for position in range(len(names)) if not os.path.isfile(self.path(position))]
        if missing:
            raise UserError('%d of %d images are not in %s, the first is %s' % (
                len(missing), len(names), os.path.abspath(folder), names[missing[0]]))

    def decode(self, position, size, out):
        """Fill out uint8 (3, h, w). CorruptImage."""
        if self._points is None:
            super().decode(position, size, out)
            return
        encoded = self.encoded(position)
        to_planes(align(decode_bgr(encoded, image_size(encoded)), self._points[position]), out)


def embedded_images(source, embedder, size, args):
    """Yield (first position, embeddings (k, D) float32) of all images of a source. args: of the command.

    UserError for an image that cannot be used: a template without it would be another one.
    """
    with concurrent.futures.ThreadPoolExecutor(args.threads) as pool, \
            progress_bar(total=len(source), desc='embed', unit=' images', disable=None) as bar:
        for positions, images, reasons in ahead(decoded_batches(source, size, args.batch_size, pool)):
            for position, reason in zip(positions.tolist(), reasons):
                if reason is not None:
                    raise UserError('%s: %s; mend it' % (source.name(position), reason))
            rows = embedded(embedder, images, args.flip, False)[:len(positions)]
            finite = np.isfinite(rows).all(axis=1)
            if not finite.all():
                raise UserError('the embedding of %s is NaN or infinite: take another epoch'
                                % source.name(int(positions[np.argmin(finite)])))
            bar.update(len(positions))
            yield int(positions[0]), rows


def saved_embeddings(embeddings, names, names_path=None):
    """Yield (first position, embeddings (k, D) float32) of the images `names`, from an EmbeddingFile.

    Its rows have names, in a file or beside it; without one they are the images in order. UserError if one lacks.
    """
    rows = np.arange(len(names))
    if names_path or embeddings.has_names():
        positions = {name: row for row, name in enumerate(embeddings.names(names_path))}
        missing = [name for name in names if name not in positions]
        if missing:
            raise UserError('%s has no embedding of %d of %d images, the first is %s'
                            % (embeddings.path, len(missing), len(names), missing[0]))
        rows = np.array([positions[name] for name in names])
    elif len(embeddings) != len(names):
        raise UserError('%s has %d embeddings, the protocol %d images, and there is no names.txt beside it that says '
                        'which is which' % (embeddings.path, len(embeddings), len(names)))
    for start in range(0, len(rows), _BATCH):
        yield start, embeddings.take(rows[start:start + _BATCH])
