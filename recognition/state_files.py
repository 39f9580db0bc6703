"""The files of a training state: hashed while they are written, checked before they are read.

A folder of files, among them manifest.json, which holds the size and SHA-256 of all others, and manifest.sha256 with
its own. docs/checkpoints.md describes them for other tools. Nothing is pickled.
"""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import zipfile

import numpy as np

from common.errors import UserError

FORMAT, FORMAT_VERSION = 'shardface training state', 1
MANIFEST, SEAL = 'manifest.json', 'manifest.sha256'
CHUNK = 1 << 20
CHECKING_THREADS = 4


class DamagedState(UserError):
    """A training state of which something is missing or changed. The text names the file."""


class StateWriter:
    """Writes the files of a state into a folder that is there already; finish() comes last."""

    def __init__(self, folder):
        self.folder, self.files, self.size = pathlib.Path(folder), {}, 0

    @contextlib.contextmanager
    def create(self, name):
        """A file to write front to back. name: below the folder, with / between folders."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with open(str(path), 'wb') as file:
            stream = HashedStream(file)
            yield stream
        self.files[name] = {'bytes': stream.size, 'sha256': stream.hexdigest()}
        self.size += stream.size

    def arrays(self, name, arrays):
        """An .npz file, not compressed. arrays: (name, NumPy array) pairs; one is in memory at a time."""
        with self.create(name) as stream, zipfile.ZipFile(stream, 'w', zipfile.ZIP_STORED) as archive:
            for key, array in arrays:
                with archive.open(zipfile.ZipInfo(key + '.npy'), 'w', force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, version=(1, 0), allow_pickle=False)

    def finish(self, facts, files):
        """Write the manifest: facts, a dict for JSON, and `files` of all writers of this folder."""
        manifest = dict({'format': FORMAT, 'version': FORMAT_VERSION}, **facts)
        manifest['files'] = files
        text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False).encode() + b'\n'
        (self.folder / MANIFEST).write_bytes(text)
        (self.folder / SEAL).write_bytes(seal(text))


def seal(text):
    """The line of sha256sum for a manifest of these bytes."""
    return ('%s  %s\n' % (hashlib.sha256(text).hexdigest(), MANIFEST)).encode()


class HashedStream:
    """What zipfile and NumPy need of a file to write it front to back."""

    def __init__(self, file):
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def write(self, data):
        self._file.write(data)
        self._hash.update(data)
        count = memoryview(data).nbytes
        self.size += count
        return count

    def flush(self):
        self._file.flush()

    def hexdigest(self):
        return self._hash.hexdigest()


def read_manifest(folder):
    """The manifest of a state, a dict. DamagedState; UserError for the format of a newer version."""
    folder = pathlib.Path(folder)
    try:
        text, sealed = (folder / MANIFEST).read_bytes(), (folder / SEAL).read_bytes()
    except OSError as error:
        raise DamagedState('cannot read %s: %s' % (error.filename, error.strerror)) from None
    if sealed != seal(text):
        raise DamagedState('%s is damaged: its SHA-256 is not that of %s' % (folder / MANIFEST, SEAL))
    try:
        manifest = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedState('%s is damaged: %s' % (folder / MANIFEST, error)) from None
    if not isinstance(manifest, dict) or manifest.get('format') != FORMAT:
        raise UserError('%s is no training state' % folder)
    if not isinstance(manifest.get('version'), int) or not is_listing(manifest.get('files')):
        raise DamagedState('%s is damaged: it lacks the version of the format or the list of files'
                           % (folder / MANIFEST))
    if manifest['version'] > FORMAT_VERSION:
        raise UserError('%s has format version %s, this program reads versions up to %d: resume with the newer program '
                        'that wrote it' % (folder, manifest['version'], FORMAT_VERSION))
    return manifest


def is_listing(files):
    """Whether it is {name: {'bytes': size, 'sha256': digits}}, all names of files below a folder."""
    return isinstance(files, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get('bytes'), int) and isinstance(entry.get('sha256'), str)
        and not os.path.isabs(name) and '..' not in name.split('/') and '\0' not in name
        for name, entry in files.items())


def check_files(folder, manifest):
    """DamagedState unless every file is as it was written."""
    with concurrent.futures.ThreadPoolExecutor(CHECKING_THREADS) as pool:
        for _ in pool.map(lambda item: check_file(pathlib.Path(folder) / item[0], item[1]), manifest['files'].items()):
            pass


def check_file(path, expected):
    """expected: its entry in the manifest."""
    found, size = hashlib.sha256(), 0
    try:
        with open(str(path), 'rb') as stream:
            for chunk in iter(lambda: stream.read(CHUNK), b''):
                found.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise DamagedState('cannot read %s: %s' % (path, error.strerror)) from None
    if size != expected['bytes']:
        raise DamagedState('%s is damaged: it has %d bytes, it was written with %d' % (path, size, expected['bytes']))
    if found.hexdigest() != expected['sha256']:
        raise DamagedState('%s is damaged: its SHA-256 is not that of %s' % (path, MANIFEST))
