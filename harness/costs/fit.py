"""Fit a law of durations to measurements, and say how wrong it is on data that it has not seen.

**Candidates** (`harness.costs.estimate`), from simple to free: constant, exponential, lognormal, gamma, body and tail (a
lognormal or exponential body, a lognormal or Pareto tail), two lognormals, empirical quantiles. Exact values that come again
and again (time limits, cached answers) are atoms: they are taken out first and put back with their share.

**Choice.** Rows are held out by run, or, without runs, in blocks of consecutive rows: rows of one burst share their luck, and
a random split would hand it to both sides. Each candidate is fitted on the rest and scored by the mean pinball loss of its
quantiles of the logarithm of seconds, a proper score (Gneiting, Raftery, JASA 102, 2007). Of those that keep the measured
mean the simplest is taken that is no worse than the best by more than one standard error of their paired difference over the
parts (Breiman, Friedman, Olshen, Stone, "Classification and Regression Trees", 1984, section 3.4.3), fitted on all rows.

**What is reported** is the relative error of fitted against held-out p50, p90 and p99, averaged over the folds: an error of
prediction, with what differs from run to run in it. Beside it stands the same error of the known rows' own quantiles: where
that is as large, no law could do better.

Rows are sorted once; each fold is a mask over the sorted rows, and a loss needs prefix sums and one search a quantile, so
that a million rows cost seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harness.costs import estimate
from harness.costs.laws import AnyLaw, Empirical, Gamma, Mixture, mixture_sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from harness.costs.laws import Floats

    Fitter = Callable[[Floats], AnyLaw | None]
    Quantiles = Callable[[Floats], Floats]

REPORTED = (0.5, 0.9, 0.99)
"""Quantiles that every fit is reported at."""

FEW_ROWS = 100
"""Fewer rows say nothing of one case in a hundred: no tail is fitted, nothing longer than was seen is drawn, and it says so."""

LEAST_ROWS = 5
"""Fewer rows of one kind are not fitted by themselves: a spread from four numbers is off by half."""

FOLDS = 5
"""Parts to hold out in turn. More cost time and leave fewer rows in each for a p99."""

SLACK = 0.005
"""A simpler law is taken if its loss is at most this share above the best one's, whatever the parts say."""

MEAN_SLACK = 0.1
"""A law whose mean is off by more than this share of the measured one is only taken when all are."""

ATOM_SHARE = 0.01
"""Least share of the rows at one exact value for an atom."""

ATOM_ROWS = 5
"""Least number of rows at one exact value for an atom."""

ATOM_CONTRAST = 5.0
"""How much oftener than the ten values next to it an atom must come: clocks that round make every value come again."""

_LEVELS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_FAR_LEVELS = (0.995, 0.999)
_REPORTED_AT = [_LEVELS.index(p) for p in REPORTED]
_TRIAL_KNOTS = 160
_DIGITS = 6


