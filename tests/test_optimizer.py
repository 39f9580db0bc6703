import math

import pytest

from common.errors import UsageError
from recognition.optimizer import CosineSchedule, MultiStepSchedule, PolySchedule, SolverOptions, make_schedule


def test_rate_falls_after_each_step():
    schedule = MultiStepSchedule(0.1, [2, 4])
    assert [round(schedule(update), 6) for update in range(1, 7)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert schedule(1) == 0.1                    # a function of the update: asking twice or backwards is fine


def test_rate_rises_on_a_line():
    schedule = MultiStepSchedule(0.4, [3, 5], warmup=4)
    assert [round(schedule(update), 6) for update in range(1, 7)] == [0.1, 0.2, 0.3, 0.04, 0.04, 0.004]
    assert MultiStepSchedule(0.4, warmup=1)(1) == 0.4


def test_no_steps_no_fall():
    assert MultiStepSchedule(0.3)(10**9) == 0.3


def test_multipliers_of_the_head():
    options = SolverOptions(MultiStepSchedule(0.1), 0.8, 1e-3, head_lr_mult=2, head_wd_mult=10)
    assert options.for_head(1) == (0.2, 0.8, 0.01)


def test_poly_falls_by_the_power_of_what_is_left():
    rates = [PolySchedule(0.8, 4, power=2)(update) for update in range(1, 7)]
    assert rates == pytest.approx([0.8, 0.8 * 0.75 ** 2, 0.8 * 0.5 ** 2, 0.8 * 0.25 ** 2] + [0.8 * 0.25 ** 2] * 2)


def test_cosine_is_half_in_the_middle_and_never_zero():
    schedule = CosineSchedule(0.4, 10)
    assert schedule(1) == 0.4 and schedule(6) == pytest.approx(0.2) and schedule(10) > 0
    assert schedule(10) == schedule(1000) == pytest.approx(0.2 * (1 + math.cos(0.9 * math.pi)))


@pytest.mark.parametrize('policy', ['poly', 'cosine'])
def test_warm_up_first_then_the_fall(policy):
    schedule = make_schedule(policy, 0.4, (), 4, 9, 2.0)
    rates = [schedule(update) for update in range(1, 10)]
    assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert all(high > low > 0 for high, low in zip(rates[3:], rates[4:]))


def test_senseless_schedules_are_refused():
    with pytest.raises(UsageError, match='warmup = 9'):
        make_schedule('cosine', 0.1, (), 9, 9, 2.0)
    with pytest.raises(UsageError, match='poly needs the number of steps'):
        make_schedule('poly', 0.1, (), 0, math.inf, 2.0)
