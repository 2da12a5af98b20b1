"""Laws of deadlines and shields (laws 4 and 6 of `harness.core.runtime`)."""

from __future__ import annotations

from typing import Any

from harness.core.errors import DeadlineExceeded, LawError
from harness.engines._law import MS, LawBook, expect, refuse

BOOK = LawBook()

YES, NO = True, False


@BOOK.of_programs
async def nested_deadlines_expire_together(rt: Any) -> None:
    """Of scopes whose deadlines are equal all are cancelled, and the outermost one catches."""
    with rt.move_on_after(MS) as outer, rt.move_on_after(MS) as middle, rt.move_on_after(MS) as inner:
        try:
            await rt.event().wait()
        finally:
            called = (outer.cancel_called, middle.cancel_called, inner.cancel_called)
    expect(called, (YES, YES, YES), "which were cancelled")
    caught = (outer.cancelled_caught, middle.cancelled_caught, inner.cancelled_caught)
    expect((caught, rt.now()), ((YES, NO, NO), MS), "which caught, and when")


@BOOK.of_programs
async def equal_deadlines_of_tasks_expire_together(rt: Any) -> None:
    """Deadlines of different tasks that are equal expire before any of these tasks runs: none can rescue another."""
    send, receive = rt.channel(0)
    got = []

    async def taker() -> None:
        with rt.move_on_after(MS):
            got.append(await receive.receive())

    async def giver() -> None:
        with rt.move_on_after(MS):
            await rt.event().wait()
        with rt.move_on_after(MS):
            await send.send("late")

    async with rt.nursery() as nursery:
        nursery.start_soon(giver)
        nursery.start_soon(taker)
        nursery.start_soon(giver)
    expect(got, [], "what was received behind the deadline")


@BOOK.of_programs
async def inner_deadline_first(rt: Any) -> None:
    """An inner scope that expires first catches; the outer one goes on and expires in its own time."""
    with rt.move_on_after(3 * MS) as outer:
        with rt.move_on_after(MS) as inner:
            await rt.event().wait()
        expect((inner.cancelled_caught, outer.cancel_called, rt.now()), (YES, NO, MS), "inner caught; outer called; time")
        await rt.event().wait()
    expect((outer.cancelled_caught, rt.now()), (YES, 3 * MS), "outer caught; time")


@BOOK.of_programs
async def outer_deadline_first(rt: Any) -> None:
    """An outer scope that expires first cancels through the inner one, which does not catch."""
    with rt.move_on_after(MS) as outer:
        with rt.move_on_after(3 * MS) as inner:
            await rt.event().wait()
        refuse("a scope caught a cancellation that was not its own")
    expect((outer.cancelled_caught, inner.cancelled_caught, rt.now()), (YES, NO, MS), "outer caught; inner caught; time")


@BOOK.of_programs
async def completion_before_deadline(rt: Any) -> None:
    """A wait that completes at the very nanosecond of its deadline has completed; the next wait is cut off, then and there."""
    with rt.move_on_after(MS) as scope:
        await rt.sleep(MS)
        completed = rt.now()
        await rt.sleep(MS)
        refuse("a wait behind the deadline was not cut off")
    expect((completed, scope.cancelled_caught, rt.now()), (MS, YES, MS), "completed at; scope caught; time")


@BOOK.of_programs
async def consequences_before_deadline(rt: Any) -> None:
    """All that follows at an instant from what completed there comes before its deadlines, over any number of tasks."""
    first, second = rt.channel(0), rt.channel(0)
    rung = rt.event()
    log = []

    async def source() -> None:
        await rt.sleep(MS)
        await first[0].send("a")

    async def relay() -> None:
        await second[0].send(await first[1].receive())

    async def ringer() -> None:
        log.append(await second[1].receive())
        rung.set()

    async with rt.nursery() as nursery:
        for actor in (ringer, relay, source):
            nursery.start_soon(actor)
        with rt.move_on_after(MS) as scope:
            await rung.wait()
            log.append("rung")
    expect((log, scope.cancelled_caught, rt.now()), (["a", "rung"], NO, MS), "log; scope caught; time")


@BOOK.of_programs
async def expired_at_entry(rt: Any) -> None:
    """A scope that is entered at its deadline or later is cancelled from the start, whatever is open round it."""
    for timeout_ns in (0, -MS):
        with rt.move_on_after(timeout_ns) as scope:
            expect(scope.cancel_called, YES, "whether it was cancelled at entry")
            await rt.checkpoint()
        expect(scope.cancelled_caught, YES, "whether it caught")
    with rt.move_on_after(MS) as outer:
        await rt.sleep(MS)
        with rt.move_on_after(0) as scope:
            await rt.checkpoint()
            refuse("a scope entered at its deadline was not cancelled while another one had the same deadline")
        expect(scope.cancelled_caught, YES, "whether it caught")
    expect(outer.cancelled_caught, NO, "whether the outer scope caught")


@BOOK.of_programs
async def deadline_can_be_moved(rt: Any) -> None:
    """A deadline that is moved while its scope is open counts from then on: later, earlier, away, or into the past."""
    with rt.move_on_after(MS) as scope:
        scope.deadline_ns = 3 * MS
        await rt.sleep(2 * MS)
        scope.deadline_ns = rt.now() + 5 * MS
        await rt.sleep(4 * MS)
        scope.deadline_ns = rt.now() + MS
        await rt.event().wait()
    expect((scope.cancelled_caught, rt.now()), (YES, 7 * MS), "whether it caught, and when")
    with rt.move_on_after(MS) as scope:
        scope.deadline_ns = None
        await rt.sleep(2 * MS)
        scope.deadline_ns = rt.now()
        await rt.checkpoint()
        refuse("a deadline moved to the present did not cancel")
    expect((scope.cancelled_caught, rt.now()), (YES, 9 * MS), "whether it caught, and when")


