"""The record of a live run: opened when it begins, written while it goes on, checked when it has ended."""

from __future__ import annotations

import logging
import os
import platform
import time
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

from harness.trace.invariants import check_record
from harness.trace.parts import SUFFIX, PartsRecorder, finish_left, free_place, write_parts
from harness.trace.store import Books, Manifest, books_of, read_record

if TYPE_CHECKING:
    from pathlib import Path

    from harness.core.lanes import Lanes
    from harness.scenario.schema import Scenario
    from pipeline.build import Report
    from pipeline.config import PipelineConfig

LOG = logging.getLogger("rollout_harness")

MOST_CHECKED_ROWS = 2_000_000
"""A longer record is not read back to be checked: that takes memory. `harness.trace.invariants.check_record` does it later."""

FAILED = "the run failed"


class LiveRecord:
    """Records one live run into a folder of its own: `record`, or `record-2` and so on beside those of runs before a resume.

    Parts that a killed run left in the same place become a record first.

    Args:
        scenario: of the run.
        folder: of the run.
        seed: of the run.
        first_version: of the weights at the start; above 0 after a resume.

    Attributes:
        recorder: for the engine.
        place: where the record will be.

    Raises:
        OutputError: it cannot be recorded there.

    """

    def __init__(self, scenario: Scenario[PipelineConfig], folder: Path, seed: int, first_version: int) -> None:
        finish_left(folder)
        self.place = free_place(folder / "record")
        self._config, self._first_version = scenario.pipeline, first_version
        self._manifest = Manifest(
            seed=seed, clock="monotonic", end_ns=0, complete=False, config=scenario.model_dump(mode="json"),
            versions={"python": platform.python_version()} | {name: metadata.version(name) for name in ("jax", "trio")},
            epoch=_epoch(0),
            hardware={"system": platform.system(), "machine": platform.machine(), "cores": str(os.cpu_count())},
        )  # fmt: skip
        self.recorder = PartsRecorder(self.place.with_name(self.place.name + SUFFIX), self._manifest)
        self._report: Report | None = None
        self._books: Books | None = None

    def watch(self, lanes: Lanes, now_ns: int = 0) -> None:
        """These are the lanes of the run, and so late it is in it now."""
        self._manifest = replace(self._manifest, epoch=_epoch(now_ns))
        self.recorder.watch(lanes)

    def end(self, report: Report) -> None:
        """The instant of the end: what comes later is no part of the record."""
        self.recorder.seal()
        self._report, self._books = report, books_of(report.accounts)

    def write(self) -> str:
        """Make the tables of what there is; the hash of the log. Of a run that did not come to its end, the record is cut.

        Raises:
            OutputError: it could not be written.
            TraceError: an invariant does not hold. The record is there all the same.

        """
        self.recorder.close()
        report, cut = self._report, self.recorder.cut
        if report is None or cut:
            written = write_parts(self.recorder.folder, self.place, cut=cut or FAILED)
        else:
            phases = {"window": report.start_ns}
            ended = replace(self._manifest, end_ns=report.end_ns, mark_ns=report.start_ns, phases=phases, books=self._books)
            written = write_parts(self.recorder.folder, self.place, ended, report.lanes)
        if sum(written.counts.values()) <= MOST_CHECKED_ROWS:
            self._check()
        return written.events_hash

    def _check(self) -> None:
        bounded = self._config.stale_policy.value != "train"
        check_record(
            read_record(self.place), capacity=self._config.buffer_capacity,
            max_lag=self._config.max_staleness if bounded else None, initial_version=self._first_version,
        )  # fmt: skip


def _epoch(now_ns: int) -> dict[str, int]:
    """The run's instant 0 on both clocks of this host, read together."""
    return {"time_ns": time.time_ns() - now_ns, "monotonic_ns": time.perf_counter_ns() - now_ns}
