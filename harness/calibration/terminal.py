"""What a person and a program see of a calibration."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.costs.fit import REPORTED, Fit
from harness.tuning.wording import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from harness.calibration.calibrate import Calibration
    from harness.calibration.correlation import Correlation
    from harness.calibration.requests import CountFit
    from harness.calibration.steps import StepFit
    from harness.costs.fit import Trial

LEGEND = (
    "error: p50, p90 and p99 of the law against rows that the fit did not see, mean of the parts held out (? too few rows); "
    "parts: the same of the other parts' own rows, which no law can do better than by luck"
)


def print_calibration(out: Console, done: Calibration) -> None:
    """What `calibrate` fitted, how well, and what to do next."""
    repeats = f" ({done.duplicates} repeated rows left out)" if done.duplicates else ""
    out.print(f"[bold]{escape(str(done.out))}[/bold] written, from {done.rows:,} rows of {escape(str(done.source))}{repeats}.")
    out.print()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, widest in SHORT_HEADER:
        table.add_column(name, max_width=widest, overflow="fold", justify="left" if widest else "right")
    for row in _short_rows(done):
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
    units = [*(["times in seconds"] if done.steps or done.gap else []), *(["lengths in tokens"] if done.counts else [])]
    out.print(Text(SHORT_LEGEND.format(units=", ".join(units)), style="dim"))
    for line in endings(done):
        out.print(Text(line))
    for remark in remarks(done):
        out.print(Text(f"! {remark}", style="yellow"))
    out.print()
    out.print(Text(f"Next: harness tune {shlex.quote(str(done.out))}"))


SHORT_HEADER = (
    ("", 22),
    ("law", 14),
    ("rows", None),
    ("p50", None),
    ("p90", None),
    ("p99", None),
    ("error", None),
    ("parts", None),
)
SHORT_LEGEND = (
    "{units}. error: of the worst of p50, p90 and p99 on rows that the fit did not see; "
    "parts: the same of the other parts' own rows, which no law can do better than by luck"
)


def _short_rows(done: Calibration) -> Iterator[tuple[str, ...]]:
    for name, fit, _, quantiles in _fits(done):
        shown = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in quantiles)
        yield (name, fit.chosen, f"{fit.rows:,}", *shown, _worst(fit.held_out_error), _worst(fit.unlike))


def _worst(found: Sequence[float]) -> str:
    finite = [error for error in found if math.isfinite(error)]
    return percent(max(finite)) if finite else "?"


HEADER = ("what", "law", "rows", "mean", *(f"p{100 * p:g}" for p in REPORTED), "error", "parts")


def rows(done: Calibration) -> Iterator[tuple[str, ...]]:
    """One line for each law, as text."""
    for name, fit, mean, quantiles in _fits(done):
        unit = " s" if isinstance(fit, Fit) else ""
        shown = (f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}" for value in (mean, *quantiles))
        yield (name, fit.chosen, f"{fit.rows:,}", *shown, errors(fit.held_out_error), errors(fit.unlike))


def _fits(done: Calibration) -> Iterator[tuple[str, Fit | CountFit, float, tuple[float, ...]]]:
    """(name, fit, mean, quantiles measured) of all laws."""
    for step in done.steps:
        yield step.name, step.fit, step.fit.mean_s, step.fit.measured_s
    if done.gap is not None:
        yield "gap between arrivals", done.gap, done.gap.mean_s, done.gap.measured_s
    for count in done.counts:
        yield count.column, count, count.mean, count.measured


def answer(done: Calibration) -> str:
    """In one sentence: how much was fitted, and where it is furthest off."""
    fits = list(_fits(done))
    worst, name = max((max((e for e in fit.held_out_error if math.isfinite(e)), default=0.0), name) for name, fit, _, _ in fits)
    laws = f"{len(fits)} law{'s' if len(fits) > 1 else ''} from {done.rows:,} rows"
    return f"{laws}; on rows that no fit has seen {name} is furthest off, by {percent(worst)} at one of p50, p90 and p99."


def errors(found: Sequence[float]) -> str:
    """`3 % 8 % 20 %`, with question marks where no part could tell."""
    return " ".join(percent(error) if math.isfinite(error) else "?" for error in found)


def endings(done: Calibration) -> list[str]:
    """How the steps of each kind that do not end well end, where the file says so."""
    found = []
    for step in done.steps:
        if step.faults is not None:
            rates = {WORDS[name]: getattr(step.faults, name) for name in step.faults.__slots__}
            said = ", ".join(f"{percent(rate)} {words}" for words, rate in rates.items() if rate > 0)
            apart = " outside outages" if done.outages is not None and done.outages.outage is not None else ""
            found.append(f"{step.name}: {said or 'all end well'}{apart}")
    return found


WORDS = {
    "failure": "fail",
    "infra_failure": "fail by what they run on",
    "hang": "hang",
    "limited": "end at a time limit",
}


def remarks(done: Calibration) -> list[str]:
    """Everything that a reader should know, those of single laws first."""
    return [
        *(f"{step.name}: {remark}" for step in done.steps for remark in step.fit.remarks),
        *(f"gap between arrivals: {remark}" for remark in (done.gap.remarks if done.gap is not None else ())),
        *(f"{count.column}: {remark}" for count in done.counts for remark in count.remarks),
        *done.remarks,
    ]


def calibration_json(done: Calibration) -> dict[str, Any]:
    """The same as plain data."""
    head = {"schema": 2, "kind": "calibrate", "out": str(done.out), "source": str(done.source), "dated": done.dated}
    return head | {
        "rows": done.rows,
        "duplicates": done.duplicates,
        "steps": [_step(step) for step in done.steps],
        "gap": None if done.gap is None else _fit(done.gap),
        "counts": [_count(count) for count in done.counts],
        "outages": None if done.outages is None else _outages(done.outages),
        "remarks": remarks(done),
    }


def _step(step: StepFit) -> dict[str, Any]:
    faults = step.faults
    return {
        "name": step.name,
        "share": step.share,
        "pooled": list(step.pooled),
        "faults": None if faults is None else {name: getattr(faults, name) for name in faults.__slots__},
        "time_limit_s": step.time_limit_s,
    } | _fit(step.fit)


def _fit(fit: Fit) -> dict[str, Any]:
    return {
        "rows": fit.rows,
        "mean_s": fit.mean_s,
        "quantiles": list(REPORTED),
        "measured_s": list(fit.measured_s),
        "fitted_s": list(fit.fitted_s),
        **_errors(fit),
        "law": fit.law.model_dump(mode="json"),
    }


def _count(fit: CountFit) -> dict[str, Any]:
    return {
        "field": fit.field,
        "column": fit.column,
        "rows": fit.rows,
        "mean": fit.mean,
        "quantiles": list(REPORTED),
        "measured": list(fit.measured),
        "fitted": list(fit.fitted),
        **_errors(fit),
        "law": fit.law.model_dump(mode="json"),
    }


def _errors(fit: Fit | CountFit) -> dict[str, Any]:
    return {
        "held_out_error": _finite(fit.held_out_error),
        "unlike": _finite(fit.unlike),
        "split": fit.split,
        "chosen": fit.chosen,
        "tried": {tried.name: tried.loss if math.isfinite(tried.loss) else None for tried in _named(fit.trials)},
    }


def _named(trials: Sequence[Trial]) -> Sequence[Trial]:
    return [tried for tried in trials if tried.name]


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _outages(found: Correlation) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "words": found.words,
        "pairs": found.pairs,
        "expected": found.expected,
        "z": found.z,
        "intervals_s": [list(one) for one in found.outages],
        "outage": None if found.outage is None else found.outage.model_dump(mode="json", exclude_none=True),
    }
