"""The pipeline's own runs keep the laws of a record, and a record says what the run said of itself."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from harness.analysis.blame import blame, waits_of
from harness.analysis.ledger import BLAMED
from harness.core.blame import INFERENCE_CAUSES, LEARNER_CAUSES
from harness.core.events import EventKind
from harness.run import load, simulate_once
from harness.trace.invariants import check_record, little
from harness.trace.recorder import TraceRecorder
from harness.trace.store import Manifest, read_record, take_record, write_record
from harness.trace.tables import rows_of

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.fixture(scope="module", params=["synchronous", "one_step_async", "fully_async"])
def run(request):
    """(scenario, the run's own report, its summary, its record)."""
    scenario = load(SCENARIOS / f"{request.param}.toml")
    recorder, taken = TraceRecorder(), []

    def at_end(report):
        window = {"end_ns": report.end_ns, "mark_ns": report.start_ns, "complete": False}
        manifest = Manifest(seed=1, clock="virtual", config=scenario.model_dump(mode="json"), **window)
        taken.extend([report, take_record(recorder, report.lanes, manifest)])

    summary = simulate_once(scenario, 1, learner_steps=3, warmup_steps=1, recorder=recorder, at_end=at_end)
    report, record = taken
    return scenario, report, summary, record


def test_the_laws_hold(run):
    scenario, report, _, record = run
    check_record(record, capacity=scenario.pipeline.buffer_capacity, max_lag=scenario.pipeline.max_staleness)
    area, waits = little(record.events, report.end_ns)
    assert area == waits


def test_the_record_has_the_blame_of_the_run(run):
    _, report, _, record = run
    rows, lanes = rows_of(record.intervals), record.lanes
    rollouts = lanes.filter(pl.col("role") == "rollout")["lane"].to_list()
    assert report.idle_ns.keys() == set(lanes.filter(pl.col("chips") > 0)["name"])
    for name, online in report.idle_ns.items():
        lane = lanes.row(by_predicate=pl.col("name") == name, named=True)
        role = lane["role"]
        waits = waits_of(rows, lane["lane"], BLAMED[role], (report.start_ns, report.end_ns))
        causes = LEARNER_CAUSES if role == "learner" else INFERENCE_CAUSES
        assert blame(rows, waits, rollouts, causes) == {cause: ns for cause, ns in online.items() if ns}


def test_the_record_has_the_counts_of_the_run(run):
    _, report, summary, record = run
    window = record.events.filter(pl.col("time_ns") > report.start_ns)
    assert window.filter(pl.col("kind") == int(EventKind.STEP)).height == summary.learner_steps == 3
    used = record.samples.filter(pl.col("used_ns").is_not_null())
    assert used["used_step"].n_unique() >= 4
    assert sum(summary.chip_ns.values()) == (report.end_ns - report.start_ns) * summary.chips


def test_the_record_survives_the_disk(run, tmp_path):
    scenario, _, _, record = run
    read = read_record(write_record(record, tmp_path / "run"))
    assert read.manifest == record.manifest
    assert read.events.equals(record.events)
    assert type(scenario).model_validate(read.manifest.config) == scenario
