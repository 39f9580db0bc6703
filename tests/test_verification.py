"""Verification sets, their evaluation, and the reading of files that nobody vouches for."""
import io
import logging
import os
import pathlib
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.pair_sampling import make_pairs
from common.pair_scores import best_threshold, fold_accuracy, pair_distances, tar_at_far
from common.plain_pickle import load_plain
from common.verification import VerificationSet, embed_pairs, evaluate, load_bin, write_bin
from tests.make_sets import jpeg, picture

PYTHON2_FILES = sorted((pathlib.Path(__file__).parent / 'golden' / 'python2').glob('*.bin'))
IMAGES = [b'\xff\xd8\x00\n\'"\x80', b'second\r\n', b'\x80\x02.', b'']
SIZE = (12, 10)


def small_set(num_pairs, name='small'):
    """Pairs of which the even ones show one picture twice."""
    images = []
    for pair in range(num_pairs):
        images += [jpeg(2 * pair, SIZE), jpeg(2 * pair + pair % 2, SIZE)]
    return VerificationSet(name, images, np.arange(num_pairs) % 2 == 0)


def mean_colours(images):
    """An embedding that a mirror image changes: mean colours of the left and the right half, centred."""
    half = images.shape[3] // 2
    halves = [images[..., :half].mean(axis=(2, 3)), images[..., half:].mean(axis=(2, 3))]
    return (np.concatenate(halves, axis=1) - 127.5).astype(np.float32)


# Reading and writing

@pytest.mark.parametrize('path', PYTHON2_FILES, ids=lambda path: path.stem)
def test_reads_what_python_2_wrote(path):
    vset = load_bin(str(path))
    assert vset.images == IMAGES
    assert vset.same.tolist() == [True, False]


def numpy_forms():
    flags = [True, False]
    arrays = [np.frombuffer(image, np.uint8) for image in IMAGES]
    return {'lists': (IMAGES, flags), 'tuple': (tuple(IMAGES), tuple(flags)), 'list': [IMAGES, flags],
            'bytearray': ([bytearray(image) for image in IMAGES], flags), 'numbers': (IMAGES, [1, 0]),
            'latin1': ([image.decode('latin1') for image in IMAGES], flags),
            'scalars': (IMAGES, [np.bool_(flag) for flag in flags]), 'int64': (IMAGES, list(np.array([1, 0]))),
            'flags': (IMAGES, np.array(flags)), 'uint8': (arrays, flags),
            'object': (np.array(IMAGES, object), np.array(flags, np.uint8))}


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize('form', sorted(numpy_forms()))
def test_reads_every_protocol_of_python_3(tmp_path, form, protocol):
    path = tmp_path / 'x.bin'
    path.write_bytes(pickle.dumps(numpy_forms()[form], protocol))
    vset = load_bin(str(path))
    assert vset.name == 'x' and vset.images == IMAGES and vset.same.tolist() == [True, False]
    assert all(type(image) is bytes for image in vset.images)


@pytest.mark.parametrize('form', ['scalars', 'flags', 'uint8', 'object'])
def test_reads_the_names_of_every_numpy(tmp_path, form):
    """NumPy 2 calls its insides numpy._core."""
    content = pickle.dumps(numpy_forms()[form], 2).replace(b'numpy._core', b'numpy.core')
    for package in (b'numpy.core', b'numpy._core'):
        (tmp_path / 'x.bin').write_bytes(content.replace(b'numpy.core', package))
        assert load_bin(str(tmp_path / 'x.bin')).images == IMAGES


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.randoms())
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, images, random):
    path = str(tmp_path_factory.mktemp('bin') / 'a set.bin')
    same = [random.random() < 0.5 for _ in images]
    write_bin(path, images * 2, same)
    vset = load_bin(path)
    assert vset.images == images * 2 and vset.same.tolist() == same
    assert os.listdir(os.path.dirname(path)) == ['a set.bin']
    with open(path, 'rb') as stream:
        assert pickle.load(stream) == (images * 2, same)   # as other programs read it


