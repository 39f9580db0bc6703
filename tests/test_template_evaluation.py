"""Templates: by hand, by definition, from images; files that are wrong."""
import json
import subprocess
import sys
import types

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import template_evaluation, template_files
from common.alignment import FIVE_POINTS, align, similarity
from common.errors import UserError
from common.identification import NO_MATE, Search, closed_set_tpir, cmc, find_mates, num_top, open_set_tpir
from common.images import CorruptImage, decode_rgb
from common.saved_model import Embedder, load_model
from common.template_files import MediaList, number_blocks, read_pairs, read_points, read_subjects
from common.templates import TemplatePool, image_weights, pair_cosines
from tests.conftest import ROOT
from tests.make_models import random_model
from tests.make_sets import jpeg

# Template 30: a video, a and b, and a photo, c. 10: one photo. 20: one video. a is in two templates.
MEDIA = 'a.jpg 30 7\nb.jpg 30 7\nc.jpg 30 9\nd.jpg 10 7\ne.jpg 20 5\na.jpg 20 5\n'
IMAGES = np.array([[2, 0], [0, 2], [0, 3], [4, 3], [0, -1]], np.float32)        # of a to e
SCORES = [0.5, 1, 0.25, 1, 0.5]
POINTS = ''.join('%s.jpg 1 2 3 4 5 6 7 8 9 %d %s\n' % (name, row, SCORES[row]) for row, name in enumerate('abcde'))
PAIRS = '30 10 1\n30 20 0\n10 20 0\n10 10 1\n'


def towards(*degrees):
    """Unit vectors (n, 2)."""
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1).astype(np.float32)


@pytest.fixture
def meta(tmp_path):
    """A function that writes the files of a protocol into a folder and returns it."""
    def write(folder='meta', **files):
        folder = tmp_path / folder
        folder.mkdir(exist_ok=True)
        endings = {'media': 'face_tid_mid.txt', 'pairs': 'template_pair_label.txt', 'points': 'name_5pts_score.txt',
                   'g1': '1N_gallery_G1.csv', 'g2': '1N_gallery_G2.csv', 'probes': '1N_probe_mixed.csv'}
        for name, text in files.items():
            (folder / ('ijbx_' + endings[name])).write_text(text)
        return folder
    return write


@pytest.fixture
def evaluate(tmp_path):
    """A function that runs the tool on saved embeddings; it returns the exit code and what the JSON file holds."""
    def run(folder, embeddings, *flags, names=None):
        np.save(str(tmp_path / 'embeddings.npy'), embeddings)
        if names is not None:
            (tmp_path / 'names.txt').write_text(''.join(name + '\n' for name in names))
        result = tmp_path / 'result.json'
        code = template_evaluation.main(['--meta', str(folder), '--embeddings', str(tmp_path / 'embeddings.npy'),
                                         '--json', str(result)] + list(flags))
        return code, json.loads(result.read_text()) if result.exists() else None
    return run


# Pooling

@pytest.mark.parametrize('use_norm, scores, sums', [
    (False, None, [(0.8, 0.6), (0.5, -0.5), (0.5, 1.5)]),                       # of templates 10, 20, 30
    (True, None, [(4, 3), (1, -0.5), (1, 4)]),
    (False, SCORES, [(0.8, 0.6), (0.25, -0.25), (0.25, 0.75)]),
    (True, SCORES, [(4, 3), (0.5, -0.25), (0.5, 1.75)])])
def test_pooling_by_hand(meta, use_norm, scores, sums):
    media_list = MediaList(str(meta(media=MEDIA) / 'ijbx_face_tid_mid.txt'))
    assert media_list.names == ['a.jpg', 'b.jpg', 'c.jpg', 'd.jpg', 'e.jpg']
    assert media_list.template_ids.tolist() == [10, 20, 30]
    assert image_weights(media_list).tolist() == [0.5, 0.5, 1, 1, 0.5, 0.5]
    pool = TemplatePool(media_list, 2, use_norm, None if scores is None else np.array(scores))
    pool.add(0, IMAGES[:2])
    pool.add(2, IMAGES[2:])
    expected = np.array(sums) / np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(pool.templates(), expected, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 7), st.booleans())
