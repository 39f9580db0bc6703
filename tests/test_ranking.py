"""Ranks among distractors: by hand, by definition, by blocks; noise lists, memory, wrong input."""
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import distractor_ranks, ranking
from common.distractor_ranks import BINS, TIE, DistractorRanks, bins, mate_cosines, peak_bytes
from tests.conftest import ROOT

# Unit vectors in a plane. Probe 0 and probe 1, one person, are 20 degrees apart; probe 2 and 3, another, 40 degrees.
PROBES, LABELS = (0, 20, 100, 140), np.array([7, 7, 3, 3])
DISTRACTORS = (10, -30, 60, 130, 180)


def towards(degrees, length=1.0):
    radians = np.radians(degrees)
    return (length * np.stack([np.cos(radians), np.sin(radians)], axis=1)).astype(np.float32)


@pytest.fixture
def rank(tmp_path):
    """A function that saves sets and runs the tool; it returns the exit code and what the JSON file holds."""
    def run(*flags, probes=None, labels=LABELS, distractors=None, names=None):
        for name, array, usual in (('probes', probes, PROBES), ('distractors', distractors, DISTRACTORS)):
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(str(tmp_path / name / 'embeddings.npy'), towards(usual, 3) if array is None else array)
            if names:
                (tmp_path / name / 'names.txt').write_text(''.join(line + '\n' for line in names[name]))
        if labels is not None:
            np.save(str(tmp_path / 'probes' / 'labels.npy'), labels)
        result = tmp_path / 'result.json'
        code = ranking.main(['--probes', str(tmp_path / 'probes'), '--distractors', str(tmp_path / 'distractors'),
                             '--json', str(result)] + list(flags))
        return code, json.loads(result.read_text()) if result.exists() else None
    return run


def by_definition(probes, labels, distractors):
    """{(probe, mate): rank}, float64."""
    probes, distractors = (rows.astype(np.float64) / np.linalg.norm(rows, axis=1, keepdims=True)
                           for rows in (probes, distractors))
    return {(one, mate): 1 + int(np.sum(distractors @ probes[one] >= probes[one] @ probes[mate] - TIE))
            for one in range(len(labels)) for mate in range(len(labels)) if one != mate and labels[one] == labels[mate]}


def all_ranks(probes, labels, distractors, levels, block):
    ranks = DistractorRanks(probes, labels, int(levels.max()) + 1)
    for start in range(0, len(distractors), block):
        ranks.add(distractors[start:start + block], levels[start:start + block])
    return ranks


def test_by_hand(rank):
    """Of probes 0 and 1, one distractor (10 degrees) is nearer than the mate. Of probe 2 (100) it is that of 130, and
    that of 60 is as near as the mate at 140; of probe 3 those of 130 and 180."""
    code, found = rank()
    assert code == 0
    assert found['cmc'] == {'5': {'1': 0.0}}                            # ranks 2, 2, 3, 3
    assert (found['probes'], found['people'], found['pairs'], found['distractors']) == (4, 2, 4, 5)


def test_rate_by_hand(rank):
    """Probes and distractors are 10, 10, 10, 30, 40, 40, 40, 50 degrees apart and more, mates 20 and 40.

    A tenth of these 20 cosines are two: the three of 10 degrees cannot be told apart, so none is accepted, nor a mate.
    Of 40 cosines four may be, those up to 30 degrees, and with them the mates of 20.
    """
    assert rank()[1]['tar_at_far'] == {'0.1': 0.0}
    assert rank(distractors=towards(DISTRACTORS + (270,) * 5))[1]['tar_at_far'] == {'0.1': 0.5}


def test_a_tie_counts_against_the_mate(rank):
    """A distractor that is the mate itself, whatever the block size: rank 2."""
    rng = np.random.RandomState(0)
    probes = rng.randn(2, 64).astype(np.float32)
    for block in ('1', '3', '4096'):
        code, found = rank('--block-size', block, probes=probes, labels=np.array([1, 1]),
                           distractors=np.concatenate([-probes, probes]))
        assert code == 0 and found['cmc']['4'] == {'1': 0.0}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 12), st.integers(1, 4), st.integers(1, 5))
