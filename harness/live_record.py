"""The record of a live run: opened when it begins, written while it goes on, checked when it has ended."""

from __future__ import annotations

import logging
import platform
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

from harness.trace.invariants import check_record
from harness.trace.parts import SUFFIX, PartsRecorder, finish_left, free_place, write_parts
from harness.trace.store import Manifest, read_record

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
        )  # fmt: skip
        self.recorder = PartsRecorder(self.place.with_name(self.place.name + SUFFIX), self._manifest)
        self._report: Report | None = None

    def watch(self, lanes: Lanes) -> None:
        """These are the lanes of the run."""
        self.recorder.watch(lanes)

    def end(self, report: Report) -> None:
        """The instant of the end: what comes later is no part of the record."""
        self.recorder.seal()
        self._report = report

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
            ended = replace(self._manifest, end_ns=report.end_ns, mark_ns=report.start_ns)
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
