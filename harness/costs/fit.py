"""Fit a law of durations to measurements, and say how wrong it is on data that it has not seen.

**Candidates**, from simple to free: constant, exponential, lognormal, body and tail (two lognormals, by expectation
maximisation on the logarithms: Dempster, Laird, Rubin, JRSS B 39, 1977), empirical quantiles. Exact values that come again
and again (time limits, cached answers) are atoms: they are taken out first and put back with their share.

**Choice.** Rows are held out by run, or, without runs, in blocks of consecutive rows: rows of one burst share their luck, and
a random split would hand it to both sides. Each candidate is fitted on the rest and scored by the mean pinball loss of its
quantiles of the logarithm of seconds, a proper score (Gneiting, Raftery, JASA 102, 2007). Of those that keep the measured
mean the simplest within `SLACK` of the best is taken, fitted on all rows.

**What is reported** is the relative error of fitted against held-out p50, p90 and p99, averaged over the folds: an error of
prediction, with what differs from run to run in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.costs.laws import AnyLaw, Atom, Constant, Empirical, Exponential, Lognormal, Mixture, Part, mixture_sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from harness.costs.laws import Floats

REPORTED = (0.5, 0.9, 0.99)
"""Quantiles that every fit is reported at."""

FEW_ROWS = 100
"""Fewer rows say nothing of one case in a hundred: no tail is fitted, and the remark says so."""

LEAST_ROWS = 5
"""Fewer rows of one kind are not fitted by themselves: a spread from four numbers is off by half."""

FOLDS = 5
"""Parts to hold out in turn. More cost time and leave fewer rows in each for a p99."""

SLACK = 0.005
"""A simpler law is taken if its loss is at most this share above the best one's: less is noise between folds."""

MEAN_SLACK = 0.1
"""A law whose mean is off by more than this share of the measured one is only taken when all are."""

ATOM_SHARE = 0.01
"""Least share of the rows at one exact value for an atom."""

ATOM_ROWS = 5
"""Least number of rows at one exact value for an atom."""

ATOM_CONTRAST = 5.0
"""How much oftener than the ten values next to it an atom must come: clocks that round make every value come again."""

TAIL_ROOM = 2.0
"""Fitted tails end at this multiple of the longest duration seen. A lognormal would otherwise invent hours from minutes."""

