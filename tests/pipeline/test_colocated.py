"""Learner and replicas on the same chips: no standstill, every chip-second in one class, and turns cost what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import S, play, scenario

from harness.core.errors import ConfigError
from harness.core.events import EventKind, describe, first_difference
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.engines import virtual
from harness.live_run import run_live
from harness.run import hardware, load, notices
from harness.scenario.inference import Server
from harness.scenario.schema import World

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SWITCH = {"to_training": {"base_s": 0.75}, "to_rollout": {"base_s": 0.25}}
PREEMPTION = {"learner": {"law": "constant", "value_s": 100.0}, "provision": {"law": "constant", "value_s": 1.0}}
TURNS = {"law": "constant", "value": 4}
MODES = ("drain", "drain_episodes", "abort_resume", "keep")


def shared(what, switch=SWITCH):
    """The scenario with learner and replicas on the same chips."""
    world = what.world.model_dump()
    world["learner"]["chips"] = what.world.inference.replicas * what.world.inference.chips_per_replica
    world["switch"] = switch
    pipeline = what.pipeline.with_changes(placement="colocated")
    return what.model_copy(update={"world": World.model_validate(world), "pipeline": pipeline})


def small(knobs=None, *, switch=SWITCH, random=False, steps=4, **changes):
    return shared(scenario(knobs, random=random, steps=steps, **changes), switch)


def check_phases(played):
    """Phases take turns; nothing is decoded while the learner has the chips, and nothing trained while it has not."""
    training, last = 0, -1
    busy = {"engine": 0, "learner": 0}
    engine, learner = {WorkKind.PREFILL, WorkKind.DECODE, WorkKind.PUBLISH}, {WorkKind.TRAIN_STEP, WorkKind.LOG_PROBS}
    for event in played.events:
        _, kind, entity, what, *_ = event
        if kind == EventKind.PHASE:
            assert what == 1 - training, "phases take turns"
            assert busy == {"engine": 0, "learner": 0}, "nobody works while chips change hands"
            training, last = what, entity
        elif kind in (EventKind.WORK_START, EventKind.WORK_END):
            step = 1 if kind == EventKind.WORK_START else -1
            if what in engine:
                busy["engine"] += step
                assert not training, f"{describe(event)} while the learner has the chips"
            elif what in learner:
                busy["learner"] += step
                assert training, f"{describe(event)} while the replicas have the chips"
    assert last >= 0 or not played.of(EventKind.STEP)


def check_chips(played):
    """Every chip lane is there all the time, and is in the state of the role that has it."""
    report, window = played.report, played.report.end_ns - played.report.start_ns
    names = [lane.name for lane in report.lanes if lane.chips]
    assert names == [f"chips/{i}" for i in range(len(played.pipeline.replicas))]
    for name in names:
        assert sum(report.lane_ns[name]) == window
    learner = report.lane_ns["learner"]
    for state in (State.TRAIN, State.LOG_PROBS, State.CHECKPOINT):
        assert all(report.lane_ns[name][state] == learner[state] for name in names)
    for i, name in enumerate(names):
        for state in (State.GENERATE, State.PREFILL, State.REPREFILL, State.WAIT_TASK, State.SYNC_RECV):
            assert report.lane_ns[name][state] == report.lane_ns[f"replica/{i}"][state]
    chips = played.scenario.world.inference.chips_per_replica * len(names)
    assert sum(played.summary.chip_ns.values()) == window * chips == window * played.summary.chips


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_both_engines_leave_the_same_log(mode, replicas):
    what = small({"sync_mode": mode}, random=True, world={"inference": {"replicas": replicas, "chips_per_replica": 2}})
    played = play(what, 3)
    on_trio = play(what, 3, engine=virtual.run, checks=False)
    at = first_difference(played.all_events, on_trio.all_events)
    assert at is None, f"event {at}: {describe(played.all_events[at])} on sim, {describe(on_trio.all_events[at])} on virtual"
    assert played.of(EventKind.PHASE)
    check_phases(played)
    check_chips(played)


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(what=scenarios(most_steps=5), seed=st.integers(0, 1000), switch_s=st.sampled_from((0.0, 0.5)), server=st.booleans())
def test_whatever_is_accepted_makes_its_steps(what, seed, switch_s, server):
    assume(what is not None)
    if server:
        inference = what.world.inference.model_copy(update={"server": Server(slots=3)})
        what = what.model_copy(update={"world": what.world.model_copy(update={"inference": inference})})
    what = shared(what, {"to_training": {"base_s": switch_s}, "to_rollout": {"base_s": switch_s}})
    played = play(what, seed, checks=False)
    assert len(played.of(EventKind.STEP)) == what.run.learner_steps
    check_phases(played)
    check_chips(played)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("switch_s", [0.0, 0.5])
def test_servers_that_schedule_themselves_share_their_chips_too(mode, switch_s):
    switch = {"to_training": {"base_s": switch_s}, "to_rollout": {"base_s": switch_s}}
    world = {"inference": {"replicas": 2, "server": {"slots": 3}}}
    knobs = {"sync_mode": mode, "eval_interval": 2, "overprovision_members": 1}
    what = small(knobs, switch=switch, random=True, steps=6, world=world)
    for seed in range(3):
        played = play(what, seed)
        on_trio = play(what, seed, engine=virtual.run, checks=False)
        assert first_difference(played.all_events, on_trio.all_events) is None
        assert played.of(EventKind.PHASE)
        check_phases(played)
        check_chips(played)


def test_what_leaves_the_chips_is_computed_again():
    """A prefix cache comes back with a mode that keeps requests, and is lost with the others: they prefill more."""
    shares = {}
    for mode in ("keep", "drain"):
        cache = {"on_swap": "keep"}
        knobs = {"sync_mode": mode, "max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8, "max_inflight": 16}
        what = small(knobs, world={"inference": {"prefix_cache": cache}}, random=True, steps=12, workload={"turns": TURNS})
        played = play(what, 2)
        replica = played.pipeline.replicas[0]
        shares[mode] = replica.prefix.hit_tokens / replica.prefix.asked_tokens
    assert shares["drain"] < shares["keep"] - 0.05


def test_turns_by_hand():
    """One group of one episode a step, all constant: reset 1, prefill 0.1, decode 0.2, score 1, train 1, publish free."""
    knobs = {
        "group_size": 1, "groups_per_step": 1, "max_staleness": 0, "pipeline_depth": 0, "max_inflight": 1, "buffer_capacity": 1,
        "sync_mode": "drain",
    }  # fmt: skip
    what = small(knobs, workload={"turns": {"law": "constant", "value": 1}}, steps=3)
    played = play(what)
    turn_s = played.of(EventKind.STEP, entity=1)[0][0] / S
    assert turn_s == pytest.approx(1.0 + 0.1 + 0.2 + 2.0 + 1.0 + 0.5 + 0.75 + 1.0, abs=1e-9)  # close 0.5, switch 0.75, train 1
    times = [event[0] / S for event in played.of(EventKind.STEP)]
    assert times[1] - times[0] == pytest.approx(turn_s + 0.25, abs=1e-9)  # and back
    overhead = played.summary.chip_ns["overhead:switch"] / S
    assert overhead == pytest.approx(3 * (0.75 + 0.25), abs=1e-9)
    assert "overhead:weight_sync" not in played.summary.chip_ns  # the new weights are there already
    check_chips(played)


def test_a_new_layout_costs_what_is_said():
    switch = SWITCH | {"reshard": {"moved_bytes": 500, "bytes_per_s": 1000.0}}
    played = play(small(switch=switch, steps=4))
    receives = [event for event in played.works(WorkKind.PUBLISH) if event[0] <= played.report.end_ns]
    assert receives
    installs = len(played.of(EventKind.SYNC_INSTALL))
    assert played.report.lane_ns["chips/0"][State.SYNC_RECV] == pytest.approx(installs * S // 2, abs=S // 2)


def test_roles_stand_still_where_no_chip_does():
    """Free switches, tools that take no time: each role is idle while the other works, and the chips never are."""
    none = {"to_training": {}, "to_rollout": {}}
    world = {"environments": {"reset": {"law": "constant", "value_s": 0.0}, "close": {"law": "constant", "value_s": 0.0}}}
    world["scoring"] = {"duration": {"law": "constant", "value_s": 0.0}}
    played = play(small(switch=none, world=world, tool={"duration": {"law": "constant", "value_s": 0.0}}, steps=10))
    summary = played.summary
    assert summary.share("idle") < 1e-6
    assert min(summary.role_bubbles.values()) > 0.1
    assert sum(summary.role_bubbles.values()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("steps_per_sync", [1, 2])
def test_evaluations_at_both_ends_have_the_chips(steps_per_sync):
    knobs = {"steps_per_sync": steps_per_sync, "max_staleness": 2, "pipeline_depth": 2, "buffer_capacity": 6}
    played = play(small(knobs, random=True, steps=3), ends=True)
    assert len(played.of(EventKind.EVALUATED)) == 2
    check_phases(played)
    check_chips(played)


def test_disaggregated_runs_have_no_phases():
    what = scenario({"sync_mode": "keep"}, random=True)
    world = World.model_validate(what.world.model_dump() | {"switch": SWITCH})
    with_table = what.model_copy(update={"world": world})
    assert play(what, 1).all_events == play(with_table, 1).all_events


def test_a_live_run_says_that_it_cannot():
    overrides = ['pipeline.placement="colocated"', "world.switch.to_training.base_s=1", "world.switch.to_rollout.base_s=1"]
    with pytest.raises(ConfigError) as refusal:
        run_live(load(SCENARIOS / "cpu_live.toml", overrides=overrides))
    assert refusal.value.field == "pipeline.placement"


def test_tables_and_chunks_that_matter_are_said():
    what = scenario()
    world = World.model_validate(what.world.model_dump() | {"switch": SWITCH})
    assert any("[world.switch]" in note for note in notices(what.model_copy(update={"world": world})))
    assert any("consume_chunk" in note for note in notices(small({"consume_chunk": 1})))


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"learner": {"chips": 3}}, "world.learner.chips", "the chips of all replicas"),
        ({"switch": None}, "world.switch", "is missing"),
        ({"preemption": PREEMPTION}, "world.preemption", "not modelled"),
    ],
)
def test_a_world_that_cannot_share_is_refused(change, field, words):
    what = small()
    data = what.world.model_dump()
    for key, value in change.items():
        data[key] = (data[key] or {}) | value if isinstance(value, dict) else value
    what = what.model_copy(update={"world": World.model_validate(data)})
    with pytest.raises(ConfigError) as refusal:
        hardware(what)
    assert refusal.value.field == field
    assert words in str(refusal.value)
