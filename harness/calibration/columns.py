"""Measured steps from a table: duration, kind, outcome, time and run of each, and which rows are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from harness.calibration import outcomes
from harness.calibration.readers import Table, open_table
from harness.calibration.times import check_instants, clock_jumps, seconds_of
from harness.calibration.units import check_one_unit
from harness.core.errors import ConfigError, DataError
from harness.costs.fit import LEAST_ROWS, find_atoms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray

    from harness.costs.laws import Floats

    Ints = NDArray[np.int64]

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in each unit of a duration column."""

RUN_COLUMNS = ("run_id", "run", "trajectory", "trajectory_id", "episode", "session", "session_id", "trace_id", "date", "day")
"""Columns that tell runs apart, the first that is there, when none is named."""

DATE_COLUMNS = ("date", "day", "timestamp", "time", "started_at", "start_time")
"""Columns that say when, for the source of a law."""

MOST_KINDS = 500
"""More kinds than this in one column are identifiers, not kinds."""


PLAUSIBLE_S = (1e-9, 1e9)
"""Shortest and longest duration that is believed."""

GRID = 3.0
"""Distinct durations whose median distance is less than this many of the smallest lie on the grid of a clock that rounds: equal
ones come about by chance, and are no repeats."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Which column holds what, of a file with one row a step.

    Attributes:
        duration: how long the step took, in `unit`.
        by: kind of step.
        unit: of the durations: `s`, `ms`, `us` or `ns`.
        outcome: how it ended; None when that is not in the file.
        time: when it began; None when that is not in the file.
        runs: what tells runs apart; None for the first of `RUN_COLUMNS` that is there.
        meanings: of values in the outcome column that are not understood by themselves.
        one_unit: all durations are in one unit, whatever it looks like.

    """

    duration: str
    by: str
    unit: str = "s"
    outcome: str | None = None
    time: str | None = None
    runs: str | None = None
    meanings: Mapping[str, str] | None = None
    one_unit: bool = False


@dataclass(frozen=True, slots=True)
class Measurements:
    """Steps in order of time within each run where times are known, else in the order of the file.

    Attributes:
        file: name of the file.
        dated: what is known of when they were measured.
        rows: rows in the file.
        duplicates: rows left out as repeats.
        kinds: names of the kinds, in the order of the file.
        codes: kind of each step, as a number of `kinds`.
        values_s: its duration in seconds.
        runs: number of its run, in the order of the file; None when the file tells none.
        at_s: when it began, in seconds from any origin; None when the file does not say.
        ended: how it ended, as in `outcomes`; None when the file does not say.
        remarks: what a reader should know.

    """

    file: str
    dated: str
    rows: int
    duplicates: int
    kinds: tuple[str, ...]
    codes: Ints
    values_s: Floats
    runs: Ints | None
    at_s: Floats | None
    ended: NDArray[np.int8] | None
    remarks: tuple[str, ...]


def read_steps(path: Path, columns: StepColumns) -> Measurements:
    """The steps in a file.

    Repeats are left out: rows of the same kind with the same duration and the same labels (vendor, host, …), as they come
    about when results are published again with a later run; where times are known, rows that are the same in every column.
    Values that pile up are time limits, not repeats.

    Raises:
        DataError: naming the file, the column, the lines and what to do.
        ConfigError: there is no such unit.

    """
    if columns.unit not in UNITS:
        raise ConfigError("is not a unit", field="--unit", value=columns.unit, allowed=", ".join(UNITS), remedy="choose one")
    table = open_table(path)
    named = [(columns.duration, "--duration"), (columns.by, "--by"), (columns.runs, "--runs")]
    named += [(columns.outcome, "--outcome"), (columns.time, "--time")]
    table.check_columns([(column, option) for column, option in named if column is not None])
    used = [(column, option) for column, option in named if column is not None and option != "--runs"]
    for i, (column, option) in enumerate(used):
        if column in [other for other, _ in used[:i]]:
            raise ConfigError("is named for two things", field=option, value=column, remedy="name another column")
    run_column = _run_column(table, columns)
    frame = _collected(table, columns, run_column)
    rows = frame["row"].to_numpy().astype(np.int64)
    values_s = _durations(table, columns, frame, rows)
    kinds, codes = _kinds(table, columns.by, frame, rows)
    runs = _numbered(frame["run"]) if run_column is not None else None
    if runs is not None and runs.max() == 0:
        runs = None
    keep = _first_seen(frame, codes, values_s, runs is not None)
    remarks = [
        *table.remarks,
        f"runs are told apart by column {run_column!r}" if runs is not None else "no runs are told apart",
    ]
    if keep.sum() < LEAST_ROWS:
        raise DataError(
            f"has fewer than {LEAST_ROWS} usable rows: {int(keep.sum())}", file=table.name,
            allowed=f"at least {LEAST_ROWS} rows, {LEAST_ROWS} of each kind that is to have a law of its own, 100 for a tail",
            remedy="measure more, or write a law by hand: duration = { law = \"constant\", value_s = … }",
        )  # fmt: skip
    if not columns.one_unit:
        check_one_unit(table, values_s, codes, runs, rows, kinds)
    at_s = None
    if columns.time is not None:
        at_s = frame["at"].to_numpy().astype(np.float64)
        check_instants(table, columns.time, at_s, rows)
        remarks += clock_jumps(table, at_s, runs, rows)
    ended = None
    if columns.outcome is not None:
        ended = outcomes.classed(table, columns.outcome, frame["outcome"], columns.meanings or {})
    order = np.flatnonzero(keep)
    if at_s is not None:
        order = order[np.argsort(at_s[order], kind="stable")]
    return Measurements(
        file=path.name,
        dated=dated(table, columns.time),
        rows=len(rows),
        duplicates=int((~keep).sum()),
        kinds=kinds,
        codes=codes[order],
        values_s=values_s[order],
        runs=runs[order] if runs is not None else None,
        at_s=at_s[order] if at_s is not None else None,
        ended=ended[order] if ended is not None else None,
        remarks=tuple(remarks),
    )


