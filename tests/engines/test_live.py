"""The engine `live` on the system clock: what can be promised there. Every wait is a few milliseconds."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import trio

from harness.core.errors import ConfigError, DeadlineExceeded
from harness.core.events import MemoryRecorder
from harness.core.primitives import Permits
from harness.core.work import Outcome
from harness.engines import live
from harness.engines.conformance import LAWS, AbandonedJob, BoundaryJob, Job, KilledJob, job_performers

MS = 1_000_000
SLACK_NS = 400 * MS
"""How late a busy machine may be; what is early is never forgiven."""

pytestmark = pytest.mark.real_clock


def _late(at_ns: int, due_ns: int) -> bool:
    return due_ns <= at_ns <= due_ns + SLACK_NS


def test_time_is_relative_to_the_start_and_sleeps_are_never_short():
    async def main(rt):
        times = [rt.now()]
        for _ in range(5):
            before = rt.now()
            await rt.sleep(2 * MS)
            assert rt.now() - before >= 2 * MS
            times.append(rt.now())
        return times

    times = live.run(main)
    assert times == sorted(times)
    assert _late(times[0], 0)
    assert _late(times[-1], 10 * MS)


def test_a_sleep_due_before_the_deadline_returns_however_late_the_scheduler_is():
    """The body blocks the thread past both instants: one pass of the scheduler sees both."""

    async def hog(rt):
        await rt.checkpoint()
        time.sleep(0.02)  # noqa: ASYNC251  # the point of the test

    async def main(rt):
        log = []
        async with rt.nursery() as nursery:
            nursery.start_soon(hog, rt)
            with rt.move_on_after(6 * MS) as scope:
                await rt.sleep(5 * MS)
                log.append("slept")
                await rt.checkpoint()
                log.append("went on")
            log.append(scope.cancelled_caught)
            with rt.move_on_after(MS):
                await rt.sleep(2 * MS)
                log.append("never")
        return log

    assert live.run(main) == ["slept", True]


def test_fail_after_on_the_system_clock():
    async def main(rt):
        with rt.fail_after(3 * MS):
            await rt.event().wait()

    with pytest.raises(DeadlineExceeded):
        live.run(main)


def test_no_schedule_point_without_waiting_on_the_system_clock():
    {law.name: law for law in LAWS}["no_schedule_point_without_waiting"](live.run)


def test_sibling_failure_on_the_system_clock():
    async def fail(rt):
        await rt.sleep(2 * MS)
        raise ConfigError("child")

    async def main(rt):
        async with rt.nursery() as nursery:
            nursery.start_soon(fail, rt)
            await rt.event().wait()

    with pytest.raises(BaseExceptionGroup) as caught:
        live.run(main)
    assert [str(part) for part in caught.value.exceptions] == ["child"]


class ThreadWorker:
    """A real thread: cancelled, it works on; `gone` waits for it."""

    def __init__(self):
        self.ended = threading.Event()

    async def __call__(self, rt, work, /):
        started = rt.now()

        def job():
            time.sleep(work.duration_ns / 1e9)
            self.ended.set()

        await trio.to_thread.run_sync(job, abandon_on_cancel=True)
        return Outcome(amount=work.duration_ns, started_ns=started)

    async def gone(self, rt, work, /):
        while not self.ended.is_set():
            await rt.sleep(MS)


async def _cut_off(rt, work, timeout_ns):
    pool = Permits(rt, 1)
    await pool.acquire()
    freed = []

    async def watcher():
        await pool.acquire()
        freed.append(rt.now())

    async with rt.nursery() as nursery:
        nursery.start_soon(watcher)
        with rt.move_on_after(timeout_ns) as scope:
            await rt.perform(work, permit=pool)
        returned = rt.now()
    return returned, freed[0], scope.cancelled_caught


@pytest.mark.parametrize(
    ("kind", "returned_ns", "freed_ns"),
    [(BoundaryJob, 60 * MS, 60 * MS), (AbandonedJob, 5 * MS, 60 * MS), (KilledJob, 60 * MS, 60 * MS)],
)
def test_a_real_thread_is_cancelled_as_its_kind_says(kind, returned_ns, freed_ns):
    """A 5 ms deadline round a thread of 60 ms: who returns when, and when the pool has room again."""
    returned, freed, caught = live.run(_cut_off, kind(1, 60 * MS), 5 * MS, performers={kind: ThreadWorker()})
    assert caught
    assert _late(freed, freed_ns)
    assert returned >= returned_ns
    if kind is AbandonedJob:
        assert returned < freed


def test_a_real_thread_that_ends_in_time():
    async def main(rt):
        pool = Permits(rt, 1)
        await pool.acquire()
        outcome = await rt.perform(Job(1, 3 * MS), permit=pool)
        return outcome.amount, pool.in_use

    assert live.run(main, performers={Job: ThreadWorker()}) == (3 * MS, 0)


def test_cancelled_simulated_work_on_the_system_clock():
    """The performers of the laws, in real milliseconds."""
    returned, freed, caught = live.run(_cut_off, KilledJob(1, 50 * MS, 8 * MS), 4 * MS, performers=job_performers())
    assert caught
    assert _late(returned, 12 * MS)
    assert _late(freed, 12 * MS)


def test_the_log_of_a_live_run_is_in_order_of_time():
    async def worker(rt, number):
        for turn in range(3):
            await rt.sleep(number * MS // 2)
            rt.emit(99, number, turn)

    async def main(rt):
        async with rt.nursery() as nursery:
            for number in range(1, 5):
                nursery.start_soon(worker, rt, number)

    recorder = MemoryRecorder()
    live.run(main, recorder=recorder)
    assert [event[0] for event in recorder.events] == sorted(event[0] for event in recorder.events)
    assert sorted(event[2:4] for event in recorder.events) == [(n, t) for n in range(1, 5) for t in range(3)]


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also where whoever started these tests had it ignored (a shell does for what runs behind it)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cleans_up_and_comes_out_bare():
    log = []

    async def worker(rt):
        try:
            await rt.event().wait()
        finally:
            log.append("worker")

    async def main(rt):
        async with rt.nursery() as nursery:
            nursery.start_soon(worker, rt)
            await rt.sleep(2 * MS)
            os.kill(os.getpid(), signal.SIGINT)
            await rt.event().wait()

    with pytest.raises(KeyboardInterrupt):
        live.run(main)
    assert log == ["worker"]
