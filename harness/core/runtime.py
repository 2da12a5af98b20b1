"""The runtime: all that an actor may ask of the world.

Theory of operation
-------------------
Actors are `async def` functions that take a `Runtime`. Three engines implement it (`harness.engines`): `live` on trio and
the system clock, `sim` on SimPy's event queue, `virtual` on real trio whose clock SimPy steps. The names are trio's, and so
are the semantics, with one deliberate difference (law 2). `harness.engines.conformance` tests every law on any engine.

Laws
----
1. Every async verb is a cancellation point, also when it does not wait.
2. An async verb is a *schedule point* only when it waits. No actor may rely on a verb to yield.
3. A cancelled wait changes nothing: a cancelled send has sent nothing, a cancelled receive has taken nothing, a cancelled
   permit was not taken.
4. Cancellation is level-triggered: inside a cancelled scope every cancellation point raises, until the scope is left. A
   shielded scope hides what is outside it. Of several expired scopes the outermost one catches.
5. A nursery never exits with a live child. A failed child cancels its siblings and the body, and no failure is lost: all
   come out in one `BaseExceptionGroup`. The main task's own failure comes out of the run bare, and so does Ctrl-C.
6. At one instant completions come before deadlines: a wait that completes at the very nanosecond of its deadline has
   completed. Scopes whose deadlines are equal expire together, those of different tasks too. A scope that is entered at its
   deadline or later is cancelled from the start.
7. If nothing is runnable, no event is pending and no deadline is set, the engine raises `DeadlockError` with the names of
   those who wait. More than a set number of steps at one instant raises `LivelockError`. Either first cancels the program,
   so that clean-up runs. (Not on a real clock, which always has a next instant.)
8. Time is spent in `sleep` and `perform` alone. Time is integer nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import TracebackType

    from harness.core.events import Recorder
    from harness.core.host import HostCosts
    from harness.core.lanes import Lane, Lanes
    from harness.core.seeds import Stream
    from harness.core.work import Outcome, Work

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class CancelScope(Protocol):
    """A region that can be cancelled, by a call or by its deadline. Entered once, with `with`."""

    deadline_ns: int | None
    shield: bool

    @property
    def cancel_called(self) -> bool:
        """Whether it was cancelled, by a call or a deadline."""

    @property
    def cancelled_caught(self) -> bool:
        """After exit: whether it swallowed a cancellation of its own."""

    def cancel(self) -> None:
        """Cancel it. Never waits; calling it twice is the same as once."""

    def __enter__(self) -> CancelScope: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> bool | None: ...


class Nursery(Protocol):
    """Owns child tasks."""

    @property
    def cancel_scope(self) -> CancelScope:
        """The scope round the body and all children."""

    def start_soon(self, fn: Callable[..., Awaitable[object]], /, *args: Any, name: str | None = None) -> None:
        """Start a child. It first runs when the present task next waits."""


class Event(Protocol):
    """A one-way flag."""

    def is_set(self) -> bool:
        """Whether `set` was called."""

    def set(self) -> None:
        """Wake every waiter."""

    async def wait(self) -> None:
        """Wait until it is set."""


class SendChannel(Protocol[T_contra]):
    """The sending end of a bounded FIFO channel."""

    async def send(self, value: T_contra, /) -> None:
        """Put a value in, waiting while the channel is full. Raises `BrokenChannelError`, `ClosedChannelError`."""

    def send_nowait(self, value: T_contra, /) -> None:
        """Put a value in at once, or raise `WouldBlock`."""

    def close(self) -> None:
        """Close this end: receivers get `EndOfChannel` once it is empty; own waiting sends get `ClosedChannelError`."""


class ReceiveChannel(Protocol[T_co]):
    """The receiving end of a bounded FIFO channel."""

    async def receive(self) -> T_co:
        """Take the oldest value, waiting for one. Raises `EndOfChannel`, `ClosedChannelError`."""

    def receive_nowait(self) -> T_co:
        """Take the oldest value at once, or raise `WouldBlock`."""

    def close(self) -> None:
        """Close this end: senders get `BrokenChannelError`; own waiting receives get `ClosedChannelError`."""


class Releasable(Protocol):
    """Something held that is given back exactly once: a permit of a pool."""

    def release(self) -> None:
        """Give it back."""


class Performer(Protocol):
    """Does one kind of work: a live performer really, a simulated one by letting time pass.

    A call may be cancelled at any wait. For kinds that are killed or abandoned the worker may then still be busy: `gone`
    returns when it is free. It is awaited once after a cancelled call, in a background task, with the same record.
    """

    def __call__(self, rt: Any, work: Any, /) -> Awaitable[Outcome]:
        """Do it. Usually an `async def`."""

    async def gone(self, rt: Any, work: Any, /) -> None:
        """After a cancelled call: return when the worker is free again."""


class Runtime(Protocol):
    """The waist. All durations and instants are integer nanoseconds."""

    cancelled: type[BaseException]
    lanes: Lanes
    recorder: Recorder
    recording: bool
    seed: int

    def now(self) -> int:
        """Nanoseconds since the run began."""

    async def sleep(self, duration_ns: int, /) -> None:
        """Let time pass. Zero or less is a cancellation point that does not wait."""

    async def checkpoint(self) -> None:
        """A cancellation point that never waits."""

    def event(self) -> Event:
        """A new event."""

    def channel(self, capacity: int, /) -> tuple[SendChannel[Any], ReceiveChannel[Any]]:
        """A bounded FIFO channel; capacity 0 hands over directly."""

    def nursery(self) -> AbstractAsyncContextManager[Nursery]:
        """`async with rt.nursery() as nursery: ...`."""

    def cancel_scope(self, *, deadline_ns: int | None = None, shield: bool = False) -> CancelScope:
        """A scope with an absolute deadline, or none."""

    def shield(self) -> AbstractContextManager[object]:
        """A shielded scope without a deadline that nobody can cancel: for steps that run out, and for clean-up."""

    def move_on_after(self, timeout_ns: int, /, *, shield: bool = False) -> CancelScope:
        """A scope that is cancelled `timeout_ns` from now; leave it quietly and look at `cancelled_caught`."""

    def fail_after(self, timeout_ns: int, /, *, shield: bool = False) -> AbstractContextManager[CancelScope]:
        """The same, but raises `DeadlineExceeded` when the deadline cut the body off."""

    async def perform(self, work: Work, /, *, permit: Releasable | None = None) -> Outcome:
        """Do some work. See `harness.core.perform` for what cancelling it does.

        A permit handed over is released when the worker is free, which may be after the call has returned.
        """

    def background(self, fn: Callable[..., Awaitable[object]], /, *args: Any, name: str | None = None) -> None:
        """Start a task that belongs to the run and not to a nursery: it is cancelled when the main task has ended."""

    def loop_busy_ns(self) -> int:
        """Nanoseconds since the run began in which the event loop was not waiting: measured live, charged in virtual time."""

    def emit(self, kind: int, entity: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, /) -> None:
        """Write one event of the canonical log (`harness.core.events`)."""

    def rng(self, purpose: str, /, *ids: int) -> Stream:
        """A stream of random numbers that belongs to a purpose and some ids, whatever else is drawn."""

    def lane(self, name: str, role: str, /, *, chips: int = 0) -> Lane:
        """A new lane of this run."""


class Engine(Protocol):
    """What `harness.engines.{live,sim,virtual}.run` have in common."""

    def __call__(
        self,
        main: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        performers: Any = None,
        seed: int = 0,
        recorder: Recorder | None = None,
        step_limit: int = 1_000_000,
        host: HostCosts | None = None,
    ) -> T:
        """Run `main(rt, *args)` to its end and return its result.

        Args:
            main: the root actor.
            args: handed to it after the runtime.
            performers: `{work class: performer}`.
            seed: of keyed draws.
            recorder: where events and intervals go; nothing is kept without one.
            step_limit: steps at one instant before `LivelockError`.
            host: what the event loop charges in virtual time; nothing by default. A real one charges by itself.

        """


class Box(Generic[T]):
    """A value that will be there: set once, waited for by any number."""

    __slots__ = ("_event", "_value")

    def __init__(self, rt: Runtime) -> None:
        self._event = rt.event()
        self._value: T | None = None

    def put(self, value: T) -> None:
        """Set it and wake the waiters."""
        self._value = value
        self._event.set()

    async def get(self) -> T:
        """Wait for it."""
        await self._event.wait()
        return self._value  # type: ignore[return-value]  # set before the event
