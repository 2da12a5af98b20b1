"""What inverting distribution functions needs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

Sampler = Callable[[float], float]
"""An inverse distribution function: from [0, 1) to seconds."""

SMALLEST_UNIFORM = 2.0**-54
"""Stands in for a smaller uniform: at 0 unbounded laws have no quantile. Half the spacing of the uniforms that are drawn."""


def normal_cdf(z: float) -> float:
    """Standard normal distribution function."""
    return 0.5 * math.erfc(-z * 0.7071067811865476)


def interpolation(levels: list[float], values: list[float]) -> Sampler:
    """Straight lines through (level, value). Equal values at two levels are an atom, hit exactly."""
    last = len(levels) - 1

    def sample(u: float) -> float:
        i = bisect_right(levels, u)
        if i > last:
            return values[last]
        if i == 0:
            return values[0]
        p, x = levels[i - 1], values[i - 1]
        return x + (values[i] - x) * ((u - p) / (levels[i] - p))

    return sample
