"""A stored grid as something that can be searched a thousand times: looked up, with the noise that was measured.

A replication of a setting gives the grid's level of that setting, times noise whose spread falls with the root of the window,
and whose correlation with today's setting on the same seed is that of the grid. So the truth is known, and a study takes a
second. What it leaves out: the warm-up (short windows are as unbiased as long ones), distributions that are not normal, and
that neighbours are more alike on one seed than their likeness with today's setting says.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grids

from harness.analysis.summary import RunSummary
from harness.tuned import by_hand, with_settings
from harness.tuning.bench import Bench
from harness.tuning.plan import CostModel
from harness.tuning.screen import Screen
from harness.tuning.search import Problem, Promise, tune
from harness.tuning.space import SearchKnob, Settings, Space

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))
from virtual_crew import VirtualCrew  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.tuning.result import TuneResult

CHIPS = 8
WARMUP_STEPS = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """What a grid says of one setting; spreads are of one replication of the grid's length, relative."""

    ratio: float
    level: float
    spread: float
    correlation: float
    lag_max: int
    idle: float


class Emulated:
    """A stored grid that answers as the simulator would."""

    def __init__(self, name: str) -> None:
        grid = json.loads((grids.STORED / f"{name}.json").read_text())
        self.name = name
        self.knobs, self.steps = grid["knobs"], grid["learner_steps"]
        self.values, self.groups = grid["values"], grid["groups_per_step"]
        self.today_point = tuple(grid["today"])
        told = [one for one in grid["points"] if one["replications"] >= 3]
        usual = statistics.median(one["spread"] for one in told)
        usual_level = statistics.median(one["level_spread"] for one in told)
        own = next(one["level_spread"] for one in grid["points"] if tuple(one["point"]) == self.today_point)
        self.table = {tuple(one["point"]): self._entry(one, own, usual, usual_level) for one in grid["points"]}
        self.best = max(entry.ratio for entry in self.table.values())

    def _entry(self, one: dict[str, Any], own: float, usual: float, usual_level: float) -> Entry:
        known = one["replications"] >= 3
        paired = (one["spread"] if known else usual) / max(one["ratio"], 1e-9)
        level = one["level_spread"] if known else usual_level
        shared = (own**2 + level**2 - paired**2) / (2 * own * level) if own and level else 0.0
        return Entry(
            one["ratio"], one["kept_groups_per_chip_s"], level, min(1.0, max(0.0, shared)), one["lag_max"], one["idle"]
        )

    def __call__(self, settings: Settings, seed: int, steps: int) -> RunSummary:
        entry = self.table[self.point(settings)]
        noise = entry.correlation * _normal(seed) + math.sqrt(1 - entry.correlation**2) * _normal(seed, entry.ratio)
        rate = entry.level * math.exp(entry.spread * noise * math.sqrt(self.steps / steps))
        window_s = steps * self.groups / rate / CHIPS
        total_ns = round(window_s * 1e9) * CHIPS
        idle_ns = round(total_ns * entry.idle)
        return RunSummary(
            seed=seed,
            window_s=window_s,
            total_s=window_s * (1 + WARMUP_STEPS / steps),
            chips=CHIPS,
            learner_steps=steps,
            groups=steps * self.groups,
            turns=steps * self.groups * 16,
            episodes=steps * self.groups * 4,
            tokens_made=steps * self.groups,
            tokens_trained=steps * self.groups,
            chip_ns={"kept": total_ns - idle_ns, "idle:generation": idle_ns},
            lag_mean=entry.lag_max / 2,
            lag_p95=float(entry.lag_max),
            lag_max=entry.lag_max,
            lag_in_queue_mean=0.0,
            warmup_steps=WARMUP_STEPS,
        )

    def point(self, settings: Settings) -> grids.Point:
        """As the grid names it."""
        return tuple(int(settings[f"pipeline.{knob}"]) for knob in self.knobs)

    def regret(self, settings: Settings | None) -> float:
        """How much less than the best of the grid, as a fraction; today's setting where none is named."""
        point = self.point(settings) if settings is not None else self.today_point
        return 1 - self.table[point].ratio / self.best

    def problem(self, seed: int, evaluate: Callable[[Settings, int, int], RunSummary] | None = None) -> Problem:
        """To be searched, as the scenario would be, over the values of the grid."""
        scenario = grids.scenario_of(self.name)
        found = [
            SearchKnob(f"pipeline.{name}", tuple(sorted(values)), today)
            for name, values, today in zip(self.knobs, self.values, self.today_point, strict=True)
        ]
        space = Space(tuple(found), partial(with_settings, scenario))
        steps = scenario.run.learner_steps
        closed_forms = partial(by_hand, scenario)
        return Problem(self.name, space, evaluate or self, steps, WARMUP_STEPS, seed, f"{self.name}.toml", closed_forms)


def _normal(*key: float) -> float:
    return random.Random(repr(key)).gauss(0.0, 1.0)


class Counted:
    """Counts the simulated seconds of what it evaluates."""

    def __init__(self, evaluate: Callable[[Settings, int, int], RunSummary]) -> None:
        self.evaluate = evaluate
        self.simulated_s = 0.0

    def __call__(self, settings: Settings, seed: int, steps: int) -> RunSummary:
        run = self.evaluate(settings, seed, steps)
        self.simulated_s += run.total_s
        return run


def study(emulated: Emulated, seed: int, step_budget: float) -> tuple[TuneResult, float]:
    """One whole `tune` in virtual time, where a learner step costs a second; and the seconds that were simulated."""
    counted = Counted(emulated)
    crew = VirtualCrew(counted, 1, lambda settings, seed, steps: steps + WARMUP_STEPS)
    promise = Promise(step_budget, started_at=0.0, reserve_s=0.0)
    return tune(emulated.problem(seed, counted), promise=promise, workers=1, crew=crew), counted.simulated_s


def plain_search(emulated: Emulated, seed: int, candidates: list[int], replications: int) -> Iterator[tuple[Settings, float]]:
    """The same proposals, each judged by so many replications of the scenario's own length on seeds of its own.

    Yields what would be named after each number of candidates, and the seconds simulated by then.
    """
    counted = Counted(emulated)

    def alone(settings: Settings, screen_seed: int, steps: int) -> RunSummary:
        own = random.Random(repr((seed, sorted(settings.items()))))
        runs = [counted(settings, own.getrandbits(50), steps) for _ in range(replications)]
        chip_ns = {key: sum(run.chip_ns[key] for run in runs) for key in runs[0].chip_ns}
        return replace(runs[0], groups=sum(run.groups for run in runs), chip_ns=chip_ns)

    problem = emulated.problem(seed, alone)
    bench = Bench(VirtualCrew(alone, 1, lambda settings, seed, steps: 1.0), CostModel(WARMUP_STEPS), math.inf)
    screen = Screen(problem.space, bench, "kept", 10**9, problem.learner_steps, [seed], seed)
    bench.drive(screen.baseline())
    jobs, done = screen.search(max(candidates)), 0
    for number in candidates:
        bench.drive(islice(jobs, number - done), finished=screen.learn)
        done = number
        leader = max(screen.ranking(), key=lambda scored: scored.score, default=None)
        yield (leader.settings if leader and leader.score > 0 else problem.space.today), counted.simulated_s
