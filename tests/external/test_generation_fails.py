"""Generations that fail in the middle, in whole pipelines: what was made is kept and gone on from, or the episode fails."""

from __future__ import annotations

import pytest
from tiny_world import S, geometric, play, scenario

from harness.core.events import EventKind, first_difference
from harness.core.work import Control, Generate, Order, Outcome, Status
from harness.engines import sim, virtual
from pipeline.actors.environments import GENERATION_PHASE
from pipeline.data import Ended

KNOBS = {
    "max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8, "max_inflight": 16, "env_workers": 16, "sync_mode": "keep",
    "retry_infra": 3, "retry_data": 1, "group_quorum": 1, "overprovision_members": 1,
}  # fmt: skip


class Failing:
    """The world's servers, which break off some generations after a while."""

    def __init__(self, world, status, fails):
        self._generate, self._control = world.performers[Generate], world.performers[Control]
        self._status, self._fails = status, fails
        self.sent = {}
        self.broken = 0

    async def __call__(self, rt, work):
        number = self.sent[work.entity] = self.sent.get(work.entity, 0) + 1
        if not self._fails(work.entity, number):
            return await self._generate(rt, work)
        outcome = None

        async def ask():
            nonlocal outcome
            outcome = await self._generate(rt, work)

        async with rt.nursery() as nursery:
            nursery.start_soon(ask)
            await rt.sleep(S // 7)
            await self._control(rt, Control(work.replica, Order.ABORT, work.payload.ticket))
        if outcome.status is Status.OK:
            return outcome
        self.broken += 1
        return Outcome(status=self._status, amount=outcome.amount, started_ns=outcome.started_ns)


def played(status, fails, engine=sim.run, seed=2):
    kept = []

    def performers(world):
        kept.append(Failing(world, status, fails))
        return {Generate: kept[0]}

    world = {"inference": {"replicas": 2, "server": {"slots": 4}}}
    what = scenario(KNOBS, world=world, random=True, steps=6, workload={"response_tokens": geometric(40.0, 90)})
    return play(what, seed, engine=engine, performers=performers), kept[0]


@pytest.mark.parametrize("engine", [sim.run, virtual.run], ids=["sim", "virtual"])
def test_infrastructure_that_fails_now_and_then_costs_no_episode(engine):
    run, failing = played(Status.INFRA, lambda episode, number: number == 1 and episode % 2 == 0, engine)
    assert failing.broken > 5
    retries = [event for event in run.of(EventKind.RETRY) if event[3] == GENERATION_PHASE]
    assert len(retries) >= failing.broken - 4, "those of the last instants may be cut off"
    assert not any(event[3] == Ended.FAILED_INFRA for event in run.of(EventKind.EPISODE_END))


def test_what_was_made_before_a_failure_is_part_of_the_answer():
    """The same tokens as without failures: none is made twice."""
    run, failing = played(Status.INFRA, lambda episode, number: number == 1)
    plain, _ = played(Status.INFRA, lambda episode, number: False)
    assert failing.broken > 5
    ends = {event[2]: event for event in run.of(EventKind.EPISODE_END) if event[3] == Ended.DONE}
    shared = [event for event in plain.of(EventKind.EPISODE_END) if event[3] == Ended.DONE and event[2] in ends]
    assert len(shared) > 10
    assert all(event[4:6] == ends[event[2]][4:6] for event in shared), "turns and tokens"


@pytest.mark.parametrize(("status", "ended"), [(Status.INFRA, Ended.FAILED_INFRA), (Status.FAILED, Ended.FAILED_DATA)])
def test_an_episode_whose_generation_always_fails_is_a_recorded_outcome(status, ended):
    run, failing = played(status, lambda episode, number: episode % 3 == 0)
    assert failing.broken > 5
    failed = [event for event in run.of(EventKind.EPISODE_END) if event[3] == ended]
    assert failed
    assert all(event[2] % 3 == 0 for event in failed)
    assert run.summary.learner_steps == 6


def test_both_engines_leave_the_same_log():
    logs = [
        played(Status.INFRA, lambda episode, number: number == 1, engine)[0].all_events for engine in (sim.run, virtual.run)
    ]
    assert first_difference(*logs) is None
