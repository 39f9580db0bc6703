"""The converter: every image once, in a uniformly random order, and nothing that looks like a set after a failure."""
import collections
import errno
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from common import as_package, shuffle
from common.errors import UserError
from common.face_record import SPLIT, Property, class_id, pack_class_id, read_property, write_property
from common.rec2shufrec import main
from common.recordio import MAGIC_BYTES, RecordFile, pack, unpack
from common.sequential_set import open_sequential_set, part_path
from common.shuffle import ENTRY, Block, Shuffler, num_buckets
from common.temporary_folder import locked
from tests.conftest import ROOT
from tests.make_sets import cut, edit_index, identity_set, jpeg, plain_set, write_set


def convert(source, output, *flags, code=0):
    """Run the command line on one input or a list of them."""
    inputs = [str(path) for path in (source if isinstance(source, list) else [source])]
    assert main(['--input'] + inputs + ['--output', str(output)] + list(flags)) == code


def contents(path, label_format='float32'):
    """[(class, image)] of a .rec, in order, without metadata."""
    with RecordFile(str(path)) as record_file:
        rows = [unpack(payload) for _, payload in record_file.walk()]
        return [(class_id(header, label_format), bytes(image)) for header, image in rows if len(image)]


def folder_of(path):
    return os.path.dirname(path)


def same_content(source, output):
    return sorted(contents(source)) == sorted(contents(output))


def test_all_images_once_in_another_order(tmp_path):
    path = identity_set(tmp_path / 'in', 50, 20)
    convert(tmp_path / 'in', tmp_path / 'out', '--verify')
    ours = contents(tmp_path / 'out' / 'train.rec')
    assert same_content(path, tmp_path / 'out' / 'train.rec') and ours != contents(path)
    runs = [len(list(run)) for _, run in itertools.groupby(number for number, _ in ours)]
    assert max(runs) <= 4
    found = read_property(str(tmp_path / 'out'))
    assert (found.num_classes, found.height, found.width) == (50, 112, 112)
    assert found.extra == {'shuffled': '1', 'records': '1000', 'seed': '0'}
    assert open_sequential_set(str(tmp_path / 'out' / 'train.rec')).num_images == 1000
    assert sorted(os.listdir(str(tmp_path))) == ['in', 'out']


def test_the_order_is_a_function_of_the_seed_alone(tmp_path, monkeypatch):
    identity_set(tmp_path / 'in', 10, 20)
    convert(tmp_path / 'in', tmp_path / 'a')
    convert(tmp_path / 'in', tmp_path / 'b', '--seed', '1')
    monkeypatch.setattr(shuffle, 'num_buckets', lambda total, memory: 7)
    convert(tmp_path / 'in', tmp_path / 'c', '--tmp', str(tmp_path / 'tmp'))
    a, b, c = ((tmp_path / name / 'train.rec').read_bytes() for name in 'abc')
    assert a == c and a != b and len(a) == len(b)
    assert os.listdir(str(tmp_path / 'tmp')) == []


def shuffled_order(tmp_path, count, seed, buckets, memory=1 << 20):
    """Order in which `count` records come out."""
    (tmp_path / str(seed)).mkdir(exist_ok=True)
    order = []
    with Shuffler(str(tmp_path / str(seed)), 0, memory, seed) as shuffler:
        assert shuffler.num_buckets == buckets
        for start in range(0, count, 2):
            entries = np.zeros(min(2, count - start), ENTRY)
            entries['number'] = np.arange(start, start + len(entries))
            shuffler.add(Block(b'', entries).copied([b'%d' % number * 7 for number in entries['number'].tolist()]))
        for entries, images in shuffler.batches():
            assert [bytes(image) for image in images] == [b'%d' % number * 7 for number in entries['number']]
            order += entries['number'].tolist()
    return tuple(order)


@pytest.mark.parametrize('buckets, memory', [(1, 1 << 20), (3, 1 << 20), (2, 64)])
def test_every_order_is_equally_likely(tmp_path, monkeypatch, buckets, memory):
    """All 24 orders of 4 records, 2400 seeds: chi-square with 23 degrees of freedom; 49.7 is passed once in 1000."""
    monkeypatch.setattr(shuffle, 'num_buckets', lambda total, memory: buckets)
    counts = collections.Counter(shuffled_order(tmp_path, 4, seed, buckets, memory)
                                 for seed in range(2400 if memory > 64 else 240))
    mean = sum(counts.values()) / 24
    orders = itertools.permutations(range(4))
    assert sum((counts[order] - mean)**2 / mean for order in orders) < 49.7


