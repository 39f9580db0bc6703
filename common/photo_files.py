"""Photographs as files: folders of identities, list files, and reading them for a set.

Everything is in natural order: runs of digits count as numbers, so photo2 comes before photo10.
"""
import os
import re

import cv2

from common.errors import UserError
from common.images import CorruptImage, decode_bgr, image_size

ENDINGS = '.jpg', '.jpeg', '.png', '.bmp', '.webp'
DEFAULT_QUALITY = 95                 # of JPEGs that are encoded anew
_DIGITS = re.compile('([0-9]+)')


def natural_key(name):
    """Key that sorts names naturally; names that differ never tie."""
    parts = _DIGITS.split(name)
    for place in range(1, len(parts), 2):
        digits = parts[place].lstrip('0')
        parts[place] = len(digits), digits
    return parts, name


def list_identities(folder):
    """{identity: [path, ...]} of FOLDER/IDENTITY/PHOTO.jpg, in natural order; hidden files and others are skipped.

    UserError if the folder cannot be read or holds no identities.
    """
    found = {}
    try:
        for name in _sorted_names(folder):
            if os.path.isdir(os.path.join(folder, name)):
                photos = [photo for photo in _sorted_names(os.path.join(folder, name)) if is_photo(photo)]
                found[name] = [os.path.join(folder, name, photo) for photo in photos]
    except OSError as error:
        raise UserError('cannot read %s: %s' % (error.filename, error.strerror)) from None
    if not any(found.values()):
        raise UserError('%s holds no photos: one folder per identity with %s files is expected'
                        % (os.path.abspath(folder), ' '.join(ENDINGS)))
    return found


def is_photo(name):
    return name.lower().endswith(ENDINGS)


def _sorted_names(folder):
    return sorted((name for name in os.listdir(folder) if not name.startswith('.')), key=natural_key)


def printable(name):
    """A file name as text that can be printed, whatever its bytes are."""
    return name.encode('utf-8', 'backslashreplace').decode('utf-8')


def read_table(path, columns):
    """Yield (line number, fields) of a text file with tabs between its columns; blank lines are skipped.

    columns: their names. UserError names the line that has another number of them.
    """
    try:
        with open(path, encoding='utf-8-sig', errors='surrogateescape') as stream:
            for number, line in enumerate(stream, 1):
                fields = line.rstrip('\r\n').split('\t')
                if not line.strip():
                    continue
                if len(fields) != len(columns) or not all(fields) or '\0' in line:
                    raise UserError('%s line %d is not "%s" with tabs between: %r'
                                    % (os.path.abspath(path), number, '<tab>'.join(columns), line[:60]))
                yield number, fields
    except OSError as error:
        raise UserError('cannot read %s: %s' % (os.path.abspath(path), error.strerror)) from None


class Photo:
    """A photo that was read. size (h, w) and encoded bytes, or the reason why it cannot be used."""

    def __init__(self, path, encoded=None, size=None, reason=None):
        self.path, self.encoded, self.size, self.reason = path, encoded, size, reason


class PhotoReader:
    """Reads photos; any number of threads may call it."""

    def __init__(self, size=None, quality=None):
        """size: (h, w) to which photos of another size are resized and encoded as JPEG, None: bytes unchanged."""
        self.size, self.quality = size, quality or DEFAULT_QUALITY

    def __call__(self, path):
        """Photo; it was decoded to see that it can be."""
        try:
            with open(path, 'rb') as stream:
                encoded = stream.read()
            size = image_size(encoded)
            image = decode_bgr(encoded, self.size or size)
        except OSError as error:
            return Photo(path, reason=error.strerror)
        except CorruptImage as error:
            return Photo(path, reason=str(error))
        if self.size in (None, size):
            return Photo(path, encoded, size)
        encoded = cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, self.quality])[1].tobytes()
        return Photo(path, encoded, self.size)
