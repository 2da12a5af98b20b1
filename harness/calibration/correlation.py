"""Failures in time: alone, or together because something that many steps depend on was down.

**Is there anything?** Steps are put in order of the instant at which they ended. With p_k the failure rate of kind k, failures
that know nothing of each other make Σ p_a p_b pairs of neighbours that both fail, with variance Σ q (1 - q) and twice the
covariances of overlapping pairs, q = p_a p_b. Rates differ by kind, so that a stretch of steps of a bad kind is no evidence.

**Where?** Each step scores ln(p'/p) if it fails and ln((1 - p')/(1 - p)) if not, with p' half way from p to 1. A stretch whose
score exceeds ln(n / 0.01) comes about by chance in one file in a hundred (Karlin, Altschul, PNAS 87, 1990). It ends at its
highest score once that has fallen by `DROP`.

**What is it?** An agent that tries a broken call again and again fails in a row too. An outage takes several runs at once;
where it took one, or the runs are not known, this cannot be told, and says so.

**Laws.** A stretch begins midway between the last good end and the first failure, and ends midway between the last failure and
the next good start. The mean time up is all time outside of the stretches over their number, so that the first and the last,
which were not seen whole, count for what they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from harness.calibration.outcomes import HANG, LIMIT, OK
from harness.costs.estimate import rounded
from harness.costs.fit import LEAST_ROWS, fit
from harness.costs.laws import Constant, Exponential
from harness.scenario.environments import ALL_TOOLS, SHORTEST_UP_S, Outage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.calibration.columns import Measurements
    from harness.costs.laws import AnyLaw, Floats

Verdict = Literal["outages", "independent", "cannot tell", "not measured"]

LEAST_FAILURES = 20
"""Fewer failures say nothing of how they lie in time."""

EVIDENCE = 3.3
"""Standard deviations of pairs above what independence explains: one file in two thousand by chance."""

LEAST_OUTAGES = 3
"""Fewer outages give no law of the time between them."""

MANY_UPS = 20
"""Whole times up that a law other than the exponential needs."""

DROP = 5.0
"""How far the score of a stretch may fall before it is over: seven good steps in a row where one in twenty fails."""

CHANCE = 0.01
NAME = "measured outages"
"""Name of the outage in the scenario; calibrating again replaces it."""

DEPENDS = 0.5
"""A kind depends on what was down if at least this share of its steps in outages fails."""

ALL = 0.9
"""Above this share of failures in outages all episodes depend on what was down."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """What was found of failures in time.

    Attributes:
        verdict: in one word or two.
        words: in a sentence, with the evidence.
        pairs: neighbours that both failed.
        expected: how many of them independence explains.
        z: how many standard deviations lie between.
        outages: (start, end) of each in seconds from the first step.
        outage: entry for the world, where the verdict is `outages`.
        inside: mask of the steps that failed in one.

    """

    verdict: Verdict
    words: str
    pairs: int = 0
    expected: float = 0.0
    z: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()
    outage: Outage | None = None
    inside: NDArray[np.bool_] | None = None


def find_outages(measured: Measurements) -> Correlation:
    """Whether failures come in outages, and with which laws."""
    if measured.ended is None or measured.at_s is None:
        lacking = " and ".join(
            name for name, there in (("an outcome", measured.ended), ("a time", measured.at_s)) if there is None
        )
        return Correlation("not measured", f"outages cannot be told: no column was named for {lacking}")
    failed = measured.ended != OK
    count = int(failed.sum())
    if count < LEAST_FAILURES:
        return Correlation(
            "cannot tell", f"{count} failures are too few to tell outages from single failures ({LEAST_FAILURES} are needed)"
        )
    instant = measured.at_s + np.where(measured.ended == HANG, 0.0, measured.values_s)
    order = np.argsort(instant, kind="stable")
    rates = np.bincount(measured.codes, failed, len(measured.kinds)) / np.maximum(np.bincount(measured.codes), 1)
    chance = rates[measured.codes[order]]
    pairs, expected, z = _neighbours(failed[order], chance)
    seen = f"{pairs:,} failures follow right on another where independence explains {expected:.3g}"
    if z < EVIDENCE:
        return Correlation("independent", f"no sign of outages: {seen}", pairs, expected, z)
    stretches = _stretches(failed[order], _background(chance, failed[order]))
    if not stretches:
        return Correlation("cannot tell", f"cannot tell: {seen}, but in no stretch that stands out", pairs, expected, z)
    return _judged(measured, order, failed, instant, stretches, (pairs, expected, z), seen)


def _neighbours(failed: NDArray[np.bool_], chance: Floats) -> tuple[int, float, float]:
    """Pairs of neighbours that both fail: seen, expected, and the difference in standard deviations."""
    pairs = int((failed[1:] & failed[:-1]).sum())
    both = chance[1:] * chance[:-1]
    three = chance[2:] * chance[1:-1] * chance[:-2]
    variance = float((both * (1 - both)).sum() + 2 * (three - both[1:] * both[:-1]).sum())
    expected = float(both.sum())
    return pairs, expected, (pairs - expected) / math.sqrt(max(variance, 1e-12))


def _background(chance: Floats, failed: NDArray[np.bool_]) -> Floats:
    """Failure rates as they are outside of outages, by one round of finding them with the rates over everything."""
    inside = np.zeros(len(failed), np.bool_)
    for first, last in _stretches(failed, chance):
        inside[first : last + 1] = True
    outside = ~inside
    least = 1 / len(failed)
    if not outside.any():
        return np.maximum(chance, least)
    factor = float(failed[outside].mean()) / max(float(chance[outside].mean()), least)
    return np.clip(chance * min(factor, 1.0), least, 0.9)


def _stretches(failed: NDArray[np.bool_], chance: Floats) -> list[tuple[int, int]]:
    """(first, last) failure of every stretch that stands out, as places in order."""
    p = np.clip(chance, 1e-9, 0.9)
    worse = (1 + p) / 2
    scores = np.where(failed, np.log(worse / p), np.log((1 - worse) / (1 - p)))
    wanted = math.log(len(failed) / CHANCE)
    found = []
    score = best = 0.0
    first = last = 0
    for place, step in enumerate(scores.tolist()):
        if score == 0.0:
            if step <= 0:
                continue
            first = place
        score += step
        if score > best:
            best, last = score, place
        elif score <= 0 or best - score > DROP:
            if best > wanted:
                found.append((first, last))
            score = best = 0.0
    if best > wanted:
        found.append((first, last))
    return found


def _judged(
    measured: Measurements,
    order: NDArray[np.int64],
    failed: NDArray[np.bool_],
    instant: Floats,
    stretches: list[tuple[int, int]],
    evidence: tuple[int, float, float],
    seen: str,
) -> Correlation:
    assert measured.at_s is not None
    many = f"{len(stretches)} stretch{'es' if len(stretches) > 1 else ''}"
    if measured.runs is None:
        words = f"cannot tell: {seen}, in {many}, but an outage and one episode's retries look alike; name the column of runs"
        return Correlation("cannot tell", words, *evidence)
    runs = measured.runs[order]
    several = [len(np.unique(runs[first : last + 1][failed[order][first : last + 1]])) >= 2 for first, last in stretches]
    if sum(several) < len(stretches) / 2:
        words = f"cannot tell: {seen}, in {many}, most of them within one run: retries of what is broken for it alone"
        return Correlation("cannot tell", words, *evidence)
    stretches = [stretch for stretch, across in zip(stretches, several, strict=True) if across]
    edges = _edges(measured.at_s, failed, instant, order, stretches)
    origin = float(measured.at_s.min())
    shown = tuple((start - origin, end - origin) for start, end in edges)
    if len(edges) < LEAST_OUTAGES:
        listed = ", ".join(f"{end - start:.4g} s from {start:.6g} s on" for start, end in shown)
        words = f"cannot tell how often: {seen}; {len(edges)} outage{'s' if len(edges) > 1 else ''} ({listed}), "
        return Correlation("cannot tell", words + f"and {LEAST_OUTAGES} are needed for a law", *evidence, shown)
    window_s = float(instant.max()) - origin
    outage, inside, words = _outage(measured, failed, edges, window_s)
    if outage is None:
        return Correlation("cannot tell", f"cannot tell: {seen}, {words}", *evidence, shown)
    return Correlation("outages", f"{len(edges)} outages: {seen}; {words}", *evidence, shown, outage, inside)


def _edges(
    at_s: Floats, failed: NDArray[np.bool_], instant: Floats, order: NDArray[np.int64], stretches: list[tuple[int, int]]
) -> list[tuple[float, float]]:
    """Start and end of every outage, each midway between what bounds it."""
    ends = instant[order]
    good = ~failed[order]
    good_ends = ends[good]
    good_starts = np.sort(at_s[order][good])
    edges = []
    for first, last in stretches:
        start, end = float(ends[first]), float(ends[last])
        before, after = np.searchsorted(good_ends, start) - 1, np.searchsorted(good_starts, end)
        start = (start + float(good_ends[before])) / 2 if before >= 0 else start
        end = (end + float(good_starts[after])) / 2 if after < len(good_starts) else end
        edges.append((start, end))
    return edges


def _outage(
    measured: Measurements, failed: NDArray[np.bool_], edges: Sequence[tuple[float, float]], window_s: float
) -> tuple[Outage | None, NDArray[np.bool_], str]:
    """The entry for the world; the steps that failed by it; the figures in words."""
    assert measured.at_s is not None
    assert measured.ended is not None
    starts, ends = np.array(edges).T
    number = np.searchsorted(ends, measured.at_s)  # the outage that has not ended when a step begins
    known = number < len(edges)
    start_of = np.where(known, starts[np.minimum(number, len(edges) - 1)], np.inf)
    begun_within = known & (measured.at_s >= start_of)
    ended_at = measured.at_s + measured.values_s
    met = known & (ended_at >= start_of)
    kinds = len(measured.kinds)
    within = np.bincount(measured.codes[begun_within], minlength=kinds)
    fell = np.bincount(measured.codes[begun_within & failed], minlength=kinds)
    depends = (within > 0) & (fell >= DEPENDS * within)
    inside = met & failed & depends[measured.codes]
    concerned = begun_within & depends[measured.codes]
    down_s = ends - starts
    up_mean_s = (window_s - float(down_s.sum())) / len(edges)
    if not concerned.any() or up_mean_s < SHORTEST_UP_S or float(down_s.min()) <= 0:
        return None, inside, "but in no stretch that looks like an outage"
    share = float(failed[concerned].mean())
    waits = np.isin(measured.ended[inside], (HANG, LIMIT)).mean() > 0.5
    takes = (ALL_TOOLS,) if depends[within > 0].all() else tuple(np.array(measured.kinds)[depends].tolist())
    after = begun_within & inside & (measured.ended != HANG)
    effect = "hang" if waits else "fail"
    record: dict[str, Any] = {
        "name": NAME,
        "takes": takes,
        "up": _noted(_up(starts, ends, up_mean_s), measured, len(edges), "up", 1.0),
        "down": _noted(_law(down_s), measured, len(edges), "down", float(down_s.std(ddof=1) / down_s.mean())),
        "in_flight": effect,
        "new_calls": effect,
    }
    if share < ALL:
        record["share"] = rounded(share)
    if not waits and after.any():
        record["fail_after"] = Constant(value_s=rounded(float(np.median(measured.values_s[after]))))
    words = f"up for {up_mean_s:.4g} s and down for {float(down_s.mean()):.4g} s on average, {share:.0%} of steps in them fail"
    return Outage.model_validate(record), inside, words


def _up(starts: Floats, ends: Floats, mean_s: float) -> AnyLaw:
    whole = starts[1:] - ends[:-1]
    return _law(whole) if len(whole) >= MANY_UPS else Exponential(mean_s=rounded(mean_s))


def _law(values_s: Floats) -> AnyLaw:
    values_s = values_s[values_s > 0]
    if len(values_s) < LEAST_ROWS:
        return Exponential(mean_s=rounded(float(values_s.mean())))
    return fit(values_s).law


def _noted(law: AnyLaw, measured: Measurements, count: int, which: str, cv: float) -> AnyLaw:
    """The law with its source and with how well its mean is known: that of n times is off by their cv / √n."""
    note = f"{count} outages; the mean time {which} is known to about {cv / math.sqrt(count):.1%}"
    return law.model_copy(update={"source": f"{measured.file}, {measured.dated}", "note": note})
