"""Stepping: holds episodes at the turn barrier until all of them may go on (`policies.stepping`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State
from pipeline.policies.stepping import TurnBarrier

if TYPE_CHECKING:
    from harness.core.runtime import Event, Runtime
    from pipeline.actors.shared import EpisodeRun


class Stepping:
    """The barrier between turns of all episodes in flight."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._barrier = TurnBarrier()
        self._next: Event = rt.event()  # set when the next turn begins

    def join(self, run: EpisodeRun) -> None:
        """An episode is in flight."""
        self._barrier.joined(run.episode)

    def leave(self, run: EpisodeRun) -> None:
        """Its turns are over, or it was cancelled."""
        self._begin(self._barrier.left(run.episode))

    async def wait_turn(self, run: EpisodeRun) -> None:
        """Return when every episode in flight has ended its turn."""
        run.lane.to(State.TURN_WAIT, run.episode)
        begins = self._next
        self._begin(self._barrier.arrived(run.episode))
        await begins.wait()

    def _begin(self, episodes: tuple[int, ...]) -> None:
        if episodes:
            self._next.set()
            self._next = self._rt.event()
