"""A record that is written while its run goes on is the record that memory would have kept, in bounded memory, and survives."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tracemalloc

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import DataError, LawError, OutputError
from harness.core.events import BLOCK_EVENTS
from harness.core.lanes import Lanes, State
from harness.trace import parts
from harness.trace.invariants import check_record
from harness.trace.parts import KILLED, SUFFIX, PartsRecorder, finish_left, free_place, write_parts
from harness.trace.recorder import TraceRecorder
from harness.trace.store import Manifest, read_record, take_record
from harness.trace.tables import SCHEMAS

MANIFEST = Manifest(seed=1, clock="monotonic", end_ns=0, complete=False)


def recorded(tiny, folder, spill_every=50, groups=30):
    """A tiny pipeline that was recorded in files and in memory at once: (pipeline, parts recorder, memory recorder)."""
    memory, files = TraceRecorder(), PartsRecorder(folder, MANIFEST)

    class Both:
        enabled = True
        count = 0

        def append_event(self, event):
            memory.append_event(event)
            files.append_event(event)
            self.count += 1
            if self.count % spill_every == 0:
                files.spill()

        def append_interval(self, interval):
            memory.append_interval(interval)
            files.append_interval(interval)

    class Recorded(tiny):
        def tick(self):
            files.watch(self.lanes)  # known since the first tick
            super().tick()

    return Recorded(7, groups, Both()), files, memory


@settings(max_examples=8)
@given(spill_every=st.integers(1, 400), groups=st.integers(0, 60))
def test_files_hold_what_memory_would(tiny, tmp_path_factory, spill_every, groups):
    folder = tmp_path_factory.mktemp("run")
    played, files, memory = recorded(tiny, folder / ("record" + SUFFIX), spill_every, groups)
    played.lanes.close()
    files.seal()
    files.append_event((10**18,) * 8)  # comes after the end
    files.close()
    manifest = Manifest(seed=1, clock="monotonic", end_ns=played.now_ns, mark_ns=0)
    written = write_parts(files.folder, folder / "record", manifest, played.lanes.lanes)
    wanted = take_record(memory, played.lanes.lanes, manifest)
    read = read_record(folder / "record")
    assert written == read.manifest == wanted.manifest
    for name, schema in SCHEMAS.items():
        assert getattr(read, name).schema == schema
        assert getattr(read, name).equals(getattr(wanted, name)), name
    check_record(read, capacity=3)
    assert not files.folder.exists()


@pytest.mark.parametrize("torn", [0, 1, 7, 8, 39, 63])
def test_what_a_killed_run_left_is_a_record_that_says_it_was_cut(tiny, tmp_path, torn):
    """Spilled rows are there, half a row is not; the reader takes the parts in the record's stead, and they become one."""
    _, files, memory = recorded(tiny, tmp_path / ("record" + SUFFIX))
    files.spill()
    files.close()  # only so that the test knows what was written
    for name, row_bytes in (("events.bin", 64), ("intervals.bin", 40)):
        with (files.folder / name).open("ab") as file:
            file.write(b"\1" * (torn % row_bytes))
    with (files.folder / "lanes.jsonl").open("a") as file:
        file.write('[9, "ha')
    read = read_record(tmp_path / "record")
    assert (read.manifest.cut, read.manifest.complete) == (KILLED, False)
    assert read.intervals.height == memory.interval_count
    check_record(read, capacity=3)
    assert finish_left(tmp_path) == [tmp_path / "record"]
    again = read_record(tmp_path / "record")
    assert again.manifest == read.manifest
    assert all(getattr(again, name).equals(getattr(read, name)) for name in SCHEMAS)


def test_a_cut_record_stands_to_the_laws_wherever_it_was_cut(tiny, tmp_path):
    """A kill may come between any two writes: events and intervals then end at different rows."""
    played, files, _ = recorded(tiny, tmp_path / "whole.parts")
    played.lanes.close()
    files.close()
    for number, share in enumerate([0.0, 0.1, 0.37, 0.99]):
        left = tmp_path / f"cut-{number}.parts"
        shutil.copytree(files.folder, left)
        for name, row_bytes, kept in (("events.bin", 64, share), ("intervals.bin", 40, min(1.0, share + 0.2))):
            rows = (left / name).stat().st_size // row_bytes
            os.truncate(left / name, int(rows * kept) * row_bytes)
        check_record(read_record(left), capacity=3)


