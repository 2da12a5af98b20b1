"""Whatever an environment does, the run goes on: `play` checks closes, permits, books and alignment of every run."""

from __future__ import annotations

import logging
import math

import pytest
import trio
from live_world import Counted, S, counted, play

from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.work import Status, WorkKind
from pipeline.data import EVALUATION_GROUPS, Ended, episode_id
from pipeline.environments import BaseTaskEnv, InfraFailure, Step
from pipeline.environments.environment import ThreadsLostError, held_out
from pipeline.environments.episode import Fault
from pipeline.numerics.tokenizers import CharTokenizer
from pipeline.performers.threads import Threads

GOOD_ENDS = {Ended.DONE}


def test_a_run_without_failures_trains_every_group():
    played = play(counted())
    assert set(played.ends()) == GOOD_ENDS
    assert {result.reward for result in played.samples()} == {0.5}
    assert {result.turns for result in played.samples()} == {2}
    assert not any(result.payload.truncated for result in played.samples())
    assert played.work.faults == {}


# ── raising, at every place ──────────────────────────────────────────────────────────────────────────────────────────────────


def raising(place, error):
    """An environment of which number 1 raises in one of its methods."""

    async def method(self, *args):
        if self.misbehaves:
            raise error("broken")
        return await getattr(Counted, place)(self, *args)

    async def close(self):
        await Counted.close(self)
        if self.misbehaves:
            raise error("broken")

    def starting(self):
        if self.misbehaves:
            raise error("broken")

    if place == "starting":
        return counted(starting=starting)
    return counted(**{place: close if place == "close" else method})


FAULTS = {
    "starting": Fault.CONSTRUCTOR, "reset": Fault.RESET, "step": Fault.STEP, "score": Fault.SCORE, "close": Fault.CLOSE,
}  # fmt: skip


@pytest.mark.parametrize("error", [ValueError, SystemExit, AssertionError])
@pytest.mark.parametrize("place", FAULTS)
def test_an_exception_fails_its_episode_alone_and_is_counted(place, error, caplog):
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        played = play(raising(place, error))
    assert played.ends()[Ended.FAILED_DATA] == (0 if place == "close" else 1)
    assert set(played.ends()) - {Ended.FAILED_DATA, Ended.CANCELLED} == GOOD_ENDS
    assert played.work.faults == {FAULTS[place]: 1}
    [told] = [record.message for record in caplog.records]
    for word in ("Counted", error.__name__, "broken", "where:", "allowed:", "do:"):
        assert word in told


@pytest.mark.parametrize("error", [InfraFailure, ConnectionError, TimeoutError, trio.TooSlowError])
@pytest.mark.parametrize("place", ["starting", "reset", "step", "score"])
def test_a_failure_of_the_infrastructure_is_tried_again(place, error):
    played = play(raising(place, error), retry=2)
    assert played.work.faults[FAULTS[place]] >= 1
    bad = played.ends()[Ended.FAILED_INFRA]
    assert bad == (1 if place in ("step", "score") else 0)  # a retry of the reset builds a new environment, which behaves
    assert Ended.FAILED_DATA not in played.ends()


def test_a_failure_is_told_once_and_counted_always(caplog):
    environment = counted(bad=staticmethod(lambda number: number % 5 == 0), step=raising("step", ValueError).step)
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        played = play(environment)
    assert played.work.faults[Fault.STEP] > 1
    assert len(caplog.records) == 1


# ── garbage ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def returning(place, value):
    async def method(self, *args):
        return value if self.misbehaves else await getattr(Counted, place)(self, *args)

    return counted(**{place: method})


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        ("reset", None, Fault.OBSERVATION),
        ("reset", b"abc", Fault.OBSERVATION),
        ("reset", [], Fault.OBSERVATION),
        ("reset", [{"role": "robot", "content": "a"}], Fault.OBSERVATION),
        ("reset", "not in the alphabet", Fault.ENCODING),
        ("step", "text", Fault.STEP_TYPE),
        ("step", ("ab", False), Fault.STEP_TYPE),
        ("step", None, Fault.STEP_TYPE),
        ("step", Step(7), Fault.OBSERVATION),  # type: ignore[arg-type]
        ("step", Step("Z"), Fault.ENCODING),
        ("score", None, Fault.REWARD_TYPE),
        ("score", "1.0", Fault.REWARD_TYPE),
        ("score", math.nan, Fault.REWARD_VALUE),
        ("score", math.inf, Fault.REWARD_VALUE),
    ],
)
def test_garbage_fails_its_episode_and_is_named(place, value, fault, caplog):
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        played = play(returning(place, value))
    assert played.work.faults == {fault: 1}
    assert played.ends()[Ended.FAILED_DATA] == 1
    assert "allowed:" in caplog.records[0].message
    assert all(math.isfinite(result.reward) for result in played.samples())


# ── hanging, at every place, in the loop and on threads ──────────────────────────────────────────────────────────────────────


