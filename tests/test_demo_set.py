"""The demo set: bytes, layout, who is in it, what happens to killed and foreign folders."""
import multiprocessing
import os

import numpy as np
import pytest

from common import demo_set
from common.demo_faces import BEARDS, GLASSES, Face, draw_traits
from common.demo_hair import HAIR_STYLES
from common.demo_photo import take_photo
from common.demo_set import draw_people, ensure_demo_set
from common.errors import UserError
from common.face_record import class_id, open_face_set, read_property
from common.images import decode_rgb
from common.recordio import unpack
from common.verification import evaluate, load_bin

SIZE = (112, 112)


@pytest.fixture(scope='module')
def whole_set(tmp_path_factory):
    return ensure_demo_set(str(tmp_path_factory.mktemp('demo') / 'set'))


@pytest.fixture
def tiny(monkeypatch):
    """The same code with a few people only."""
    for name, value in {'NUM_TRAINED': 3, 'IMAGES_TRAINED': 2, 'NUM_VERIFIED': 3, 'IMAGES_VERIFIED': 3,
                        'NUM_PAIRS': 8}.items():
        monkeypatch.setattr(demo_set, name, value)


def content(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), 'rb') as stream:
            found[name] = stream.read()
    return found


def records(folder):
    with open_face_set(os.path.join(folder, 'train.rec')) as faces:
        return faces.layout, [unpack(bytes(faces.read(number))) for number in range(faces.num_images)]


def test_layout(whole_set):
    layout, images = records(whole_set)
    found = read_property(whole_set)
    assert layout == 'identity' and (found.num_classes, found.height, found.width) == (240, 112, 112)
    assert [class_id(header) for header, _ in images] == list(np.repeat(np.arange(240), 20))
    for _, encoded in images[::97]:
        assert bytes(encoded[:2]) == b'\xff\xd8' and decode_rgb(encoded, SIZE).std() > 15


def test_pairs_are_of_people_and_images_outside_the_training_set(whole_set):
    vset = load_bin(os.path.join(whole_set, 'demo.bin'))
    assert len(vset.same) == 600 and vset.same.sum() == 300
    assert all(fold.sum() == 30 for fold in vset.same.reshape(10, 60))
    trained = {bytes(image) for _, image in records(whole_set)[1]}
    assert len(trained) == 4800 and not trained & set(vset.distinct)
    person = {image: number // 10 for number, image in enumerate(
        image for counts in [[0] * 240 + [10] * 60] for image in draw_people(0, counts))}
    people = np.array([person[image] for image in vset.images]).reshape(600, 2)
    np.testing.assert_array_equal(people[:, 0] == people[:, 1], vset.same)
    assert len(np.unique(people)) == 60


def test_pixels_alone_tell_little(whole_set):
    """Faces must be learnt: distances of coarse pixels are little better than guessing."""
    vset = load_bin(os.path.join(whole_set, 'demo.bin'))
    result = evaluate(vset, lambda images: images.reshape(len(images), 3, 8, 14, 8, 14).mean(axis=(3, 5)).reshape(
        len(images), -1) - 127.5, 100, SIZE)
    assert 0.5 < result.accuracy_flip < 0.72


def test_bytes_do_not_depend_on_the_run_or_on_other_people(tiny, tmp_path):
    first = content(ensure_demo_set(str(tmp_path / 'a')))
    assert content(ensure_demo_set(str(tmp_path / 'b'))) == first
    alone = list(draw_people(0, [0, 2]))
    assert alone == [bytes(image) for _, image in records(str(tmp_path / 'a'))[1]][2:4]
    assert content(ensure_demo_set(str(tmp_path / 'c'), seed=1))['train.rec'] != first['train.rec']


def test_a_second_call_changes_nothing(tiny, tmp_path, monkeypatch):
    folder = ensure_demo_set(str(tmp_path / 'new' / 'demo'))
    assert sorted(os.listdir(str(tmp_path / 'new'))) == ['demo']
    monkeypatch.setattr(demo_set, '_make', None)
    assert ensure_demo_set(folder) == folder


def test_an_interrupted_run_leaves_nothing(tiny, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_set, 'write_bin', interrupt)
    with pytest.raises(KeyboardInterrupt):
        ensure_demo_set(str(tmp_path / 'demo'))
    assert os.listdir(str(tmp_path)) == []


def test_what_a_killed_run_left_is_replaced(tiny, tmp_path):
    expected = content(ensure_demo_set(str(tmp_path / 'a')))
    left = tmp_path / '.b.partial'
    (left / 'folder').mkdir(parents=True)
    for name in demo_set.FILES:
        (left / name).write_bytes(b'half')
    assert content(ensure_demo_set(str(tmp_path / 'b'))) == expected
    assert sorted(os.listdir(str(tmp_path))) == ['a', 'b']


def test_an_empty_folder_is_filled_and_a_foreign_one_left_alone(tiny, tmp_path):
    (tmp_path / 'empty').mkdir()
    ensure_demo_set(str(tmp_path / 'empty'))
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'train.rec').write_bytes(b'my faces')
    with pytest.raises(UserError, match='mine is not empty and holds no whole demo set .no train.idx'):
        ensure_demo_set(str(tmp_path / 'mine'))
    assert content(str(tmp_path / 'mine')) == {'train.rec': b'my faces'}
    with pytest.raises(UserError, match='empty holds the demo set of seed 0, not of 5'):
        ensure_demo_set(str(tmp_path / 'empty'), seed=5)
    os.remove(str(tmp_path / 'empty' / 'property'))
    with pytest.raises(UserError, match='no property'):
        ensure_demo_set(str(tmp_path / 'empty'))
    for place in (tmp_path / 'mine' / 'train.rec', tmp_path / 'mine' / 'train.rec' / 'below'):
        with pytest.raises(UserError, match='cannot make the demo set in'):
            ensure_demo_set(str(place))


def _make_tiny(folder, queue):
    demo_set.NUM_TRAINED, demo_set.NUM_VERIFIED, demo_set.NUM_PAIRS = 20, 3, 8
    queue.put((os.path.basename(ensure_demo_set(folder)), sorted(os.listdir(folder))))


def test_processes_that_start_at_once_make_one_set(tmp_path):
    context = multiprocessing.get_context('spawn')
    queue = context.Queue()
    workers = [context.Process(target=_make_tiny, args=(str(tmp_path / 'demo'), queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert [queue.get(timeout=5) for _ in workers] == [('demo', sorted(demo_set.FILES))] * 3
    assert os.listdir(str(tmp_path)) == ['demo']


@pytest.mark.parametrize('style', sorted(HAIR_STYLES))
def test_every_style_beard_and_frame_can_be_drawn(style):
    for number in range(8):
        traits = draw_traits(np.random.RandomState(number))
        traits.hair_style, traits.beard, traits.glasses = style, BEARDS[number], GLASSES[number % len(GLASSES)]
        rng = np.random.RandomState(number)
        image = decode_rgb(take_photo(Face(traits), rng), SIZE)
        assert image.std() > 10
