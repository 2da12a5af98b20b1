"""A method that blocks the event loop is named with its place, once a stall; a loop that only waits is not."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import trio

from pipeline.performers.loop_watch import LoopWatch

pytestmark = pytest.mark.real_clock


def stand_still(told):
    """Blocks until the watch has told of it."""
    began_s = time.monotonic()
    while not told() and time.monotonic() - began_s < 20:
        time.sleep(0.01)


def test_a_loop_that_stands_still_is_told_once_with_the_place(caplog):
    async def main():
        with LoopWatch(0.2) as watch:
            stand_still(lambda: watch.stalls)
            seen = watch.stalls
            time.sleep(0.5)  # noqa: ASYNC251 - still the same stall
            return seen, watch.stalls

    with caplog.at_level(logging.WARNING, "rollout_harness"):
        assert trio.run(main) == (1, 1)
    [told] = [record.message for record in caplog.records]
    for word in ("stood still", "stand_still", "test_host_loop_watch.py", "allowed:", "do:"):
        assert word in told


def test_a_loop_that_waits_is_not_told_and_the_watch_ends(caplog):
    before = set(threading.enumerate())

    async def main():
        with LoopWatch(2.0):
            await trio.sleep(0.05)
            return set(threading.enumerate()) - before

    [watcher] = trio.run(main)
    watcher.join(20)
    assert not watcher.is_alive()
    assert not caplog.records
