"""A record that is written while its run goes on, in bounded memory, and that a killed run leaves behind.

Theory of operation
-------------------
Rows are appended flat to two lists, as in `harness.trace.recorder`. `spill` packs what has come and hands the bytes to a thread
that appends them to `events.bin` and `intervals.bin` in the *parts folder*; lanes that have joined go to `lanes.jsonl`, and
`run.json` is the manifest as known at the start. So memory holds what has come since the last `spill`, however long the run.

At the end the parts become Parquet tables, a piece of `PIECE_ROWS` rows at a time, and the log is hashed on the way. Only what
has a row an episode (`harness.trace.derive`) is made in one piece.

A record has no holes: when the disk is full, or so slow that `MOST_WAITING_BYTES` wait for it, recording stops there, once and
with a warning, and the run goes on. Such a record is *cut* (`Manifest.cut` says why), and so is that of a run that was killed:
whole rows that reached the files are kept. A cut record keeps the laws of a record up to its last row.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import sys
import tempfile
import threading
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from struct import error, pack
from typing import IO, TYPE_CHECKING

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from harness.core.errors import DataError, LawError, OutputError
from harness.core.events import BLOCK_EVENTS
from harness.trace.derive import derived
from harness.trace.recorder import EVENT_FIELDS, INTERVAL_FIELDS, fits
from harness.trace.store import MANIFEST, Manifest, RunRecord, read_manifest, whole_record, write_file
from harness.trace.tables import (
    EVENTS,
    JOINED_LANES,
    RECORDED_INTERVALS,
    events_table,
    intervals_table,
    lanes_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from harness.core.events import Event
    from harness.core.lanes import Lane, Lanes

LOG = logging.getLogger("rollout_harness")

SUFFIX = ".parts"
"""Of the folder that becomes the record: `record.parts` becomes `record`."""

PIECE_ROWS = 128 * BLOCK_EVENTS
"""Rows read and written at once: 8 MiB of events."""

PACKED_ROWS = 8 * BLOCK_EVENTS
"""Rows packed at once."""

MOST_WAITING_BYTES = 1 << 26
"""That wait to be written; a disk that falls further behind ends the record."""

KILLED = "the run was killed"


class PartsRecorder:
    """Keeps every event and interval of a run, in files.

    Args:
        folder: for the parts; made here, and not there before.
        manifest: what is known of the run when it begins.

    Attributes:
        append_event: keep one event.
        append_interval: keep one lane interval.
        cut: why recording stopped before its run did; empty while it goes on.

    Raises:
        OutputError: the folder cannot be made.

    """

    enabled = True

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.cut = ""
        self._events: list[int] = []
        self._intervals: list[int] = []
        self._lanes: list[Lane] = []
        self._told = 0
        self._sealed = False
        self.append_event: Callable[[Event], None] = self._events.extend
        self.append_interval: Callable[[tuple[int, int, int, int, int]], None] = self._intervals.extend
        try:
            folder.mkdir(parents=True)
            write_file(folder / MANIFEST, lambda file: file.write(_dumped(replace(manifest, complete=False, cut=KILLED))))
            self._writer = _Writer(folder)
        except OSError as problem:
            raise OutputError(
                f"{folder}: the run cannot be recorded there: {problem.strerror or problem}\n"
                "  do:      name another place with --out, or run with --no-record"
            ) from problem

    @property
    def waiting_bytes(self) -> int:
        """Handed over, and not yet written."""
        return self._writer.waiting_bytes

    def watch(self, lanes: Lanes) -> None:
        """These are the lanes of the run."""
        self._lanes = lanes.lanes

    def spill(self) -> None:
        """Hand over what has come since the last time. Quick: it packs, and a thread writes.

        Raises:
            LawError: a row is not made of signed 64-bit integers, or has too many or too few of them.

        """
        if self._sealed:
            return
        if not self.cut:
            self.cut = self._writer.problem
            if self.cut:
                LOG.warning(
                    "the record of this run ends here: %s\n  where:   %s\n  do:      nothing for the run, which goes on;"
                    " free some space before the next one",
                    self.cut, self.folder,
                )  # fmt: skip
        if not self.cut:
            self._hand_over()
        self._events.clear()
        self._intervals.clear()

    def _hand_over(self) -> None:
        events, intervals = _packed(self._events, EVENT_FIELDS), _packed(self._intervals, INTERVAL_FIELDS)
        # Lanes first: whoever reads half of this knows every lane that an interval names.
        joined = self._lanes[self._told :]
        self._told += len(joined)
        self._writer.write("".join(json.dumps(_lane_row(lane)) + "\n" for lane in joined).encode(), events, intervals)

    def seal(self) -> None:
        """The record ends now: what comes later is no part of it. Safe to call twice."""
        self.spill()
        self._sealed = True

    def close(self) -> None:
        """Seal, and wait until everything is in the files. Safe to call twice."""
        self.seal()
        self._writer.close()
        self.cut = self.cut or self._writer.problem


class _Writer:
    """Appends to the three files, on a thread. A failure is kept, and nothing is written from then on."""

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        self._files = [_opened(folder / name) for name in ("lanes.jsonl", "events.bin", "intervals.bin")]
        self._todo: queue.SimpleQueue[tuple[bytes, ...] | None] = queue.SimpleQueue()
        self._given = self._written = 0  # each is changed by one thread alone
        self._thread: threading.Thread | None = threading.Thread(target=self._serve, name="record writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Given to the thread, and not yet written."""
        return self._given - self._written

    def write(self, *parts: bytes) -> None:
        """Append each part to its file, some time soon."""
        self._given += sum(map(len, parts))
        if self.waiting_bytes > MOST_WAITING_BYTES:
            self.problem = self.problem or "the disk is too slow"
        self._todo.put(parts)

    def close(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None
            for file in self._files:
                os.close(file)

    def _serve(self) -> None:
        while (parts := self._todo.get()) is not None:
            try:
                for file, part in zip(self._files, parts, strict=True):
                    rest = memoryview(part)
                    while rest and not self.problem:
                        rest = rest[os.write(file, rest) :]
            except OSError as failure:
                self.problem = failure.strerror or str(failure)
            self._written += sum(map(len, parts))


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def _packed(flat: list[int], fields: int) -> bytes:
    if len(flat) % fields:
        raise LawError(f"recorded rows must have {fields} fields each, not {len(flat)} in {len(flat) // fields} rows")
    size = PACKED_ROWS * fields
    try:
        return b"".join([pack(f"<{len(piece)}q", *piece) for i in range(0, len(flat), size) for piece in (flat[i : i + size],)])
    except error:
        bad = next(i for i, value in enumerate(flat) if not fits(value))
        row = flat[bad - bad % fields :][:fields]
        raise LawError(f"recorded fields are signed 64-bit integers, not {flat[bad]!r}, in row {row!r}") from None


def _lane_row(lane: Lane) -> list[int | str]:
    return [lane.index, lane.name, lane.role, lane.chips, lane.joined_ns]


def _dumped(manifest: Manifest) -> bytes:
    return (json.dumps(asdict(manifest), indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


# ── parts on the disk ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Part:
    """A file of packed rows. A row that was written in half, when the run was killed, does not count."""

    def __init__(self, path: Path, fields: int) -> None:
        self.path, self.fields = path, fields
        self.rows = path.stat().st_size // (8 * fields) if path.exists() else 0

    def pieces(self, most: int = PIECE_ROWS) -> Iterator[NDArray[np.int64]]:
        """Its rows, so many at a time."""
        if not self.rows:
            return
        with self.path.open("rb") as file:
            for start in range(0, self.rows, most):
                count = min(most, self.rows - start)
                flat = np.frombuffer(file.read(8 * self.fields * count), dtype="<i8")
                yield flat.astype(np.int64, copy=sys.byteorder != "little").reshape(-1, self.fields)

    def all(self) -> NDArray[np.int64]:
        """All rows at once."""
        return next(self.pieces(max(1, self.rows)), np.empty((0, self.fields), np.int64))


class Parts:
    """What a run has left in its parts folder.

    Raises:
        DataError: it is no such folder.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = _Part(folder / "events.bin", EVENT_FIELDS)
        self.intervals = _Part(folder / "intervals.bin", INTERVAL_FIELDS)
        self.manifest = read_manifest(folder)

    def lanes(self) -> pl.DataFrame:
        """Lanes that joined; that none has left yet is all that is known."""
        rows = []
        path = self.folder / "lanes.jsonl"
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            try:
                rows.append((*json.loads(line), -1))
            except ValueError:
                break  # half a line: nothing that came later was written
        return pl.DataFrame(rows, schema=JOINED_LANES, orient="row")

    def cut(self, why: str = KILLED) -> Manifest:
        """The manifest of what there is: the record ends with the last row."""
        last = 0
        for part, column in ((self.events, 0), (self.intervals, 1)):
            last = max([last, *(int(piece[:, column].max()) for piece in part.pieces())])
        return replace(self.manifest, end_ns=last, cut=why)


def left_in(folder: Path) -> Path | None:
    """The parts that are here, or that a killed run left in the stead of this record; None where there are none."""
    for place in (folder, folder.with_name(folder.name + SUFFIX)):
        if (place / "events.bin").is_file() and (place / MANIFEST).is_file():
            return place
        if place.exists():
            return None
    return None


def read_parts(folder: Path) -> RunRecord:
    """The cut record of a run that was killed, read into memory from its parts.

    Raises:
        DataError: there are none, or they are damaged.

    """
    parts = Parts(folder)
    try:
        record = whole_record(
            parts.cut(), events_table(parts.events.all()), intervals_table(parts.intervals.all()), parts.lanes()
        )
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise DataError(
            f"holds no rows of a run record: {problem}", file=str(folder), remedy="it was damaged: remove it"
        ) from problem
    return replace(record, manifest=replace(record.manifest, events_hash=_hash_of(parts.events)))


def write_parts(
    folder: Path, out: Path, manifest: Manifest | None = None, lanes: Iterable[Lane] | None = None, *, cut: str = KILLED
) -> Manifest:
    """Turn parts into a record, whole or not at all, and remove them.

    Args:
        folder: of the parts; its recorder is closed, or its run was killed.
        out: of the record; it does not exist yet.
        manifest: of a run that came to its end; without it the record is cut at its last row.
        lanes: of such a run, closed.
        cut: why, without a manifest.

    Returns:
        the manifest that was written, with counts and hash.

    Raises:
        DataError: there are no parts.
        OutputError: the record could not be written; the parts are still there.

    """
    parts = Parts(folder)
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        ended = manifest or parts.cut(cut)
        _sink(parts.events, temporary / "events.parquet", events_table, EVENTS)
        recorded = temporary / "recorded"
        _sink(parts.intervals, recorded, intervals_table, RECORDED_INTERVALS)
        joined = parts.lanes() if lanes is None else lanes_table(lanes)
        made = derived(pl.scan_parquet(temporary / "events.parquet"), pl.scan_parquet(recorded), joined, ended)
        write_file(temporary / "intervals.parquet", partial(_sunk, made.intervals))
        recorded.unlink()
        tables = {"lanes": made.lanes, "samples": made.samples, "links": made.links, "counters": made.counters}
        for name, table in tables.items():
            write_file(temporary / f"{name}.parquet", partial(table.write_parquet, compression="zstd"))
        counts = {"events": parts.events.rows, "intervals": parts.intervals.rows}
        counts |= {name: table.height for name, table in tables.items()}
        said = replace(ended, counts=counts, events_hash=_hash_of(parts.events))
        write_file(temporary / MANIFEST, lambda file: file.write(_dumped(said)))
        temporary.rename(out)
        temporary = None
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise OutputError(
            f"{out}: the run record could not be written: {problem}; its parts are kept in {folder}\n"
            "  do:      free some space; until then the parts are read in the record's stead"
        ) from problem
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    return said


def _sink(part: _Part, path: Path, table: Callable[[NDArray[np.int64]], pl.DataFrame], schema: pl.Schema) -> None:
    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        return (table(piece) for piece in part.pieces())

    frame = register_io_source(source, schema=schema) if part.rows else pl.DataFrame(schema=schema).lazy()
    write_file(path, partial(_sunk, frame))


def _sunk(frame: pl.LazyFrame, file: IO[bytes]) -> None:
    frame.sink_parquet(file, compression="zstd", row_group_size=PIECE_ROWS)


def _hash_of(part: _Part) -> str:
    digest = bytes(16)
    for piece in part.pieces():  # of whole blocks, but for the last
        data = memoryview(np.ascontiguousarray(piece, dtype="<i8").tobytes())
        for start in range(0, len(data), 64 * BLOCK_EVENTS):
            digest = blake2b(digest + data[start : start + 64 * BLOCK_EVENTS], digest_size=16).digest()
    return digest.hex()


def free_place(folder: Path) -> Path:
    """`folder`, or with a number behind it the first that is taken by neither a record nor parts."""
    place, number = folder, 2
    while place.exists() or place.with_name(place.name + SUFFIX).exists():
        place, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return place


def finish_left(folder: Path) -> list[Path]:
    """Turn the parts that killed runs left in a run's folder into records; those that cannot be are left, with a warning."""
    done = []
    for parts in sorted(folder.glob(f"*{SUFFIX}")):
        out = parts.with_name(parts.name.removesuffix(SUFFIX))
        try:
            write_parts(parts, out)
            done.append(out)
        except (DataError, OutputError) as problem:
            LOG.warning("%s", problem)
    return done
