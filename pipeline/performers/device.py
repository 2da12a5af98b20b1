"""How an actor's task waits for the device: the decision goes to the dispatcher's thread, the answer comes back to trio."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from pipeline.numerics.dispatch import Decision, Dispatcher


async def on_device(dispatcher: Dispatcher, decision: Decision) -> Any:
    """Run a decision and wait for its answer. The step runs out whatever happens: device work cannot be called back."""
    token = trio.lowlevel.current_trio_token()
    done = trio.Event()
    box: list[tuple[Any, BaseException | None]] = []

    def answered(answer: Any, failure: BaseException | None) -> None:
        box.append((answer, failure))
        with suppress(trio.RunFinishedError):  # interrupted: nobody waits any more
            token.run_sync_soon(done.set)

    dispatcher.submit(decision, answered)
    with trio.CancelScope(shield=True):
        await done.wait()
    answer, failure = box[0]
    if failure is not None:
        raise failure
    return answer