class Gadget:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def dangerous(marker):
    command = 'touch %s' % marker
    yield Gadget(os.system, command)
    yield Gadget(eval, '__import__("os").system(%r)' % command)
    yield Gadget(exec, 'open(%r, "w")' % marker)
    yield Gadget(open, marker, 'w')
    yield Gadget(getattr, 'text', 'join')
    yield Gadget(__import__, 'subprocess')
    yield Gadget(np.load, marker)
    yield Gadget(np.ndarray, (1,), 'O', b'12345678')
    yield Gadget(np.frombuffer, b'12345678', 'O')
    yield Gadget(bytes, 1 << 60)
    yield os.system


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize('number', range(11))
def test_nothing_in_a_file_is_run(tmp_path, number, protocol):
    marker = str(tmp_path / 'marker')
    path = tmp_path / 'evil.bin'
    gadget = list(dangerous(marker))[number]
    for content in (gadget, ([gadget, b''], [True]), ([b'', b''], [gadget])):
        path.write_bytes(pickle.dumps(content, protocol))
        with pytest.raises(UserError, match='evil.bin is not a verification set'):
            load_bin(str(path))
    assert os.listdir(str(tmp_path)) == ['evil.bin']


@pytest.mark.parametrize('opcodes', [
    b'cos\nsystem\n(S"touch marker"\ntR.',                                     # REDUCE
    b'(S"touch marker"\nios\nsystem\n.',                                       # INST
    b'(cos\nsystem\nS"touch marker"\no.',                                      # OBJ
    b'\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.',                    # STACK_GLOBAL
    b'c_codecs\nencode.__globals__\n.',                                        # a way through an allowed name
    b'c_codecs\nencode\n}S"_function"\nNsb.',                                  # BUILD on an allowed function
    b'c_codecs\nencode\n(N}S"_function"\nNstb.',
    b'c_codecs\nencode\n(Vx\nVrot13\ntR.',
    b'cnumpy\nndarray\n)\x81.',                                                # NEWOBJ
    b'Pos.system\n.', b'\x82\x01.', b'(lp0\ng0\na', b'cnumpy\ndtype\n(S"V8"\ntR.',
    b'cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S"O"\ntRS"12345678"\ntR.',
])
def test_crafted_opcodes_are_refused(tmp_path, monkeypatch, opcodes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'evil.bin').write_bytes(opcodes)
    with pytest.raises(UserError, match='evil.bin'):
        load_bin('evil.bin')
    assert os.listdir(str(tmp_path)) == ['evil.bin']


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_pickle_gives_plain_data_or_a_plain_error(data):
    form = data.draw(st.sampled_from(sorted(numpy_forms())))
    damaged = bytearray(pickle.dumps(numpy_forms()[form], data.draw(st.integers(0, pickle.HIGHEST_PROTOCOL))))
    for _ in range(data.draw(st.integers(1, 4))):
        # opcodes with a size or a number of a memo entry are left out: they may ask for gigabytes
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255).filter(
            lambda byte: byte not in b'jrTXB\x8a\x8b\x8d\x8e\x95\x96'))
    try:
        load_plain(io.BytesIO(bytes(damaged)))
    except (pickle.UnpicklingError, EOFError):
        pass


def test_a_wrong_file_is_named(tmp_path):
    path = tmp_path / 'lfw.bin'
    whole = pickle.dumps(([b'abc'] * 4, [True, False]), 4)
    cases = {'truncated': whole[:-5], 'no pair': pickle.dumps([1, 2, 3]), '4 images and 1 flags': pickle.dumps(
        ([b'a'] * 4, [True])), '0 images and 0 flags': pickle.dumps(([], [])), 'not an encoded image': pickle.dumps(
        ([b'a', 5], [True])), 'not a flag': pickle.dumps(([b'a', b'b'], ['yes'])), 'no pair of lists': pickle.dumps(
        ('ab', 'c')), 'no verification set': b'classes,height,width\n', 'is truncated': b''}
    for text, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match='lfw.*%s' % text):
            load_bin(str(path))
    with pytest.raises(UserError, match='cannot read .*absent.bin: No such file'):
        load_bin(str(tmp_path / 'absent.bin'))