def test_a_run_that_is_killed_by_a_signal_leaves_its_rows(tmp_path):
    """A real process, and a real SIGKILL."""
    program = f"""
import os, signal
from pathlib import Path
from harness.trace.parts import PartsRecorder
from harness.trace.store import Manifest
recorder = PartsRecorder(Path({str(tmp_path / "record.parts")!r}), Manifest(seed=1, clock="monotonic", end_ns=0))
for i in range(3000):
    recorder.append_event((i, 99, i, 0, 0, 0, 0, 0))
recorder.spill()
while (Path({str(tmp_path)!r}) / "record.parts" / "events.bin").stat().st_size < 3000 * 64:
    pass
recorder.append_event((3000, 99, 3000, 0, 0, 0, 0, 0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    read = read_record(tmp_path / "record")
    assert read.events["entity"].to_list() == list(range(3000))
    assert read.manifest.end_ns == 2999


def test_memory_is_flat_however_long_the_run(tmp_path):
    """10,000 learner steps of 100 events and 60 intervals each: what is held does not grow, nor to make tables of it."""
    recorder = PartsRecorder(tmp_path / "record.parts", MANIFEST)
    lanes = Lanes(lambda: 0)
    recorder.watch(lanes)
    lanes.add("learner", "learner", 1)

    def steps(first, last):
        for step in range(first, last):
            for i in range(100):
                recorder.append_event((step, 99, i, 10**9 + step, 0, 0, 0, 0))
            for _ in range(60):
                recorder.append_interval((step, step + 1, 0, int(State.TRAIN), step))
            recorder.spill()
            while recorder.waiting_bytes > 1 << 20:  # a real run waits for its work, and lets the thread write meanwhile
                os.sched_yield()

    steps(0, 100)
    tracemalloc.start()
    try:
        steps(100, 10_000)
        recorder.close()
        held, peak = tracemalloc.get_traced_memory()
        assert held < 1 << 18  # the rows are 88 MB
        assert peak < 1 << 23
        tracemalloc.reset_peak()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        written = write_parts(recorder.folder, tmp_path / "record")
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB, with what Polars takes
    assert (written.counts["events"], written.counts["intervals"]) == (1_000_000, 600_000)
    events = pl.scan_parquet(tmp_path / "record" / "events.parquet")
    assert events.select(pl.col("time_ns").is_sorted(), pl.len()).collect().row(0) == (True, 1_000_000)


class Full:
    """A disk that takes so many writes and then none."""

    def __init__(self, monkeypatch, writes):
        real = os.write
        left = [writes]

        def write(file, data):
            if left[0] <= 0:
                raise OSError(28, "No space left on device")
            left[0] -= 1
            return real(file, data)

        monkeypatch.setattr(parts.os, "write", write)


def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path, monkeypatch, caplog):
    recorder = PartsRecorder(tmp_path / "record.parts", MANIFEST)
    Full(monkeypatch, 2)
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        for i in range(200):
            recorder.append_event((i, 99, i, 0, 0, 0, 0, 0))
            recorder.spill()
            while recorder._writer._given > recorder._writer._written:
                pass
        recorder.close()
    assert recorder.cut == "No space left on device"
    [told] = [record.message for record in caplog.records]
    for word in ("No space left", "where:", "do:"):
        assert word in told
    monkeypatch.undo()
    written = write_parts(recorder.folder, tmp_path / "record", cut=recorder.cut)
    read = read_record(tmp_path / "record")
    assert written.cut == read.manifest.cut == recorder.cut
    assert read.events["entity"].to_list() == list(range(read.events.height))
    assert 0 < read.events.height < 5


def test_a_disk_that_is_too_slow_ends_the_record(tmp_path, monkeypatch):
    """What waits for it is bounded."""
    monkeypatch.setattr(parts, "MOST_WAITING_BYTES", 0)
    recorder = PartsRecorder(tmp_path / "record.parts", MANIFEST)
    for _ in range(2):
        recorder.append_event((1,) * 8)
        recorder.spill()
    recorder.close()
    assert recorder.cut == "the disk is too slow"


@pytest.mark.parametrize("row", [(1, 2, 3), (1, 2, 3, 4, 5, 6, 7, 2**63), (1, 2, 3, 4, 5, 6, 7, 0.5)])
def test_a_row_that_is_none_is_refused(tmp_path, row):
    recorder = PartsRecorder(tmp_path / "record.parts", MANIFEST)
    recorder.append_event(row)
    with pytest.raises(LawError, match="recorded"):
        recorder.spill()
    recorder._events.clear()
    recorder.close()


def test_records_of_one_run_stand_beside_each_other(tmp_path):
    place = tmp_path / "record"
    assert free_place(place) == place
    place.mkdir()
    (tmp_path / "record-2.parts").mkdir()
    assert free_place(place) == tmp_path / "record-3"


def test_parts_that_were_damaged_are_said_to_be(tmp_path):
    recorder = PartsRecorder(tmp_path / "record.parts", MANIFEST)
    recorder.append_interval((1, 2, 1 << 40, 0, 0))  # there are no so many lanes
    recorder.close()
    with pytest.raises(DataError, match="no rows of a run record"):
        read_record(tmp_path / "record")


def test_what_is_no_record_is_said_to_be_none(tmp_path, caplog):
    with pytest.raises(DataError, match="not a run record"):
        read_record(tmp_path / "record")
    (tmp_path / "record.parts").mkdir()
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        assert finish_left(tmp_path) == []
    assert "not a run record" in caplog.text


def test_a_record_that_cannot_be_written_leaves_its_parts(tmp_path):
    recorder = PartsRecorder(tmp_path / "record.parts", MANIFEST)
    for i in range(BLOCK_EVENTS + 3):
        recorder.append_event((i, 99, i, 0, 0, 0, 0, 0))
    recorder.close()
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "something").touch()
    with pytest.raises(OutputError, match="parts are kept"):
        write_parts(recorder.folder, tmp_path / "record")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record", "record.parts"]
    assert read_record(tmp_path / "record.parts").events.height == BLOCK_EVENTS + 3
    assert json.loads((recorder.folder / "run.json").read_text())["cut"] == KILLED