def test_a_full_disk_while_buckets_are_written(tmp_path, capsys, monkeypatch):
    def refuse(handle, pieces):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    identity_set(tmp_path / 'in', 10, 20)
    monkeypatch.setattr(shuffle, 'num_buckets', lambda total, memory: 7)
    monkeypatch.setattr(shuffle, 'write_pieces', refuse)
    convert(tmp_path / 'in', tmp_path / 'out', code=1)
    assert 'cannot write the temporary file' in capsys.readouterr().err and os.listdir(str(tmp_path)) == ['in']


def test_memory_decides_how_many_buckets():
    assert num_buckets(100 << 20, 256 << 20) == 1
    assert num_buckets(100 << 30, 1 << 30) == 250
    with pytest.raises(UserError, match='--memory 16 is too small'):
        num_buckets(1 << 40, 16 << 20)


@pytest.mark.parametrize('parts', [2, 3, 7])
def test_parts_of_equal_count(tmp_path, parts):
    path = identity_set(tmp_path / 'in', 5, 5)
    convert(folder_of(path), tmp_path / 'out', '--parts', str(parts), '--verify')
    files = [contents(part_path(str(tmp_path / 'out' / 'train.rec'), number, parts)) for number in range(parts)]
    assert max(map(len, files)) - min(map(len, files)) <= 1
    assert sorted(sum(files, [])) == sorted(contents(path))
    assert open_sequential_set(str(tmp_path / 'out' / 'train.rec')).num_images == 25
    convert(tmp_path / 'out', tmp_path / 'again')                       # parts are an input as good as any
    assert same_content(path, tmp_path / 'again' / 'train.rec')


def test_more_parts_than_images(tmp_path, capsys):
    convert(folder_of(plain_set(tmp_path / 'in', [0, 1])), tmp_path / 'out', '--parts', '3', code=1)
    assert '2 images cannot fill --parts 3' in capsys.readouterr().err
    assert os.listdir(str(tmp_path)) == ['in']


@pytest.mark.parametrize('labels', [[0, 1, 2, 1], [[number, 7] for number in range(4)]])
def test_plain_sets_scalar_labels_no_index_no_property(tmp_path, labels):
    path = plain_set(tmp_path / 'in', labels, first_key=1, size=(160, 150))
    os.remove(path[:-3] + 'idx')
    convert(tmp_path / 'in', tmp_path / 'out')
    assert same_content(path, tmp_path / 'out' / 'train.rec')
    with RecordFile(str(tmp_path / 'out' / 'train.rec')) as record_file:
        assert [unpack(payload)[0].flag for _, payload in record_file.walk()] == [0] * 4
    found = read_property(str(tmp_path / 'out'))
    assert (found.height, found.width) == (160, 150)
    assert found.num_classes == 1 + int(np.max(np.array(labels).reshape(4, -1)[:, 0]))


