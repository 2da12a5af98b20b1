"""The laws of `harness.core.runtime` as checks that any engine can be put through; needs no test framework.

    from harness.engines.conformance import LAWS

    for law in LAWS:
        law(my_engine.run)      # raises LawError with the law's two sides if it does not hold

A law marked `virtual_time_only` cannot be kept on a real clock: skip it there. The programs wait for milliseconds up to a
day, so give an engine on a real clock a clock that jumps.
"""

from __future__ import annotations

from harness.engines import (
    _laws_cancel,
    _laws_channels,
    _laws_deadlines,
    _laws_primitives,
    _laws_runs,
    _laws_tasks,
    _laws_work,
)
from harness.engines._law import Law
from harness.engines._laws_work import AbandonedJob, BoundaryJob, Job, KilledJob, Worker, job_performers

LAWS: tuple[Law, ...] = (
    *_laws_tasks.BOOK.laws,
    *_laws_runs.BOOK.laws,
    *_laws_cancel.BOOK.laws,
    *_laws_deadlines.BOOK.laws,
    *_laws_channels.BOOK.laws,
    *_laws_primitives.BOOK.laws,
    *_laws_work.BOOK.laws,
)
"""Every law, in the order in which they read best."""

__all__ = ["LAWS", "AbandonedJob", "BoundaryJob", "Job", "KilledJob", "Law", "Worker", "job_performers"]