def _run_column(table: Table, columns: StepColumns) -> str | None:
    taken = (columns.by, columns.duration, columns.outcome, columns.time)
    free = [column for column in RUN_COLUMNS if column in table.columns and column not in taken]
    return columns.runs or (free[0] if free else None)


def number(table: Table, column: str) -> pl.Expr:
    """A column as Float64, null where it is no number; durations of Parquet files as seconds."""
    import polars as pl

    dtype = table.lazy.select(column).collect_schema()[column]
    if dtype == pl.Duration:
        return pl.col(column).cast(pl.Duration("ns")).dt.total_nanoseconds() / 1e9
    if dtype.is_nested():
        raise DataError("holds lists or records", file=table.name, field=column, allowed="one number a row")
    if dtype.is_numeric():
        return pl.col(column).cast(pl.Float64)
    return pl.col(column).cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)


def _collected(table: Table, columns: StepColumns, run_column: str | None) -> pl.DataFrame:
    import polars as pl

    text = pl.String
    wanted = [pl.col("row"), number(table, columns.duration).alias("value")]
    wanted.append(pl.col(columns.by).cast(text).str.strip_chars().cast(pl.Categorical).alias("kind"))
    if run_column is not None:
        wanted.append(pl.col(run_column).cast(text).cast(pl.Categorical).alias("run"))
    if columns.time is not None:
        wanted.append(seconds_of(table, columns.time, "--time", UNITS[columns.unit]).alias("at"))
    if columns.outcome is not None:
        wanted.append(pl.col(columns.outcome).cast(text).str.strip_chars().cast(pl.Categorical).alias("outcome"))
    labels = _labels(table, columns, run_column)
    if columns.time is not None:
        schema = table.lazy.collect_schema()
        flat = [column for column in table.columns if not schema[column].is_nested()]
        wanted.append(pl.struct(flat).hash(0).alias("key"))
    elif labels:
        wanted.append(pl.struct([columns.by, *labels, columns.duration]).hash(0).alias("key"))
    blank = pl.all_horizontal(pl.col(columns.duration).is_null(), pl.col(columns.by).is_null())
    named = [pl.col(column).is_null() for column in table.columns]
    return table.collect(table.lazy.filter(~(blank & pl.all_horizontal(named))).select(wanted))


def _labels(table: Table, columns: StepColumns, run_column: str | None) -> list[str]:
    """Columns of text that say what was measured, beside the kind, such as vendor or host."""
    import polars as pl

    taken = (columns.by, columns.duration, run_column, columns.outcome, columns.time, *DATE_COLUMNS)
    free = [column for column in table.columns if column not in taken]
    head = table.lazy.select(free).head(100).collect()
    found = []
    for column in free:
        if head[column].dtype == pl.String:
            texts = head[column].drop_nulls()
            if texts.cast(pl.Float64, strict=False).null_count():
                found.append(column)
    return found


