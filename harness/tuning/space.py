"""What is searched: a few knobs, each with a range, and a rule that refuses combinations.

The search knows nothing of what a knob means. It is handed a path, a range and the value that stands today, and a function
that builds the candidate and raises `ConfigError` when the pipeline would refuse it at load. A refusal costs a millisecond
and no simulation, so constraints between knobs (a publish that could never be reached, a buffer that cannot hold a batch)
are honoured by asking, not by repeating them here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness.core.errors import ConfigError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

Settings: TypeAlias = "dict[str, int]"
"""Value by dotted path (`pipeline.max_staleness`), only of the knobs that are searched."""


@dataclass(frozen=True, slots=True)
class SearchKnob:
    """One knob of the search.

    Attributes:
        path: dotted path of the field, as `--set` takes it.
        low: smallest value tried.
        high: largest value tried.
        today: the value in the scenario. It may lie outside the range.
        log: whether a step is a factor (capacities) rather than an addition (counts of versions).
        unit: of the values, for people.

    Raises:
        ConfigError: the range is empty, or a factor is asked of values below one.

    """

    path: str
    low: int
    high: int
    today: int
    log: bool = False
    unit: str = ""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(
                "has an empty search range",
                field=self.path,
                value=f"{self.low} to {self.high}",
                allowed="low <= high",
                remedy="raise the ceiling or leave this knob out of the search",
            )
        if self.log and self.low < 1:
            raise ConfigError(
                "is searched by factors, so its range starts at 1 or above",
                field=self.path,
                value=self.low,
                allowed="low >= 1",
            )

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    def clip(self, value: int) -> int:
        """The nearest value in range."""
        return min(self.high, max(self.low, value))

    def draw(self, rng: random.Random) -> int:
        """A value, even over the range or over its logarithm."""
        if not self.log:
            return rng.randint(self.low, self.high)
        return self.clip(round(math.exp(rng.uniform(math.log(self.low), math.log(self.high)))))

    def below(self, limit: int) -> SearchKnob:
        """The same knob with nothing above `limit` tried."""
        return SearchKnob(self.path, min(self.low, limit), min(self.high, limit), self.today, self.log, self.unit)


@dataclass(frozen=True, slots=True)
class Space:
    """The knobs, and the rule.

    Attributes:
        knobs: what is searched.
        admit: builds the candidate from the whole settings; its result is ignored. Raises `ConfigError` for a
            combination that the pipeline refuses.

    """

    knobs: tuple[SearchKnob, ...]
    admit: Callable[[Mapping[str, int]], object]

    @property
    def today(self) -> Settings:
        """The settings in the scenario."""
        return {knob.path: knob.today for knob in self.knobs}

    def admits(self, settings: Mapping[str, int]) -> bool:
        """Whether the pipeline accepts this combination."""
        try:
            self.admit(settings)
        except ConfigError:
            return False
        return True

    def changed(self, settings: Mapping[str, int]) -> Settings:
        """Only what differs from today."""
        return {path: value for path, value in settings.items() if value != self.today[path]}

    def corners(self) -> Iterator[Settings]:
        """First guesses: everything as large, as small and half as large as it goes, then one knob at a time.

        Each corner is blended towards today until it is admitted, so that a constraint does not lose the direction.
        """
        for pick in (1.0, 0.5, 0.0):
            yield from self._blend({knob.path: _between(knob, pick) for knob in self.knobs})
        for knob in self.knobs:
            for pick in (1.0, 0.5, 0.0):
                yield from self._blend(self.today | {knob.path: _between(knob, pick)})

    def _blend(self, target: Settings) -> Iterator[Settings]:
        """The furthest admitted point on the way from today to `target`, if one differs from today."""
        for share in (1.0, 0.75, 0.5, 0.25):
            point = {}
            for knob in self.knobs:
                start = knob.clip(knob.today)
                point[knob.path] = round(start + share * (target[knob.path] - start))
            if self.admits(point):
                if point != self.today:
                    yield point
                return

    def draw(self, rng: random.Random) -> Settings:
        """Each knob anew, or as it is today, with equal chance; admitted or not."""
        return {
            knob.path: knob.draw(rng) if rng.random() < 0.5 else knob.clip(knob.today)  # noqa: PLR2004
            for knob in self.knobs
        }


def _between(knob: SearchKnob, share: float) -> int:
    """`share` of the way from the lowest to the highest value, on the knob's own scale."""
    if knob.log:
        return knob.clip(round(knob.low * (knob.high / knob.low) ** share))
    return round(knob.low + share * (knob.high - knob.low))
