"""Columns of instants: what they are written as, and where the clock jumped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.errors import DataError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from harness.calibration.readers import Table

FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f%z", "%Y-%m-%d %H:%M", "%Y-%m-%d")
"""Ways to write an instant that are understood, `T` instead of the blank and `Z` for UTC included."""

EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e8, 1.0))
"""Numbers from here on are times since 1970 in this many seconds: the units lie a thousand apart, the years 1973 to 5138 do
not overlap. Smaller numbers count from a start of their own, in the unit of the durations."""

BACK_SHARE = 0.01
"""A file whose clock goes back between more than this share of neighbours is simply not in order of time."""

FORWARD_S = 86_400.0
FORWARD_TIMES = 1000.0
"""A gap of more than a day, and a thousand times the median one, is said."""

_SAMPLE = 200


def seconds_of(table: Table, column: str, option: str, unit_s: float) -> pl.Expr:
    """A column of instants as seconds (Float64), null where it cannot be read.

    Raises:
        DataError: no known way to write an instant fits its first rows.

    """
    import polars as pl

    dtype = table.lazy.select(column).collect_schema()[column]
    raw = pl.col(column)
    if dtype.is_temporal():
        return raw.cast(pl.Datetime("ns")).dt.epoch("ns") / 1e9
    if dtype.is_numeric():
        return raw.cast(pl.Float64) * _scale(table.lazy.select(raw.cast(pl.Float64)).head(_SAMPLE), unit_s)
    text = raw.cast(pl.String).str.strip_chars()
    number = text.cast(pl.Float64, strict=False)
    sample = table.lazy.filter(raw.is_not_null()).head(_SAMPLE).select(text.alias("text"), number.alias("number")).collect()
    if sample.height and sample["number"].null_count() <= sample.height // 2:
        return number * _scale(sample.lazy().select("number"), unit_s)
    plain = text.str.replace("T", " ", literal=True).str.replace(r"(Z| UTC)$", "+00:00")
    best = ""
    for form in FORMATS:
        parsed = sample.select(_parsed(pl.col("text").str.replace("T", " ", literal=True), form))["text"]
        if parsed.null_count() <= sample.height // 2:
            best = form
            break
    if not best:
        raise DataError(
            "does not hold times that can be read", file=table.name, field=column,
            value=sample["text"][0] if sample.height else None,
            allowed="2026-01-31 14:25:01.5, with T or blank, with or without an offset; or seconds since 1970",
            remedy=f"name another column with {option}, or write the times so",
        )  # fmt: skip
    return _parsed(plain, best)


def _parsed(text: pl.Expr, form: str) -> pl.Expr:
    zoned = text.str.replace(r"(Z| UTC)$", "+00:00") if form.endswith("%z") else text
    return zoned.str.to_datetime(form, strict=False, time_unit="ns").dt.epoch("ns") / 1e9


def _scale(sample: pl.LazyFrame, unit_s: float) -> float:
    values = sample.collect().to_series().drop_nulls().to_numpy()
    middle = float(np.median(np.abs(values))) if len(values) else 0.0
    return next((scale for least, scale in EPOCHS if middle >= least), unit_s)


def check_instants(table: Table, column: str, at_s: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
    """Refuse instants that could not be read.

    Raises:
        DataError: with the first lines.

    """
    bad = np.flatnonzero(~np.isfinite(at_s))
    if len(bad):
        raise DataError(
            f"is missing or not a time in {len(bad)} of {len(at_s)} rows ({table.lines(rows[bad])})",
            file=table.name, field=column, line=int(rows[bad[0]]) + table.first_line,
            allowed="a time in every row, all written in one way", remedy="correct or remove these rows",
        )  # fmt: skip


def clock_jumps(table: Table, at_s: NDArray[np.float64], runs: NDArray[np.int64] | None, rows: Any) -> tuple[str, ...]:
    """What is odd about the order of the times, in words.

    Args:
        table: the file.
        at_s: instants in the order of the file, seconds.
        runs: number of the run of each; None when it is not known.
        rows: number of the row of each.

    """
    order = np.argsort(runs, kind="stable") if runs is not None else np.arange(len(at_s))
    gap = np.diff(at_s[order])
    same = np.diff(runs[order]) == 0 if runs is not None else np.ones(len(gap), np.bool_)
    remarks = []
    back = np.flatnonzero(same & (gap < 0))
    if 0 < len(back) <= max(BACK_SHARE * len(at_s), 1):
        far = float(-gap[back].min())
        remarks.append(
            f"the clock goes back in {len(back)} place{'s' if len(back) > 1 else ''} "
            f"({table.lines(np.sort(rows[order][back + 1]))}), by up to {far:.4g} s: rows are taken in order of time"
        )
    elif len(back):
        remarks.append("rows are not in order of time; they were sorted")
    steady = gap[same & (gap > 0)]
    if len(steady) >= 10:
        limit = max(FORWARD_S, FORWARD_TIMES * float(np.median(steady)))
        jumps = np.flatnonzero(same & (gap > limit))
        if len(jumps):
            remarks.append(
                f"the clock jumps ahead by {float(gap[jumps].max()) / 86_400:.3g} days or less in {len(jumps)} place"
                f"{'s' if len(jumps) > 1 else ''} ({table.lines(np.sort(rows[order][jumps + 1]))}): pauses, or a clock set anew"
            )
    return tuple(remarks)
