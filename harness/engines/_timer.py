"""One timer for all sleeps and deadlines of a live run.

Theory of operation
-------------------
trio gives every sleep a cancel scope of its own and registers every deadline; both cost more than the rest of a turn. Here
sleeps and deadlines lie in one heap, and one system task waits for the first of them. A sleeping task is rescheduled by it, a
scope is cancelled by it. A deadline that moves later (as that of an episode does, twice a turn) costs nothing: its entry stays
where it is, and moves when it comes up.

*Order.* Keys are half nanoseconds: a sleep ends at its instant, a deadline expires half a nanosecond later (law 6 of
`harness.core.runtime`). What has become due is served in the order of the keys, however late the scheduler looks: a sleep that
ended before a deadline round it has completed, one that would have ended after it is cancelled.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

_DEAD_MIN = 1000
"""The heap is cleared of entries that mean nothing any more when they are more than half of it, and more than these."""


class Due(Protocol):
    """Something that the timer serves.

    Attributes:
        key: of its entry in the heap that counts, in half nanoseconds; none when it wants nothing any more.

    """

    key: int | None

    def wanted(self) -> int:
        """When it wants to be served: at `key`, or later if it has moved meanwhile."""

    def serve(self) -> None:
        """Its time has come."""


class Sleeper:
    """A task that sleeps."""

    __slots__ = ("key", "task")

    def __init__(self, key: int) -> None:
        self.key: int | None = key
        self.task = trio.lowlevel.current_task()

    def wanted(self) -> int:
        """Its end."""
        assert self.key is not None
        return self.key

    def serve(self) -> None:
        """Wake it."""
        trio.lowlevel.reschedule(self.task)


class Timer:
    """The heap, and the task that waits for its head.

    Args:
        now_key: half nanoseconds since the run began.
        trio_time: an instant of the run, in nanoseconds, on trio's clock.

    """

    __slots__ = ("_dead", "_heap", "_now_key", "_order", "_scope", "_scope_key", "_trio_time")

    def __init__(self, now_key: Callable[[], int], trio_time: Callable[[float], float]) -> None:
        self._now_key = now_key
        self._trio_time = trio_time
        self._heap: list[tuple[int, int, Due]] = []
        self._order = count()
        self._dead = 0
        self._scope: trio.CancelScope | None = None
        self._scope_key: float = -math.inf

    def add(self, key: int, due: Due) -> None:
        """Serve `due` at `key` half nanoseconds."""
        heappush(self._heap, (key, next(self._order), due))
        if key < self._scope_key:
            self._arm(key)

    def forget(self) -> None:
        """An entry means nothing any more. It stays until it comes up, or until there are too many of its kind."""
        self._dead += 1
        if self._dead > _DEAD_MIN and 2 * self._dead > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if entry[2].key == entry[0]]
            heapify(self._heap)
            self._dead = 0

    async def sleep(self, key: int) -> None:
        """Sleep until `key`."""
        sleeper = Sleeper(key)
        self.add(key, sleeper)

        def abort(_: object) -> trio.lowlevel.Abort:
            sleeper.key = None
            self.forget()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def run(self) -> None:
        """Serve for ever; a system task."""
        while True:
            self._serve_due()
            with trio.CancelScope() as self._scope:
                self._arm(self._heap[0][0] if self._heap else math.inf)
                await trio.sleep_forever()
            self._scope, self._scope_key = None, -math.inf

    def _arm(self, key: float) -> None:
        self._scope_key = key
        if self._scope is not None:
            self._scope.deadline = self._trio_time(key / 2) if key < math.inf else math.inf

    def _serve_due(self) -> None:
        heap = self._heap
        limit = self._now_key()
        while heap and heap[0][0] <= limit:
            key, _, due = heappop(heap)
            if due.key != key:
                self._dead -= 1
            elif (wanted := due.wanted()) > key:
                due.key = wanted
                heappush(heap, (wanted, next(self._order), due))
            else:
                due.key = None
                due.serve()
