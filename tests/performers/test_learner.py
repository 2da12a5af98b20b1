"""The learner's performers on trio: groups in, metrics and snapshots out; what is handed over is plain data."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import trio

from harness.core.errors import ConfigError
from harness.core.work import TrainStep
from pipeline.data import Ended, EpisodeResult, Group, Sample, Task, episode_id
from pipeline.live_config import LearnerTable
from pipeline.numerics.dispatch import Dispatcher
from pipeline.performers.learner import LearnerPerformer

RT = SimpleNamespace()  # the performers ask nothing of the runtime


class Recorder:
    """Programs of the learner's names that keep what they are given."""

    def __init__(self):
        self.calls = []
        self.failure = None
        names = ("log_probs", "train", "snapshot", "warm_step", "warm_end")
        self.dispatcher = Dispatcher({f"learner.{name}": self.program(name) for name in names})

    def program(self, name):
        def run(**arguments):
            self.calls.append((name, arguments))
            if self.failure is not None and name == "snapshot":
                raise self.failure
            return SimpleNamespace(result=lambda: {"loss": 0.5, "thread": float(threading.get_ident())})

        return run

    def given(self, name):
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def recorder():
    recorder = Recorder()
    recorder.dispatcher.start()
    yield recorder
    recorder.dispatcher.stop()


def sample(*, seed=0, n=6, truncated=False):
    rng = np.random.default_rng(seed)
    trained = [False, False] + [True] * (n - 2)
    return Sample(rng.integers(0, 12, n).tolist(), trained, [-2.0] * n, [0 if t else -1 for t in trained], truncated)


def group(number, rewards, *, oldest=0, truncated=()):
    members = tuple(
        EpisodeResult(episode_id(number, m), Ended.DONE, 1, 4, 6, oldest, oldest, reward,
                      sample(seed=m, truncated=m in truncated))
        for m, reward in enumerate(rewards)
    )  # fmt: skip
    return Group(number, Task(number, 0), members, oldest, oldest, 4 * len(members), 6 * len(members), oldest)


def train(step, groups, *, last=1):
    return TrainStep(step, 1, sum(g.sequence_tokens for g in groups), last, groups)


def is_plain(thing):
    if isinstance(thing, dict):
        return all(isinstance(key, str) and is_plain(value) for key, value in thing.items())
    return all(is_plain(part) for part in thing) if isinstance(thing, list | tuple) else isinstance(thing, int | float | str)


def test_members_become_sequences_with_advantages_within_their_group(recorder):
    performer = LearnerPerformer(recorder.dispatcher, LearnerTable(normalise_std=False))
    groups = [group(0, [1.0, 0.0, 0.5]), group(1, [1.0, 1.0])]  # the second by quorum
    trio.run(performer.train, RT, train(1, groups))
    (given,) = recorder.given("train")
    assert is_plain(given)
    assert (given["step"], given["last"]) == (1, True)
    assert [s["id"] for s in given["sequences"]] == [m.episode for g in groups for m in g.members]
    assert [s["advantage"] for s in given["sequences"]] == [0.5, -0.5, 0.0, 0.0, 0.0]
    member = groups[0].members[1].payload
    assert [given["sequences"][1][name] for name in ("tokens", "trained", "log_probs")] == [
        member.tokens, member.trained, member.log_probs,
    ]  # fmt: skip


def test_truncated_samples_are_left_out_on_request_but_their_rewards_count(recorder):
    performer = LearnerPerformer(recorder.dispatcher, LearnerTable(normalise_std=False, mask_truncated=True))
    trio.run(performer.train, RT, train(1, [group(0, [1.0, 0.0], truncated={1})]))
    (given,) = recorder.given("train")
    assert [(s["id"], s["advantage"]) for s in given["sequences"]] == [(episode_id(0, 0), 0.5)]


def test_metrics_come_with_the_last_chunk_and_tell_of_the_whole_step(recorder):
    performer = LearnerPerformer(recorder.dispatcher, LearnerTable())
    first = trio.run(performer.train, RT, train(4, [group(0, [1.0, 0.0], oldest=1)], last=0))
    outcome = trio.run(performer.train, RT, train(4, [group(1, [1.0, 1.0], oldest=3)]))
    assert first.result is None
    wanted = {"loss": 0.5, "reward": 0.75, "lag_steps": 1.0, "lag_steps_max": 2.0, "samples": 4.0}
    assert {name: outcome.result[name] for name in wanted} == wanted
    again = trio.run(performer.train, RT, train(5, [group(2, [0.0, 0.0], oldest=4)]))
    assert (again.result["reward"], again.result["samples"]) == (0.0, 2.0)


def test_the_devices_are_waited_for_off_the_event_loop(recorder):
    outcome = trio.run(LearnerPerformer(recorder.dispatcher, LearnerTable()).train, RT, train(1, [group(0, [1.0, 0.0])]))
    assert outcome.result["thread"] != float(threading.get_ident())


def test_a_snapshot_returns_at_once_and_its_failure_ends_the_next_step(recorder):
    performer = LearnerPerformer(recorder.dispatcher, LearnerTable())
    recorder.failure = MemoryError("no room for a copy")
    assert performer.snapshot(3) == 3

    async def go():
        await performer.train(RT, train(4, [group(0, [1.0, 0.0])]))  # may be under way already
        await performer.train(RT, train(5, [group(1, [1.0, 0.0])]))

    with pytest.raises(MemoryError, match="no room for a copy"):
        trio.run(go)
    assert recorder.given("snapshot") == [{"version": 3}]


@pytest.mark.parametrize(("examples", "batch"), [(5, 2), (3, 8), (4, 4)])
def test_a_warm_start_goes_through_its_demonstrations_pass_by_pass(recorder, examples, batch):
    performer = LearnerPerformer(recorder.dispatcher, LearnerTable(warm_start_steps=10, warm_start_batch=batch))
    seen = []

    async def go():
        shown = [sample(seed=number) for number in range(examples)]
        return await performer.warm_start(shown, seed=1, report=lambda step, metrics: seen.append((step, metrics["loss"])))

    assert trio.run(go)["loss"] == 0.5
    assert seen == [(step, 0.5) for step in range(1, 11)]
    ids = [s["id"] for given in recorder.given("warm_step") for s in given["sequences"]]
    assert len(ids) == 10 * min(batch, examples)
    counts = np.bincount(ids, minlength=examples)
    assert counts.max() - counts.min() <= 1
    assert recorder.calls[-1][0] == "warm_end"


def test_a_warm_start_of_no_steps_does_nothing(recorder):
    assert trio.run(lambda: LearnerPerformer(recorder.dispatcher, LearnerTable()).warm_start([], seed=0)) == {}
    assert recorder.calls == []


def test_a_warm_start_from_nothing_is_refused_with_what_to_do(recorder):
    performer = LearnerPerformer(recorder.dispatcher, LearnerTable(warm_start_steps=3))
    with pytest.raises(ConfigError, match=r"live\.learner.warm_start_steps"):
        trio.run(lambda: performer.warm_start([], seed=0))
