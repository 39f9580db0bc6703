from recognition.optimizer import MultiStepSchedule, SolverOptions


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