def test_pooling_by_definition(tmp_path_factory, seed, num_lines, batch, use_norm):
    """Any list, in any batches: the mean of each medium, the sum of the media, to length 1."""
    rng = np.random.RandomState(seed)
    lines = sorted({(rng.randint(12), rng.randint(4), rng.randint(3)) for _ in range(num_lines)},
                   key=lambda line: rng.rand())
    path = tmp_path_factory.mktemp('list') / 'media.txt'
    path.write_text(''.join('%d.jpg %d %d\n' % line for line in lines))
    media_list = MediaList(str(path))
    embeddings = rng.randn(len(media_list.names), 5)
    scores = rng.rand(len(embeddings))
    pool = TemplatePool(media_list, 5, use_norm, scores)
    for start in range(0, len(embeddings), batch):
        pool.add(start, embeddings[start:start + batch])
    rows = dict(zip(media_list.names, embeddings * scores[:, None]))
    if not use_norm:
        rows = {name: row * score / np.linalg.norm(row) for (name, row), score in zip(rows.items(), scores)}
    for template, found in zip(media_list.template_ids, pool.templates()):
        media = {line[2] for line in lines if line[1] == template}
        total = sum(np.mean([rows['%d.jpg' % line[0]] for line in lines if line[1:] == (template, medium)], axis=0)
                    for medium in media)
        np.testing.assert_allclose(found, total / np.linalg.norm(total), atol=1e-5)


# 1:1

def test_verification_by_hand(meta, evaluate):
    """Template 10 is (0.8, 0.6), 20 (1, -1) and 30 (1, 3), over their lengths: cosines 0.82, -0.45, 0.14, 1."""
    code, found = evaluate(meta(media=MEDIA, pairs=PAIRS), IMAGES)
    assert code == 0
    assert found['verification']['auc'] == 1.0 and found['verification']['same'] == 2
    assert found['images'] == 5 and found['templates'] == 3 and 'identification' not in found
    assert found['verification']['tar_at_far'] == {'0.1': None}               # of two different pairs


def test_rates_by_hand(meta, evaluate, tmp_path):
    """Ten different pairs, 10 to 100 degrees apart; same ones 5, 15, 15 and 95 apart: a rate of 0.1 lets one pass."""
    degrees = [0] + list(range(10, 101, 10)) + [5, 15, 95]
    lines = ''.join('%d.jpg %d %d\n' % (row, row, row) for row in range(len(degrees)))
    pairs = ''.join('0 %d %d\n' % (row, row > 10) for row in range(1, len(degrees))) + '0 12 1\n'
    code, found = evaluate(meta(media=lines, pairs=pairs), towards(*degrees), '--roc', str(tmp_path / 'roc.png'))
    assert code == 0 and found['verification']['tar_at_far'] == {'0.1': 0.75}
    assert found['verification']['auc'] == pytest.approx((10 + 9 + 9 + 1) / 40)
    assert cv2.imread(str(tmp_path / 'roc.png')).shape[2] == 3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 50))
def test_blocks_of_pairs_do_not_matter(seed, num_pairs, block):
    rng = np.random.RandomState(seed)
    templates = rng.randn(9, 33).astype(np.float32)
    first, second = rng.randint(9, size=(2, num_pairs)).astype(np.int32)
    found = pair_cosines(templates, first, second, block)
    assert (found == pair_cosines(templates, first, second, 1000)).all()
    np.testing.assert_allclose(found, np.sum(templates[first].astype(float) * templates[second], axis=1), atol=1e-4)


def test_large_tables_are_read_in_chunks(tmp_path, monkeypatch):
    rows = np.random.RandomState(0).randint(10**6, size=(500, 3))
    (tmp_path / 'x.txt').write_text('\n'.join(' '.join(map(str, row)) for row in rows) + '\n\n')
    whole = np.concatenate([block for _, block in number_blocks(str(tmp_path / 'x.txt'), 'abc')])
    monkeypatch.setattr(template_files, '_CHUNK', 100)
    parts = list(number_blocks(str(tmp_path / 'x.txt'), 'abc'))
    assert len(parts) > 50 and (np.concatenate([block for _, block in parts]) == rows).all() and (whole == rows).all()
    for number, block in parts:
        assert (block[0] == rows[number - 1]).all()


# 1:N

GALLERY = towards(0, 90, 180, 270)
SUBJECTS = np.array([5, 6, 7, 8])


