"""What is searched: a few knobs, each with a short list of values, and a rule that refuses combinations.

The search knows nothing of what a knob means. It is handed descriptors, the value that stands today, and a function that
builds the candidate and raises `ConfigError` when the pipeline would refuse it at load. A refusal costs a millisecond and no
simulation, so constraints between knobs (a publish that could never be reached, a buffer that cannot hold a batch) are
honoured by asking, not by repeating them here.

Each knob has a grid of a dozen values rather than a range: values a person would write, few enough that equal candidates
meet and are not simulated twice, and with the special value 0 ("off", "automatic") of a logarithmic knob as a point like any
other. The search moves on positions in the grid.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness.core.errors import ConfigError
from harness.core.knobs import Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from harness.core.knobs import Knob

Value: TypeAlias = "int | float | str"
"""Of a knob: a number, or the name of a choice."""

Settings: TypeAlias = "dict[str, Value]"
"""Value by dotted path (`pipeline.max_staleness`), of all knobs that are searched and no others."""

SEARCHED = ("buffer_capacity", "steps_per_sync", "max_staleness", "pipeline_depth", "max_inflight")
"""Names of the knobs that are searched unless others are asked for."""

LAG_KNOB = "max_staleness"
"""The knob whose values the lag ceiling bounds at once; what others do to the lag is measured."""

LOG_FACTORS = (1 / 4, 1 / 2, 3 / 4, 1, 3 / 2, 2, 3, 4)
"""Values of a logarithmic knob as multiples of today's: two doublings each way. Capacities further off than that are a
question for capacity planning, not for tuning."""

LINEAR_REACH = 4
"""Values of a linear knob go at least this far (and to twice today's). It is the default ceiling of the lag too: four versions
is what the field's trainers allow by default, and whoever's loss bears more says so with a ceiling of their own."""

MANY_VALUES = 17
"""A longer linear range is thinned to about this many values."""


@dataclass(frozen=True, slots=True)
class SearchKnob:
    """One knob of the search.

    Attributes:
        path: dotted path of the field, as `--set` takes it.
        values: what is tried, ascending, each once.
        today: the value in the scenario; it may lie outside `values`.
        unit: of the values, for people.

    Raises:
        ConfigError: no value is left to try.

    """

    path: str
    values: tuple[Value, ...]
    today: Value
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError(
                "has no value left to try", field=self.path, remedy="raise the lag ceiling or leave this knob out of the search"
            )

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def last(self) -> int:
        """Position of the largest value."""
        return len(self.values) - 1

    def position(self, value: Value) -> int:
        """Where `value` stands in the grid; the nearest when it does not, the first for a choice that is not there."""
        if value in self.values:
            return self.values.index(value)
        return min(range(len(self.values)), key=lambda i: (_apart(self.values[i], value), i))

    @property
    def start(self) -> int:
        """Position of today's value, or the nearest."""
        return self.position(self.today)

    def below(self, limit: int) -> SearchKnob:
        """The same knob with nothing above `limit` tried."""
        return SearchKnob(self.path, tuple(value for value in self.values if isinstance(value, str) or value <= limit), self.today, self.unit)


def search_knobs(
    knobs: Iterable[Knob],
    today: Mapping[str, int],
    *,
    names: Iterable[str] = SEARCHED,
    scale_of: Mapping[str, int] | None = None,
    reach: int = LINEAR_REACH,
) -> tuple[SearchKnob, ...]:
    """A grid round today's value for each named knob.

    Args:
        knobs: descriptors of the pipeline's knobs.
        today: value by path.
        names: last parts of the paths to search; one that the pipeline does not have is left out.
        reach: how far linear knobs go at least.
        scale_of: for a knob whose value today is 0 ("automatic"), by path, the value that it amounts to.

    """
    by_name = {knob.name: knob for knob in knobs}
    found = [by_name[name] for name in names if name in by_name]
    scales = scale_of or {}
    return tuple(
        SearchKnob(knob.path, _grid(knob, today[knob.path], scales.get(knob.path, 0), reach), today[knob.path], knob.unit)
        for knob in found
    )


def _grid(knob: Knob, today: int, scale: int, reach: int) -> tuple[int, ...]:
    low = int(knob.low if knob.low is not None else 0)
    high = int(knob.high if knob.high is not None else max(reach, 2 * today))
    if knob.scale is Scale.LOG:
        base = today or scale
        raw = {round(base * factor) for factor in LOG_FACTORS} if base else {2**i for i in range(0, 17, 2)}
        raw = {value for value in raw if value >= 1} | ({0} if low == 0 else set())
    else:
        top = min(high, max(reach, 2 * today))
        raw = set(range(low, top + 1, max(1, -(-(top - low) // MANY_VALUES))))
    return tuple(sorted(value for value in raw | {today} if low <= value <= high))


def _apart(a: Value, b: Value) -> float:
    return 0.0 if isinstance(a, str) or isinstance(b, str) else abs(a - b)


@dataclass(frozen=True, slots=True)
class Space:
    """The knobs, and the rule.

    Attributes:
        knobs: what is searched.
        admit: builds the candidate from the whole settings; its result is ignored. Raises `ConfigError` for a
            combination that the pipeline refuses.

    """

    knobs: tuple[SearchKnob, ...]
    admit: Callable[[Settings], object]

    @property
    def today(self) -> Settings:
        """The settings in the scenario."""
        return {knob.path: knob.today for knob in self.knobs}

    @property
    def size(self) -> int:
        """How many combinations there are, refused ones included."""
        size = 1
        for knob in self.knobs:
            size *= len(knob.values)
        return size

    def admits(self, settings: Settings) -> bool:
        """Whether the pipeline accepts this combination."""
        try:
            self.admit(settings)
        except ConfigError:
            return False
        return True

    def at(self, positions: Mapping[str, int]) -> Settings:
        """The settings at these positions."""
        return {knob.path: knob.values[positions[knob.path]] for knob in self.knobs}

    def positions(self, settings: Settings) -> dict[str, int]:
        """The positions of these settings, or the nearest."""
        return {knob.path: knob.position(settings[knob.path]) for knob in self.knobs}

    def changed(self, settings: Settings) -> Settings:
        """Only what differs from today."""
        return {path: value for path, value in settings.items() if value != self.today[path]}

    def corners(self, idle: frozenset[str] = frozenset()) -> Iterator[Settings]:
        """First guesses: all knobs large, half-way up, all but one; then one knob at a time, far ones first; all small.

        The very first leave the knobs alone whose names are in `idle`: what is known of today's run says that they have next to
        nothing to win.

        All but one, because constraints tie knobs together (a deeper pipeline needs a larger bound on staleness), so that
        one alone often cannot move; and because one that does harm when it is large would spoil the corner.

        Where the pipeline refuses a corner, the point stands in for it that is reached by moving each knob as far towards it
        as is admitted, in turn, until none moves.
        """
        base = self._base()
        if base is None:
            return
        large, half = ({knob.path: round(share * knob.last) for knob in self.knobs} for share in (1.0, 0.5))
        left = {knob.path: base[knob.path] for knob in self.knobs if knob.name in idle}
        targets = [large | left, half | left] if left else []
        targets += [half, large, *(large | {path: start} for path, start in base.items())]
        targets += [base | {knob.path: knob.last} for knob in self.knobs]
        targets += [dict.fromkeys(base, 0), *(base | {knob.path: 0} for knob in self.knobs)]
        targets += [base | {knob.path: knob.last // 2} for knob in self.knobs]
        seen = [self.today]
        for target in targets:
            point = self.at(self._march(base, target))
            if point not in seen:
                seen.append(point)
                yield point

    def _base(self) -> dict[str, int] | None:
        """Where corners are reached from: today, or, if a ceiling forbids that, some other admitted point."""
        rng = random.Random(0)
        tries = [self.positions(self.today), dict.fromkeys((knob.path for knob in self.knobs), 0)]
        tries += [{knob.path: rng.randint(0, knob.last) for knob in self.knobs} for _ in range(300)]
        return next((point for point in tries if self.admits(self.at(point))), None)

    def _march(self, base: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
        point = dict(base)
        moved = True
        while moved:
            moved = False
            for path, goal in target.items():
                step = 1 if point[path] < goal else -1
                for position in range(goal, point[path], -step):
                    if self.admits(self.at(point | {path: position})):
                        point[path] = position
                        moved = True
                        break
        return point

    def draw(self, rng: random.Random) -> Settings:
        """Each knob anew or near today, with equal chance; admitted or not."""
        return self.at({knob.path: rng.randint(0, knob.last) if rng.random() < 0.5 else knob.start for knob in self.knobs})

    def near(self, settings: Settings, rng: random.Random) -> Settings:
        """One or two knobs moved, by up to three values or to an end of the grid; admitted or not."""
        moved = self.positions(settings)
        for knob in rng.sample(self.knobs, rng.choice((1, 2)) if len(self.knobs) > 1 else 1):
            here = moved[knob.path]
            there = rng.choice((here - 3, here - 2, here - 1, here + 1, here + 2, here + 3, 0, knob.last))
            moved[knob.path] = min(knob.last, max(0, there))
        return self.at(moved)

    def retreat(self, settings: Settings, path: str, share: float) -> Settings:
        """The same settings with one knob moved `share` of the way back to today, and by one value at least."""
        knob = next(knob for knob in self.knobs if knob.path == path)
        here = knob.position(settings[path])
        if share >= 1 or abs(here - knob.start) <= 1:
            return settings | {path: knob.values[knob.start]}
        there = round(here + share * (knob.start - here))
        if there == here:
            there += 1 if knob.start > here else -1
        return settings | {path: knob.values[there]}
