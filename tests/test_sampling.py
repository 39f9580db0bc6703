import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recognition.sampling import Sampler


@given(st.integers(1, 400), st.floats(0.01, 1), st.lists(st.integers(0, 399), max_size=60), st.integers(0, 5))
def test_every_label_and_no_class_twice(num_classes, ratio, labels, num_update):
    labels = np.array([label % num_classes for label in labels], np.int64)
    sampler = Sampler(ratio, 3)
    picked = sampler.pick(labels, 1000, num_classes, num_update)
    assert (np.diff(picked) > 0).all() and picked[0] >= 0 and picked[-1] < num_classes
    assert np.isin(labels, picked).all()
    assert len(picked) == max(int(np.ceil(ratio * num_classes)) if ratio < 1 else num_classes, len(np.unique(labels)))
    assert len(picked) <= sampler.capacity(num_classes, max(1, len(labels)))


def test_more_labels_than_the_share_are_all_kept():
    labels = np.array([1, 4, 9, 11, 12, 13, 17, 19])
    assert list(Sampler(0.1, 0).pick(labels, 0, 20, 1)) == list(labels)


def test_a_function_of_seed_step_and_block():
    labels = np.array([5, 7])
    first = Sampler(0.2, 1).pick(labels, 0, 500, 8)
    assert (Sampler(0.2, 1).pick(labels, 0, 500, 8) == first).all()
    for other in (Sampler(0.2, 2).pick(labels, 0, 500, 8), Sampler(0.2, 1).pick(labels, 500, 500, 8),
                  Sampler(0.2, 1).pick(labels, 0, 500, 9)):
        assert (other != first).any()


def test_negatives_are_drawn_evenly():
    counts = np.zeros(50)
    for num_update in range(2000):
        counts[Sampler(0.2, 0).pick(np.array([3]), 0, 50, num_update)] += 1
    assert counts[3] == 2000
    others = np.delete(counts, 3)
    assert others.sum() == 2000 * 9 and np.abs(others - 2000 * 9 / 49).max() < 6 * np.sqrt(2000 * 9 / 49)


@pytest.mark.parametrize('ratio', [0, -0.1, 1.01, float('nan')])
def test_senseless_shares_are_refused(ratio):
    with pytest.raises(ValueError, match='sample ratio'):
        Sampler(ratio, 0)