def test_identification_by_hand():
    """Probes at 10 (of 5: rank 1), 50 (of 5: 40 degrees from 6: rank 2), 170 (of 8: 100 degrees; 7 and 6 are nearer:
    rank 3), 95 (of 9), 300 (of 9)."""
    mate = find_mates(np.array([5, 5, 8, 9, 9]), SUBJECTS)
    assert mate.tolist() == [0, 0, 3, NO_MATE, NO_MATE]
    search = Search(towards(10, 50, 170, 95, 300), GALLERY, mate, 2, 3)
    assert search.rank.tolist() == [1, 2, 3, 0, 0]
    np.testing.assert_allclose(search.best_other, np.cos(np.radians([80, 40, 10, 5, 30])), atol=1e-6)
    np.testing.assert_allclose(search.top_others, np.cos(np.radians([5, 10, 30])), atol=1e-6)
    assert cmc(search) == {1: 1 / 3, 5: 1.0, 10: 1.0}
    assert open_set_tpir(search) == {}                                          # of two probes without a mate


def test_open_set_by_hand():
    """Ten probes without a mate are 1 to 10 degrees from subject 6; a tenth is one, so mates within 2 degrees count.
    Those of 5 are 1, 1.5, 3 and 60 degrees away."""
    probes = towards(*(list(range(91, 101)) + [1, 1.5, 3, 60]))
    subjects = np.array([9] * 10 + [5] * 4)
    search = Search(probes, GALLERY, find_mates(subjects, SUBJECTS), 3, 0)
    assert open_set_tpir(search) == {0.1: 0.5} and cmc(search)[1] == 0.75


def test_closed_set_by_hand():
    """Four probes, all with a mate: a tenth is one cosine of another subject, the nearest being 20 degrees away. Mates
    are 1, 19, 30 and 70 degrees away."""
    search = Search(towards(1, 19, 60, 110), GALLERY, np.array([0, 0, 1, 2]), 3, num_top(0.1, 4))
    assert closed_set_tpir(search) == {0.01: 0.5, 0.1: 0.5}
    assert len(search.top_others) == 1 and search.rank.tolist() == [1, 1, 1, 2]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 9), st.integers(1, 30), st.integers(0, 60))
def test_search_by_definition(seed, num_probes, num_gallery, block, num_largest):
    rng = np.random.RandomState(seed)
    probes, gallery = (rng.randn(count, 6).astype(np.float32) for count in (num_probes, num_gallery))
    mate = rng.randint(-1, num_gallery, size=num_probes)
    search, cosines = Search(probes, gallery, mate, block, num_largest), probes @ gallery.T
    others = []
    for probe in range(num_probes):
        rest = np.delete(cosines[probe], mate[probe]) if mate[probe] != NO_MATE else cosines[probe]
        others += rest.tolist()
        assert search.best_other[probe] == pytest.approx(max(rest, default=-np.inf), abs=1e-5)
        if mate[probe] != NO_MATE:
            assert search.rank[probe] == 1 + np.sum(rest >= cosines[probe, mate[probe]] - 1e-6)
    np.testing.assert_allclose(search.top_others, sorted(others, reverse=True)[:num_largest], atol=1e-5)


def test_everybody_the_same_is_nobody_found():
    search = Search(np.ones((3, 2), np.float32), np.ones((20, 2), np.float32), np.arange(3), 2, 5)
    assert cmc(search) == {1: 0.0, 5: 0.0, 10: 0.0} and closed_set_tpir(search) == {0.01: 0.0, 0.1: 0.0}


def test_galleries_of_a_protocol(meta, evaluate, capsys):
    """Templates 0 to 3 are galleries of two, of subjects 50 to 53; each has a probe, the third one a wrong one. With
    G1 alone probes 0 and 1 have mates and are first; in G2 one of two is; joined, the wrong one is fourth."""
    degrees = [0, 90, 180, 270, 1, 91, 45, 271]
    lines = ''.join('%d.jpg %d 1\n' % (row, row) for row in range(8))
    header = 'TEMPLATE_ID,SUBJECT_ID,FILENAME\n'
    files = {'g1': header + '0,50,"img/1.jpg"\n0,50,img/2.jpg\n1,51,x\n', 'g2': header + '2,52,x\n3,53,x\n',
             'probes': header + '4,50,x\n5,51,x\n6,52,x\n7,53,x\n7,53,y\n'}
    code, found = evaluate(meta(media=lines, **files), towards(*degrees))
    assert code == 0 and 'verification' not in found
    found = found['identification']
    assert list(found) == ['ijbx_1N_gallery_G1', 'ijbx_1N_gallery_G2', 'mean', 'joined']
    first, second, mean, joined = found.values()
    assert (first['gallery'], first['probes'], first['mates']) == (2, 4, 2) and joined['gallery'] == 4
    assert [part['cmc']['1'] for part in (first, second, mean, joined)] == [1.0, 0.5, 0.75, 0.75]
    assert joined['tpir_at_fpir'] == {'0.01': 0.75, '0.1': 0.75} and first['tpir_at_fpir'] == {}
    assert '1:N  joined: 4 probes, 4 have a mate among 4' in capsys.readouterr().out


