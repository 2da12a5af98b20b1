"""Laws of events, channels and what is built on them (law 3 of `harness.core.runtime`, and `harness.core.primitives`)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from harness.core.errors import BrokenChannelError, ClosedChannelError, EndOfChannel, LawError, WouldBlock
from harness.engines._law import MS, LawBook, expect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BOOK = LawBook()


async def _outcome(verb: Callable[[], Awaitable[object]], log: list[Any], name: str = "") -> None:
    """Log the name of what a verb raises, or what it returns."""
    try:
        value = await verb()
    except (EndOfChannel, ClosedChannelError, BrokenChannelError) as error:
        value = type(error).__name__
    log.append((name, value) if name else value)


@BOOK.of_programs
async def event_wakes_all_waiters(rt: Any) -> None:
    """An event wakes all who wait, at the instant it is set, and stays set."""
    event = rt.event()
    woken = []

    async def waiter() -> None:
        await event.wait()
        woken.append(rt.now())

    async with rt.nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(waiter)
        await rt.sleep(MS)
        expect(event.is_set(), False, "whether it is set")  # noqa: FBT003
        event.set()
        event.set()
    await event.wait()
    expect((woken, event.is_set()), ([MS] * 3, True), "when the waiters woke; whether it is set")


@BOOK.of_programs
async def cancelled_waiter_leaves_event(rt: Any) -> None:
    """A cancelled waiter of an event disturbs no other."""
    event = rt.event()
    log = []

    async def waiter(name: str, patience_ns: int) -> None:
        with rt.move_on_after(patience_ns):
            await event.wait()
            log.append(name)

    async with rt.nursery() as nursery:
        for name, patience_ns in (("a", 9 * MS), ("b", MS), ("c", 9 * MS), ("d", 2 * MS)):
            nursery.start_soon(waiter, name, patience_ns)
        await rt.sleep(3 * MS)
        event.set()
    expect(sorted(log), ["a", "c"], "who woke")


@BOOK.of_programs
async def channel_is_a_bounded_fifo(rt: Any) -> None:
    """A channel keeps order, takes as many values as its capacity, and makes the next sender wait for room."""
    send, receive = rt.channel(2)
    sent = []

    async def producer() -> None:
        for value in range(5):
            await send.send(value)
            sent.append((value, rt.now()))
        send.close()

    async with rt.nursery() as nursery:
        nursery.start_soon(producer)
        await rt.sleep(MS)
        expect(sent, [(0, 0), (1, 0)], "what was sent before anything was taken")
        got = []
        with suppress(EndOfChannel):
            while True:
                got.append(await receive.receive())
                await rt.sleep(MS)
    expect(got, [0, 1, 2, 3, 4], "what was received")
    expect(sent, [(0, 0), (1, 0), (2, MS), (3, 2 * MS), (4, 3 * MS)], "what was sent when")


@BOOK.of_programs
async def capacity_zero_hands_over(rt: Any) -> None:
    """A channel of capacity 0 holds nothing: a send ends when a receive takes the value, and the other way round."""
    send, receive = rt.channel(0)
    log = []

    async def sender(delay_ns: int) -> None:
        await rt.sleep(delay_ns)
        await send.send("value")
        log.append(("sent", rt.now()))

    try:
        send.send_nowait("value")
        raise LawError("a channel of capacity 0 took a value that nobody waits for")
    except WouldBlock:
        pass
    async with rt.nursery() as nursery:
        nursery.start_soon(sender, 0)
        await rt.sleep(MS)
        expect((log, await receive.receive(), rt.now()), ([], "value", MS), "log; value; time")
        await rt.sleep(1)
        nursery.start_soon(sender, MS)
        expect(await receive.receive(), "value", "the value")
        log.append(("received", rt.now()))
    expect(
        sorted(log, key=lambda entry: (entry[1], entry[0])),
        [("sent", MS), ("received", 2 * MS + 1), ("sent", 2 * MS + 1)],
        "log",
    )


@BOOK.of_programs
async def receivers_are_served_in_order(rt: Any) -> None:
    """Waiting receivers are served in the order of asking, waiting senders too."""
    send, receive = rt.channel(0)
    got: list[Any] = []

    async with rt.nursery() as nursery:
        for name in "abc":
            nursery.start_soon(_outcome, receive.receive, got, name)
            await rt.sleep(MS)
        for value in range(3):
            send.send_nowait(value)
        await rt.sleep(MS)
        for value in range(3):
            nursery.start_soon(send.send, value)
            await rt.sleep(MS)
        got.extend([await receive.receive() for _ in range(3)])
    expect(sorted(got[:3]), [("a", 0), ("b", 1), ("c", 2)], "what the receivers got")
    expect(got[3:], [0, 1, 2], "what came from the waiting senders")


@BOOK.of_programs
async def cancelled_send_sends_nothing(rt: Any) -> None:
    """A send that is cancelled behind and before others has sent nothing, and the others keep their order."""
    send, receive = rt.channel(1)
    send.send_nowait("first")

    async def sender(value: str, patience_ns: int) -> None:
        with rt.move_on_after(patience_ns):
            await send.send(value)

    async with rt.nursery() as nursery:
        for value, patience_ns in (
            ("front", 5 * MS),
            ("second", 90 * MS),
            ("middle", 6 * MS),
            ("third", 90 * MS),
            ("back", 7 * MS),
        ):
            nursery.start_soon(sender, value, patience_ns)
            await rt.sleep(1)
        await rt.sleep(10 * MS)
        got = [await receive.receive() for _ in range(3)]
        try:
            got.append(receive.receive_nowait())
        except WouldBlock:
            got.append("nothing more")
    expect(got, ["first", "second", "third", "nothing more"], "what was received")


@BOOK.of_programs
async def cancelled_receive_takes_nothing(rt: Any) -> None:
    """A receive that is cancelled behind and before others has taken nothing: every value reaches somebody, in order."""
    send, receive = rt.channel(0)
    got = []

    async def receiver(name: str, patience_ns: int) -> None:
        with rt.move_on_after(patience_ns):
            got.append((name, await receive.receive()))

    async with rt.nursery() as nursery:
        for name, patience_ns in (("front", 5 * MS), ("a", 90 * MS), ("middle", 6 * MS), ("b", 90 * MS), ("back", 7 * MS)):
            nursery.start_soon(receiver, name, patience_ns)
            await rt.sleep(1)
        await rt.sleep(10 * MS)
        send.send_nowait(1)
        send.send_nowait(2)
        try:
            send.send_nowait(3)
            raise LawError("a cancelled receive was still waiting, and took a value")
        except WouldBlock:
            pass
    expect(sorted(got), [("a", 1), ("b", 2)], "what was received by whom")


@BOOK.of_programs
async def handed_over_is_not_lost(rt: Any) -> None:
    """A value handed to a waiting receiver is received, although the receiver is cancelled at the same instant."""
    send, receive = rt.channel(0)
    got = []
    scope = rt.cancel_scope()

    async def receiver() -> None:
        with scope:
            got.append(await receive.receive())
            await rt.checkpoint()
            got.append("went on")

    async with rt.nursery() as nursery:
        nursery.start_soon(receiver)
        await rt.sleep(MS)
        send.send_nowait("value")
        scope.cancel()
    expect(got, ["value"], "what was received")


@BOOK.of_programs
async def closing_the_sending_end(rt: Any) -> None:
    """Receivers get what is left and then `EndOfChannel`, those who wait at once; own sends get `ClosedChannelError`."""
    log: list[Any] = []
    send, receive = rt.channel(2)
    send.send_nowait(1)
    send.send_nowait(2)
    send.close()
    send.close()
    for _ in range(4):
        await _outcome(receive.receive, log)
    await _outcome(lambda: send.send(3), log)
    expect(log, [1, 2, "EndOfChannel", "EndOfChannel", "ClosedChannelError"], "what came out of a closed channel")
    log.clear()
    send, receive = rt.channel(0)
    async with rt.nursery() as nursery:
        for name in "ab":
            nursery.start_soon(_outcome, receive.receive, log, name)
        await rt.sleep(MS)
        send.close()
    expect((sorted(log), rt.now()), ([("a", "EndOfChannel"), ("b", "EndOfChannel")], MS), "waiting receivers; time")


@BOOK.of_programs
async def closing_the_sending_end_with_waiting_senders(rt: Any) -> None:
    """Own sends that wait get `ClosedChannelError`, and their values are not received."""
    log: list[Any] = []
    send, receive = rt.channel(1)
    send.send_nowait("held")
    async with rt.nursery() as nursery:
        for name in "ab":
            nursery.start_soon(_outcome, lambda name=name: send.send(name), log, name)
        await rt.sleep(MS)
        send.close()
        await rt.sleep(MS)
        await _outcome(receive.receive, log, "r")
        await _outcome(receive.receive, log, "s")
    wanted = [("a", "ClosedChannelError"), ("b", "ClosedChannelError"), ("r", "held"), ("s", "EndOfChannel")]
    expect(sorted(log), wanted, "what senders and receivers got")


@BOOK.of_programs
async def closing_the_receiving_end(rt: Any) -> None:
    """Senders get `BrokenChannelError`, those who wait at once; own receives get `ClosedChannelError`."""
    log: list[Any] = []
    send, receive = rt.channel(1)
    send.send_nowait("held")
    async with rt.nursery() as nursery:
        for name in "ab":
            nursery.start_soon(_outcome, lambda name=name: send.send(name), log, name)
        await rt.sleep(MS)
        receive.close()
        receive.close()
    await _outcome(lambda: send.send("late"), log, "s")
    await _outcome(receive.receive, log, "r")
    wanted = [
        ("a", "BrokenChannelError"),
        ("b", "BrokenChannelError"),
        ("r", "ClosedChannelError"),
        ("s", "BrokenChannelError"),
    ]
    expect((sorted(log), rt.now()), (wanted, MS), "what senders and receivers got; time")
    log.clear()
    _, receive = rt.channel(0)
    async with rt.nursery() as nursery:
        for name in "ab":
            nursery.start_soon(_outcome, receive.receive, log, name)
        await rt.sleep(MS)
        receive.close()
    expect(sorted(log), [("a", "ClosedChannelError"), ("b", "ClosedChannelError")], "own waiting receives")


@BOOK.of_programs
async def nowait_changes_nothing_when_it_cannot(rt: Any) -> None:
    """`…_nowait` verbs raise `WouldBlock` and change nothing, or do their deed at once."""
    send, receive = rt.channel(1)
    for _ in range(2):
        try:
            receive.receive_nowait()
            raise LawError("received from an empty channel")
        except WouldBlock:
            pass
    send.send_nowait(1)
    try:
        send.send_nowait(2)
        raise LawError("sent into a full channel")
    except WouldBlock:
        pass
    expect(receive.receive_nowait(), 1, "the value")
    send.close()
    try:
        receive.receive_nowait()
    except EndOfChannel:
        return
    raise LawError("the end of a channel was not seen")


@BOOK.of_programs
async def taking_from_a_full_channel_admits_the_first_sender(rt: Any) -> None:
    """A receive from a full channel moves the first waiting sender's value in, behind what is buffered."""
    send, receive = rt.channel(1)
    send.send_nowait(0)
    async with rt.nursery() as nursery:
        for value in (1, 2):
            nursery.start_soon(send.send, value)
            await rt.sleep(1)
        first = receive.receive_nowait()
        try:
            send.send_nowait(3)
            raise LawError("a newcomer overtook a waiting sender")
        except WouldBlock:
            pass
        expect([first, receive.receive_nowait(), receive.receive_nowait()], [0, 1, 2], "what was received")
