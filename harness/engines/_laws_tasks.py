"""Laws of tasks, nurseries and failures (laws 5 and 7 of `harness.core.runtime`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import DeadlockError, LawError, LivelockError
from harness.engines._law import MS, LawBook, expect, failure_of, leaves

if TYPE_CHECKING:
    from harness.core.runtime import Engine, Nursery

BOOK = LawBook()


async def _fail_after(rt: Any, delay_ns: int, text: str) -> None:
    await rt.sleep(delay_ns)
    raise ValueError(text)


async def _fail_in_cleanup(rt: Any, text: str) -> None:
    try:
        await rt.event().wait()
    finally:
        raise KeyError(text)


@BOOK.of_engines
def result_and_arguments(run: Engine) -> None:
    """`run` hands the arguments over and returns what the main task returns."""

    async def main(rt: Any, left: int, right: int) -> int:
        await rt.checkpoint()
        return left - right

    expect(run(main, 7, 4), 3, "the result of the run")


@BOOK.of_engines
def main_failure_is_bare(run: Engine) -> None:
    """The main task's own failure comes out as it is, not in a group."""

    async def main(rt: Any) -> None:
        rt.background(rt.event().wait)
        await _fail_after(rt, MS, "main")

    expect(repr(failure_of(run, main)), repr(ValueError("main")), "the failure of the run")


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
            nursery.start_soon(_fail_after, rt, 3 * MS, "child")
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
            nursery.start_soon(_fail_in_cleanup, rt, "one")
            nursery.start_soon(_fail_in_cleanup, rt, "two")
            nursery.start_soon(_fail_after, rt, MS, "first")
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
            await _fail_after(rt, MS, "body")
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
            nursery.start_soon(_fail_in_cleanup, rt, "deep")

    try:
        async with rt.nursery() as nursery:
            nursery.start_soon(inner)
            nursery.start_soon(_fail_after, rt, MS, "flat")
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
                nursery.start_soon(_fail_in_cleanup, rt, "clean-up")
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


@BOOK.of_engines
def background_ends_with_main(run: Engine) -> None:
    """A background task is cancelled when the main task has ended, and its clean-up is waited for."""
    log = []

    async def steward(rt: Any) -> None:
        try:
            await rt.event().wait()
        finally:
            with rt.cancel_scope(shield=True):
                await rt.sleep(3 * MS)
            log.append(rt.now())

    async def main(rt: Any) -> str:
        rt.background(steward, rt, name="steward")
        await rt.sleep(2 * MS)
        return "done"

    expect((run(main), log), ("done", [5 * MS]), "the result, and when the background task ended")


@BOOK.of_engines
def background_failure_is_not_lost(run: Engine) -> None:
    """A background task that fails cancels the main task; its failure comes out of the run in a group."""
    log = []

    async def main(rt: Any) -> None:
        rt.background(_fail_after, rt, MS, "background")
        try:
            await rt.event().wait()
        finally:
            log.append(rt.now())

    failure = failure_of(run, main)
    expect(isinstance(failure, BaseExceptionGroup), True, "whether a group came out")  # noqa: FBT003
    expect((leaves(failure), log), (["ValueError: background"], [MS]), "failures, and when the main task ended")


@BOOK.of_engines
def background_cleanup_failure_is_not_lost(run: Engine) -> None:
    """What a background task raises while it is cancelled at the end of the run comes out, beside the main task's failure."""

    async def main(rt: Any) -> None:
        rt.background(_fail_in_cleanup, rt, "late")
        await rt.sleep(MS)

    async def failing(rt: Any) -> None:
        rt.background(_fail_in_cleanup, rt, "late")
        await _fail_after(rt, MS, "main")

    expect(leaves(failure_of(run, main)), ["KeyError: 'late'"], "failures")
    expect(leaves(failure_of(run, failing)), ["KeyError: 'late'", "ValueError: main"], "failures")


@BOOK.of_engines
def interrupt_is_bare(run: Engine) -> None:
    """Ctrl-C in any task comes out of the run as a bare `KeyboardInterrupt`, after clean-up."""
    log = []

    async def struck(rt: Any) -> None:
        await rt.sleep(MS)
        raise KeyboardInterrupt

    async def main(rt: Any) -> None:
        async with rt.nursery() as nursery:
            nursery.start_soon(struck, rt)
            try:
                await rt.event().wait()
            finally:
                log.append(rt.now())

    expect((type(failure_of(run, main)), log), (KeyboardInterrupt, [MS]), "what came out, and when clean-up ran")


