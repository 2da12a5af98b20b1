from __future__ import annotations

import json
import stat
import subprocess
import sys
import textwrap

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from harness.core.errors import DataError, OutputError, TraceError
from harness.trace.store import MANIFEST, Manifest, read_record, write_record
from harness.trace.tables import SCHEMAS

properties = settings(derandomize=True, deadline=None, max_examples=10)


def assert_same(one, other):
    assert one.manifest == other.manifest
    for name in SCHEMAS:
        assert_frame_equal(getattr(one, name), getattr(other, name))


@properties
@given(st.integers(0, 10**6), st.integers(0, 12))
def test_a_record_comes_back_as_it_was(tiny, tmp_path_factory, seed, groups):
    record = tiny(seed, groups).record()
    folder = write_record(record, tmp_path_factory.mktemp("runs") / "deep" / "run")
    assert_same(read_record(folder), record)
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_files_are_for_their_owner_only(record, tmp_path):
    folder = write_record(record, tmp_path / "run")
    assert {path.name for path in folder.iterdir()} == {MANIFEST, *(f"{name}.parquet" for name in SCHEMAS)}
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_record_is_never_overwritten(record, tmp_path):
    folder = write_record(record, tmp_path / "run")
    with pytest.raises(OutputError, match="never overwritten"):
        write_record(record, folder)
    assert_same(read_record(folder), record)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="never overwritten"):
        write_record(record, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert_same(read_record(write_record(record, tmp_path / "empty")), record)


def test_a_place_that_cannot_be(record, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"could not be written: .*File exists"):
        write_record(record, tmp_path / "file" / "run")


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    """A real limit of the system on the size of files stands in for a full disk: writing fails in the middle."""
    script = f"""
        import resource, signal
        from pathlib import Path
        from harness.core.errors import OutputError
        from harness.trace.recorder import TraceRecorder
        from harness.trace.store import Manifest, take_record, write_record
        recorder = TraceRecorder()
        for i in range(50_000):
            recorder.append_event((i, 99, i * i, -i * 7919 % 1_000_003, 0, 0, 0, 0))
        record = take_record(recorder, [], Manifest(seed=0, clock="virtual", end_ns=50_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        try:
            write_record(record, Path({str(tmp_path)!r}) / "run")
        except OutputError as error:
            print(error.exit_code, error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"4 {tmp_path / 'run'}: the run record could not be written")
    assert "Free some space" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


# Reading what is not a record


def edit_manifest(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_versions(record, tmp_path):
    folder = write_record(record, tmp_path / "run")
    edit_manifest(folder, schema_version="1.7", something_new=[1])
    assert read_record(folder).manifest.schema_version == "1.7"
    for unknown in ("2.0", "0.9", None, 1.0):
        edit_manifest(folder, schema_version=unknown)
        with pytest.raises(DataError) as caught:
            read_record(folder)
        error = caught.value
        assert (error.file, error.field, error.value, error.allowed) == (
            str(folder / MANIFEST),
            "schema_version",
            unknown,
            "1.x",
        )


def test_no_record_at_all(tmp_path):
    with pytest.raises(DataError, match="is not a run record: No such file") as caught:
        read_record(tmp_path / "nowhere")
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x00\xff", b"{", b""])
def test_a_manifest_that_is_not_json(record, tmp_path, content):
    folder = write_record(record, tmp_path / "run")
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(DataError, match="is not JSON"):
        read_record(folder)


def test_a_manifest_that_lacks_something(record, tmp_path):
    folder = write_record(record, tmp_path / "run")
    (folder / MANIFEST).write_text('{"schema_version": "1.0", "clock": "virtual", "end_ns": 3}')
    with pytest.raises(DataError, match=r"is incomplete: .*'seed'"):
        read_record(folder)


@pytest.mark.parametrize("name", SCHEMAS)
def test_tables_that_are_damaged(record, tmp_path, name):
    folder = write_record(record, tmp_path / "run")
    path = folder / f"{name}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as Parquet") as caught:
        read_record(folder)
    assert caught.value.file == str(path)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_record(folder)


@pytest.mark.parametrize("name", SCHEMAS)
def test_tables_of_another_shape(record, tmp_path, name):
    folder = write_record(record, tmp_path / "run")
    path = folder / f"{name}.parquet"
    table = pl.read_parquet(path)
    column = table.columns[-1]
    table.with_columns(more=pl.lit(1)).write_parquet(path)
    assert_same(read_record(folder), record)  # a later minor version may have more columns
    for changed in (table.drop(column), table.with_columns(pl.col(column).cast(pl.String))):
        changed.write_parquet(path)
        with pytest.raises(DataError) as caught:
            read_record(folder)
        assert (caught.value.file, caught.value.field) == (str(path), column)
    table[:-1].write_parquet(path)
    with pytest.raises(DataError, match="number of rows"):
        read_record(folder)


def test_a_changed_event_is_noticed(record, tmp_path):
    folder = write_record(record, tmp_path / "run")
    path = folder / "events.parquet"
    pl.read_parquet(path).with_columns(e=pl.col("e") + (pl.int_range(pl.len()) == 7)).write_parquet(path)
    with pytest.raises(TraceError, match="the events read are those recorded"):
        read_record(folder)


def test_a_clock_is_virtual_or_monotonic():
    with pytest.raises(ValueError, match="virtual, monotonic"):
        Manifest(seed=0, clock="wall", end_ns=0)
