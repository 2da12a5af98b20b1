"""Knob descriptors: what a pipeline lets people and the tuner turn, as plain data.

A pipeline describes its own knobs; the tool (tuner, reports, command line) reads descriptors and knows no pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KnobKind(StrEnum):
    """Type of a knob's value."""

    INT = "int"
    FLOAT = "float"
    CHOICE = "choice"
    BOOL = "bool"


class Scale(StrEnum):
    """How a search should space its values."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting.

    Attributes:
        path: dotted path in a scenario (`pipeline.max_staleness`).
        kind: type of its value.
        default: value when nothing is said.
        owner: the one policy or actor that obeys it.
        unit: unit of a number; empty for a choice.
        low: smallest allowed number, inclusive; None for a choice.
        high: largest allowed number, inclusive; None for a choice.
        scale: spacing for a search. A logarithmic knob whose `low` is 0 has 0 as a special value ("off", "automatic").
        choices: allowed values of a choice.
        doc: one sentence.

    """

    path: str
    kind: KnobKind
    default: int | float | str | bool
    owner: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    scale: Scale = Scale.LINEAR
    choices: tuple[str, ...] = ()
    doc: str = ""

    def __post_init__(self) -> None:
        if not self.path or not self.owner:
            raise ValueError("a knob has a path and one owner")
        if self.kind is KnobKind.CHOICE:
            if self.default not in self.choices:
                raise ValueError(f"{self.path}: default {self.default!r} is not among {self.choices}")
        elif self.kind is not KnobKind.BOOL and (
            self.low is None or self.high is None or not self.low <= float(self.default) <= self.high
        ):
            raise ValueError(f"{self.path}: default {self.default!r} is not within {self.low} to {self.high}")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def allowed(self) -> str:
        """What is allowed, for a message."""
        if self.kind is KnobKind.CHOICE:
            return ", ".join(self.choices)
        if self.kind is KnobKind.BOOL:
            return "true, false"
        number = "a whole number" if self.kind is KnobKind.INT else "a number"
        return f"{number} from {self.low:g} to {self.high:g}" + (f" ({self.unit})" if self.unit else "")
