"""One thread that does all device work of a process, in one total order.

Multi-controller JAX demands the same operations in the same order in every process. So whoever wants device work hands over a
*decision*: a name and plain data, nothing that lives in one process only. The thread looks the name up among the programs that
were registered, runs it, and answers. A follower process that gets the same decisions in the same order does the same work.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.core.errors import LawError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG = logging.getLogger("rollout_harness")


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done on the devices.

    Attributes:
        program: name under which the program was registered.
        arguments: plain data: numbers, text, NumPy arrays, and tuples, lists and mappings of them.

    """

    program: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Dispatcher:
    """Runs programs on a thread of its own.

    Args:
        programs: by name; called with the decision's arguments.
        tell: called with each decision before it is run: the leader of several processes has the others do the same.

    """

    def __init__(
        self,
        programs: Mapping[str, Callable[..., Any]] | None = None,
        tell: Callable[[Decision], object] = lambda decision: None,
    ) -> None:
        self._tell = tell
        self._programs: dict[str, Callable[..., Any]] = dict(programs or {})
        self._todo: queue.SimpleQueue[tuple[Decision, Callable[[Any, BaseException | None], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._gate = threading.Lock()
        self._closed = False

    def register(self, name: str, program: Callable[..., Any]) -> None:
        """Make a program known; every process registers the same ones."""
        self._programs[name] = program

    @property
    def programs(self) -> Mapping[str, Callable[..., Any]]:
        """By name."""
        return self._programs

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._serve, name="device dispatcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what was handed over, and end the thread. Nothing can be handed over any more."""
        with self._gate:
            self._closed = True
            self._todo.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def submit(self, decision: Decision, answered: Callable[[Any, BaseException | None], None]) -> None:
        """Hand a decision over. `answered` is called on the dispatcher's thread, with the answer or the failure.

        Raises:
            LawError: the dispatcher was stopped.

        """
        with self._gate:
            if self._closed:
                raise LawError(f"{decision.program} was asked for after the dispatcher was stopped")
            self._todo.put((decision, answered))

    def run(self, decision: Decision) -> Any:
        """Hand a decision over and block until it is done: for start-up and tests, never inside an event loop."""
        box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.submit(decision, lambda answer, failure: box.put((answer, failure)))
        answer, failure = box.get()
        if failure is not None:
            raise failure
        return answer

    def _serve(self) -> None:
        while (item := self._todo.get()) is not None:
            decision, answered = item
            try:
                self._tell(decision)
                answer = self._programs[decision.program](**decision.arguments)
            except BaseException as failure:  # it belongs to who asked
                _answer(answered, None, failure)
            else:
                _answer(answered, answer, None)


def _answer(answered: Callable[[Any, BaseException | None], None], answer: Any, failure: BaseException | None) -> None:
    """An asker that cannot be told any more, its event loop being over, is no reason to leave the others without answers."""
    try:
        answered(answer, failure)
    except Exception as refusal:
        LOG.warning("an answer of the devices came too late: %s", failure or refusal)
