"""The waist on real trio: what `live` and `virtual` share.

Theory of operation
-------------------
Tasks, nurseries, cancel scopes, events and channels are trio's own. Three things are added so that the laws of
`harness.core.runtime` hold:

*No schedule point without a wait* (law 2). trio yields at every checkpoint. Here a verb that need not wait does its deed
with the `…_nowait` form, and a verb inside a cancelled scope raises at once; a nursery that has no live child is left
without a pass of the scheduler (`_without_yield`).

*Completions before deadlines* (law 6). Instants are whole nanoseconds. A sleep ends at its instant, a scope's deadline is
handed to trio half a nanosecond later. Whatever clock trio runs on, it then sees the completions of an instant, lets
everything that follows from them run, and looks at the deadlines afterwards.

*Failures* (law 5). `supervise` runs the main task inside a nursery that owns the background tasks. The main task's own
failure comes out bare; if a background task failed, all failures come out in one `BaseExceptionGroup`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import outcome
import trio

from harness.core.errors import (
    DeadlineExceeded,
    LawError,
)
from harness.core.events import NullRecorder, Recorder
from harness.core.lanes import Lane, Lanes
from harness.core.perform import Performers, perform
from harness.core.seeds import Stream, derive_key
from harness.engines._trio_waits import Event, ReceiveChannel, SendChannel, cancellation_point

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from types import TracebackType

    from harness.core.runtime import Releasable
    from harness.core.work import Outcome, Work
    from harness.engines._timer import Timer

T = TypeVar("T")

DEADLINE_LAG_NS = 0.5
"""How far behind its instant trio is told a deadline lies: less than the resolution of time, more than a float's error."""


class CancelScope:
    """trio's cancel scope with a deadline in integer nanoseconds."""

    __slots__ = ("_deadline_ns", "_entered", "_rt", "_scope")

    def __init__(self, rt: TrioRuntime, scope: trio.CancelScope, deadline_ns: int | None, *, entered: bool = False) -> None:
        self._rt = rt
        self._scope = scope
        self._entered = entered
        self._deadline_ns: int | None = None
        self.deadline_ns = deadline_ns
        if scope.shield:
            rt.shields[self] = None

    @property
    def deadline_ns(self) -> int | None:
        """Absolute deadline, or none."""
        return self._deadline_ns

    @deadline_ns.setter
    def deadline_ns(self, deadline_ns: int | None) -> None:
        self._deadline_ns = deadline_ns
        if self._entered:
            if deadline_ns is not None and deadline_ns <= self._rt.now():
                self._scope.cancel()
            self.arm()

    def arm(self) -> None:
        """Have the deadline kept: by trio."""
        deadline_ns = self._deadline_ns
        self._scope.deadline = math.inf if deadline_ns is None else self._rt.trio_time(deadline_ns + DEADLINE_LAG_NS)

    def disarm(self) -> None:
        """The scope is left; trio forgets by itself."""

    @property
    def shield(self) -> bool:
        """Whether what is outside is hidden."""
        return self._scope.shield

    @shield.setter
    def shield(self, shield: bool) -> None:
        self._scope.shield = shield
        if shield:
            self._rt.shields[self] = None
        else:
            self._rt.shields.pop(self, None)

    @property
    def cancel_called(self) -> bool:
        """Whether it was cancelled, by a call or a deadline."""
        return self._scope.cancel_called

    @property
    def cancelled_caught(self) -> bool:
        """Whether it swallowed a cancellation of its own."""
        return self._scope.cancelled_caught

    def cancel(self) -> None:
        """Cancel it."""
        self._scope.cancel()

    def __enter__(self) -> CancelScope:
        if self._entered:
            raise LawError("a cancel scope is entered once")
        self._entered = True
        if self._deadline_ns is not None:
            if self._deadline_ns <= self._rt.now():
                self._scope.cancel()
            self.arm()
        self._scope.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /) -> bool:
        self._rt.shields.pop(self, None)
        self.disarm()
        return self._scope.__exit__(kind, exc, tb)


