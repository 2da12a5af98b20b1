"""A `Timed` performer, which `sim` serves without frames of its own, is indistinguishable from one that sleeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.events import MemoryRecorder
from harness.core.perform import Timed, TimedFrom
from harness.core.primitives import Permits
from harness.core.work import Outcome, Work
from harness.engines import sim, virtual
from harness.engines.conformance import AbandonedJob, BoundaryJob, Job, KilledJob

KINDS = (Job, BoundaryJob, KilledJob, AbandonedJob)


def answer(work: Job) -> tuple[int, Outcome]:
    return work.duration_ns, Outcome(result=work.payload, amount=work.duration_ns)


class Sleeps:
    """The same with frames: what `Timed` says it is."""

    async def __call__(self, rt: Any, work: Job, /) -> Outcome:
        duration_ns, outcome = answer(work)
        await rt.sleep(duration_ns)
        return outcome

    async def gone(self, rt: Any, work: Job, /) -> None:
        """Free at once."""


def story(performer: Any, plan: list[tuple[int, int, int, int]], engine: Any, *, recorded: bool) -> Any:
    """Several callers share a pool; each works under a deadline of its own. What they saw, and the log."""
    recorder = MemoryRecorder()

    async def caller(
        rt: Any, pool: Permits, number: int, kind: int, start: int, duration: int, timeout: int, seen: list[Any]
    ) -> None:
        await rt.sleep(start)
        with rt.move_on_after(timeout) as scope:
            await pool.acquire(number)
            outcome = await rt.perform(KINDS[kind](number, duration, payload=number), permit=pool)
            seen.append((number, rt.now(), outcome.result, outcome.amount))
        seen.append((number, rt.now(), scope.cancelled_caught, pool.in_use))

    async def main(rt: Any) -> Any:
        pool, seen = Permits(rt, 2), []
        async with rt.nursery() as nursery:
            for number, (kind, start, duration, timeout) in enumerate(plan):
                nursery.start_soon(caller, rt, pool, number, kind, start, duration, timeout, seen)
        await rt.sleep(1000)
        seen.append(("left", pool.in_use, pool.waiting))
        return seen

    performers: dict[type[Work], Any] = dict.fromkeys(KINDS, performer)
    options = {"recorder": recorder} if recorded else {}
    return engine(main, performers=performers, **options), recorder.events


TIMES = st.integers(0, 12)
PLANS = st.lists(st.tuples(st.integers(0, 3), TIMES, TIMES, TIMES), min_size=1, max_size=6)


@given(plan=PLANS, recorded=st.booleans())
def test_a_timed_performer_is_one_that_sleeps(plan: list[tuple[int, int, int, int]], recorded: bool) -> None:
    assert story(Timed(answer), plan, sim.run, recorded=recorded) == story(Sleeps(), plan, sim.run, recorded=recorded)


def later(work: Job, now_ns: int) -> tuple[int, Outcome]:
    """Takes longer at some instants, and knows when it began."""
    return work.duration_ns + now_ns % 3, Outcome(result=work.payload, amount=work.duration_ns, started_ns=now_ns)


class SleepsLater(Sleeps):
    """With frames: what `TimedFrom` says it is."""

    async def __call__(self, rt: Any, work: Job, /) -> Outcome:
        duration_ns, outcome = later(work, rt.now())
        await rt.sleep(duration_ns)
        return outcome


@given(plan=PLANS, recorded=st.booleans())
def test_one_that_depends_on_the_instant_is_one_that_sleeps(plan: list[tuple[int, int, int, int]], recorded: bool) -> None:
    timed = story(TimedFrom(later), plan, sim.run, recorded=recorded)
    assert timed == story(SleepsLater(), plan, sim.run, recorded=recorded)
    assert timed == story(TimedFrom(later), plan, virtual.run, recorded=recorded)


@given(plan=PLANS)
def test_a_timed_performer_is_the_same_on_real_trio(plan: list[tuple[int, int, int, int]]) -> None:
    assert story(Timed(answer), plan, sim.run, recorded=True) == story(Timed(answer), plan, virtual.run, recorded=True)


def test_a_failing_duration_gives_the_permit_back() -> None:
    def broken(work: Job) -> tuple[int, Outcome]:
        raise RuntimeError("no law for this")

    async def main(rt: Any) -> int:
        pool = Permits(rt, 1)
        await pool.acquire()
        with pytest.raises(RuntimeError, match="no law"):
            await rt.perform(Job(0, 5), permit=pool)
        return pool.in_use

    assert sim.run(main, performers={Job: Timed(broken)}) == virtual.run(main, performers={Job: Timed(broken)}) == 0


class Full:
    """A recorder that has room for some events only."""

    enabled = True

    def __init__(self, room: int) -> None:
        self._room = room

    def append_event(self, event: Any) -> None:
        self._room -= 1
        if self._room < 0:
            raise OSError("no space left")

    def append_interval(self, interval: Any) -> None:
        """Nothing works in a lane here."""


@pytest.mark.parametrize("engine", [sim.run, virtual.run])
@pytest.mark.parametrize("performer", [Timed(answer), TimedFrom(later), Sleeps()])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("room", "timeout"), [(0, 9), (0, 0), (1, 9), (1, 3), (2, 9)])
def test_a_recorder_that_fails_keeps_no_permit(engine: Any, performer: Any, kind: Any, room: int, timeout: int) -> None:
    async def main(rt: Any) -> tuple[bool, int]:
        pool, failed = Permits(rt, 1), False
        await pool.acquire()
        try:
            with rt.move_on_after(timeout):
                await rt.perform(kind(0, 5), permit=pool)
        except OSError:
            failed = True
        await rt.sleep(10)
        return failed, pool.in_use

    assert engine(main, performers={kind: performer}, recorder=Full(room)) == (room < 2, 0)
