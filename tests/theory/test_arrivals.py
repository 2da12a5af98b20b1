"""Tasks that come from outside: when they come, who is turned away, and what a run that waits for them says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_world import S, constant, count, exponential, play, scenario

from harness.core.errors import ConfigError
from harness.core.events import EventKind
from harness.core.work import WorkKind
from harness.engines import virtual
from harness.run import hardware, load

SCENARIO = Path(__file__).parents[2] / "scenarios" / "fully_async.toml"
AHEAD = {"pipeline_depth": 8, "max_staleness": 8, "buffer_capacity": 64, "groups_per_step": 4}


def open_world(gap, *, waiting_max=None, knobs=None, **changes):
    arrivals = {"gap": gap} if waiting_max is None else {"gap": gap, "waiting_max": waiting_max}
    return scenario(AHEAD | (knobs or {}), workload={"arrivals": arrivals}, **changes)


def test_tasks_come_when_they_come_and_start_at_once():
    played = play(open_world(constant(30.0), knobs={"group_size": 1}))
    came = [event[0] for event in played.of(EventKind.ARRIVAL)]
    assert came[:4] == [30 * S, 60 * S, 90 * S, 120 * S]
    assert [event[0] for event in played.of(EventKind.GROUP_ADMIT)] == came
    idle = played.summary.chip_ns
    assert idle["idle:no_task"] > idle.get("idle:admission", 0), "between tasks nothing can be done"


@pytest.mark.parametrize("seed", range(3))
def test_no_knob_changes_when_tasks_come(seed):
    def instants(**knobs):
        played = play(open_world(exponential(5.0), knobs=knobs, random=True), seed)
        return [event[0] for event in played.of(EventKind.ARRIVAL)]

    few, many = instants(max_inflight=2), instants(max_inflight=40, overprovision_members=1, tool_workers=1)
    shared = min(len(few), len(many))
    assert shared > 8
    assert few[:shared] == many[:shared]


@pytest.mark.parametrize("seed", range(3))
def test_who_finds_no_place_is_turned_away_and_nobody_is_lost(seed):
    """arrived = turned away + waiting + admitted, at every event."""
    played = play(open_world(exponential(1.0), waiting_max=2, knobs={"max_inflight": 4}, random=True), seed)
    admitted = arrived = refused = 0
    for event in played.events:
        admitted += event[1] == EventKind.GROUP_ADMIT
        if event[1] == EventKind.ARRIVAL:
            arrived, refused = arrived + 1, refused + event[4]
            assert event[2] == arrived - 1
            assert 0 <= event[3] <= 2
            assert arrived == admitted + event[3] + refused
    assert refused > 0
    assert (arrived, refused) == (played.pipeline.prompts.arrived, played.pipeline.prompts.turned_away)


def test_both_engines_see_the_same():
    what = open_world(exponential(3.0), waiting_max=2, knobs={"max_inflight": 3}, random=True)
    assert play(what, 1).all_events == play(what, 1, engine=virtual.run).all_events


def test_a_resumed_run_goes_on_with_those_who_wait():
    states = []

    def made(pipeline):
        pipeline.learner.capture = lambda: states.append(pipeline.state()) or states[-1]

    what = open_world(
        exponential(0.5), knobs={"max_inflight": 4, "checkpoint_interval": 2}, random=True,
        world={"checkpoint": {"state_bytes": 1, "save": {"base_s": 0.1, "bytes_per_s": 1e9}}},
    )  # fmt: skip
    play(what, 2, made=made)
    state = states[0]
    assert state.source["waiting"] > 0
    again = play(what, 2, resume=state)
    first = again.of(EventKind.ARRIVAL)[0]
    assert first[2] == state.source["arrived"], "the stream goes on where it was"
    assert again.of(EventKind.STEP)[0][2] == state.t + 1


def test_without_a_stream_nothing_arrives():
    what = scenario(workload={"turns": count(1)})
    assert hardware(what).arrivals is False
    played = play(what)
    assert played.pipeline.prompts is None
    assert not played.of(EventKind.ARRIVAL)
    assert not played.works(WorkKind.ARRIVE)


def test_a_stream_without_gaps_is_refused():
    with pytest.raises(ConfigError, match="mean gap is 0 s"):
        load(SCENARIO, overrides=['workload.arrivals={gap={law="constant",value_s=0.0}}'])
