"""Requests to an inference engine: when they came, how long their prompts and answers were.

Arrivals become the law of gaps of `[workload.arrivals]`, a renewal process; where requests come in swarms that no law of single
gaps makes, that is said. Token counts become laws of counts, chosen as laws of durations are (`harness.costs.fit`): blocks of
consecutive requests are held out, never single ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.calibration.columns import UNITS, dated, number
from harness.calibration.readers import Table, open_table
from harness.calibration.times import check_instants, clock_jumps, seconds_of
from harness.core.errors import ConfigError, DataError
from harness.costs.estimate import TAIL_ROOM, empirical_levels, rounded, with_atoms
from harness.costs.fit import (
    FEW_ROWS,
    LEAST_ROWS,
    MEAN_SLACK,
    REPORTED,
    Fit,
    Held,
    Trial,
    choose,
    curve_levels,
    fit,
    folds,
    own_quantiles,
    trial,
)
from harness.costs.laws import Mixture
from harness.scenario.counts import MAX_COUNT, ConstantCount, EmpiricalCount, GeometricCount, LognormalCount

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray

    from harness.costs.laws import AnyLaw, Floats

AnyCount = ConstantCount | GeometricCount | LognormalCount | EmpiricalCount

SWARMS = 2.0
"""Requests come in swarms if their number in a window varies this many times as much as independent gaps make it."""

UNSTEADY = 0.25
"""How far quantiles of gaps in one part of the file may be from those of the rest before it is said."""

_MOST_CV = 10.0
_WINDOWS = 100
_MEAN_LEVELS = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Which column holds what, of a file with one row a request. At least one is named.

    Attributes:
        arrival: when the request came.
        input_tokens: length of its prompt.
        output_tokens: length of its answer.
        unit: of arrivals that are numbers which count from a start of their own.

    """

    arrival: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    unit: str = "s"


