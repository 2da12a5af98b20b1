"""What fails, hangs or dies round a live run: it ends with a name, or goes on; every environment is closed once.

Real actors and host performers on a mock clock; numbers are those of `FIELD_SCENARIOS` (test_field_scenarios).
"""

from __future__ import annotations

import threading

import pytest
import trio
from live_world import SHORT, Counted, S, counted, play

from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.work import Checkpoint, Decode, EnvReset, Outcome, Publish, TrainStep
from harness.run import first_failure
from harness.watch import StallWatch
from pipeline.data import EVALUATION_GROUPS, Ended
from pipeline.environments.environment import ThreadsLostError
from pipeline.performers.threads import Threads


async def working(self, action):
    """A step that takes three seconds."""
    await trio.sleep(3)
    return await Counted.step(self, action)


def ended_by(environment, **options):
    """The failure that a run ends with. All environments that were built are closed once by then."""
    with pytest.raises(BaseException) as caught:
        play(environment, **options)
    failure = caught.value
    books = environment.books
    assert books.built
    assert {number: books.closed[number] for number in books.built} == dict.fromkeys(books.built, 1)
    return first_failure(failure) if isinstance(failure, BaseExceptionGroup) else failure


class Wrapped:
    """A source that goes wrong somewhere."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


class FifthTask(Wrapped):
    def next_task(self):
        task = self._inner.next_task()
        if task.index == 4:
            raise ZeroDivisionError("no such luck")
        return task


class EvaluationEpisode(Wrapped):
    def driver(self, task, member, version):
        if task.dispatch >= EVALUATION_GROUPS:
            raise ZeroDivisionError("no such luck")
        return self._inner.driver(task, member, version)


def nth(kind, number):
    """A performer that fails at its n-th call."""

    def replaced(own):
        left = [number]

        async def perform(rt, work):
            left[0] -= 1
            if not left[0]:
                raise ZeroDivisionError("no such luck")
            return await own[kind](rt, work)

        return {kind: perform}

    return replaced


DEATHS = {
    "producer": ({"source_of": FifthTask}, ""),
    "replica": ({"replaced": nth(Decode, 4)}, "replica 0"),
    "installation of weights": ({"replaced": nth(Publish, 2)}, "replica 0"),
    "learner": ({"replaced": nth(TrainStep, 3)}, "learner"),
    "evaluation": ({"source_of": EvaluationEpisode, "pipeline": {"eval_interval": 1}}, "evaluation of version 1"),
}


@pytest.mark.parametrize("who", DEATHS)
def test_02_an_actor_that_dies_ends_the_run_with_its_name_and_cause(who):
    options, actor = DEATHS[who]
    failure = ended_by(counted(step=working), **options)
    assert isinstance(failure, ActorError)
    assert failure.actor.startswith(actor)
    assert isinstance(failure.__cause__, ZeroDivisionError)
    assert "no such luck" in str(failure)


def test_02_a_checkpointer_that_dies_ends_the_run_with_its_name():
    async def save(rt, work):
        raise ZeroDivisionError("no such luck")

    failure = ended_by(counted(step=working), replaced=lambda own: {Checkpoint: save}, pipeline={"checkpoint_interval": 2})
    assert isinstance(failure.__cause__, ZeroDivisionError)
    assert failure.actor == "learner"


@pytest.mark.parametrize("place", ["reset", "step", "score"])
def test_16_an_environment_that_fails_is_closed_once_and_the_others_go_on(place):
    """Every third one fails at each place; `play` checks that each is closed once."""

    async def method(self, *args):
        if self.misbehaves:
            raise ValueError("broken")
        return await getattr(Counted, place)(self, *args)

    environment = counted(bad=staticmethod(lambda number: number % 3 == 1), **{place: method})
    played = play(environment, pipeline={"group_quorum": 1}, steps=6)
    assert len({group.group for group in played.groups}) == 12
    failed = played.ends()[Ended.FAILED_DATA]
    assert failed == sum(played.work.faults.values()) > 3


# ── hanging ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def deaf_to(task, others):
    """A decoder that never completes the requests of one task."""

    async def decode(rt, work):
        outcome = await others(rt, work)
        deaf = {ticket for ticket, request in work.payload.items() if request.payload.key[0] == task}
        return Outcome(completed=tuple(pair for pair in outcome.completed if pair[0] not in deaf), amount=1)

    return decode


def test_17_a_model_call_that_never_ends_is_cut_off_at_its_deadline():
    """The engine serves all but one task; the episodes of that one end at `deadlines.generation_s`, the others train."""
    played = play(counted(), replaced=lambda own: {Decode: deaf_to(1, own[Decode])}, sampling={"max_response_tokens": 64})
    assert played.ends()[Ended.TIMED_OUT] == 1  # its group cannot be whole any more: the other one is let go
    assert {group.task.index for group in played.groups} >= {0, 2, 3}
    cut = [event for event in played.memory.events if event[1] == EventKind.EPISODE_END and event[3] == Ended.TIMED_OUT]
    assert all(event[0] <= (SHORT["generation_s"] + 8) * S for event in cut)


def test_17_threads_that_hang_are_told_and_when_there_are_too_many_the_rest_is_closed():
    """`close` is a plain method here: it needs a thread when none is to be had for anything else."""

    def step(self, action):
        self.books.hang()

    def close(self):
        with self.books.lock:
            self.books.closed[self.number] += 1

    async def method(self, action):
        if self.number % 3 == 1:
            await self.host.in_thread(step, self, action)
        return await Counted.step(self, action)

    environment = counted(step=method, close=close)
    environment.books.lock = threading.Lock()
    clock = trio.testing.MockClock(autojump_threshold=0.01)
    failure = ended_by(environment, threads=Threads(2, spares=1), clock=clock, steps=50)
    assert isinstance(failure, ThreadsLostError)
    assert failure.exit_code == 2
    assert "Counted step" in str(failure)
    assert "live.environment.spare_threads" in str(failure)


def test_17_a_stall_is_named_with_who_waits_on_what_within_half_a_minute():
    told = []

    def ready(pipeline):
        async def look():
            watch = StallWatch(pipeline.rt, lambda: (pipeline.versions.t, pipeline.tally.episodes))
            while True:
                await pipeline.rt.sleep(S)
                if stall := watch.look():
                    told.append((pipeline.rt.now(), stall))

        pipeline.rt.background(look, name="watch")

    async def step(self, action):
        if self.number > 6:
            await trio.sleep(90)
        return await Counted.step(self, action)

    deadlines = SHORT | {"tool_s": 100.0, "step_s": 100.0}
    played = play(counted(step=step), ready=ready, pipeline={"deadlines": deadlines, "tool_workers": 8}, steps=4)
    last = max(event[0] for event in played.memory.events if event[1] == EventKind.EPISODE_END and event[0] < told[0][0])
    assert told[0][0] - last <= 32 * S
    assert "nothing was finished for 3" in told[0][1]
    assert "rollout lane(s) in tool_exec" in told[0][1]
    assert "learner lane(s) in wait_batch" in told[0][1]


def test_21_a_publish_that_is_never_answered_ends_the_run_and_names_the_replica():
    async def publish(rt, work):
        await rt.sleep(10**6 * S)
        return Outcome()

    deadlines = SHORT | {"sync_s": 400.0}
    failure = ended_by(counted(), replaced=lambda own: {Publish: publish}, pipeline={"deadlines": deadlines}, steps=8)
    assert failure.actor == "publisher"
    assert "version 1 not on replicas [0] in time" in str(failure)


def test_21_an_engine_that_never_answers_ends_the_run_at_its_limit_by_name():
    """No episode can be served; those that wait are timed out one after the other until the limit of the run."""

    async def decode(rt, work):
        await rt.sleep(S)
        return Outcome(amount=1)

    failure = ended_by(counted(), replaced=lambda own: {Decode: decode}, limit_s=300)
    assert failure.actor == "run"
    assert "only 0 of 8 learner steps" in str(failure)
    assert "rollout lane(s) in generate" in str(failure)


def test_24_an_evaluation_that_loses_an_episode_times_out_and_names_it():
    rounds, lost = {}, []
    limits = dict.fromkeys(("build_s", "reset_s", "tool_s", "step_s", "reward_s", "generation_s", "episode_s"), 30.0)

    def ready(pipeline):
        pipeline.evaluation.on_done = lambda done: rounds.__setitem__(done.version, done)

    class Third(Wrapped):
        """The first round's task 2 is lost."""

        def driver(self, task, member, version):
            driver = self._inner.driver(task, member, version)
            if (task.dispatch, task.index) == (EVALUATION_GROUPS, 2):
                lost.append(driver)
            return driver

    class Lost:
        """Resets all but that one."""

        def __init__(self, inner):
            self._inner = inner
            self.gone = inner.gone

        async def __call__(self, rt, work):
            if work.payload in lost:
                await trio.sleep_forever()
            return await self._inner(rt, work)

    knobs = {"eval_interval": 1, "eval_episodes": 4, "deadlines": SHORT | limits | {"evaluation_s": 30.0}}
    played = play(
        counted(step=working), source_of=Third, ready=ready, replaced=lambda own: {EnvReset: Lost(own[EnvReset])},
        pipeline=knobs, steps=16,
    )  # fmt: skip
    assert (rounds[1].lost, len(rounds[1].rewards)) == ((2,), 3)
    assert {done.lost for version, done in rounds.items() if version > 1} == {()}
    assert played.report.versions[0] == 16
    [told] = [event for event in played.memory.events if event[1] == EventKind.EVALUATED and event[2] == 1]
    began = next(event[0] for event in played.memory.events if event[1] == EventKind.STEP)
    assert told[0] <= began + 40 * S  # the round's deadline, and the grace of the reset that is killed


# ── garbage from the model ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "sampling", "ended"),
    [
        ("", {}, Ended.DONE),  # nothing but the end of the turn
        ("h" * 500, {"max_response_tokens": 3}, Ended.TOKEN_LIMIT),
        ("h" * 20, {"max_response_tokens": 500, "max_context_tokens": 24}, Ended.TOKEN_LIMIT),  # at the cap of the context
        ("????" * 4, {}, Ended.DONE),
    ],
)
def test_whatever_the_model_says_is_an_answer(said, sampling, ended):
    """`play` checks that tokens, masks and log-probabilities stay aligned."""
    heard = []

    async def step(self, action):
        heard.append(action)
        return await Counted.step(self, action)

    played = play(counted(step=step), say=lambda text, key: said, sampling=sampling)
    assert set(played.ends()) == {ended}
    assert played.work.faults == {}
    assert set(heard) <= {said}
    assert bool(heard) == (ended is Ended.DONE)
    assert all(result.payload.truncated == (ended is Ended.TOKEN_LIMIT) for result in played.samples())
