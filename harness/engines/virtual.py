"""The engine `virtual`: real trio on a clock that SimPy steps. The reference that `sim` is tested against.

Theory of operation
-------------------
trio asks its clock how long to sleep exactly when no task is runnable. This clock then looks at SimPy's queue and at trio's
next deadline, moves to the earlier of the two, and answers 0. If SimPy's is earlier, or at the same instant, every event of
that instant is processed; their callbacks only make trio tasks runnable. So all that completes at an instant, and all that
follows from it, comes before the deadlines of that instant.

trio's unit of time is the nanosecond here: instants are whole floats, deadlines lie half a nanosecond behind theirs, both
exact below 2**52 ns (52 days), which is refused beyond.

*Guards.* External work (a thread, a socket) makes an error instead of a jump. Nothing runnable, no event and no deadline is
a deadlock; too many task steps at one instant a livelock. A failure found by the clock must not be raised inside trio's
loop, where it becomes an internal error: the run's root scope is cancelled instead, so that clean-up runs, and `run` raises
it. If clean-up gets stuck as well, shields are taken away; if even that does not help, the run is torn down.

*The event loop* is charged with every step that trio makes for a task of the run (`harness.core.host`), and a sleep begins when
the loop has come to it.

*Order.* Ready tasks run in the order of their creation (`tie_seed=None`, the canonical order) or shuffled by a seed.
trio has no public switch for that; `ordered` is the one place that touches its private one.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager
from heapq import heappop
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import simpy
import trio

from harness.core.errors import DeadlockError, HarnessError, LawError, LivelockError
from harness.core.host import HostCosts, HostLoop
from harness.engines._interrupt import bare_interrupt
from harness.engines._trio import TrioRuntime
from harness.engines._trio_waits import cancellation_point

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from harness.core.events import Recorder
    from harness.core.perform import Performers

T = TypeVar("T")

LATEST_NS = 2**52
"""The last instant at which half a nanosecond is still exact in a float."""

_OWN_SOCKETS = 1  # trio waits on one of its own, for wake-ups
_NAMES_KEPT = 64
_ESCALATIONS = 16


class _CreationOrder:
    """Stands in for trio's random generator: keeps the order of a batch that is sorted by creation."""

    def shuffle(self, batch: list[Any]) -> None:
        """Turn the batch round, as trio takes tasks from its end."""
        batch.reverse()

    def random(self) -> float:
        """Never reached while the switch is on; 0 would keep the order too."""
        return 0.0

    def uniform(self, low: float, high: float) -> float:
        """For a system clock made meanwhile."""
        return (low + high) / 2


@contextmanager
def ordered(tie_seed: int | None) -> Iterator[None]:
    """Make trio's scheduling order a function of the program (and of `tie_seed`) for the time of a run.

    Raises:
        LawError: the installed trio does not have the private switch that this needs.

    """
    module = trio._core._run
    switch, generator = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r"
    for name in (switch, generator):
        if not hasattr(module, name):
            raise LawError(
                f"trio {trio.__version__} has no {name}: the order of tasks cannot be fixed; install a version that the "
                "package's metadata allows"
            )
    before = getattr(module, switch), getattr(module, generator)
    setattr(module, switch, True)
    setattr(module, generator, _CreationOrder() if tie_seed is None else Random(tie_seed))
    try:
        yield
    finally:
        setattr(module, switch, before[0])
        setattr(module, generator, before[1])


class _Wake(simpy.Timeout):
    """The end of one task's sleep; without a callback once the sleep was cancelled."""


