"""Prompts: tasks that come from outside one by one, and wait here until a group may start for them.

A task source in front of the source proper: it gives out no more tasks than have come. Where all tasks are at hand it is left
out, and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.events import EventKind
from harness.core.work import Arrive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.core.runtime import Runtime
    from pipeline.data import Task
    from pipeline.environments.base import EpisodeDriver, TaskSource


class Prompts:
    """Tasks that have come.

    Args:
        rt: the engine's runtime.
        source: of the tasks themselves.
        waiting_max: tasks that wait at most; one more is turned away. None: all wait.

    Attributes:
        arrived: how many have come, those that were turned away included.
        turned_away: how many found no place.
        waiting: how many wait for a start.
        on_arrival: called when one has come, to start what may start.

    """

    def __init__(self, rt: Runtime, source: TaskSource, waiting_max: int | None = None) -> None:
        self._rt = rt
        self._source = source
        self._waiting_max = waiting_max
        self.arrived = 0
        self.turned_away = 0
        self.waiting = 0
        self.on_arrival: Callable[[], object] = _nobody

    async def run(self) -> None:
        """Let tasks come, for ever."""
        while True:
            await self._rt.perform(Arrive(self.arrived))
            self._arrive()

    def _arrive(self) -> None:
        ordinal = self.arrived
        self.arrived += 1
        self.waiting += 1
        self.on_arrival()
        refused = int(self._waiting_max is not None and self.waiting > self._waiting_max)
        self.waiting -= refused
        self.turned_away += refused
        self._rt.emit(EventKind.ARRIVAL, ordinal, self.waiting, refused)

    def next_task(self) -> Task | None:
        """The next task that has come; None while there is none."""
        if not self.waiting:
            return None
        self.waiting -= 1
        return self._source.next_task()

    def driver(self, task: Task, member: int, version: int, /) -> EpisodeDriver:
        """Agent and environment for one member of a group, which starts while `version` is published."""
        return self._source.driver(task, member, version)

    def state(self) -> Mapping[str, Any]:
        """Where the source stands, and who has come."""
        return {**self._source.state(), "arrived": self.arrived, "waiting": self.waiting, "turned_away": self.turned_away}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Stand where `state` was taken; without a stream of tasks in it, at the stream's start."""
        self._source.restore(state)
        self.arrived = state.get("arrived", 0)
        self.waiting = state.get("waiting", 0)
        self.turned_away = state.get("turned_away", 0)

    def catch_up(self, arrived: int, turned_away: int) -> None:
        """Stand where a run went back to, but for the world outside: by now so many have come, and so many found no place."""
        self.waiting += arrived - self.arrived - (turned_away - self.turned_away)
        self.arrived, self.turned_away = arrived, turned_away

    def issue_again(self, tasks: Sequence[Task], /) -> None:
        """Give these out before anything else: they have come long ago."""
        self._source.issue_again(tasks)
        self.waiting += len(tasks)


def _nobody() -> None:
    """Nobody needs to know."""
