"""A watch on the event loop: an `async def` that blocks instead of waiting stops every episode, so it is named.

A thread rings at the loop and looks whether it answers. While it does not, what the loop's thread is doing is on its stack. The
cost is one wake-up of the loop for each look.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Self

import trio

if TYPE_CHECKING:
    from types import TracebackType

LOG = logging.getLogger("rollout_harness")

_SHOWN = 4


class LoopWatch:
    """Enter it inside the loop that it is to watch.

    Args:
        limit_s: how long the loop may stand still before it is told.

    Attributes:
        stalls: how often it stood still for longer.

    """

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._stop = threading.Event()
        self._answered = threading.Event()
        self.stalls = 0

    def __enter__(self) -> Self:
        self._token = trio.lowlevel.current_trio_token()
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 2):
            self._answered.clear()
            rung_s = time.monotonic()
            try:
                self._token.run_sync_soon(self._answered.set)
            except trio.RunFinishedError:
                return
            if self._answered.wait(self._limit_s) or self._stop.is_set():
                continue
            self.stalls += 1
            LOG.warning("%s", self._told(time.monotonic() - rung_s))
            while not self._answered.wait(self._limit_s):
                if self._stop.is_set():
                    return

    def _told(self, stood_s: float) -> str:
        frame = sys._current_frames().get(self._watched)
        frames = traceback.extract_stack(frame)[-_SHOWN:] if frame is not None else []
        where = "\n           ".join([f"{one.filename}:{one.lineno} in {one.name}" for one in frames])
        return (
            f"the event loop has stood still for {stood_s:.1f} s: no episode goes on meanwhile\n"
            f"  where:   {where}\n"
            "  allowed: async def methods that wait with await and compute for milliseconds\n"
            "  do:      make the method a plain def, which runs on a thread, or call what blocks with self.host.in_thread"
        )
