"""Intervals from replications. Nothing here is a figure from one run.

Replications are independent and of equal standing; each gives one number, or one numerator and one denominator. Comparisons
pair replications by seed, because common random numbers make the difference far less noisy than either side. Sums are
`math.fsum`, so that a result does not depend on the order of the replications.

Sources: Law, "Simulation Modeling and Analysis", 5th ed. 2015, chapters 9 (replications, batch means, sequential stopping)
and 10 (paired and simultaneous intervals, selection); Cochran, "Sampling Techniques", 3rd ed. 1977, section 6.3 (ratios).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_CONFIDENCE = 0.95

_MANY_DEGREES = 400
"""Degrees of freedom from which the four terms of Fisher's expansion are exact to 1e-9."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval.

    Attributes:
        mean: the estimate.
        low: lower end, `-inf` when there are too few replications.
        high: upper end, `inf` likewise.
        half_width: half its length.
        n: replications (or batches, or pairs) behind it.
        confidence: probability with which it was meant to cover the truth.

    """

    mean: float
    low: float
    high: float
    half_width: float
    n: int
    confidence: float = DEFAULT_CONFIDENCE

    @property
    def relative_half_width(self) -> float:
        """Half width over the absolute estimate; 0 for an exact zero, infinite for another interval round zero."""
        if self.half_width == 0:
            return 0.0
        return self.half_width / abs(self.mean) if self.mean else math.inf

    @property
    def sign(self) -> int:
        """1 when all of it is above zero, -1 when all of it is below, 0 when it cannot tell."""
        return (self.low > 0) - (self.high < 0)

    def contains(self, value: float) -> bool:
        """Whether it covers `value`, its ends included."""
        return self.low <= value <= self.high


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t with a whole number of degrees of freedom, to 1e-9 of itself.

    The distribution function of whole degrees is a finite sum, which is inverted by bisection; above `_MANY_DEGREES` it is
    Fisher's expansion about the normal quantile. SciPy has it too, but takes a second to import, which is longer than
    many simulations run.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3, 26.7.4 and 26.7.5.
    """
    if degrees < 1 or not 0 < probability < 1:
        raise ValueError(f"Student's t needs degrees >= 1 and a probability inside (0, 1), not {degrees} and {probability}")
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    if degrees > _MANY_DEGREES:
        return _student_expansion(NormalDist().inv_cdf(probability), degrees)
    inside = 2 * probability - 1
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, degrees) < inside else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def mean_interval(values: Sequence[float], confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Mean over replications, with Student's t. Fewer than two replications give an infinite interval.

    Raises:
        ValueError: no value, one that is not finite, or a confidence outside (0, 1).

    """
    _check_confidence(confidence)
    _check_finite(values)
    mean = _mean(values)
    return _interval(mean, [value - mean for value in values], confidence)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = DEFAULT_CONFIDENCE
) -> Interval:
    """Ratio of sums over replications, with the delta method.

    A rate such as groups per chip-second is the ratio of two sums. The mean of each replication's ratio is another, biased
    quantity. With R = Σy ÷ Σx the variance is that of the residuals y - R·x, over the squared mean of x.

    Raises:
        ValueError: unequal lengths, no value, a value that is not finite, or denominators that sum to zero.

    """
    _check_confidence(confidence)
    ratio, influence = _ratio(numerators, denominators)
    return _interval(ratio, influence, confidence)


def paired_difference(a: Sequence[float], b: Sequence[float], confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Mean of b - a over pairs that share a seed. Equal samples give exactly zero, with no width.

    Raises:
        ValueError: unequal lengths, or as `mean_interval`.

    """
    _check_pairs(a, b)
    return mean_interval([y - x for x, y in zip(a, b, strict=True)], confidence)


def relative_difference(a: Sequence[float], b: Sequence[float], confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """(mean of b - mean of a) ÷ mean of a over paired replications: 0.1 is 10 % more than `a`.

    Raises:
        ValueError: unequal lengths, or a mean of zero to compare with.

    """
    _check_pairs(a, b)
    return ratio_interval([y - x for x, y in zip(a, b, strict=True)], a, confidence)


@dataclass(frozen=True, slots=True)
class RatioSample:
    """A rate over replications: numerators and denominators, in the order of the seeds."""

    numerators: Sequence[float]
    denominators: Sequence[float]


def paired_ratio_difference(a: RatioSample, b: RatioSample, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Difference of two rates, b - a, over replications that share seeds (delta method on both)."""
    _check_confidence(confidence)
    _check_pairs(a.numerators, b.numerators)
    ratio_a, influence_a = _ratio(a.numerators, a.denominators)
    ratio_b, influence_b = _ratio(b.numerators, b.denominators)
    return _interval(ratio_b - ratio_a, [y - x for x, y in zip(influence_a, influence_b, strict=True)], confidence)


def relative_ratio_difference(a: RatioSample, b: RatioSample, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Relative difference of two rates, b ÷ a - 1, over replications that share seeds (delta method on both).

    Raises:
        ValueError: the rate of `a` is zero, or as `ratio_interval`.

    """
    _check_confidence(confidence)
    _check_pairs(a.numerators, b.numerators)
    ratio_a, influence_a = _ratio(a.numerators, a.denominators)
    ratio_b, influence_b = _ratio(b.numerators, b.denominators)
    if ratio_a == 0:
        raise ValueError("a rate of zero has no relative difference to anything")
    gain = ratio_b / ratio_a
    influence = [(y - gain * x) / ratio_a for x, y in zip(influence_a, influence_b, strict=True)]
    return _interval(gain - 1, influence, confidence)


def simultaneous(count: int, confidence: float = DEFAULT_CONFIDENCE) -> float:
    """Confidence that each of `count` intervals needs for all to hold at once with `confidence` (Bonferroni)."""
    _check_confidence(confidence)
    if count < 1:
        raise ValueError(f"{count} intervals cannot hold at once; at least one is needed")
    return 1 - (1 - confidence) / count


@dataclass(frozen=True, slots=True)
class BatchMeans:
    """Interval from the batch means of one run, and how far those are from independent.

    Attributes:
        interval: Student's t over the batch means.
        batch_size: observations in a batch.
        lag1: lag-1 autocorrelation of the batch means.
        independent: whether `lag1` is inside what independent means would show in 95 % of cases.

    """

    interval: Interval
    batch_size: int
    lag1: float
    independent: bool


def batch_means(values: Sequence[float], batches: int = 20, confidence: float = DEFAULT_CONFIDENCE) -> BatchMeans:
    """Non-overlapping batch means of one stationary series; what does not fill the batches is cut from its start.

    An interval from one run is a fallback: with rare outages it covers the truth far less often than it says.

    Raises:
        ValueError: fewer than two batches, or fewer observations than batches.

    """
    if batches < 2 or len(values) < batches:
        raise ValueError(f"{len(values)} observations cannot fill {batches} batches; two batches are the least")
    size = len(values) // batches
    first = len(values) - size * batches
    means = [_mean(values[first + i * size : first + (i + 1) * size]) for i in range(batches)]
    lag1 = _lag1(means)
    # Independent batch means: lag-1 correlation is near normal with mean -1/m and variance near 1/m (von Neumann).
    independent = abs(lag1 + 1 / batches) <= 1.96 / math.sqrt(batches)
    return BatchMeans(mean_interval(means, confidence), size, lag1, independent)


@dataclass(frozen=True, slots=True)
class Controlled:
    """A mean that was adjusted by a control variate.

    Attributes:
        interval: of the adjusted mean.
        slope: change of the value for each unit of the control.
        variance_left: variance about the regression over the variance about the mean: 0.01 is a hundredth of the runs.

    """

    interval: Interval
    slope: float
    variance_left: float


def control_variate(
    values: Sequence[float], controls: Sequence[float], known_mean: float, confidence: float = DEFAULT_CONFIDENCE
) -> Controlled:
    """Mean of `values`, adjusted by a control whose mean is known: the share of time in outage, say.

    With the regression y = a + b·c over replications the estimate is ȳ - b (c̄ - μ). Given the controls it is the regression's
    value at μ, so its variance is s² (1/n + (c̄ - μ)² / Σ(c - c̄)²), with s² over n - 2, and Student's t has n - 2 degrees of
    freedom: exact where the two are jointly normal. A control that never varied adjusts nothing.

    Source: Lavenberg and Welch, "A perspective on the use of control variables", Management Science 27(3), 1981; Law, 2015,
    section 11.4.

    Raises:
        ValueError: unequal lengths, fewer than three replications, or a number that is not finite.

    """
    _check_confidence(confidence)
    _check_pairs(values, controls)
    _check_finite(values)
    _check_finite([*controls, known_mean])
    n = len(values)
    if n < 3:
        raise ValueError(f"a control variate takes at least 3 replications, not {n}")
    mean, centre = _mean(values), _mean(controls)
    spread = math.fsum((c - centre) ** 2 for c in controls)
    if min(controls) == max(controls):  # the spread about a rounded mean need not be zero
        return Controlled(mean_interval(values, confidence), 0.0, 1.0)
    slope = math.fsum((c - centre) * (y - mean) for c, y in zip(controls, values, strict=True)) / spread
    left = math.fsum((y - mean - slope * (c - centre)) ** 2 for c, y in zip(controls, values, strict=True))
    whole = math.fsum((y - mean) ** 2 for y in values)
    estimate = mean - slope * (centre - known_mean)
    half = student_quantile((1 + confidence) / 2, n - 2) * math.sqrt(
        left / (n - 2) * (1 / n + (centre - known_mean) ** 2 / spread)
    )
    interval = Interval(estimate, estimate - half, estimate + half, half, n, confidence)
    return Controlled(interval, slope, left / whole if whole else 0.0)


MSER_BATCH = 5
"""Observations that MSER-5 averages before it looks: single ones make the rule jumpy."""

MSER_REACH = 0.5
"""Largest part of a run that may be cut away; a cut that is near it says that the run is too short."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """How much of the start of a run is not yet steady.

    Attributes:
        cut: observations to cut away.
        settled: whether the cut is well inside what may be cut; where it is not, the run is too short to tell.

    """

    cut: int
    settled: bool


def mser5(values: Sequence[float]) -> Truncation:
    """Where a series has become steady: the cut that minimises the marginal standard error of what is left.

    For every number d of batches of five that are cut away, the error is s² ÷ (m - d) over the m - d batches that are left;
    cuts of more than half the run are not looked at. Not to be used where rare outages are part of the steady state: it is free
    to cut away the part of a run that holds one.

    Source: White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation", Winter Simulation
    Conference 2000.
    """
    _check_finite(values)
    batches = len(values) // MSER_BATCH
    means = [_mean(values[MSER_BATCH * i : MSER_BATCH * (i + 1)]) for i in range(batches)]
    reach = int(batches * MSER_REACH)
    if batches < 4:
        return Truncation(0, settled=False)
    errors = []
    for d in range(reach + 1):
        kept = means[d:]
        mean = _mean(kept)
        errors.append(math.fsum((value - mean) ** 2 for value in kept) / len(kept) ** 2)
    cut = errors.index(min(errors))
    return Truncation(cut * MSER_BATCH, settled=cut < reach)


def controlled_ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    controls: Sequence[float],
    confidence: float = DEFAULT_CONFIDENCE,
) -> Controlled:
    """Ratio of sums, adjusted by controls whose mean is zero.

    A rate is Σy ÷ Σx; its control is, say, the time that was down less the known share of x that is down in the long run. Each
    replication's influence on the ratio (delta method) is regressed on its control, and the ratio is adjusted by the slope.
    Where windows have a fixed number of steps and not a fixed length, the control is zero in the mean all the same (Palm
    inversion).

    Raises:
        ValueError: as `ratio_interval` and `control_variate`.

    """
    ratio, influence = _ratio(numerators, denominators)
    found = control_variate(influence, controls, 0.0, confidence)
    shift = found.interval
    moved = Interval(ratio + shift.mean, ratio + shift.low, ratio + shift.high, shift.half_width, shift.n, confidence)
    return Controlled(moved, found.slope, found.variance_left)


LEAST_REPLICATIONS = 10
"""Replications before the first look of a sequential procedure: the spread over fewer says too little of the spread."""


class Progress(Enum):
    """What a sequential procedure should do next."""

    MORE = "more"
    REACHED = "reached"
    NOT_REACHED = "not reached"  # the budget of replications is spent and the interval is still too wide


@dataclass(frozen=True, slots=True)
class SequentialStop:
    """Stop when the relative half width is small enough, looking at fixed checkpoints only.

    Looking after every replication would stop at a lucky one: the more looks, the lower the coverage. Checkpoints grow by
    `GROWTH`, so that there are few.

    Attributes:
        relative_half_width: the target.
        minimum: replications before the first look.
        maximum: replications after which it gives up and says so.

    """

    relative_half_width: float
    minimum: int = LEAST_REPLICATIONS
    maximum: int = 200

    GROWTH = 1.5

    def __post_init__(self) -> None:
        if not self.relative_half_width > 0 or not 2 <= self.minimum <= self.maximum:
            raise ValueError(
                f"a sequential stop needs a target above 0 and 2 <= minimum <= maximum, not {self.relative_half_width},"
                f" {self.minimum}, {self.maximum}"
            )

    def checkpoints(self) -> tuple[int, ...]:
        """Numbers of replications at which to look."""
        looks = [self.minimum]
        while looks[-1] < self.maximum:
            looks.append(min(self.maximum, math.ceil(looks[-1] * self.GROWTH)))
        return tuple(looks)

    def decide(self, interval: Interval) -> Progress:
        """What to do with an interval over `interval.n` replications."""
        if interval.n in self.checkpoints() and interval.relative_half_width <= self.relative_half_width:
            return Progress.REACHED
        return Progress.NOT_REACHED if interval.n >= self.maximum else Progress.MORE


def _student_within(theta: float, degrees: int) -> float:
    """Probability that |t| is at most √degrees · tan(theta)."""
    cosine2 = math.cos(theta) ** 2
    odd = degrees % 2
    term = math.cos(theta) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for i in range(2 + odd, degrees - 1, 2):
        term *= cosine2 * (i - 1) / i
        total += term
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total


def _student_expansion(x: float, degrees: int) -> float:
    g1 = (x**3 + x) / 4
    g2 = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    g3 = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    g4 = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + g1 / degrees + g2 / degrees**2 + g3 / degrees**3 + g4 / degrees**4


def _interval(estimate: float, influence: Sequence[float], confidence: float) -> Interval:
    """Interval from an estimate and each replication's deviation from it (its influence, centred on zero)."""
    n = len(influence)
    if n < 2:
        return Interval(estimate, -math.inf, math.inf, math.inf, n, confidence)
    spread = math.fsum(value * value for value in influence) / (n - 1)
    half = student_quantile((1 + confidence) / 2, n - 1) * math.sqrt(spread / n) if spread else 0.0
    return Interval(estimate, estimate - half, estimate + half, half, n, confidence)


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, list[float]]:
    _check_pairs(numerators, denominators)
    _check_finite(numerators)
    _check_finite(denominators)
    below = math.fsum(denominators)
    if below == 0:
        raise ValueError("a ratio whose denominators sum to zero does not exist")
    ratio = math.fsum(numerators) / below
    scale = below / len(denominators)
    return ratio, [(y - ratio * x) / scale for y, x in zip(numerators, denominators, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _lag1(values: Sequence[float]) -> float:
    mean = _mean(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    if spread == 0:
        return 0.0
    return math.fsum((a - mean) * (b - mean) for a, b in itertools.pairwise(values)) / spread


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")


def _check_finite(values: Sequence[float]) -> None:
    if not len(values):
        raise ValueError("no replication, so no interval")
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"replication {index} is {value}; every replication must be a finite number")


def _check_pairs(a: Sequence[float], b: Sequence[float]) -> None:
    if len(a) != len(b):
        raise ValueError(f"pairs share a seed: {len(a)} values cannot be paired with {len(b)}")
