"""The bounded buffer between rollouts and the learner. It holds complete groups and knows an order; it never waits.

Consumption order:

    oldest_version  (oldest version, group id)
    fifo            (order of entry)
    freshest        (-oldest version, group id)

When it is full, `block` leaves the group with whoever brought it (ask again after a take), and `drop_oldest` evicts the
group with the oldest version, ties to the smaller group id. The newcomer stands for eviction too: pushing out a fresher
group to make room for an older one would only age the buffer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import NamedTuple

from harness.core.errors import LawError
from pipeline.policies.kinds import OnFull, OrderPolicy


class Buffered(NamedTuple):
    """A complete group.

    Attributes:
        group: its id.
        oldest_version: version of its oldest token.
        newest_version: version of its newest token.
        entered_at_step: where the learner was when the group came to the buffer.

    """

    group: int
    oldest_version: int
    newest_version: int
    entered_at_step: int


class Put(NamedTuple):
    """What became of a put. Neither entered nor evicted means blocked."""

    entered: bool
    evicted: Buffered | None = None

    @property
    def blocked(self) -> bool:
        """Whether the group has to wait outside."""
        return not self.entered and self.evicted is None


class GroupBuffer:
    """At most `capacity` groups, in consumption order."""

    __slots__ = ("_entries", "_items", "_on_full", "_order", "_seq", "capacity")

    def __init__(self, *, capacity: int, order: OrderPolicy, on_full: OnFull) -> None:
        if capacity < 1:
            raise LawError(f"a buffer of {capacity} groups can never hold one")
        self.capacity = capacity
        self._order = order
        self._on_full = on_full
        self._seq = 0
        self._entries: list[tuple[tuple[int, int], Buffered]] = []
        self._items: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, group: int) -> bool:
        return group in self._items

    @property
    def full(self) -> bool:
        """Whether one more would not fit."""
        return len(self._entries) >= self.capacity

    def in_order(self) -> tuple[Buffered, ...]:
        """Everything, first to be consumed first."""
        return tuple(item for _, item in self._entries)

    def put(self, item: Buffered) -> Put:
        """A complete group comes."""
        if item.group in self._items:
            raise LawError(f"group {item.group} entered the buffer twice")
        if not self.full:
            self._insert(item)
            return Put(entered=True)
        if self._on_full is OnFull.BLOCK:
            return Put(entered=False)
        victim = min((*self.in_order(), item), key=lambda held: (held.oldest_version, held.group))
        if victim is item:
            return Put(entered=False, evicted=item)
        self.remove(victim.group)
        self._insert(item)
        return Put(entered=True, evicted=victim)

    def remove(self, group: int) -> Buffered:
        """Take one group out, whatever its place."""
        key = self._items.pop(group, None)
        if key is None:
            raise LawError(f"group {group} is not in the buffer")
        index = bisect_left(self._entries, key, key=itemgetter(0))
        return self._entries.pop(index)[1]

    def take(self, count: int) -> tuple[Buffered, ...]:
        """Take the first `count` groups."""
        if not 0 <= count <= len(self._entries):
            raise LawError(f"{count} groups taken from a buffer of {len(self._entries)}")
        taken = tuple(item for _, item in self._entries[:count])
        del self._entries[:count]
        for item in taken:
            del self._items[item.group]
        return taken

    def _insert(self, item: Buffered) -> None:
        key = self._key(item)
        self._seq += 1
        self._items[item.group] = key
        insort(self._entries, (key, item), key=itemgetter(0))

    def _key(self, item: Buffered) -> tuple[int, int]:
        if self._order is OrderPolicy.FIFO:
            return (self._seq, item.group)
        sign = 1 if self._order is OrderPolicy.OLDEST_VERSION else -1
        return (sign * item.oldest_version, item.group)
