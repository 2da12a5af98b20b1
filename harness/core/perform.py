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

_IMMEDIATE = Cancellation.IMMEDIATE
_AT_BOUNDARY = Cancellation.AT_BOUNDARY
_KILL = Cancellation.KILL
_START = int(EventKind.WORK_START)
_END = int(EventKind.WORK_END)

Performers = Mapping[type[Work], Performer]


class FunctionPerformer:
    """A performer whose worker is always free as soon as its call ends."""

    __slots__ = ("_fn",)

    def __init__(self, fn: Callable[[Any, Any], Awaitable[Outcome]]) -> None:
        self._fn = fn

    def __call__(self, rt: Runtime, work: Work, /) -> Awaitable[Outcome]:
        """Call the function; its own coroutine is handed on, without a frame in between."""
        return self._fn(rt, work)

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """Nothing is left to wait for."""


async def perform(rt: Runtime, performers: Performers, work: Work, permit: Releasable | None) -> Outcome:
    """Do `work` with the performer of its class. Engines call this; actors call `rt.perform`."""
    try:
        performer = performers[work.__class__]
    except KeyError:
        raise ModelError(
            f"nothing performs {type(work).__name__}; give the engine a performer for it "
            f"(it has: {', '.join(sorted(kind.__name__ for kind in performers)) or 'none'})"
        ) from None
    recording = rt.recording
    if recording:
        rt.emit(_START, work.entity, work.KIND, *work.cost_fields())
    how = work.CANCELLATION
    try:
        if how is _AT_BOUNDARY:
            await rt.checkpoint()  # no step starts once the caller is cancelled
            with rt.shield():
                outcome = await performer(rt, work)
        else:
            outcome = await performer(rt, work)
    except rt.cancelled:
        if recording:
            rt.emit(_END, work.entity, work.KIND, Status.CANCELLED, 0, -1, 0)
        if how is _IMMEDIATE or how is _AT_BOUNDARY:
            if permit is not None:
                permit.release()
        else:
            await _leave(rt, performer, work, permit)
        raise
    except BaseException:
        if permit is not None:
            permit.release()
        raise
    if permit is not None:
        permit.release()
    if recording:
        rt.emit(_END, work.entity, work.KIND, outcome.status, outcome.amount, outcome.started_ns, len(outcome.completed))
    if how is _AT_BOUNDARY:
        await rt.checkpoint()
    return outcome


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
