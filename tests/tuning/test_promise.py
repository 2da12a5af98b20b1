"""The promise of wall time, in virtual time: whatever simulations cost, the answer is there before the budget is spent."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

from harness.core.errors import ConfigError
from harness.tuning.result import Verdict
from harness.tuning.search import EvaluationError, Promise, tune

PROFILE = settings(derandomize=True, deadline=None, max_examples=25)


def uneven(per_step_s: float, spread: float):
    """Cost in which each setting has its own factor, up to `spread` times as slow."""

    def cost(setting: dict[str, int], seed: int, steps: int) -> float:
        factor = 1 if setting == TODAY else 1 + spread * random.Random(repr(sorted(setting.items()))).random() ** 3
        return per_step_s * (steps + 5) * factor

    return cost


@PROFILE
@given(
    per_step_s=st.floats(0.5, 20),
    spread=st.sampled_from([0.0, 1.0, 100.0]),
    budget_s=st.sampled_from([10.0, 60.0, 200.0]),
    workers=st.integers(1, 4),
    began_before_s=st.floats(0, 3),
)
def test_the_answer_comes_within_the_budget_or_the_budget_is_refused(
    per_step_s: float, spread: float, budget_s: float, workers: int, began_before_s: float
) -> None:
    crew = VirtualCrew(Pipeline(), workers, uneven(per_step_s, spread))
    promise = Promise(budget_s, started_at=-began_before_s, reserve_s=0.5)
    left_s = budget_s - began_before_s - 0.5
    if 10 * per_step_s > left_s:
        with pytest.raises(ConfigError, match="--budget"):
            tune(problem(Pipeline()), promise=promise, workers=workers, crew=crew)
    else:
        result = tune(problem(Pipeline()), promise=promise, workers=workers, crew=crew)
        assert result.effort.wall_s <= budget_s - 0.5 + 1e-9
        assert result.baseline.replications >= 1
    assert crew.now() <= left_s + 1e-9
    assert crew.closed


def test_with_ten_seconds_a_simulation_there_is_still_an_answer_in_sixty() -> None:
    crew = VirtualCrew(Pipeline(common=0.05), 2, lambda setting, seed, steps: 10.0)
    result = tune(problem(Pipeline(common=0.05)), workers=2, crew=crew)
    assert result.effort.wall_s <= 60
    assert result.effort.candidates >= 1
    assert result.best is not None


def test_a_candidate_that_never_ends_is_cut_off_and_said() -> None:
    def cost(setting: dict[str, int], seed: int, steps: int) -> float:
        return 1e9 if setting["pipeline.pipeline_depth"] == 4 else 0.05 * (steps + 5)

    crew = VirtualCrew(Pipeline(), 2, cost)
    result = tune(problem(Pipeline()), workers=2, crew=crew)
    assert result.verdict is Verdict.BETTER
    assert result.settings is not None
    assert result.settings["pipeline.pipeline_depth"] < 4
    assert result.effort.cut_off == len(crew.cut_calls) >= 1
    assert any("cut off" in note for note in result.notes)
    assert result.effort.wall_s <= 60


def test_a_baseline_that_does_not_end_is_the_budget_s_fault() -> None:
    crew = VirtualCrew(Pipeline(), 2, lambda setting, seed, steps: 1e9)
    with pytest.raises(ConfigError, match="too short") as caught:
        tune(problem(Pipeline()), workers=2, crew=crew)
    assert caught.value.field == "--budget"
    assert crew.now() <= 60
    assert crew.closed


def test_a_baseline_that_fails_is_said_with_its_own_exit_code() -> None:
    broken = Pipeline(crashes_above=10)
    crew = VirtualCrew(broken, 2, lambda setting, seed, steps: 1.0)
    with pytest.raises(EvaluationError, match="does not fit") as caught:
        tune(problem(broken), workers=2, crew=crew)
    assert caught.value.exit_code == ConfigError.exit_code


@pytest.mark.parametrize("at_s", [0.7, 3.0, 12.0, 25.0, 40.0, 55.0])
def test_an_interruption_keeps_what_is_finished(at_s: float) -> None:
    whole = VirtualCrew(Pipeline(), 2, uneven(0.1, 1.0))
    tune(problem(Pipeline()), workers=2, crew=whole)
    crew = VirtualCrew(Pipeline(), 2, uneven(0.1, 1.0), interrupt_at=at_s)
    try:
        result = tune(problem(Pipeline()), workers=2, crew=crew)
    except KeyboardInterrupt:
        assert at_s < 1.5  # one simulation takes that long: nothing was finished
    else:
        finished_before = whole.now() < at_s
        assert result.interrupted is not finished_before
        assert result.effort.evaluations >= 1
        assert ("Interrupted" in " ".join(result.notes)) is result.interrupted
    assert crew.closed
    assert crew.calls == whole.calls[: len(crew.calls)]


def test_progress_is_told_after_every_simulation() -> None:
    said = []
    crew = VirtualCrew(Pipeline(), 2, uneven(0.2, 0.0))
    result = tune(problem(Pipeline()), workers=2, crew=crew, heard=said.append)
    assert [progress.evaluations for progress in said] == list(range(1, result.effort.evaluations + 1))
    assert [progress.elapsed_s for progress in said] == sorted(progress.elapsed_s for progress in said)
    assert len({progress.phase for progress in said}) >= 4


def test_a_space_without_alternatives_says_so() -> None:
    lone = problem(Pipeline())
    knobs = tuple(replace(knob, values=(knob.today,)) for knob in lone.space.knobs)
    lone = replace(lone, space=replace(lone.space, knobs=knobs))
    result = tune(lone, workers=2, crew=VirtualCrew(Pipeline(), 2, uneven(0.2, 0.0)))
    assert result.verdict is Verdict.CANNOT_TELL
    assert result.settings is None
    assert result.effort.candidates == 0