class Trial(NamedTuple):
    """A candidate on held-out rows.

    Attributes:
        name: of the candidate.
        loss: mean pinball loss of the logarithm of seconds; smaller is better.
        error: mean relative error of each reported quantile; NaN where a part had too few rows to say.
        losses: of each part.

    """

    name: str
    loss: float
    error: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law and its error.

    Attributes:
        law: the law, in seconds.
        rows: measurements it was fitted to.
        mean_s: their mean.
        measured_s: their quantiles at `REPORTED`.
        fitted_s: the law's.
        held_out_error: mean relative error of each reported quantile on held-out rows; NaN where there were too few rows.
        unlike: the same error of the known rows' own quantiles: how much the parts differ among themselves.
        split: how rows were held out.
        chosen: name of the candidate taken.
        trials: all candidates, from simple to free.
        curve: (probability, measured, fitted) along the whole law, for a chart.
        remarks: what a reader should know.

    """

    law: AnyLaw
    rows: int
    mean_s: float
    measured_s: tuple[float, ...]
    fitted_s: tuple[float, ...]
    held_out_error: tuple[float, ...]
    unlike: tuple[float, ...]
    split: str
    chosen: str
    trials: tuple[Trial, ...]
    curve: tuple[tuple[float, float, float], ...]
    remarks: tuple[str, ...]


def fit(values_s: Floats, runs: NDArray[np.int64] | None = None) -> Fit:
    """The law of some durations.

    Args:
        values_s: durations in seconds, above 0, in the order they were measured; at least 2.
        runs: number of the run that each belongs to, from 0 in the order they come; None when that is not known.

    """
    part, count, split = folds(len(values_s), runs)
    order = np.argsort(values_s, kind="stable")
    ordered, part = values_s[order], part[order]
    candidates = _candidates(ordered)
    held = Held.all_of(ordered, part, count)
    trials = tuple(trial(name, _solver(fitter), held) for name, fitter in candidates.items())
    laws = {name: law for name, fitter in candidates.items() if (law := fitter(ordered)) is not None}
    mean_s = float(values_s.mean())
    keep = [name for name, law in laws.items() if abs(law.expected_s() / mean_s - 1) <= MEAN_SLACK]
    name = choose([tried for tried in trials if tried.name in (keep or laws)])
    law = laws[name]
    levels = curve_levels(len(ordered))
    curve = zip(levels.tolist(), np.quantile(ordered, levels).tolist(), law.quantile(levels).tolist(), strict=True)
    return Fit(
        law=law,
        rows=len(values_s),
        mean_s=float(values_s.mean()),
        measured_s=tuple(float(q) for q in np.quantile(ordered, REPORTED)),
        fitted_s=tuple(law.quantile(p) for p in REPORTED),
        held_out_error=next(tried.error for tried in trials if tried.name == name),
        unlike=trial("", own_quantiles, held).error,
        split=split,
        chosen=name,
        trials=trials,
        curve=tuple(curve),
        remarks=tuple(_remarks(law, ordered)),
    )


def _remarks(law: AnyLaw, ordered: Floats) -> list[str]:
    remarks = []
    if ordered[0] == ordered[-1]:
        return [f"always {ordered[0]:g} s in {len(ordered)} rows: a rounded or stand-in value?"]
    if len(ordered) < FEW_ROWS:
        remarks.append(
            f"{len(ordered)} rows: too few for a tail; nothing above {ordered[-1]:.4g} s, the longest seen, is drawn"
        )
    if isinstance(law, Mixture) and law.atoms:
        remarks.append("piles up at " + ", ".join(f"{atom.at_s:g} s ({atom.weight:.1%})" for atom in law.atoms))
    return remarks


def choose(trials: Sequence[Trial]) -> str:
    """The simplest candidate that is as good as the best, as far as the parts can tell.

    Quantiles up to p99 do not see the few outages that hold much of the mean of a network step: candidates that lose the mean,
    which decides how much work there is, are left out before.

    Args:
        trials: at least one, from simple to free.

    """
    best = min(trials, key=lambda tried: tried.loss)
    for tried in trials:
        more = np.subtract(tried.losses, best.losses) if math.isfinite(tried.loss) else np.array([math.inf])
        allowed = float(more.std(ddof=1)) / math.sqrt(len(more)) if len(more) >= 2 else 0.0
        if tried.loss - best.loss <= max(allowed, SLACK * best.loss) + 1e-12:
            return tried.name
    return best.name


def find_atoms(values_s: Floats) -> dict[float, int]:
    """Exact values that come too often for a continuous law, with their numbers of rows."""
    distinct, counts = np.unique(values_s, return_counts=True)
    if len(distinct) == 1:
        return {}
    found = {}
    for i in np.flatnonzero(counts >= max(ATOM_ROWS, ATOM_SHARE * len(values_s))):
        around = float(np.median(np.concatenate([counts[max(i - 5, 0) : i], counts[i + 1 : i + 6]])))
        if counts[i] >= ATOM_CONTRAST * around:
            found[float(distinct[i])] = int(counts[i])
    return found


def folds(n: int, runs: NDArray[np.int64] | None) -> tuple[NDArray[np.int64], int, str]:
    """The part that each row is held out with, how many parts there are, and how they were chosen.

    Args:
        n: number of rows.
        runs: as for `fit`.

    """
    numbers, index = np.unique(runs, return_inverse=True) if runs is not None else (np.array([]), None)
    if index is not None and len(numbers) >= 2:
        count = min(FOLDS, len(numbers))
        part_of_run = np.concatenate([np.full(len(some), i) for i, some in enumerate(np.array_split(numbers, count))])
        return part_of_run[index], count, f"{len(numbers)} runs in {count} parts"
    count = min(FOLDS, max(2, n // LEAST_ROWS))
    return np.arange(n) * count // n, count, f"{count} blocks in the order of the file"


def _candidates(ordered: Floats) -> dict[str, Fitter]:
    """Fitters, from simple to free. Atoms are found on all rows, so that every fold knows of the same ones."""
    if ordered[-1] - ordered[0] <= 1e-9 * ordered[-1]:
        return {"constant": estimate.constant}
    bodies: dict[str, Fitter]
    if len(ordered) >= FEW_ROWS:
        bodies = {
            "constant": estimate.constant,
            "exponential": estimate.exponential,
            "lognormal": estimate.lognormal,
            "gamma": estimate.gamma,
        }
        bodies |= {
            f"{body} body, {tail} tail": partial(estimate.body_tail, body=body, tail=tail)
            for body in ("exponential", "lognormal")
            for tail in ("lognormal", "pareto")
        }
        bodies |= {"two lognormals": estimate.two_lognormals, "empirical": estimate.empirical}
    else:
        bodies = {"lognormal": partial(estimate.lognormal, room=1.0)}
        if len(ordered) >= FEW_ROWS // 5:
            bodies = {
                "exponential": partial(estimate.exponential, room=1.0),
                **bodies,
                "gamma": partial(estimate.gamma, room=1.0),
                "empirical": estimate.empirical,
            }
    atoms = sorted(find_atoms(ordered))
    found = {name: _with_atoms(body, atoms) for name, body in bodies.items()} if atoms else bodies
    return {name: _where_allowed(fitter) for name, fitter in found.items()}


def _where_allowed(fitter: Fitter) -> Fitter:
    """None instead of a law whose parameters are beyond what a scenario may hold."""

    def allowed(ordered: Floats) -> AnyLaw | None:
        try:
            return fitter(ordered)
        except ValueError:
            return None

    return allowed


def _with_atoms(body: Fitter, atoms: list[float]) -> Fitter:
    def fitter(ordered: Floats) -> AnyLaw | None:
        at = np.isin(ordered, atoms)
        if not at.any():
            return body(ordered)
        rest = ordered[~at]
        weights = {value: round(float((ordered == value).mean()), _DIGITS) for value in atoms if (ordered == value).any()}
        if len(rest) < 2:
            return estimate.with_atoms(None, weights)
        law = body(rest)
        return None if law is None else estimate.with_atoms(_cut(law, float(rest[-1]), max(weights)), weights)

    return fitter


def _cut(law: AnyLaw, longest_s: float, atom_s: float) -> AnyLaw:
    """The law of what ends by itself: where nothing passes the last atom, that is a limit, and no law goes beyond it."""
    if longest_s >= atom_s:
        return law
    if isinstance(law, Mixture):
        cut = [part.model_copy(update={"of": _cut(part.of, longest_s, atom_s)}) for part in law.parts]
        return law.model_copy(update={"parts": tuple(cut)})
    if "max_s" not in law.__class__.model_fields:
        return law
    room = getattr(law, "max_s", None)
    return law.model_copy(update={"max_s": atom_s if room is None else min(room, atom_s)})


@dataclass(frozen=True, slots=True)
class Held:
    """One part held out: the known rows, and what a loss on the others needs."""

    known: Floats
    held: Floats
    logs: Floats
    sums: Floats

    @classmethod
    def all_of(cls, ordered: Floats, part: NDArray[np.int64], count: int) -> list[Held]:
        """Every part in turn, where both sides have rows enough to say something."""
        found = []
        for i in range(count):
            out = part == i
            if out.sum() >= 1 and (~out).sum() >= 2:
                held = ordered[out]
                logs = np.log(held)
                found.append(cls(ordered[~out], held, logs, np.concatenate([[0.0], np.cumsum(logs)])))
        return found

    def loss(self, levels: Floats, quantiles: Floats) -> float:
        """Sum over the levels of the mean pinball loss on the logarithms."""
        at = np.log(quantiles)
        below = np.searchsorted(self.logs, at, "right")
        under, count = self.sums[below], len(self.logs)
        above = self.sums[-1] - under - (count - below) * at
        return float((levels * above + (1 - levels) * (below * at - under)).sum()) / count


def trial(name: str, solve: Callable[[Floats], Quantiles | None], parts: list[Held]) -> Trial:
    """Loss of a candidate, and the mean over parts of |fitted / held out - 1| of each reported quantile.

    A held-out quantile needs rows beyond it: ten rows for p90, a hundred for p99.

    Args:
        name: of the candidate.
        solve: from known rows, sorted, to a function from probabilities to quantiles; None where it cannot be fitted.
        parts: to hold out.

    """
    least = min((len(part.held) for part in parts), default=0)
    levels = np.array([*_LEVELS, *(p for p in _FAR_LEVELS if least * (1 - p) >= 1)])
    errors: list[list[float]] = [[] for _ in REPORTED]
    losses, weights = [], []
    for part in parts:
        solved = solve(part.known)
        if solved is None:
            return Trial(name, math.inf, (math.nan,) * len(REPORTED), (math.inf,) * len(parts))
        quantiles = np.maximum(solved(levels), 1e-12)
        losses.append(part.loss(levels, quantiles) * len(part.held))
        weights.append(len(part.held))
        for seen, p, fitted in zip(errors, REPORTED, quantiles[_REPORTED_AT], strict=True):
            if len(part.held) * (1 - p) >= 1 - 1e-9:
                seen.append(abs(float(fitted) / float(np.quantile(part.held, p)) - 1))
    means = tuple(sum(seen) / len(seen) if seen else math.nan for seen in errors)
    each = tuple(loss / weight for loss, weight in zip(losses, weights, strict=True))
    return Trial(name, sum(losses) / sum(weights) if weights else math.inf, means, each)


def own_quantiles(known: Floats) -> Quantiles:
    """The known rows' own, for comparison."""
    return lambda levels: np.quantile(known, levels)


