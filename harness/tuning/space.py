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
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness.core.errors import ConfigError
from harness.core.knobs import KnobKind, Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from harness.core.knobs import Knob

Value: TypeAlias = "int | float | str"
"""Of a knob: a number, or the name of a choice."""

Settings: TypeAlias = "dict[str, Value]"
"""Value by dotted path (`pipeline.max_staleness`), of all knobs that are searched and no others."""

CHIP_SPLIT = "world.chip_split"
"""Path of the knob that divides the chips: `8x4+32` is 8 replicas of 4 chips and a learner on 32."""


@dataclass(frozen=True, slots=True)
class Group:
    """Knobs that are searched together.

    Attributes:
        names: last parts of their paths.
        why: what they have in common.
        note: what a reader must know of an answer that changes one of them; empty where there is nothing to say.

    """

    names: tuple[str, ...]
    why: str
    note: str = ""


GROUPS: dict[str, Group] = {
    "schedule": Group(
        (
            "buffer_capacity",
            "steps_per_sync",
            "max_staleness",
            "pipeline_depth",
            "max_inflight",
            "consume_chunk",
            "sync_mode",
            "sync_rollout",
        ),
        "when things happen, at the same bill and for the same samples; searched unless others are asked for",
    ),
    "policies": Group(
        ("order_policy", "admission", "window_fraction", "start_unit", "on_full", "router_policy", "kv_policy", "stepping"),
        "which law decides; most make a difference in special cases only",
    ),
    "capacity": Group(
        ("env_workers", "tool_workers", "reward_workers", "slots_per_replica", "decode_chunk_steps"),
        "how much there is of what is not a chip: more of it has a price that the objective does not see",
        "more workers or sandboxes cost money that the objective does not count, and slots need memory: see whether there is "
        "enough",
    ),
    "samples": Group(
        ("group_quorum", "overprovision_members", "overprovision_groups", "filter", "stale_policy"),
        "which samples are trained on",
        "the answer changes which samples are trained on (a quorum prefers short episodes): throughput cannot tell what that "
        "does to learning",
    ),
    "failures": Group(
        ("retry_infra", "retry_data", "backoff_s", "backoff_max_s"),
        "what happens after failures",
    ),
    "deadlines": Group(
        ("tool_s", "episode_s"),
        "when to give up waiting: a shorter deadline frees places and loses the longest episodes",
        "the answer changes a deadline: a shorter one cuts off the longest episodes, so that what is trained on is shorter",
    ),
    "chips": Group(
        ("chip_split",),
        "how the same number of chips is divided between replicas and learner",
        "a split of the chips is predicted from the roofline, which is less certain than measured step times: measure the new "
        "one",
    ),
    "placement": Group(
        ("placement",),
        "whether learner and replicas share chips; by name only, because that changes how many chips there are",
        "sharing chips changes how many there are: rates are per chip, and the bill is another one",
    ),
    "batch": Group(
        ("group_size", "groups_per_step"),
        "what a group and an optimizer step are; by name only, because learning depends on them",
        "the answer changes the size of groups or steps: what a step teaches differs, and throughput cannot tell by how much",
    ),
    "upkeep": Group(
        ("checkpoint_interval", "eval_interval", "eval_episodes"),
        "what costs throughput and buys safety or knowledge; by name only, because the objective sees the cost alone",
        "the answer changes checkpoints or evaluations: the objective sees what they cost, not what they are for",
    ),
}
"""Every knob of the pipeline is in at most one."""

ALL = tuple(name for name in GROUPS if name not in ("placement", "batch", "upkeep"))
"""Groups that `all` means."""

SEARCHED = GROUPS["schedule"].names
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

FLOAT_STEPS = 8
"""A range of a number that is not whole is cut into so many parts."""


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
        """Position of the largest value, or of the last choice."""
        return len(self.values) - 1

    @property
    def choice(self) -> bool:
        """Whether its values are names, which are not nearer to or further from each other."""
        return isinstance(self.values[0], str)

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
        values = tuple(value for value in self.values if isinstance(value, str) or value <= limit)
        return SearchKnob(self.path, values, self.today, self.unit)