def test_an_unwritable_folder_is_named(tmp_path):
    with pytest.raises(UserError, match='cannot write .*nowhere'):
        write_bin(str(tmp_path / 'nowhere' / 'x.bin'), [b'', b''], [True])


# Embeddings

@pytest.mark.parametrize('num_pairs, batch_size', [(1, 64), (5, 64), (35, 32), (7, 7), (6, 4), (4, 1)])
def test_any_set_size_goes_with_any_batch_size(num_pairs, batch_size):
    vset, sizes = small_set(num_pairs), []

    def embed(images):
        sizes.append(images.shape)
        assert images.dtype == np.uint8 and images.flags.c_contiguous, 'images must be plain uint8 arrays'
        return mean_colours(images)

    plain, mirrored = embed_pairs(vset, embed, batch_size, SIZE)
    assert set(sizes) == {(batch_size, 3) + SIZE}
    expected, expected_mirrored = embed_pairs(vset, mean_colours, 1, SIZE)
    np.testing.assert_array_equal(plain, expected)
    np.testing.assert_array_equal(mirrored, expected_mirrored)
    assert plain.shape == (2 * num_pairs, 6) and plain.dtype == np.float32
    np.testing.assert_allclose(mirrored, np.roll(plain, 3, axis=1), atol=0.01)


def test_an_image_of_several_pairs_is_embedded_once_per_side():
    vset, calls = small_set(6), []
    embed_pairs(vset, lambda images: calls.append(1) or mean_colours(images), 1, SIZE)
    assert len(calls) == 2 * len(set(vset.images)) < 2 * len(vset.images)


def test_an_embedding_may_share_its_memory_between_calls():
    memory = np.empty((3, 6), np.float32)

    def embed(images):
        memory[:] = mean_colours(images)
        return memory

    plain, _ = embed_pairs(small_set(4), embed, 3, SIZE)
    np.testing.assert_array_equal(plain, embed_pairs(small_set(4), mean_colours, 3, SIZE)[0])


def test_images_are_rgb_of_the_wanted_size():
    seen = []
    embed_pairs(VerificationSet('x', [jpeg(3, (40, 30))] * 2, [True]),
                lambda images: seen.append(images.copy()) or mean_colours(images), 2, (20, 15))
    expected = picture(3, (20, 15)).transpose(2, 0, 1)
    assert np.abs(seen[0][0].astype(int) - expected).mean() < 12


def test_a_corrupt_image_is_named():
    images = [jpeg(number, SIZE) for number in range(12)]
    images[9] = images[9][:60]
    with pytest.raises(UserError, match='verification set small: image 9 is corrupt'):
        evaluate(VerificationSet('small', images, [True] * 6), mean_colours, 4, SIZE)


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_is_named(value):
    vset = small_set(5)
    wrong = mean_colours(np.stack([picture(7, SIZE).transpose(2, 0, 1)]))

    def embed(images):
        found = mean_colours(images)
        found[np.abs(found - wrong).sum(axis=1) < 20] = value
        return found

    with pytest.raises(UserError, match='set small: the embedding of image 7 is NaN or infinite'):
        evaluate(vset, embed, 4, SIZE)


def test_memory_stays_far_below_the_decoded_set():
    """12,000 pairs would be 3.4 GiB as float32 twice; here the distinct images and one batch are held."""
    image = [jpeg(number) for number in range(4)]
    vset = VerificationSet('big', [bytes(image[number % 4]) for number in range(24000)], [True] * 12000)
    assert sum(map(len, vset.distinct)) < 1e5
    plain, _ = embed_pairs(vset, lambda images: images[:, :, 50, 50].astype(np.float32), 100, (112, 112))
    assert plain.shape == (24000, 3)


# Scores

def naive_fold_accuracy(distances, same, num_folds, thresholds):
    """As the field does it: the best of given thresholds on the other folds, judged on this one."""
    accuracies = []
    for judged in np.array_split(np.arange(len(same)), num_folds):
        others = np.setdiff1d(np.arange(len(same)), judged)
        hits = [np.mean((distances[others] < threshold) == same[others]) for threshold in thresholds]
        accuracies.append(np.mean((distances[judged] < thresholds[np.argmax(hits)]) == same[judged]))
    return np.mean(accuracies), np.std(accuracies)


