"""An actor that fails ends the run with its name and the time, on every engine; a stall says who waits on what."""

from __future__ import annotations

import pytest
from tiny_world import Hanging, S, exponential, play, replaced, scenario

from harness.core.errors import ActorError, LawError
from harness.core.lanes import State
from harness.engines import sim, virtual
from harness.run import first_failure

ENGINES = pytest.mark.parametrize("engine", [sim.run, virtual.run], ids=["sim", "virtual"])


class Broken:
    """Raises at its n-th call."""

    def __init__(self, inner, nth, failure):
        self._inner = inner
        self._left = nth
        self._failure = failure

    async def __call__(self, rt, work, /):
        self._left -= 1
        fails = self._left == 0
        outcome = await self._inner(rt, work)
        if fails:
            raise self._failure
        return outcome

    async def gone(self, rt, work, /):
        await self._inner.gone(rt, work)


def failure_of(what, **options):
    with pytest.raises((BaseExceptionGroup, ActorError)) as caught:
        play(what, **options)
    error = caught.value
    return first_failure(error) if isinstance(error, BaseExceptionGroup) else error


@ENGINES
@pytest.mark.parametrize(
    ("kind", "nth", "actor"),
    [
        ("Decode", 3, "replica 0"),
        ("TrainStep", 2, "learner"),
        ("Publish", 2, "replica 0"),  # installing is the replica's work
        ("ToolCall", 5, "episode"),
        ("EnvReset", 5, "episode"),
    ],
)
def test_an_actor_that_fails_is_named(engine, kind, nth, actor):
    error = failure_of(
        scenario({"eval_interval": 1}),
        engine=engine,
        performers=replaced(**{kind: lambda own: Broken(own, nth, ZeroDivisionError("no such luck"))}),
    )
    assert isinstance(error, ActorError)
    assert "ZeroDivisionError: no such luck" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.actor.startswith(actor)
    assert error.at_ns > 0


@ENGINES
def test_a_broken_law_stays_what_it_is(engine):
    broken = replaced(TrainStep=lambda own: Broken(own, 1, LawError("a law")))
    with pytest.raises(BaseExceptionGroup) as caught:
        play(scenario(), engine=engine, performers=broken)
    assert type(first_failure(caught.value)) is LawError


@ENGINES
def test_an_agent_that_raises_ends_the_run_by_name(engine):
    """Code of a task source is the user's own: a failure in it is no outcome of an episode, and must be found."""

    class Source:
        def __init__(self, inner):
            self._inner = inner

        def next_task(self):
            return self._inner.next_task()

        def driver(self, task, member, version):
            driver = self._inner.driver(task, member, version)
            return Confused(driver) if task.index == 3 else driver

    class Confused:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def act(self, turn, result):
            raise KeyError("no such tool")

    error = failure_of(scenario(), engine=engine, source=lambda world: Source(world.source))
    assert error.actor == "episode 3/0"


def test_a_source_that_runs_dry_stalls_and_says_so():
    class Short:
        def __init__(self, inner):
            self._inner = inner
            self._left = 5

        def next_task(self):
            self._left -= 1
            return self._inner.next_task() if self._left >= 0 else None

        def driver(self, task, member, version):
            return self._inner.driver(task, member, version)

    error = failure_of(scenario(max_sim_s=500.0), source=lambda world: Short(world.source))
    message = str(error)
    assert "only 2 of 4 learner steps" in message
    assert "learner lane(s) in wait_batch" in message
    assert "rollout lane(s) in no_work" in message  # the gate is open: there is no task
    assert "evaluation lane(s)" not in message


def test_a_stall_names_who_waits_on_what_and_for_how_long():
    """Both sandboxes are never given back."""
    hangs = replaced(EnvClose=lambda own: Hanging(own, lambda work: True))
    error = failure_of(scenario({"env_workers": 2, "deadlines": {"close_s": 1.0}}, max_sim_s=200.0), performers=hangs)
    assert error.actor == "run"
    assert error.at_ns == 200 * S
    message = str(error)
    assert "6 rollout lane(s) in env_queue, slot/2 for 200.0 s" in message
    assert "learner lane(s) in wait_batch" in message


def test_a_sync_past_its_deadline_names_the_replicas():
    hangs = {"weights": {"transfer": {"base_s": 50.0}}}
    error = failure_of(scenario({"deadlines": {"sync_s": 20.0, "generation_s": 10.0, "episode_s": 1000.0}}, world=hangs))
    assert error.actor == "publisher"
    assert "version 1 not on replicas [0] in time" in str(error)


def test_an_exhausted_pool_shows_in_its_share():
    played = play(scenario({"tool_workers": 1}, tool={"duration": exponential(4.0)}, steps=6), 3)
    shares = played.summary.utilisation
    assert shares["tools"] > 0.9
    assert shares["scoring"] < 0.2
    assert shares["slots"] == pytest.approx(shares["environments"], abs=1e-12)
    waited = sum(ns[State.TOOL_QUEUE] for ns in played.report.lane_ns.values())
    assert waited > 0
