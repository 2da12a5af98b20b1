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
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import polars as pl

from harness.core.accounts import Fate
from harness.core.errors import DataError, OutputError, TraceError
from harness.trace.derive import derived
from harness.trace.recorder import hash_of
from harness.trace.tables import (
    EVENTS,
    JOINED_LANES,
    RECORDED_INTERVALS,
    SCHEMA_VERSION,
    SCHEMAS,
    events_table,
    intervals_table,
    lanes_table,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane
    from harness.trace.recorder import TraceRecorder

MANIFEST = "run.json"
CLOCKS = ("virtual", "monotonic")
MODES = ("simulated", "live")


@dataclass(frozen=True, slots=True)
class Books:
    """What became of every episode and token of a whole run, warm-up included.

    Attributes:
        admitted: episodes ever started.
        made_tokens: tokens ever generated, counted by those who generated them.
        episodes: settled, by the name of their fate.
        tokens: of settled episodes, by the name of the fate.
        episodes_in_flight: running, buffered, or in the learner's hands at the end.
        tokens_in_flight: made for them.

    """

    admitted: int
    made_tokens: int
    episodes: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    episodes_in_flight: int = 0
    tokens_in_flight: int = 0

    def check(self) -> None:
        """Admitted = settled + in flight, and the same of tokens. Raises `TraceError` with the two sides."""
        known = {fate.name.lower() for fate in Fate}
        unknown = tuple(sorted((self.episodes.keys() | self.tokens.keys()) - known))
        if unknown:
            raise TraceError("a fate is a known one", unknown)
        for what, whole, parts, rest in (
            ("episodes admitted = settled + in flight", self.admitted, self.episodes, self.episodes_in_flight),
            ("tokens made = tokens on the books", self.made_tokens, self.tokens, self.tokens_in_flight),
        ):
            if min((whole, rest, *parts.values())) < 0 or whole != sum(parts.values()) + rest:
                raise TraceError(what, (), f"{whole} != {sum(parts.values())} + {rest}")


def books_of(accounts: Accounts) -> Books:
    """The books as they stand now."""
    return Books(
        accounts.admitted,
        accounts.made_tokens,
        {fate.name.lower(): accounts.settled[fate] for fate in Fate if accounts.settled[fate]},
        {fate.name.lower(): accounts.tokens[fate] for fate in Fate if accounts.tokens[fate]},
        len(accounts.open),
        accounts.in_flight_tokens,
    )


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
        mode: `simulated` or `live`.
        process: number of the process that recorded.
        host: alias of its host; never its name.
        epoch: of a live run, two readings at the instant 0: `time_ns` of the calendar and `monotonic_ns`.
        hardware: what it ran on, in a few words; nothing for a simulated run.
        config_hash: of `config`, 32 hex digits. Filled in.
        sampling: which rows were kept; always `all` so far.
        dropped_rows: rows that were not kept although they should have been; a record with any is cut.
        phases: instants at which a part of the run began: `window`, `drain`.
        books: what became of every episode and token; None in a record that was cut.

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
    mode: str = ""
    process: int = 0
    host: str = "host-0"
    epoch: dict[str, int] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    config_hash: str = ""
    sampling: str = "all"
    dropped_rows: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    books: Books | None = None

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ValueError(f"a clock is one of {', '.join(CLOCKS)}, not {self.clock!r}")
        mode = self.mode or ("simulated" if self.clock == "virtual" else "live")
        if mode not in MODES:
            raise ValueError(f"a mode is one of {', '.join(MODES)}, not {mode!r}")
        books = Books(**self.books) if isinstance(self.books, dict) else self.books  # as JSON gives it
        phases = self.phases or ({"window": self.mark_ns} if self.mark_ns >= 0 else {})
        known = self.config_hash or hash_of_config(self.config)
        for name, value in (("mode", mode), ("books", books), ("phases", phases), ("config_hash", known)):
            object.__setattr__(self, name, value)


def hash_of_config(config: dict[str, Any]) -> str:
    """The same for equal configurations, whatever the order of their fields: BLAKE2b-128 of their canonical JSON."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's tables and its manifest."""

    manifest: Manifest
    events: pl.DataFrame
    intervals: pl.DataFrame
    lanes: pl.DataFrame
    samples: pl.DataFrame
    links: pl.DataFrame
    counters: pl.DataFrame


def take_record(recorder: TraceRecorder, lanes: Iterable[Lane], manifest: Manifest) -> RunRecord:
    """The record of a run that has ended, or was stopped: its lanes should be closed. Counts and hash are filled in."""
    record = whole_record(manifest, events_table(recorder.events()), intervals_table(recorder.intervals()), lanes_table(lanes))
    return replace(record, manifest=replace(record.manifest, events_hash=recorder.log_hash()))


def whole_record(manifest: Manifest, events: pl.DataFrame, intervals: pl.DataFrame, lanes: pl.DataFrame) -> RunRecord:
    """A record from what was recorded; all else is derived. The counts are filled in, the hash is the caller's affair."""
    made = derived(events.lazy(), intervals.lazy(), lanes, manifest)
    tables = {
        "events": events, "intervals": made.intervals.collect(), "lanes": made.lanes, "samples": made.samples,
        "links": made.links, "counters": made.counters,
    }  # fmt: skip
    counts = {name: table.height for name, table in tables.items()}
    return RunRecord(replace(manifest, counts=counts, schema_version=SCHEMA_VERSION), **tables)


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
    """Read a record back, checking versions, types, row counts, the books and the log's hash.

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
    old = manifest.schema_version.partition(".")[2] == "0"
    schemas = FIRST_SCHEMAS if old else SCHEMAS
    tables = {name: _read_table(folder / f"{name}.parquet", schema) for name, schema in schemas.items()}
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
    if manifest.books is not None:
        manifest.books.check()
    return whole_record(manifest, **tables) if old else RunRecord(manifest, **tables)


FIRST_SCHEMAS = {"events": EVENTS, "intervals": RECORDED_INTERVALS, "lanes": JOINED_LANES}
"""What a record of version 1.0 has that is not derived."""


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


def _read_table(path: Path, schema: pl.Schema) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise DataError(
            f"cannot be read as Parquet: {problem}", file=str(path), remedy="take the record from its source again"
        ) from problem
    for column, kind in schema.items():
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
    return table.select(schema.names())
