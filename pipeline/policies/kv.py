"""KV cache: who may run beside those who run, and who has to go when there is no room.

A request that runs holds the keys and values of its context, and one token more with each decode step. How long its answer
will be is known only when it ends; its cap is known from the start.

- `reserve`: a request is admitted when its context and its whole cap fit beside what is promised already. Nobody is ever pushed
  out. Room is promised that is mostly not used: with answers of a tenth of the cap, most of the cache stays empty.
- `grow`: as vLLM does it (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP
  2023, section 4.5). A request is admitted when its context and one chunk of decode steps fit beside what those who run hold
  now and make in their next chunk, and a hundredth of the cache besides (vLLM's watermark: nobody comes to go at once).
  Before a chunk that might not fit, the youngest goes: its tokens stay, its KV is given up, it waits in front of everybody,
  and is prefilled again. More run at a time; what is computed twice is the price. Past a cliff the replica does little else.

Laws of both: what is held never exceeds the cache; and somebody always gets on. The oldest is never pushed out, and a request
that is alone is always admitted: whoever may come to hold more than the whole cache was refused before. The growth of a
chunk is bounded by the cap of each request, not by what it will really make, which nobody knows.
"""

from __future__ import annotations

from heapq import heappop
from typing import Protocol, TypeVar

from harness.core.errors import LawError
from pipeline.policies.kinds import KvPolicy

WATERMARK = 0.01
"""Share of the cache that an admission leaves free beside others."""


class Holder(Protocol):
    """What a request holds, in tokens: `kv_tokens` at decode step `entered` of its replica, `reserved_tokens` at most."""

    kv_tokens: int
    reserved_tokens: int
    entered: int


H = TypeVar("H", bound=Holder)


class KvRoom:
    """`reserve`, and the books of either policy, which whoever runs requests keeps up to date.

    Attributes:
        capacity: tokens that the cache holds.
        used: tokens held by those who run.
        promised: tokens that they may come to hold in all.

    """

    __slots__ = ("_chunk", "capacity", "promised", "used")

    grows = False

    def __init__(self, capacity: int, chunk_steps: int) -> None:
        if capacity < 1 or chunk_steps < 1:
            raise LawError(f"a cache of {capacity} tokens and chunks of {chunk_steps} steps")
        self.capacity = capacity
        self._chunk = chunk_steps
        self.used = 0
        self.promised = 0

    def admit(self, waiting: list[tuple[int, int, int, H]], running: dict[int, H], seats: int, progress: int) -> list[H]:
        """Take those who may run now out of a heap, in its order, and book what they hold.

        Args:
            waiting: heap of (…, request).
            running: who runs, oldest first.
            seats: how many more may run.
            progress: decode steps of the replica so far.

        """
        admitted: list[H] = []
        promised, capacity = self.promised, self.capacity
        while waiting and seats:
            request = waiting[0][3]
            wanted = promised + request.reserved_tokens
            if wanted > capacity:
                break
            heappop(waiting)
            promised = wanted
            self.used += request.kv_tokens
            admitted.append(request)
            seats -= 1
        self.promised = promised
        return admitted

    def room(self, running: dict[int, H], progress: int) -> int:
        """Tokens that nobody needs until the next decision: room for contexts that may be wanted again."""
        return self.capacity - self.promised

    def crowded_out(self, running: dict[int, H], progress: int) -> list[H]:
        """Who has to go before the next chunk, youngest first; the caller books them out."""
        return []


class GrowingKvRoom(KvRoom):
    """`grow`."""

    __slots__ = ()

    grows = True

    def admit(self, waiting: list[tuple[int, int, int, H]], running: dict[int, H], seats: int, progress: int) -> list[H]:
        """The same by what is held now."""
        admitted: list[H] = []
        free = self.room(running, progress)
        kept_free = int(self.capacity * WATERMARK)
        while waiting and seats:
            request = waiting[0][3]
            free -= min(request.kv_tokens + self._chunk, request.reserved_tokens)
            if free < (kept_free if running or admitted else 0):
                break
            heappop(waiting)
            self.promised += request.reserved_tokens
            self.used += request.kv_tokens
            admitted.append(request)
            seats -= 1
        return admitted

    def room(self, running: dict[int, H], progress: int) -> int:
        """What is left when everybody has made one chunk more."""
        return self.capacity - self.used - self._growth(running, progress, self.capacity - self.used)

    def crowded_out(self, running: dict[int, H], progress: int) -> list[H]:
        """The youngest, until the next chunk of the others fits."""
        over = self.used + len(running) * self._chunk - self.capacity
        if over <= 0:
            return []
        over = self.used + self._growth(running, progress, 0) - self.capacity
        victims: list[H] = []
        for ticket in reversed(running):
            request = running[ticket]
            if over <= 0 or len(victims) + 1 == len(running):
                break
            victims.append(request)
            over -= min(request.kv_tokens + progress - request.entered + self._chunk, request.reserved_tokens)
        return victims

    def _growth(self, running: dict[int, H], progress: int, enough: int) -> int:
        """Tokens that one chunk more may add: a bound where that fits into `enough`, else exact by everybody's cap."""
        bound = len(running) * self._chunk
        if bound <= enough:
            return bound
        chunk = self._chunk
        return sum([min(chunk, r.reserved_tokens - r.kv_tokens - progress + r.entered) for r in running.values()])


def make_kv_room(policy: KvPolicy, capacity: int, chunk_steps: int) -> KvRoom:
    """The books of one replica's cache."""
    return (GrowingKvRoom if policy is KvPolicy.GROW else KvRoom)(capacity, chunk_steps)
