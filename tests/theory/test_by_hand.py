"""Closed forms from the scenario alone, against the draws that they describe and the runs that they bound."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
from tiny_world import constant, count, exponential, geometric, scenario

from harness.analysis.agreement import BAND, agree, allowed
from harness.analysis.agreement_words import agreement_rows
from harness.analysis.by_hand import closed_network
from harness.analysis.demand import Moments, count_moments, demand, slowest
from harness.cli import call
from harness.costs.workload import WorkloadModel, count_sampler
from harness.expected import expected
from harness.run import load, simulate_once

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PLANS = 1500


@pytest.mark.parametrize("name", ["fully_async", "coding_agent", "long_tail_tools"])
def test_demand_is_the_mean_of_what_is_drawn(name):
    """Within four standard errors over many plans; tasks differ, so that episodes of one task are not asked twice."""
    what = load(SCENARIOS / f"{name}.toml")
    model, found = WorkloadModel.of(what, 7), demand(what.workload, what.world)
    drawn = {"turns": [], "tokens": [], "context": [], "sequence": [], "tools": [], "reset": [], "reward": []}
    for number in range(PLANS):
        plan = model.plan(number % what.workload.tasks, number // what.workload.tasks, 0)
        context, read = plan.prompt_tokens, 0
        for made, seen in zip(plan.response_tokens, plan.observation_tokens, strict=True):
            read += made * context + made * (made - 1) // 2
            context += made + seen
        drawn["turns"].append(plan.turns)
        drawn["tokens"].append(sum(plan.response_tokens))
        drawn["context"].append(read)
        drawn["sequence"].append(context - plan.observation_tokens[-1])
        drawn["tools"].append(sum(ns for ns in plan.tool_ns if ns < 10**15) / 1e9)
        drawn["reset"].append(plan.reset_ns / 1e9 if plan.reset_ns < 10**15 else found.reset_s.mean)
        drawn["reward"].append(plan.reward_ns / 1e9)
    expectations = {
        "turns": found.turns.mean, "tokens": found.tokens, "context": found.context, "sequence": found.sequence_tokens,
        "tools": found.tool_s.mean, "reset": found.reset_s.mean, "reward": found.reward_s.mean,
    }  # fmt: skip
    for what_for, values in drawn.items():
        mean = math.fsum(values) / PLANS
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (PLANS - 1))
        assert abs(mean - expectations[what_for]) < 4 * spread / math.sqrt(PLANS) * math.sqrt(3), what_for


@pytest.mark.parametrize(
    "law", [{"law": "geometric", "mean": 6.0, "max": 24}, {"law": "lognormal", "mean": 200.0, "cv": 0.8, "min": 8, "max": 900}]
)
def test_moments_of_counts_are_those_of_the_rounded_and_capped_law(law):
    turns = scenario(workload={"turns": law}).workload.turns
    sample = count_sampler(turns)
    values = [sample((i + 0.5) / 40_000) for i in range(40_000)]
    found = count_moments(turns)
    assert found.mean == pytest.approx(math.fsum(values) / 40_000, rel=1e-3)
    assert found.square == pytest.approx(math.fsum(v * v for v in values) / 40_000, rel=5e-3)


@pytest.mark.parametrize("of", [1, 2, 8, 64])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_slowest_of_a_group_of_lognormal_times(of, correlation):
    rng = random.Random(of)
    own, shared = math.sqrt(1 - correlation), math.sqrt(correlation)
    largest = []
    for _ in range(3000):
        z = rng.gauss(0, 1)
        largest.append(max(math.exp(0.5 * (shared * z + own * rng.gauss(0, 1))) for _ in range(of)))
    moments = Moments(math.exp(0.125), math.exp(0.5))
    assert slowest(moments, of, correlation) == pytest.approx(math.fsum(largest) / 3000, rel=0.04)
    assert slowest(moments, of, correlation) >= slowest(moments, max(of // 2, 1), correlation)


KNOBS = [
    {},
    {"tool_workers": 1},
    {"env_workers": 2},
    {"reward_workers": 1},
    {"max_inflight": 2},
    {"pipeline_depth": 0, "max_staleness": 0},
    {"pipeline_depth": 3, "max_staleness": 3, "buffer_capacity": 8, "consume_chunk": 1},
    {"admission": "window", "max_staleness": 2},
    {"admission": "inflight", "max_staleness": 2},
    {"slots_per_replica": 1},
    {"sync_mode": "drain", "steps_per_sync": 2},
]


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
@pytest.mark.parametrize("gap", [None, 6.0])
def test_no_run_is_above_a_firm_bound(knobs, gap):
    workload = {"arrivals": {"gap": exponential(gap)}} if gap else {}
    what = scenario(knobs, random=True, workload=workload, steps=20)
    runs = [simulate_once(what, seed, warmup_steps=2) for seed in range(3)]
    found = agree(expected(what), runs)
    assert found.error == ""
    assert any(limit.firm for limit in found.expected.limits)
    kept = found.kept_groups_per_s.mean
    for limit in found.expected.limits:
        if limit.firm:
            assert kept <= allowed(limit, found.expected.stored_groups, 40) * 1.2, limit
    assert found.expected.groups_per_s <= found.expected.bound_groups_per_s


def test_a_world_of_constants_is_known_exactly_where_the_learner_is_the_limit():
    """One slot busy learner: the step takes what its pass takes, and nothing is left to chance."""
    train = {"learner": {"train": {"base_s": 40.0, "per_sample_s": 1.0}}}
    what = scenario({"pipeline_depth": 3, "max_staleness": 3, "buffer_capacity": 8}, world=train, steps=20)
    found = agree(expected(what), [simulate_once(what, 0, warmup_steps=5)])
    assert found.expected.narrowest.name == "learner"
    assert found.expected.bound_groups_per_s == 2 / 44.0
    assert found.kept_groups_per_s.mean == pytest.approx(2 / 44.0, rel=1e-3)
    assert abs(found.difference) < 0.1


def test_littles_law_gives_the_time_of_an_episode():
    what = scenario({"pipeline_depth": 0, "max_staleness": 0}, steps=20)
    found = agree(expected(what), [simulate_once(what, 0)])
    alone = found.expected.episode_s
    assert alone == pytest.approx(1.0 + 2 * (0.1 + 0.2 + 2.0) + 1.0 + 0.5)
    assert found.episode_s == pytest.approx(alone, rel=0.05)


def test_a_run_above_a_firm_bound_is_an_error():
    """The bound of a world whose learner is ten times slower, against runs of the quick one."""
    quick = scenario(random=True, steps=20)
    slow = scenario(random=True, steps=20, world={"learner": {"train": {"base_s": 60.0}}})
    runs = [simulate_once(quick, seed, warmup_steps=2) for seed in range(5)]
    found = agree(expected(slow), runs)
    assert "above the firm bound" in found.error
    assert "learner" in found.error
    assert agree(expected(quick), runs).error == ""


def test_far_from_the_expectation_without_a_reason_is_a_warning():
    what = scenario(random=True, steps=20)
    runs = [simulate_once(what, seed, warmup_steps=2) for seed in range(2)]
    honest = expected(what)
    assert agree(honest, runs).warning == ""
    wrong = dataclasses.replace(honest, groups_per_s=honest.groups_per_s * 4)
    assert "fewer groups" in agree(wrong, runs).warning
    assert agree(dataclasses.replace(wrong, left_out=("outages",)), runs).warning == "", "there is a reason"
    short = [simulate_once(what, 0, learner_steps=5)]
    assert any("5 learner steps" in reason for reason in agree(honest, short).reasons)
    assert BAND > 0.08


def test_what_the_closed_forms_leave_out_is_said():
    what = scenario(
        {"overprovision_members": 1, "eval_interval": 2},
        random=True,
        tool={"infra_failure": 0.1},
        workload={"turns": geometric(2.0, 4)},
    )
    said = expected(what).left_out
    assert {"failures and their retries", "members that are started beyond those needed", "evaluation"} <= set(said)
    assert not any(limit.firm for limit in expected(what).limits if limit.name == "tool workers")


def test_the_event_loop_is_predicted():
    costs = {"host": {"per_pass_s": 0.0, "per_step_s": 0.01}}
    what = scenario(random=True, steps=20, world=costs)
    found = agree(expected(what), [simulate_once(what, seed) for seed in range(2)])
    assert found.loop_utilisation > 0.02
    assert found.expected.loop_utilisation == pytest.approx(found.loop_utilisation, rel=0.4)


def test_a_closed_network_without_queues_is_littles_law():
    assert closed_network(5, [], 10.0) == 0.5
    assert closed_network(1, [2.0, 3.0], 5.0) == pytest.approx(0.1)
    assert closed_network(1000, [2.0, 3.0], 5.0) == pytest.approx(1 / 3.0, rel=1e-2)
    assert closed_network(3, [], 0.0) == math.inf


def test_simulate_shows_what_was_expected(tmp_path, capsys):
    sets = ["pipeline.group_size=2", "pipeline.groups_per_step=2", "pipeline.max_inflight=8", "run.learner_steps=3"]
    words = ["simulate", str(SCENARIOS / "fully_async.toml"), *(f"--set={text}" for text in sets)]
    words += ["--replications", "2", "--workers", "1", "--out", str(tmp_path), "--html", str(tmp_path / "page.html")]
    assert call(words) == 0
    printed = capsys.readouterr().out
    assert "Expected by hand" in printed
    assert max(map(len, printed.splitlines())) <= 80
    data = json.loads((tmp_path / "simulate.json").read_text("utf-8"))
    assert data["expected"]["expected"]["limits"][0]["groups_per_s"] > 0
    assert data["expected"]["error"] == ""
    assert "Expected by hand" in (tmp_path / "page.html").read_text("utf-8")
    what = load(SCENARIOS / "fully_async.toml", overrides=sets)
    rows = agreement_rows(agree(expected(what), [simulate_once(what, 0)]))
    assert [label for label, _ in rows][:3] == ["at most", "expected", "simulated"]


def test_one_constant_task_is_served_at_its_own_pace():
    what = scenario(
        {"group_size": 1, "groups_per_step": 1, "max_inflight": 1},
        workload={"turns": count(1)},
        tool={"duration": constant(3.0)},
    )
    assert expected(what).narrowest.name in ("episodes in flight", "credit to run ahead")
