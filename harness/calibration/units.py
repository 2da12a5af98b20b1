"""Milliseconds among seconds: asked about, never guessed.

Two programs that write one column in different units leave durations in two heaps a thousand times apart with nothing
between. Work of two sorts can do the same (an answer from a cache, a build), so it is for the user to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.calibration.readers import Table
    from harness.costs.laws import Floats

FACTOR = (400.0, 2500.0)
"""Ratio of the medians of two heaps that looks like a unit: a thousand, give or take what the work itself differs by."""

GAP = 5.0
"""Least ratio across the gap between two heaps of single durations. Heavy tails are denser than that up to their last rows."""

RUN_GAP = 100.0
"""The same for the medians of runs, which heavy tails do not spread."""

APART = 4.5
"""The same for heaps that touch: distance of their means in spreads, of logarithms. One heap cut in two has 3.5 at most when
it is flat and 2.7 when it is bell-shaped; heavy tails have less."""

ALIKE = 1.5
"""Two heaps of one work in two units are about as wide as each other: at most this ratio of their spreads."""

FEWEST = 100
"""Rows below which heaps that touch are not told from luck."""

LEAST_SHARE = 0.02
LEAST_HEAP = 3


def check_one_unit(
    table: Table,
    values_s: Floats,
    codes: NDArray[np.int64],
    runs: NDArray[np.int64] | None,
    rows: NDArray[np.int64],
    kinds: Sequence[str],
) -> None:
    """Ask when durations of one kind, or the medians of its runs, fall into two heaps a thousand times apart.

    Raises:
        DataError: names the kind, both heaps and lines of the smaller one.

    """
    order = np.lexsort((values_s, codes))
    bounds = np.searchsorted(codes[order], np.arange(len(kinds) + 1))
    for code, kind in enumerate(kinds):
        own = order[bounds[code] : bounds[code + 1]]
        ordered = values_s[own]
        split = _split(ordered, GAP, max(LEAST_HEAP, LEAST_SHARE * len(ordered))) or _touching(ordered)
        if split:
            low, high = own[:split], own[split:]
            _ask(table, kind, values_s, low, high, rows, "")
        if runs is not None:
            by_run = _run_medians(ordered, runs[own])
            if by_run is not None:
                numbers, medians = by_run
                split = _split(medians, RUN_GAP, 1)
                if split:
                    low = own[np.isin(runs[own], numbers[:split])]
                    high = own[np.isin(runs[own], numbers[split:])]
                    _ask(table, kind, values_s, low, high, rows, f"{split} and {len(numbers) - split} runs: ")


def _split(ordered: Floats, gap: float, least: float) -> int:
    """Where a sorted sample falls into two heaps of suspicious distance; 0 where it does not."""
    if len(ordered) < 2 * least or len(ordered) < 2:
        return 0
    jumps = np.diff(np.log(ordered))
    at = int(jumps.argmax()) + 1
    if jumps[at - 1] < np.log(gap) or min(at, len(ordered) - at) < least:
        return 0
    ratio = float(np.median(ordered[at:]) / np.median(ordered[:at]))
    return at if FACTOR[0] <= ratio <= FACTOR[1] else 0


def _touching(ordered: Floats) -> int:
    """Where a sorted sample falls into two equally wide heaps of suspicious distance that touch; 0 where it does not."""
    count = len(ordered)
    if count < FEWEST:
        return 0
    logs = np.log(ordered)
    left = np.arange(1, count)
    sums = np.cumsum(logs)
    distance = (sums[-1] - sums[:-1]) / (count - left) - sums[:-1] / left
    at = int((left * (count - left) * distance**2).argmax()) + 1  # of all cuts, the one that leaves the least variance within
    if min(at, count - at) < LEAST_SHARE * count:
        return 0
    narrow, wide = sorted((float(logs[:at].std()), float(logs[at:].std())))
    if wide > ALIKE * narrow or distance[at - 1] < APART * np.sqrt((narrow**2 + wide**2) / 2):
        return 0
    ratio = float(np.median(ordered[at:]) / np.median(ordered[:at]))
    return at if FACTOR[0] <= ratio <= FACTOR[1] else 0


def _run_medians(ordered: Floats, runs: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats] | None:
    """Runs with at least `LEAST_HEAP` rows and their medians, by size of the median. The rows are sorted by duration."""
    numbers, counts = np.unique(runs, return_counts=True)
    if len(numbers) < 2 or len(numbers) > len(ordered) / LEAST_HEAP:
        return None
    by_run = np.argsort(runs, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    medians = ordered[by_run][starts + counts // 2]
    enough = counts >= LEAST_HEAP
    rank = np.argsort(medians[enough], kind="stable")
    return (numbers[enough][rank], medians[enough][rank]) if enough.sum() >= 2 else None


def _ask(
    table: Table,
    kind: str,
    values_s: Floats,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    rows: NDArray[np.int64],
    parts: str,
) -> None:
    small, large = float(np.median(values_s[low])), float(np.median(values_s[high]))
    fewer = np.sort(rows[low if len(low) <= len(high) else high])
    raise DataError(
        f"looks like two units in one column: of {kind!r}, {parts}{len(low)} rows have a median of {small:.4g} s and "
        f"{len(high)} one of {large:.4g} s, {large / small:,.0f} times as long ({table.lines(fewer)})",
        file=table.name, line=int(fewer[0]) + table.first_line,
        allowed="durations in one unit", remedy="convert these rows; if both are right, say so with --one-unit",
    )  # fmt: skip
