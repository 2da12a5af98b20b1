"""A pool against the obvious model of its queue, under random asks, patience and holding times, on the fast engine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError, WouldBlock
from harness.core.primitives import Permits, WakeUp
from harness.engines import sim, virtual

QUIET = settings(max_examples=150, deadline=None, derandomize=True, database=None)
USERS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 8), st.integers(1, 9)),  # arrives, key, patience, holds
    min_size=1,
    max_size=12,
)


def _model(capacity: int, users: list[tuple[int, int, int, int]]) -> dict[int, int | None]:
    """When each user got its permit: asks fall on even instants; returns, and after them ends of patience, on odd ones."""
    got: dict[int, int | None] = {}
    ends: dict[int, int] = {}
    for now in range(1_000):
        asking = sorted((2 * arrives, key, user) for user, (arrives, key, _, _) in enumerate(users) if 2 * arrives <= now)
        ends = {user: end for user, end in ends.items() if end != now}
        for _, _, user in asking:
            if user not in got and len(ends) < capacity:
                got[user] = now
                holds = users[user][3]
                ends[user] = now + (2 * holds - 1 if now % 2 == 0 else 2 * holds)
        for asked, _, user in asking:
            if user not in got and asked + 2 * users[user][2] + 1 <= now:
                got[user] = None
    return got


@QUIET
@given(st.integers(1, 3), USERS)
def test_permits_follow_the_queue(capacity, users):
    got: dict[int, int | None] = {}

    async def user(rt, pool, number, key, patience, holds):
        got[number] = None
        with rt.move_on_after(2 * patience + 1):
            await pool.acquire(key)
            got[number] = rt.now()
        if got[number] is not None:
            await rt.sleep(2 * holds - 1 if (rt.now() % 2 == 0) else 2 * holds)
            pool.release()

    async def main(rt):
        pool = Permits(rt, capacity)
        async with rt.nursery() as nursery:
            for now in range(10):
                mine = sorted((key, number, p, h) for number, (arrives, key, p, h) in enumerate(users) if arrives == now)
                for key, number, patience, holds in mine:
                    nursery.start_soon(user, rt, pool, number, key, patience, holds)
                await rt.sleep(2)
                assert 0 <= pool.in_use <= capacity
                assert pool.waiting == 0 or pool.in_use == capacity
        return pool.in_use, pool.waiting

    assert sim.run(main) == (0, 0)
    assert got == _model(capacity, users)


def test_a_pool_has_at_least_one_permit():
    with pytest.raises(LawError, match="tools: a pool of 0"):
        sim.run(_make_pool, 0)


async def _make_pool(rt, capacity):
    Permits(rt, capacity, "tools")


def test_giving_back_more_than_was_taken_is_an_error():
    async def main(rt):
        pool = Permits(rt, 2, "tools")
        pool.acquire_nowait()
        pool.release()
        with pytest.raises(LawError, match="tools: more permits"):
            pool.release()
        pool.acquire_nowait()
        pool.acquire_nowait()
        with pytest.raises(WouldBlock):
            pool.acquire_nowait()

    sim.run(main)


def test_a_wake_up_has_one_waiter():
    async def main(rt):
        bell = WakeUp(rt)
        async with rt.nursery() as nursery:
            nursery.start_soon(bell.wait)
            await rt.sleep(1)
            with pytest.raises(LawError, match="one waiter"):
                await bell.wait()
            bell.ring()

    sim.run(main)


def test_try_acquire_takes_a_permit_or_changes_nothing():
    async def main(rt):
        pool = Permits(rt, 1)
        assert [pool.try_acquire(), pool.try_acquire(), pool.in_use] == [True, False, 1]
        async with rt.nursery() as nursery:
            nursery.start_soon(pool.acquire)
            await rt.sleep(1)
            pool.release()
            assert [pool.try_acquire(), pool.in_use, pool.waiting] == [False, 1, 0]

    sim.run(main)


ENGINES = pytest.mark.parametrize("engine", [sim.run, virtual.run], ids=["sim", "virtual"])


@ENGINES
@pytest.mark.parametrize("others", [0, 1])
def test_a_permit_given_to_one_who_was_just_cancelled_goes_on(engine, others):
    """Cancelled and granted in one step: the waiter has had no chance to say that it is gone."""

    async def impatient(rt, pool, scope):
        with scope:
            await pool.acquire(1)
            raise AssertionError("it was cancelled first")

    async def main(rt):
        pool = Permits(rt, 1)
        pool.acquire_nowait()
        async with rt.nursery() as nursery:
            scope = rt.cancel_scope()
            nursery.start_soon(impatient, rt, pool, scope)
            for _ in range(others):
                nursery.start_soon(pool.acquire, 2)
            await rt.sleep(1)
            scope.cancel()
            pool.release()
        return pool.in_use, pool.waiting

    assert engine(main) == (others, 0)


@ENGINES
def test_a_ring_for_one_who_was_just_cancelled_is_remembered(engine):
    async def impatient(bell, scope):
        with scope:
            await bell.wait()

    async def main(rt):
        bell, scope = WakeUp(rt), rt.cancel_scope()
        async with rt.nursery() as nursery:
            nursery.start_soon(impatient, bell, scope)
            await rt.sleep(1)
            scope.cancel()
            bell.ring()
        with rt.fail_after(1):
            await bell.wait()

    engine(main)
