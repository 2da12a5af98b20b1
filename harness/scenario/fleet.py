"""Chips that are taken away: how often, and how long it takes until others are there."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from harness.core.errors import ConfigError
from harness.costs.laws import Law, Record

SHORTEST_LIFE_S = 1.0
"""Smallest mean time between losses of a slice. Below it a month of calendar has millions of entries, and nothing can be
computed between two of them anyway."""


class Preemption(Record):
    """Slices of chips that are taken away and replaced, each whole. One replica is one slice, and the learner is one."""

    replicas: Law | None = Field(
        default=None,
        description="Seconds between two losses on the calendar of one replica's slice; absent: replicas are never lost.",
    )
    learner: Law | None = Field(
        default=None,
        description="Seconds between two losses on the calendar of the learner's chips, all slices together; absent: never. "
        "A loss takes the run back to its last checkpoint.",
    )
    provision: Law = Field(description="Seconds from the order of a replacement until its chips are there.")
    replacements_at_once: int | None = Field(
        default=None, ge=1, description="Replacements that can be on their way at the same time (a quota); absent: any number."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.replicas is None and self.learner is None:
            raise ConfigError(
                "says that slices are lost, but not which",
                field="world.preemption",
                allowed="replicas, learner or both",
                remedy="give the time between losses of one of them, or leave the table out",
            )
        for name, law in (("replicas", self.replicas), ("learner", self.learner)):
            if law is not None and not law.expected_s() >= SHORTEST_LIFE_S:
                raise ConfigError(
                    "slices are lost faster than anything can run on them",
                    field=f"world.preemption.{name}",
                    value=f"{law.expected_s():g} s on average",
                    allowed=f"a mean of {SHORTEST_LIFE_S:g} s or more",
                )
        return self
