"""A run that is cut off anywhere, or loses any actor, leaves nothing behind.

Every sandbox is closed once, every permit back, every account held or settled, no work open: `play` checks that of every run,
and the laws at every event (`harness.trace.online`). In the usual size a keyed choice of events is tried, with `-m slow` all.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lossy_world import LEARNER, lossy
from tiny_configs import scenarios
from tiny_world import constant, play, scenario

from harness.core.errors import ActorCancelled, ActorError
from harness.core.events import EventKind
from harness.core.seeds import derive_key
from harness.engines import sim, virtual
from harness.run import first_failure

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


# ── one actor, or one episode, is cancelled ─────────────────────────────────────────────────────────────────────────────────

MODES = ("drain", "drain_episodes", "abort_resume", "keep")
ACTORS = ("replica 0", "replica 1", "publisher", "learner", "evaluation", "evaluation of version")
ON_LOST_CHIPS = ("slice 0", "slice 1", "return of replica", "replica 0", "publisher", "learner", "evaluation of version")
RARE = ("evaluation", "evaluation of version", "return of replica")
"""Actors that come and go. Their names go on with a number where there are several; the oldest one is cancelled."""
STRIDE = 61
"""Of the events that are tried in the usual size; where it begins depends on the case."""


class Tolerant:
    """The engine, for runs that fail: keeps what they failed with, so that what they left behind can be looked at."""

    def __init__(self, engine):
        self._engine = engine
        self.failure = None

    def __call__(self, *args, **options):
        try:
            return self._engine(*args, **options)
        except BaseExceptionGroup as group:
            self.failure = first_failure(group)


def scope_of(pipeline, name):
    """That of the actor of this name, or of the oldest one whose name begins so."""
    scope = pipeline.scopes.get(name)
    if scope is None:
        scope = next((pipeline.scopes[other] for other in pipeline.scopes if other.startswith(name + " ")), None)
    return scope


def cancel_actor(what, name, event, engine=sim.run, seed=1, *, ends=True):
    """Whether the actor ran at that event; the run then has ended with its name, and has left nothing behind."""
    tolerant, hit = Tolerant(engine), []

    def strike(pipeline):
        scope = scope_of(pipeline, name)
        if scope is not None:
            hit.append(pipeline.rt.now())
            scope.cancel()

    played = play(what, seed, engine=tolerant, at_event=(event, strike), checks=False, ends=ends)
    if not hit:
        assert tolerant.failure is None
        return False
    if tolerant.failure is None:  # its job ended in that instant, or it had nothing left to do before it could hear of it
        jobs_end_ns = [played.report.end_ns, *(event[0] for event in played.of(EventKind.CAPACITY_LOST, entity=LEARNER))]
        assert hit[0] in jobs_end_ns or hit[0] > played.report.end_ns or name in ("learner", *RARE)
        return False
    assert isinstance(tolerant.failure, ActorError)
    assert isinstance(tolerant.failure.__cause__, ActorCancelled), tolerant.failure
    assert tolerant.failure.actor == name or (name in RARE and tolerant.failure.actor.startswith(name + " "))
    assert "was cancelled alone" in str(tolerant.failure)
    return True


def events_tried(what, *case, stride=STRIDE, ends=True):
    total = len(play(what, 1, checks=False, ends=ends).all_events)
    return range(1 + derive_key(0, " ".join(case)) % stride, total + 1, stride)


def cancel_actor_everywhere(what, mode, name, stride, *, ends=True):
    events = events_tried(what, mode, name, stride=stride, ends=ends)
    tried = [cancel_actor(what, name, event, ends=ends) for event in events]
    assert sum(tried) >= (1 if name in RARE else len(tried) / 3), "it ran for a good part of the time"


def losing(mode):
    """Chips of the learner and of replicas are lost and come back: restores, returns and rounds that are made once more."""
    knobs = {"group_size": 2, "overprovision_groups": 0, "env_workers": 6, "tool_workers": 3, "checkpoint_interval": 1}
    what = busy(mode)
    return lossy(what, provision=constant(0.7), learner=constant(23.0), replicas=constant(13.0), **knobs)


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("mode", MODES)
def test_any_actor_that_is_cancelled_ends_the_run_with_its_name(mode, name):
    cancel_actor_everywhere(busy(mode), mode, name, STRIDE)


@pytest.mark.parametrize("name", ON_LOST_CHIPS)
def test_any_actor_that_is_cancelled_while_chips_come_and_go(name):
    cancel_actor_everywhere(losing("abort_resume"), "losing", name, STRIDE, ends=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("mode", MODES)
def test_any_actor_cancelled_at_every_event(mode, name):
    cancel_actor_everywhere(busy(mode), mode, name, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_LOST_CHIPS)
@pytest.mark.parametrize("mode", MODES)
def test_any_actor_cancelled_at_every_event_while_chips_come_and_go(mode, name):
    cancel_actor_everywhere(losing(mode), mode, name, 1, ends=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_cut_off_at_every_event_while_chips_come_and_go(mode):
    what = losing(mode)
    for event in events_tried(what, mode, "cut", stride=1, ends=False):
        play(what, 1, cut_at_event=event, checks=False)


@pytest.mark.parametrize("name", ACTORS)
def test_any_actor_that_is_cancelled_on_real_trio(name):
    what = busy("abort_resume")
    tried = [cancel_actor(what, name, event, virtual.run) for event in events_tried(what, "trio", name, stride=181)]
    assert name in RARE or any(tried)


def cancel_episode_everywhere(mode, stride):
    """The run goes on without the episode: it counts as failed, or as surplus, and nothing is lost."""
    what, hit = busy(mode), []

    def strike(pipeline):
        running = sorted(pipeline.groups.running)
        if running:
            chosen = pipeline.groups.running[running[derive_key(1, "episode", *running) % len(running)]]
            hit.append(chosen.episode)
            chosen.scope.cancel()

    for event in events_tried(what, mode, "episode", stride=stride, ends=False):
        played = play(what, 1, at_event=(event, strike), checks=False)
        assert played.summary.learner_steps == what.run.learner_steps
    assert len(set(hit)) > 5


@pytest.mark.parametrize("mode", MODES)
def test_any_episode_that_is_cancelled_costs_itself_alone(mode):
    cancel_episode_everywhere(mode, STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_any_episode_cancelled_at_every_event(mode):
    cancel_episode_everywhere(mode, 1)
