"""Signals that ask a live run to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.core.runtime import Runtime


LAST_RESORT_S = 60.0
"""After a second Ctrl-C the run has so long to close its environments. Then the process ends whatever hangs."""


async def watch_signals(rt: Runtime, stop: Callable[[str], object], last_resort_s: float = LAST_RESORT_S) -> None:
    """Call `stop` at the first SIGTERM or SIGINT; a second SIGINT interrupts at once. Only the main thread gets signals.

    A step on the devices cannot be called back, nor can what waits for it. Where one hangs, the process ends `last_resort_s`
    after the second SIGINT all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    asked = False
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if asked and number == signal.SIGINT:
                _end_in_the_end(trio.lowlevel.current_trio_token(), last_resort_s)
                raise KeyboardInterrupt
            asked = True
            stop(signal.Signals(number).name)


def _end_in_the_end(token: trio.lowlevel.TrioToken, after_s: float) -> None:
    def look() -> None:
        try:
            token.run_sync_soon(lambda: None)
        except trio.RunFinishedError:
            return
        sys.stderr.write(f"harness: interrupted; something still hangs after {after_s:.0f} s, so the process ends without it\n")
        sys.stderr.flush()
        os._exit(130)

    timer = threading.Timer(after_s, look)
    timer.daemon = True
    timer.start()


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


@contextmanager
def signals_left_to_leader() -> Iterator[None]:
    """In a process that follows: who ends a run tells all of its processes, and the leading one ends it in good order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def heard(*_: object) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stderr.write("harness: the leading process ends the run; once more, and this one ends at once\n")

    for number in before:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
