"""Laws, faults and time limits of each kind of step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.calibration.outcomes import FAILURE, HANG, INFRA, LIMIT
from harness.core.errors import DataError
from harness.costs.fit import ATOM_CONTRAST, ATOM_ROWS, ATOM_SHARE, LEAST_ROWS, Fit, fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.calibration.columns import Measurements
    from harness.costs.laws import Floats

    Mask = NDArray[np.bool_]

POOLED = "other"
"""Name of the tool that stands for all kinds of steps with too few rows of their own."""

HEAP_WIDTH = 0.005
"""How far calls that were ended at one time limit lie apart, as a share of it: what a kill takes to come through."""

LIMIT_SPREAD = 0.02
"""Rows that the file says were ended at a limit belong to one limit if they lie no further apart than this share of it."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How steps of one kind end that do not end well, as shares of all of them outside outages.

    Attributes:
        failure: failed in themselves.
        infra_failure: what they ran on failed.
        hang: never returned.
        limited: were ended at a time limit; part of the law of durations.

    """

    failure: float = 0.0
    infra_failure: float = 0.0
    hang: float = 0.0
    limited: float = 0.0


@dataclass(frozen=True, slots=True)
class StepFit:
    """One kind of step.

    Attributes:
        name: as in the file.
        share: of all steps.
        fit: law, quantiles and errors.
        pooled: the kinds that it stands for, when there was too little of each.
        faults: how it fails; None when the file does not tell.
        time_limit_s: where calls were ended, in seconds; None when the file does not say that they were.

    """

    name: str
    share: float
    fit: Fit
    pooled: tuple[str, ...] = ()
    faults: Faults | None = None
    time_limit_s: float | None = None


def fit_steps(measured: Measurements, in_outages: Mask | None = None) -> list[StepFit]:
    """A fit for every kind of step; kinds with fewer than `LEAST_ROWS` rows are pooled.

    Args:
        measured: the steps.
        in_outages: which failed in an outage and say nothing of how the kind behaves by itself; None for none.

    Raises:
        DataError: no step has a duration.

    """
    usable = np.ones(len(measured.codes), np.bool_) if in_outages is None else ~in_outages
    timed = usable if measured.ended is None else usable & (measured.ended != HANG)
    counts = np.bincount(measured.codes[timed], minlength=len(measured.kinds))
    scarce = [code for code, count in enumerate(counts.tolist()) if count < LEAST_ROWS]
    steps = [
        _one(name, measured, measured.codes == code, usable, timed)
        for code, name in enumerate(measured.kinds)
        if code not in scarce
    ]
    if scarce:
        kinds = tuple(measured.kinds[code] for code in scarce)
        mask = np.isin(measured.codes, scarce)
        name = POOLED if POOLED not in measured.kinds else POOLED + "_kinds"
        if (mask & timed).sum() >= 2:
            steps.append(_pooled(kinds[0] if len(kinds) == 1 else name, measured, mask, usable, timed, kinds))
    if not steps:
        raise DataError(
            "holds no step that has a duration: all hang", file=measured.file, allowed="steps that return",
            remedy="say what the outcomes mean with --outcome-is",
        )  # fmt: skip
    total = sum(step.share for step in steps)
    return [replace(step, share=step.share / total) for step in steps]


def _pooled(name: str, measured: Measurements, mask: Mask, usable: Mask, timed: Mask, kinds: tuple[str, ...]) -> StepFit:
    found = _one(name, measured, mask, usable, timed)
    rows = found.fit.rows
    each = f"fewer than {LEAST_ROWS} rows each" if len(kinds) > 1 else f"only {rows} row{'s' if rows > 1 else ''}"
    shown = ", ".join(kinds[:6]) + (f" and {len(kinds) - 6} more" if len(kinds) > 6 else "")
    remark = f"{shown}: {each}" + (", fitted together" if len(kinds) > 1 else "")
    return replace(found, fit=replace(found.fit, remarks=(*found.fit.remarks, remark)), pooled=kinds)


def _one(name: str, measured: Measurements, mask: Mask, usable: Mask, timed: Mask) -> StepFit:
    own = mask & timed
    values = measured.values_s[own]
    ended = measured.ended
    limit, remarks = None, list[str]()
    if ended is not None:
        values, limit, remarks = _at_limits(values, ended[own] == LIMIT)
    if limit is None:
        values, heap = _heaped(values)
        remarks += [heap] if heap else []
    found = fit(values, measured.runs[own] if measured.runs is not None else None)
    found = replace(found, remarks=(*found.remarks, *remarks))
    faults = None
    if ended is not None:
        seen = ended[mask & usable]
        failure, infra, hang, limited = (float((seen == one).mean()) for one in (FAILURE, INFRA, HANG, LIMIT))
        faults = Faults(failure, infra, hang, limited)
    return StepFit(name, float(mask.sum()) / len(mask), found, faults=faults, time_limit_s=limit)


def _at_limits(values_s: Floats, limited: Mask) -> tuple[Floats, float | None, list[str]]:
    """The durations with those that were ended at one limit put exactly there; the limit; what to say."""
    if not limited.any():
        return values_s, None, []
    ends = values_s[limited]
    middle = float(np.median(ends))
    near = np.abs(ends / middle - 1) <= LIMIT_SPREAD
    if near.mean() < 0.9:
        return values_s, None, [f"{len(ends)} were ended at time limits that differ: they count as long as they took"]
    limit = float(f"{ends[near].min():.4g}")
    # What the file says went on beyond the limit cannot be: the simulated limit ends it too.
    beyond = int((values_s > limit * (1 + LIMIT_SPREAD)).sum())
    said = [f"{len(ends)} were ended at a time limit of {limit:g} s"] + ([f"{beyond} took longer than it"] if beyond else [])
    return np.where(limited, limit, values_s), None if beyond else limit, said


def _heaped(values_s: Floats) -> tuple[Floats, str]:
    """The durations with a heap at their upper end put on one value: a limit whose kills come through a little apart."""
    top = float(values_s.max())
    heap = values_s >= top * (1 - HEAP_WIDTH)
    count = int(heap.sum())
    if count < max(ATOM_ROWS, ATOM_SHARE * len(values_s)) or count == len(values_s):
        return values_s, ""
    distinct = len(np.unique(values_s[heap]))
    before = int(((values_s >= top * (1 - 6 * HEAP_WIDTH)) & ~heap).sum()) / 5
    if distinct == 1 or count < ATOM_CONTRAST * max(before, 1.0):
        return values_s, ""
    at = float(f"{np.quantile(values_s[heap], 0.1):.4g}")  # not the least: a few calls ended there by themselves
    return np.where(heap, at, values_s), f"{count} rows end within {HEAP_WIDTH:.1%} of {at:g} s and none later: a time limit"
