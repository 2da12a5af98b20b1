"""Laws of counts (turns, tokens): a whole number each time."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.costs.laws import Record

MAX_COUNT = 1_000_000
"""Largest cap of a law of counts: its cumulative probabilities are kept as a table."""


class ConstantCount(Record):
    """Always the same number."""

    law: Literal["constant"] = "constant"
    value: int = Field(ge=0, description="The number.")


class GeometricCount(Record):
    """1, 2, 3, …: another one follows with the same probability each time."""

    law: Literal["geometric"] = "geometric"
    mean: float = Field(ge=1, description="Mean before the cap.")
    max: int = Field(ge=1, le=MAX_COUNT, description="Larger draws count as this.")


class LognormalCount(Record):
    """A lognormal number, rounded to the nearest integer and kept within `min` and `max`."""

    law: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0, description="Mean before rounding and caps.")
    cv: float = Field(gt=0, le=10, description="Coefficient of variation before rounding and caps.")
    min: int = Field(default=1, ge=0, description="Smaller draws count as this.")
    max: int = Field(ge=1, le=MAX_COUNT, description="Larger draws count as this.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class EmpiricalCount(Record):
    """Measured quantiles with straight lines between them, rounded to the nearest integer."""

    law: Literal["empirical"] = "empirical"
    probabilities: tuple[float, ...] = Field(strict=False, min_length=2, description="Rising from 0 to 1.")
    values: tuple[int, ...] = Field(strict=False, min_length=2, description="The number at these probabilities, not falling.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        p, x = self.probabilities, self.values
        if len(p) != len(x):
            raise ValueError(f"probabilities and values differ in length ({len(p)} and {len(x)})")
        if p[0] != 0 or p[-1] != 1 or any(a >= b for a, b in itertools.pairwise(p)):
            raise ValueError("probabilities must rise from exactly 0 to exactly 1")
        if x[0] < 0 or any(a > b for a, b in itertools.pairwise(x)):
            raise ValueError("values must not be negative and must not fall")
        if x[-1] > MAX_COUNT:
            raise ValueError(f"values end at {x[-1]:,}, above {MAX_COUNT:,}")
        return self

    @property
    def max(self) -> int:
        """Largest number."""
        return self.values[-1]


CountLaw = Annotated[ConstantCount | GeometricCount | LognormalCount | EmpiricalCount, Field(discriminator="law")]
"""Any law of counts (turns, tokens), told apart by its field `law`."""
