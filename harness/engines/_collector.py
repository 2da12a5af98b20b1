"""Fewer looks of the garbage collector while a run goes on.

A run makes millions of small objects and hardly a cycle, so that Python's default, a look at the young ones every 700, is work
for nothing. Cycles (exceptions with their frames) are still found, later.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

THRESHOLDS = (20_000, 20, 50)


@contextmanager
def rarer_collections() -> Iterator[None]:
    """Inside, the collector looks less often."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
