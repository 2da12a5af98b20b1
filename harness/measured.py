"""Read measured durations from a CSV, and say which rows are wrong.

Everything is read as text first, so that a bad number can be named with its line. Polars is imported inside: simulation
never comes here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from harness.core.errors import ConfigError, DataError
from harness.costs.fit import find_atoms

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray

    from harness.costs.laws import Floats

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in each unit of a duration column."""

RUN_COLUMNS = ("run_id", "run", "trajectory", "trajectory_id", "episode", "session", "session_id", "trace_id", "date", "day")
"""Columns that tell runs apart, the first that is there, when none is named."""

DATE_COLUMNS = ("date", "day", "timestamp", "time", "started_at", "start_time")
"""Columns that say when, for the source of a law."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Measurements:
    """Durations of steps.

    Attributes:
        file: name of the file.
        dated: what is known of when they were measured.
        rows: rows in the file.
        duplicates: rows left out as repeats.
        kinds: kind of each step that is kept.
        values_s: its duration in seconds.
        runs: number of its run, in the order of the file; None when the file tells none.
        remarks: what a reader should know.

    """

    file: str
    dated: str
    rows: int
    duplicates: int
    kinds: list[str]
    values_s: Floats
    runs: NDArray[np.int64] | None
    remarks: tuple[str, ...]


def read_measurements(path: Path, *, duration: str, by: str, unit: str = "s", runs: str | None = None) -> Measurements:
    """The durations in a CSV.

    Repeats are left out: rows of the same kind with the same duration and the same labels (vendor, host, …), as they come
    about when results are published again with a later run. Values that pile up are time limits, not repeats.

    Raises:
        DataError: naming the file, the column, the lines and what to do.

    """
    if unit not in UNITS:
        raise ConfigError("is not a unit", field="--unit", value=unit, allowed=", ".join(UNITS), remedy="choose one")
    table = _read(path)
    name = str(path)
    for column, option in ((duration, "--duration"), (by, "--by"), *(((runs, "--runs"),) if runs else ())):
        if column not in table.columns:
            raise _missing(column, option, table.columns, name)
    values_s = _numbers(table[duration].to_list(), duration, name) * UNITS[unit]
    kinds = _kinds(table[by].to_list(), by, name)
    free = [column for column in RUN_COLUMNS if column in table.columns and column not in (by, duration)]
    run_column = runs or (free[0] if free else None)
    numbers = _numbered(table[run_column].to_list()) if run_column is not None else None
    if numbers is not None and numbers.max() == 0:
        numbers = None
    keep = _first_seen(table, kinds, values_s, numbers, by, run_column)
    remarks = [f"runs are told apart by column {run_column!r}"] if numbers is not None else ["no runs are told apart"]
    if keep.sum() < 2:
        raise DataError("has fewer than 2 usable rows", file=name, allowed="at least 8 rows a kind", remedy="measure more")
    return Measurements(
        file=path.name,
        dated=_dated(path, table),
        rows=len(kinds),
        duplicates=int((~keep).sum()),
        kinds=[kind for kind, kept in zip(kinds, keep.tolist(), strict=True) if kept],
        values_s=values_s[keep],
        runs=numbers[keep] if numbers is not None else None,
        remarks=tuple(remarks),
    )


def _read(path: Path) -> pl.DataFrame:
    import polars as pl

    name = str(path)
    try:
        if path.is_dir():
            raise DataError("is a folder, not a CSV file", file=name, remedy="name a file in it")
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError("there is no such file", file=name, remedy="check the path") from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", file=name, remedy="check its permissions") from None
    if not data.strip():
        raise DataError("is empty", file=name, allowed="a CSV with a header line", remedy="export it again")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DataError("is a binary file", file=name, allowed="CSV in UTF-8", remedy="unpack it, or export it as CSV")
    try:
        table = pl.read_csv(io.BytesIO(text.encode()), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        first = str(error).strip().split("\n")[0]
        raise DataError(f"is not a well-formed CSV: {first}", file=name, remedy="check quotes and commas") from None
    if table.height == 0:
        raise DataError("has a header and no rows", file=name, allowed="one row a step", remedy="export it again")
    return table


def _missing(column: str, option: str, columns: list[str], file: str) -> DataError:
    import difflib

    close = difflib.get_close_matches(column, columns, n=1)
    remedy = f"did you mean {option} {close[0]}?" if close else f"name one of them with {option}"
    allowed = ", ".join(columns)
    return DataError("there is no such column", field=option, value=column, allowed=allowed, remedy=remedy, file=file)


def _numbers(texts: list[str | None], column: str, file: str) -> Floats:
    """The column as numbers above 0.

    Raises:
        DataError: with the first lines that are something else.

    """
    values = np.empty(len(texts))
    problems: dict[str, list[tuple[int, str | None]]] = {}
    for i, text in enumerate(texts):
        try:
            value = float(text) if text is not None else np.nan
        except ValueError:
            problems.setdefault("is not a number", []).append((i, text))
            continue
        values[i] = value
        if not np.isfinite(value):
            problems.setdefault("is missing" if text is None else "is not a finite number", []).append((i, text))
        elif value <= 0:
            problems.setdefault("is not above 0", []).append((i, text))
    for problem, places in problems.items():
        lines = ", ".join(str(i + 2) for i, _ in places[:_SHOWN]) + (", …" if len(places) > _SHOWN else "")
        raise DataError(
            f"{problem} in {len(places)} of {len(texts)} rows (lines {lines})",
            field=column,
            value=places[0][1],
            allowed="durations above 0",
            remedy="correct or remove these rows, or name another column with --duration",
            file=file,
            line=places[0][0] + 2,
        )
    return values


def _kinds(texts: list[str | None], column: str, file: str) -> list[str]:
    empty = [i for i, text in enumerate(texts) if text is None or not text.strip()]
    if empty:
        raise DataError(
            f"is empty in {len(empty)} of {len(texts)} rows",
            field=column,
            allowed="the kind of step",
            remedy="fill it in, or name another column with --by",
            file=file,
            line=empty[0] + 2,
        )
    return [text.strip() for text in texts if text is not None]


def _numbered(texts: list[str | None]) -> NDArray[np.int64]:
    """Numbers of distinct texts in the order in which they first come."""
    seen: dict[str | None, int] = {}
    return np.array([seen.setdefault(text, len(seen)) for text in texts], np.int64)


def _first_seen(
    table: pl.DataFrame, kinds: list[str], values_s: Floats, runs: NDArray[np.int64] | None, by: str, run_column: str | None
) -> NDArray[np.bool_]:
    """Mask of the rows that repeat no earlier one. Without labels equal numbers prove nothing, and all rows are kept."""
    keep = np.ones(len(kinds), np.bool_)
    labels = [column for column in table.columns if column not in (by, run_column, *DATE_COLUMNS) and _is_label(table[column])]
    if runs is None or not labels:
        return keep
    others = zip(*(table[name].to_list() for name in labels), strict=True)
    column = np.array(kinds)
    piles = {kind: find_atoms(values_s[column == kind]) for kind in dict.fromkeys(kinds)}
    seen = set()
    for i, row in enumerate(zip(kinds, values_s.tolist(), others, strict=True)):
        keep[i] = row not in seen or row[1] in piles[row[0]]
        seen.add(row)
    return keep


def _is_label(column: pl.Series) -> bool:
    """Whether a column holds text rather than numbers."""
    for text in column.head(100).to_list():
        if text:
            try:
                float(text)
            except ValueError:
                return True
    return False


def _dated(path: Path, table: pl.DataFrame) -> str:
    """When it was measured: from a column of dates, else when the file was last written."""
    for column in DATE_COLUMNS:
        if column in table.columns and _is_label(table[column]):
            days = sorted({text[:10] for text in table[column].to_list() if text})
            return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"file of {datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}"
