"""Laws of a whole run: its result, its background tasks, deadlock and livelock (laws 5 and 7 of `harness.core.runtime`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import DeadlockError, LawError, LivelockError
from harness.engines._law import MS, LawBook, expect, fail_in_cleanup, fail_later, failure_of, leaves

if TYPE_CHECKING:
    from harness.core.runtime import Engine

BOOK = LawBook()


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
        await fail_later(rt, MS, "main")

    expect(repr(failure_of(run, main)), repr(ValueError("main")), "the failure of the run")


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
        rt.background(fail_later, rt, MS, "background")
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
        rt.background(fail_in_cleanup, rt, "late")
        await rt.sleep(MS)

    async def failing(rt: Any) -> None:
        rt.background(fail_in_cleanup, rt, "late")
        await fail_later(rt, MS, "main")

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
