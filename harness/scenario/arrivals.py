"""Tasks that come one by one, where they are not all at hand from the start."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from harness.costs.laws import Law, Record


class Arrivals(Record):
    """A stream of tasks from outside, such as users' requests, instead of a data set."""

    gap: Law = Field(description="Seconds from one task to the next.")
    waiting_max: int | None = Field(
        default=None, ge=0, description="Tasks that wait for a start at most; one more is turned away. Absent: all wait."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.gap.expected_s() > 0:
            raise ValueError("the mean gap is 0 s, so that tasks without end would come at one instant; give a longer one")
        return self
