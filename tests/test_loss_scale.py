"""The loss scale of half precision by itself, and the check for gradients that overflowed."""
import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.mxnet_loader import mx
from recognition.loss_scale import ConstantScale, DynamicScale, all_finite, make_loss_scale

# ---- the scale by itself

def test_settings_to_scales():
    assert make_loss_scale(0.0) is None
    assert type(make_loss_scale(128.0)) is ConstantScale and make_loss_scale(128.0).value == 128
    assert type(make_loss_scale('dynamic')) is DynamicScale and make_loss_scale('dynamic').value == 65536


def test_a_constant_stays_and_counts():
    scale = ConstantScale(1024)
    assert [scale.accept(finite, 1) for finite in (True, False, False, True)] == [True, False, False, True]
    assert (scale.value, scale.num_skipped, scale.num_skipped_in_row) == (1024, 2, 0)


def test_dynamic_halves_and_doubles():
    scale = DynamicScale()
    assert not scale.accept(False, 1) and scale.value == 32768
    assert all(scale.accept(True, step) for step in range(1999)) and scale.value == 32768
    assert scale.accept(True, 2001) and scale.value == 65536
    assert all(scale.accept(True, step) for step in range(1999)) and not scale.accept(False, 4001)
    assert scale.value == 32768 and scale.num_good == 0            # good steps are counted in a row


def test_dynamic_has_a_floor_and_a_ceiling():
    scale = DynamicScale(value=2, patience=1, ceiling=8)
    values = []
    for finite in [False] * 3 + [True] * 5:
        scale.accept(finite, 1)
        values.append(scale.value)
    assert values == [1, 1, 1, 2, 4, 8, 8, 8]


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 5))
def test_a_dynamic_scale_is_always_a_power_of_two_in_range(finite, patience):
    scale = DynamicScale(patience=patience)
    for step, good in enumerate(finite):
        try:
            scale.accept(good, step)
        except UserError:
            assert not any(finite[step - 49:step + 1])
            return
        assert 1 <= scale.value <= 2**24 and math.frexp(scale.value)[0] == 0.5
    assert scale.num_skipped == finite.count(False)


@pytest.mark.parametrize('scale, remedy', [
    (ConstantScale(1e8), 'scale 1e.08 at step 50: lower --lr, give a smaller --fp16-scale or dynamic, or train'),
    (DynamicScale(), 'scale 1 at step 50: lower --lr, or train without --fp16-scale')])
def test_fifty_in_a_row_stop_the_run(scale, remedy):
    assert not any(scale.accept(False, step) for step in range(1, 50))
    with pytest.raises(UserError, match='overflowed at 50 steps in a row, at last with loss ' + remedy):
        scale.accept(False, 50)


def test_not_in_a_row_they_do_not():
    scale = DynamicScale()
    for step in range(500):
        scale.accept(step % 50 == 49, step)
    assert scale.num_skipped == 490


def test_overflows_are_in_the_log_but_do_not_fill_it(caplog):
    caplog.set_level(logging.INFO, 'shardface')
    for scale, level in ((ConstantScale(1e8), logging.WARNING), (DynamicScale(), logging.INFO)):
        caplog.clear()
        for step in range(1, 41):
            scale.accept(False, step)
        assert {record.levelno for record in caplog.records} == {level} and len(caplog.records) == 6
        assert 'step 32: half precision gradients overflowed with loss scale' in caplog.text


@given(st.lists(st.booleans(), max_size=60), st.lists(st.booleans(), max_size=40))
def test_state_and_restore_go_on_as_if_nothing_had_been(before, after):
    for make in (lambda: DynamicScale(patience=3), lambda: ConstantScale(8)):
        one, other = make(), make()
        try:
            for step, finite in enumerate(before):
                one.accept(finite, step)
        except UserError:
            continue
        other.restore(one.state())
        assert all(isinstance(value, (int, float)) for value in one.state().values())
        for step, finite in enumerate(after):
            outcomes = []
            for scale in (one, other):
                try:
                    outcomes.append((scale.accept(finite, step), scale.value))
                except UserError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]
        assert one.state() == other.state()


def test_a_state_of_the_other_class_keeps_the_setting():
    constant, dynamic = ConstantScale(8), DynamicScale()
    constant.accept(False, 1)
    dynamic.restore(constant.state())
    assert (dynamic.value, dynamic.num_skipped) == (65536, 1)
    dynamic.accept(False, 2)
    constant.restore(dynamic.state())
    assert (constant.value, constant.num_skipped) == (8, 2)


# ---- the check

def array(values, dtype='float16', device=0):
    return mx.nd.array(np.array(values), dtype=dtype, ctx=mx.cpu(device))


@pytest.mark.parametrize('bad', [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize('dtype', ['float16', 'float32'])
@pytest.mark.parametrize('where', [0, 3, 449])
def test_one_number_that_is_not_finite_is_found(bad, dtype, where):
    def gradients():
        return [[array([1, 2, 60000], 'float32' if number % 3 else 'float16')] for number in range(450)]
    assert all_finite(gradients())
    wrong = gradients()
    wrong[where] = [array([1, bad, 2], dtype)]
    assert not all_finite(wrong)


@pytest.mark.parametrize('device', [0, 1, 2])
def test_it_is_found_on_every_device(device):
    gradients = [[array([1, 2], device=number) for number in range(3)] for _ in range(2)]
    assert all_finite(gradients)
    gradients[1][device] = array([1, math.inf], device=device)
    assert not all_finite(gradients)


def test_a_sum_over_devices_that_would_overflow_is_found():
    assert all_finite([[array([40000.0])]])
    assert not all_finite([[array([40000.0]), array([40000.0], device=1)]])
    assert all_finite([[array([30000.0]), array([30000.0], device=1)]])
