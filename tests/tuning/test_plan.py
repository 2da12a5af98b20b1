from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tuning.elimination import FEWEST_FIRST
from harness.tuning.measured import HONEST_STEPS
from harness.tuning.plan import MARGIN, SHORTEST_SCREEN, CostModel, Final, climb_steps, lengths, plan_final, screen_steps

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)

per_step_s = st.floats(1e-4, 30)
workers = st.integers(1, 16)
warmups = st.integers(0, 20)


def cost_of(per_step: float, warmup: int) -> CostModel:
    cost = CostModel(warmup)
    cost.note(SHORTEST_SCREEN, per_step * (SHORTEST_SCREEN + warmup))
    return cost


@PROFILE
@given(per_step_s, warmups, st.integers(1, 200))
def test_cost_follows_all_steps_warm_up_included(per_step: float, warmup: int, steps: int) -> None:
    expected = cost_of(per_step, warmup).expected_s(steps)
    assert abs(expected / (MARGIN * per_step * (steps + warmup)) - 1) < 1e-9


@PROFILE
@given(per_step_s, warmups, st.floats(0, 600), workers, st.integers(20, 200))
def test_a_planned_final_fits_unless_not_even_one_pair_does(
    per_step: float, warmup: int, seconds: float, size: int, honest: int
) -> None:
    cost = cost_of(per_step, warmup)
    plan = plan_final(cost, seconds, size, lengths(honest))
    assert plan.replications >= 1
    calls = (plan.finalists + 1) * plan.replications
    if plan.replications > 1 or plan.finalists > 1:
        assert calls <= cost.calls(plan.steps, seconds, size)
        assert -(-calls // size) * cost.expected_s(plan.steps) <= seconds + 1e-9


@PROFILE
@given(per_step_s, warmups, st.floats(0, 600), workers, st.integers(20, 200))
def test_more_time_never_makes_the_final_shorter(per_step: float, warmup: int, seconds: float, size: int, honest: int) -> None:
    cost = cost_of(per_step, warmup)
    less, more = (plan_final(cost, s, size, lengths(honest)) for s in (seconds, 2 * seconds + 1))
    assert more.steps >= less.steps


@PROFILE
@given(per_step_s, st.floats(0, 600), workers, st.integers(20, 200))
def test_a_screen_is_never_longer_than_the_scenario_nor_shorter_than_it_may_be(
    per_step: float, seconds: float, size: int, honest: int
) -> None:
    assert SHORTEST_SCREEN <= screen_steps(cost_of(per_step, 5), seconds, size, honest) <= honest


@given(st.integers(5, 200), st.integers(20, 200))
def test_promotion_is_to_twice_the_length_or_a_little_more_and_never_beyond_the_scenario(steps: int, honest: int) -> None:
    longer = climb_steps(steps, honest)
    assert longer == steps or 2 * steps <= longer <= honest
    if 2 * steps <= 60 <= honest:
        assert longer <= 3 * steps


@given(st.integers(1, 10))
def test_the_first_stage_leaves_a_replication_to_save_where_it_can(replications: int) -> None:
    first = Final(20, 3, replications).first_stage
    assert first == FEWEST_FIRST or first < replications


def test_lengths_begin_with_what_the_scenario_asks_for() -> None:
    assert lengths(100) == (100, 60, 40, 30, HONEST_STEPS, 14, 10, 7, 5)
    assert lengths(20) == (20, 14, 10, 7, 5)


def test_the_last_measurements_at_a_length_count_for_that_length() -> None:
    cost = CostModel(0)
    cost.note(5, 1.0)
    cost.note(20, 10.0)
    assert cost.expected_s(20) == MARGIN * 10.0
    assert cost.expected_s(40) == MARGIN * 20.0
    assert cost.expected_s(6) == MARGIN * 1.2