@BOOK.of_virtual_engines
def deadlock_names_waiters(run: Engine) -> None:
    """Nothing runnable, no event, no deadline: `DeadlockError` with the time and the names of those who wait."""

    async def main(rt: Any) -> None:
        async with rt.nursery() as nursery:
            nursery.start_soon(rt.event().wait, name="waits for ever")
            nursery.start_soon(rt.channel(0)[1].receive, name="never gets")
            nursery.start_soon(rt.sleep, 3 * MS, name="sleeps")

    failure = failure_of(run, main)
    if not isinstance(failure, DeadlockError):
        raise LawError(f"a deadlock came out as {failure!r}")
    expect(failure.at_ns, 3 * MS, "the time of the deadlock")
    for name, named in (("waits for ever", True), ("never gets", True), ("sleeps", False)):
        expect(any(name in waiter for waiter in failure.waiters), named, f"whether {name!r} is named")


@BOOK.of_virtual_engines
def deadlock_runs_cleanup(run: Engine) -> None:
    """A deadlock cancels the program, so that clean-up runs. What waits for ever behind a shield is cancelled after that."""
    log = []

    async def stubborn(rt: Any) -> None:
        with rt.shield():
            try:
                await rt.event().wait()
            except rt.cancelled:
                log.append("let go")
                raise

    async def tidy(rt: Any) -> None:
        try:
            await rt.event().wait()
        finally:
            with rt.cancel_scope(shield=True):
                await rt.sleep(MS)
            log.append("tidied")

    async def main(rt: Any) -> None:
        async with rt.nursery() as nursery:
            nursery.start_soon(tidy, rt)
            nursery.start_soon(stubborn, rt)

    expect(type(failure_of(run, main)), DeadlockError, "what came out")
    expect(log, ["tidied", "let go"], "clean-up that ran")


@BOOK.of_virtual_engines
def forgotten_deadline_is_no_event(run: Engine) -> None:
    """A deadline whose scope was left, and a sleep that was cancelled, do not keep a dead program alive, nor move its clock."""

    async def main(rt: Any) -> None:
        with rt.move_on_after(50 * MS):
            await rt.sleep(MS)
        with rt.move_on_after(MS):
            await rt.sleep(70 * MS)
        await rt.event().wait()

    failure = failure_of(run, main)
    if not isinstance(failure, DeadlockError):
        raise LawError(f"a deadlock came out as {failure!r}")
    expect(failure.at_ns, 2 * MS, "the time of the deadlock")


@BOOK.of_virtual_engines
def livelock_is_an_error(run: Engine) -> None:
    """More than `step_limit` steps at one instant: `LivelockError` with the time and the names of those who run."""

    async def ping(there: Any, back: Any) -> None:
        while True:
            await there.send(None)
            await back.receive()

    async def pong(there: Any, back: Any) -> None:
        while True:
            await there.receive()
            await back.send(None)

    async def main(rt: Any) -> None:
        there, back = rt.channel(0), rt.channel(0)
        await rt.sleep(MS)
        async with rt.nursery() as nursery:
            nursery.start_soon(ping, there[0], back[1], name="ping")
            nursery.start_soon(pong, there[1], back[0], name="pong")

    failure = failure_of(run, main, step_limit=500)
    if not isinstance(failure, LivelockError):
        raise LawError(f"a livelock came out as {failure!r}")
    expect(failure.at_ns, MS, "the time of the livelock")
    expect(any(name in ("ping", "pong") for name in failure.tasks), True, f"whether a culprit is named in {failure.tasks}")  # noqa: FBT003


@BOOK.of_virtual_engines
def step_limit_is_per_instant(run: Engine) -> None:
    """The step limit counts at one instant: a long run with time passing never reaches it."""

    async def main(rt: Any) -> int:
        for _ in range(200):
            await rt.sleep(1)
        return int(rt.now())

    expect(run(main, step_limit=50), 200, "the time at the end")
