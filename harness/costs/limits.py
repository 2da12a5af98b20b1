"""What providers do when too much is asked of them: starts queue and slow each other down, calls meet a limit of their rate.

Theory of operation
-------------------
A gate stands before the work itself, inside the performer: the actor sees one piece of work that takes longer, with the instant
at which it began to be served in `Outcome.started_ns`. The actor's deadlines run meanwhile, as they do live.

`Starts` is a station of c servers and a bounded queue: what finds c served and q waiting is refused. A start that finds n
others under way takes 1 + n·s times as long, as it found them: shared image stores and schedulers, without a model of either.

`Rate` is a token bucket of `burst` tokens that fills at `rate_per_s`, kept as one instant (the generic cell rate algorithm,
ITU-T I.371, 1993): with T the interval of one token and τ = (burst - 1)·T, a call may go at t once `due` <= t + τ, and then
due = max(due, t) + T. Whoever waits stands in the order of (arrival, entity key), and only the first watches the bucket.

Nothing that leaves early (a deadline, a surplus member) takes anything with it: one that waits has taken no place, one that is
served gives it back when the performer is cancelled, a first in line that goes hands the line on. So nobody waits while there
is a place, and no place is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from harness.core.primitives import Permits
from harness.core.units import NS_PER_S, ns_from_s
from harness.costs.draws import HANG_NS

if TYPE_CHECKING:
    from harness.core.runtime import Runtime
    from harness.scenario.environments import Environments, Tool


class Gate(Protocol):
    """Stands before some work."""

    refuse_ns: int

    async def enter(self, rt: Runtime, key: int) -> bool:
        """Wait for a turn, in the order of (arrival, key); whether there is one, or the work is refused."""

    def stretched(self, ns: int) -> int:
        """How long work takes that has entered just now and would take `ns` by itself."""

    def leave(self) -> None:
        """What has entered is over, or was cancelled."""

    @property
    def load(self) -> tuple[int, int]:
        """How many wait, and how many are served."""


class Starts:
    """Starts of environments: at most so many at once, and slower the more there are.

    Args:
        environments: the world's table.

    """

    def __init__(self, environments: Environments) -> None:
        self._at_once = environments.starts_at_once
        self._queue = environments.start_queue
        self._slowdown = environments.slowdown_per_start
        self.refuse_ns = ns_from_s(environments.refuse_s)
        self._places: Permits | None = None
        self._under_way = 0

    @classmethod
    def of(cls, environments: Environments) -> Starts | None:
        """None where starts do not disturb each other."""
        limited = environments.starts_at_once is not None or environments.slowdown_per_start > 0
        return cls(environments) if limited else None

    async def enter(self, rt: Runtime, key: int) -> bool:
        """Wait for a place; refused where the queue is full."""
        if self._at_once is not None:
            if self._places is None:
                self._places = Permits(rt, self._at_once, "starts")
            places = self._places
            full = places.in_use >= places.capacity
            if full and self._queue is not None and places.waiting >= self._queue:
                return False
            await places.acquire(key)
        self._under_way += 1
        return True

    def stretched(self, ns: int) -> int:
        """Longer by the share of each other start that is under way."""
        factor = 1 + (self._under_way - 1) * self._slowdown
        return ns if factor == 1 or ns >= HANG_NS else min(round(ns * factor), HANG_NS)

    def leave(self) -> None:
        """Give the place back."""
        self._under_way -= 1
        if self._places is not None:
            self._places.release()

    @property
    def load(self) -> tuple[int, int]:
        """Waiting, under way."""
        return (self._places.waiting if self._places is not None else 0), self._under_way


class Rate:
    """A limit on the calls of one tool.

    Args:
        tool: the workload's entry.

    """

    def __init__(self, tool: Tool) -> None:
        assert tool.rate_per_s is not None
        self._interval_ns = max(round(NS_PER_S / tool.rate_per_s), 1)
        self._tolerance_ns = (tool.burst - 1) * self._interval_ns
        self._refuses = tool.on_excess == "refuse"
        self.refuse_ns = ns_from_s(tool.refuse_s)
        self._due_ns = -self._tolerance_ns
        self._first: Permits | None = None  # held by the one that watches the bucket
        self._served = 0

    @classmethod
    def of(cls, tool: Tool) -> Rate | None:
        """None where there is no limit."""
        return cls(tool) if tool.rate_per_s is not None else None

    async def enter(self, rt: Runtime, key: int) -> bool:
        """Wait for a token, or be refused for want of one."""
        if self._refuses:
            if self._due_ns - self._tolerance_ns > rt.now():
                return False
        else:
            if self._first is None:
                self._first = Permits(rt, 1, "rate limit")
            await self._first.acquire(key)
            try:
                await rt.sleep(self._due_ns - self._tolerance_ns - rt.now())
            except BaseException:
                self._first.release()
                raise
            self._first.release()  # the next in line runs after this step, and finds the token gone
        self._due_ns = max(self._due_ns, rt.now()) + self._interval_ns
        self._served += 1
        return True

    def stretched(self, ns: int) -> int:
        """As long as by itself."""
        return ns

    def leave(self) -> None:
        """The token stays used."""
        self._served -= 1

    @property
    def load(self) -> tuple[int, int]:
        """Waiting, being served."""
        first = self._first
        return (first.waiting + first.in_use if first is not None else 0), self._served
