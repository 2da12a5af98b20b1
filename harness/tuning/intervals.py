"""Means with intervals, and paired comparisons.

Replications are independent; two settings run on the same seeds are not, and that is the point: what both share (task
lengths, tool times, failures) cancels in the difference of each pair. With d_i = ln(y_i / x_i) over n pairs the interval is
mean(d) ± t(n - 1, 1 - α/2) · sd(d) / √n, reported as a ratio. When the better of m candidates is named after looking at all
of them, each interval is made at α / m (Bonferroni), so that whichever is named, its interval holds with the stated level.

Source: Law, Simulation Modeling and Analysis, 5th ed. (2015), sections 9.4.1, 10.2.1 and 10.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVEL = 0.95
"""Confidence of every interval that is printed, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over replications.

    Attributes:
        mean: of the replications.
        low: lower end; None when there is one replication, from which no interval follows.
        high: upper end, or None.
        replications: how many.

    """

    mean: float
    low: float | None
    high: float | None
    replications: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def t_quantile(level: float, df: int) -> float:
    """Two-sided quantile of Student's t: P(|T| <= t) = level.

    With θ = arctan(t / √df) the probability is a finite sum in sin θ and cos θ for whole df (Abramowitz and Stegun, Handbook
    of Mathematical Functions, 1964, 26.7.3 and 26.7.4), inverted here by bisection. SciPy would cost most of a second of
    start-up for this one number.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        theta = (low + high) / 2
        if _t_inside(theta, df) < level:
            low = theta
        else:
            high = theta
    return math.sqrt(df) * math.tan(low)


def _t_inside(theta: float, df: int) -> float:
    sine, cosine = math.sin(theta), math.cos(theta)
    if df == 1:
        return 2 * theta / math.pi
    term = cosine if df % 2 else 1.0
    total = term
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (theta + sine * total) if df % 2 else sine * total


def mean_interval(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The t interval of a mean. `values` is one number a replication, at least one."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(level, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def share_interval(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The same for shares, cut to what a share can be."""
    raw = mean_interval(values, level=level)
    if raw.low is None or raw.high is None:
        return raw
    return Interval(raw.mean, max(0.0, raw.low), min(1.0, raw.high), raw.replications)


def relative_gain(before: Sequence[float], after: Sequence[float], *, level: float = LEVEL) -> Interval:
    """Paired gain of `after` over `before` as a fraction: 0.25 is a quarter more. Entry i of both has the same seed."""
    raw = mean_interval([math.log(a / b) for b, a in zip(before, after, strict=True)], level=level)
    low, high = (None if end is None else _gain(end) for end in (raw.low, raw.high))
    return Interval(_gain(raw.mean), low, high, raw.replications)


def paired_difference(before: Sequence[float], after: Sequence[float], *, level: float = LEVEL) -> Interval:
    """Paired `after - before`. Entry i of both has the same seed."""
    return mean_interval([a - b for b, a in zip(before, after, strict=True)], level=level)


def _gain(log_ratio: float) -> float:
    # Two replications can give an end beyond what a float holds; nobody gains a billionfold.
    return math.expm1(min(log_ratio, 20.0))
