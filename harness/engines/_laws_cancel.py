"""Laws of cancellation, deadlines and schedule points (laws 1, 2, 4 and 6 of `harness.core.runtime`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import DeadlineExceeded, LawError
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
        await rt.sleep(1)
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
