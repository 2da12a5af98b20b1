"""The shipped scenarios: they load, say what they ask, and hold the published figures that they name."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from harness.costs.draws import HANG_NS
from harness.costs.step_time import Chip, ServingRow, Transformer, fit_step_time
from harness.costs.workload import WorkloadModel
from harness.scenario.load import dump, load, parse
from pipeline.config import PipelineConfig

FOLDER = Path(__file__).parents[2] / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))


def shipped(name):
    return load(FOLDER / f"{name}.toml", PipelineConfig)


def test_these_are_shipped():
    assert {"synchronous", "one_step_async", "fully_async", "coding_agent"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_is_whole(name):
    scenario = shipped(name)
    assert scenario.question.endswith("?")
    assert scenario.pipeline.notices() == ()
    assert scenario.run.learner_steps >= 20
    assert parse(dump(scenario), PipelineConfig) == scenario


@pytest.mark.parametrize("name", NAMES)
def test_deadlines_cut_nothing_but_hangs(name):
    scenario = shipped(name)
    limits = scenario.pipeline.deadlines
    drawn = WorkloadModel.of(scenario, 1)
    plans = [drawn.plan(task, 0, member) for task in range(300) for member in range(2)]
    calls = [ns / 1e9 for plan in plans for ns in plan.tool_ns if ns < HANG_NS]
    assert max(calls) < limits.tool_s
    assert max(plan.reset_ns / 1e9 for plan in plans if plan.reset_ns < HANG_NS) < limits.reset_s
    assert max(plan.reward_ns / 1e9 for plan in plans) < limits.reward_s
    assert max(plan.close_ns / 1e9 for plan in plans) < limits.close_s


def test_the_coding_agent_is_of_honest_size():
    scenario = shipped("coding_agent")
    assert scenario.pipeline.groups_per_step >= 32
    assert scenario.pipeline.group_size >= 8
    drawn = WorkloadModel.of(scenario, 0)
    plans = [drawn.plan(task, 0, 0) for task in range(scenario.workload.tasks)]
    assert fmean(plan.turns for plan in plans) >= 15


def test_set_up_times_are_the_published_ones():
    """Terminal-Bench leaderboard, 2,371 trials: p50 6.6, p75 28.6, p90 75.9 s."""
    law = shipped("coding_agent").world.environments.reset
    assert [law.quantile(p) for p in (0.5, 0.75, 0.9)] == pytest.approx([6.6, 28.6, 75.9], rel=0.1)
    assert any(part.of.mu == 2.36 and part.of.sigma == 1.45 for part in law.parts)


def test_agent_runs_are_the_published_ones():
    """Terminal-Bench leaderboard: mean 366.9 s, CV 0.87, p50 266.5, p90 660; 23.8 % end at a time limit."""
    law = shipped("coding_agent").workload.agent_run.duration
    assert [law.quantile(0.5), law.quantile(0.9)] == pytest.approx([266.5, 660], rel=0.1)
    assert law.expected_s() == pytest.approx(366.9, rel=0.05)
    assert law.cv == pytest.approx(0.87, rel=0.05)
    assert sum(atom.weight for atom in law.atoms) == pytest.approx(0.238)


def test_step_times_are_fitted_to_the_published_row():
    scenario = shipped("coding_agent")
    row = ServingRow(chips=8, concurrency=64, input_tokens=1000, output_tokens=1000, time_per_output_token_s=0.02535)
    model = Transformer(parameters=70.6e9, layers=80, kv_heads=8, head_dim=128)
    decode, prefill = fit_step_time(row, model, Chip(flops_per_s=918e12, hbm_bytes_per_s=1638e9), prefill_efficiency=0.503)
    given = scenario.world.inference
    for name in ("base_s", "weights_s", "per_sequence_s", "per_kv_token_s"):
        assert getattr(given.decode, name) == pytest.approx(getattr(decode, name), rel=1e-4)
    assert given.prefill.per_token_s == pytest.approx(prefill.per_token_s, rel=1e-4)
    assert scenario.world.weights.weights_bytes == model.weights_bytes