def test_sparse_keys_wrong_ranges_and_split_identities(tmp_path):
    first = SPLIT - 3
    images = {first + number: pack(number // 4, jpeg(number), 0) for number in range(10)}
    ranges = [(0, 4), (4, 6), (6, 8), (8, 10)]                          # class 1 has two identity records
    payloads = {0: pack(np.float32([first + 10, first + 14]), b'')}
    payloads.update(images)
    payloads.update({first + 10 + row: pack(np.float32([first + a, first + b]), b'')
                     for row, (a, b) in enumerate(ranges)})
    path = write_set(tmp_path / 'in', payloads)
    convert(tmp_path / 'in', tmp_path / 'out')
    assert len(contents(tmp_path / 'out' / 'train.rec')) == 10 and same_content(path, tmp_path / 'out' / 'train.rec')
    assert read_property(str(tmp_path / 'out')).num_classes == 3


def test_class_ids_above_2_to_24(tmp_path):
    numbers = [SPLIT - 1, SPLIT + 1, 17672687, 0]
    write_set(tmp_path / 'in', {key: pack_class_id(number, jpeg(key), key, 'split24')
                                for key, number in enumerate(numbers)})
    write_property(str(tmp_path / 'in'), Property(17672688, 112, 112, {'label_format': 'split24'}))
    convert(tmp_path / 'in', tmp_path / 'out', '--verify')
    ours = contents(tmp_path / 'out' / 'train.rec', 'split24')
    assert sorted(ours) == sorted(zip(numbers, map(jpeg, range(4))))
    assert read_property(str(tmp_path / 'out')).label_format == 'split24'


def test_an_image_with_the_magic_number_inside(tmp_path):
    images = {0: jpeg(0) + b'\0' * (-len(jpeg(0)) % 4) + MAGIC_BYTES * 3 + b'end', 2: b'x' + MAGIC_BYTES}
    path = plain_set(tmp_path / 'in', [0, 1, 2], images=images)
    convert(tmp_path / 'in', tmp_path / 'out', '--verify')
    assert same_content(path, tmp_path / 'out' / 'train.rec')


def test_merging_keeps_classes_apart_or_joins_them(tmp_path):
    paths = [plain_set(tmp_path / 'a', [0, 1, 3]), plain_set(tmp_path / 'b', [0, 2], first_key=50)]
    folders = list(map(folder_of, paths))
    convert(folders, tmp_path / 'apart', '--verify')
    assert sorted(number for number, _ in contents(tmp_path / 'apart' / 'train.rec')) == [0, 1, 3, 4, 6]
    table = (tmp_path / 'apart' / 'labels.tsv').read_text().splitlines()
    assert [line.split('\t')[1:] for line in table[1:]] == [['0', '4', '3'], ['4', '3', '2']]
    assert read_property(str(tmp_path / 'apart')).num_classes == 7
    convert(folders, tmp_path / 'joined', '--same-labels')
    assert sorted(number for number, _ in contents(tmp_path / 'joined' / 'train.rec')) == [0, 0, 1, 2, 3]
    assert read_property(str(tmp_path / 'joined')).num_classes == 4


def test_inputs_of_different_sizes(tmp_path, capsys):
    folders = [folder_of(plain_set(tmp_path / 'a', [0])), folder_of(plain_set(tmp_path / 'b', [0], size=(96, 96)))]
    convert(folders, tmp_path / 'out', code=1)
    assert '--resize HxW' in capsys.readouterr().err
    convert(folders, tmp_path / 'out', '--resize', '112x112', '--verify')
    images = [image for _, image in contents(tmp_path / 'out' / 'train.rec')]
    assert jpeg(0) in images and len(set(images)) == 2                  # what has the size keeps its bytes
    assert (read_property(str(tmp_path / 'out')).height, read_property(str(tmp_path / 'out')).width) == (112, 112)


BROKEN = {'half': jpeg(1)[:1500], 'garbage': bytes(range(80)), 'empty': b''}


@pytest.mark.parametrize('kind', sorted(BROKEN))
def test_corrupt_images(tmp_path, capsys, kind):
    plain_set(tmp_path / 'in', range(25), images={5: BROKEN[kind]})
    convert(tmp_path / 'in', tmp_path / 'refused', '--check-images', 'refuse', code=1)
    assert re.search('train.rec: record at offset [0-9]+: .*--check-images drop', capsys.readouterr().err)
    assert os.listdir(str(tmp_path)) == ['in']
    convert(tmp_path / 'in', tmp_path / 'out', '--check-images', 'drop', '--verify')
    assert len(contents(tmp_path / 'out' / 'train.rec')) == 24
    assert len((tmp_path / 'out' / 'dropped.tsv').read_text().splitlines()) == 1


@pytest.mark.parametrize('label', [float('nan'), -1, 1.5])
def test_labels_that_are_no_class(tmp_path, capsys, label):
    plain_set(tmp_path / 'in', [0, label, 1])
    convert(tmp_path / 'in', tmp_path / 'out', code=1)
    assert 'not a class id' in capsys.readouterr().err
    convert(tmp_path / 'in', tmp_path / 'out', '--check-images', 'drop')
    assert len(contents(tmp_path / 'out' / 'train.rec')) == 2


def test_label_outside_property(tmp_path, capsys):
    path = plain_set(tmp_path / 'in', [0, 4])
    write_property(folder_of(path), Property(3, 112, 112))
    convert(tmp_path / 'in', tmp_path / 'out', code=1)
    assert 'label 4 outside [0, 3)' in capsys.readouterr().err


def test_an_index_of_fewer_records_and_classes_without_images(tmp_path, capsys):
    path = plain_set(tmp_path / 'in', [0, 1, 4])
    edit_index(path, lambda pairs: pairs[:2])
    convert(tmp_path / 'in', tmp_path / 'out')
    log = capsys.readouterr().err
    assert 'train.idx lists 2 records, train.rec holds 3' in log and '2 of 5 classes have no image' in log
    assert len(contents(tmp_path / 'out' / 'train.rec')) == 3


@pytest.mark.parametrize('num_bytes', [1, 40, 2000])
def test_truncated_source(tmp_path, capsys, num_bytes):
    path = plain_set(tmp_path / 'in', range(3))
    cut(path, num_bytes)
    convert(tmp_path / 'in', tmp_path / 'out', code=1)
    error = capsys.readouterr().err
    assert 'truncated: record at offset' in error and error.count('\n') >= 1
    assert os.listdir(str(tmp_path)) == ['in']


def test_no_images(tmp_path, capsys):
    (tmp_path / 'empty').mkdir()
    convert(tmp_path / 'empty', tmp_path / 'out', code=1)
    assert 'missing file' in capsys.readouterr().err
    (tmp_path / 'empty' / 'train.rec').touch()
    convert(tmp_path / 'empty', tmp_path / 'out', code=1)
    write_set(tmp_path / 'metadata', {0: pack([1, 2], b'')})
    convert(tmp_path / 'metadata', tmp_path / 'out', code=1)
    assert 'no image' in capsys.readouterr().err


@pytest.mark.parametrize('output', ['in', 'in/', 'in/sub', '.', 'link', 'link/sub', 'in/../in'])
def test_in_place_and_nested_outputs_are_refused(tmp_path, capsys, output):
    path = plain_set(tmp_path / 'in', range(3))
    (tmp_path / 'link').symlink_to(tmp_path / 'in')
    before = pathlib.Path(path).read_bytes()
    convert(str(tmp_path / 'in') + '/', os.path.join(str(tmp_path), output), code=2)
    assert 'must not be the same folder' in capsys.readouterr().err
    assert pathlib.Path(path).read_bytes() == before and not (tmp_path / 'in' / 'sub').exists()


def test_existing_output(tmp_path, capsys):
    plain_set(tmp_path / 'in', range(3))
    (tmp_path / 'out').mkdir()
    convert(tmp_path / 'in', tmp_path / 'out')                          # an empty folder is taken
    before = (tmp_path / 'out' / 'train.rec').read_bytes()
    convert(tmp_path / 'in', tmp_path / 'out', '--seed', '5', code=1)
    assert 'exists already' in capsys.readouterr().err
    assert (tmp_path / 'out' / 'train.rec').read_bytes() == before


@pytest.mark.parametrize('flags', [['--parts', '0'], ['--memory', '1'], ['--seed', '-1'], ['--resize', '112']])
def test_wrong_flags(tmp_path, capsys, flags):
    plain_set(tmp_path / 'in', range(3))
    convert(tmp_path / 'in', tmp_path / 'out', *flags, code=2)
    assert capsys.readouterr().err.startswith('error: ' + flags[0])


def test_full_disk_is_noticed_before_the_start(tmp_path, capsys, monkeypatch):
    plain_set(tmp_path / 'in', range(3))
    usage = collections.namedtuple('usage', 'total used free')
    monkeypatch.setattr('shutil.disk_usage', lambda path: usage(10, 9, 1))
    convert(tmp_path / 'in', tmp_path / 'out', code=1)
    assert 'MB are needed' in capsys.readouterr().err and os.listdir(str(tmp_path)) == ['in']


def test_verification_sets_are_copied(tmp_path, capsys):
    folder = tmp_path / 'a set'
    plain_set(folder, range(3))
    (folder / 'lfw.bin').write_bytes(b'pairs')
    convert(str(folder) + '/', tmp_path / 'an output', '--copy-vers')
    assert (tmp_path / 'an output' / 'lfw.bin').read_bytes() == b'pairs'
    plain_set(tmp_path / 'other', range(3))
    (tmp_path / 'other' / 'lfw.bin').write_bytes(b'others')
    convert([folder, tmp_path / 'other'], tmp_path / 'out', '--copy-vers', code=1)
    assert 'rename one' in capsys.readouterr().err


def test_verify_notices_a_wrong_byte(tmp_path, capsys, monkeypatch):
    from common import shuffled_writer
    plain_set(tmp_path / 'in', range(3))
    right = shuffled_writer.pack_headers
    monkeypatch.setattr(shuffled_writer, 'pack_headers', lambda numbers, ids, form: right(numbers ^ 1, ids, form))
    convert(tmp_path / 'in', tmp_path / 'out', '--verify', code=1)
    assert 'differs from the source' in capsys.readouterr().err and os.listdir(str(tmp_path)) == ['in']


COMMAND = [sys.executable, str(ROOT / 'common' / 'rec2shufrec.py')]


def start(tmp_path, *flags):
    return subprocess.Popen(COMMAND + ['--input', 'in', '--output', 'out'] + list(flags), cwd=str(tmp_path),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def big_set(folder, num_images, size):
    """Images of `size` bytes that are none."""
    rng = np.random.RandomState(0)
    data = rng.bytes(size + num_images)
    payloads = {key: pack(key % 97, data[key:key + size], key) for key in range(num_images)}
    path = write_set(folder, payloads, has_index=False)
    write_property(folder_of(path), Property(97, 112, 112))
    return path


def signalled_conversion(tmp_path, number):
    """Exit code of a conversion that gets a signal when it has begun; 0 if it was done before the signal came."""
    shutil.rmtree(str(tmp_path / 'out'), ignore_errors=True)
    process = start(tmp_path, '--memory', '16')
    deadline = time.monotonic() + 10
    while not list(tmp_path.glob('.out*/buckets/*.bucket')) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    process.communicate()
    return process.returncode


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle_and_run_again(tmp_path, number):
    path = big_set(tmp_path / 'in', 30000, 3000)
    code = next(code for code in (signalled_conversion(tmp_path, number) for _ in range(10)) if code)
    assert code == (130 if number == signal.SIGINT else -9)
    left = [name for name in os.listdir(str(tmp_path)) if name != 'in']
    assert len(left) == (number == signal.SIGKILL) and all(name.startswith('.out') for name in left)
    convert(tmp_path / 'in', tmp_path / 'out', '--memory', '16', '--verify')
    assert sorted(os.listdir(str(tmp_path))) == ['in', 'out']
    assert len(contents(tmp_path / 'out' / 'train.rec')) == len(contents(path))


def test_a_running_conversion_is_left_alone(tmp_path, capsys):
    plain_set(tmp_path / 'in', range(3))
    with locked(str(tmp_path / '.out.1.partial')):
        convert(tmp_path / 'in', tmp_path / 'out', code=1)
    assert 'another process is writing' in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='peak memory is read from /proc')
def test_memory_stays_below_the_bound(tmp_path):
    """400 MB with 32 MB of memory; and the copy of the bytes that the kernel keeps is not counted against it."""
    big_set(tmp_path / 'in', 4000, 100000)
    code = ('import re, sys; from common.rec2shufrec import main; code = main(sys.argv[1:]);'
            'print(code, re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read()).group(1))')
    result = subprocess.run([sys.executable, '-c', code, '--input', str(tmp_path / 'in'), '--output',
                             str(tmp_path / 'out'), '--memory', '32'], cwd=str(ROOT), check=True,
                            capture_output=True, text=True)
    code, peak_kib = map(int, result.stdout.split())
    assert code == 0 and peak_kib / 1024 < 32 + 300


def test_the_package_becomes_known(tmp_path, monkeypatch):
    (tmp_path / 'some_package').mkdir()
    (tmp_path / 'some_package' / '__init__.py').touch()
    (tmp_path / 'some_package' / 'part.py').write_text('VALUE = 5\n')
    monkeypatch.setitem(sys.modules, 'some_package', None)
    as_package.make_known(str(tmp_path / 'some_package'))
    import some_package.part
    assert some_package.part.VALUE == 5
    del sys.modules['some_package.part']


def test_run_by_its_path_and_by_its_name(tmp_path):
    plain_set(tmp_path / 'in', range(3))
    process = start(tmp_path)
    _, error = process.communicate()
    assert process.returncode == 0, error
    assert 'records/s' in error and (tmp_path / 'out' / 'train.rec').is_file()
    result = subprocess.run([sys.executable, '-m', 'common.rec2shufrec', '--help'], cwd=str(ROOT),
                            stdout=subprocess.PIPE, text=True)
    assert result.returncode == 0 and '--copy-vers --verify' in result.stdout
