import numpy as np
import pytest

from common.errors import UsageError
from common.mxnet_loader import mx
from recognition.margin import Margin
from tests.reference import psi

MARGINS = [(1, 0, 0), (1, 0.5, 0), (1, 0, 0.35), (1, 0.3, 0.2), (1.35, 0, 0), (2, 0.7, 0.1), (4, 0, 0)]


@pytest.mark.parametrize('m1, m2, m3', MARGINS)
def test_target_equals_the_formula(m1, m2, m3):
    cosine = np.linspace(-0.999, 0.999, 501)
    logit, _ = Margin(m1, m2, m3, 64).target(mx.nd.array(cosine))
    expected = 64 * (psi(m1 * np.arccos(cosine) + m2) - m3)
    np.testing.assert_allclose(logit.asnumpy(), expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize('m1, m2, m3', MARGINS)
def test_slope_is_the_derivative(m1, m2, m3):
    cosine = np.linspace(-0.99, 0.99, 301)
    _, slope = Margin(m1, m2, m3, 30).target(mx.nd.array(cosine))
    step = 1e-6
    high, low = (30 * psi(m1 * np.arccos(cosine + side) + m2) for side in (step, -step))
    np.testing.assert_allclose(slope.asnumpy(), (high - low) / (2 * step), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize('m1, m2, m3', MARGINS)
def test_target_never_falls_while_the_cosine_rises(m1, m2, m3):
    cosine = mx.nd.array(np.linspace(-1, 1, 20001))
    logit, slope = (array.asnumpy() for array in Margin(m1, m2, m3, 1).target(cosine))
    assert (np.diff(logit) >= -2e-6).all()
    assert (slope >= 0).all() and np.isfinite(slope).all()


@pytest.mark.parametrize('m1, m2, m3', MARGINS)
def test_finite_at_and_past_the_ends(m1, m2, m3):
    cosine = mx.nd.array([1, -1, 1 + 1e-6, -1 - 1e-6, 0])
    for values in Margin(m1, m2, m3, 64).target(cosine):
        assert np.isfinite(values.asnumpy()).all()


@pytest.mark.parametrize('values', [(0.5, 0, 0, 64), (1, -0.1, 0, 64), (1, 0, -1, 64), (1, 0, 0, 0),
                                    (1, 0, 0, float('nan'))])
def test_senseless_margins_are_refused(values):
    with pytest.raises(UsageError, match='loss_m1'):
        Margin(*values)
