"""Which replica serves the next request.

- `round_robin`: the next replica that admits, in turn.
- `sticky`: the replica that served the episode before (its prefix cache is there), as long as it is up; the least loaded
  one for an episode's first request.
- `least_loaded`: fewest running and queued requests, ties to the smaller index.

Two goods pull apart. Evenness: a decode step of a small batch costs nearly what one of a large batch costs, and a request in a
long queue waits while another replica is idle; `least_loaded` serves it best. Locality: a context prefilled where it was
computed before is free (`pipeline.policies.kv_prefix`); of n replicas, `round_robin` goes back to the same one once in n times.
`sticky` is even when an episode begins and local from then on; it drifts apart when episodes differ much in length, and when a
replica is lost its episodes find other homes and stay there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import LawError
from pipeline.policies.kinds import RouterPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence


class Router:
    """Routes requests of episodes to replicas."""

    __slots__ = ("_homes", "_next", "_policy", "_replicas")

    def __init__(self, policy: RouterPolicy, replicas: int) -> None:
        if replicas < 1:
            raise LawError("a router needs a replica")
        self._policy = policy
        self._replicas = replicas
        self._next = 0
        self._homes: dict[int, int] = {}

    def route(self, episode: int, loads: Sequence[int], up: Sequence[bool]) -> int:
        """The replica for this episode's next request.

        Args:
            episode: who asks.
            loads: running and queued requests of each replica.
            up: whether each replica is up. A replica that only pauses for a sync is up.

        Raises:
            LawError: no replica is up; ask again when one is.

        """
        home = self._homes.get(episode, -1)
        if home >= 0 and up[home]:  # only `sticky` has homes
            return home
        if len(loads) != self._replicas or len(up) != self._replicas or not any(up):
            raise LawError(f"no route among {self._replicas} replicas: loads {list(loads)}, up {list(up)}")
        if self._policy is RouterPolicy.ROUND_ROBIN:
            return self._turn(up)
        candidates = [replica for replica in range(self._replicas) if up[replica]]
        choice = min(candidates, key=lambda replica: (loads[replica], replica))
        if self._policy is RouterPolicy.STICKY:
            self._homes[episode] = choice
        return choice

    def forget(self, episode: int) -> None:
        """The episode has ended."""
        self._homes.pop(episode, None)

    def _turn(self, up: Sequence[bool]) -> int:
        while not up[self._next]:
            self._next = (self._next + 1) % self._replicas
        choice = self._next
        self._next = (choice + 1) % self._replicas
        return choice
