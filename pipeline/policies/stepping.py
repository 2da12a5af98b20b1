"""Batch-level stepping: every turn waits for the slowest episode.

The baseline that trajectory-level rollouts are measured against: environments are stepped together, as a vectorised environment
does it. Whoever is in flight is a *member* from the start of its environment to the end of its last turn. A member that has
ended a turn, or started its environment, stands at the barrier; the barrier opens when no member is in a turn, and then all who
stand there begin the next turn in one instant. A member that joins while others are in a turn begins with their next one.

With n members whose turns take independent times the barrier makes a turn as long as the longest of n; without it an episode
takes the sum of its own, and a batch the longest of n sums, which is far less where turns vary and there are many of them.
"""

from __future__ import annotations

from harness.core.errors import LawError


class TurnBarrier:
    """Who is in a turn and who stands at the barrier. Members are named by their episodes; an illegal event changes nothing."""

    __slots__ = ("_in_turn", "_standing")

    def __init__(self) -> None:
        self._in_turn: set[int] = set()
        self._standing: dict[int, None] = {}

    @property
    def in_turn(self) -> int:
        """Members that the others wait for."""
        return len(self._in_turn)

    @property
    def standing(self) -> int:
        """Members that wait for the others."""
        return len(self._standing)

    def joined(self, episode: int) -> None:
        """An episode came in: the others wait for it, at the latest from their next turn on."""
        if episode in self._in_turn or episode in self._standing:
            raise LawError(f"episode {episode} joined the barrier twice")
        self._in_turn.add(episode)

    def arrived(self, episode: int) -> tuple[int, ...]:
        """A member has ended its turn; returns the members that begin the next one now, in the order of their arrival."""
        if episode not in self._in_turn:
            raise LawError(f"episode {episode} came to the barrier without being in a turn")
        self._in_turn.remove(episode)
        self._standing[episode] = None
        return self._open()

    def left(self, episode: int) -> tuple[int, ...]:
        """A member is gone, from wherever it was; returns the members that begin the next turn now."""
        if episode in self._in_turn:
            self._in_turn.remove(episode)
        elif episode in self._standing:
            del self._standing[episode]
        else:
            raise LawError(f"episode {episode} left the barrier without being a member")
        return self._open()

    def _open(self) -> tuple[int, ...]:
        if self._in_turn or not self._standing:
            return ()
        begin = tuple(self._standing)
        self._in_turn.update(begin)
        self._standing.clear()
        return begin
