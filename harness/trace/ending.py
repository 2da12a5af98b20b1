"""What holds at the end of every run, recorded or not: cheap, so that candidates of a search are checked as well.

Books, chip time and lanes are checked where they are made (`harness.core.accounts`, `harness.analysis.ledger`,
`harness.core.lanes`: a role's occupancy, integrated, is the sum of its lanes' times, which is Little's law for the role).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harness.core.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Pool(Protocol):
    """A counted pool (`harness.core.primitives.Permits`)."""

    name: str
    capacity: int
    in_use: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Ending:
    """A run at the instant of its end.

    Attributes:
        pools: of workers.
        buffered: groups in the buffer.
        buffer_capacity: of it.
        learner_version: optimizer steps completed.
        published_version: the newest that every engine has.
        replica_versions: of each engine.
        lags: of the groups that were used in the window, in optimizer steps.
        max_lag: bound on them; None where stale groups are trained.

    """

    pools: Iterable[Pool]
    buffered: int
    buffer_capacity: int
    learner_version: int
    published_version: int
    replica_versions: Sequence[int]
    lags: Sequence[int]
    max_lag: int | None

    def check(self) -> None:
        """Raise `TraceError` with the first law that does not hold."""
        check_pools(self.pools)
        if self.buffered > self.buffer_capacity:
            raise TraceError(f"a buffer never holds more than its capacity of {self.buffer_capacity}", (), str(self.buffered))
        ahead = tuple(index for index, version in enumerate(self.replica_versions) if version > self.learner_version)
        if ahead or self.published_version > self.learner_version:
            raise TraceError(
                "no version is ahead of the learner",
                ahead,
                f"{self.published_version} is published, {self.learner_version} made",
            )
        if self.max_lag is not None and self.lags and not 0 <= min(self.lags) <= max(self.lags) <= self.max_lag:
            raise TraceError(f"no group is consumed with a lag above {self.max_lag}", (), str(max(self.lags)))


def check_pools(pools: Iterable[Pool]) -> None:
    """Nobody has more than there is, and nobody waits while something is free (work conservation)."""
    for pool in pools:
        if not 0 <= pool.in_use <= pool.capacity:
            raise TraceError("no more of a pool is out than there is", (pool.name,), f"{pool.in_use} of {pool.capacity}")
        if pool.waiting < 0 or (pool.waiting and pool.in_use < pool.capacity):
            raise TraceError(
                "nobody waits for a pool that has some left", (pool.name,),
                f"{pool.waiting} wait, {pool.in_use} of {pool.capacity} are out",
            )  # fmt: skip


def check_returned(pools: Iterable[Pool]) -> None:
    """Everything was cancelled and has ended: nothing of a pool is out, nobody waits."""
    for pool in pools:
        if pool.in_use or pool.waiting:
            raise TraceError(
                "when a run is over, every permit was given back", (pool.name,), f"{pool.in_use} are out, {pool.waiting} wait"
            )
