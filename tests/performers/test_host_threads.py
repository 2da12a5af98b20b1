"""Threads are bounded; a call that hangs costs its thread, a spare takes its place, and when there is none left it is said."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
import trio
from hypothesis import given
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
    """Give up on a call that hangs, after a second."""
    with trio.move_on_after(1):
        await pool.run(LABEL, release.wait, 60, given_up=jobs.append, late=late)


async def all_gone(pool, jobs):
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(pool.gone, job)


def test_a_call_that_has_not_begun_when_it_is_cancelled_never_begins():
    release, ran, jobs = threading.Event(), [], []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang, pool, release, jobs)
            await trio.sleep(0.5)
            with trio.move_on_after(0.25) as scope:
                await pool.run(LABEL, ran.append, 1, given_up=jobs.append)
            assert scope.cancelled_caught
        assert len(jobs) == 1
        release.set()
        return await pool.run(LABEL, len, ran)

    with threads(1) as pool:
        assert trio.run(main, clock=MockClock(autojump_threshold=0.05)) == 0


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
        with trio.move_on_after(0.02):
            await pool.run(LABEL, release.wait, 60, given_up=jobs.append, late=late.append)
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
        with trio.move_on_after(0.02):
            await pool.run(LABEL, release.wait, 60, given_up=jobs.append)
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
