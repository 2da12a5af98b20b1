"""Signals that ask a live run to stop."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.core.runtime import Runtime


async def watch_signals(rt: Runtime, stop: Callable[[str], object]) -> None:
    """Call `stop` at the first SIGTERM or SIGINT; a second SIGINT interrupts at once. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        return
    asked = False
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            asked = True
            stop(signal.Signals(number).name)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """While nobody watches signals, before the first step and behind the last, SIGTERM ends a run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
