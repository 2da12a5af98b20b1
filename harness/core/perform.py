"""`perform`, written once on the waist, so that every engine cancels work in the same way.

The call itself runs in the caller's task: nothing is spawned unless something is cancelled. Then, by kind:

- `immediate`: `Cancelled` goes through the performer and on to the caller; the permit is released.
- `at_boundary`: the performer runs inside a shielded scope and finishes; its outcome is logged, and `Cancelled` is raised at
  the cancellation point behind it. What the step made is in the payload, which the actor accounts.
- `kill`: `Cancelled` goes through the performer, which gives the order to die; a background task waits in `performer.gone`
  and then releases the permit; the caller waits for that task, shielded, for `GRACE_NS` at most.
- `abandon`: the same without the wait. The worker's permit stays taken until the work really ends.

Background tasks end with the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from harness.core.errors import ModelError
from harness.core.events import EventKind
from harness.core.runtime import Event, Performer, Releasable, Runtime
from harness.core.work import Cancellation, Outcome, Status, Work

_AT_BOUNDARY = Cancellation.AT_BOUNDARY
_KILL = Cancellation.KILL
_ABANDON = Cancellation.ABANDON
_END = int(EventKind.WORK_END)

Performers = Mapping[type[Work], Performer | Callable[[Any, Any], Awaitable[Outcome]]]
"""What performs each class of work. A plain async function does for kinds whose worker is free as soon as the call ends; kinds
that are killed or abandoned need a `Performer`, which can say when the worker is gone."""


class Timed:
    """A performer that lets a computed time pass and then answers; its worker is free as soon as the call ends.

    The simplest simulated performer. An engine in virtual time may compute, wait and answer in one step (`sim` does).

    Args:
        duration: nanoseconds and outcome of a piece of work.

    """

    __slots__ = ("duration",)

    def __init__(self, duration: Callable[[Any], tuple[int, Outcome]]) -> None:
        self.duration = duration

    def starting(self, now: Callable[[], int]) -> Callable[[Any], tuple[int, Outcome]]:
        """Nanoseconds and outcome of a piece of work that starts now."""
        return self.duration

    async def __call__(self, rt: Runtime, work: Work, /) -> Outcome:
        """Let it pass."""
        duration_ns, outcome = self.duration(work)
        await rt.sleep(duration_ns)
        return outcome

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """The worker is free."""


class TimedFrom:
    """As `Timed`, where how long it takes depends on the instant at which it starts: on an outage that is near, say.

    Args:
        duration: nanoseconds and outcome of a piece of work that starts at an instant.

    """

    __slots__ = ("duration",)

    def __init__(self, duration: Callable[[Any, int], tuple[int, Outcome]]) -> None:
        self.duration = duration

    def starting(self, now: Callable[[], int]) -> Callable[[Any], tuple[int, Outcome]]:
        """Nanoseconds and outcome of a piece of work that starts now."""
        duration = self.duration
        return lambda work: duration(work, now())

    async def __call__(self, rt: Runtime, work: Work, /) -> Outcome:
        """Let it pass."""
        duration_ns, outcome = self.duration(work, rt.now())
        await rt.sleep(duration_ns)
        return outcome

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """The worker is free."""


async def perform(
    rt: Runtime, performers: Performers, work: Work, permit: Releasable | None, moved: Callable[[], object] | None = None
) -> Outcome:
    """Do `work` with the performer of its class. Engines call this; actors call `rt.perform`.

    `moved` is called when the performer has returned: an engine whose clock stands still within a step reads it again.
    """
    performer = performers.get(work.__class__)
    if performer is None:
        if permit is not None:
            permit.release()
        raise ModelError(
            f"nothing performs {type(work).__name__}; give the engine a performer for it "
            f"(it has: {', '.join(sorted(kind.__name__ for kind in performers)) or 'none'})"
        )
    recording = rt.recording
    try:
        if recording:
            rt.recorder.append_event(work.start_event(rt.now()))
        if work.CANCELLATION is _AT_BOUNDARY:
            await rt.checkpoint()  # no step starts once the caller is cancelled
            with rt.shield():
                outcome = await performer(rt, work)
        else:
            outcome = await performer(rt, work)
    except BaseException as failure:
        if moved is not None:
            moved()
        await after_failure(rt, performer, work, permit, failure)
        raise
    if moved is not None:
        moved()
    if permit is not None:
        permit.release()
    if recording:
        rt.emit(_END, work.entity, work.KIND, outcome.status, outcome.amount, outcome.started_ns, len(outcome.completed))
    if work.CANCELLATION is _AT_BOUNDARY:
        await rt.checkpoint()
    return outcome


async def after_failure(rt: Runtime, performer: Any, work: Work, permit: Releasable | None, failure: BaseException) -> None:
    """A call was cancelled or failed: log it, and give the permit back when the worker is free."""
    cancelled = isinstance(failure, rt.cancelled)
    try:
        if cancelled and rt.recording:
            rt.emit(_END, work.entity, work.KIND, Status.CANCELLED, 0, -1, 0)
    finally:  # whatever becomes of the log
        if cancelled and (work.CANCELLATION is _KILL or work.CANCELLATION is _ABANDON):
            await _leave(rt, performer, work, permit)
        elif permit is not None:
            permit.release()


async def _leave(rt: Runtime, performer: Performer, work: Work, permit: Releasable | None) -> None:
    """The caller of a killed or abandoned work goes; a background task stays until the worker is free."""
    gone = rt.event()
    rt.background(_reap, rt, performer, work, permit, gone, name=f"reap {type(work).__name__} {work.entity}")
    if work.CANCELLATION is _KILL:
        with rt.move_on_after(work.GRACE_NS, shield=True):
            await gone.wait()


async def _reap(rt: Runtime, performer: Performer, work: Work, permit: Releasable | None, gone: Event) -> None:
    try:
        await performer.gone(rt, work)
    finally:
        if permit is not None:
            permit.release()
        gone.set()