def _durations(table: Table, columns: StepColumns, frame: pl.DataFrame, rows: Ints) -> Floats:
    """Durations in seconds, all above 0.

    Raises:
        DataError: with the first lines that are something else.

    """
    import polars as pl

    values: Floats = frame["value"].to_numpy().astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if not len(bad):
        is_duration = table.lazy.select(columns.duration).collect_schema()[columns.duration] == pl.Duration
        return _plausible(table, columns, values if is_duration else values * UNITS[columns.unit], rows)
    texts = table.collect(
        table.lazy.filter(pl.col("row").is_in(rows[bad[:1000]].tolist())).select(pl.col(columns.duration).cast(pl.String))
    ).to_series()
    first = texts[0]
    if first is None or not first.strip():
        problem, same = "is missing", np.isnan(values)
    elif np.isnan(values[bad[0]]) and first.strip().lower() not in ("nan", "-nan"):
        problem, same = "is not a number", np.isnan(values)
    elif not np.isfinite(values[bad[0]]):
        problem, same = "is not a finite number", ~np.isfinite(values)
    else:
        with np.errstate(invalid="ignore"):
            problem, same = "is not above 0", values <= 0
    places = np.flatnonzero(same)
    comma = first is not None and "," in first
    raise DataError(
        f"{problem} in {len(places)} of {len(values)} rows ({table.lines(rows[places])})",
        field=columns.duration, value=first, allowed="durations above 0" + (", with a decimal point" if comma else ""),
        remedy="write a decimal point, not a comma" if comma
        else "correct or remove these rows, or name another column with --duration",
        file=table.name, line=int(rows[places[0]]) + table.first_line,
    )  # fmt: skip


def _plausible(table: Table, columns: StepColumns, values_s: Floats, rows: Ints) -> Floats:
    """The durations, if each is one that something could take.

    Raises:
        DataError: with the first lines that are beyond `PLAUSIBLE_S`.

    """
    bad = np.flatnonzero((values_s < PLAUSIBLE_S[0]) | (values_s > PLAUSIBLE_S[1]))
    if len(bad):
        raise DataError(
            f"is no duration that a step can have in {len(bad)} of {len(values_s)} rows ({table.lines(rows[bad])})",
            field=columns.duration, value=float(values_s[bad[0]]), file=table.name, line=int(rows[bad[0]]) + table.first_line,
            allowed=f"{PLAUSIBLE_S[0]:g} s to {PLAUSIBLE_S[1]:g} s, thirty years", remedy="say the unit with --unit",
        )  # fmt: skip
    return values_s


def _kinds(table: Table, column: str, frame: pl.DataFrame, rows: Ints) -> tuple[tuple[str, ...], Ints]:
    import polars as pl

    texts = frame["kind"]
    empty = np.flatnonzero(texts.is_null().to_numpy() | (texts.cast(pl.String) == "").fill_null(value=False).to_numpy())
    if len(empty):
        raise DataError(
            f"is empty in {len(empty)} of {len(texts)} rows ({table.lines(rows[empty])})",
            field=column, allowed="the kind of step", remedy="fill it in, or name another column with --by",
            file=table.name, line=int(rows[empty[0]]) + table.first_line,
        )  # fmt: skip
    codes = _numbered(texts)
    first = np.unique(codes, return_index=True)[1]
    if len(first) > MOST_KINDS:
        raise DataError(
            f"holds {len(first):,} different kinds", field=column, file=table.name, allowed=f"up to {MOST_KINDS}",
            remedy="name a column of kinds with --by, not of identifiers",
        )  # fmt: skip
    return tuple(texts.gather(first).cast(pl.String).to_list()), codes


def _numbered(texts: pl.Series) -> Ints:
    """Numbers of distinct texts in the order in which they first come."""
    physical = texts.to_physical().fill_null((1 << 32) - 1).to_numpy()
    _, first, inverse = np.unique(physical, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbers: Ints = rank[inverse]
    return numbers


def _first_seen(frame: pl.DataFrame, codes: Ints, values_s: Floats, several_runs: bool) -> NDArray[np.bool_]:  # noqa: FBT001
    """Mask of the rows that repeat no earlier one. Without labels or times equal numbers prove nothing, and all are kept."""
    if "key" not in frame.columns or not (several_runs or "at" in frame.columns):
        return np.ones(len(codes), np.bool_)
    keep = frame["key"].is_first_distinct().to_numpy().copy()
    if "at" not in frame.columns:
        for code in np.unique(codes[~keep]):
            own = codes == code
            distinct = np.unique(values_s[own])
            steps = np.diff(distinct)
            if len(steps) and float(np.median(steps)) < GRID * float(steps.min()):
                keep |= own
            else:
                keep |= own & np.isin(values_s, list(find_atoms(values_s[own])))
    return keep


def dated(table: Table, time: str | None) -> str:
    """When it was measured: from a column of dates, else when the file was last written."""
    import polars as pl

    for column in (time, *DATE_COLUMNS):
        if column is None or column not in table.columns:
            continue
        text = pl.col(column).cast(pl.String).str.slice(0, 10)
        days = table.lazy.select(text.min().alias("first"), text.max().alias("last")).collect().row(0)
        if all(day is not None and len(day) == 10 and day[4] == day[7] == "-" for day in days):
            return days[0] if days[0] == days[1] else f"{days[0]} to {days[1]}"
    return f"file of {datetime.fromtimestamp(table.path.stat().st_mtime, UTC):%Y-%m-%d}"
