"""Slices of chips are lost, whatever the configuration and whenever:

- the run makes its steps or ends with a named stall, and every law that `play` checks holds: conservation of episodes, tokens
  and chip time, versions never ahead, the lag bound, no sandbox left open, no permit out;
- each task is trained once, or dropped once, or in one place at the end;
- a run whose learner is lost goes on as a process that is killed and resumed from its last checkpoint does;
- `sim` and `virtual` agree.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from lossy_world import LEARNER, Taken, lossy
from tiny_configs import scenarios
from tiny_world import constant, exponential, play

from harness.core.accounts import Fate
from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.work import Checkpoint, Watch, WorkKind
from harness.engines import virtual
from harness.run import first_failure
from pipeline.data import MEMBERS, Task

properties = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate)
)


def stalled(call):
    """The run, or the named stall that it ended with."""
    try:
        return call()
    except BaseExceptionGroup as group:
        failure = first_failure(group)
    except ActorError as alone:
        failure = alone
    said = str(failure)
    assert "slices of chips were lost in a row" in said or "learner steps by then" in said, said
    return None


WORLDS = {
    "what": scenarios(),
    "seed": st.integers(0, 1000),
    "learner": st.sampled_from((None, 30.0, 200.0)),
    "replicas": st.sampled_from((None, 10.0, 60.0)),
    "provision": st.sampled_from((0.0, 0.5, 10.0, 60.0)),
    "at_once": st.sampled_from((None, 1)),
    "interval": st.integers(0, 2),
}


def drawn(what, learner, replicas, provision, at_once, interval):
    assume(what is not None and (learner or replicas))
    return lossy(
        what,
        learner=exponential(learner) if learner else None,
        replicas=exponential(replicas) if replicas else None,
        provision=exponential(provision) if provision else constant(0.0),
        at_once=at_once,
        checkpoint_interval=interval,
        max_sim_s=2000.0,
    )


@settings(properties, max_examples=20)
@given(**WORLDS)
def test_chips_come_and_go_and_every_law_holds(what, seed, learner, replicas, provision, at_once, interval):
    what = drawn(what, learner, replicas, provision, at_once, interval)
    played = stalled(lambda: play(what, seed))
    if played is not None:
        assert played.summary.learner_steps == what.run.learner_steps
        away_and_back(played)


def away_and_back(played):
    """A slice is lost while it is there; it is replaced once for each loss, and works again at most once."""
    away, ordered = {}, 0
    limit = played.scenario.world.preemption.replacements_at_once or 1000
    for time_ns, kind, slice_, *fields in played.events:
        if kind == EventKind.CAPACITY_LOST:
            away.setdefault(slice_, time_ns)
        elif kind == EventKind.CAPACITY_BACK:
            assert fields[1] == time_ns - away.pop(slice_)
        elif kind in (EventKind.WORK_START, EventKind.WORK_END) and fields[0] == WorkKind.PROVISION:
            ordered += 1 if kind == EventKind.WORK_START else -1
            assert 0 <= ordered <= limit
    tally = played.pipeline.tally
    assert tally.losses == len(played.of(EventKind.CAPACITY_LOST))
    assert len(tally.recoveries_ns) == len(played.of(EventKind.CAPACITY_BACK))
    assert tally.rollbacks == len(played.of(EventKind.ROLLBACK))


@settings(properties, max_examples=5)
@given(**WORLDS)
def test_both_engines_agree(what, seed, learner, replicas, provision, at_once, interval):
    what = drawn(what, learner, replicas, provision, at_once, interval)
    ours = stalled(lambda: play(what, seed, checks=False))
    reference = stalled(lambda: play(what, seed, engine=virtual.run, checks=False))
    assert (ours is None) is (reference is None)
    if ours is not None:
        assert ours.all_events == reference.all_events


# Each task is used once


def places_of(events, last):
    """Tasks that were trained or dropped up to the capture of the last saved state, without what was taken back."""
    tasks, places, consumed = {}, Counter(), []
    captured, saved = Counter(), {0: Counter()}
    for _, kind, entity, *fields in events:
        if kind == EventKind.WORK_START and fields[0] == WorkKind.CHECKPOINT:
            captured = Counter(places)
            if entity == last:
                end = captured  # of the last time that it was saved
        elif kind == EventKind.CHECKPOINTED:
            saved[entity] = captured
        elif kind == EventKind.GROUP_ADMIT:
            tasks[entity] = Task(fields[0], fields[1])
        elif kind == EventKind.CONSUME:
            consumed.append(tasks[entity])
        elif kind == EventKind.STEP:
            places.update(consumed)
            consumed.clear()
        elif kind == EventKind.DROP and fields[0] != Fate.LOST:
            places[tasks[entity]] += 1
        elif kind == EventKind.ROLLBACK:
            places = Counter(saved[entity])
            consumed.clear()
    return end


@settings(properties, max_examples=12)
@given(
    what=scenarios(),
    seed=st.integers(0, 1000),
    learner=st.sampled_from((20.0, 60.0)),
    interval=st.integers(1, 3),
    arrivals=st.booleans(),
)
def test_each_task_is_trained_once_or_dropped_once_or_in_one_place(what, seed, learner, interval, arrivals):
    assume(what is not None)
    if arrivals:
        stream = {"gap": {"law": "exponential", "mean_s": 1.0}, "waiting_max": 6}
        workload = type(what.workload).model_validate(what.workload.model_dump(mode="json") | {"arrivals": stream})
        what = what.model_copy(update={"workload": workload})
    what = lossy(what, learner=exponential(learner), replicas=exponential(40.0), checkpoint_interval=interval, max_sim_s=2000.0)
    keeping = []

    def performers(world):
        keeping.append(Keeping(world.performers[Checkpoint]))
        return {Checkpoint: keeping[0]}

    played = stalled(lambda: play(what, seed, performers=performers, checks=False))
    if played is None:
        return
    end = keeping[0].states[-1]
    places = places_of(played.events, end.t)
    places.update(end.in_flight)
    places.update(group.task for group in end.groups)
    number, again = what.workload.tasks, {Task(*task) for task in end.source["again"]}
    issued = [Task(n % number, n // number) for n in range(end.source["given"])]
    assert places == Counter(task for task in issued if task not in again)
    if arrivals:
        stream = end.source
        assert stream["arrived"] == stream["turned_away"] + stream["waiting"] + sum(places.values())


# A lost learner is a killed process that is resumed


class Keeping:
    """Keeps the states that are saved."""

    def __init__(self, inner):
        self.states = []
        self._inner = inner

    async def __call__(self, rt, work, /):
        outcome = await self._inner(rt, work)
        self.states.append(work.payload)
        return outcome

    async def gone(self, rt, work, /):
        await self._inner.gone(rt, work)


_OF_EPISODES = {
    EventKind.EPISODE_START, EventKind.EPISODE_END, EventKind.RETRY, EventKind.REFUSED, EventKind.PREEMPT,
}  # fmt: skip
_WORK_OF_EPISODES = {WorkKind.TOOL_CALL, WorkKind.ENV_RESET, WorkKind.ENV_CLOSE, WorkKind.REWARD, WorkKind.GENERATE}
_OF_GROUPS = {EventKind.GROUP_ADMIT, EventKind.GROUP_RELEASE, EventKind.BUFFER_PUT, EventKind.DROP, EventKind.CONSUME}
_OF_CHIPS = {WorkKind.WATCH, WorkKind.PROVISION, WorkKind.RESTORE}


def decisions(events, start_ns):
    """A log from an instant on, with times counted from there and groups numbered in the order of their appearance.

    Left out is how the chips came, and the weights that the replicas take at the first instant.
    """
    names, result, installing = {}, [], 0

    def name(group):
        return names.setdefault(group, len(names))

    for time_ns, kind, entity, a, b, c, d, e in events:
        work = kind in (EventKind.WORK_START, EventKind.WORK_END)
        if (work and a in _OF_CHIPS) or kind in (EventKind.CAPACITY_LOST, EventKind.CAPACITY_BACK, EventKind.ROLLBACK):
            continue
        if kind == EventKind.WORK_START and a == WorkKind.PUBLISH and time_ns == start_ns:
            installing += 2
            continue
        if installing and ((work and a == WorkKind.PUBLISH) or kind == EventKind.SYNC_INSTALL):
            installing -= 1
            continue
        if kind in _OF_EPISODES or (work and a in _WORK_OF_EPISODES):
            entity = (name(entity // MEMBERS), entity % MEMBERS)
        elif kind in _OF_GROUPS:
            entity = name(entity)
        if kind == EventKind.EPISODE_START:
            a = name(a)
        if kind == EventKind.WORK_END and d >= 0:
            d -= start_ns
        result.append((time_ns - start_ns, kind, entity, a, b, c, d, e))
    return result


FREE = {"per_pass_s": 0.0, "per_step_s": 0.0}
"""An event loop that costs nothing: whoever watches chips takes none of its time."""

AT_ONCE = {"weights_bytes": 0, "transfer": {"base_s": 0.0, "bytes_per_s": 1e12}}
"""Weights that are there at once: a resumed process starts when its engines have them."""

SHIFTABLE = {"weights": AT_ONCE, "host": FREE, "outages": []}
"""A world that is the same at any time: outages lie on absolute time, and so they meet a run that was delayed elsewhere."""


@settings(properties, max_examples=12)
@given(what=scenarios(), seed=st.integers(0, 1000), interval=st.integers(0, 2), share=st.floats(0.0, 0.99), ends=st.booleans())
def test_a_lost_learner_goes_on_as_a_killed_process_that_is_resumed(what, seed, interval, share, ends):
    assume(what is not None)
    what = lossy(what, world=SHIFTABLE, checkpoint_interval=interval, provision=constant(200.0))
    whole = play(what, seed, checks=False, ends=ends)
    taken, keeping = Taken(), []

    def performers(world):
        keeping.append(Keeping(world.performers[Checkpoint]))
        return {Watch: taken, Checkpoint: keeping[0]}

    async def loss(rt, scope):
        await rt.sleep(round(share * (whole.report.end_ns - 1)))
        taken.take(LEARNER)

    lost = play(what, seed, interrupt=loss, performers=performers, ends=ends)
    (rollback,) = lost.of(EventKind.ROLLBACK)
    at = lost.all_events.index(rollback)
    version = rollback[2]
    states = {state.t: state for state in keeping[0].states}
    saved = [event[2] for event in lost.all_events[:at] if event[1] == EventKind.CHECKPOINTED]
    assert version == (saved[-1] if saved else 0)
    cold = play(what, seed, checks=False, ends=ends, resume=states[version] if saved else None)
    assert decisions(lost.events[at:], rollback[0]) == decisions(cold.events, 0)
