"""A run that is cut off anywhere, or loses any actor, leaves nothing behind.

Every sandbox is closed once, every permit back, every account held or settled, no work open: `play` checks that of every run,
and the laws at every event (`harness.trace.online`). In the usual size a keyed choice of events is tried, with `-m slow` all.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import play, scenario

from harness.core.errors import ActorCancelled, ActorError
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
ACTORS = ("replica 0", "replica 1", "publisher", "learner", "evaluation")
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


def cancel_actor(what, name, event, engine=sim.run, seed=1):
    """Whether the actor ran at that event; the run then has ended with its name, and has left nothing behind."""
    tolerant, hit = Tolerant(engine), []

    def strike(pipeline):
        scope = pipeline.scopes.get(name)
        if scope is not None:
            hit.append(pipeline.rt.now())
            scope.cancel()

    played = play(what, seed, engine=tolerant, at_event=(event, strike), checks=False, ends=True)
    if not hit:
        assert tolerant.failure is None
        return False
    if tolerant.failure is None:  # the run was over, or the actor had nothing left to do and ended before it could hear of it
        assert hit[0] >= played.report.end_ns or name in ("learner", "evaluation")
        return False
    assert isinstance(tolerant.failure, ActorError)
    assert isinstance(tolerant.failure.__cause__, ActorCancelled), tolerant.failure
    assert tolerant.failure.actor == name
    assert "was cancelled alone" in str(tolerant.failure)
    return True


def events_tried(what, *case, stride=STRIDE, ends=True):
    total = len(play(what, 1, checks=False, ends=ends).all_events)
    return range(1 + derive_key(0, " ".join(case)) % stride, total + 1, stride)


def cancel_actor_everywhere(mode, name, stride):
    what = busy(mode)
    tried = [cancel_actor(what, name, event) for event in events_tried(what, mode, name, stride=stride)]
    assert sum(tried) >= (1 if name == "evaluation" else len(tried) / 3), "it ran for a good part of the time"


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("mode", MODES)
def test_any_actor_that_is_cancelled_ends_the_run_with_its_name(mode, name):
    cancel_actor_everywhere(mode, name, STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("mode", MODES)
def test_any_actor_cancelled_at_every_event(mode, name):
    cancel_actor_everywhere(mode, name, 1)


@pytest.mark.parametrize("name", ACTORS)
def test_any_actor_that_is_cancelled_on_real_trio(name):
    what = busy("abort_resume")
    tried = [cancel_actor(what, name, event, virtual.run) for event in events_tried(what, "trio", name, stride=181)]
    assert name == "evaluation" or any(tried)


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
