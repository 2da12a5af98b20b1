"""Threads are bounded; a call that hangs costs its thread, a spare takes its place, and when there is none left it is said."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from pipeline.environments.environment import ThreadsLostError
from pipeline.performers.threads import Threads

LABEL = ("episode", 7, "Env", "step")


@contextmanager
def threads(*args, **kwargs):
    pool = Threads(*args, **kwargs)
    try:
        yield pool
    finally:
        pool.close()


@given(size=st.integers(1, 4), calls=st.integers(0, 24), failing=st.sets(st.integers(0, 23)))
def test_every_call_is_answered_once_and_no_more_run_than_there_are_threads(size, calls, failing):
    running, most, lock = 0, 0, threading.Lock()

    def work(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0)
        with lock:
            running -= 1
        if number in failing:
            raise KeyError(number)
        return number

    answers = {}

    async def caller(pool, number):
        try:
            answers[number] = await pool.run(LABEL, work, number)
        except KeyError as failure:
            answers[number] = failure.args

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(calls):
                nursery.start_soon(caller, pool, number)

    with threads(size) as pool:
        trio.run(main)
    assert answers == {number: (number,) if number in failing else number for number in range(calls)}
    assert most <= size
    assert pool.lost == 0


def test_what_ends_a_thread_elsewhere_is_a_failure_here():
    async def main():
        with pytest.raises(SystemExit):
            await pool.run(LABEL, exit_with, 3)
        return await pool.run(LABEL, int, "5")

    def exit_with(status):
        raise SystemExit(status)

    with threads(1) as pool:
        assert trio.run(main) == 5


async def hang(pool, release, jobs, late=None):
    """Call what hangs, and give up on it as soon as it has begun."""
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def blocked():
            token.run_sync_soon(scope.cancel)
            return release.wait(60)

        await pool.run(LABEL, blocked, given_up=jobs.append, late=late)


async def all_gone(pool, jobs):
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(pool.gone, job)


def test_a_call_that_has_not_begun_when_it_is_cancelled_never_begins():
    release, ran, jobs = threading.Event(), [], []

    async def main():
        await hang(pool, release, jobs)
        with trio.move_on_after(1) as scope:
            await pool.run(LABEL, ran.append, 1, given_up=jobs.append)
        assert scope.cancelled_caught
        assert len(jobs) == 1
        release.set()
        return await pool.run(LABEL, len, ran)

    with threads(1) as pool:
        assert trio.run(main, clock=MockClock(autojump_threshold=0)) == 0


def test_what_tears_down_is_done_although_its_caller_has_gone_before_it_began():
    release, closed, jobs = threading.Event(), [], []

    async def main():
        await hang(pool, release, jobs)
        with trio.move_on_after(1) as scope:
            await pool.run(LABEL, closed.append, 1, given_up=jobs.append, closing=True)
        assert scope.cancelled_caught
        with trio.move_on_after(100):  # it waits for a thread and hangs nowhere: no spare is spent on it
            await pool.gone(jobs[1])
        assert (pool.lost, closed) == (0, [])
        assert len(pool.hanging()) == 1
        release.set()
        await pool.gone(jobs[1])
        assert closed == [1]

    with threads(1, 0) as pool:
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0.05))
        finally:
            release.set()


def test_what_tears_down_is_served_when_too_many_threads_hang():
    release, closed, jobs = threading.Event(), [], []

    async def main():
        await hang(pool, release, jobs)
        with pytest.raises(ThreadsLostError):
            await pool.gone(jobs[0])
        with pytest.raises(ThreadsLostError):
            await pool.run(LABEL, closed.append, 0)
        await pool.run(LABEL, closed.append, 1, closing=True)
        assert closed == [1]

    with threads(1, 0) as pool:
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0.05))
        finally:
            release.set()


@pytest.mark.parametrize("size", [1, 3])
def test_hung_calls_on_every_thread_starve_nobody(size):
    release, jobs = threading.Event(), []

    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(hang, pool, release, jobs)
        began = trio.current_time()
        await all_gone(pool, jobs)
        assert trio.current_time() - began == pytest.approx(5.0)  # the grace
        assert pool.lost == size
        assert all("episode 7 Env step (for " in line for line in pool.hanging())
        assert [await pool.run(LABEL, abs, -number) for number in range(9)] == list(range(9))

    with threads(size) as pool:
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0.05))
        finally:
            release.set()


def test_one_more_than_there_are_spares_is_named_by_gone_and_by_every_later_call():
    release, jobs = threading.Event(), []

    async def main():
        for _ in range(3):
            await hang(pool, release, jobs)
        for job in jobs[:2]:
            await pool.gone(job)
        with pytest.raises(ThreadsLostError, match=r"3 threads hang .* 2 spare"):
            await pool.gone(jobs[2])
        with pytest.raises(ThreadsLostError, match="episode 7 Env step"):
            await pool.run(LABEL, int)

    with threads(3, 2) as pool:
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0.05))
        finally:
            release.set()


@pytest.mark.real_clock
def test_a_lost_thread_that_ends_after_all_gives_its_spare_back():
    release, jobs, late = threading.Event(), [], []

    async def main():
        await hang(pool, release, jobs, late.append)
        await pool.gone(jobs[0])
        assert pool.lost == 1
        release.set()
        with trio.fail_after(20):
            await jobs[0].ended.wait()
            assert pool.lost == 0
            assert late == [True]
            assert pool.hanging() == []
            release.clear()
            return await pool.run(LABEL, int, "5")

    with threads(1, 1, grace_s=0.02) as pool:
        assert trio.run(main) == 5


@pytest.mark.real_clock
def test_a_call_that_ends_within_the_grace_costs_no_spare():
    release, jobs = threading.Event(), []

    async def main():
        await hang(pool, release, jobs)
        release.set()
        await pool.gone(jobs[0])
        assert pool.lost == 0
        assert pool.hanging() == []

    with threads(1, 0) as pool:
        trio.run(main)


@pytest.mark.real_clock
def test_threads_end_when_the_pool_is_closed():
    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(pool.run, LABEL, time.sleep, 0.01)

    before = set(threading.enumerate())
    with threads(4) as pool:
        trio.run(main)
        workers = set(threading.enumerate()) - before
        assert len(workers) == 4
    for worker in workers:
        worker.join(20)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.real_clock
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=20))
@settings(max_examples=20)
def test_calls_that_are_given_up_at_any_moment_leave_a_pool_as_good_as_new(calls):
    """Each call takes some milliseconds and is given up after some, so that all moments are met; all end in the end."""
    jobs, answers = [], []

    async def caller(pool, takes, patience, number):
        with trio.move_on_after(patience / 1000) as scope:
            answers.append(await pool.run(LABEL, busy, takes / 1000, number, given_up=jobs.append, late=answers.append))
        return scope.cancelled_caught

    def busy(seconds, number):
        time.sleep(seconds)
        began.append(number)
        return number

    began = []

    async def main():
        async with trio.open_nursery() as nursery:
            for number, (takes, patience, _) in enumerate(calls):
                nursery.start_soon(caller, pool, takes, patience, number)
        await all_gone(pool, [job for job, (_, _, waits) in zip(jobs, calls, strict=False) if waits])
        with trio.fail_after(20):
            while pool._busy:  # noqa: ASYNC110 - threads end when they do
                await trio.sleep(0.001)
        assert (pool.lost, pool.hanging()) == (0, [])
        assert sorted(began) == sorted(answers)  # every call that began was answered once, in time or late
        return [await pool.run(LABEL, abs, -number) for number in range(4)]

    with threads(2, 100, grace_s=0.001) as pool:
        assert trio.run(main) == list(range(4))