class SteppedClock(trio.abc.Clock, trio.abc.Instrument):
    """trio's clock and SimPy's environment, moved together.

    Attributes:
        now_ns: the present instant.
        loop: the event loop's own clock.
        failure: what ended the run, if the clock did.

    """

    def __init__(self, step_limit: int, host: HostCosts) -> None:
        self.now_ns = 0
        self.loop = HostLoop(host)
        self._passed = False  # whether the loop was charged with a pass for this pass of trio
        self._follows = False  # whether it was for the one before, and time has not moved on since
        self.failure: HarnessError | None = None
        self._view = 0.0  # the present as trio sees it: now_ns, or half a nanosecond more while deadlines expire
        self._environment = simpy.Environment()
        self._step_limit = step_limit
        self._steps = 0
        self._recent: deque[str] = deque(maxlen=_NAMES_KEPT)
        self._runtime: VirtualRuntime | None = None
        self._scope: trio.CancelScope | None = None
        self._main: trio.lowlevel.Task | None = None
        self._limiter: trio.CapacityLimiter | None = None
        self._escalations = 0

    # ── what trio asks ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_clock(self) -> None:
        """Nothing to do."""

    def current_time(self) -> float:
        """The present as trio sees it, in nanoseconds."""
        if self._escalations > _ESCALATIONS and self.failure is not None:
            raise self.failure  # tears trio down; `run` knows
        return self._view

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Nothing is runnable: move on, and do not sleep."""
        self._passed = False
        if self._main is None:
            return math.inf  # trio itself starts or ends
        if self._external_work():
            if self.failure is None:
                self._fail(
                    LawError(
                        f"at {self.now_ns} ns a thread or a socket is at work outside simulated time; performers of a "
                        "virtual engine only wait on the runtime"
                    )
                )
                return 0.0
            return math.inf  # wait for it in real time, so that it can be cleaned up
        try:
            self._advance(deadline)
        except HarnessError as error:
            self._fail(error)
        except Exception as error:
            self._fail(LawError(f"a SimPy callback failed at {self.now_ns} ns: {type(error).__name__}: {error}"))
        return 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count steps at one instant, and charge the loop for them."""
        self._steps += 1
        if self.loop.costs != HostCosts() and self._is_inside(task):
            if self._follows and not self._passed:
                self.loop.next_pass()
                self._passed = True
            self._passed = self.loop.step(self.now_ns) or self._passed
        self._recent.append(task.name)
        if self._steps > self._step_limit:
            self._steps = 0
            names = tuple(sorted(set(self._recent)))
            self._fail(LivelockError(self._step_limit, self.now_ns, names))

    def before_io_wait(self, timeout: float) -> None:
        """A pass of trio begins: what is ready was made so by the one before it, unless the clock had to look for it."""
        self._follows, self._passed = self._passed, False

    # ── what the runtime asks ───────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, runtime: VirtualRuntime, scope: trio.CancelScope) -> None:
        """The run begins: remember whom to stop. Called in the main task."""
        self._runtime = runtime
        self._scope = scope
        self._main = task = trio.lowlevel.current_task()
        self.before_task_step(task)  # of the step that is running: there was no main task when it began
        self._limiter = trio.to_thread.current_default_thread_limiter()

    def detach(self) -> None:
        """The run is over."""
        self._main = None

    def begin_ns(self) -> int:
        """When what the present task starts now begins: when the loop has come to it."""
        if self.loop.until > self.now_ns and self._is_inside(trio.lowlevel.current_task()):
            return self.loop.until
        return self.now_ns

    def _is_inside(self, task: trio.lowlevel.Task) -> bool:
        """Whether a task's steps are the event loop's: it is the main task or comes from it, and not through `background`."""
        background = self._runtime.background_nursery if self._runtime is not None else None
        while task is not self._main:
            nursery = task.parent_nursery
            if nursery is None or nursery is background:
                return False
            task = nursery.parent_task
        return True

    async def wait_until(self, wake_ns: int) -> None:
        """Park the present task on a SimPy timeout."""
        if wake_ns >= LATEST_NS:
            raise LawError(f"this engine counts to {LATEST_NS} ns (52 days); a sleep would end at {wake_ns} ns")
        task = trio.lowlevel.current_task()
        timeout = _Wake(self._environment, wake_ns - self._environment.now)

        def fire(_: simpy.Event) -> None:
            trio.lowlevel.reschedule(task)

        def abort(_: Callable[[], Any]) -> trio.lowlevel.Abort:
            timeout.callbacks.remove(fire)
            return trio.lowlevel.Abort.SUCCEEDED

        timeout.callbacks.append(fire)
        await trio.lowlevel.wait_task_rescheduled(abort)

    # ── how time moves ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, deadline: float) -> None:
        environment = self._environment
        at = self._next_event()
        if at <= deadline and at != math.inf:
            self._move(int(at), float(at))
            while self._next_event() == at:
                environment.step()
            return
        if deadline == math.inf:
            raise DeadlockError(self._waiting(), self.now_ns)
        self._move(max(self.now_ns, math.floor(deadline)), max(self._view, deadline))

    def _next_event(self) -> float:
        """When SimPy's next event is. A sleep that was cancelled has left one that wakes nobody: it is thrown away."""
        queue = self._environment._queue
        while queue and isinstance(queue[0][3], _Wake) and not queue[0][3].callbacks:
            heappop(queue)
        return self._environment.peek()

    def _move(self, now_ns: int, view: float) -> None:
        if now_ns != self.now_ns:
            self.now_ns = now_ns
            self._steps = 0
        self._view = view

    def _fail(self, failure: HarnessError) -> None:
        """End the run: first cancel everything, then without shields, then by force."""
        if self.failure is None:
            self.failure = failure
        self._escalations += 1
        if self._scope is not None:
            self._scope.cancel()
        if self._escalations > 1 and self._runtime is not None:
            for scope in list(self._runtime.shields):
                scope.shield = False

    def _external_work(self) -> bool:
        if self._limiter is not None and self._limiter.borrowed_tokens:
            return True
        io = trio.lowlevel.current_statistics().io_statistics
        return getattr(io, "tasks_waiting_read", 0) + getattr(io, "tasks_waiting_write", 0) > _OWN_SOCKETS

    def _waiting(self) -> tuple[str, ...]:
        """Names of live tasks, parents first, siblings by name."""
        if self._main is None:
            return ()
        found = [self._main]
        for task in found:
            for nursery in task.child_nurseries:
                found.extend(sorted(nursery.child_tasks, key=lambda child: child.name))
        main = self._runtime.main_name if self._runtime is not None else "main"
        return tuple(main if task is self._main else task.name for task in found)