def _patient():
    """A clock that jumps only when nothing happened for a while: something runs on threads here."""
    return trio.testing.MockClock(autojump_threshold=0.01)


def hanging(place, *, sync, every=False):
    """An environment of which number 1 (or every fifth) never comes back from one of its methods."""
    bad = staticmethod((lambda number: number % 5 == 1) if every else (lambda number: number == 1))

    async def hang(self, *args):
        if place == "close":
            await Counted.close(self)
        if self.misbehaves:
            await trio.sleep_forever()
        return None if place == "close" else await getattr(Counted, place)(self, *args)

    async def hang_on_thread(self, *args):
        if place == "close":
            await Counted.close(self)
        if self.misbehaves:
            await self.host.in_thread(self.books.hang)
        return None if place == "close" else await getattr(Counted, place)(self, *args)

    return counted(bad=bad, **{place: hang_on_thread if sync else hang})


@pytest.mark.parametrize("sync", [False, True], ids=["in the loop", "on a thread"])
@pytest.mark.parametrize("place", ["reset", "step", "score", "close"])
def test_a_call_that_hangs_costs_its_episode_alone(place, sync):
    played = play(hanging(place, sync=sync), clock=_patient() if sync else None)
    assert played.ends()[Ended.TIMED_OUT] == (0 if place == "close" else 1)
    assert set(played.ends()) <= {Ended.DONE, Ended.TIMED_OUT}


@pytest.mark.parametrize("place", ["reset", "step", "score", "close"])
def test_more_hung_calls_than_threads_do_not_starve_the_pools(place, caplog):
    played = play(
        hanging(place, sync=True, every=True),
        steps=8,
        threads=Threads(4, spares=40),
        pipeline={"tool_workers": 2},
        clock=_patient(),
    )
    hung = sum(number % 5 == 1 for number in played.environment.books.built)
    assert hung > 4
    assert [record.message.split()[0] for record in caplog.records] == [f"Counted.{place}"]  # told once
    assert len(played.samples()) == 8 * 4


def test_when_no_spare_thread_is_left_the_run_names_who_hangs():
    environment = hanging("step", sync=True, every=True)
    with pytest.raises(BaseException) as caught:
        play(environment, steps=50, threads=Threads(2, spares=2), clock=_patient())
    lost = _leaves(caught.value, ThreadsLostError)
    assert lost
    assert "Counted step" in str(lost[0])
    assert "for " in str(lost[0])
    assert "live.environment.spare_threads" in str(lost[0])


def _leaves(failure, kind):
    if isinstance(failure, kind):
        return [failure]
    inner = [*getattr(failure, "exceptions", ())]
    inner += [cause] if isinstance(failure, ActorError) and (cause := failure.__cause__) else []
    return [leaf for one in inner for leaf in _leaves(one, kind)]


def test_a_constructor_that_hangs_is_given_up_and_what_it_builds_late_is_closed():
    def starting(self):
        if self.misbehaves:
            self.books.hang()

    environment = counted(starting=starting)
    environment.inline = False
    # The first retry finds an environment that behaves; the late one is let go then, and has to be closed all the same.
    built = []

    async def step(self, action):
        if self.number > 4 and not self.books.release.is_set():
            self.books.release.set()
            while 1 not in self.books.built:
                await trio.lowlevel.checkpoint()
            built.append(self.number)
        return await Counted.step(self, action)

    environment.step = step
    played = play(environment, retry=1, steps=6, clock=_patient())
    assert built
    assert 1 in played.environment.books.built
    assert played.environment.books.closed[1] == 1


@pytest.mark.parametrize("place", ["reset", "step", "score"])
def test_a_nursery_in_a_users_method_that_is_cut_off_is_cut_off_whole(place):
    killed = []

    async def method(self, *args):
        if self.misbehaves:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await self.host.together([trio.sleep_forever, trio.sleep_forever])
        return await getattr(Counted, place)(self, *args)

    played = play(counted(kill=lambda self: killed.append(self.number), **{place: method}))
    assert played.ends()[Ended.TIMED_OUT] == 1
    assert set(played.ends()) == {Ended.DONE, Ended.TIMED_OUT}
    assert 1 in killed
    assert played.work.faults == {}


def test_a_nursery_in_a_users_method_that_fails_is_known_by_its_own_failure(caplog):
    async def lost():
        raise ConnectionError("gone")

    async def step(self, action):
        if self.misbehaves:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(lost)
        return await Counted.step(self, action)

    played = play(counted(step=step))
    assert played.ends()[Ended.FAILED_INFRA] == 1
    assert "ConnectionError: gone" in caplog.text


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_step_that_was_cut_off_is_called_again_only_where_it_may_be(repeatable):
    calls = []

    async def step(self, action):
        if self.misbehaves and not self.turns:
            calls.append(action)
            await trio.sleep(12 if len(calls) == 1 else 1)
        return await Counted.step(self, action)

    played = play(counted(step=step, repeatable=repeatable), retry=2, steps=12)
    assert len(calls) == 1 + repeatable
    assert played.ends()[Ended.TIMED_OUT] == (not repeatable)
    assert played.work.faults == ({} if repeatable else {Fault.CUT_OFF: 1})


