"""What the engine `virtual` guards against, and its order of ties."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from types import SimpleNamespace

import pytest
import trio

from harness.core.errors import DeadlockError, LawError, LivelockError
from harness.core.events import MemoryRecorder
from harness.engines import virtual

MS = 1_000_000


async def _tied_workers(rt, number=12):
    order = []

    async def worker(name):
        await rt.sleep(MS)
        order.append(name)

    async with rt.nursery() as nursery:
        for name in range(number):
            nursery.start_soon(worker, name)
    return order


def test_the_canonical_order_is_the_order_of_creation():
    assert virtual.run(_tied_workers) == list(range(12))


def test_tie_seeds_shuffle_and_repeat():
    orders = {seed: tuple(virtual.run(_tied_workers, tie_seed=seed)) for seed in range(20)}
    assert len(set(orders.values())) == 20
    assert all(sorted(order) == list(range(12)) for order in orders.values())
    assert orders == {seed: tuple(virtual.run(_tied_workers, tie_seed=seed)) for seed in range(20)}


def test_trio_is_left_as_it_was():
    module = trio._core._run
    before = module._ALLOW_DETERMINISTIC_SCHEDULING, module._r
    virtual.run(_tied_workers)
    with pytest.raises(ZeroDivisionError):
        virtual.run(_divide, tie_seed=3)
    assert (module._ALLOW_DETERMINISTIC_SCHEDULING, module._r) == before


async def _divide(rt):
    await rt.sleep(1)
    return 1 // 0


@pytest.mark.parametrize("name", ["_ALLOW_DETERMINISTIC_SCHEDULING", "_r"])
def test_a_trio_without_the_switch_is_refused(monkeypatch, name):
    monkeypatch.delattr(trio._core._run, name)
    with pytest.raises(LawError, match=name):
        virtual.run(_tied_workers)


def test_a_thread_is_refused_and_waited_for():
    ended = []

    def job():
        time.sleep(0.02)
        ended.append(1)

    async def main(rt):
        await trio.to_thread.run_sync(job)
        await rt.sleep(1)

    with pytest.raises(LawError, match="thread or a socket"):
        virtual.run(main)
    assert ended == [1]


def test_a_socket_is_refused():
    async def main(rt):
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            await trio.lowlevel.wait_readable(left)

    with pytest.raises(LawError, match="thread or a socket"):
        virtual.run(main)


def test_a_deadlock_names_everybody():
    async def main(rt):
        async with rt.nursery() as nursery:
            nursery.start_soon(rt.event().wait, name="learner")
            nursery.start_soon(rt.event().wait, name="publisher")

    with pytest.raises(DeadlockError) as caught:
        virtual.run(main)
    assert [name.rpartition(".")[2] for name in caught.value.waiters] == ["main", "learner", "publisher"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_livelock_that_swallows_every_cancellation_is_torn_down():
    async def main(rt):
        while True:
            with rt.cancel_scope(shield=True):
                async with rt.nursery() as nursery:
                    nursery.start_soon(rt.checkpoint)

    with pytest.raises(LivelockError):
        virtual.run(main, step_limit=200)
    gc.collect()  # its coroutines complain here


def test_time_beyond_the_exact_range_is_refused():
    async def sleeper(rt):
        await rt.sleep(virtual.LATEST_NS)

    async def scoper(rt):
        with rt.move_on_after(virtual.LATEST_NS):
            await rt.sleep(1)

    async def last(rt):
        await rt.sleep(virtual.LATEST_NS - 2)
        with rt.move_on_after(1) as scope:
            await rt.event().wait()
        return scope.cancelled_caught, rt.now()

    for main in (sleeper, scoper):
        with pytest.raises(LawError, match="52 days"):
            virtual.run(main)
    assert virtual.run(last) == (True, virtual.LATEST_NS - 1)


def test_host_time_never_enters():
    async def main(rt):
        await rt.sleep(5)
        time.sleep(0.01)  # noqa: ASYNC251  # the point of the test
        rt.emit(99, 1)
        with rt.move_on_after(7):
            await rt.event().wait()
        rt.emit(99, 2)

    recorder = MemoryRecorder()
    virtual.run(main, recorder=recorder)
    assert [event[:3] for event in recorder.events] == [(5, 99, 1), (12, 99, 2)]


def test_a_failing_simpy_callback_ends_the_run_and_not_trio():
    async def main(rt):
        event = rt._clock._environment.timeout(3)
        event.callbacks.append(lambda fired: SimpleNamespace().missing)
        await rt.event().wait()

    with pytest.raises(LawError, match="SimPy callback failed at 3 ns: AttributeError"):
        virtual.run(main)


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_comes_out_bare():
    async def main(rt):
        async with rt.nursery() as nursery:
            nursery.start_soon(rt.event().wait)
            os.kill(os.getpid(), signal.SIGINT)
            await rt.sleep(1)
            await rt.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        virtual.run(main)
