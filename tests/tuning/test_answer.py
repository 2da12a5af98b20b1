"""What is said, on problems where it is true."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

from harness.analysis.statistics import Interval
from harness.terminal import contribution_in_words
from harness.tuning import search
from harness.tuning.answer import answer, flat_in_words, how_sure, off_in_words, staleness_cost, told_apart
from harness.tuning.result import Contribution, Flatness, Sensitivity, Verdict

if TYPE_CHECKING:
    from harness.tuning.result import TuneResult
    from harness.tuning.space import Settings


@cache
def usual() -> TuneResult:
    """The stand-in as it is: running ahead wins."""
    return tuned(Pipeline())


def tuned(pipeline: Pipeline, today: Settings = TODAY, budget_s: float = 60.0, max_lag: int | None = None) -> TuneResult:
    crew = VirtualCrew(pipeline, 2, lambda settings, seed, steps: 0.02 * steps)
    promise = search.Promise(budget_s)
    return search.tune(problem(pipeline, today), promise=promise, crew=crew, workers=2, max_lag=max_lag)


def said(result: TuneResult) -> str:
    return " ".join(answer(result))


def test_stay_synchronous_where_running_ahead_gains_nothing() -> None:
    result = tuned(Pipeline(overlaps=False, sync_s=0.0, generate_s=10.0))
    assert result.verdict is Verdict.NO_BETTER
    assert "Stay synchronous: running ahead gains no more than 1.0%" in said(result)


def test_no_word_of_staying_synchronous_where_running_ahead_wins() -> None:
    result = usual()
    assert result.verdict is Verdict.BETTER
    assert "synchronous" not in said(result)
    assert staleness_cost(result).startswith("It costs ")


def test_no_setting_is_better_than_the_best() -> None:
    best = tuned(Pipeline(), max_lag=4).settings
    assert best is not None
    result = tuned(Pipeline(), today=best, max_lag=4)
    assert result.verdict is Verdict.NO_BETTER
    assert "No setting is better than yours by more than 1.0%" in said(result)
    assert result.patch == ""


def test_it_cannot_be_told_where_noise_hides_everything() -> None:
    result = tuned(Pipeline(own=1.5, overlaps=False), budget_s=30.0)
    assert result.verdict is Verdict.CANNOT_TELL
    assert "cannot be told" in said(result) or "looks better than yours" in said(result)
    assert "a larger --budget" in said(result)


def test_a_full_pool_that_is_not_searched_is_named_with_the_knob_that_widens_it() -> None:
    result = tuned(Pipeline(overlaps=False, sync_s=0.0))
    full = replace(result, baseline=replace(result.baseline, utilisation={"tools": 0.99}))
    assert "Buy no chips: tools (99% in use) is the limit" in said(full)
    assert "--knob tool_workers" in said(full)
    free = replace(result, baseline=replace(result.baseline, utilisation={"tools": 0.5}))
    assert "Buy no chips" not in said(free)
    searched = replace(full, today=full.today | {"pipeline.tool_workers": 8})
    assert "Buy no chips" not in said(searched)


@pytest.mark.parametrize(
    ("used", "named"),
    [
        ({"environments": 0.99, "inference": 0.97}, False),
        ({"environments": 0.99, "inference": 0.1}, True),
        ({"environments": 0.99, "tools": 1.0, "inference": 0.1}, False),
    ],
)
def test_full_environments_are_the_limit_only_where_nothing_they_wait_for_is(used: dict[str, float], named: bool) -> None:
    result = tuned(Pipeline(overlaps=False, sync_s=0.0), budget_s=30.0)
    full = replace(result, baseline=replace(result.baseline, utilisation=used))
    assert ("environments (99% in use)" in said(full)) == named
    assert ("tools (100% in use) is the limit" in said(full)) == ("tools" in used)


def test_flat_ranges_and_sharp_ones_are_told() -> None:
    result = replace(
        usual(),
        flatness=(
            Flatness("pipeline.max_inflight", 64, (64, 96, 128), (32,), 20),
            Flatness("pipeline.sync_mode", "keep", ("keep",), ("drain",), 20),
        ),
    )
    assert flat_in_words(result) == (
        "max_inflight: from 64 to 128 is within 1.0%; not 32.",
        "sync_mode: keep alone; drain cost more than 1.0%.",
    )


@pytest.mark.parametrize("rival", [None, {"pipeline.max_inflight": 128}])
def test_inputs_that_are_off_leave_the_answer_or_overturn_it(rival: Settings | None) -> None:
    moved, won = Interval(-0.08, -0.1, -0.06, 0.02, 2), Interval(0.3, 0.2, 0.4, 0.1, 2)
    one = Sensitivity("workload.tools.browse.duration", "time of a call of browse", 1.1, moved, won, rival, 2, 20)
    words = " ".join(off_in_words(replace(usual(), sensitivity=(one,))))
    assert "time of a call of browse (-8.0%)" in words
    assert ("stays the best" in words) == (rival is None)
    assert ("max_inflight = 128 would be better" in words) == (rival is not None)


def test_how_the_finalists_were_told_apart_is_part_of_how_sure() -> None:
    result = usual()
    assert result.elimination is not None
    lines = told_apart(result)
    assert any("on fresh seeds" in line for line in lines)
    assert set(lines) <= set(how_sure(result))


@pytest.mark.parametrize(
    ("low", "mean", "high", "words"),
    [
        (0.21, 0.25, 0.29, "max_inflight 64 → 128: +25% (+21 to +29%)"),
        (-0.01, 0.0, 0.01, "max_inflight 64 → 128: 0.0% (-1.0 to +1.0%); it could as well stay as it is"),
        (-1.23, 0.97, 3.17, "max_inflight 64 → 128: +97% (-123 to +317%); 2 pairs do not settle it"),
        (-0.3, -0.2, -0.1, "max_inflight 64 → 128: -20% (-30 to -10%); better as it was"),
    ],
)
def test_a_contribution_says_no_more_than_its_pairs_show(low: float, mean: float, high: float, words: str) -> None:
    gained = Interval(mean, low, high, high - mean, 2)
    assert contribution_in_words(Contribution("pipeline.max_inflight", 64, 128, gained, 20)) == words
