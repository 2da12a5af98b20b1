"""Laws of what is built on the waist: permits, wake-ups, cells and boxes (`harness.core.primitives`)."""

from __future__ import annotations

from typing import Any

from harness.core.errors import LawError, WouldBlock
from harness.core.primitives import Latest, Permits, WakeUp
from harness.core.runtime import Box
from harness.engines._law import MS, LawBook, expect

BOOK = LawBook()


@BOOK.of_programs
async def permits_are_served_by_time_then_key(rt: Any) -> None:
    """A pool's waiters stand in the order (time of asking, key), whatever order their tasks run in."""
    pool = Permits(rt, 1)
    pool.acquire_nowait()
    served = []

    async def user(key: int) -> None:
        await pool.acquire(key)
        served.append(key)
        await rt.sleep(1)
        pool.release()

    async with rt.nursery() as nursery:
        for keys in ((7, 3, 5), (2, 9, 1)):
            for key in keys:
                nursery.start_soon(user, key)
            await rt.sleep(MS)
        expect((pool.in_use, pool.waiting), (1, 6), "permits in use; waiting")
        pool.release()
    expect((served, pool.in_use, pool.waiting), ([3, 5, 7, 1, 2, 9], 0, 0), "served; in use; waiting")


@BOOK.of_programs
async def permit_is_handed_over(rt: Any) -> None:
    """A permit given back goes to the first waiter at once: a newcomer of the same instant cannot overtake it."""
    pool = Permits(rt, 1)
    pool.acquire_nowait()
    log = []

    async def waiter() -> None:
        await pool.acquire(9)
        log.append("waiter")

    async with rt.nursery() as nursery:
        nursery.start_soon(waiter)
        await rt.sleep(MS)
        pool.release()
        try:
            pool.acquire_nowait()
            raise LawError("a newcomer overtook a waiter")
        except WouldBlock:
            pass
    expect((log, pool.in_use), (["waiter"], 1), "who got it; in use")


@BOOK.of_programs
async def cancelled_acquire_takes_nothing(rt: Any) -> None:
    """An acquire that is cancelled, waiting behind others or not at all, has taken no permit."""
    pool = Permits(rt, 1)
    with rt.move_on_after(0):
        await pool.acquire()
    expect(pool.in_use, 0, "in use after a cancelled acquire of a free permit")
    pool.acquire_nowait()
    served = []

    async def user(key: int, patience_ns: int) -> None:
        with rt.move_on_after(patience_ns):
            await pool.acquire(key)
            served.append(key)
            pool.release()

    async with rt.nursery() as nursery:
        for key, patience_ns in ((1, MS), (2, 9 * MS), (3, 2 * MS), (4, 9 * MS)):
            nursery.start_soon(user, key, patience_ns)
        await rt.sleep(3 * MS)
        expect(pool.waiting, 2, "waiting after two were cancelled")
        pool.release()
    expect((served, pool.in_use, pool.waiting), ([2, 4], 0, 0), "served; in use; waiting")


@BOOK.of_programs
async def wake_up_remembers_one_ring(rt: Any) -> None:
    """Rings without a waiter are remembered once; a ring wakes the waiter at its instant; a cancelled wait leaves no trace."""
    bell = WakeUp(rt)
    bell.ring()
    bell.ring()
    await bell.wait()
    with rt.move_on_after(MS) as scope:
        await bell.wait()
    expect((scope.cancelled_caught, rt.now()), (True, MS), "whether the second wait was cut off, and when")
    async with rt.nursery() as nursery:

        async def ringer() -> None:
            await rt.sleep(MS)
            bell.ring()

        nursery.start_soon(ringer)
        await bell.wait()
        expect(rt.now(), 2 * MS, "when the ring woke the waiter")


@BOOK.of_programs
async def latest_wakes_on_change(rt: Any) -> None:
    """A cell wakes everybody who waits for a change; who is slow sees the newest value only."""
    cell = Latest(rt, 0)
    seen: dict[str, list[tuple[int, int]]] = {"fast": [], "slow": []}

    async def reader(name: str, pause_ns: int) -> None:
        while cell.value < 3:
            seen[name].append((await cell.wait_change(), rt.now()))
            await rt.sleep(pause_ns)

    async with rt.nursery() as nursery:
        nursery.start_soon(reader, "fast", 1)
        nursery.start_soon(reader, "slow", MS + 1)
        for value in (1, 2, 3):
            await rt.sleep(MS)
            cell.set(value)
    expect(
        seen, {"fast": [(1, MS), (2, 2 * MS), (3, 3 * MS)], "slow": [(1, MS), (3, 3 * MS)]}, "what the readers saw, and when"
    )


@BOOK.of_programs
async def box_is_put_once(rt: Any) -> None:
    """A box gives its value to all who wait and to all who come later."""
    box: Box[str] = Box(rt)
    got = []

    async def reader() -> None:
        got.append(await box.get())

    async with rt.nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(reader)
        await rt.sleep(MS)
        box.put("value")
    got.append(await box.get())
    expect(got, ["value"] * 3, "what was got")
