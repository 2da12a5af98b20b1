"""Laws of tasks, nurseries and failures (laws 5 and 7 of `harness.core.runtime`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import LawError
from harness.engines._law import MS, LawBook, expect, fail_in_cleanup, fail_later, leaves

if TYPE_CHECKING:
    from harness.core.runtime import Nursery

BOOK = LawBook()


@BOOK.of_programs
async def nursery_waits_for_children(rt: Any) -> None:
    """A nursery never exits with a live child, nor with a child that a child has started."""
    ended = []

    async def grandchild() -> None:
        await rt.sleep(5 * MS)
        ended.append("grandchild")

    async def child(nursery: Nursery) -> None:
        await rt.sleep(2 * MS)
        nursery.start_soon(grandchild)
        ended.append("child")

    async with rt.nursery() as nursery:
        nursery.start_soon(child, nursery)
    expect((ended, rt.now()), (["child", "grandchild"], 7 * MS), "ended tasks and the time at the nursery's exit")


@BOOK.of_programs
async def child_starts_when_parent_waits(rt: Any) -> None:
    """A child first runs when the present task next waits."""
    started = []

    async def child() -> None:
        started.append(1)
        await rt.checkpoint()

    async with rt.nursery() as nursery:
        nursery.start_soon(child)
        await rt.checkpoint()
        expect(started, [], "children that ran before the parent waited")
        await rt.sleep(1)
        expect(started, [1], "children that ran while the parent waited")


@BOOK.of_programs
async def sibling_failure(rt: Any) -> None:
    """A failed child cancels its siblings and the body at once; its failure comes out in one group."""
    ends = []

    async def sibling() -> None:
        try:
            await rt.sleep(100 * MS)
        finally:
            ends.append(rt.now())

    try:
        async with rt.nursery() as nursery:
            nursery.start_soon(sibling)
            nursery.start_soon(fail_later, rt, 3 * MS, "child")
            nursery.start_soon(sibling)
            try:
                await rt.sleep(50 * MS)
            finally:
                ends.append(rt.now())
    except BaseExceptionGroup as group:
        expect([repr(part) for part in group.exceptions], [repr(ValueError("child"))], "the group")
    else:
        raise LawError("the failure of a child was lost")
    expect(ends, [3 * MS] * 3, "when siblings and body ended")


@BOOK.of_programs
async def no_failure_is_lost(rt: Any) -> None:
    """All failures come out together: the child that failed first, what siblings raise in clean-up, and the body's."""
    try:
        async with rt.nursery() as nursery:
            nursery.start_soon(fail_in_cleanup, rt, "one")
            nursery.start_soon(fail_in_cleanup, rt, "two")
            nursery.start_soon(fail_later, rt, MS, "first")
            try:
                await rt.event().wait()
            finally:
                raise OSError("body")
    except BaseExceptionGroup as group:
        expect(len(group.exceptions), 4, "failures in the group")
        expect(leaves(group), ["KeyError: 'one'", "KeyError: 'two'", "OSError: body", "ValueError: first"], "failures")
    else:
        raise LawError("four failures were lost")


@BOOK.of_programs
async def body_failure_cancels_children(rt: Any) -> None:
    """A failure of the body cancels the children; it comes out in a group too."""
    ends = []

    async def child() -> None:
        try:
            await rt.event().wait()
        finally:
            ends.append(rt.now())

    try:
        async with rt.nursery() as nursery:
            nursery.start_soon(child)
            await fail_later(rt, MS, "body")
    except BaseExceptionGroup as group:
        expect(leaves(group), ["ValueError: body"], "failures")
    else:
        raise LawError("the failure of the body was lost")
    expect(ends, [MS], "when the child ended")


@BOOK.of_programs
async def nested_groups(rt: Any) -> None:
    """Nurseries nest, and so do their groups; an outer failure cancels an inner nursery whole."""

    async def inner() -> None:
        async with rt.nursery() as nursery:
            nursery.start_soon(fail_in_cleanup, rt, "deep")

    try:
        async with rt.nursery() as nursery:
            nursery.start_soon(inner)
            nursery.start_soon(fail_later, rt, MS, "flat")
    except BaseExceptionGroup as group:
        expect(leaves(group), ["KeyError: 'deep'", "ValueError: flat"], "failures")
        kinds = sorted(isinstance(part, BaseExceptionGroup) for part in group.exceptions)
        expect(kinds, [False, True], "whether the parts are groups")
    else:
        raise LawError("two failures were lost")


@BOOK.of_programs
async def failure_inside_cancelled_scope(rt: Any) -> None:
    """A cancelled scope swallows cancellations only: a failure beside them goes on, in its group."""
    try:
        with rt.move_on_after(MS) as scope:
            async with rt.nursery() as nursery:
                nursery.start_soon(fail_in_cleanup, rt, "clean-up")
                nursery.start_soon(rt.sleep, 9 * MS)
                await rt.sleep(9 * MS)
    except BaseExceptionGroup as group:
        expect(leaves(group), ["KeyError: 'clean-up'"], "failures")
    else:
        raise LawError("a failure was swallowed by a cancel scope")
    expect((scope.cancelled_caught, rt.now()), (True, MS), "whether the scope caught, and when")


@BOOK.of_programs
async def nursery_can_be_cancelled(rt: Any) -> None:
    """Cancelling a nursery's scope ends body and children quietly; a child started afterwards is cancelled at once."""
    log = []

    async def child(name: str) -> None:
        try:
            await rt.sleep(9 * MS)
        except rt.cancelled:
            log.append((name, rt.now()))
            raise

    async with rt.nursery() as nursery:
        nursery.start_soon(child, "early")
        await rt.sleep(MS)
        nursery.cancel_scope.cancel()
        nursery.start_soon(child, "late")
    expect(sorted(log), [("early", MS), ("late", MS)], "cancelled children")
    expect(nursery.cancel_scope.cancelled_caught, True, "whether the nursery's scope caught")  # noqa: FBT003


@BOOK.of_programs
async def cancelled_nursery_waits_for_cleanup(rt: Any) -> None:
    """A cancelled nursery still waits for the shielded clean-up of its children."""

    async def child() -> None:
        try:
            await rt.event().wait()
        finally:
            with rt.cancel_scope(shield=True):
                await rt.sleep(4 * MS)

    with rt.move_on_after(MS) as scope:
        async with rt.nursery() as nursery:
            nursery.start_soon(child)
    expect((scope.cancelled_caught, rt.now()), (True, 5 * MS), "whether the scope caught, and when")


@BOOK.of_programs
async def closed_nursery_takes_no_child(rt: Any) -> None:
    """A nursery that was left takes no more children."""
    async with rt.nursery() as nursery:
        await rt.checkpoint()
    try:
        nursery.start_soon(rt.checkpoint)
    except LawError:
        return
    raise LawError("a closed nursery took a child")
