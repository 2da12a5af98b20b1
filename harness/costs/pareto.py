"""The generalised Pareto tail: what excesses over a high threshold tend to.

With shape ξ and scale b, P(excess > y) = (1 + ξ y / b)^(-1/ξ). It has a mean only for ξ < 1 and a variance only for ξ < 1/2,
unless it is truncated; for ξ < 0 it ends at -b / ξ, and at ξ = 0 it is exponential.

Source: Pickands, "Statistical inference using extreme order statistics", Annals of Statistics 3(1), 1975.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from harness.costs.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_SHAPE = 1e-3
"""A shape closer to 0 counts as 0, the exponential tail: the formulas divide by the shape squared."""


class Pareto(Record):
    """Tail of a body and tail: excesses over the threshold follow a generalised Pareto law."""

    law: Literal["pareto"] = "pareto"
    shape: float = Field(ge=-2, le=5, description="Shape: 0 is exponential, above 0 heavy, below 0 it ends at -scale / shape.")
    scale_s: float = Field(gt=0, description="Scale of the excess, seconds.")

    def survival(self, excess_s: float) -> float:
        """P(excess > y)."""
        shape, y = self.shape, excess_s / self.scale_s
        if abs(shape) < LEAST_SHAPE:
            return math.exp(-y)
        return float((1 + shape * y) ** (-1 / shape)) if 1 + shape * y > 0 else 0.0

    def excess_of(self) -> Callable[[float], float]:
        """The excess of which a given share of the law, above 0, is larger."""
        shape, scale, log, expm1 = self.shape, self.scale_s, math.log, math.expm1
        if abs(shape) < LEAST_SHAPE:
            return lambda survival: -scale * log(survival)
        return lambda survival: scale * expm1(-shape * log(survival)) / shape

    def moments(self, top: float) -> tuple[float, float]:
        """Mean and mean square of an excess given that its survival is above `top`; infinite where there is none.

        The survival s of the excess y is uniform on (top, 1], and y = b (s^-ξ - 1) / ξ. With I_k the mean of s^(-kξ) there,
        E[y] = b (I_1 - 1) / ξ and E[y²] = b² (I_2 - 2 I_1 + 1) / ξ².
        """
        shape, scale, kept = self.shape, self.scale_s, 1 - top
        if abs(shape) < LEAST_SHAPE:
            log = math.log(top) if top > 0 else 0.0
            return scale * (1 + top * log / kept), scale * scale * (2 + top * (2 * log - log * log) / kept)

        def integral(k: int) -> float:
            power = 1 - k * shape
            if top > 0:
                return (-math.log(top) if power == 0 else -math.expm1(power * math.log(top)) / power) / kept
            return 1 / power if power > 0 else math.inf

        first, second = integral(1), integral(2)
        square = math.inf if second == math.inf else (scale / shape) ** 2 * (second - 2 * first + 1)
        return scale * (first - 1) / shape, square