# Images

@pytest.fixture(scope='module')
def model(tmp_path_factory):
    prefix = str(tmp_path_factory.mktemp('models') / 'model')
    random_model('fmobilefacenet').write(prefix)
    return prefix


def test_alignment():
    """A turned, scaled and shifted face comes back; by least squares as OpenCV solves it."""
    turn = np.array([[1.2, -0.5], [0.5, 1.2]])
    points = FIVE_POINTS @ turn.T + [30, -4]
    matrix = similarity(points, FIVE_POINTS)
    np.testing.assert_allclose(points @ matrix[:, :2].T + matrix[:, 2], FIVE_POINTS, atol=1e-9)
    rng = np.random.RandomState(0)
    points = points + rng.randn(5, 2) * 3
    matrix = similarity(points, FIVE_POINTS)
    x, y = points.T
    zero, one = np.zeros(5), np.ones(5)
    design = np.concatenate([np.stack([x, -y, one, zero], axis=1), np.stack([y, x, zero, one], axis=1)])
    a, b, shift_x, shift_y = np.linalg.lstsq(design, FIVE_POINTS.T.ravel(), rcond=None)[0]
    np.testing.assert_allclose(matrix, [[a, -b, shift_x], [b, a, shift_y]], atol=1e-9)
    image = cv2.GaussianBlur(rng.randint(256, size=(112, 112, 3)).astype(np.uint8), (0, 0), 4)
    larger = cv2.warpAffine(image, np.array([[2.0, 0, 10], [0, 2.0, 20]]), (260, 280))
    back = align(larger, FIVE_POINTS * 2 + [10, 20])
    assert np.abs(back.astype(int) - image).max() <= 3
    with pytest.raises(CorruptImage, match='one point'):
        align(image, np.ones((5, 2)))


@pytest.mark.parametrize('flags', [(), ('--flip', '--use-norm'), ('--align', '--use-detector-score', '--flip')])
def test_images_give_what_their_embeddings_give(model, meta, tmp_path, flags):
    """Batches of two, against embeddings found here and pooled by the class above."""
    folder = tmp_path / 'photos'
    folder.mkdir()
    for row, name in enumerate('abcde'):
        (folder / (name + '.jpg')).write_bytes(jpeg(row))
    points = FIVE_POINTS + [3, -2]
    lines = ''.join('%s.jpg %s %s\n' % (name, ' '.join(map(str, points.ravel())), SCORES[row])
                    for row, name in enumerate('abcde'))
    protocol = meta(media=MEDIA, pairs=PAIRS, points='other.jpg 1 2 3 4 5 6 7 8 9 10 1\n' + lines)
    assert template_evaluation.main(['--meta', str(protocol), '--images', str(folder), '--model', model,
                                     '--batch-size', '2', '--json', str(tmp_path / 'x.json'), *flags]) == 0
    images = np.stack([decode_rgb(jpeg(row), (112, 112)) for row in range(5)])
    if '--align' in flags:
        images = np.stack([cv2.warpAffine(image.transpose(1, 2, 0), np.array([[1.0, 0, -3], [0, 1.0, 2]]),
                                          (112, 112)).transpose(2, 0, 1) for image in images])
    embedder = Embedder(load_model(model, 0), 5, (112, 112))
    rows = embedder(images) + (embedder(images[..., ::-1]) if '--flip' in flags else 0)
    media_list = MediaList(str(protocol / 'ijbx_face_tid_mid.txt'))
    pool = TemplatePool(media_list, 32, '--use-norm' in flags,
                        np.array(SCORES) if '--use-detector-score' in flags else None)
    pool.add(0, rows)
    args = types.SimpleNamespace(embeddings=None, images=str(folder), model=model, layer=None, batch_size=2,
                                 threads=2, device='cpu', **{name: '--' + name.replace('_', '-') in flags for name in (
                                     'align', 'flip', 'use_norm', 'use_detector_score')})
    found = template_evaluation.make_templates(args, (112, 112), media_list, np.repeat(points[None], 5, axis=0),
                                               np.array(SCORES))
    np.testing.assert_allclose(found, pool.templates(), atol=1e-3)


