"""A run that is cut off anywhere leaves every sandbox closed once, every permit back and every account held or settled.

`play` checks that of every run.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import play, scenario

from harness.engines import sim, virtual

BUSY = {
    "group_size": 3,
    "overprovision_members": 1,
    "overprovision_groups": 1,
    "env_workers": 5,
    "tool_workers": 2,
    "reward_workers": 1,
    "slots_per_replica": 3,
    "max_inflight": 8,
    "eval_interval": 1,
    "checkpoint_interval": 2,
    "deadlines": {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0},
}


def busy(sync_mode):
    world = {"inference": {"replicas": 2}, "environments": {"reset_hang": 0.05, "reset_infra_failure": 0.1}}
    tool = {"hang": 0.05, "infra_failure": 0.1}
    return scenario(BUSY | {"sync_mode": sync_mode}, random=True, world=world, tool=tool, steps=3)


@pytest.mark.parametrize("sync_mode", ["drain", "drain_episodes", "abort_resume", "keep"])
def test_cut_off_at_any_event(sync_mode):
    what = busy(sync_mode)
    total = len(play(what, 1).events)
    for event in range(1, total, 23):
        play(what, 1, cut_at_event=event)


def test_cut_off_where_everything_is_tied():
    """All instants lie on a grid of 0.1 s, so that a replica stops in the very instant in which tools and resets end."""
    knobs = {"env_workers": 5, "tool_workers": 3, "slots_per_replica": 3, "overprovision_members": 1, "max_inflight": 9}
    what = scenario({**knobs, "sync_mode": "keep"}, steps=2)
    total = len(play(what, checks=False).events)
    for event in range(1, total, 2):
        play(what, cut_at_event=event)


def test_cut_off_at_any_event_on_real_trio():
    what = busy("abort_resume")
    total = len(play(what, 2).events)
    for event in range(7, total, 61):
        play(what, 2, engine=virtual.run, cut_at_event=event)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(what=scenarios(), seed=st.integers(0, 100), instant_ns=st.integers(0, 40_000_000_000))
def test_cut_off_at_any_instant(what, seed, instant_ns):
    assume(what is not None)

    async def interrupt(rt, scope):
        await rt.sleep(instant_ns)
        scope.cancel()

    play(what, seed, engine=sim.run, interrupt=interrupt)


@pytest.mark.parametrize("steps", [1, 3])
def test_nothing_is_cut_when_the_run_ends_first(steps):
    played = play(scenario(steps=steps), cut_at_event=10**9)
    assert played.summary.learner_steps == steps