class TimedScope(CancelScope):
    """A scope whose deadline is kept by the run's timer, not by trio."""

    __slots__ = ("_timer", "key")

    def __init__(
        self, rt: TrioRuntime, scope: trio.CancelScope, deadline_ns: int | None, timer: Timer, *, entered: bool = False
    ) -> None:
        self._timer = timer
        self.key: int | None = None
        super().__init__(rt, scope, deadline_ns, entered=entered)

    def wanted(self) -> int:
        """When it expires, in half nanoseconds."""
        assert self._deadline_ns is not None
        return 2 * self._deadline_ns + 1

    def serve(self) -> None:
        """It has expired."""
        self._scope.cancel()

    def arm(self) -> None:
        """See to it that the timer looks at it in time. An entry that comes up too early moves by itself."""
        if self._deadline_ns is None:
            self.disarm()
            return
        key = 2 * self._deadline_ns + 1
        if self.key is None or key < self.key:
            self.disarm()
            self.key = key
            self._timer.add(key, self)

    def disarm(self) -> None:
        """It wants nothing any more."""
        if self.key is not None:
            self.key = None
            self._timer.forget()


class FailAfter:
    """A scope that raises `DeadlineExceeded` if it swallowed its own cancellation."""

    __slots__ = ("_scope",)

    def __init__(self, scope: CancelScope) -> None:
        self._scope = scope

    def __enter__(self) -> CancelScope:
        return self._scope.__enter__()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /) -> bool:
        swallowed = self._scope.__exit__(kind, exc, tb)
        if self._scope.cancelled_caught:
            raise DeadlineExceeded
        return swallowed


_CHECKPOINT = trio.lowlevel.cancel_shielded_checkpoint


def _checkpoint_message() -> object:
    """What trio's uncancellable checkpoint yields to the scheduler."""
    probe = _CHECKPOINT()
    message = probe.send(None)
    probe.close()
    return message


_YIELD = _checkpoint_message()