def random_scores(rng, num_pairs, gap):
    same = np.arange(num_pairs) % 2 == 0
    return np.clip(rng.normal(np.where(same, 1.5 - gap, 1.5 + gap), 0.3), 0, 4), same


@pytest.mark.parametrize('gap', [0.0, 0.2, 0.6, 1.2])
def test_folds_agree_with_the_grid_of_the_field(gap):
    distances, same = random_scores(np.random.RandomState(1), 2000, gap)
    accuracy, deviation = fold_accuracy(distances, same, 10)
    naive, naive_deviation = naive_fold_accuracy(distances, same, 10, np.arange(0, 4, 0.01))
    assert accuracy == pytest.approx(naive, abs=0.012)
    assert deviation == pytest.approx(naive_deviation, abs=0.012)


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=25), st.integers(2, 10))
@settings(max_examples=200, deadline=None)
def test_folds_equal_a_search_of_every_cut(pairs, num_folds):
    """Distances that often tie; the grid holds every value and half step, so it misses no cut."""
    distances, same = np.array([pair[0] / 2 for pair in pairs]), np.array([pair[1] for pair in pairs])
    num_folds = min(num_folds, len(pairs))
    best = best_threshold(distances, same)
    hits = [np.mean((distances < threshold) == same) for threshold in np.arange(0, 5, 0.25)]
    assert np.mean((distances < best) == same) == max(hits)
    accuracy, deviation = fold_accuracy(distances, same, num_folds)
    assert 0 <= accuracy <= 1 and 0 <= deviation <= 0.5
    for shift in (0.125, -0.125):                                  # distances in other places, same order
        assert fold_accuracy(distances + shift + 0.125, same, num_folds)[0] == accuracy


def test_folds_are_contiguous_and_learn_from_the_others_only():
    """Two halves with opposite rules: the second fails at the threshold of the first (2), which, at the threshold of
    the second (all different), is half right."""
    distances = np.array([1.0, 3.0] * 5 + [1.0, 3.0] * 5)
    same = np.array([True, False] * 5 + [False, True] * 5)
    assert fold_accuracy(distances, same, 2) == (0.25, 0.25)
    assert fold_accuracy(distances[:10], same[:10], 2) == (1.0, 0.0)


def test_perfect_pairs_are_perfect_and_the_threshold_is_in_the_middle():
    distances, same = np.array([0.5, 1.5] * 10), np.array([True, False] * 10)
    assert fold_accuracy(distances, same, 10) == (1.0, 0.0)
    assert best_threshold(distances, same) == 1.0
    assert tar_at_far(distances, same) == {0.1: 1.0}


def test_tar_at_far_counts_by_hand():
    distances = np.concatenate([np.arange(1, 101) / 50, [0.01, 0.03, 0.05, 1.0]])      # 100 different, 4 same
    same = np.arange(104) >= 100
    # 1e-1: the threshold is the 11th smallest, 0.22; 1e-2: the second smallest, 0.04
    assert tar_at_far(distances, same) == {0.1: 0.75, 0.01: 0.5}
    assert list(tar_at_far(distances[1:], same[1:])) == [0.1]
    assert tar_at_far(np.zeros(104), same) == {0.1: 0.0, 0.01: 0.0}                    # ties are not accepted


def test_distances_are_those_of_unit_vectors():
    embeddings = np.array([[3, 4], [6, 8], [1, 0], [-2, 0], [0, 5], [5, 0], [0, 0], [0, 1]], np.float32)
    np.testing.assert_allclose(pair_distances(embeddings), [0, 4, 2, 1], atol=1e-6)


def test_twelve_thousand_pairs_take_well_under_a_second():
    distances, same = random_scores(np.random.RandomState(2), 12000, 0.3)
    begin = time.perf_counter()
    fold_accuracy(distances, same, 10)
    tar_at_far(distances, same)
    assert time.perf_counter() - begin < 0.5


