"""The Python event loop as a resource: one server, first come, first served.

Every task of a run lives on one event loop, live as well as simulated. Where time is virtual a task's step takes none of it, so
the loop would be free, and a simulation of short tool calls would be wrong by half. So engines in virtual time keep the loop's
own clock beside theirs:

*A step that becomes ready at t* is served from max(t, `until`), where `until` is the instant at which the loop has done all
that came before. It costs `step_ns`; a loop that had gone to sleep first makes a pass (a look at timers and sockets), which
costs `pass_ns`. Steps that find the loop busy are in the pass that is going on, so a full loop makes few passes and many steps.

*What a step starts, starts at `until`.* Decisions are taken at t, in the order in which they become possible; the work or the
sleep that follows begins when the loop has really come to it. For a single server that serves in the order of arrival this is
exact, and it needs no event of its own. What it leaves out: a deadline is counted from t and not from the later begin, so a
backlog shortens it by its own length.

*Outside.* Background tasks of the run (`Runtime.background`) are those of simulated servers, and of workers that die slowly:
they run on other machines and other threads, so their steps cost nothing and wait for nobody.

*Occupied.* Python code that computes instead of waiting holds the loop for all of its time: `occupy`.

With costs of zero nothing ever waits, and a run leaves the log that it left without them. Source of the form (a term for each
pass, one for each step): a constant cost for each step, fitted where the loop is full, was 22 % off where it is half full.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import LawError


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the event loop charges.

    Attributes:
        pass_ns: nanoseconds of a pass of the loop that had nothing to do before.
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
        until: when it has done all that it was given.
        slack_ns: how long it had nothing to do, up to `until`.

    """

    __slots__ = ("costs", "slack_ns", "until")

    def __init__(self, costs: HostCosts) -> None:
        self.costs = costs
        self.until = 0
        self.slack_ns = 0

    def step(self, now_ns: int) -> None:
        """A task's step becomes ready. `harness.engines.sim` spells this out in its loop."""
        if self.until <= now_ns:
            self.slack_ns += now_ns - self.until
            self.until = now_ns + self.costs.pass_ns
        self.until += self.costs.step_ns

    def occupy(self, now_ns: int, duration_ns: int) -> int:
        """Code that computes holds the loop for so long; returns when it is done."""
        if self.until < now_ns:
            self.slack_ns += now_ns - self.until
            self.until = now_ns
        self.until += duration_ns
        return self.until

    def busy_ns(self, now_ns: int) -> int:
        """How long it has been busy up to now."""
        return min(now_ns, self.until) - self.slack_ns
