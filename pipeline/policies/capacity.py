"""The cap on episodes in flight.

Credit is counted in groups (see `admission`), the cap in *episodes*: a slot is free as soon as its episode ends, and does
not wait for the slowest member of the group. Over-provisioned members and groups are inside the cap.

`start_unit = group` starts a group only when the cap has room for all of its members; `member` starts as many as fit, and
the members of a group that has begun come before any new group. `held_group` starts a group whole and takes its places back
whole, when its last member has ended: what a limit on prompts or on workers that play whole groups does (verl's concurrent
samples, SkyRL's generation workers).
"""

from __future__ import annotations

from harness.core.errors import LawError
from pipeline.policies.kinds import StartUnit


class EpisodeCap:
    """Episodes in flight, at most `max_inflight`.

    Attributes:
        max_inflight: the cap, in episodes.
        in_flight: places taken: episodes that run now, and under `held_group` those that ended before the rest of their group.

    """

    __slots__ = ("_held", "_unit", "in_flight", "max_inflight")

    def __init__(self, max_inflight: int, start_unit: StartUnit) -> None:
        if max_inflight < 1:
            raise LawError(f"a cap of {max_inflight} episodes can never start one")
        self._unit = start_unit
        self._held: dict[int, list[int]] = {}  # by group: members that run, places it keeps
        self.max_inflight = max_inflight
        self.in_flight = 0

    @property
    def free(self) -> int:
        """Episodes that could start now."""
        return self.max_inflight - self.in_flight

    def startable(self, members: int) -> int:
        """How many of a new group's members may start now; 0 means that the group must wait."""
        if self._unit is StartUnit.MEMBER:
            return min(self.free, members)
        return members if self.free >= members else 0

    def resumable(self, members: int) -> int:
        """How many waiting members of groups that have begun may start now (retries among them)."""
        return min(self.free, members)

    def started(self, group: int, episodes: int = 1) -> None:
        """Episodes of a group started."""
        if not 1 <= episodes <= self.free:
            raise LawError(f"{episodes} episodes started with {self.free} of {self.max_inflight} free")
        self.in_flight += episodes
        if self._unit is StartUnit.HELD_GROUP:
            held = self._held.setdefault(group, [0, 0])
            held[0] += episodes
            held[1] += episodes

    def ended(self, group: int, episodes: int = 1) -> None:
        """Episodes of a group ended, in whatever way."""
        if self._unit is not StartUnit.HELD_GROUP:
            if not 1 <= episodes <= self.in_flight:
                raise LawError(f"{episodes} episodes ended with {self.in_flight} in flight")
            self.in_flight -= episodes
            return
        held = self._held.get(group, [0, 0])
        if not 1 <= episodes <= held[0]:
            raise LawError(f"{episodes} episodes of group {group} ended with {held[0]} in flight")
        held[0] -= episodes
        if not held[0]:
            self.in_flight -= held[1]
            del self._held[group]