def _solver(fitter: Fitter) -> Callable[[Floats], Quantiles | None]:
    def solve(known: Floats) -> Quantiles | None:
        law = fitter(known)
        return None if law is None else lambda levels: _quantiles(law, levels)

    return solve


def curve_levels(rows: int) -> Floats:
    """Probabilities at which fit and data are drawn beside each other: dense in both ends, none beyond the last row."""
    upper = 1 - np.geomspace(0.5, 1e-4, 45)
    levels = np.concatenate([[0.01, 0.02, 0.05], np.arange(0.1, 0.5, 0.05), upper])
    return levels[(levels * rows >= 1) & ((1 - levels) * rows >= 1)]


def _quantiles(law: AnyLaw, levels: Floats) -> Floats:
    """Quantiles; of a mixture through a coarse table: off by less than 1 %, and five times as fast."""
    if isinstance(law, Gamma):
        from scipy.special import gammaincinv

        quantiles: Floats = gammaincinv(law.shape, levels * law.mass) * (law.mean_s / law.shape)
        return quantiles
    if isinstance(law, Empirical):
        return np.interp(levels, law.probabilities, law.values_s)
    if not isinstance(law, Mixture):
        return law.quantile(levels)
    return np.array([*map(mixture_sampler(law, knots=_TRIAL_KNOTS), levels.tolist())])