_LEVELS = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99])
_REPORTED_AT = [int(np.flatnonzero(p == _LEVELS)[0]) for p in REPORTED]
_EMPIRICAL = (0.0, 0.01, 0.02, 0.05, *(round(0.1 * i, 1) for i in range(1, 10)), 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)
_EM_STEPS = 100
_EM_TOLERANCE = 1e-5
_TRIAL_KNOTS = 160
_LEAST_SIGMA = 0.01
_DIGITS = 6


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
        split: how rows were held out.
        remarks: what a reader should know.

    """

    law: AnyLaw
    rows: int
    mean_s: float
    measured_s: tuple[float, ...]
    fitted_s: tuple[float, ...]
    held_out_error: tuple[float, ...]
    split: str
    remarks: tuple[str, ...]


def fit(values_s: Floats, runs: NDArray[np.int64] | None = None) -> Fit:
    """The law of some durations.

    Args:
        values_s: durations in seconds, above 0, in the order they were measured; at least 2.
        runs: number of the run that each belongs to; None when that is not known.

    """
    folds, split = _folds(len(values_s), runs)
    candidates = _candidates(values_s)
    trials = {name: _trial(fitter, values_s, folds) for name, fitter in candidates.items()}
    laws = {name: fitter(values_s) for name, fitter in candidates.items()}
    name = _choose(laws, {name: loss for name, (loss, _) in trials.items()}, float(values_s.mean()))
    law = laws[name]
    remarks = []
    if len(values_s) < FEW_ROWS:
        remarks.append(f"{len(values_s)} rows: too few for a tail")
    if isinstance(law, Mixture) and law.atoms:
        remarks.append("piles up at " + ", ".join(f"{atom.at_s:g} s ({atom.weight:.1%})" for atom in law.atoms))
    return Fit(
        law=law,
        rows=len(values_s),
        mean_s=float(values_s.mean()),
        measured_s=tuple(float(q) for q in np.quantile(values_s, REPORTED)),
        fitted_s=tuple(law.quantile(p) for p in REPORTED),
        held_out_error=trials[name][1],
        split=split,
        remarks=tuple(remarks),
    )


def _choose(laws: dict[str, AnyLaw], losses: dict[str, float], mean_s: float) -> str:
    """The simplest law near the least loss, among those that keep the mean: it decides how much work there is.

    Quantiles up to p99 do not see the few outages that hold much of the mean of a network step.
    """
    kept = [name for name, law in laws.items() if abs(law.expected_s() / mean_s - 1) <= MEAN_SLACK] or list(laws)
    best = min(losses[name] for name in kept)
    return next(name for name in kept if losses[name] <= best * (1 + SLACK) + 1e-12)


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


def _folds(n: int, runs: NDArray[np.int64] | None) -> tuple[list[NDArray[np.bool_]], str]:
    """Masks of held-out rows, and how they were chosen."""
    numbers = np.unique(runs) if runs is not None else np.array([])
    if runs is not None and len(numbers) >= 2:
        groups = np.array_split(numbers, min(FOLDS, len(numbers)))
        return [np.isin(runs, group) for group in groups], f"{len(numbers)} runs in {len(groups)} parts"
    count = min(FOLDS, max(2, n // LEAST_ROWS))
    blocks = np.array_split(np.arange(n), count)
    return [np.isin(np.arange(n), block) for block in blocks], f"{count} blocks in the order of the file"


def _candidates(values_s: Floats) -> dict[str, Callable[[Floats], AnyLaw]]:
    """Fitters, from simple to free. Atoms are found on all rows, so that every fold knows of the same ones."""
    if values_s.max() - values_s.min() <= 1e-9 * values_s.max():
        return {"constant": _constant}
    bodies: dict[str, Callable[[Floats], AnyLaw]]
    if len(values_s) >= FEW_ROWS:
        bodies = {
            "constant": _constant,
            "exponential": _exponential,
            "lognormal": _lognormal,
            "body and tail": _body_and_tail,
            "empirical": _empirical,
        }
    elif len(values_s) >= FEW_ROWS // 5:
        bodies = {"lognormal": _lognormal, "empirical": _empirical}
    else:
        bodies = {"lognormal": _lognormal}
    atoms = sorted(find_atoms(values_s))
    return {name: _with_atoms(body, atoms) for name, body in bodies.items()} if atoms else bodies


def _with_atoms(body: Callable[[Floats], AnyLaw], atoms: list[float]) -> Callable[[Floats], AnyLaw]:
    def fitter(values_s: Floats) -> AnyLaw:
        at = np.isin(values_s, atoms)
        if not at.any():
            return body(values_s)
        rest = values_s[~at]
        weights = {value: round(float((values_s == value).mean()), _DIGITS) for value in atoms if (values_s == value).any()}
        if len(rest) < 2:
            parts: list[tuple[float, AnyLaw]] = []
        else:
            law = body(rest)
            parts = [(part.weight, part.of) for part in law.parts] if isinstance(law, Mixture) else [(1.0, law)]
        return _mixture(parts, weights)

    return fitter


def _mixture(parts: list[tuple[float, AnyLaw]], atoms: dict[float, float]) -> Mixture:
    """A mixture whose rounded weights add up to 1: the first part takes up the rounding."""
    left = 1 - math.fsum(atoms.values()) if parts else 1.0
    weights = [round(weight * left, _DIGITS) for weight, _ in parts]
    total = math.fsum(atoms.values())
    if weights:
        weights[0] = round(1 - total - math.fsum(weights[1:]), 2 * _DIGITS)
    else:
        atoms = {value: weight / total for value, weight in atoms.items()}
    made = [Part.model_validate({"weight": w, "of": of}) for w, (_, of) in zip(weights, parts, strict=True) if w > 0]
    return Mixture(parts=tuple(made), atoms=tuple(Atom(at_s=value, weight=weight) for value, weight in atoms.items()))


def _constant(values_s: Floats) -> AnyLaw:
    return Constant(value_s=_round(float(np.median(values_s))))


def _exponential(values_s: Floats) -> AnyLaw:
    return Exponential(mean_s=_round(float(values_s.mean())))


def _lognormal(values_s: Floats) -> AnyLaw:
    logs = np.log(values_s)
    return _one_lognormal(float(logs.mean()), float(logs.std()), float(values_s.max()))


def _one_lognormal(mu: float, sigma: float, longest_s: float) -> Lognormal:
    return Lognormal(mu=_round(mu), sigma=_round(max(sigma, _LEAST_SIGMA)), max_s=_round(TAIL_ROOM * longest_s))


def _body_and_tail(values_s: Floats) -> AnyLaw:
    """Two lognormals by expectation maximisation, started from the lower 80 % and the upper 20 %."""
    logs = np.log(values_s)
    cut = np.quantile(logs, 0.8)
    upper = logs > cut
    if not upper.any() or upper.all():
        return _lognormal(values_s)
    weight = float(upper.mean())
    body, tail = logs[~upper], logs[upper]
    mu, sigma = [float(body.mean()), float(tail.mean())], [float(body.std()), float(tail.std())]
    for _ in range(_EM_STEPS):
        sigma = [max(one, _LEAST_SIGMA) for one in sigma]
        # log odds of the tail: one exponential a row, and no underflow far from both
        odds = ((logs - mu[0]) / sigma[0]) ** 2 - ((logs - mu[1]) / sigma[1]) ** 2
        odds = 0.5 * odds + math.log(weight * sigma[0] / ((1 - weight) * sigma[1]))
        share = 1 / (1 + np.exp(np.clip(-odds, -700, 700)))
        before, weight = weight, float(share.mean())
        if not 0.001 < weight < 0.999:
            break
        for k, one in enumerate((1 - share, share)):
            mass = float(one.sum())
            mu[k] = float(one @ logs) / mass
            sigma[k] = math.sqrt(float(one @ (logs - mu[k]) ** 2) / mass)
        if abs(weight - before) < _EM_TOLERANCE:
            break
    if not 0.001 < weight < 0.999:
        return _lognormal(values_s)
    longest = float(values_s.max())
    laws = [_one_lognormal(m, s, longest) for m, s in zip(mu, sigma, strict=True)]
    return _mixture([(1 - weight, laws[0]), (weight, laws[1])], {})


def _empirical(values_s: Floats) -> AnyLaw:
    values = np.maximum.accumulate([_round(float(q)) for q in np.quantile(values_s, _EMPIRICAL)])
    return Empirical(probabilities=_EMPIRICAL, values_s=tuple(float(v) for v in values))


def _parts(values_s: Floats, folds: list[NDArray[np.bool_]]) -> Iterator[tuple[Floats, Floats]]:
    """(fitted on, held out), where both sides have rows enough to say something."""
    for held in folds:
        if held.sum() >= 1 and (~held).sum() >= 2:
            yield values_s[~held], values_s[held]


def _trial(
    fitter: Callable[[Floats], AnyLaw], values_s: Floats, folds: list[NDArray[np.bool_]]
) -> tuple[float, tuple[float, ...]]:
    """Loss of a candidate, and the mean over folds of |fitted / held out - 1| of each reported quantile.

    A held-out quantile needs rows beyond it: ten rows for p90, a hundred for p99.
    """
    errors: list[list[float]] = [[] for _ in REPORTED]
    losses, weights = [], []
    for known, held in _parts(values_s, folds):
        quantiles = np.maximum(_quantiles(fitter(known)), 1e-12)
        error = np.log(held)[:, None] - np.log(quantiles)
        losses.append(float(np.maximum(_LEVELS * error, (_LEVELS - 1) * error).mean(axis=1).sum()))
        weights.append(len(held))
        for found, p, fitted in zip(errors, REPORTED, quantiles[_REPORTED_AT], strict=True):
            if len(held) * (1 - p) >= 1 - 1e-9:
                found.append(abs(float(fitted) / float(np.quantile(held, p)) - 1))
    means = tuple(sum(found) / len(found) if found else math.nan for found in errors)
    return (sum(losses) / sum(weights) if weights else math.inf), means


def _quantiles(law: AnyLaw) -> Floats:
    """Quantiles at `_LEVELS`, of a mixture through a coarse table: off by less than 1 %, and five times as fast."""
    if not isinstance(law, Mixture):
        return law.quantile(_LEVELS)
    return np.array([*map(mixture_sampler(law, knots=_TRIAL_KNOTS), _LEVELS.tolist())])


def _round(value: float) -> float:
    """Six significant digits: what a file should show, and far below any error of a fit."""
    return float(f"{value:.{_DIGITS}g}")
