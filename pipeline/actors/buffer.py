"""Buffer: complete groups on their way to the learner. Bounded; what happens when it is full is a policy.

With `block`, room is a pool of permits: whoever brings a group waits in the order (time, group) and is never overtaken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.errors import ConfigError
from harness.core.events import EventKind
from harness.core.primitives import Permits
from pipeline.policies.buffer import Buffered
from pipeline.policies.kinds import OnFull

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.core.accounts import Accounts
    from harness.core.primitives import WakeUp
    from harness.core.runtime import Runtime
    from pipeline.actors.shared import Tally
    from pipeline.data import Group
    from pipeline.policies.admission import Admission
    from pipeline.policies.buffer import GroupBuffer
    from pipeline.policies.versions import VersionClock


class Buffer:
    """Holds complete groups."""

    def __init__(
        self, rt: Runtime, policy: GroupBuffer, on_full: OnFull, accounts: Accounts, versions: VersionClock,
        admission: Admission, tally: Tally, bell: WakeUp,
    ) -> None:  # fmt: skip
        self._rt = rt
        self._policy = policy
        self._accounts = accounts
        self._versions = versions
        self._admission = admission
        self._tally = tally
        self._bell = bell
        self._room = Permits(rt, policy.capacity, "buffer") if on_full is OnFull.BLOCK else None
        self._groups: dict[int, Group] = {}
        self.on_entered: Callable[[int], None] = _nobody

    def __len__(self) -> int:
        return len(self._groups)

    def in_order(self) -> tuple[Buffered, ...]:
        """What is there, first to be consumed first."""
        return self._policy.in_order()

    async def put(self, group: Group) -> None:
        """Put a group in, waiting for room or pushing out the oldest one."""
        if self._room is not None and not self._room.try_acquire():
            await self._room.acquire(group.group)
        if not self._admission.accepts():  # others filled the credit while this one waited for room
            self._surplus(group)
            return
        entered_version = self._versions.t
        put = self._policy.put(Buffered(group.group, group.oldest, group.newest, entered_version))
        self._admission.entered(group.group)
        self._groups[group.group] = group
        self.on_entered(group.group)
        if put.entered:
            self._rt.emit(EventKind.BUFFER_PUT, group.group, len(self._groups) - (put.evicted is not None))
        if put.evicted is not None:
            self._discard(put.evicted.group, Fate.EVICTED)
        self._bell.ring()

    def _surplus(self, group: Group) -> None:
        if self._room is not None:
            self._room.release()
        for member in group.members:
            self._accounts.settle(member.episode, Fate.SURPLUS)
        self._admission.finished_surplus(group.group)
        self._tally.drop("surplus")
        self._rt.emit(EventKind.DROP, group.group, Fate.SURPLUS, group.tokens, 0, len(self._groups))
        self.on_entered(group.group)
        self._bell.ring()

    def restore(self, groups: Sequence[tuple[Group, int]]) -> None:
        """What a checkpoint held, first to be consumed first, each with the learner's step when it came in.

        Raises:
            ConfigError: there are more than the buffer takes.

        """
        if len(groups) > self._policy.capacity:
            raise ConfigError(
                f"the checkpoint holds {len(groups)} finished groups, more than the buffer takes",
                field="pipeline.buffer_capacity",
                value=self._policy.capacity,
                allowed=f"{len(groups)} or more for this resume",
                remedy=f"resume with buffer_capacity = {len(groups)}",
            )
        for group, entered in groups:
            if self._room is not None:
                self._room.try_acquire()
            self._policy.put(Buffered(group.group, group.oldest, group.newest, entered))
            self._groups[group.group] = group
            self._rt.emit(EventKind.BUFFER_PUT, group.group, len(self._groups))

    @property
    def held(self) -> tuple[tuple[Group, int], ...]:
        """What `restore` takes."""
        return tuple([(self._groups[item.group], item.entered_at_step) for item in self._policy.in_order()])

    def drop(self, group: int) -> None:
        """Throw a stale group out."""
        self._policy.remove(group)
        if self._room is not None:
            self._room.release()
        self._discard(group, Fate.STALE)

    def take(self, groups: tuple[int, ...]) -> list[tuple[Group, Buffered]]:
        """Hand groups to the learner."""
        taken = []
        for number in groups:
            entry = self._policy.remove(number)
            if self._room is not None:
                self._room.release()
            taken.append((self._groups.pop(number), entry))
            self._admission.trained(number)
        return taken

    def _discard(self, number: int, fate: Fate) -> None:
        group = self._groups.pop(number)
        for member in group.members:
            self._accounts.settle(member.episode, fate)
        self._admission.dropped(number)
        self._tally.drop(fate.name.lower())
        lag = self._versions.lag_steps(group.oldest)
        self._rt.emit(EventKind.DROP, number, fate, group.tokens, lag, len(self._groups))

    def holders(self) -> dict[int, str]:
        """Episodes that are in these hands."""
        return {member.episode: "buffer" for group in self._groups.values() for member in group.members}


def _nobody(group: int) -> None:
    """Nobody needs to know."""
