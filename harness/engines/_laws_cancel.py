"""Laws of cancellation, deadlines and schedule points (laws 1, 2, 4 and 6 of `harness.core.runtime`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import LawError
from harness.core.primitives import Latest, Permits, WakeUp
from harness.core.runtime import Box
from harness.engines._law import MS, LawBook, expect, refuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BOOK = LawBook()

YES, NO = True, False


def _ready_verbs(rt: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Verbs that need not wait, by name."""
    event = rt.event()
    event.set()
    send, _ = rt.channel(1)
    filler, receive = rt.channel(1)
    filler.send_nowait("value")
    pool = Permits(rt, 1)
    bell = WakeUp(rt)
    bell.ring()
    box: Box[int] = Box(rt)
    box.put(1)
    return {
        "sleep(0)": lambda: rt.sleep(0),
        "sleep(-1)": lambda: rt.sleep(-1),
        "checkpoint": rt.checkpoint,
        "event.wait": event.wait,
        "send": lambda: send.send("value"),
        "receive": receive.receive,
        "acquire": pool.acquire,
        "bell.wait": bell.wait,
        "box.get": box.get,
    }


def _waiting_verbs(rt: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Verbs that would wait for ever, or for long, by name."""
    full, _ = rt.channel(0)
    _, empty = rt.channel(0)
    pool = Permits(rt, 1)
    pool.acquire_nowait()
    return {
        "sleep": lambda: rt.sleep(100 * MS),
        "event.wait": rt.event().wait,
        "send": lambda: full.send("value"),
        "receive": empty.receive,
        "acquire": pool.acquire,
        "bell.wait": WakeUp(rt).wait,
        "box.get": Box(rt).get,
        "latest.wait_change": Latest(rt, 0).wait_change,
    }


@BOOK.of_programs
async def every_verb_is_a_cancellation_point(rt: Any) -> None:
    """Inside a cancelled scope every async verb raises, whether it would have waited or not, and no time passes."""
    for name, verb in [*_ready_verbs(rt).items(), *_waiting_verbs(rt).items()]:
        with rt.cancel_scope() as scope:
            scope.cancel()
            await verb()
            refuse(f"{name} did not raise inside a cancelled scope")
        expect((scope.cancelled_caught, rt.now()), (YES, 0), f"{name}: whether the scope caught, and the time")


@BOOK.of_programs
async def waiting_verbs_are_cancelled(rt: Any) -> None:
    """A verb that waits is cut off at the deadline, to the nanosecond."""
    for name, verb in _waiting_verbs(rt).items():
        begun = rt.now()
        with rt.move_on_after(MS) as scope:
            await verb()
        expect((scope.cancelled_caught, rt.now() - begun), (YES, MS), f"{name}: whether it was cut off, and after how long")


@BOOK.of_programs
async def cancelled_sleep_wakes_nobody(rt: Any) -> None:
    """A sleep that was cancelled, be it the first of the run, does not end a later wait of its task."""
    event = rt.event()

    async def other(scope: Any) -> None:
        await rt.sleep(MS)
        scope.cancel()
        await rt.sleep(8 * MS)
        event.set()

    async with rt.nursery() as nursery:
        with rt.cancel_scope() as scope:
            nursery.start_soon(other, scope)
            await rt.sleep(5 * MS)
        await event.wait()
        expect((event.is_set(), rt.now()), (YES, 9 * MS), "whether the event was set, and the time")


@BOOK.of_programs
async def no_schedule_point_without_waiting(rt: Any) -> None:
    """A verb that need not wait does not let another task run; neither does leaving a scope or an empty nursery."""
    ran = []

    async def other() -> None:
        ran.append(1)
        await rt.checkpoint()

    async with rt.nursery() as nursery:
        nursery.start_soon(other)
        for name, verb in _ready_verbs(rt).items():
            await verb()
            expect(ran, [], f"what ran during {name}")
        for name, verb in [*_ready_verbs(rt).items(), *_waiting_verbs(rt).items()]:
            with rt.move_on_after(0):
                await verb()
            expect(ran, [], f"what ran during a cancelled {name}")
        async with rt.nursery():
            pass
        expect(ran, [], "what ran at the exit of an empty nursery")
        await rt.sleep(MS)
        expect(ran, [1], "what ran during a sleep")


@BOOK.of_programs
async def cancellation_is_level_triggered(rt: Any) -> None:
    """Inside a cancelled scope every point raises, again and again, until the scope is left."""
    raised = 0
    with rt.move_on_after(MS) as scope:
        for _ in range(3):
            try:
                await rt.sleep(5 * MS)
            except rt.cancelled:
                raised += 1
        try:
            await rt.checkpoint()
        except rt.cancelled:
            raised += 1
    expect((raised, scope.cancel_called, scope.cancelled_caught), (4, YES, NO), "how often it raised; called; caught")
    await rt.sleep(MS)
    expect(rt.now(), 2 * MS, "the time")


@BOOK.of_programs
async def cancelled_is_no_exception(rt: Any) -> None:
    """`except Exception` does not catch a cancellation."""
    expect(issubclass(rt.cancelled, Exception), NO, "whether cancellation is an Exception")
    with rt.move_on_after(MS) as scope:
        try:
            await rt.event().wait()
        except Exception as error:
            raise LawError("a cancellation was caught as an Exception") from error
    expect(scope.cancelled_caught, YES, "whether the scope caught")


@BOOK.of_programs
async def cancelled_before_entry(rt: Any) -> None:
    """A scope that was cancelled before it is entered cancels its body at the first point."""
    scope = rt.cancel_scope()
    scope.cancel()
    scope.cancel()
    with scope:
        await rt.checkpoint()
        refuse("a scope that was cancelled before its entry did not cancel its body")
    expect(scope.cancelled_caught, YES, "whether it caught")


@BOOK.of_programs
async def scope_is_entered_once(rt: Any) -> None:
    """A scope is entered once."""
    scope = rt.cancel_scope()
    with scope:
        await rt.checkpoint()
    try:
        with scope:
            pass
    except LawError:
        return
    raise LawError("a scope was entered twice")


@BOOK.of_programs
async def cancel_by_another_task(rt: Any) -> None:
    """A cancelled task wakes at the instant of the call."""
    scope = rt.cancel_scope()

    async def canceller() -> None:
        await rt.sleep(MS)
        scope.cancel()

    async with rt.nursery() as nursery:
        nursery.start_soon(canceller)
        with scope:
            await rt.sleep(9 * MS)
        expect((scope.cancelled_caught, rt.now()), (YES, MS), "whether it caught, and when")


@BOOK.of_programs
async def cancel_without_a_point(rt: Any) -> None:
    """A body that meets no point after the call runs to its end: the scope was cancelled and caught nothing."""
    with rt.cancel_scope() as scope:
        scope.cancel()
    expect((scope.cancel_called, scope.cancelled_caught), (YES, NO), "called; caught")
    await rt.checkpoint()


@BOOK.of_programs
async def granted_wait_is_not_taken_back(rt: Any) -> None:
    """A wait that was granted before its scope was cancelled returns; the next point raises. And the other way round."""
    log = []
    early, late = rt.event(), rt.event()
    scopes = {"granted": rt.cancel_scope(), "cancelled": rt.cancel_scope()}

    async def waiter(name: str, event: Any) -> None:
        with scopes[name]:
            await event.wait()
            log.append(name)
            await rt.checkpoint()
            log.append("went on")

    async with rt.nursery() as nursery:
        nursery.start_soon(waiter, "granted", early)
        nursery.start_soon(waiter, "cancelled", late)
        await rt.sleep(MS)
        early.set()
        for scope in scopes.values():
            scope.cancel()
        late.set()
    expect(log, ["granted"], "what went on")


@BOOK.of_programs
async def children_inherit_scopes(rt: Any) -> None:
    """A child stands inside the scopes round its nursery, not inside those round the call that started it."""
    log = []

    async def child(name: str) -> None:
        try:
            await rt.sleep(5 * MS)
            log.append((name, "completed", rt.now()))
        except rt.cancelled:
            log.append((name, "cancelled", rt.now()))
            raise

    async with rt.nursery() as nursery:
        with rt.move_on_after(MS):
            nursery.start_soon(child, "free")
            async with rt.nursery() as inner:
                inner.start_soon(child, "bound")
    expect(log, [("bound", "cancelled", MS), ("free", "completed", 5 * MS)], "what became of the children")
