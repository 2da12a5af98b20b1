"""Where an episode's time goes, against what the slots did."""

from __future__ import annotations

import pytest

from harness.analysis.episode_time import episode_time_ns
from harness.core.lanes import State
from harness.run import load, simulate_once
from harness.tuning.measured import measure
from tests.scenario.test_shipped import FOLDER


def test_the_states_add_up_to_the_time_that_slots_were_taken():
    scenario = load(FOLDER / "one_step_async.toml", overrides=["run.learner_steps=4"])
    reports = []
    summary = simulate_once(scenario, 3, at_end=reports.append)
    lanes = [lane for lane in reports[0].lanes if lane.role == "rollout"]
    taken = sum(
        sum(ns for state, ns in enumerate(reports[0].lane_ns[lane.name]) if state not in (State.NO_WORK, State.GATED))
        for lane in lanes
    )
    assert sum(summary.episode_ns.values()) == taken > 0
    assert set(summary.episode_ns) >= {"generate", "tool_exec", "env_reset", "reward"}
    mean_s = measure([summary]).episode_s
    assert sum(mean_s.values()) == pytest.approx(taken / 1e9 / summary.episodes)


def test_idle_slots_and_other_roles_are_left_out():
    class Lane:
        def __init__(self, name, role):
            self.name, self.role = name, role

    totals = [0] * len(State)
    totals[State.GATED], totals[State.NO_WORK], totals[State.TOOL_EXEC] = 5, 7, 11
    lanes = [Lane("slot/0", "rollout"), Lane("learner", "learner")]
    assert episode_time_ns(lanes, {"slot/0": totals, "learner": totals}) == {"tool_exec": 11}
