"""Built on the waist, once for all engines: permits, wake-ups, latest-value cells.

A pool's waiters stand in the order (arrival time, entity key): two that ask at the same instant are served by key, not by
the accident of which task ran first. A permit that is given back goes straight to the first waiter, so that a newcomer
can never overtake it.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

from harness.core.errors import LawError, WouldBlock

if TYPE_CHECKING:
    from harness.core.runtime import Event, Runtime

T = TypeVar("T")


class Permits:
    """A counted pool: `await acquire(key)` takes one, `release()` gives one back.

    Those who wait since an earlier instant stand in a line, oldest first; only those who came at the newest instant are in a
    heap by key, and join the line when time has moved on. So a wait costs the same whether ten wait or a hundred thousand.

    Attributes:
        name: for messages.
        capacity: how many there are.
        in_use: how many are out.
        waiting: how many ask in vain.

    """

    __slots__ = ("_gone", "_line", "_newest", "_newest_ns", "_order", "_rt", "capacity", "in_use", "name", "waiting")

    def __init__(self, rt: Runtime, capacity: int, name: str = "permits") -> None:
        if capacity < 1:
            raise LawError(f"{name}: a pool of {capacity} can never serve anybody")
        self._rt = rt
        self.name = name
        self.capacity = capacity
        self.in_use = 0
        self.waiting = 0
        self._line: deque[Event] = deque()
        self._newest: list[tuple[int, int, Event]] = []
        self._newest_ns = -1
        self._order = count()
        self._gone: set[Event] = set()  # cancelled, and still in the line or the heap

    def acquire_nowait(self) -> None:
        """Take one at once, or raise `WouldBlock`."""
        if not self.try_acquire():
            raise WouldBlock

    def try_acquire(self) -> bool:
        """Take one at once if there is one; whether it did."""
        if self.in_use >= self.capacity:
            return False
        self.in_use += 1
        return True

    async def acquire(self, key: int = 0) -> None:
        """Take one, waiting in the order (time of asking, key)."""
        rt = self._rt
        if self.in_use < self.capacity:
            await rt.checkpoint()  # no schedule point (law 2): the permit is still there
            self.in_use += 1
            return
        event = rt.event()
        now = rt.now()
        newest = self._newest
        if now != self._newest_ns:
            self._newest_ns = now
            if newest:
                self._line.extend([entry[2] for entry in sorted(newest)])
                newest.clear()
        heappush(newest, (key, next(self._order), event))
        self.waiting += 1
        try:
            await event.wait()
        except BaseException:
            # A wait that was granted first never raises (law 6). One that was cancelled first may still be granted in the same
            # instant, before it has run to say that it is gone: it hands the permit on.
            if event.is_set():
                self.release()
            else:
                self._gone.add(event)
                self.waiting -= 1
            raise

    def release(self) -> None:
        """Give one back: to the first waiter, or to the pool."""
        line, newest, gone = self._line, self._newest, self._gone
        while line or newest:
            event = line.popleft() if line else heappop(newest)[2]
            if gone and event in gone:
                gone.remove(event)
                continue
            self.waiting -= 1
            event.set()
            return
        if self.in_use <= 0:
            raise LawError(f"{self.name}: more permits were given back than taken")
        self.in_use -= 1


class WakeUp:
    """A bell: `wait` returns at the first `ring` after it was called; rings without a waiter are remembered once."""

    __slots__ = ("_event", "_rt", "_rung")

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._event: Event | None = None
        self._rung = False

    def ring(self) -> None:
        """Wake the waiter, now or when it comes."""
        if self._event is not None:
            self._event.set()
            self._event = None
        else:
            self._rung = True

    async def wait(self) -> None:
        """Wait for a ring. One waiter at a time."""
        if self._rung:
            self._rung = False
            await self._rt.checkpoint()
            return
        if self._event is not None:
            raise LawError("a wake-up has one waiter")
        event = self._event = self._rt.event()
        try:
            await event.wait()
        except BaseException:
            if self._event is event:
                self._event = None
            else:
                self._rung = True  # it was cancelled and then rung, in one instant: nobody has heard it
            raise


class Latest(Generic[T]):
    """A cell that holds the newest value only; readers wait for a change."""

    __slots__ = ("_changed", "_rt", "value")

    def __init__(self, rt: Runtime, value: T) -> None:
        self._rt = rt
        self.value = value
        self._changed: Event | None = None

    def set(self, value: T) -> None:
        """Replace the value and wake everyone who waits for a change."""
        self.value = value
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_change(self) -> T:
        """Wait for the next `set`; returns the value at wake-up."""
        if self._changed is None:
            self._changed = self._rt.event()
        await self._changed.wait()
        return self.value
