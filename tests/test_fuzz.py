"""Hostile input: a short run of every target of tests/fuzz.py, and crafted files of each kind that was found."""
import json
import os
import random
import signal
import struct
import time
import zipfile
import zlib

import numpy as np
import pytest

from common.array_files import map_array, open_arrays
from common.errors import UserError
from common.images import CorruptImage, decode_rgb
from common.mxnet_loader import mx
from common.parameter_file import load_parameters
from common.recordio import MAGIC, RecordFile
from common.symbol_file import load_symbol
from recognition.state_files import MANIFEST, SEAL, DamagedState, read_manifest, seal
from tests import fuzz as fuzzing
from tests.fuzz import Sandbox, fuzz, run_batch
from tests.fuzz_targets import TARGETS
from tests.make_sets import jpeg


@pytest.mark.parametrize('name', sorted(TARGETS))
def test_mutants_end_well(name):
    assert fuzz(name, 10**6, 60) == []


@pytest.mark.parametrize('name', sorted(set(TARGETS) - {'settings', 'command', 'bin'}))
def test_what_is_mutated_is_valid_before(name, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, 'mutate', lambda content, rng: content)
    sandbox = Sandbox(TARGETS[name], tmp_path)
    for seed in range(8):
        assert sandbox.try_mutant(random.Random(seed)) is None
    assert sandbox.passed == 8


class Bad:
    """A target that fails in the way its name says."""

    mutates = ''

    def __init__(self, action):
        self.run = action

    def make(self, folder):
        folder.mkdir()


@pytest.mark.parametrize('said, action', [
    ('ZeroDivisionError', lambda folder, rng: 1 / 0),
    ('the process died', lambda folder, rng: os.kill(os.getpid(), signal.SIGKILL)),
    ('wrote outside', lambda folder, rng: (folder / 'x').mkdir()),
    ('wrote outside', lambda folder, rng: (folder / 'outside' / 'x').mkdir()),
], ids=['error', 'crash', 'beside', 'outside'])
def test_faults_are_found(monkeypatch, said, action):
    monkeypatch.setitem(TARGETS, 'bad', Bad(action))
    found = fuzz('bad', 0, 1)
    assert len(found) == 1 and said in found[0]


def test_a_mutant_that_hangs_is_found(monkeypatch):
    monkeypatch.setattr(fuzzing, 'PATIENCE', 0.2)
    monkeypatch.setitem(TARGETS, 'bad', Bad(lambda folder, rng: time.sleep(60)))
    assert run_batch('bad', [5], 2) == ([], 'bad seed 5: hangs')


# Sizes that are stated, not there

def jpeg_of(height, width):
    image = bytearray(jpeg(0, (16, 16)))
    at = image.index(b'\xff\xc0') + 5
    image[at:at + 4] = struct.pack('>HH', height, width)
    return bytes(image)


def png_of(height, width, rows=b''):
    """A PNG whose pixels are zeros: small, whatever its size."""
    chunks = ((b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)), (b'IDAT', zlib.compress(rows)),
              (b'IEND', b''))
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        for kind, data in chunks)


@pytest.mark.parametrize('image', [
    jpeg_of(65500, 65500), png_of(65500, 65500), png_of(2**31 - 1, 2**31 - 1), png_of(20000, 20000, bytes(10**6)),
    b'BM' + bytes(16) + struct.pack('<ii', 65500, -65500) + bytes(30),
    b'RIFF' + bytes(4) + b'WEBPVP8X' + bytes(8) + b'\xff' * 6,
], ids=['jpeg', 'png', 'largest png', 'bomb', 'bmp', 'webp'])
def test_giant_images_are_refused_before_they_are_decoded(image, monkeypatch):
    def decode(*arguments):
        raise AssertionError('decoded')
    monkeypatch.setattr('cv2.imdecode', decode)
    with pytest.raises(CorruptImage, match='pixels are read'):
        decode_rgb(image, (112, 112))


@pytest.mark.parametrize('lrec', [(1 << 29) - 1, 1 << 31, (1 << 32) - 1, 1 << 29 | (1 << 29) - 1])
def test_a_record_larger_than_its_file(tmp_path, lrec):
    (tmp_path / 'train.rec').write_bytes(struct.pack('<II', MAGIC, lrec) + bytes(64))
    with RecordFile(str(tmp_path / 'train.rec')) as records, pytest.raises(UserError, match='train.rec'):
        records.read(0)


def npy(header, content=bytes(80)):
    text = header.encode() + b'\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text + content


NPY = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"
BAD_NPY = ([npy(NPY % values) for values in (
    ('<f4', '(2147483647, 512)'), ('<f4', '(21,)'), ('<f4', '(-1,)'), ('<f4', '(9223372036854775807, 4)'),
    ('|O', '(2,)'), ('|V0', '(99,)'), ('<f4', '(1'), ('<f4', '\0'), ('<f4', "__import__('os')"))]
    + [b'', b'\x93NUMPY', npy('(' * 5000), npy('«'), b'PK\x05\x06' + bytes(18), np.arange(3).tobytes()])


@pytest.mark.parametrize('content', BAD_NPY)
def test_crafted_array_files(tmp_path, content):
    (tmp_path / 'x.npy').write_bytes(content)
    with pytest.raises(UserError, match='x.npy is damaged: .'):
        map_array(tmp_path / 'x.npy')
    with zipfile.ZipFile(str(tmp_path / 'x.npz'), 'w') as archive:
        archive.writestr('a.npy', content)
    with pytest.raises(UserError, match='x.npz is damaged: .'), open_arrays(tmp_path / 'x.npz'):
        pass


