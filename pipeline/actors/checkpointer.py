"""Checkpointer: saves the learner's state under a deadline. The learner is held up meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.work import Checkpoint

if TYPE_CHECKING:
    from harness.core.runtime import Runtime
    from pipeline.actors.shared import DeadlinesNs


class Checkpointer:
    """Saves."""

    def __init__(self, rt: Runtime, deadlines: DeadlinesNs, *, state_bytes: int) -> None:
        self._rt = rt
        self._limit_ns = deadlines.checkpoint
        self._state_bytes = state_bytes

    async def save(self, version: int) -> None:
        """Save one version."""
        with self._rt.move_on_after(self._limit_ns) as limit:
            await self._rt.perform(Checkpoint(version, self._state_bytes))
        if limit.cancelled_caught:
            raise ActorError("checkpointer", self._rt.now(), TimeoutError(f"version {version} was not saved in time"))
        self._rt.emit(EventKind.CHECKPOINTED, version)