@BOOK.of_programs
async def deadline_moved_by_another_task(rt: Any) -> None:
    """A deadline can be moved by another task while the scope's own task waits."""
    with rt.move_on_after(9 * MS) as scope:

        async def mover() -> None:
            await rt.sleep(MS)
            scope.deadline_ns = 2 * MS

        async with rt.nursery() as nursery:
            nursery.start_soon(mover)
            await rt.event().wait()
    expect((scope.cancelled_caught, rt.now()), (YES, 2 * MS), "whether it caught, and when")


@BOOK.of_programs
async def fail_after_raises(rt: Any) -> None:
    """`fail_after` raises `DeadlineExceeded` when its deadline cut the body off, and only then."""
    with rt.fail_after(2 * MS):
        await rt.sleep(MS)
    try:
        with rt.fail_after(MS):
            await rt.event().wait()
    except DeadlineExceeded:
        expect(rt.now(), 2 * MS, "when it failed")
    else:
        raise LawError("fail_after did not raise")
    with rt.move_on_after(MS) as outer, rt.fail_after(9 * MS):
        await rt.event().wait()
    expect((outer.cancelled_caught, rt.now()), (YES, 3 * MS), "whether the outer scope caught, and when")


@BOOK.of_programs
async def shielded_cleanup(rt: Any) -> None:
    """Inside a shield a cancelled task can wait; behind it the cancellation is there again."""
    log = []
    with rt.move_on_after(MS) as scope:
        try:
            await rt.event().wait()
        finally:
            with rt.cancel_scope(shield=True):
                await rt.sleep(2 * MS)
                log.append(rt.now())
            try:
                await rt.checkpoint()
            except rt.cancelled:
                log.append("again")
    expect((log, scope.cancelled_caught, rt.now()), ([3 * MS, "again"], YES, 3 * MS), "log; caught; time")


@BOOK.of_programs
async def shields_nest_and_come_again(rt: Any) -> None:
    """`shield` hides a cancellation, in several tasks at once, inside one another, and again and again."""
    log = []

    async def child(name: str) -> None:
        try:
            await rt.event().wait()
        finally:
            for _ in range(2):
                with rt.shield():
                    await rt.sleep(MS)
                    with rt.shield():
                        await rt.sleep(MS)
                    await rt.sleep(MS)
                try:
                    await rt.checkpoint()
                except rt.cancelled:
                    log.append((name, rt.now()))

    with rt.move_on_after(MS) as scope:
        async with rt.nursery() as nursery:
            nursery.start_soon(child, "a")
            nursery.start_soon(child, "b")
    expect(sorted(log), [("a", 4 * MS), ("a", 7 * MS), ("b", 4 * MS), ("b", 7 * MS)], "cancellations behind shields")
    expect((scope.cancelled_caught, rt.now()), (YES, 7 * MS), "whether the scope caught, and when")
    with rt.shield():
        await rt.sleep(MS)
        with rt.move_on_after(MS) as within:
            await rt.event().wait()
    expect((within.cancelled_caught, rt.now()), (YES, 9 * MS), "whether a scope within a shield caught, and when")


@BOOK.of_programs
async def shield_delays_delivery(rt: Any) -> None:
    """A deadline that passes while the body is shielded is delivered at the first point behind the shield."""
    with rt.move_on_after(MS) as scope:
        with rt.cancel_scope(shield=True):
            await rt.sleep(3 * MS)
        await rt.checkpoint()
        refuse("a cancellation was lost behind a shield")
    expect((scope.cancelled_caught, rt.now()), (YES, 3 * MS), "whether it caught, and when")


@BOOK.of_programs
async def shield_has_its_own_deadline(rt: Any) -> None:
    """A shield hides what is outside, not its own deadline, nor what is inside it."""
    with rt.move_on_after(MS) as outer:
        with rt.move_on_after(2 * MS, shield=True) as inner:
            await rt.event().wait()
        expect((inner.cancelled_caught, rt.now()), (YES, 2 * MS), "whether the shielded scope caught, and when")
        with rt.cancel_scope(shield=True), rt.move_on_after(MS) as within:
            await rt.event().wait()
        expect((within.cancelled_caught, rt.now()), (YES, 3 * MS), "whether the scope within caught, and when")
        await rt.checkpoint()
    expect(outer.cancelled_caught, YES, "whether the outer scope caught")


@BOOK.of_programs
async def shield_can_be_dropped(rt: Any) -> None:
    """Dropping a shield delivers what it hid, also to a task that waits; raising one hides it again."""
    scope = rt.cancel_scope(shield=True)

    async def dropper() -> None:
        await rt.sleep(2 * MS)
        scope.shield = False

    async def body() -> None:
        with rt.move_on_after(MS) as outer:
            with scope:
                await rt.event().wait()
            refuse("a scope caught what it had only shielded")
        expect((outer.cancelled_caught, rt.now()), (YES, 2 * MS), "whether the outer scope caught, and when")

    async with rt.nursery() as nursery:
        nursery.start_soon(body)
        nursery.start_soon(dropper)
    with rt.cancel_scope() as outer, rt.cancel_scope() as inner:
        outer.cancel()
        inner.shield = True
        await rt.sleep(MS)
    expect(rt.now(), 3 * MS, "the time behind a shield that was raised late")
