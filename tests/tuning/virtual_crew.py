"""A crew in virtual time: calls are made at once, and end after what they are said to cost."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from harness.tuning.crew import Done
from harness.tuning.worker import Failure, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.tuning.space import Settings


class VirtualCrew:
    """Calls on `size` workers, in virtual seconds.

    Args:
        function: what is called.
        size: workers.
        cost: virtual seconds of a call.
        interrupt_at: virtual time at which `wait` is interrupted from the keyboard, once.

    """

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        cost: Callable[[Settings, int, int], float],
        interrupt_at: float = float("inf"),
    ) -> None:
        self._function = function
        self._size = size
        self._cost = cost
        self._now = 0.0
        self._tickets = 0
        self._running: list[tuple[float, int, Done]] = []
        self._interrupt_at = interrupt_at
        self.calls: list[tuple[Settings, int, int]] = []
        self.cut_calls: list[int] = []
        self.closed = False

    @property
    def idle(self) -> int:
        return self._size - len(self._running)

    @property
    def busy(self) -> int:
        return len(self._running)

    def now(self) -> float:
        return self._now

    def submit(self, *arguments: Any) -> int:
        assert self.idle > 0
        self.calls.append(arguments)
        self._tickets += 1
        seconds = self._cost(*arguments)
        outcome = call(self._function, arguments)
        result = outcome if isinstance(outcome, Failure) else outcome[1]
        heapq.heappush(self._running, (self._now + seconds, self._tickets, Done(self._tickets, seconds, result)))
        return self._tickets

    def wait(self, until: float) -> Done | None:
        if not self._running:
            return None
        ends, _, done = self._running[0]
        if min(ends, until) >= self._interrupt_at:
            self._now, self._interrupt_at = self._interrupt_at, float("inf")
            raise KeyboardInterrupt
        if ends > until:
            self._now = max(self._now, until)
            return None
        heapq.heappop(self._running)
        self._now = max(self._now, ends)
        return done

    def cut(self, ticket: int) -> None:
        self.cut_calls.append(ticket)
        self._running = [entry for entry in self._running if entry[1] != ticket]
        heapq.heapify(self._running)

    def close(self) -> None:
        self.closed = True