def test_a_compressed_archive_is_refused(tmp_path):
    np.savez_compressed(str(tmp_path / 'x.npz'), a=np.zeros(10**6))
    with pytest.raises(UserError, match='it is compressed'), open_arrays(tmp_path / 'x.npz'):
        pass


def test_an_array_that_is_not_there(tmp_path):
    np.savez(str(tmp_path / 'x.npz'), a=np.zeros(3))
    with pytest.raises(UserError, match='x.npz is damaged'), open_arrays(tmp_path / 'x.npz') as arrays:
        arrays['b']


def params(count=1, magic=0xf993fac9, storage=0, shape=(2, 3), kind=0, names=1, length=1):
    head = struct.pack('<QQQIii', 0x112, 0, count, magic, storage, len(shape))
    return (head + struct.pack('<%dq' % len(shape), *shape) + struct.pack('<iii', 1, 0, kind) + bytes(24)
            + struct.pack('<QQ', names, length) + b'a')


def test_parameters_that_are_whole(tmp_path):
    path = tmp_path / 'x.params'
    path.write_bytes(params())
    assert load_parameters(path)['a'].shape == (2, 3)
    for dtype in ('float32', 'float64', 'float16', 'uint8', 'int32', 'int8', 'int64'):
        mx.nd.save(str(path), {'arg:b': mx.nd.ones((2, 1, 3), dtype=dtype), 'aux:ü': mx.nd.zeros(7, dtype=dtype)})
        assert {name: array.dtype for name, array in load_parameters(path).items()} == {
            'arg:b': np.dtype(dtype), 'aux:ü': np.dtype(dtype)}


@pytest.mark.parametrize('form', ['<QQQI', '<QQQII'], ids=['first', 'second'])
def test_parameters_of_old_versions(tmp_path, form):
    if form == '<QQQI':
        head = struct.pack('<QQQIIIiii', 0x112, 0, 1, 2, 2, 3, 1, 0, 0)
    else:
        head = struct.pack('<QQQIiqqiii', 0x112, 0, 1, 0xf993fac8, 2, 2, 3, 1, 0, 0)
    (tmp_path / 'x.params').write_bytes(head + bytes(24) + struct.pack('<QQ', 1, 1) + b'a')
    assert load_parameters(tmp_path / 'x.params')['a'].shape == (2, 3)


@pytest.mark.parametrize('wrong', [
    {'count': 2**63}, {'count': 0}, {'magic': 5}, {'storage': 1}, {'storage': -1}, {'shape': (2**31, 512)},
    {'shape': (0, 3)}, {'shape': (-2, -3)}, {'shape': ()}, {'kind': 12}, {'kind': -1}, {'names': 0}, {'names': 2**40},
    {'length': 2**62}, {'length': 2}])
def test_crafted_parameters(tmp_path, monkeypatch, wrong):
    def load(path):
        raise AssertionError('MXNet was given it')
    monkeypatch.setattr(mx.nd, 'load', load)
    (tmp_path / 'x.params').write_bytes(params(**wrong))
    with pytest.raises(UserError, match='x.params is not an MXNet parameter file or is damaged'):
        load_parameters(tmp_path / 'x.params')


FILE = '{"bytes": 1, "sha256": "0"}'
STATE = '{"format": "shardface training state", "version": %s, "files": {%s}}'


@pytest.mark.parametrize('text', [
    '', '{', '[' * 100000, '\xff', STATE % ('"1"', ''),
    STATE % (1, '"../x": ' + FILE), STATE % (1, '"/x": ' + FILE),
    STATE % (1, '"a": []'),
    STATE % (1, '"a": {"bytes": "1", "sha256": "0"}'), '{"format": "shardface training state"}'])
def test_crafted_manifests_with_a_seal(tmp_path, text):
    (tmp_path / MANIFEST).write_bytes(text.encode('latin1'))
    (tmp_path / SEAL).write_bytes(seal(text.encode('latin1')))
    with pytest.raises(DamagedState, match='manifest.json is damaged'):
        read_manifest(tmp_path)


@pytest.mark.parametrize('place, entry', [
    ('inputs', [0, 8, 0]), ('inputs', [9, 0, 0]), ('inputs', [-1, 0, 0]), ('inputs', [2, 0, 0]),
    ('inputs', [0.0, 0, 0]), ('inputs', [True, 0, 0]), ('inputs', [0]), ('inputs', 0),
    ('heads', [2, 1, 0]), ('heads', [3, 0, 0]),
    ('heads', ['a', 0, 0]), ('arg_nodes', 7), ('arg_nodes', -1), ('arg_nodes', None)])
def test_crafted_references_of_a_symbol(tmp_path, place, entry):
    """MXNet itself would crash on some."""
    convolution = mx.sym.Convolution(mx.sym.Variable('data'), kernel=(1, 1), num_filter=2, no_bias=True)
    content = json.loads(convolution.tojson())
    (content if place != 'inputs' else content['nodes'][2])[place] = [entry]
    (tmp_path / 'x.json').write_text(json.dumps(content))
    with pytest.raises(UserError, match='x.json is no MXNet symbol or is damaged'):
        load_symbol(str(tmp_path / 'x.json'))


def test_several_outputs_of_a_node_can_be_taken(tmp_path):
    data = mx.sym.Variable('data')
    for name, symbol in (('norm', mx.sym.BatchNorm(data, output_mean_var=True)[1]),
                         ('split', mx.sym.SliceChannel(data, num_outputs=4)[3])):
        more = symbol + 1
        (tmp_path / name).write_text(more.tojson())
        assert load_symbol(str(tmp_path / name)).tojson() == more.tojson()
