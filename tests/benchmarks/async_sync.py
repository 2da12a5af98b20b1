"""Asynchronous against synchronous, live: kept groups per second when a tool takes a lognormal second, in pairs of runs.

    uv run python tests/benchmarks/async_sync.py [--pairs N] [--json]

The scenario is `cpu_live` with a calculator that sleeps for a lognormal time (median 1 s), the same for a task in both runs.
One world is built and compiled; both runs of a pair begin with the same weights and take the same number of learner steps, and
they change places from pair to pair. Synchronous: no staleness, no depth. Asynchronous: two steps of depth, samples up to two
steps old. `recompilations_after_warmup` counts XLA compilations in all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import combinations_with_replacement
from math import sqrt
from pathlib import Path
from typing import Any

import harness
from harness.engines import live
from pipeline.build import Pipeline
from pipeline.live import LiveWorld
from pipeline.numerics import saves
from pipeline.numerics.dispatch import Decision
from pipeline.numerics.engine import CompileCounter

SCENARIO = Path(__file__).parents[2] / "scenarios" / "cpu_live.toml"
COMMON = (
    'live.environment.options={ smallest = 10, largest = 99, operators = "+-", tool_median_s = 1.0, tool_sigma = 0.5 }',
    "live.learner.warm_start_stop_loss=0.1", "pipeline.eval_interval=0", "pipeline.checkpoint_interval=0",
    "pipeline.group_size=8", "pipeline.groups_per_step=8",
    "pipeline.buffer_capacity=32", "pipeline.max_inflight=192", "pipeline.env_workers=192", "pipeline.tool_workers=192",
    "pipeline.slots_per_replica=64",
)  # fmt: skip
SETTINGS = {
    "synchronous": ("pipeline.max_staleness=0", "pipeline.pipeline_depth=0"),
    "asynchronous": ("pipeline.max_staleness=2", "pipeline.pipeline_depth=2"),
}
STEPS, WARMUP_STEPS = 8, 2
PAIRS = 8


class Bench:
    """A world, and runs in it."""

    def __init__(self) -> None:
        self._scenarios = {name: harness.load(SCENARIO, overrides=COMMON + more) for name, more in SETTINGS.items()}
        first = self._scenarios["synchronous"]
        self._world = LiveWorld(first.live, first.pipeline, replicas=1, chips_per_replica=1, learner_chips=1, seed=0)
        self._world.start()
        live.run(lambda rt: self._world.warm_start(), seed=0)
        self._begin = saves.on_host(self._world.dispatcher.run(Decision("learner.state")))
        self.groups_per_s("asynchronous", 0, steps=1)  # what JAX compiles beside our programs, if anything
        self.counter = CompileCounter()
        self.counter.__enter__()

    def close(self) -> None:
        self._world.stop()

    def groups_per_s(self, setting: str, number: int, *, steps: int = STEPS) -> float:
        """Kept groups per second of one run, after its first steps."""
        world, config = self._world, self._scenarios[setting].pipeline
        world.restore(self._begin)
        world.source.restore({"given": 1000 * number, "again": []})

        async def main(rt: Any) -> Any:
            await world.install(0)
            pipeline = Pipeline(rt, config, world.hardware, world.source, world.learner.snapshot)
            return await pipeline.run(steps=steps, warmup_steps=WARMUP_STEPS)

        report = live.run(main, performers=world.performers, seed=number)
        return report.tally.groups / ((report.end_ns - report.start_ns) / 1e9)


def interval(ratios: list[float], z: float = 1.96) -> tuple[float, float, float]:
    """(lower, median, upper): Hodges and Lehmann's interval of the median (Hollander, Wolfe and Chicken, section 3.4)."""
    walsh = sorted((a + b) / 2 for a, b in combinations_with_replacement(ratios, 2))
    n = len(ratios)
    cut = max(0, int(len(walsh) / 2 - z * sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return walsh[cut], statistics.median(ratios), walsh[-1 - cut]


def measure(count: int = PAIRS) -> dict[str, float]:
    """Every figure."""
    bench = Bench()
    try:
        ratios = []
        for number in range(1, count + 1):
            order = list(SETTINGS) if number % 2 else list(SETTINGS)[::-1]
            began_s = time.monotonic()
            speeds = {name: bench.groups_per_s(name, number) for name in order}
            ratios.append(speeds["asynchronous"] / speeds["synchronous"])
            sys.stderr.write(
                f"pair {number} of {count}  {speeds['asynchronous']:.2f} against {speeds['synchronous']:.2f} kept groups/s: "
                f"{ratios[-1]:.2f}  ({time.monotonic() - began_s:.0f} s)\n"
            )
        lower, median, upper = interval(ratios)
        return {
            "async_over_sync": median, "async_over_sync_lower": lower, "async_over_sync_upper": upper,
            "async_over_sync_pairs": count, "recompilations_after_warmup": bench.counter.count,
        }  # fmt: skip
    finally:
        bench.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Asynchronous against synchronous, live.")
    parser.add_argument("--json", action="store_true", help="one flat object of numbers on standard output")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"pairs of runs (default {PAIRS})")
    options = parser.parse_args()
    figures = measure(options.pairs)
    lines = "".join(f"{name:<30}{value:>10.3f}\n" for name, value in figures.items())
    sys.stdout.write(json.dumps(figures) + "\n" if options.json else lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
