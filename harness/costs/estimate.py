"""Estimators: the parameters of each law of durations from a sample, in closed form or nearly so.

Every estimator takes durations in seconds, above 0 and sorted, and gives a law whose support ends at `room` times the longest
of them: a lognormal would otherwise invent hours from minutes.

**Body and tail.** The threshold is the `TAIL_FROM` quantile. The body is fitted with everything above it censored (Dempster,
Laird, Rubin, JRSS B 39, 1977, section 4.2), so that it bends to no tail; the tail with everything below it cut off. A
generalised Pareto tail by probability-weighted moments (Hosking, Wallis, Technometrics 29(3), 1987), a lognormal one by
maximum likelihood of a normal law cut off below (Cohen, "Truncated and Censored Samples", 1991, section 2.3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from harness.costs.laws import (
    AnyLaw,
    Atom,
    BodyTail,
    Constant,
    Empirical,
    Exponential,
    Gamma,
    Lognormal,
    Mixture,
    Part,
    normal_cdf,
)
from harness.costs.pareto import Pareto

if TYPE_CHECKING:
    from harness.costs.laws import Floats

TAIL_FROM = 0.9
"""Quantile at which the tail begins. Higher leaves fewer rows to fit it to, lower takes in what is not a tail yet."""

TAIL_ROWS = 30
"""Rows above the threshold that a tail needs: the shape of a Pareto law from 30 is known to about 0.2."""

TAIL_ROOM = 2.0
"""Fitted tails end at this multiple of the longest duration seen."""

EM_ROWS = 8_000
"""Most rows that expectation maximisation runs over, evenly spaced among the sorted ones: the error of a parameter from that
many is about 1 %, far below how much one run differs from the next, and a million rows would take minutes."""

EMPIRICAL = (0.0, 0.01, 0.02, 0.05, *(round(0.1 * i, 1) for i in range(1, 10)), 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)
"""Probabilities at which measured quantiles are kept."""

_EMPIRICAL_FAR = (0.9995, 0.9998, 0.9999, 0.99995, 0.99999)
_EM_STEPS = 100
_EM_TOLERANCE = 1e-5
_LEAST_SIGMA = 0.01
_MOST_SHAPE = 1000.0
_LEAST_SHAPE = 0.01
_DIGITS = 6
_ROOT_2_PI = math.sqrt(2 * math.pi)


def rounded(value: float) -> float:
    """Six significant digits: what a file should show, and far below any error of a fit."""
    return float(f"{value:.{_DIGITS}g}")


def thinned(values: Floats, most: int = EM_ROWS) -> Floats:
    """At most so many of the sorted values, evenly spaced."""
    if len(values) <= most:
        return values
    at = ((np.arange(most) + 0.5) / most * len(values)).astype(np.int64)
    return values[at]


def constant(values_s: Floats) -> AnyLaw:
    """The median."""
    return Constant(value_s=rounded(float(values_s[len(values_s) // 2])))


def exponential(values_s: Floats, room: float = TAIL_ROOM) -> AnyLaw:
    """The mean; it ends only where there is little room: its own tail is thin."""
    top = rounded(room * float(values_s[-1])) if room < TAIL_ROOM else None
    return Exponential(mean_s=rounded(float(values_s.mean())), max_s=top)


def lognormal(values_s: Floats, room: float = TAIL_ROOM) -> AnyLaw:
    """Mean and standard deviation of the logarithms."""
    logs = np.log(values_s)
    return _one_lognormal(float(logs.mean()), float(logs.std()), room * float(values_s[-1]))


def _one_lognormal(mu: float, sigma: float, top_s: float) -> Lognormal:
    return Lognormal(mu=rounded(mu), sigma=rounded(max(sigma, _LEAST_SIGMA)), max_s=rounded(top_s))


def gamma(values_s: Floats, room: float = TAIL_ROOM) -> AnyLaw:
    """Maximum likelihood: ln a - ψ(a) = ln mean - mean of logs, by Newton's method on 1/a.

    Source: Minka, "Estimating a Gamma distribution", 2002.
    """
    from scipy.special import digamma, polygamma

    mean = float(values_s.mean())
    gap = max(math.log(mean) - float(np.log(values_s).mean()), 1e-12)
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(4):
        up = math.log(shape) - float(digamma(shape)) - gap
        shape = 1 / (1 / shape + up / (shape * shape * (1 / shape - float(polygamma(1, shape)))))
        if not _LEAST_SHAPE < shape < _MOST_SHAPE:
            break
    shape = min(max(shape, _LEAST_SHAPE), _MOST_SHAPE)
    return Gamma(shape=rounded(shape), mean_s=rounded(mean), max_s=rounded(room * float(values_s[-1])))


def two_lognormals(values_s: Floats) -> AnyLaw:
    """A mixture by expectation maximisation, started from the lower 80 % and the upper 20 %."""
    logs = np.log(thinned(values_s))
    cut = np.quantile(logs, 0.8)
    upper = logs > cut
    if not upper.any() or upper.all():
        return lognormal(values_s)
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
        return lognormal(values_s)
    top = TAIL_ROOM * float(values_s[-1])
    laws = [_one_lognormal(m, s, top) for m, s in zip(mu, sigma, strict=True)]
    return mixture([(1 - weight, laws[0]), (weight, laws[1])], {})


def body_tail(values_s: Floats, body: str, tail: str) -> AnyLaw | None:
    """A body up to the threshold and a tail above it; None where the rows do not allow it.

    Args:
        values_s: durations, sorted.
        body: `lognormal` or `exponential`.
        tail: `pareto` or `lognormal`.

    """
    threshold = rounded(float(np.quantile(values_s, TAIL_FROM)))
    split = int(np.searchsorted(values_s, threshold, "right"))
    below, above = values_s[:split], values_s[split:]
    if len(above) < TAIL_ROWS or below[-1] <= below[0]:
        return None
    beyond = _pareto(above - threshold) if tail == "pareto" else _cut_lognormal(above, threshold)
    if beyond is None:
        return None
    fitted = _censored_lognormal(below, len(above), threshold) if body == "lognormal" else _censored_exponential(below, above)
    weight = rounded(len(above) / len(values_s))
    top = rounded(TAIL_ROOM * float(values_s[-1]))
    try:
        return BodyTail(body=fitted, threshold_s=threshold, tail=beyond, tail_weight=weight, max_s=top)
    except ValueError:
        return None


def _censored_exponential(below: Floats, above: Floats) -> Exponential:
    """Total time at risk over the number of ends seen; what is above counts with the threshold only."""
    return Exponential(mean_s=rounded((float(below.sum()) + len(above) * float(below[-1])) / len(below)))


def _censored_lognormal(below: Floats, above: int, threshold_s: float) -> Lognormal:
    """Expectation maximisation from sums alone: no pass over the rows in it."""
    logs, top = np.log(below), math.log(threshold_s)
    mean, spread, count = float(logs.mean()), float(logs.var()), len(below)
    mu, sigma = mean, math.sqrt(spread)
    for _ in range(_EM_STEPS):
        sigma = max(sigma, _LEAST_SIGMA)
        z = (top - mu) / sigma
        hazard = math.exp(-z * z / 2) / _ROOT_2_PI / max(normal_cdf(-z), 1e-300)
        hidden = mu + sigma * hazard
        hidden_square = sigma * sigma * (1 + z * hazard)  # about the old mu
        new = (count * mean + above * hidden) / (count + above)
        about_new = hidden_square + 2 * (mu - new) * (hidden - mu) + (mu - new) ** 2
        square = (count * (spread + (mean - new) ** 2) + above * about_new) / (count + above)
        done = abs(new - mu) < _EM_TOLERANCE * sigma
        mu, sigma = new, math.sqrt(max(square, 0.0))
        if done:
            break
    return Lognormal(mu=rounded(mu), sigma=rounded(max(sigma, _LEAST_SIGMA)))


def _pareto(excess_s: Floats) -> Pareto | None:
    """By probability-weighted moments: with b0 the mean and b1 the mean of (1 - p) y, ξ = 2 - b0 / (b0 - 2 b1)."""
    count = len(excess_s)
    b0 = float(excess_s.mean())
    b1 = float(((1 - (np.arange(count) + 0.65) / count) * excess_s).mean())
    if b0 - 2 * b1 <= 1e-9 * b0:
        return None
    shape = 2 - b0 / (b0 - 2 * b1)
    scale = 2 * b0 * b1 / (b0 - 2 * b1)
    if not -2 <= shape <= 5 or scale <= 0:
        return None
    return Pareto(shape=rounded(shape), scale_s=rounded(scale))


def _cut_lognormal(above_s: Floats, threshold_s: float) -> Lognormal | None:
    """Cohen's estimator: variance over squared mean excess of the logarithms tells where the cut is, in standard units."""
    logs = np.log(above_s) - math.log(threshold_s)
    mean, square = float(logs.mean()), float(logs.var())
    wanted = square / (mean * mean)

    def found(cut: float) -> tuple[float, float]:
        hazard = math.exp(-cut * cut / 2) / _ROOT_2_PI / normal_cdf(-cut)
        excess = hazard - cut
        return (1 - hazard * excess) / (excess * excess), excess

    low, high = -6.0, 4.0
    if not found(low)[0] < wanted < found(high)[0]:
        return None  # heavier than any lognormal, or lighter than one whose cut can be told
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle)[0] < wanted else (low, middle)
    sigma = mean / found(low)[1]
    mu = math.log(threshold_s) - low * sigma
    return Lognormal(mu=rounded(mu), sigma=rounded(sigma)) if sigma <= 20 and abs(mu) <= 50 else None


def empirical_levels(rows: int) -> tuple[float, ...]:
    """Probabilities at which quantiles of so many rows are kept: beyond p99.9 as far as four rows lie beyond."""
    return (*EMPIRICAL[:-1], *(p for p in _EMPIRICAL_FAR if rows * (1 - p) >= 4), 1.0)


def empirical(values_s: Floats) -> AnyLaw:
    """Measured quantiles at `EMPIRICAL`."""
    levels = empirical_levels(len(values_s))
    values = np.maximum.accumulate([rounded(float(q)) for q in np.quantile(values_s, levels)])
    return Empirical(probabilities=levels, values_s=tuple(float(v) for v in values))


def with_atoms(law: AnyLaw | None, weights: dict[float, float]) -> Mixture:
    """The law of the rest, with exact values put back in; None when there is no rest."""
    if law is None:
        return mixture([], weights)
    return mixture([(part.weight, part.of) for part in law.parts] if isinstance(law, Mixture) else [(1.0, law)], weights)


def mixture(parts: list[tuple[float, AnyLaw]], atoms: dict[float, float]) -> Mixture:
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