def test_blocks_do_not_matter(seed, num_distractors, num_probes, num_people, num_probe_rows):
    """Ranks are those of the definition, for all sizes of blocks, of probes too, and every number of distractors."""
    rng = np.random.RandomState(seed)
    probes, distractors = (rng.randn(count, 4).astype(np.float32) for count in (num_probes, num_distractors))
    probes, distractors = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (probes, distractors))
    labels = rng.randint(num_people, size=num_probes)
    levels = rng.randint(3, size=num_distractors).astype(np.int8)
    levels[0] = 2
    _, begins = mate_cosines(probes, labels)
    expected = []
    for level in range(3):
        found = by_definition(probes, labels, distractors[levels <= level])
        by_probe = [sorted((rank for (one, _), rank in found.items() if one == probe), reverse=True)
                    for probe in range(num_probes)]
        expected.append([rank for ranks in by_probe for rank in ranks])
        assert np.diff(begins).tolist() == [len(ranks) for ranks in by_probe]
    rates = []
    with pytest.MonkeyPatch.context() as patch:
        for block, rows in ((num_distractors, 256), (1, num_probe_rows), (7, num_probe_rows)):
            patch.setattr(distractor_ranks, 'PROBES', rows)
            ranks = all_ranks(probes, labels, distractors, levels, block)
            assert ranks.ranks().tolist() == expected
            rates.append(ranks.tar_at_far() if len(ranks.cosines) else {})
    assert rates[0] == rates[1] == rates[2]


def test_rates_are_those_of_all_cosines():
    """Against the sorted cosines: the threshold is at most one bin above the exact one."""
    rng = np.random.RandomState(1)
    probes, distractors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)
                           for rows in (rng.randn(40, 16).astype(np.float32), rng.randn(700, 16).astype(np.float32)))
    ranks = all_ranks(probes, np.arange(40) % 8, distractors, np.zeros(700, np.int8), 64)
    cosines = np.sort((probes @ distractors.T).ravel())[::-1]
    found = ranks.tar_at_far()
    assert list(found) == [1e-1, 1e-2, 1e-3, 1e-4]                      # of 28,000
    for rate, tar in found.items():
        exact = cosines[int(rate * 28000 + 1e-9)]
        assert np.mean(ranks.cosines > exact + 3 / BINS) <= tar <= np.mean(ranks.cosines > exact)
    assert bins(np.float32([-1, 1])).tolist() == [130, BINS - 131]


def test_numbers_of_distractors_and_the_seed(rank):
    rng = np.random.RandomState(3)
    sets = {'probes': rng.randn(20, 8).astype(np.float32), 'labels': np.arange(20) % 5,
            'distractors': rng.randn(1234, 8).astype(np.float32)}
    first, again, other = (rank('--seed', seed, **sets)[1] for seed in ('5', '5', '6'))
    assert list(first['cmc']) == ['10', '100', '1000', '1234']
    assert list(first['cmc']['100']) == ['1', '10', '100']
    assert first['cmc'] == again['cmc'] and first['cmc'] != other['cmc']
    assert first['cmc']['1234'] == other['cmc']['1234'] and first['tar_at_far'] == other['tar_at_far']
    shares = [first['cmc'][count]['1'] for count in first['cmc']]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]


def test_noise_lists(rank, tmp_path, capsys):
    """Probe 3 leaves, so the other person has no pair; the distractor at 10 degrees leaves, so mates are first."""
    (tmp_path / 'probe_noise.txt').write_text('# Copied from elsewhere\nB B_4.png\n\n')
    (tmp_path / 'noise.txt').write_text('12\t0/7/x_1.jpg\r\n13\t0/8/nobody.jpg\r\n')
    names = {'probes': ['A/A_1.png', 'A/A_2.png', 'B B/B B_3.png', 'B B/B B_4.png'],
             'distractors': ['0/7/x_1.jpg', '0/8/x_1.jpg', '1/7/x_2.jpg', 'a', 'b']}
    code, found = rank('--probe-noise', str(tmp_path / 'probe_noise.txt'), '--distractor-noise',
                       str(tmp_path / 'noise.txt'), names=names)
    assert code == 0 and found['left_out'] == {'probes': 1, 'distractors': 1}
    assert (found['probes'], found['pairs'], found['distractors']) == (3, 2, 4)
    assert found['cmc'] == {'4': {'1': 1.0}}
    (tmp_path / 'noise.txt').write_text('nobody.jpg\n')
    capsys.readouterr()
    assert rank('--distractor-noise', str(tmp_path / 'noise.txt'), names=names)[0] == 1
    assert 'none of the 1 names' in capsys.readouterr().err