def test_embeddings_are_found_by_their_names(meta, evaluate):
    order = [3, 0, 4, 1, 2]
    protocol = meta(media=MEDIA, pairs=PAIRS + '30 30 0\n' * 10)
    expected = evaluate(protocol, IMAGES)[1]['verification']
    found = evaluate(protocol, np.concatenate([IMAGES[order], IMAGES[:1] * np.nan]),
                     names=['%s.jpg' % 'abcde'[row] for row in order] + ['unused.jpg'])[1]['verification']
    assert {key: found[key] for key in ('auc', 'tar_at_far')} == {key: expected[key] for key in ('auc', 'tar_at_far')}


# Wrong input

@pytest.mark.parametrize('files, message', [
    ({'media': MEDIA + 'f.jpg 30\n'}, 'face_tid_mid.txt line 7: NAME TEMPLATE MEDIA is expected'),
    ({'media': MEDIA + 'f.jpg 30 x\n'}, "line 7: 'x' is no whole number"),
    ({'media': MEDIA + 'c.jpg 30 9\n'}, 'c.jpg comes twice in medium 9 of template 30'),
    ({'media': '\n'}, 'names no images'),
    ({'pairs': PAIRS + '30 40 1\n'}, r'pair_label.txt: template 40 has no images in .*face_tid_mid.txt'),
    ({'pairs': PAIRS + '30 10\n'}, "pair_label.txt line 5: TEMPLATE TEMPLATE 0|1 is expected, not '30 10'"),
    ({'pairs': '30 10 1 30\n10 1\n'}, 'line 1: TEMPLATE'), ({'pairs': '30 10 2\n'}, 'label of a pair is 2'),
    ({'pairs': '30 -1 1\n'}, 'line 1'), ({'pairs': '30 %d 1\n' % 10**30}, 'line 1'), ({'pairs': '\n'}, 'no pairs'),
    ({'points': POINTS[:-4] + '\n'}, 'name_5pts_score.txt line 5: NAME, ten coordinates and a score'),
    ({'points': POINTS.replace('0.25', 'nan')}, 'line 3: NAME, ten coordinates'),
    ({'points': POINTS.replace('c.jpg', 'z.jpg')}, 'no line for 1 images, the first is c.jpg'),
    ({'points': POINTS + POINTS}, 'line 6: a.jpg was there before'),
    ({'g1': 'T,S\n10,1\n10,2\n'}, 'G1.csv line 3: template 10 is of subject 2, before that of 1'),
    ({'g1': 'T,S\n10,1\n20,1\n'}, 'G1.csv: subject 1 has two templates'),
    ({'g1': 'T,S\n99,1\n'}, 'G1.csv: template 99 has no images'), ({'g1': 'T,S\n10\n'}, 'line 2: TEMPLATE,SUBJECT'),
    ({'g1': 'T,S\n'}, 'holds no templates'), ({'probes': 'T,S\n10,x\n'}, "mixed.csv line 2: 'x' is no whole"),
])
def test_wrong_files_are_one_line(meta, evaluate, capsys, files, message):
    valid = {'media': MEDIA, 'pairs': PAIRS, 'points': POINTS, 'g1': 'T,S\n10,1\n', 'probes': 'T,S\n20,1\n'}
    assert evaluate(meta(**dict(valid, **files)), IMAGES, '--use-detector-score') == (1, None)
    errors = capsys.readouterr().err
    assert errors.count('\n') == 1
    with pytest.raises(AssertionError, match=message.replace('|', r'\|')):
        raise AssertionError(errors)