def search_knobs(
    knobs: Iterable[Knob],
    today: Mapping[str, Value],
    *,
    names: Iterable[str] = SEARCHED,
    scale_of: Mapping[str, float] | None = None,
    values_of: Mapping[str, tuple[Value, ...]] | None = None,
    reach: int = LINEAR_REACH,
) -> tuple[SearchKnob, ...]:
    """A grid round today's value for each named knob.

    Args:
        knobs: descriptors of the pipeline's knobs.
        today: value by path.
        names: last parts of the paths to search; one that the pipeline does not have is left out.
        scale_of: for a knob whose value today is 0 ("automatic"), by path, the value that it amounts to.
        values_of: what to try of a knob instead of its grid, by path.
        reach: how far linear knobs go at least.

    """
    by_name = {knob.name: knob for knob in knobs}
    found = [by_name[name] for name in names if name in by_name]
    scales, chosen = scale_of or {}, values_of or {}
    return tuple(
        SearchKnob(
            knob.path,
            chosen.get(knob.path) or grid(knob, today[knob.path], scales.get(knob.path, 0), reach),
            today[knob.path],
            knob.unit,
        )
        for knob in found
    )


def grid(knob: Knob, today: Value, scale: float = 0, reach: int = LINEAR_REACH) -> tuple[Value, ...]:
    """What to try of a knob: all choices, or numbers round today's."""
    if knob.kind is KnobKind.CHOICE or isinstance(today, str):
        return knob.choices
    low = knob.low if knob.low is not None else 0.0
    high = knob.high if knob.high is not None else max(reach, 2.0 * today)
    if knob.kind is KnobKind.INT:
        whole: set[Value] = set(_whole(knob, int(today), scale, int(low), int(high), reach))
        return ordered(whole | {today}, low, high)
    if knob.scale is Scale.LOG:
        base = today or scale or 1.0
        return ordered({short(base * factor) for factor in LOG_FACTORS} | {today}, low, high)
    top = min(high, max(low + 1.0, 2.0 * today))
    return ordered({short(low + (top - low) * i / FLOAT_STEPS) for i in range(FLOAT_STEPS + 1)} | {today}, low, high)


