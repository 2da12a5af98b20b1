"""Grids of settings, computed by brute force: what there is to find, so that a search can be held against it.

    python tests/benchmarks/grids.py [SCENARIO ...] [--log DIR] [--minutes M] [--workers N]
    python tests/benchmarks/grids.py --collect [--log DIR]

The first computes and goes on where it was stopped: each finished simulation is a line of `DIR/SCENARIO.jsonl`. The second
writes what is there into `tests/benchmarks/grids/`. How time is saved without saying more than is known:

- Points share seeds, and what is stored is the ratio to today's setting over common seeds, which is what regret is made of.
- Combinations that do the same thing (a bound that never binds) give bit-equal runs. They are found on one short seed and then
  share the runs of one of them; one other member of each class is run on a long seed, and where it differs, the class is split.
- `half_width` is Student's over the point's own replications. Of two it says little, so there is `pooled_half_width`, too, from
  one spread for all points of the grid.
- Every point first gets a few seeds; then those get more whose interval is widest for how near to the top they lie.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import multiprocessing
import random
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.statistics import Interval, RatioSample, ratio_interval, relative_ratio_difference, student_quantile
from harness.core.errors import ConfigError, HarnessError
from harness.run import load, simulate_once
from harness.tuned import fair_lengths, with_settings
from harness.tuning.result import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from harness.run import PipelineConfig
    from harness.scenario.schema import Scenario
    from harness.tuning.space import Settings

HERE = Path(__file__).parent
STORED = HERE / "grids"
"""A folder of JSON beside this file."""

SCENARIOS = HERE.parents[1] / "scenarios"

GOAL = 0.01
"""Half-width of a point's ratio to today's that is aimed at."""

SHORT_SEED, SHORT_STEPS = 7_000_001, 12
FIRST_SEED = 7_100_001
"""Seeds of the grid. No study uses them, and no regret is measured on them."""

KNOBS = ("buffer_capacity", "steps_per_sync", "max_staleness", "pipeline_depth", "max_inflight")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one grid consists of: values by knob in the order of `KNOBS`, and the window of a replication in optimizer steps."""

    values: tuple[tuple[int, ...], ...]
    steps: int
    coarse: int = 2


