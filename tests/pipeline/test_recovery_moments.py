"""Chips are lost at every event of a short run, and in worlds in which they hardly come back; books and input by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lossy_world import LEARNER, NEVER, Taken, lossy
from tiny_world import constant, play, scenario

from harness.core.errors import ActorError, ConfigError
from harness.core.events import EventKind, MemoryRecorder
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.run import first_failure, load, notices, simulate_once
from harness.terminal import loss_rows
from harness.tuning.measured import measure

REPLICA = 1
SHORT = {"checkpoint_interval": 1, "eval_interval": 2, "sync_mode": "abort_resume", "sync_rollout": "rolling"}
TWO = {"inference": {"replicas": 2}}


def short(**changes):
    return lossy(scenario(SHORT, random=True, world=TWO, steps=3), **changes)


def taken_at(what, slices, at_event, taken, times=1):
    """The run in which slices are taken away at the n-th event."""

    def take(pipeline):
        for _ in range(times):
            for slice_ in slices:
                taken.take(slice_)

    return play(what, 1, performers=taken.performers, at_event=(at_event, take), checks=at_event % 10 == 0)


@pytest.mark.parametrize("slices", [(LEARNER,), (REPLICA,), (LEARNER, REPLICA), (REPLICA, REPLICA + 1)])
def test_lost_at_any_event(slices):
    what = short(provision=constant(0.7))
    events = len(play(what, 1, checks=False).events)
    assert events > 300
    for at_event in range(1, events, 13):
        played = taken_at(what, slices, at_event, Taken())
        assert played.summary.learner_steps == 3
        assert len(played.of(EventKind.ROLLBACK)) == (LEARNER in slices)


@pytest.mark.parametrize("later_s", [0.0, 0.2, 0.9, 3.1, 6.0])
def test_lost_again_on_the_way_back(later_s):
    """At the instant of its return, while weights or the checkpoint are loaded, and soon after."""
    what = short(provision=constant(0.0))
    for at_event in range(60, 350, 57):
        played = taken_at(what, (LEARNER, REPLICA, REPLICA + 1), at_event, Taken(later_s), times=2)
        assert played.summary.learner_steps == 3
        assert len(played.of(EventKind.CAPACITY_LOST)) == 6


# By hand


def lost_at(at_s, **changes):
    """A world without chance whose learner is lost once."""
    taken = Taken()

    async def loss(rt, scope):
        await rt.sleep(round(at_s * 1e9))
        taken.take(LEARNER)

    what = lossy(scenario(steps=6), **({"provision": constant(5.0)} | changes))
    return play(what, interrupt=loss, performers=taken.performers), play(what)


@pytest.mark.parametrize("interval", [0, 1, 2, 4])
def test_what_is_lost_is_what_was_made_since_the_checkpoint(interval):
    lost, whole = lost_at(17.5, checkpoint_interval=interval)
    done = max(event[2] for event in whole.of(EventKind.STEP) if event[0] < 17.5e9)
    back = max([event[2] for event in whole.of(EventKind.CHECKPOINTED) if event[0] < 17.5e9], default=0)
    ((at, _, version, before, steps, *_),) = lost.of(EventKind.ROLLBACK)
    assert (version, before, steps) == (back, done, done - back)
    assert at == pytest.approx((17.5 + 5.0 + 3.001) * 1e9, abs=1e6)
    summary = lost.summary
    assert (summary.slice_losses, summary.rollbacks, summary.steps_lost) == (1, 1, done - back)
    assert summary.recovery_mean_s == pytest.approx(8.001, abs=1e-3)
    assert (summary.learner_steps, summary.groups) == (6, 12)
    learner = next(lane for lane in lost.report.lanes if lane.role == "learner")
    trained_ns = lost.report.lane_ns["learner"][State.TRAIN]
    assert trained_ns - lost.pipeline.tally.lost_learner_ns == 6 * 10**9
    assert learner.totals[State.RESTORE] == pytest.approx(3.001e9, abs=1e6)
    assert learner.totals[State.PROVISION] == 5 * 10**9
    split = summary.chip_ns
    assert split["overhead:restore"] == learner.totals[State.RESTORE]
    away = (State.DOWN, State.PROVISION)
    assert split["idle:down"] == sum(lane.totals[state] for lane in lost.report.lanes for state in away)
    episodes = sum(event[4] for event in lost.of(EventKind.STEP))
    assert lost.pipeline.accounts.settled[0] == episodes - 4 * (done - back) == 24  # B = G = 2


def test_a_loss_before_the_window_does_not_begin_it_anew():
    taken = Taken()
    what = lossy(scenario(steps=4), provision=constant(5.0))

    async def loss(rt, scope):
        await rt.sleep(round(17.5 * 1e9))
        taken.take(LEARNER)

    played = play(what, interrupt=loss, performers=taken.performers, warmup_steps=2)
    third = [event for event in played.of(EventKind.STEP) if event[2] == 2]
    assert played.report.start_ns == third[0][0] < played.of(EventKind.ROLLBACK)[0][0]
    assert (played.summary.learner_steps, played.summary.groups) == (4, 8)


def test_the_learner_compiles_at_the_start_and_after_a_loss():
    lost, _ = lost_at(17.5, world={"learner": {"chips": 1, "train": {"base_s": 1.0}, "compile_s": 4.0}})
    starts = lost.works(WorkKind.COMPILE)
    assert [event[0] for event in starts] == [0, lost.of(EventKind.ROLLBACK)[0][0]]
    assert lost.summary.chip_ns["overhead:compile"] == 8 * 10**9


def test_losses_do_not_depend_on_knobs_or_on_how_many_there_are():
    def losses(slice_, replicas, **knobs):
        law = {"law": "exponential", "mean_s": 20.0}
        base = scenario(steps=10, world={"inference": {"replicas": replicas}})
        played = play(lossy(base, replicas=law, learner=None, provision=constant(1.0), **knobs), 5)
        return [(event[3], event[0]) for event in played.of(EventKind.CAPACITY_LOST, entity=slice_)]

    one = losses(1, 1)
    for other in (losses(1, 3), losses(1, 1, overprovision_members=1, group_quorum=1), losses(1, 1, retry_infra=0)):
        shared = min(len(one), len(other))
        assert shared > 1
        assert other[:shared] == one[:shared]


# Worlds that lead nowhere


def end_of(what):
    with pytest.raises((ActorError, BaseExceptionGroup)) as ended:
        play(what)
    failure = ended.value
    failure = first_failure(failure) if isinstance(failure, BaseExceptionGroup) else failure
    assert isinstance(failure, ActorError)
    return str(failure)


def test_a_fleet_that_dies_faster_than_a_step_ends_with_a_name():
    said = end_of(lossy(scenario(), learner=constant(6.0), replicas=None, provision=constant(0.1)))
    assert "101 slices of chips were lost in a row since step 0" in said


def test_replicas_that_die_faster_than_they_come_back_end_with_a_name():
    said = end_of(lossy(scenario(), learner=None, replicas=constant(1.0), provision=constant(0.9), max_sim_s=1e6))
    assert "slices of chips were lost in a row since step 0" in said


@pytest.mark.parametrize(
    ("changes", "who"),
    [
        ({"replicas": None, "learner": constant(20.0)}, "1 learner lane(s) in provision"),
        ({"learner": None, "replicas": constant(5.0)}, "1 inference lane(s) in provision"),
    ],
)
def test_a_replacement_that_never_comes_is_named_at_the_limit(changes, who):
    said = end_of(lossy(scenario(steps=9), provision=constant(1e8), max_sim_s=900.0, **changes))
    assert "of 9 learner steps by then" in said
    assert who in said


# Bad input


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("world.preemption.replicas.mean_s=0.5", "world.preemption.replicas"),
        ("world.preemption.learner.mean_s=0.001", "world.preemption.learner"),
        ("world.preemption.replicas.mean_s=-1", "world.preemption.replicas"),
        ("world.preemption.replacements_at_once=0", "world.preemption.replacements_at_once"),
        ("world.preemption.provision.mu=inf", "world.preemption.provision"),
        ("world.preemption.zone=1", "world.preemption.zone"),
        ("world.checkpoint.restore.bytes_per_s=0", "world.checkpoint.restore.bytes_per_s"),
        ("world.learner.compile_s=-1", "world.learner.compile_s"),
        ("world.learner.compile_s=nan", "world.learner.compile_s"),
    ],
)
def test_what_cannot_be_is_refused_by_name(setting, field):
    with pytest.raises(ConfigError) as refusal:
        load("scenarios/spot_slices.toml", overrides=[setting])
    assert refusal.value.field.startswith(field)
    assert refusal.value.allowed or refusal.value.problem


def test_a_table_that_takes_nothing_away_is_refused():
    with pytest.raises(ConfigError, match="not which"):
        lossy(scenario(), learner=None, replicas=None)


def test_what_a_reader_must_know_is_said():
    said = " ".join(notices(lossy(scenario(), learner=NEVER, checkpoint_interval=0)))
    assert "every loss of the learner's chips goes back to the start" in said
    said = " ".join(notices(lossy(scenario(), learner=None, checkpoint_interval=1)))
    assert "world.checkpoint.restore has no effect" in said


def test_the_report_says_what_was_lost():
    lost, whole = lost_at(17.5, checkpoint_interval=0)
    measured = measure([lost.summary, replace(whole.summary, seed=1)])
    assert dict(loss_rows(measured)) == {
        "slices lost": "0.5 a replication, at work again 0.1 min later on average",
        "rollbacks": "0.5 a replication, which took back 1.5 learner steps",
    }
    assert loss_rows(measure([whole.summary])) == []


@pytest.mark.parametrize("name", ["slice 0", "slice 1"])
def test_whoever_watches_chips_is_missed(name):
    """Cancelled alone, it ends the run with its name; the whole run cancelled at any event leaves nothing behind."""
    what = short(provision=constant(0.7), learner=constant(19.0), replicas=constant(11.0))
    events = len(play(what, 1, checks=False).events)
    for at_event in range(60, events, 61):
        play(what, 1, checks=False, cut_at_event=at_event)
        with pytest.raises((ActorError, BaseExceptionGroup)) as ended:
            play(what, 1, checks=False, at_event=(at_event, lambda pipeline: pipeline.scopes[name].cancel()))
        failure = ended.value
        failure = first_failure(failure) if isinstance(failure, BaseExceptionGroup) else failure
        assert isinstance(failure, ActorError)
        assert (failure.actor, "cancelled alone" in str(failure)) == (name, True)


def test_a_step_that_was_lost_ends_when_it_is_made_for_good():
    what = lossy(scenario({"checkpoint_interval": 2}, steps=6), learner=constant(17.5), replicas=None)
    events = MemoryRecorder()
    summary = simulate_once(what, 1, recorder=events)
    ends = {event[2]: event[0] for event in events.events if event[1] == EventKind.STEP}
    assert summary.steps_lost > 0
    assert len(summary.step_ends_ns) == 6
    for step, end_ns in enumerate(summary.step_ends_ns, 1):
        assert 0 <= end_ns - ends[step] < 10**9  # its save included