@pytest.mark.parametrize('change, code, message', [
    ({'embeddings': IMAGES[:4]}, 1, 'has 4 embeddings, the protocol 5 images, and there is no names.txt'),
    ({'embeddings': IMAGES * np.float32([[1], [1], [np.nan], [1], [1]])}, 1, 'row 2 of .*is NaN or infinite'),
    ({'names': ['a.jpg', 'b.jpg', 'c.jpg', 'd.jpg', 'x.jpg']}, 1, 'no embedding of 1 of 5 images, the first is e.jpg'),
    ({'names': ['a.jpg']}, 1, 'names.txt is of 1 images'), ({'flags': ['--flip']}, 2, '--flip does not go with'),
    ({'flags': ['--align']}, 2, '--align does not go with'), ({'flags': ['--block-size', '0']}, 2, '--block-size'),
    ({'flags': ['--use-detector-score']}, 2, 'need points'), ({'flags': ['--meta', '/nowhere']}, 1, 'is no folder'),
    ({'flags': ['--gallery', '/x.csv']}, 2, '1:N needs both'), ({'flags': ['--pairs', '/nowhere']}, 1, 'cannot read'),
    ({'flags': ['--images', '/nowhere']}, 2, 'either --images or --embeddings'),
    ({'flags': ['--image-size', 'none']}, 2, '--image-size none'),
])
def test_wrong_flags_and_arrays_are_one_line(meta, evaluate, capsys, change, code, message):
    change = dict({'embeddings': IMAGES, 'names': None, 'flags': []}, **change)
    assert evaluate(meta(media=MEDIA, pairs=PAIRS), change['embeddings'], *change['flags'],
                    names=change['names']) == (code, None)
    errors = capsys.readouterr().err
    assert errors.count('\n') == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(errors)


def test_wrong_images(model, meta, tmp_path, capfd):
    protocol, folder = meta(media='a.jpg 1 1\nb.jpg 2 2\n', pairs='1 2 0\n', points='a.jpg' + ' 1' * 11 + '\n'
                            + 'b.jpg' + ' 1' * 11 + '\n'), tmp_path / 'photos'
    folder.mkdir()
    (folder / 'a.jpg').write_bytes(jpeg(0))
    argv = ['--meta', str(protocol), '--images', str(folder), '--model', model]
    assert template_evaluation.main(argv) == 1
    assert '1 of 2 images are not in' in capfd.readouterr().err
    (folder / 'b.jpg').write_bytes(jpeg(1)[:-40])
    assert template_evaluation.main(argv) == 1
    assert 'b.jpg: a JPEG of' in capfd.readouterr().err
    assert template_evaluation.main(argv + ['--align']) == 1
    assert 'a.jpg: its five points are one point' in capfd.readouterr().err
    assert template_evaluation.main(argv + ['--align', '--image-size', '96x96']) == 2
    assert template_evaluation.main(argv[:-2]) == 2 and template_evaluation.main(argv[:-4]) == 2


def test_protocols_that_lack_something(meta, evaluate, tmp_path, capsys):
    assert evaluate(meta('empty'), IMAGES)[0] == 2 and 'no list of images' in capsys.readouterr().err
    assert evaluate(meta('list', media=MEDIA), IMAGES)[0] == 2 and 'nothing to evaluate' in capsys.readouterr().err
    folder = meta('two', media=MEDIA)
    (folder / 'other_face_tid_mid.txt').write_text(MEDIA)
    assert evaluate(folder, IMAGES)[0] == 1 and 'several files' in capsys.readouterr().err
    folder = meta('roc', media=MEDIA, g1='T,S\n10,1\n', probes='T,S\n20,1\n')
    assert evaluate(folder, IMAGES, '--roc', str(tmp_path / 'x.png'))[0] == 2
    with pytest.raises(UserError, match='cannot read'):
        MediaList('/nowhere')
    media_list = MediaList(str(folder / 'ijbx_face_tid_mid.txt'))
    for read in (lambda: read_pairs('/nowhere', media_list), lambda: read_points('/nowhere', media_list.names),
                 lambda: read_subjects('/nowhere', media_list)):
        with pytest.raises(UserError, match='cannot read'):
            read()


def test_help_has_an_example():
    shown = subprocess.run([sys.executable, str(ROOT / 'common' / 'template_evaluation.py'), '--help'],
                           stdout=subprocess.PIPE, text=True, check=True).stdout
    assert 'example:\n  shardface-templates --meta' in shown
