"""Batch-level stepping through the real actors: turns begin together, and everything else is as without it."""

from __future__ import annotations

import pytest
from tiny_world import S, constant, count, exponential, play, scenario

from harness.core.events import EventKind, first_difference
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.engines import virtual
from pipeline.data import MEMBERS

SYNCHRONOUS = {"max_staleness": 0, "pipeline_depth": 0, "group_size": 4, "stepping": "batch", "decode_chunk_steps": 100}
ONE_ENGINE_EACH = {"inference": {"replicas": 8, "prefill": {"base_s": 0.0}}}


def tool_starts(played):
    """Instants at which some episode called a tool, and how many did."""
    starts = [event[0] for event in played.events if event[1] == EventKind.WORK_START and event[3] == WorkKind.TOOL_CALL]
    return {at: starts.count(at) for at in starts}


def test_all_turns_of_a_batch_begin_in_one_instant():
    what = scenario(
        SYNCHRONOUS, world=ONE_ENGINE_EACH, workload={"turns": count(3)}, tool={"duration": exponential(2.0)}, steps=2
    )
    assert list(tool_starts(play(what)).values()) == [8] * 6  # 2 batches of 8 episodes and 3 turns; generation takes the same
    apart = play(scenario({**SYNCHRONOUS, "stepping": "trajectory"}, world=ONE_ENGINE_EACH, workload={"turns": count(3)},
                          tool={"duration": exponential(2.0)}, steps=2))  # fmt: skip
    assert max(list(tool_starts(apart).values())[1:8]) < 8


def test_a_turn_takes_as_long_as_its_slowest_episode():
    changes = {"world": ONE_ENGINE_EACH, "workload": {"turns": count(3)}, "tool": {"duration": exponential(2.0)}, "steps": 3}
    together, apart = (play(scenario({**SYNCHRONOUS, "stepping": how}, **changes)) for how in ("batch", "trajectory"))
    calls = {}
    for kind in (EventKind.WORK_START, EventKind.WORK_END):
        for event in together.events:
            if event[1] == kind and event[3] == WorkKind.TOOL_CALL:
                calls.setdefault(kind, []).append(event[0])
    began = sorted(set(calls[EventKind.WORK_START]))
    ended = sorted(calls[EventKind.WORK_END])[7::8]  # the last of each eight
    generated_ns = round(20 * 0.01 * S)
    for turn in (0, 1, 3, 4):  # within a batch, the next call comes one generation after the slowest of the last turn
        assert began[turn + 1] - ended[turn] == generated_ns + 1  # a prefill that takes nothing takes a nanosecond
    assert together.report.end_ns > apart.report.end_ns
    waited = sum(spent[State.TURN_WAIT] for spent in together.report.lane_ns.values())
    assert waited > 0 == sum(spent[State.TURN_WAIT] for spent in apart.report.lane_ns.values())


def test_nothing_is_waited_for_where_all_turns_are_alike():
    ends = [
        play(scenario({**SYNCHRONOUS, "stepping": how}, world=ONE_ENGINE_EACH)).report.end_ns for how in ("batch", "trajectory")
    ]
    assert ends[0] == ends[1]


TROUBLE = {
    "world": {
        "environments": {"reset_infra_failure": 0.1, "reset_hang": 0.05, "reset": exponential(1.0)},
        "scoring": {"failure": 0.1},
    },
    "tool": {"failure": 0.05, "infra_failure": 0.1, "hang": 0.05, "duration": exponential(2.0)},
}
LIMITS = {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0}


@pytest.mark.parametrize("pools", [{}, {"env_workers": 3, "tool_workers": 1, "max_inflight": 5}], ids=["ample", "scarce"])
@pytest.mark.parametrize("sync_mode", ["keep", "drain", "drain_episodes", "abort_resume"])
def test_failures_hangs_and_surplus_never_hold_the_others_for_ever(pools, sync_mode):
    knobs = {"stepping": "batch", "sync_mode": sync_mode, "overprovision_members": 1, "deadlines": LIMITS, **pools}
    what = scenario(knobs, **TROUBLE, random=True, steps=6)
    on_sim, on_trio = (play(what, 3, **options).all_events for options in ({}, {"engine": virtual.run, "checks": False}))
    assert first_difference(on_sim, on_trio) is None


def test_an_episode_that_runs_out_of_time_at_the_barrier_leaves_it():
    """One tool call hangs for longer than the others' episodes may last; they end, and the run goes on."""
    knobs = {"stepping": "batch", "retry_infra": 0, "deadlines": {"tool_s": 40.0, "step_s": 40.0, "generation_s": 5.0,
             "build_s": 5.0, "reset_s": 5.0, "reward_s": 5.0, "episode_s": 40.0}}  # fmt: skip
    what = scenario(
        knobs, tool={"hang": 0.1}, steps=4, workload={"turns": count(4)}, world={"scoring": {"duration": constant(0.1)}}
    )
    played = play(what, 1)
    assert played.report.versions[0] == 4


def test_a_held_group_gives_its_places_back_together():
    """With room for one group of 4, the next group starts when the slowest member has ended, and not before."""
    knobs = {"group_size": 4, "max_inflight": 4, "start_unit": "held_group", "stepping": "trajectory"}
    what = scenario(knobs, tool={"duration": exponential(2.0)}, steps=3)
    played = play(what)
    starts = {event[3]: event[0] for event in played.of(EventKind.EPISODE_START)}
    for group, began in starts.items():
        before = [event[0] for event in played.of(EventKind.EPISODE_END) if event[2] // MEMBERS == group - 1]
        assert group == 0 or (before and began >= max(before))