@pytest.mark.parametrize('block', [64, 512])
def test_memory_is_within_what_is_stated(block):
    """Of the worst kind: every distractor is nearer than every mate. A quarter of the matrix of cosines, at most."""
    rng = np.random.RandomState(0)
    probes, distractors = (np.abs(rng.randn(count, 32)).astype(np.float32) for count in (300, 30000))
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    labels = np.arange(300) % 100
    probes[100:] *= -1
    levels = np.zeros(30000, np.int8)
    distractors /= np.linalg.norm(distractors, axis=1, keepdims=True)
    tracemalloc.start()
    try:
        ranks = all_ranks(probes.copy(), labels, distractors, levels, block)
        found = ranks.ranks()
        ranks.tar_at_far()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    bound = peak_bytes(300, 32, len(ranks.cosines), 30000, 1, block)
    assert found.max() > 1000 and peak <= bound < (4 * 300 * 30000 if block == 512 else 4 * 300 * 30000 / 1.5)


@pytest.mark.parametrize('sets, flags, code, message', [
    ({'labels': LABELS[:3]}, (), 1, 'labels.npy is of 3 images, .*embeddings.npy of 4'),
    ({'labels': None}, (), 1, 'labels.npy is no array'),
    ({'labels': np.array([1, 2, 3, 4])}, (), 1, 'no person has two images'),
    ({'labels': np.array([1, 1, -1, -1])}, (), 1, 'unknown people'),
    ({'probes': towards(PROBES) * np.float32([[1], [1], [np.nan], [1]])}, (), 1, 'row 2 of .*probes.* is NaN'),
    ({'distractors': towards(DISTRACTORS) * np.float32([[1], [1], [1], [1], [np.inf]])}, (), 1,
     'row 4 of .*distractors.* is NaN or infinite'),
    ({'distractors': np.ones((3, 5), np.float32)}, (), 1, 'of 2 numbers, .* of 5'),
    ({'distractors': np.ones((0, 2), np.float32)}, (), 1, 'holds no embeddings'),
    ({'distractors': np.ones(4, np.float32)}, (), 1, 'holds float32 of shape'),
    ({}, ('--distractor-noise', '/nowhere'), 1, 'cannot read'),
    ({}, ('--block-size', '0'), 2, '--block-size 0'), ({}, ('--seed', '-1'), 2, '--seed -1'),
    ({}, ('--json', '/nowhere/x.json'), 1, 'no folder to write it into'),
])
def test_wrong_input_is_one_line(rank, capsys, sets, flags, code, message):
    assert rank(*flags, **sets) == (code, None)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(errors[0])


def test_names_that_do_not_fit(rank, tmp_path, capsys):
    (tmp_path / 'noise.txt').write_text('a\n')
    names = {'probes': list('abcd'), 'distractors': list('abcd')}
    assert rank('--distractor-noise', str(tmp_path / 'noise.txt'), names=names)[0] == 1
    assert 'names.txt is of 4 images' in capsys.readouterr().err
    names['distractors'] = ['x/a'] * 5
    assert rank('--distractor-noise', str(tmp_path / 'noise.txt'), names=names)[0] == 1
    assert 'names all images' in capsys.readouterr().err


def test_help_has_an_example():
    shown = subprocess.run([sys.executable, str(ROOT / 'common' / 'ranking.py'), '--help'], stdout=subprocess.PIPE,
                           text=True, check=True).stdout
    assert 'example:\n  shardface-rank --probes' in shown