@dataclass(frozen=True, slots=True)
class CountFit:
    """A fitted law of counts and its error.

    Attributes:
        field: of the workload that it goes to.
        column: in the file.
        law: the law.
        rows: requests it was fitted to.
        mean: their mean.
        measured: their quantiles at `REPORTED`.
        fitted: the law's.
        held_out_error: mean relative error of each reported quantile on held-out rows; NaN where there were too few rows.
        unlike: the same error of the known rows' own quantiles.
        split: how rows were held out.
        chosen: name of the candidate taken.
        trials: all candidates.
        curve: (probability, measured, fitted), for a chart.
        remarks: what a reader should know.

    """

    field: str
    column: str
    law: AnyCount
    rows: int
    mean: float
    measured: tuple[float, ...]
    fitted: tuple[float, ...]
    held_out_error: tuple[float, ...]
    unlike: tuple[float, ...]
    split: str
    chosen: str
    trials: tuple[Trial, ...]
    curve: tuple[tuple[float, float, float], ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requests:
    """What was fitted to a file of requests.

    Attributes:
        file: its name.
        dated: what is known of when they came.
        rows: requests.
        gap: seconds from one to the next; None when arrivals were not asked for.
        counts: token counts.
        remarks: what a reader should know.

    """

    file: str
    dated: str
    rows: int
    gap: Fit | None
    counts: tuple[CountFit, ...]
    remarks: tuple[str, ...]


def read_requests(path: Path, columns: RequestColumns) -> Requests:
    """Laws of the requests in a file.

    Raises:
        DataError: naming the file, the column, the lines and what to do.
        ConfigError: there is no such unit.

    """
    if columns.unit not in UNITS:
        raise ConfigError("is not a unit", field="--unit", value=columns.unit, allowed=", ".join(UNITS), remedy="choose one")
    table = open_table(path)
    tokens = [
        (column, option, field)
        for column, option, field in (
            (columns.input_tokens, "--input-tokens", "prompt_tokens"),
            (columns.output_tokens, "--output-tokens", "response_tokens"),
        )
        if column is not None
    ]
    named = [(column, option) for column, option, _ in tokens]
    table.check_columns([*named, *([(columns.arrival, "--arrival")] if columns.arrival else [])])
    frame = _collected(table, columns, [column for column, _, _ in tokens])
    rows = frame["row"].to_numpy().astype(np.int64)
    if len(rows) < LEAST_ROWS:
        raise DataError(
            f"has fewer than {LEAST_ROWS} rows: {len(rows)}", file=table.name, allowed="at least 5 rows, 100 for a tail",
            remedy="measure more, or write a law by hand",
        )  # fmt: skip
    remarks = list(table.remarks)
    order = np.arange(len(rows))
    gap = None
    if columns.arrival is not None:
        at_s = frame["at"].to_numpy().astype(np.float64)
        check_instants(table, columns.arrival, at_s, rows)
        remarks += clock_jumps(table, at_s, None, rows)
        order = np.argsort(at_s, kind="stable")
        gap, said = _gaps(table, columns.arrival, at_s[order])
        remarks += said
    counts = []
    for i, (column, _, field) in enumerate(tokens):
        values = _whole(table, column, frame[f"count{i}"].to_numpy().astype(np.float64), rows)
        counts.append(fit_counts(field, column, values[order]))
    return Requests(path.name, dated(table, columns.arrival), len(rows), gap, tuple(counts), tuple(remarks))


def _collected(table: Table, columns: RequestColumns, tokens: list[str]) -> pl.DataFrame:
    import polars as pl

    wanted = [pl.col("row"), *(number(table, column).alias(f"count{i}") for i, column in enumerate(tokens))]
    if columns.arrival is not None:
        wanted.append(seconds_of(table, columns.arrival, "--arrival", UNITS[columns.unit]).alias("at"))
    used = [*tokens, *([columns.arrival] if columns.arrival else [])]
    return table.collect(table.lazy.filter(~pl.all_horizontal(pl.col(used).is_null())).select(wanted))


def _whole(table: Table, column: str, values: Floats, rows: NDArray[np.int64]) -> Floats:
    """Token counts: whole numbers above 0.

    Raises:
        DataError: with the first lines that are something else.

    """
    checks = (
        ("is missing or not a number", lambda: ~np.isfinite(values)),
        ("is not above 0", lambda: values <= 0),
        ("is not a whole number", lambda: values != np.round(values)),
        (f"is above {MAX_COUNT:,}", lambda: values > MAX_COUNT),
    )
    for problem, check in checks:
        bad = np.flatnonzero(check())
        if len(bad):
            value = float(values[bad[0]])
            raise DataError(
                f"{problem} in {len(bad)} of {len(values)} rows ({table.lines(rows[bad])})", file=table.name, field=column,
                line=int(rows[bad[0]]) + table.first_line, value=value if math.isfinite(value) else None,
                allowed=f"tokens, from 1 to {MAX_COUNT:,}",
                remedy="correct or remove these rows: refused requests have no tokens",
            )  # fmt: skip
    return values


def _gaps(table: Table, column: str, at_s: Floats) -> tuple[Fit, list[str]]:
    gaps = np.diff(at_s)
    positive = gaps[gaps > 0]
    if len(positive) < LEAST_ROWS:
        raise DataError(
            f"has only {len(positive)} arrivals at instants of their own", file=table.name, field=column,
            allowed=f"{LEAST_ROWS} and more", remedy="give the times with fractions of seconds",
        )  # fmt: skip
    found = fit(positive)
    together = 1 - len(positive) / len(gaps)
    remarks = []
    if together > 0:
        found = _together(found, gaps, together)
        remarks.append(f"{together:.1%} of requests come at the same instant as the one before")
    unlike = max((error for error in found.unlike if math.isfinite(error)), default=0.0)
    if unlike > UNSTEADY:
        remarks.append(
            f"traffic is not the same throughout: quantiles of gaps in one part differ from those of the rest by up to "
            f"{unlike:.0%} on average; one law holds for the whole, for no hour of it"
        )
    swarm = _swarms(at_s, gaps)
    if swarm > SWARMS:
        remarks.append(
            f"requests come in swarms: their number in a {_WINDOWS}th of the time varies {swarm:.2g} times as much as "
            "gaps that know nothing of each other make it; the law draws such gaps"
        )
    return found, remarks


def _together(found: Fit, gaps: Floats, share: float) -> Fit:
    """The fit of the gaps above 0, with those of 0 put in as an atom."""
    from dataclasses import replace

    law: AnyLaw = with_atoms(found.law, {0.0: rounded(share)})
    if isinstance(found.law, Mixture):
        kept = {atom.at_s: atom.weight * (1 - share) for atom in found.law.atoms}
        rest = found.law.model_copy(update={"atoms": ()}) if found.law.parts else None
        law = with_atoms(rest, {0.0: rounded(share)} | {at: rounded(w) for at, w in kept.items()})
    levels = curve_levels(len(gaps))
    return replace(
        found,
        law=law,
        rows=len(gaps),
        mean_s=float(gaps.mean()),
        measured_s=tuple(np.quantile(gaps, REPORTED).tolist()),
        fitted_s=tuple(law.quantile(p) for p in REPORTED),
        curve=tuple(zip(levels.tolist(), np.quantile(gaps, levels).tolist(), law.quantile(levels).tolist(), strict=True)),
    )


def _swarms(at_s: Floats, gaps: Floats) -> float:
    """Index of dispersion of counts over its limit for a renewal process, the squared coefficient of variation of a gap.

    Source: Cox, Lewis, "The Statistical Analysis of Series of Events", 1966, section 4.5.
    """
    spread = float(gaps.var()) / float(gaps.mean()) ** 2
    counts = np.histogram(at_s, bins=_WINDOWS)[0]
    if counts.mean() < 5 or spread == 0:
        return 0.0
    return float(counts.var(ddof=1) / counts.mean()) / max(spread, 1.0)


def fit_counts(field: str, column: str, values: Floats) -> CountFit:
    """A law of token counts.

    Args:
        field: of the workload that it is for.
        column: in the file, for messages.
        values: whole numbers above 0, in the order of the file or of time; at least `LEAST_ROWS`.

    """
    part, number_of_parts, split = folds(len(values), None)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    held = Held.all_of(ordered, part[order], number_of_parts)
    fitters = _candidates(ordered)
    trials = tuple(trial(name, _solver(fitter), held) for name, fitter in fitters.items())
    laws = {name: law for name, fitter in fitters.items() if (law := fitter(ordered)) is not None}
    mean = float(values.mean())
    keep = [name for name, law in laws.items() if abs(_mean(law) / mean - 1) <= MEAN_SLACK]
    name = choose([tried for tried in trials if tried.name in (keep or laws)])
    law = laws[name]
    levels = curve_levels(len(ordered))
    curve = zip(levels.tolist(), np.quantile(ordered, levels).tolist(), quantiles(law, levels).tolist(), strict=True)
    few = (f"{len(values)} rows: too few for a tail; nothing above {int(ordered[-1])} tokens is drawn",)
    return CountFit(
        field=field,
        column=column,
        law=law,
        rows=len(values),
        mean=mean,
        measured=tuple(np.quantile(ordered, REPORTED).tolist()),
        fitted=tuple(quantiles(law, np.array(REPORTED)).tolist()),
        held_out_error=next(tried.error for tried in trials if tried.name == name),
        unlike=trial("", own_quantiles, held).error,
        split=split,
        chosen=name,
        trials=trials,
        curve=tuple(curve),
        remarks=few if len(values) < FEW_ROWS else (),
    )


def _candidates(ordered: Floats) -> dict[str, Callable[[Floats], AnyCount | None]]:
    if ordered[0] == ordered[-1]:
        return {"constant": lambda known: ConstantCount(value=int(known[0]))}
    room = TAIL_ROOM if len(ordered) >= FEW_ROWS else 1.0
    found: dict[str, Callable[[Floats], AnyCount | None]] = {
        "geometric": lambda known: GeometricCount(mean=rounded(float(known.mean())), max=_top(known, room)),
        "lognormal": lambda known: _lognormal(known, room),
    }
    if len(ordered) >= FEW_ROWS // 5:
        found["empirical"] = _empirical
    return found


def _top(known: Floats, room: float) -> int:
    return min(math.ceil(room * float(known[-1])), MAX_COUNT)


def _lognormal(known: Floats, room: float) -> AnyCount | None:
    logs = np.log(known)
    variance = float(logs.var())
    cv = math.sqrt(math.expm1(variance))
    if not 0 < cv <= _MOST_CV:
        return None
    mean = math.exp(float(logs.mean()) + variance / 2)
    return LognormalCount(mean=rounded(mean), cv=rounded(cv), min=int(known[0]), max=_top(known, room))


def _empirical(known: Floats) -> AnyCount:
    levels = empirical_levels(len(known))
    values = np.maximum.accumulate(np.rint(np.quantile(known, levels)).astype(np.int64))
    return EmpiricalCount(probabilities=levels, values=tuple(values.tolist()))


def _solver(fitter: Callable[[Floats], AnyCount | None]) -> Callable[[Floats], Callable[[Floats], Floats] | None]:
    def solve(known: Floats) -> Callable[[Floats], Floats] | None:
        law = fitter(known)
        return None if law is None else lambda levels: quantiles(law, levels)

    return solve


def quantiles(law: AnyCount, levels: Floats) -> Floats:
    """Counts not exceeded with these probabilities."""
    found: Any
    match law:
        case ConstantCount():
            found = np.full(len(levels), float(law.value))
        case GeometricCount():
            more = math.log1p(-1 / law.mean) if law.mean > 1 else -math.inf
            found = np.clip(np.ceil(np.log1p(-levels) / more), 1, law.max)
        case LognormalCount():
            variance = math.log1p(law.cv**2)
            normal = NormalDist(math.log(law.mean) - variance / 2, math.sqrt(variance))
            logs = np.array([normal.inv_cdf(p) for p in levels.tolist()])
            found = np.clip(np.rint(np.exp(logs)), law.min, law.max)
        case _:
            found = np.rint(np.interp(levels, law.probabilities, law.values))
    return np.asarray(found, np.float64)


def _mean(law: AnyCount) -> float:
    return float(quantiles(law, _MEAN_LEVELS).mean())
