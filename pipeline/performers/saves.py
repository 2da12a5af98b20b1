"""Live saves: the learner waits for the copy to the host, a thread writes it to the disk behind its back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from harness.core.errors import OutputError
from harness.core.work import Checkpoint, Outcome
from pipeline.numerics.dispatch import Decision
from pipeline.numerics.saves import on_host
from pipeline.performers.device import on_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.perform import Performers
    from harness.core.runtime import Runtime
    from pipeline.numerics.dispatch import Dispatcher
    from pipeline.numerics.saves import Saver, Written


class SavePerformer:
    """Performs `Checkpoint`, whose payload is a `PipelineState`.

    The outcome's `completed` tells what became of the save before: (its step, its bytes), 0 bytes when it could not be written;
    `result` then says why.

    Args:
        dispatcher: whose thread the learner lives on, with a program `learner.state`.
        saver: writes.
        say: called with the message of each save that could not be written.
        limit_s: how long a save may be on its way to the disk (`deadlines.checkpoint_s`).

    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        saver: Saver,
        say: Callable[[str], object] = lambda message: None,
        *,
        limit_s: float = 1800.0,
    ) -> None:
        self._dispatcher = dispatcher
        self._saver = saver
        self._say = say
        self._limit_s = limit_s

    def performers(self) -> Performers:
        """By class of work."""
        return {Checkpoint: self}

    async def __call__(self, rt: Runtime, work: Checkpoint, /) -> Outcome:
        """Wait for the save before, copy the state, and begin to write it.

        Raises:
            OutputError: the save before hangs.

        """
        before = await self._written()
        arrays = await on_device(self._dispatcher, Decision("learner.state"))
        copies = await trio.to_thread.run_sync(on_host, arrays)
        self._saver.start(copies, work.payload)
        amount = sum(array.nbytes for part in copies.values() for array in part.values())
        if before is None:
            return Outcome(amount=amount)
        if before.problem:
            self._say(before.problem)
        return Outcome(amount=amount, completed=((before.step, before.written_bytes),), result=before.problem)

    async def gone(self, rt: Runtime, work: Checkpoint, /) -> None:
        """The copy runs out; nobody is left."""

    async def finish(self) -> None:
        """Wait until the last save is on the disk.

        Raises:
            OutputError: it could not be written.

        """
        with trio.CancelScope(shield=True):
            last = await self._written()
        if last is not None and last.problem:
            raise OutputError(last.problem)

    async def _written(self) -> Written | None:
        """What became of the last save. Not `rt`'s deadline: the caller is shielded until the copy is taken."""
        with trio.move_on_after(self._limit_s):
            return await trio.to_thread.run_sync(self._saver.wait, abandon_on_cancel=True)
        raise OutputError(
            f"the last checkpoint has been on its way to {self._saver.folder} for {self._limit_s:g} s: the disk hangs, or is "
            "too slow for pipeline.deadlines.checkpoint_s"
        )
