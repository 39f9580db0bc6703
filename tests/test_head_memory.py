"""Memory of the classification layer: the promised bound, and none that grows."""
import numpy as np
import pytest

from benchmarks.head_memory import bound, held, measure
from common.memory import resident
from common.mxnet_loader import mx
from recognition.collective import LocalCollective
from recognition.margin import Margin
from recognition.parall_module import Head

CLASSES, ROWS = 200000, 128


@pytest.mark.slow
@pytest.mark.parametrize('way', ['fast', 'lean'])
def test_peak_is_within_the_bound(way, monkeypatch):
    """1.10 times centers and momentum (and one (N, C) matrix if fast), made, trained, saved and loaded."""
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    found = measure(way, CLASSES, ROWS, num_shards=2)
    assert list(found) == ['init', 'steps', 'save', 'load']
    assert 0.99 * held(CLASSES) < max(found.values()) < bound(way, CLASSES, ROWS) * held(CLASSES)


@pytest.mark.slow
def test_the_usual_algorithm_is_measured_by_the_same_rule():
    """Centers, momentum, gradient and normalised centers alone are twice what is held."""
    assert measure('usual', 20000, ROWS, 1)['steps'] > 2 * held(20000)


@pytest.mark.slow
@pytest.mark.parametrize('options', [{}, {'keep_logits': False, 'sample_ratio': 0.3}], ids=str)
def test_memory_does_not_grow(options):
    head = Head.initial(300, 8, [mx.cpu(0)], Margin(1, 0.5, 0), 0, LocalCollective(), **options)
    rng, embedding = np.random.RandomState(0), mx.nd.random.normal(shape=(8, 8))
    sizes = []
    for step in range(2000):
        head.forward_backward(embedding, rng.randint(0, 300, 8), (0.01, 0.9, 5e-4), step % 50 == 0, step)
        if step % 500 == 499:
            mx.nd.waitall()
            sizes.append(resident())
    assert sizes[-1] - sizes[0] < 4 << 20, sizes
