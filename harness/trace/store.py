"""Run records on disk: a folder of Parquet tables and a `run.json`.

A record is written into a hidden folder beside its place and renamed when it is whole, so that nothing half-written ever
stands under the name that was asked for. Files are for their owner only: prompts and tool output are not recorded, but task
names and timings can be confidential too.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import polars as pl

from harness.core.errors import DataError, OutputError, TraceError
from harness.trace.recorder import hash_of
from harness.trace.tables import SCHEMA_VERSION, SCHEMAS, events_table, intervals_table, lanes_table, rows_of, samples_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.core.lanes import Lane
    from harness.trace.recorder import TraceRecorder

MANIFEST = "run.json"
CLOCKS = ("virtual", "monotonic")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `run.json` says.

    Attributes:
        seed: of the keyed draws.
        clock: `virtual` or `monotonic`.
        end_ns: when the record was taken.
        mark_ns: end of the warm-up, -1 when none was marked.
        complete: whether nothing is open at the end: no work, no episode. A run's record is taken while it still works.
        cut: why the record ends before its run did: the run was killed, the disk was full. Empty where it does not.
        config: the whole resolved configuration.
        versions: of Python and of the packages that matter.
        events_hash: hash of the canonical log.
        counts: rows by table.
        schema_version: of the tables.

    """

    seed: int
    clock: str
    end_ns: int
    mark_ns: int = -1
    complete: bool = True
    cut: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    events_hash: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    schema_version: str = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ValueError(f"a clock is one of {', '.join(CLOCKS)}, not {self.clock!r}")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's tables and its manifest."""

    manifest: Manifest
    events: pl.DataFrame
    intervals: pl.DataFrame
    lanes: pl.DataFrame
    samples: pl.DataFrame


def take_record(recorder: TraceRecorder, lanes: Iterable[Lane], manifest: Manifest) -> RunRecord:
    """The record of a run that has ended, or was stopped: its lanes should be closed. Counts and hash are filled in."""
    events = events_table(recorder.events())
    tables = {
        "events": events,
        "intervals": intervals_table(recorder.intervals()),
        "lanes": lanes_table(lanes),
        "samples": samples_table(events),
    }
    said = {item.name: getattr(manifest, item.name) for item in fields(manifest)}
    said |= {"events_hash": recorder.log_hash(), "counts": {name: table.height for name, table in tables.items()}}
    return RunRecord(Manifest(**said), **tables)


def write_record(record: RunRecord, folder: Path) -> Path:
    """Write a record as a new folder, whole or not at all.

    Raises:
        OutputError: the folder exists and is not empty, or could not be written (disk full, no permission).

    """
    temporary: Path | None = None
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputError(f"{folder} exists already; a run record is never overwritten: choose another place or remove it")
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for name in SCHEMAS:
            table: pl.DataFrame = getattr(record, name)
            write_file(temporary / f"{name}.parquet", partial(table.write_parquet, compression="zstd"))
        text = json.dumps(asdict(record.manifest), indent=2, sort_keys=True, allow_nan=False) + "\n"
        write_file(temporary / MANIFEST, lambda file: file.write(text.encode()))
        temporary.rename(folder)
        temporary = None
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise OutputError(
            f"{folder}: the run record could not be written: {problem}; nothing of it was kept there."
            " Free some space or choose another place, then run again"
        ) from problem
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_file(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a new file for its owner only, down to the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())  # a full disk may show only here


def read_record(folder: Path) -> RunRecord:
    """Read a record back, checking versions, types, row counts and the log's hash.

    A run that was killed leaves parts (`harness.trace.parts`) in the record's stead: they are read as a record that is cut.

    Raises:
        DataError: not a record, of an unknown major version, or with a table that is not what its schema says.
        TraceError: the log is not the one whose hash was written.

    """
    from harness.trace import parts

    left = parts.left_in(folder)
    if left is not None:
        return parts.read_parts(left)
    manifest = read_manifest(folder)
    tables = {name: _read_table(folder / f"{name}.parquet", name) for name in SCHEMAS}
    for name, table in tables.items():
        if manifest.counts.get(name) != table.height:
            raise DataError(
                "does not have the number of rows that run.json says",
                file=str(folder / f"{name}.parquet"),
                value=table.height,
                allowed=str(manifest.counts.get(name)),
                remedy="the record was changed or damaged after it was written: take it from its source again",
            )
    found = hash_of(rows_of(tables["events"]))
    if found != manifest.events_hash:
        raise TraceError("the events read are those recorded", (str(folder),), f"hash {found}, not {manifest.events_hash}")
    return RunRecord(manifest, **tables)


def read_manifest(folder: Path) -> Manifest:
    """What `run.json` says. Raises `DataError` where it is not that of a record."""
    path = folder / MANIFEST
    try:
        said = json.loads(path.read_bytes())
    except OSError as problem:
        raise DataError(
            f"is not a run record: {problem.strerror or problem}", file=str(path), remedy="name the folder that --out named"
        ) from problem
    except ValueError as problem:
        raise DataError(f"is not JSON: {problem}", file=str(path), remedy="take the record from its source again") from problem
    version = said.get("schema_version") if isinstance(said, dict) else None
    major = SCHEMA_VERSION.partition(".")[0]
    if not isinstance(version, str) or version.partition(".")[0] != major:
        raise DataError(
            "has a schema that this version cannot read",
            file=str(path),
            field="schema_version",
            value=version,
            allowed=f"{major}.x",
            remedy="read it with the version of the tool that wrote it, named under `versions`",
        )
    known = {item.name for item in fields(Manifest)}
    try:
        return Manifest(**{key: value for key, value in said.items() if key in known})
    except (TypeError, ValueError) as problem:
        raise DataError(
            f"is incomplete: {problem}", file=str(path), remedy="take the record from its source again"
        ) from problem


def _read_table(path: Path, name: str) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise DataError(
            f"cannot be read as Parquet: {problem}", file=str(path), remedy="take the record from its source again"
        ) from problem
    for column, kind in SCHEMAS[name].items():
        found = table.schema.get(column)
        if found != kind:
            raise DataError(
                "has a column that is missing or of another type",
                file=str(path),
                field=column,
                value=None if found is None else str(found),
                allowed=str(kind),
                remedy="the record was not written by this tool, or was changed: take it from its source again",
            )
    return table.select(SCHEMAS[name].names())