def _whole(knob: Knob, today: int, scale: float, low: int, high: int, reach: int) -> Iterable[int]:
    if knob.scale is Scale.LOG:
        base = today or scale
        raw = {round(base * factor) for factor in LOG_FACTORS} if base else {2**i for i in range(0, 17, 2)}
        return {value for value in raw if value >= 1} | ({0} if low == 0 else set())
    top = min(high, max(reach, 2 * today))
    return range(low, top + 1, max(1, -(-(top - low) // MANY_VALUES)))


def between(knob: Knob, low: float, high: float, today: Value) -> tuple[Value, ...]:
    """What to try of a number from `low` to `high`, both included."""
    raw: set[float] = {low, high}
    if isinstance(today, int | float):
        raw.add(today)
    if knob.scale is Scale.LOG:
        first = low or min(1.0, high)
        raw |= {first * (high / first) ** (i / FLOAT_STEPS) for i in range(FLOAT_STEPS + 1)} if first else set()
    elif knob.kind is KnobKind.INT:
        step = max(1, -(-int(high - low) // MANY_VALUES))
        raw |= set(range(int(low), int(high) + 1, step))
    else:
        raw |= {low + (high - low) * i / FLOAT_STEPS for i in range(FLOAT_STEPS + 1)}
    if knob.kind is KnobKind.INT:
        return ordered({round(value) for value in raw}, low, high)
    return ordered({value if value in (low, high, today) else short(value) for value in raw}, low, high)


def short(value: float) -> float:
    """Three significant digits, as a person would write it."""
    return float(f"{value:.3g}")


def ordered(values: Iterable[Value], low: float, high: float) -> tuple[Value, ...]:
    """The numbers that are allowed, ascending, each once."""
    numbers = {value for value in values if isinstance(value, int | float)}
    return tuple(sorted(value for value in numbers if low <= value <= high))


def chips_of(split: str) -> tuple[int, int, int]:
    """Replicas, chips of each and chips of the learner, from `8x4+32`.

    Raises:
        ConfigError: it is not written so.

    """
    found = re.fullmatch(r"(\d+)x(\d+)\+(\d+)", split)
    if found is None:
        raise ConfigError(
            "is no split of chips",
            field=CHIP_SPLIT,
            value=split,
            allowed="REPLICASxCHIPS+LEARNER, for example 8x4+32: 8 replicas of 4 chips, 32 for the learner",
        )
    replicas, each, learner = (int(part) for part in found.groups())
    return replicas, each, learner


def as_fields(settings: Settings) -> Settings:
    """The same settings by fields that stand in a file: a split of the chips is three of them."""
    fields: Settings = {}
    for path, value in settings.items():
        if path == CHIP_SPLIT:
            replicas, each, learner = chips_of(str(value))
            fields |= {
                "world.inference.replicas": replicas,
                "world.inference.chips_per_replica": each,
                "world.learner.chips": learner,
            }
        else:
            fields[path] = value
    return fields


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
        today = self.today
        return {path: value for path, value in settings.items() if value != today[path]}

    def corners(self, idle: frozenset[str] = frozenset()) -> Iterator[Settings]:
        """First guesses: all numbers large, half-way up; each other choice alone; all numbers but one; then one at a time.

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
        numbers = [knob for knob in self.knobs if not knob.choice]
        large, half, small = (base | {knob.path: round(share * knob.last) for knob in numbers} for share in (1.0, 0.5, 0.0))
        left = {knob.path: base[knob.path] for knob in numbers if knob.name in idle}
        targets = [large | left, half | left] if left else []
        targets += [half, large]
        targets += [base | {knob.path: i} for knob in self.knobs if knob.choice for i in range(len(knob.values))]
        targets += [large | {knob.path: base[knob.path]} for knob in numbers]
        targets += [base | {knob.path: knob.last} for knob in numbers]
        targets += [small, *(base | {knob.path: 0} for knob in numbers)]
        targets += [base | {knob.path: knob.last // 2} for knob in numbers]
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
        names = {knob.path for knob in self.knobs if knob.choice}
        moved = True
        while moved:
            moved = False
            for path, goal in target.items():
                if point[path] == goal:
                    continue
                step = 1 if point[path] < goal else -1
                for position in [goal] if path in names else range(goal, point[path], -step):
                    if self.admits(self.at(point | {path: position})):
                        point[path] = position
                        moved = True
                        break
        return point

    def draw(self, rng: random.Random) -> Settings:
        """Each knob anew or near today, with equal chance; admitted or not."""
        return self.at({knob.path: rng.randint(0, knob.last) if rng.random() < 0.5 else knob.start for knob in self.knobs})

    def near(self, settings: Settings, rng: random.Random) -> Settings:
        """One or two knobs moved, by up to three values or to an end of the grid, a choice to any other; admitted or not."""
        moved = self.positions(settings)
        for knob in rng.sample(self.knobs, rng.choice((1, 2)) if len(self.knobs) > 1 else 1):
            here = moved[knob.path]
            if knob.choice:
                moved[knob.path] = rng.choice([i for i in range(len(knob.values)) if i != here] or [here])
                continue
            there = rng.choice((here - 3, here - 2, here - 1, here + 1, here + 2, here + 3, 0, knob.last))
            moved[knob.path] = min(knob.last, max(0, there))
        return self.at(moved)

    def retreat(self, settings: Settings, path: str, share: float) -> Settings:
        """The same settings with one knob moved `share` of the way back to today, and by one value at least; a choice, all."""
        knob = next(knob for knob in self.knobs if knob.path == path)
        here = knob.position(settings[path])
        if share >= 1 or knob.choice or abs(here - knob.start) <= 1:
            return settings | {path: knob.values[knob.start]}
        there = round(here + share * (knob.start - here))
        if there == here:
            there += 1 if knob.start > here else -1
        return settings | {path: knob.values[there]}
