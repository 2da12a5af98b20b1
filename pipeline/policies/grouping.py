"""One group: G episodes of one task, released as soon as it has enough of them.

A group plans G + m members (m over-provisioned) and is *released* when `need` of them are finished: all G, or the quorum
k of n. It *fails* as soon as the members that have not failed cannot reach `need`, and is *surplus* when it is told that
nobody needs it any more. Whichever comes first settles it; members that still run or wait are `surplus` and to be
cancelled. Members may carry different versions: a group's oldest and newest version are those over the released members.

A member is PLANNED → RUNNING → FINISHED or FAILED; a retry keeps it RUNNING with its attempt counted, or sends it back to
PLANNED for the time of the back-off (`waiting`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from harness.core.errors import LawError


class MemberState(StrEnum):
    """Where a member stands."""

    PLANNED = "planned"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Verdict(StrEnum):
    """Where a group stands."""

    OPEN = "open"
    RELEASED = "released"
    FAILED = "failed"
    SURPLUS = "surplus"


class GroupDecision(NamedTuple):
    """What to do after an event.

    Attributes:
        verdict: open, released, failed or surplus.
        members: members that finished, in the order in which they did: released, or lost with the group.
        surplus: members to cancel (running) or not to start (planned), in order.

    """

    verdict: Verdict
    members: tuple[int, ...] = ()
    surplus: tuple[int, ...] = ()


_OPEN = GroupDecision(Verdict.OPEN)


class GroupState:
    """One group's members.

    Args:
        group: its id, for messages.
        group_size: G.
        group_quorum: members that suffice; 0 means G.
        overprovision_members: members started beyond G.

    """

    __slots__ = ("_attempts", "_failed", "_finished", "_newest", "_oldest", "_states", "group", "need", "verdict")

    def __init__(self, group: int, *, group_size: int, group_quorum: int = 0, overprovision_members: int = 0) -> None:
        if group_size < 1 or not 0 <= group_quorum <= group_size or overprovision_members < 0:
            raise LawError(f"a group that cannot be: {group_size}, quorum {group_quorum}, extra {overprovision_members}")
        planned = group_size + overprovision_members
        self.group = group
        self.need = group_quorum or group_size
        self.verdict = Verdict.OPEN
        self._states = [MemberState.PLANNED] * planned
        self._attempts = [0] * planned
        self._finished: list[int] = []
        self._failed = 0
        self._oldest = 0
        self._newest = 0

    @property
    def size(self) -> int:
        """Members planned, over-provisioned ones included."""
        return len(self._states)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Members that are to be started, in order."""
        if self.verdict is not Verdict.OPEN:
            return ()
        return tuple(m for m, state in enumerate(self._states) if state is MemberState.PLANNED)

    @property
    def running(self) -> tuple[int, ...]:
        """Members that run, in order."""
        return tuple(m for m, state in enumerate(self._states) if state is MemberState.RUNNING)

    @property
    def oldest_version(self) -> int:
        """Oldest version of a finished member's tokens."""
        self._need_finished()
        return self._oldest

    @property
    def newest_version(self) -> int:
        """Newest version of a finished member's tokens."""
        self._need_finished()
        return self._newest

    def state(self, member: int) -> MemberState:
        """Where a member stands."""
        return self._states[member]

    def attempt(self, member: int) -> int:
        """Which attempt a member is at, from 0."""
        return self._attempts[member]

    def started(self, member: int) -> None:
        """A planned member started."""
        self._expect(member, MemberState.PLANNED, "started")
        self._states[member] = MemberState.RUNNING

    def retried(self, member: int, *, waits: bool = False) -> None:
        """A running member is tried again: at once, or after it has waited and is started again (`waits`)."""
        self._expect(member, MemberState.RUNNING, "retried")
        self._attempts[member] += 1
        if waits:
            self._states[member] = MemberState.PLANNED

    def finished(self, member: int, oldest_version: int, newest_version: int) -> GroupDecision:
        """A running member finished, with tokens of these versions."""
        self._expect(member, MemberState.RUNNING, "finished")
        if not 0 <= oldest_version <= newest_version:
            raise LawError(f"group {self.group} member {member}: versions {oldest_version} to {newest_version}")
        self._states[member] = MemberState.FINISHED
        self._oldest = min(self._oldest, oldest_version) if self._finished else oldest_version
        self._newest = max(self._newest, newest_version) if self._finished else newest_version
        self._finished.append(member)
        return self._settle(Verdict.RELEASED) if len(self._finished) >= self.need else _OPEN

    def failed(self, member: int) -> GroupDecision:
        """A member failed for good, running or while it waited for its next attempt."""
        if self.verdict is not Verdict.OPEN or self.state(member) not in (MemberState.RUNNING, MemberState.PLANNED):
            raise LawError(f"group {self.group} ({self.verdict}): member {member} is {self.state(member)} and failed")
        self._states[member] = MemberState.FAILED
        self._failed += 1
        return self._settle(Verdict.FAILED) if self.size - self._failed < self.need else _OPEN

    def unneeded(self) -> GroupDecision:
        """Nobody needs this open group any more (an over-provisioned one): all of its members are surplus."""
        if self.verdict is not Verdict.OPEN:
            raise LawError(f"group {self.group} ({self.verdict}) cannot become surplus")
        return self._settle(Verdict.SURPLUS)

    def _settle(self, verdict: Verdict) -> GroupDecision:
        surplus = tuple(m for m, s in enumerate(self._states) if s in (MemberState.RUNNING, MemberState.PLANNED))
        self.verdict = verdict
        return GroupDecision(verdict, tuple(self._finished), surplus)

    def _expect(self, member: int, state: MemberState, what: str) -> None:
        if not 0 <= member < self.size:
            raise LawError(f"group {self.group} has no member {member}")
        if self.verdict is not Verdict.OPEN or self._states[member] is not state:
            raise LawError(f"group {self.group} ({self.verdict}): member {member} is {self._states[member]} and {what}")

    def _need_finished(self) -> None:
        if not self._finished:
            raise LawError(f"group {self.group} has no finished member and so no version")
