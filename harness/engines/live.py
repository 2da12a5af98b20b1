"""The engine `live`: actors on real trio and the system clock.

Time is what the clock says, in whole nanoseconds since the run began. What law 6 promises about one instant holds as far as
an instant exists on a real clock: a sleep that was due before any deadline round it returns, however late the scheduler
looks. On a clock that jumps (`trio.testing.MockClock`) it holds exactly.

A real clock always has a next instant, and the world outside may act at any time. So this engine cannot know that nothing
will ever happen again, nor that a program takes steps without time passing: it raises neither `DeadlockError` nor
`LivelockError`, and `step_limit` is ignored. Deadlines round every wait on something outside are what a live run has
instead. Test a program on a virtual engine first.
"""

from __future__ import annotations

from math import floor
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from harness.core.perform import perform
from harness.core.units import NS_PER_S
from harness.engines._collector import rarer_collections
from harness.engines._interrupt import bare_interrupt
from harness.engines._timer import Timer
from harness.engines._trio import CancelScope, TimedScope, TrioRuntime
from harness.engines._trio_waits import cancellation_point

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from harness.core.events import Recorder
    from harness.core.host import HostCosts
    from harness.core.perform import Performers
    from harness.core.runtime import Releasable
    from harness.core.work import Outcome, Work

T = TypeVar("T")

_HALF_NS_PER_S = 2 * NS_PER_S


class LiveRuntime(TrioRuntime):
    """The waist on trio's clock, with one timer for all sleeps and deadlines."""

    def __init__(self, performers: Performers, seed: int, recorder: Recorder | None) -> None:
        self._start_s = 0.0
        self._timer = Timer(self.now_key, self.trio_time)
        super().__init__(performers, seed, recorder)

    def start(self) -> None:
        """Time zero is now. Called inside trio."""
        self._start_s = trio.current_time()
        trio.lowlevel.spawn_system_task(self._timer.run, name="timer")

    def now_key(self) -> int:
        """Half nanoseconds since the run began, rounded: a float's error is smaller."""
        return floor((trio.current_time() - self._start_s) * _HALF_NS_PER_S + 0.5)

    def now(self) -> int:
        """Nanoseconds since the run began."""
        return self.now_key() >> 1

    def loop_busy_ns(self) -> int:
        """Nothing: on a clock that somebody else moves, steps take no time."""
        return 0

    def trio_time(self, at_ns: float) -> float:
        """An instant of this run on trio's clock, in seconds."""
        return self._start_s + at_ns / NS_PER_S

    async def sleep(self, duration_ns: int, /) -> None:
        """Let time pass."""
        cancellation_point()
        if duration_ns > 0:
            await self._timer.sleep(2 * (self.now() + duration_ns))

    def scope(self, scope: trio.CancelScope, deadline_ns: int | None, *, entered: bool = False) -> CancelScope:
        """A scope whose deadline the timer keeps."""
        return TimedScope(self, scope, deadline_ns, self._timer, entered=entered)


class SystemClockRuntime(LiveRuntime):
    """The same on the system's clock, where time would move while an actor decides.

    Law 8 says that it does not: time is spent in `sleep` and `perform` alone. So the clock is read once in a task's step, and
    again behind each `perform`, whose work may have blocked the loop. Books that are kept at several places in one decision
    then agree to the nanosecond, as in virtual time, and reading costs next to nothing.
    """

    def __init__(self, performers: Performers, seed: int, recorder: Recorder | None) -> None:
        self._start_ns = 0
        self._instant_ns = -1  # of the step that runs; -1 when it has not been asked for
        self._steps = _Steps(self)
        super().__init__(performers, seed, recorder)

    def start(self) -> None:
        """Time zero is now."""
        self._start_ns = perf_counter_ns()
        super().start()

    def now_key(self) -> int:
        """Half nanoseconds since the run began."""
        return 2 * self.now() + 1

    def now(self) -> int:
        """Nanoseconds since the run began."""
        if self._instant_ns < 0:
            self._instant_ns = perf_counter_ns() - self._start_ns
        return self._instant_ns

    async def perform(self, work: Work, /, *, permit: Releasable | None = None) -> Outcome:
        """Do some work."""
        return await perform(self, self._performers, work, permit, self.moved)

    def moved(self) -> None:
        """Time has moved: read the clock when it is asked for."""
        self._instant_ns = -1

    def loop_busy_ns(self) -> int:
        """How long the event loop has not been waiting, as measured."""
        return self.now() - self._steps.waited_ns

    def instrument(self) -> trio.abc.Instrument:
        """Tells of every step of a task, and of every wait of the loop."""
        return self._steps


class _Steps(trio.abc.Instrument):
    """A new step is a new instant. What the loop does not spend in waiting, it is busy.

    Attributes:
        waited_ns: how long the loop has waited for the world outside since the run began.

    """

    def __init__(self, runtime: SystemClockRuntime) -> None:
        self._runtime = runtime
        self._waits_since_ns = 0
        self.waited_ns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Time has moved."""
        self._runtime.moved()

    def before_io_wait(self, timeout: float) -> None:
        """The loop has nothing to do, or only looks whether something came."""
        self._waits_since_ns = perf_counter_ns() if timeout else 0

    def after_io_wait(self, timeout: float) -> None:
        """It goes on."""
        if timeout:
            self.waited_ns += perf_counter_ns() - self._waits_since_ns


def run(
    main: Callable[..., Awaitable[T]],
    /,
    *args: Any,
    performers: Performers | None = None,
    seed: int = 0,
    recorder: Recorder | None = None,
    step_limit: int = 1_000_000,  # part of the protocol; see above
    host: HostCosts | None = None,  # so is this: a real loop charges by itself
    clock: trio.abc.Clock | None = None,
) -> T:
    """Run `main(rt, *args)` on the system clock; see `harness.core.runtime.Engine`.

    Args:
        main: the root actor.
        args: handed to it after the runtime.
        performers: `{work class: performer}`.
        seed: of keyed draws.
        recorder: where events and intervals go.
        step_limit: ignored here.
        host: ignored here.
        clock: another trio clock, for tests.

    Raises:
        KeyboardInterrupt: Ctrl-C, bare, after every task has cleaned up.

    """
    kind = SystemClockRuntime if clock is None else LiveRuntime
    runtime = kind(performers or {}, seed, recorder)
    instruments = [runtime.instrument()] if isinstance(runtime, SystemClockRuntime) else []

    async def root() -> T:
        runtime.start()
        return await runtime.supervise(main, args)

    with bare_interrupt(), rarer_collections():
        return trio.run(root, clock=clock, instruments=instruments)
