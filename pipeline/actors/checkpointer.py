"""Checkpointer: saves the learner's state and the pipeline's, under a deadline. The learner is held up meanwhile.

A live save may be written behind the learner's back. What became of the ones before is in the answer to the next: the pairs
(version, bytes) in `completed`, with 0 bytes for one that could not be written. One failure is no reason to end a run: the next
save may find room. Several in a row are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import ActorError, OutputError
from harness.core.events import EventKind
from harness.core.work import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.runtime import Runtime
    from pipeline.actors.shared import DeadlinesNs


FAILED_SAVES = 3
"""So many saves in a row that could not be written end the run."""


class Checkpointer:
    """Saves.

    Attributes:
        saved: version of the last save; -1 before the first.
        on_saved: told the pipeline's state that was saved.

    """

    def __init__(self, rt: Runtime, deadlines: DeadlinesNs, *, state_bytes: int) -> None:
        self.saved = -1
        self.on_saved: Callable[[Any], object] = _nobody
        self._rt = rt
        self._failures = 0
        self._limit_ns = deadlines.checkpoint
        self._state_bytes = state_bytes

    async def save(self, version: int, capture: Callable[[], Any]) -> None:
        """Save one version. `capture` gives the pipeline's state as it is now.

        Raises:
            ActorError: it was not done in time.
            OutputError: several saves in a row could not be written.

        """
        outcome, state = None, capture()
        with self._rt.move_on_after(self._limit_ns) as limit:
            outcome = await self._rt.perform(Checkpoint(version, self._state_bytes, state))
        if limit.cancelled_caught:
            raise ActorError("checkpointer", self._rt.now(), TimeoutError(f"version {version} was not saved in time"))
        self.saved = version
        self._rt.emit(EventKind.CHECKPOINTED, version)
        self.on_saved(state)
        for _, written_bytes in outcome.completed if outcome is not None else ():
            self._failures = 0 if written_bytes else self._failures + 1
        if self._failures >= FAILED_SAVES and outcome is not None:
            raise OutputError(f"{self._failures} checkpoints in a row could not be written, so the run ends: {outcome.result}")


def _nobody(state: Any) -> None:
    """Nobody needs to know."""
