"""What is said of small worlds in which it is true: the real pipeline, searched in virtual time, so that no load changes it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from virtual_crew import VirtualCrew

import harness
from harness.run import simulate_once
from harness.tuned import by_hand, fair_lengths, tunable, with_settings
from harness.tuning import search
from harness.tuning.answer import answer
from harness.tuning.result import INDIFFERENCE, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.summary import RunSummary
    from harness.tuning.result import TuneResult
    from harness.tuning.space import Settings

STEPS, WARMUP_STEPS = 20, 2
SMALL = (
    "pipeline.groups_per_step=2",
    "pipeline.group_size=2",
    "pipeline.buffer_capacity=8",
    "pipeline.max_inflight=8",
    "workload.turns.mean=2.0",
    f"run.learner_steps={STEPS}",
    f"run.warmup_steps={WARMUP_STEPS}",
)


def calls(law: str, more: str = "") -> str:
    """Every turn calls one and the same tool."""
    return f'workload.tools=[{{name="call", share=1.0, duration={law}{more}}}]'


QUICK = calls('{law="constant", value_s=0.1}')


def searched(
    name: str,
    *overrides: str,
    knobs: Sequence[str] = (),
    max_lag: int | None = None,
    budget_s: float = 4.0,
    indifference: float = INDIFFERENCE,
) -> TuneResult:
    scenario = harness.load(f"scenarios/{name}.toml", overrides=[*SMALL, *overrides])

    def evaluate(settings: Settings, seed: int, steps: int) -> RunSummary:
        changed = with_settings(scenario, settings)
        warmup_steps, window_steps = fair_lengths(changed, steps)
        return simulate_once(changed, seed, learner_steps=window_steps, warmup_steps=warmup_steps)

    space = tunable(scenario).space(knobs, max_lag=max_lag)
    said = partial(by_hand, scenario, objective="kept", ours=True) if knobs else None
    problem = search.Problem(scenario.title, space, evaluate, STEPS, WARMUP_STEPS, 0, "mine.toml", by_hand=said)
    crew = VirtualCrew(evaluate, 2, lambda settings, seed, steps: 0.02 * steps)
    promise = search.Promise(budget_s)
    return search.tune(problem, promise=promise, crew=crew, workers=2, max_lag=max_lag, indifference=indifference)


def said(result: TuneResult) -> str:
    return " ".join(answer(result))


def test_stay_synchronous_where_training_takes_all_the_time() -> None:
    result = searched("synchronous", QUICK, "world.learner.train.base_s=9000.0", max_lag=2, budget_s=8.0)
    assert result.verdict is Verdict.NO_BETTER
    assert "Stay synchronous: running ahead gains no more than 1.0%" in said(result)
    assert "The limit is the learner (100% in use); idle are those of the replicas" in said(result)
    assert result.patch == ""


def test_too_short_a_search_cannot_tell_and_what_it_advises_lets_it_tell() -> None:
    little = partial(searched, "synchronous", QUICK, "world.learner.train.base_s=2300.0", max_lag=1, budget_s=3.0)
    result = little()
    assert result.verdict is Verdict.CANNOT_TELL
    assert "It cannot be told whether any setting is better" in said(result)
    assert "a larger --budget narrows this" in said(result)
    assert "with --indifference 3% it is not worth asking" in said(result)
    assert little(indifference=0.03).verdict is Verdict.NO_BETTER


def test_buy_no_chips_where_one_tool_worker_is_the_limit() -> None:
    one = "pipeline.tool_workers=1"
    slow = calls('{law="lognormal", mu=2.0, sigma=0.3}')
    result = searched("one_step_async", slow, one, knobs=["buffer_capacity", "sync_mode"], max_lag=1)
    assert result.verdict is Verdict.NO_BETTER
    assert "Buy no chips: tools (100% in use) is the limit" in said(result)
    assert "--knob tool_workers" in said(result)


def test_buy_no_chips_where_a_provider_lets_no_more_through() -> None:
    rated = calls('{law="lognormal", mu=0.0, sigma=0.3}', ", rate_per_s=0.1")
    ahead = ("pipeline.max_staleness=2", "pipeline.pipeline_depth=2", "pipeline.max_inflight=16")
    result = searched("one_step_async", rated, *ahead, knobs=["buffer_capacity", "sync_mode"], max_lag=2)
    assert result.verdict is Verdict.NO_BETTER
    assert "Buy no chips: the limit is outside, rate limit of call" in said(result)
    assert "rate_per_s" in said(result)