# The whole evaluation

def test_evaluation_of_a_set():
    result = evaluate(small_set(20), mean_colours, 16, SIZE)
    assert result.accuracy > 0.9 and result.accuracy_flip > 0.9 and 0 <= result.accuracy_std < 0.3
    assert 0 < result.threshold < 4 and result.num_folds == 10 and result.note == ''
    assert list(result.tar_at_far) == [0.1] and result.xnorm > 1


def test_flip_adds_the_mirror_image():
    """Both images of a pair differ by a mirroring: with flip they are equal, without they are not."""
    one = [np.ascontiguousarray(picture(number, SIZE)) for number in range(20)]
    vset = VerificationSet('mirror', [number.to_bytes(2, 'big') for number in range(40)], [True] * 20)
    table = [image for image in one for _ in range(2)]

    def decode(encoded, size, out):
        number = int.from_bytes(encoded, 'big')
        out[:] = (table[number][:, ::-1] if number % 2 else table[number]).transpose(2, 0, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('common.verification.decode_rgb', decode)
        plain, mirrored = embed_pairs(vset, mean_colours, 8, SIZE)
    assert pair_distances(plain).min() > 1e-3
    np.testing.assert_allclose(pair_distances(plain + mirrored), 0, atol=1e-9)


@pytest.mark.parametrize('num_pairs, note', [(6, '6 folds for 6 pairs; 3 different pairs are too few for TAR'),
                                             (1, 'one pair: its threshold is its own; only same pairs')])
def test_small_sets_have_fewer_folds_and_a_note(num_pairs, note):
    result = evaluate(small_set(num_pairs), mean_colours, 4, SIZE)
    assert result.note.startswith(note) and result.num_folds == num_pairs
    assert np.isfinite([result.accuracy, result.accuracy_std, result.threshold]).all()
    assert np.isnan(result.tar_at_far[0.1])


@pytest.mark.parametrize('is_same, word', [(True, 'same'), (False, 'different')])
def test_one_kind_of_pairs_only(is_same, word):
    vset = small_set(12)
    result = evaluate(VerificationSet('x', vset.images, [is_same] * 12), mean_colours, 5, SIZE)
    assert 'only %s pairs' % word in result.note
    assert result.accuracy == 1.0 and np.isnan(result.tar_at_far[0.1]) and np.isfinite(result.threshold)


def test_inverted_flags_give_a_warning(caplog):
    vset = small_set(40)
    with caplog.at_level(logging.WARNING, 'shardface'):
        evaluate(vset, mean_colours, 16, SIZE)
        assert not caplog.records
        evaluate(VerificationSet('upside', vset.images, ~vset.same), mean_colours, 16, SIZE)
    assert 'upside' in caplog.text and 'inverted flags' in caplog.text


# Drawing of pairs

@given(st.lists(st.integers(0, 6), min_size=8, max_size=40), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_pairs_are_balanced_distinct_and_right(labels, seed):
    labels = np.array(labels)
    try:
        index, same = make_pairs(labels, 9, np.random.RandomState(seed))
    except UserError as error:
        counts = np.bincount(labels)
        num_same = (counts * (counts - 1) // 2).sum()
        assert num_same < 5 or len(labels) * (len(labels) - 1) // 2 - num_same < 8, str(error)
        return
    assert same.tolist() == [True, False] * 4 + [True]
    np.testing.assert_array_equal(labels[index[:, 0]] == labels[index[:, 1]], same)
    assert (index[:, 0] != index[:, 1]).all()
    assert len({tuple(sorted(pair)) for pair in index.tolist()}) == 9
    again, _ = make_pairs(labels, 9, np.random.RandomState(seed))
    np.testing.assert_array_equal(index, again)


def test_pairs_of_one_person_come_from_as_many_people_as_there_are():
    labels = np.repeat(np.arange(20), 6)
    index, same = make_pairs(labels, 40, np.random.RandomState(0))
    assert sorted(labels[index[same, 0]]) == list(range(20))