class VirtualRuntime(TrioRuntime):
    """The waist on a stepped clock."""

    def __init__(
        self, clock: SteppedClock, main_name: str, performers: Performers, seed: int, recorder: Recorder | None
    ) -> None:
        self._clock = clock
        self.main_name = main_name
        super().__init__(performers, seed, recorder)

    def now(self) -> int:
        """Nanoseconds since the run began."""
        return self._clock.now_ns

    def trio_time(self, at_ns: float) -> float:
        """An instant on trio's clock, whose unit is the nanosecond here."""
        if at_ns >= LATEST_NS:
            raise LawError(f"this engine counts to {LATEST_NS} ns (52 days); a deadline lies at {at_ns:.0f} ns")
        return float(at_ns)

    async def sleep(self, duration_ns: int, /) -> None:
        """Let time pass."""
        cancellation_point()
        if duration_ns > 0:
            await self._clock.wait_until(self._clock.begin_ns() + duration_ns)

    async def occupy(self, duration_ns: int, /) -> None:
        """Let time pass on the event loop itself, in turn; for simulated performers only. Nothing withdraws it."""
        cancellation_point()
        if duration_ns > 0:
            clock = self._clock
            with self.shield():
                await clock.wait_until(clock.loop.occupy(clock.now_ns, duration_ns))

    def loop_busy_ns(self) -> int:
        """How long the event loop has been charged."""
        return self._clock.loop.busy_ns(self._clock.now_ns)


def run(
    main: Callable[..., Awaitable[T]],
    /,
    *args: Any,
    performers: Performers | None = None,
    seed: int = 0,
    recorder: Recorder | None = None,
    step_limit: int = 1_000_000,
    host: HostCosts | None = None,
    tie_seed: int | None = None,
) -> T:
    """Run `main(rt, *args)` on real trio in virtual time; see `harness.core.runtime.Engine`.

    Args:
        main: the root actor.
        args: handed to it after the runtime.
        performers: `{work class: performer}`.
        seed: of keyed draws.
        recorder: where events and intervals go.
        step_limit: task steps at one instant before `LivelockError`.
        host: what the event loop charges.
        tie_seed: None for the canonical order, a number to shuffle tasks that are ready together.

    Raises:
        DeadlockError: nothing can happen any more.
        LivelockError: too many steps at one instant.
        LawError: external work in a simulated run, a failing SimPy callback, or a trio whose order cannot be fixed.

    """
    clock = SteppedClock(step_limit, host or HostCosts())
    runtime = VirtualRuntime(clock, getattr(main, "__qualname__", "main"), performers or {}, seed, recorder)

    async def root() -> T:
        with trio.CancelScope() as scope:
            clock.attach(runtime, scope)
            try:
                return await runtime.supervise(main, args)
            finally:
                clock.detach()
        raise LawError("the run was cancelled from outside")

    with ordered(tie_seed), bare_interrupt():
        try:
            result = trio.run(root, clock=clock, instruments=[clock])
        except KeyboardInterrupt:
            raise
        except BaseException:
            if clock.failure is not None:
                raise clock.failure from None
            raise
    if clock.failure is not None:
        raise clock.failure
    return result
