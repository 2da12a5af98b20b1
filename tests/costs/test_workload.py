"""Episodes of the simulated world: keyed draws that no knob disturbs, and the laws that they should have."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import NormalDist, fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.work import Status, WorkKind
from harness.costs.draws import HANG_NS
from harness.costs.workload import WorkloadModel, count_sampler, max_count
from harness.scenario.counts import ConstantCount, EmpiricalCount, GeometricCount, LognormalCount
from harness.scenario.schema import World
from harness.scenario.workload import Workload

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)

LONG = {"law": "lognormal", "mu": 1.0, "sigma": 1.0}
WORLD = {
    "inference": {
        "replicas": 1,
        "chips_per_replica": 1,
        "kv_capacity_tokens": 10**6,
        "decode": {"base_s": 0.01},
        "prefill": {"base_s": 0.0, "per_token_s": 1e-5},
    },
    "learner": {"chips": 1, "train": {"base_s": 1.0}},
    "weights": {"weights_bytes": 10, "transfer": {"base_s": 0.1, "bytes_per_s": 1e9}},
    "environments": {
        "reset": LONG,
        "close": {"law": "constant", "value_s": 0.5},
        "reset_infra_failure": 0.1,
        "reset_hang": 0.05,
    },
    "scoring": {"duration": LONG, "failure": 0.1, "time_limit_s": 20.0},
}
WORKLOAD = {
    "tasks": 100,
    "turns": {"law": "lognormal", "mean": 8.0, "cv": 0.7, "max": 40},
    "prompt_tokens": {"law": "constant", "value": 100},
    "response_tokens": {"law": "lognormal", "mean": 50.0, "cv": 1.0, "max": 500},
    "observation_tokens": {"law": "geometric", "mean": 20.0, "max": 200},
    "max_context_tokens": 100_000,
    "tools": [
        {"name": "fast", "share": 0.7, "duration": {"law": "exponential", "mean_s": 2.0}},
        {
            "name": "slow",
            "share": 0.3,
            "duration": LONG,
            "failure": 0.1,
            "infra_failure": 0.2,
            "hang": 0.1,
            "time_limit_s": 30.0,
        },
    ],
}


def model(seed: int = 0, **changes) -> WorkloadModel:
    return WorkloadModel(Workload.model_validate({**WORKLOAD, **changes}), World.model_validate(WORLD), seed)


@SETTINGS
@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 50), st.integers(0, 64))
def test_a_plan_belongs_to_its_key_alone(seed, task, dispatch, member):
    """Whatever was drawn before: more members (over-provisioning), fewer (quorum), other groups, retries."""
    disturbed, alone = model(seed), model(seed)
    for other in range(member % 7):
        disturbed.plan(task, dispatch, member + 1 + other)
        disturbed.retry(WorkKind.TOOL_CALL, task, dispatch, member, other, 1)
    disturbed.plan(task + 1, dispatch, member)
    assert asdict(disturbed.plan(task, dispatch, member)) == asdict(alone.plan(task, dispatch, member))
    assert asdict(alone.plan(task, dispatch, member)) != asdict(alone.plan(task, dispatch + 1, member))


@SETTINGS
@given(st.integers(0, 10**4), st.integers(0, 100))
def test_one_knob_of_the_workload_leaves_the_other_draws_alone(seed, task):
    plain = model(seed).plan(task, 0, 0)
    longer = model(seed, turns={"law": "constant", "value": 30}).plan(task, 0, 0)
    n = min(plain.turns, 30)
    for name in ("response_tokens", "observation_tokens", "tool", "tool_ns", "tool_status"):
        assert getattr(longer, name)[:n] == getattr(plain, name)[:n]
    assert (longer.reset_ns, longer.reward_ns, longer.close_ns) == (plain.reset_ns, plain.reward_ns, plain.close_ns)


@SETTINGS
@given(st.integers(0, 10**4), st.integers(0, 100), st.integers(2, 3000))
def test_plans_are_well_formed_and_keep_to_the_longest_context(seed, task, limit):
    plan = model(seed, max_context_tokens=limit).plan(task, 0, 0)
    lists = (plan.response_tokens, plan.observation_tokens, plan.tool, plan.tool_ns, plan.tool_status)
    assert {len(values) for values in lists} == {plan.turns}
    assert plan.turns >= 1
    assert plan.response_tokens[0] >= 1
    assert min(plan.observation_tokens) >= 0
    assert plan.prompt_tokens + sum(plan.response_tokens) + sum(plan.observation_tokens) <= limit
    assert all(0 <= ns <= HANG_NS for ns in [*plan.tool_ns, plan.reset_ns, plan.reward_ns, plan.close_ns])


def test_retries_draw_anew_and_by_attempt():
    drawn = model().retry(WorkKind.TOOL_CALL, 3, 0, 1, 2, 1, tool=1)
    assert drawn == model().retry(WorkKind.TOOL_CALL, 3, 0, 1, 2, 1, tool=1)
    attempts = {model().retry(WorkKind.TOOL_CALL, 3, 0, 1, 2, attempt)[0] for attempt in range(1, 20)}
    assert len(attempts) == 19
    assert model().retry(WorkKind.ENV_RESET, 3, 0, 1, 0, 1)[0] != model().retry(WorkKind.REWARD, 3, 0, 1, 0, 1)[0]


def test_fates_are_as_frequent_as_their_probabilities():
    drawn = model()
    plans = [drawn.plan(task, 0, 0) for task in range(3000)]
    slow = [
        (ns, status) for plan in plans for k, ns, status in zip(plan.tool, plan.tool_ns, plan.tool_status, strict=True) if k
    ]
    n = len(slow)
    assert n / sum(plan.turns for plan in plans) == pytest.approx(0.3, abs=0.02)
    over = 1 - NormalDist(1, 1).cdf(math.log(30))
    for status, share in ((Status.FAILED, 0.1), (Status.INFRA, 0.2), (Status.TIME_LIMIT, None)):
        expected = over if share is None else share * (1 - over)
        assert sum(s == status for _, s in slow) / n == pytest.approx(expected, abs=0.02)
    assert sum(ns == HANG_NS for ns, _ in slow) / n == pytest.approx(0.1 * (1 - over), abs=0.02)
    assert all(ns == 30_000_000_000 for ns, s in slow if s == Status.TIME_LIMIT)
    resets = [(plan.reset_ns == HANG_NS, plan.reset_status) for plan in plans]
    assert fmean(hang for hang, _ in resets) == pytest.approx(0.05, abs=0.02)
    assert fmean(s == Status.INFRA for _, s in resets) == pytest.approx(0.1, abs=0.02)
    assert max(plan.reward_ns for plan in plans) == 20_000_000_000


@pytest.mark.parametrize(
    ("law", "quantile"),
    [
        (ConstantCount(value=7), lambda u: 7),
        (GeometricCount(mean=6.0, max=30), lambda u: min(1 + math.floor(math.log(1 - u) / math.log(1 - 1 / 6)), 30)),
        (
            LognormalCount(mean=40.0, cv=1.2, min=3, max=200),
            lambda u: min(
                max(round(math.exp(NormalDist(math.log(40) - math.log(2.44) / 2, math.sqrt(math.log(2.44))).inv_cdf(u))), 3),
                200,
            ),
        ),
        (
            EmpiricalCount(probabilities=(0.0, 0.25, 0.5, 0.8, 1.0), values=(5, 5, 8, 100, 130)),
            lambda u: int(np.interp(u, (0.0, 0.25, 0.5, 0.8, 1.0), (5, 5, 8, 100, 130)) + 0.5),
        ),
        (
            EmpiricalCount(probabilities=(0.0, 0.3, 0.301, 0.7, 0.8, 1.0), values=(1, 1, 2, 2, 3, 3)),
            lambda u: int(np.interp(u, (0.0, 0.3, 0.301, 0.7, 0.8, 1.0), (1, 1, 2, 2, 3, 3)) + 0.5),
        ),
    ],
)
def test_counts_are_the_rounded_quantiles_of_their_laws(law, quantile):
    sample = count_sampler(law)
    us = [(i + 0.5) / 997 for i in range(997)]
    assert [sample(u) for u in us] == [quantile(u) for u in us]
    assert sample(0.0) == quantile(1e-16)
    assert sample(1 - 2**-53) == max_count(law)


def test_correlation_within_a_task_leaves_the_law_of_turns_as_it_is():
    independent, correlated = model(task_correlation=0.0), model(task_correlation=0.6)
    free = np.sort([independent.plan(task, 0, 0).turns for task in range(1500)])
    tied = np.sort([correlated.plan(task, 0, 0).turns for task in range(1500)])
    assert np.abs(np.quantile(free, [0.1, 0.5, 0.9]) - np.quantile(tied, [0.1, 0.5, 0.9])).max() <= 1
    pairs = np.log([[correlated.plan(task, 0, member).turns for member in (0, 1)] for task in range(1500)])
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0.6, abs=0.08)
    pairs = np.log([[independent.plan(task, 0, member).turns for member in (0, 1)] for task in range(1500)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.08


def test_correlation_of_answers_leaves_their_law_as_it_is_and_every_other_draw():
    tokens = {"response_tokens": {"law": "lognormal", "mean": 400.0, "cv": 1.0, "max": 20_000}}
    independent, correlated = model(**tokens), model(**tokens, response_correlation=0.7)
    plans = [[drawn.plan(task, 0, member) for member in (0, 1)] for drawn in (independent, correlated) for task in range(1500)]
    free, tied = plans[:1500], plans[1500:]
    for one, other in zip(free, tied, strict=True):
        assert [p.turns for p in one] == [p.turns for p in other]
        assert [p.tool_ns for p in one] == [p.tool_ns for p in other]
    first = [np.log([[pair[0].response_tokens[0], pair[1].response_tokens[0]] for pair in pairs]) for pairs in (free, tied)]
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(first[0], share) == pytest.approx(np.quantile(first[1], share), abs=0.12)
    assert abs(np.corrcoef(first[0].T)[0, 1]) < 0.08
    assert np.corrcoef(first[1].T)[0, 1] == pytest.approx(0.7, abs=0.06)


def test_hard_tasks_fail_and_are_long():
    drawn = model(task_correlation=0.6, success={"median": 0.5, "spread": 2.0})
    rates = np.array([fmean(drawn.plan(task, 0, member).success for member in range(8)) for task in range(400)])
    turns = np.array([fmean(drawn.plan(task, 0, member).turns for member in range(8)) for task in range(400)])
    assert rates.mean() == pytest.approx(0.5, abs=0.06)
    assert (rates == 0).mean() > 0.08  # far more than 0.5 ** 8: whole groups without a signal
    assert np.corrcoef(rates, turns)[0, 1] < -0.4
    even = model(success={"median": 0.3})
    rates = np.array([fmean(even.plan(task, 0, member).success for member in range(8)) for task in range(400)])
    assert rates.mean() == pytest.approx(0.3, abs=0.04)


def test_a_whole_run_is_split_over_the_calls():
    run = {
        "tool_share": 0.5,
        "duration": {
            "law": "mixture",
            "parts": [{"weight": 0.8, "of": {"law": "lognormal", "mu": 4.0, "sigma": 0.5}}],
            "atoms": [{"at_s": 600.0, "weight": 0.2}],
        },
    }
    tools = [{"name": "only", "share": 1.0, "duration": LONG}]
    drawn = model(agent_run=run, tools=tools)
    plain = model(tools=tools)
    plans = [drawn.plan(task, 0, 0) for task in range(2000)]
    totals = [sum(plan.tool_ns) / 1e9 for plan in plans]
    assert fmean(totals) == pytest.approx(0.5 * (0.8 * math.exp(4.125) + 0.2 * 600), rel=0.06)
    limited = [plan for plan in plans if plan.time_limited]
    assert len(limited) / len(plans) == pytest.approx(0.2, abs=0.03)
    assert all(sum(plan.tool_ns) / 1e9 == pytest.approx(300, abs=1e-6) for plan in limited)
    assert all(plan.tool_status[-1] == Status.TIME_LIMIT and not plan.success for plan in limited)
    weights = plain.plan(5, 0, 0).tool_ns
    split = plans[5].tool_ns
    assert [ns / sum(split) for ns in split] == pytest.approx([ns / sum(weights) for ns in weights], abs=1e-6)
