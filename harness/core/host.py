"""The Python event loop as a resource: one server, first come, first served.

Every task of a run lives on one event loop, live as well as simulated. Where time is virtual a task's step takes none of it, so
the loop would be free, and a simulation of short tool calls would be wrong by half. So engines in virtual time keep the loop's
own clock beside theirs:

*A step that becomes ready at t* is served from max(t, `until`), where `until` is the instant at which the loop has done all
that came before. It costs `step_ns`.

*Passes.* The loop looks at timers and sockets, runs all that is ready, and looks again. Such a pass costs `pass_ns` on top of
its steps. A step that another one made ready (an event was set, a child started) was not ready when the pass of that other
began, and needs the next one. So what becomes ready while the loop has nothing to do makes a pass for itself and one for each
step that follows from it. What becomes ready before the last of the passes has begun that are known by then (`began`) shares
them, and so does what follows from it: a nearly idle loop makes a pass for every step, a full one does many steps in a pass.

*What a step starts, starts at `until`.* Decisions are taken at t, in the order in which they become possible; the work or the
sleep that follows begins when the loop has really come to it. For a single server that serves in the order of arrival this is
exact, and it needs no event of its own. What it leaves out: a deadline is counted from t and not from the later begin, so a
backlog shortens it by its own length.

*Outside.* Background tasks of the run (`Runtime.background`) are those of simulated servers, and of workers that die slowly:
they run on other machines and other threads, so their steps cost nothing and wait for nobody.

*Occupied.* Python code that computes instead of waiting holds the loop for all of its time: `occupy`.

With costs of zero nothing ever waits, and a run leaves the log that it left without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.core.errors import LawError
from harness.core.runtime import Runtime


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the event loop charges.

    Attributes:
        pass_ns: nanoseconds of a pass of the loop, beside its steps.
        step_ns: nanoseconds of one step of a task, from one wait to the next.

    """

    pass_ns: int = 0
    step_ns: int = 0

    def __post_init__(self) -> None:
        if self.pass_ns < 0 or self.step_ns < 0:
            raise LawError(f"an event loop's costs are not below zero: {self}")


class HostLoop:
    """The loop's own clock.

    Attributes:
        costs: what it charges.
        began: when the last pass began, or will begin.
        until: when it has done all that it was given.
        slack_ns: how long it had nothing to do, up to `until`.

    """

    __slots__ = ("began", "costs", "slack_ns", "until")

    def __init__(self, costs: HostCosts) -> None:
        self.costs = costs
        self.began = -1
        self.until = 0
        self.slack_ns = 0

    def next_pass(self) -> None:
        """What was made ready by the last steps comes in the pass behind them."""
        self.began = self.until
        self.until += self.costs.pass_ns

    def step(self, now_ns: int) -> bool:
        """A task's step becomes ready; whether it needed a pass. `harness.engines.sim` spells this out in its loop."""
        passes = now_ns > self.began
        if passes:
            self._wake(now_ns)
            self.next_pass()
        self.until += self.costs.step_ns
        return passes

    def occupy(self, now_ns: int, duration_ns: int) -> int:
        """Code that computes holds the loop for so long; returns when it is done."""
        self._wake(now_ns)
        self.until += duration_ns
        return self.until

    def _wake(self, now_ns: int) -> None:
        if self.until < now_ns:
            self.slack_ns += now_ns - self.until
            self.until = now_ns

    def busy_ns(self, now_ns: int) -> int:
        """How long it has been busy up to now."""
        return min(now_ns, self.until) - self.slack_ns


class VirtualRuntime(Runtime, Protocol):
    """What engines in virtual time offer beside, to simulated performers only."""

    async def occupy(self, duration_ns: int, /) -> None:
        """Let time pass on the event loop itself, in turn: nobody else's step is served meanwhile.

        Code that computes cannot be cancelled: it returns when it is done.
        """