def test_rewards_of_steps_are_summed_where_there_is_no_score():
    async def step(self, action):
        self.turns += 1
        return Step("ab", done=self.turns == 3, reward=0.25 if self.turns > 1 else None)

    played = play(counted(step=step, score=BaseTaskEnv.score))
    assert {result.reward for result in played.samples()} == {0.5}
    bad = play(counted(step=step_with_reward_nan, score=BaseTaskEnv.score))
    assert bad.work.faults == {Fault.REWARD_VALUE: 1}


async def step_with_reward_nan(self, action):
    self.turns += 1
    return Step("ab", done=self.turns == 2, reward=math.nan if self.misbehaves else 1.0)


# ── truncation is no success ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_limit_ends_an_episode_in_its_own_way():
    async def endless(self, action):
        return Step("ab")

    async def immense(self, action):
        return Step("ab" * 5_000_000)

    async def limited(self, action):
        return Step("ab", done=True, truncated=True)

    for environment, options, expected in (
        (counted(step=endless), {}, Ended.TURN_LIMIT),
        (counted(step=endless), {"sampling": {"max_context_tokens": 16}}, Ended.CONTEXT_LIMIT),
        (counted(step=immense), {}, Ended.CONTEXT_LIMIT),
        (counted(step=limited), {}, Ended.TIME_LIMIT),
        (counted(), {"say": lambda text, key: "h" * 9, "sampling": {"max_response_tokens": 5}}, Ended.TOKEN_LIMIT),
    ):
        played = play(environment, **options)
        assert set(played.ends()) == {expected}
        assert all(result.payload.truncated for result in played.samples())


def test_plain_methods_run_on_threads_and_give_the_same_run():
    def in_plain(name):
        def method(self, *args):
            coroutine = getattr(Counted, name)(self, *args)
            with pytest.raises(StopIteration) as stop:
                coroutine.send(None)
            return stop.value.value

        return method

    plain = counted(**{name: in_plain(name) for name in ("reset", "step", "score", "close")})
    asynchronous, blocking = play(counted()), play(plain, clock=_patient())
    wanted, given = [sorted(r.payload.tokens for r in played.samples())[:4] for played in (asynchronous, blocking)]
    assert wanted == given


def test_off_policy_depth_one_makes_progress_with_less_room_than_one_batch():
    played = play(counted(), pipeline={"max_staleness": 1, "pipeline_depth": 1, "max_inflight": 2, "env_workers": 2}, steps=4)
    assert len(played.samples()) == 16


def test_steps_that_run_at_once_are_measured_each_for_its_own_episode():
    async def step(self, action):
        await trio.sleep(1 + self.number % 4)
        return await Counted.step(self, action)

    played = play(counted(step=step), pipeline={"tool_workers": 8})
    began, numbers, took = {}, {}, {}
    for event in played.memory.events:
        if event[1] == EventKind.WORK_START and event[3] == WorkKind.ENV_RESET:
            numbers[event[2]] = len(numbers)
        if event[1] == EventKind.WORK_START and event[3] == WorkKind.TOOL_CALL:
            began[event[2]] = event[0]
        if event[1] == EventKind.WORK_END and event[3] == WorkKind.TOOL_CALL and event[4] == Status.OK:
            took.setdefault(event[2], []).append(event[0] - began[event[2]])
    assert len({numbers[episode] % 4 for episode in took}) == 4
    for episode, durations in took.items():
        assert durations == pytest.approx([(1 + numbers[episode] % 4) * S] * len(durations), rel=1e-6)


def test_evaluation_plays_held_out_tasks_and_goes_on_without_the_episode_that_hangs():
    seen = []

    async def step(self, action):
        evaluated = held_out(self.task)
        seen.append(evaluated)
        if evaluated and seen.count(True) == 1:
            await trio.sleep_forever()
        return await Counted.step(self, action)

    played = play(counted(step=step), pipeline={"eval_interval": 2, "eval_episodes": 3, "tool_workers": 8}, steps=16)
    rounds = [event[3:5] for event in played.memory.events if event[1] == EventKind.EVALUATED]
    assert len(rounds) > 2
    assert set(rounds) == {(3, 0)}
    assert True in seen
    assert False in seen
    cut_off = [e[2] for e in played.memory.events if e[1] == EventKind.EPISODE_END and e[3] == Ended.TIMED_OUT]
    assert len(cut_off) == 1
    assert cut_off[0] >= episode_id(EVALUATION_GROUPS, 0)
    assert all(not held_out_sample(result, played) for result in played.samples())


def held_out_sample(result, played):
    """Whether a sample that was trained on is of a held-out task: its prompt is the task."""
    tokens = result.payload.tokens[:8]
    alphabet = "".join(dict.fromkeys(played.environment.alphabet))
    return held_out({"letters": CharTokenizer(alphabet).decode(tokens)})
