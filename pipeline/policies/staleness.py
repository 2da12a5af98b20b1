"""Consumption under a staleness bound: what the learner takes, what is dropped, when it waits.

The learner stands at t and fills the batch of step t + 1 in chunks. A sample of oldest version v has lag t - v when taken.

- `drop`: what has lag above S is dropped from the buffer; then the first groups in buffer order are taken.
- `train`: the first groups are taken whatever their lag.
- `wait`: nothing is ever dropped and nothing above S is ever taken. A group of version v has to be taken while the learner
  is at v + S or before, and each step takes B groups. So a chunk may be taken only if everything else that runs or waits
  in the buffer can still be used in time: with n(d) outstanding groups of version ≤ d - S after the chunk, and r places
  left in this step's batch,

      n(d) ≤ r + (d - t)·B    for every d ≥ t.

  (Jobs of unit length with deadlines on B machines: necessary and sufficient.) Where a chunk in buffer order would
  break this, older groups take the place of the last ones; where the needed groups still run, the learner waits for them.

  With an admission law that never starts more than can be used in time (`lead` with D ≤ S), the condition holds at every
  start and so the learner waits only for groups that run.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from harness.core.errors import LawError
from pipeline.policies.kinds import StalePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.policies.buffer import Buffered


class Pull(NamedTuple):
    """What to do when the learner asks for a chunk.

    Attributes:
        take: groups to consume now, in order; empty when the learner has to wait.
        drop: groups to remove from the buffer as stale.
        waits_for_version: under `wait`, the version that the missing groups must have at most; None otherwise.

    """

    take: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    waits_for_version: int | None = None


class Consumption:
    """The learner's side of the bound.

    Args:
        policy: drop, wait or train.
        max_staleness: S, in optimizer steps.
        groups_per_step: B.

    """

    __slots__ = ("_batch", "_bound", "_policy")

    def __init__(self, policy: StalePolicy, *, max_staleness: int, groups_per_step: int) -> None:
        if max_staleness < 0 or groups_per_step < 1:
            raise LawError(f"a bound that cannot be: S={max_staleness}, B={groups_per_step}")
        self._policy = policy
        self._bound = max_staleness
        self._batch = groups_per_step

    def pull(self, t: int, buffered: Sequence[Buffered], running: Iterable[int], *, want: int, taken: int) -> Pull:
        """What the learner does when it asks for `want` groups.

        Args:
            t: optimizer steps completed.
            buffered: the buffer, in consumption order.
            running: version of each group that runs or is blocked at the buffer: of its oldest token, or the published
                version at its start while it has none. Used by `wait` only.
            want: groups in the chunk.
            taken: groups already taken for this step.

        """
        if not 1 <= want <= self._batch - taken:
            raise LawError(f"{want} groups wanted with {taken} of {self._batch} taken")
        if self._policy is StalePolicy.TRAIN:
            return Pull(_first(buffered, want))
        if self._policy is StalePolicy.DROP:
            drop = tuple(item.group for item in buffered if t - item.oldest_version > self._bound)
            fresh = [item for item in buffered if t - item.oldest_version <= self._bound] if drop else buffered
            return Pull(_first(fresh, want), drop)
        return self._pull_or_wait(t, buffered, running, want, self._batch - taken - want)

    def _pull_or_wait(self, t: int, buffered: Sequence[Buffered], running: Iterable[int], want: int, left: int) -> Pull:
        """`wait`: a chunk that leaves everything else usable, or none."""
        outstanding = sorted([*(item.oldest_version for item in buffered), *running])
        chosen: dict[int, None] = {}
        count = 0
        for version, same in groupby(outstanding):
            count += sum(1 for _ in same)
            # At least this many of the groups up to `version` have to be in this chunk.
            quota = count - left - (version + self._bound - t) * self._batch
            if quota <= len(chosen):
                continue
            for item in buffered:
                if len(chosen) >= quota:
                    break
                if item.oldest_version <= version:
                    chosen[item.group] = None
            if len(chosen) < quota or quota > want:
                return Pull(waits_for_version=version)
        if len(buffered) < want:
            return Pull()
        for item in buffered:
            if len(chosen) >= want:
                break
            chosen[item.group] = None
        return Pull(tuple(item.group for item in buffered if item.group in chosen))


def _first(items: Sequence[Buffered], want: int) -> tuple[int, ...]:
    return tuple(item.group for item in items[:want]) if len(items) >= want else ()
