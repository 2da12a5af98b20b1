"""The flow of groups through a live run: delivered once, in step, through slow tails, slow consumers and stale drops.

Real actors and host performers on a mock clock; numbers are those of `FIELD_SCENARIOS` (test_field_scenarios).
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import trio
from live_world import SHORT, Counted, S, counted, play

from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import Outcome, Publish, TrainStep
from pipeline.data import episode_id

PATIENT = SHORT | {"tool_s": 100.0, "step_s": 200.0, "episode_s": 500.0, "sync_s": 1000.0}


async def ragged(self, action):
    """A step whose time differs from episode to episode."""
    await trio.sleep(0.5 + self.number * 7 % 5)
    return await Counted.step(self, action)


async def publish(rt, work):
    """A publish takes a second."""
    await rt.sleep(S)
    return Outcome()


@pytest.mark.parametrize("batch", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, None])
def test_01_groups_are_delivered_once_whole_and_in_batches_of_the_asked_size(size, batch, chunk):
    batches, taken = Counter(), []

    async def train(rt, work):
        batches[work.entity] += len(work.payload)
        taken.extend(work.payload)
        return Outcome()

    knobs = {"group_size": size, "groups_per_step": batch, "buffer_capacity": 2 * batch, "consume_chunk": chunk or batch}
    played = play(counted(step=ragged), pipeline=knobs, steps=4, replaced=lambda own: {TrainStep: train})
    assert batches == dict.fromkeys(range(1, 5), batch)
    assert len({group.group for group in taken}) == len(taken) == 4 * batch
    for group in taken:
        assert sorted(result.episode for result in group.members) == [episode_id(group.group, member) for member in range(size)]
        assert len({tuple(result.payload.tokens[:9]) for result in group.members}) == 1  # the prompt is the task
    admitted = [event[2] for event in played.memory.events if event[1] == EventKind.GROUP_ADMIT]
    assert admitted == list(range(len(admitted)))  # group 0 is one like any other


@pytest.mark.parametrize("mode", ["drain", "drain_episodes", "abort_resume", "keep"])
def test_12_off_policy_one_with_low_concurrency_makes_progress(mode):
    knobs = {"max_staleness": 1, "pipeline_depth": 1, "max_inflight": 2, "env_workers": 2, "sync_mode": mode}
    played = play(counted(step=ragged), pipeline=knobs, steps=6, replaced=lambda own: {Publish: publish})
    assert played.report.versions[0] == 6
    waits = sync_waits(played)
    assert set(waits) >= set(range(1, 6))  # reported for each step
    assert all(wait_ns >= S for wait_ns in waits.values())


def sync_waits(played):
    """Nanoseconds from the order to the publish, for each version that was published."""
    began = {event[2]: event[0] for event in played.memory.events if event[1] == EventKind.SYNC_START}
    return {e[2]: e[0] - began[e[2]] for e in played.memory.events if e[1] == EventKind.PUBLISHED}


def long_tail(mode):
    """A run in which one episode of the first step's time takes a minute."""

    async def step(self, action):
        await trio.sleep(60 if self.number == 6 and self.turns == 0 else 1)
        return await Counted.step(self, action)

    knobs = {"sync_mode": mode, "max_staleness": 2, "pipeline_depth": 2, "deadlines": PATIENT}
    return play(counted(step=step), pipeline=knobs, steps=6, replaced=lambda own: {Publish: publish})


def test_13_a_drain_of_episodes_costs_the_slowest_one_and_says_so():
    played = long_tail("drain_episodes")
    assert sync_waits(played)[1] >= 55 * S
    assert played.report.lane_ns["learner"][State.SYNC_WAIT] >= 50 * S
    assert played.report.idle_ns["replica/0"]["admission"] >= 30 * S  # nothing may start meanwhile: named as the cause


@pytest.mark.parametrize("mode", ["drain", "abort_resume", "keep"])
def test_13_the_alternatives_let_old_episodes_end_while_weights_change(mode):
    drained, played = long_tail("drain_episodes"), long_tail(mode)
    assert max(sync_waits(played).values()) <= 4 * S  # the chunk that runs, and the publish
    assert played.report.lane_ns["learner"][State.SYNC_WAIT] == 0
    assert played.report.end_ns < 0.5 * drained.report.end_ns


def test_18_a_slow_consumer_at_the_end_of_the_tasks_still_gets_every_whole_group():
    class Finite:
        """Tasks that end."""

        def __init__(self, inner):
            self._inner = inner
            self._left = 12

        def next_task(self):
            self._left -= 1
            return self._inner.next_task() if self._left >= 0 else None

        def __getattr__(self, name):
            return getattr(self._inner, name)

    batches = []

    async def train(rt, work):
        await rt.sleep(300 * S)
        batches.append([group.group for group in work.payload])
        return Outcome()

    knobs = {"max_staleness": 6, "pipeline_depth": 6, "buffer_capacity": 14}
    played = play(counted(), pipeline=knobs, steps=6, source_of=Finite, replaced=lambda own: {TrainStep: train})
    ended = [event for event in played.memory.events if event[1] == EventKind.EPISODE_END]
    assert max(event[0] for event in ended) < 300 * S  # the producer was done long before
    assert sorted(group for batch in batches for group in batch) == list(range(12))


def test_20_stale_drops_give_their_credit_back_and_the_pace_returns():
    """Three stragglers make three groups too old. With their credit gone, a window of four would be down to one: no step."""

    def paces(stragglers):
        async def step(self, action):
            slow = self.number in stragglers and self.turns == 0
            await trio.sleep(45 if slow else 1)
            return await Counted.step(self, action)

        knobs = {
            "admission": "window", "window_fraction": 1.0, "max_staleness": 1, "stale_policy": "drop", "buffer_capacity": 12,
            "max_inflight": 16, "env_workers": 16, "tool_workers": 16, "deadlines": PATIENT, "pipeline_depth": 1,
        }  # fmt: skip
        played = play(counted(step=step), pipeline=knobs, steps=40)
        done = [event[0] for event in played.memory.events if event[1] == EventKind.STEP]
        return played.report.tally.dropped.get("stale", 0), [after - before for before, after in pairwise(done)]

    (usual, even), (dropped, paced) = paces(()), paces((9, 41, 73))
    assert (usual, dropped) == (0, 3)
    assert sum(paced[-14:]) <= 1.5 * sum(even[-14:])
