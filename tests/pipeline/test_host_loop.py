"""The event loop under the whole pipeline: charged alike on both virtual engines, held by rewards that compute on it."""

from __future__ import annotations

import pytest
from tiny_world import play, scenario

from harness.core.events import EventKind, MemoryRecorder, describe, first_difference
from harness.core.host import HostCosts
from harness.engines import sim, virtual
from harness.run import simulate_once

S = 1_000_000_000
SLOW = HostCosts(pass_ns=30_000_000, step_ns=7_000_000)
"""A loop slow enough that much of a second's work queues for it."""

TROUBLE = {
    "world": {
        "inference": {"replicas": 2},
        "environments": {"reset_infra_failure": 0.1, "reset_hang": 0.05},
        "scoring": {"failure": 0.1},
    },
    "tool": {"failure": 0.05, "infra_failure": 0.1, "hang": 0.05},
}
LIMITS = {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0}
SYNCHRONOUS = {"max_staleness": 0, "pipeline_depth": 0, "max_inflight": 4}
FREE = {"host": {"per_pass_s": 0.0, "per_step_s": 0.0}}


@pytest.mark.parametrize("runs_on", ["workers", "loop"])
@pytest.mark.parametrize("sync_mode", ["keep", "drain", "abort_resume"])
def test_both_engines_charge_a_pipeline_alike_and_every_law_holds(sync_mode, runs_on):
    trouble = TROUBLE | {"world": {**TROUBLE["world"], "scoring": {"failure": 0.1, "runs_on": runs_on}}}
    what = scenario({"sync_mode": sync_mode, "deadlines": LIMITS}, random=True, steps=3, **trouble)
    on_sim = play(what, 5, host=SLOW)
    on_trio = play(what, 5, engine=virtual.run, checks=False, host=SLOW)
    at = first_difference(on_sim.all_events, on_trio.all_events)
    assert at is None, f"{describe(on_sim.all_events[at])} on sim, {describe(on_trio.all_events[at])} on virtual"
    assert on_sim.summary.utilisation == on_trio.summary.utilisation
    assert on_sim.summary.utilisation["host loop"] > 0.05
    assert on_sim.all_events != play(what, 5, checks=False).all_events


def steps_of(world, **options):
    """Instants at which the learner's steps ended, and the run."""
    played = play(scenario(SYNCHRONOUS, world=world, steps=4), 0, **options)
    return [event[0] for event in played.events if event[1] == EventKind.STEP], played


@pytest.mark.parametrize("engine", [sim.run, virtual.run], ids=["sim", "virtual"])
def test_rewards_on_the_loop_are_computed_one_after_another(engine):
    """Four episodes of a synchronous step end together. On workers their rewards, of 1 s, take 1 s; on the loop 4 s."""
    on_workers, free = steps_of({}, engine=engine)
    on_loop, held = steps_of({"scoring": {"runs_on": "loop"}}, engine=engine)
    assert [late - early for early, late in zip(on_workers, on_loop, strict=True)] == [3 * S, 6 * S, 9 * S, 12 * S]
    assert free.summary.utilisation["host loop"] == 0.0
    assert held.summary.utilisation["host loop"] == pytest.approx(16 * S / held.report.end_ns)


def test_every_simulated_run_is_charged():
    """As `[world.host]` says; with costs of nothing the log is that of an engine that charges nothing."""
    what = scenario(random=True, steps=3)
    default, free = simulate_once(what, 1), simulate_once(scenario(random=True, steps=3, world=FREE), 1)
    assert 0 < default.utilisation["host loop"] < 0.05
    assert free.utilisation["host loop"] == 0.0
    logs = [MemoryRecorder(), MemoryRecorder()]
    simulate_once(scenario(random=True, steps=3, world=FREE), 1, recorder=logs[0])
    simulate_once(what, 1, recorder=logs[1], engine=lambda *args, host, **options: sim.run(*args, **options))
    assert logs[0].events == logs[1].events


def test_a_crowded_loop_is_warned_of():
    crowded = scenario(random=True, steps=3, world={"host": {"per_step_s": 0.05}})
    summary = simulate_once(crowded, 1)
    assert summary.utilisation["host loop"] > 0.4
    assert any("event loop was busy for more than 40%" in warning for warning in summary.warnings)
    assert not any("event loop" in warning for warning in simulate_once(scenario(random=True, steps=3), 1).warnings)
