"""Embeddings of folders and sets."""
import cv2
import numpy as np
import pytest

from common import embed
from common.images import decode_rgb
from common.saved_model import Embedder, load_model
from tests.make_models import random_model
from tests.make_sets import identity_set, jpeg
from tests.make_shuffled import in_parts, sequential_set

SIZE = (112, 112)


@pytest.fixture(scope='module')
def prefix(tmp_path_factory):
    prefix = str(tmp_path_factory.mktemp('models') / 'model')
    random_model('fmobilefacenet').write(prefix)
    return prefix


def tool(prefix, source, output, *flags):
    return embed.main(['--model', prefix, '--input', str(source), '--output', str(output), '--batch-size', '4',
                       '--threads', '2'] + list(flags))


def arrays(folder):
    return [np.load(str(folder / name)) for name in ('embeddings.npy', 'labels.npy', 'keys.npy')]


def expected(prefix, encoded):
    images = np.stack([decode_rgb(image, SIZE) for image in encoded])
    return Embedder(load_model(prefix, 0), len(images), SIZE)(images)


def photos(folder, names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(number))
    return folder


def test_indexed_set(prefix, tmp_path):
    """Ten images in batches of four; the metadata records are no images."""
    identity_set(tmp_path / 'set', 5, 2)
    assert tool(prefix, tmp_path / 'set', tmp_path / 'out') == 0
    embeddings, labels, keys = arrays(tmp_path / 'out')
    np.testing.assert_allclose(embeddings, expected(prefix, map(jpeg, range(10))), rtol=1e-4, atol=1e-4)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and keys.tolist() == list(range(1, 11))
    assert embeddings.dtype == np.float32 and labels.dtype == keys.dtype == np.int64


def test_shuffled_sets(prefix, tmp_path):
    """Keys are the numbers of the records; parts go on counting."""
    sequential_set(tmp_path / 'set', [3, 0, 2, 0, 1])
    in_parts(tmp_path / 'parts', [2, 3])
    for name, classes in (('set', [3, 0, 2, 0, 1]), ('parts', [0, 1, 2, 3, 4])):
        assert tool(prefix, tmp_path / name, tmp_path / ('out_' + name)) == 0
        embeddings, labels, keys = arrays(tmp_path / ('out_' + name))
        np.testing.assert_allclose(embeddings, expected(prefix, map(jpeg, range(5))), rtol=1e-4, atol=1e-4)
        assert labels.tolist() == classes and keys.tolist() == [0, 1, 2, 3, 4]


def test_folder_with_a_corrupt_photo(prefix, tmp_path, capsys):
    photos(tmp_path / 'in', ['a2/1.jpg', 'a10/1.jpg', 'a2/2.jpg'])
    (tmp_path / 'in' / 'a2' / '1.jpg').write_bytes(jpeg(0)[:-40])
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out') == 0
    embeddings, labels, keys = arrays(tmp_path / 'out')
    np.testing.assert_allclose(embeddings, expected(prefix, [jpeg(2), jpeg(1)]), rtol=1e-4, atol=1e-4)
    assert labels.tolist() == [0, 1] and keys.tolist() == [1, 2]
    assert (tmp_path / 'out' / 'names.txt').read_text() == 'a2/2.jpg\na10/1.jpg\n'
    assert (tmp_path / 'out' / 'labels.tsv').read_text() == '0\ta2\n1\ta10\n'
    assert 'without its end' in (tmp_path / 'out' / 'unreadable.tsv').read_text()
    assert 'left out: ' in capsys.readouterr().out
    assert tool(prefix, tmp_path / 'in', tmp_path / 'strict', '--strict') == 1
    assert not (tmp_path / 'strict').exists()


def test_flip_and_normalize(prefix, tmp_path):
    photos(tmp_path / 'in', ['1.jpg', '2.jpg', '10.jpg'])
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out', '--flip', '--normalize') == 0
    embeddings, labels, _ = arrays(tmp_path / 'out')
    images = np.stack([decode_rgb(jpeg(number), SIZE) for number in range(3)])
    embedder = Embedder(load_model(prefix, 0), 3, SIZE)
    rows = embedder(images) + embedder(images[..., ::-1])
    np.testing.assert_allclose(embeddings, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-5)
    assert labels.tolist() == [-1, -1, -1] and not (tmp_path / 'out' / 'labels.tsv').exists()


def test_a_list_of_photos(prefix, tmp_path, capsys):
    """At any depth, in its order; one that is not there is left out, as a corrupt one is."""
    photos(tmp_path / 'in', ['a/b/1.jpg', 'a/2 x.jpg', 'c/3.jpg'])
    (tmp_path / 'list.txt').write_text('c/3.jpg\r\na/nobody.jpg\n\na/b/1.jpg\na/2 x.jpg\n')
    flags = ['--list', str(tmp_path / 'list.txt')]
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out', *flags) == 0
    embeddings, labels, keys = arrays(tmp_path / 'out')
    np.testing.assert_allclose(embeddings, expected(prefix, [jpeg(2), jpeg(0), jpeg(1)]), rtol=1e-4, atol=1e-4)
    assert labels.tolist() == [-1, -1, -1] and keys.tolist() == [0, 2, 3]
    assert (tmp_path / 'out' / 'names.txt').read_text() == 'c/3.jpg\na/b/1.jpg\na/2 x.jpg\n'
    assert 'nobody.jpg: No such file' in capsys.readouterr().out
    assert tool(prefix, tmp_path / 'list.txt', tmp_path / 'x', *flags) == 1
    assert 'is no folder' in capsys.readouterr().err
    (tmp_path / 'list.txt').write_text('\n')
    assert tool(prefix, tmp_path / 'in', tmp_path / 'x', *flags) == 1
    assert 'names of photos below' in capsys.readouterr().err


def test_other_sizes_are_resized(prefix, tmp_path):
    (tmp_path / 'in').mkdir()
    cv2.imwrite(str(tmp_path / 'in' / '1.png'), np.full((30, 50, 3), 90, np.uint8))
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out') == 0
    assert arrays(tmp_path / 'out')[0].shape == (1, 32)


@pytest.mark.parametrize('flags, code, text', [
    (['--device', 'gpu:77'], 2, 'MXNet finds'), (['--device', 'tpu'], 2, 'cpu, gpu or gpu:N'),
    (['--batch-size', '0'], 2, '--batch-size 0'), (['--image-size', '64x64'], 1, '--image-size'),
    (['--input', '/nowhere'], 1, 'is not there'), (['--model', '/nowhere/x,1'], 1, 'no checkpoint at')])
def test_refusals(flags, code, text, prefix, tmp_path, capfd):
    photos(tmp_path / 'in', ['1.jpg'])
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out', *flags) == code
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 1 and text in errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ['in']


def test_output_is_not_replaced(prefix, tmp_path, capsys):
    photos(tmp_path / 'in', ['1.jpg'])
    (tmp_path / 'out').mkdir()
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out') == 1
    assert 'is there already' in capsys.readouterr().err


def test_nothing_readable(prefix, tmp_path, capsys):
    (tmp_path / 'in').mkdir()
    (tmp_path / 'in' / '1.jpg').write_bytes(b'no image')
    assert tool(prefix, tmp_path / 'in', tmp_path / 'out') == 1
    assert 'none of 1 images can be read' in capsys.readouterr().err and not (tmp_path / 'out').exists()