PLANS = {
    "publish_stall": Plan(((20, 40, 160), (1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (48, 96, 192, 384)), 48, 4),
    "slow_learner": Plan(((48, 96, 384), (1, 2, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (192, 288, 384, 768, 1536)), 30),
    "long_tail_tools": Plan(((8, 32, 128), (1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (64, 128, 256, 512)), 40),
    "coding_agent": Plan(((64, 256), (1, 2), (1, 2, 4), (0, 1, 2, 4), (256, 512, 1024)), 24),
}

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One finished simulation."""

    point: Point
    seed: int
    steps: int
    cpu_s: float
    groups: int
    chip_s: float
    lag_p95: float
    lag_max: int
    idle: float
    tokens: int
    turns: int
    sign: str
    error: str = ""


@lru_cache
def scenario_of(name: str) -> Scenario[PipelineConfig]:
    """From its file, once a process."""
    return load(SCENARIOS / f"{name}.toml")


def settings_of(point: Point) -> Settings:
    """As the pipeline names them."""
    return {f"pipeline.{name}": value for name, value in zip(KNOBS, point, strict=True)}


def today_of(name: str) -> Point:
    """Today's setting of a scenario, as a point; it need not lie in the grid."""
    config = scenario_of(name).pipeline
    return tuple(getattr(config, knob) for knob in KNOBS)


def points_of(name: str) -> list[Point]:
    """Every combination that the pipeline admits, today's first."""
    today = today_of(name)
    found = [point for point in itertools.product(*PLANS[name].values) if point != today and admitted(name, point)]
    return [today, *found]


def admitted(name: str, point: Point) -> bool:
    """Whether the pipeline would load it."""
    try:
        with_settings(scenario_of(name), settings_of(point))
    except ConfigError:
        return False
    return True


def evaluate(name: str, point: Point, seed: int, steps: int) -> Row:
    """One replication of a point."""
    return replace(evaluate_settings(name, settings_of(point), seed, steps), point=point)


def evaluate_settings(name: str, settings: Settings, seed: int, steps: int) -> Row:
    """One replication, as `tune` would make it; of any settings, so without a point."""
    began = time.process_time()
    changed = with_settings(scenario_of(name), settings)
    warmup, window = fair_lengths(changed, steps)
    try:
        run = simulate_once(changed, seed, learner_steps=window, warmup_steps=warmup)
    except HarnessError as failure:
        return Row((), seed, steps, time.process_time() - began, 0, 1.0, 0.0, 0, 1.0, 0, 0, "failed", str(failure)[:200])
    sign = hashlib.blake2b(json.dumps(plain(run), sort_keys=True).encode(), digest_size=8).hexdigest()
    return Row(
        (), seed, steps, round(time.process_time() - began, 3), run.groups, run.chip_total_ns / 1e9, run.lag_p95,
        run.lag_max, run.idle_share, run.tokens_made, run.turns, sign,
    )  # fmt: skip


# ── the state of a grid ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Grid:
    """What is known of one scenario so far."""

    name: str
    log: Path
    points: list[Point] = field(default_factory=list)
    rows: dict[tuple[Point, int, int], Row] = field(default_factory=dict)
    long: dict[Point, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.points = points_of(self.name)
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                raw = json.loads(line)
                self._keep(Row(**(raw | {"point": tuple(raw["point"])})))

    @property
    def path(self) -> Path:
        """Where finished simulations are kept."""
        return self.log / f"{self.name}.jsonl"

    @property
    def plan(self) -> Plan:
        """What it consists of."""
        return PLANS[self.name]

    @property
    def today(self) -> Point:
        """Today's setting."""
        return self.points[0]

    def add(self, row: Row) -> None:
        """Keep a finished simulation, on disk too."""
        self._keep(row)
        with self.path.open("a") as out:
            out.write(json.dumps(asdict(row)) + "\n")

    def _keep(self, row: Row) -> None:
        self.rows[row.point, row.seed, row.steps] = row
        if row.steps == self.plan.steps and row.seed >= FIRST_SEED:
            self.long.setdefault(row.point, set()).add(row.seed)

    def has(self, point: Point, seed: int, steps: int) -> bool:
        """Whether this simulation is done."""
        return (point, seed, steps) in self.rows

    def classes(self) -> list[list[Point]]:
        """Points that do the same thing, as far as is known: equal on the short seed, and on each seed that two of them ran."""
        alike: dict[str, list[list[Point]]] = {}
        for point in self.points:
            row = self.rows.get((point, SHORT_SEED, SHORT_STEPS))
            groups = alike.setdefault(row.sign if row else str(point), [])
            home = next((group for group in groups if not any(self._differ(point, other) for other in group)), None)
            if home is None:
                groups.append([point])
            else:
                home.append(point)
        return [group for groups in alike.values() for group in groups]

    def _differ(self, a: Point, b: Point) -> bool:
        return any(
            self.rows[a, seed, self.plan.steps].sign != self.rows[b, seed, self.plan.steps].sign
            for seed in self.seeds(a) & self.seeds(b)
        )

    def seeds(self, point: Point) -> set[int]:
        """Long seeds that a point itself has run."""
        return self.long.get(point, set())

    def samples(self, group: list[Point]) -> dict[int, Row]:
        """Long replications of a class, by seed, whichever member made them."""
        return {seed: self.rows[point, seed, self.plan.steps] for point in group for seed in sorted(self.seeds(point))}

    def ratio(self, group: list[Point]) -> Interval:
        """Kept groups per chip-second over today's, over common seeds."""
        ours, theirs = self.samples(group), self.samples([self.today])
        common = sorted(ours.keys() & theirs.keys())
        if not common:
            return Interval(math.nan, -math.inf, math.inf, math.inf, 0)
        if self.today in group:
            return Interval(1.0, 1.0, 1.0, 0.0, len(common))
        gain = relative_ratio_difference(_sample([theirs[seed] for seed in common]), _sample([ours[seed] for seed in common]))
        return Interval(1 + gain.mean, 1 + gain.low, 1 + gain.high, gain.half_width, gain.n)

    # ── what to do next ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def jobs_short(self) -> list[tuple[Point, int, int]]:
        """All points on the short seed."""
        return self._undone((point, SHORT_SEED, SHORT_STEPS) for point in self.points)

    def jobs_coarse(self, seeds: int) -> list[tuple[Point, int, int]]:
        """The first of each class on the first long seeds, and one other member on the very first."""
        wanted = [(self.today, FIRST_SEED + i, self.plan.steps) for i in range(seeds)]
        for group in self.classes():
            head = self._head(group)
            wanted += [(head, FIRST_SEED + i, self.plan.steps) for i in range(seeds)]
            if len(group) > 1:
                other = random.Random(str(head)).choice([point for point in group if point != head])
                wanted.append((other, FIRST_SEED, self.plan.steps))
        return self._undone(wanted)

    def jobs_fine(self, count: int) -> list[tuple[Point, int, int]]:
        """One more seed for the classes whose interval is widest for how near to the top they lie."""
        known = [(group, self.ratio(group)) for group in self.classes()]
        top = max((ratio.mean for _, ratio in known if ratio.n), default=1.0)
        wide = [(group, ratio) for group, ratio in known if ratio.half_width > GOAL * ratio.mean and ratio.mean > 0]

        def urgency(one: tuple[list[Point], Interval]) -> tuple[int, float]:
            below = 1 - one[1].mean / top
            return (0 if below < 0.05 else 1 if below < 0.15 else 2, one[1].n + 10 * below)

        wanted = []
        for group, ratio in sorted(wide, key=urgency)[:count]:
            seed = FIRST_SEED + ratio.n
            wanted += [(self.today, seed, self.plan.steps), (self._head(group), seed, self.plan.steps)]
        return self._undone(wanted)

    def _head(self, group: list[Point]) -> Point:
        return max(group, key=lambda point: (point == self.today, len(self.seeds(point))))

    def _undone(self, jobs: Iterable[tuple[Point, int, int]]) -> list[tuple[Point, int, int]]:
        return [job for job in dict.fromkeys(jobs) if job not in self.rows]


def _spread(interval: Interval) -> float:
    """Standard deviation of one replication, from an interval over several."""
    if interval.n < 2:
        return 0.0
    return interval.half_width * math.sqrt(interval.n) / student_quantile((1 + interval.confidence) / 2, interval.n - 1)


def pooled_spread(ratios: list[Interval]) -> tuple[float, int]:
    """One relative spread for all classes, and its degrees of freedom: two replications say little of their own."""
    freedom = sum(ratio.n - 1 for ratio in ratios)
    squares = math.fsum((ratio.n - 1) * (_spread(ratio) / ratio.mean) ** 2 for ratio in ratios)
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.inf, 0)


def _pooled(ratio: Interval, spread: float, freedom: int) -> float | None:
    return ratio.mean * spread * student_quantile(0.975, freedom) / math.sqrt(ratio.n) if freedom else None


def _sample(rows: list[Row]) -> RatioSample:
    return RatioSample([row.groups for row in rows], [row.chip_s for row in rows])


# ── computing ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def phases(grids: list[Grid]) -> Iterator[tuple[Grid, list[tuple[Point, int, int]]]]:
    """What is to be computed, in this order: coarse everywhere, then finer until nothing is too wide."""
    for grid in grids:
        yield grid, grid.jobs_short()
        while jobs := grid.jobs_coarse(1):  # a class that is split needs more
            yield grid, jobs
    for grid in grids:
        while jobs := grid.jobs_coarse(grid.plan.coarse):
            yield grid, jobs
    while True:
        anything = False
        for grid in grids:
            jobs = grid.jobs_fine(12)
            if jobs:
                anything = True
                yield grid, jobs
        if not anything:
            return


def compute(grids: list[Grid], workers: int, minutes: float) -> None:
    """Until nothing is too wide, or the time is over."""
    ends = time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        for grid, jobs in phases(grids):
            began, todo, running = time.monotonic(), list(jobs), set[Future[Row]]()
            while (todo and time.monotonic() < ends) or running:
                while todo and len(running) < workers + 1 and time.monotonic() < ends:
                    running.add(pool.submit(evaluate, grid.name, *todo.pop(0)))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    grid.add(one.result())
            print(f"{time.strftime('%H:%M:%S')} {grid.name}: {len(jobs)} in {time.monotonic() - began:.0f} s", flush=True)
            if time.monotonic() >= ends:
                return


def stored(grid: Grid) -> dict[str, Any]:
    """What is written into the repository."""
    points: list[dict[str, Any]] = []
    ratios = [grid.ratio(group) for group in grid.classes() if grid.today not in group]
    pooled, freedom = pooled_spread([ratio for ratio in ratios if ratio.n > 1 and ratio.mean > 0])
    for number, group in enumerate(grid.classes()):
        ratio = grid.ratio(group)
        if ratio.n == 0:
            continue
        rows = grid.samples(group)
        kept = [rows[seed] for seed in sorted(rows)]
        level = ratio_interval([row.groups for row in kept], [row.chip_s for row in kept])
        common = {
            "same_as": number,
            "ratio": ratio.mean,
            "half_width": ratio.half_width if math.isfinite(ratio.half_width) else None,
            "pooled_half_width": _pooled(ratio, pooled, freedom) if grid.today not in group else 0.0,
            "kept_groups_per_chip_s": level.mean,
            "spread": _spread(ratio),
            "level_spread": _spread(level) / level.mean if level.mean else 0.0,
            "replications": ratio.n,
            "lag_max": max(row.lag_max for row in kept),
            "idle": sum(row.idle for row in kept) / len(kept),
            "cpu_s": round(sum(row.cpu_s for row in kept), 2),
        }
        points.extend({"point": list(point)} | common for point in group)
    points.sort(key=lambda one: -one["ratio"])
    wide = [one for one in points if one["half_width"] is None or one["half_width"] > GOAL * one["ratio"]]
    return {
        "scenario": grid.name,
        "knobs": list(KNOBS),
        "values": [list(values) for values in grid.plan.values],
        "today": list(grid.today),
        "learner_steps": grid.plan.steps,
        "groups_per_step": scenario_of(grid.name).pipeline.groups_per_step,
        "first_seed": FIRST_SEED,
        "admitted": len(grid.points),
        "computed": len(points),
        "distinct": len({one["same_as"] for one in points}),
        "simulations": len(grid.rows),
        "cpu_s": round(sum(row.cpu_s for row in grid.rows.values())),
        "pooled_spread": pooled if freedom else None,
        "not_within_1_percent": len(wide),
        "pooled_not_within_1_percent": sum(
            one["pooled_half_width"] is None or one["pooled_half_width"] > GOAL * one["ratio"] for one in points
        ),
        "points": points,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", default=list(PLANS))
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "harness-grids")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--count", action="store_true", help="say how many points there are, and how many differ so far")
    args = parser.parse_args()
    args.log.mkdir(parents=True, exist_ok=True)
    grids = [Grid(name, args.log) for name in args.scenario]
    if args.count:
        print("".join(f"{grid.name} {len(grid.points)} points, {len(grid.classes())} classes\n" for grid in grids), end="")
        return
    if not args.collect:
        compute(grids, args.workers, args.minutes)
        return
    STORED.mkdir(exist_ok=True)
    for grid in grids:
        found = stored(grid)
        lines = ",\n".join(json.dumps(one) for one in found.pop("points"))
        head = json.dumps(found, indent=1)[:-2]
        (STORED / f"{grid.name}.json").write_text(f'{head},\n "points": [\n{lines}\n]\n}}\n')
        print(json.dumps({key: value for key, value in found.items() if key != "values"}))


if __name__ == "__main__":
    main()