@coroutine
def _without_yield(body: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine, answering its bare schedule points at once instead of passing them to the scheduler."""
    answer: Any = None
    while True:
        try:
            message = body.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = outcome.Value(None) if message is _YIELD else (yield message)


class Nursery:
    """Owns child tasks; its own context manager."""

    __slots__ = ("_manager", "_nursery", "_rt", "_scope")

    def __init__(self, rt: TrioRuntime) -> None:
        self._rt = rt
        self._manager = trio.open_nursery(strict_exception_groups=True)
        self._nursery: trio.Nursery | None = None
        self._scope: CancelScope | None = None

    @property
    def cancel_scope(self) -> CancelScope:
        """The scope round the body and all children."""
        if self._scope is None:
            raise LawError("a nursery's scope exists once the nursery is open")
        return self._scope

    def start_soon(self, fn: Callable[..., Awaitable[object]], /, *args: Any, name: str | None = None) -> None:
        """Start a child."""
        nursery = self._nursery
        if nursery is None:
            raise LawError("this nursery is closed (or was never opened): no child can start in it")
        nursery.start_soon(fn, *args, name=name)

    async def __aenter__(self) -> Nursery:
        self._nursery = await self._manager.__aenter__()
        self._scope = self._rt.scope(self._nursery.cancel_scope, None, entered=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        try:
            leave: Coroutine[Any, Any, bool | None] = self._manager.__aexit__(kind, exc, tb)
            if self._nursery is not None and not self._nursery.child_tasks:
                return await _without_yield(leave)
            return await leave
        finally:
            self._nursery = None
            if self._scope is not None:
                self._rt.shields.pop(self._scope, None)
                self._scope.disarm()


class TrioRuntime(ABC):
    """The waist on trio, on a clock that a subclass knows.

    Attributes:
        cancelled: trio's exception.
        seed: of keyed draws.
        recorder: where events go.
        recording: whether it keeps any.
        lanes: of this run.
        shields: scopes that are shielded now, oldest first.

    """

    cancelled: type[BaseException] = trio.Cancelled

    def __init__(self, performers: Performers, seed: int, recorder: Recorder | None) -> None:
        self.seed = seed
        self.recorder: Recorder = recorder or NullRecorder()
        self.recording = self.recorder.enabled
        self.lanes = Lanes(self.now, self.recorder.append_interval if self.recorder.enabled else None)
        self.shields: dict[CancelScope, None] = {}
        self._performers = performers
        self._background: trio.Nursery | None = None

    @abstractmethod
    def now(self) -> int:
        """Nanoseconds since the run began."""

    @abstractmethod
    def trio_time(self, at_ns: float) -> float:
        """An instant of this run on trio's clock."""

    @abstractmethod
    async def sleep(self, duration_ns: int, /) -> None:
        """Let time pass."""

    @abstractmethod
    def loop_busy_ns(self) -> int:
        """Nanoseconds in which the event loop was not waiting."""

    @property
    def background_nursery(self) -> trio.Nursery | None:
        """Owner of the background tasks, while a run is in progress."""
        return self._background

    async def checkpoint(self) -> None:
        """A cancellation point that never waits."""
        cancellation_point()

    def event(self) -> Event:
        """A new event."""
        return Event()

    def channel(self, capacity: int, /) -> tuple[SendChannel, ReceiveChannel]:
        """A bounded FIFO channel."""
        if capacity < 0:
            raise LawError(f"a channel's capacity is at least 0, not {capacity}")
        send, receive = trio.open_memory_channel[Any](capacity)
        return SendChannel(send), ReceiveChannel(receive)

    def nursery(self) -> Nursery:
        """A new nursery."""
        return Nursery(self)

    def cancel_scope(self, *, deadline_ns: int | None = None, shield: bool = False) -> CancelScope:
        """A scope with an absolute deadline, or none."""
        return self.scope(trio.CancelScope(shield=shield), deadline_ns)

    def scope(self, scope: trio.CancelScope, deadline_ns: int | None, *, entered: bool = False) -> CancelScope:
        """Our scope round one of trio's."""
        return CancelScope(self, scope, deadline_ns, entered=entered)

    def shield(self) -> CancelScope:
        """A shielded scope without a deadline."""
        return self.cancel_scope(shield=True)

    def move_on_after(self, timeout_ns: int, /, *, shield: bool = False) -> CancelScope:
        """A scope with a deadline from now."""
        return self.cancel_scope(deadline_ns=self.now() + timeout_ns, shield=shield)

    def fail_after(self, timeout_ns: int, /, *, shield: bool = False) -> FailAfter:
        """The same; raises `DeadlineExceeded`."""
        return FailAfter(self.move_on_after(timeout_ns, shield=shield))

    async def perform(self, work: Work, /, *, permit: Releasable | None = None) -> Outcome:
        """Do some work."""
        return await perform(self, self._performers, work, permit)

    def background(self, fn: Callable[..., Awaitable[object]], /, *args: Any, name: str | None = None) -> None:
        """Start a task that belongs to the run."""
        if self._background is None:
            raise LawError("a background task belongs to a run, and no run is in progress")
        self._background.start_soon(fn, *args, name=name)

    def emit(self, kind: int, entity: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, /) -> None:
        """Write one event of the canonical log."""
        if self.recording:
            self.recorder.append_event((self.now(), kind, entity, a, b, c, d, e))

    def rng(self, purpose: str, /, *ids: int) -> Stream:
        """A keyed stream."""
        return Stream(derive_key(self.seed, purpose, *ids))

    def lane(self, name: str, role: str, /, *, chips: int = 0) -> Lane:
        """A new lane."""
        return self.lanes.add(name, role, chips)

    async def supervise(self, main: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        """Run the main task inside the nursery of the background tasks; they are cancelled when it has ended."""
        failure: BaseException | None = None
        try:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                self._background = nursery
                try:
                    result = await main(self, *args)
                except BaseException as exc:
                    if nursery.cancel_scope.cancel_called:
                        raise  # a background task failed first: the nursery sorts out who failed and who was cancelled
                    failure = exc
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if failure is None:
                raise
            raise BaseExceptionGroup("the main task and background tasks failed", [failure, *group.exceptions]) from None
        if failure is not None:
            raise failure
        return result
