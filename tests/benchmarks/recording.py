"""What recording costs a live run: the pipeline's own actors train on JAX, with the record on and off, in pairs.

    uv run python tests/benchmarks/recording.py [--pairs N] [--json]

Every run is the same work to the token: the scenario `cpu_live` at staleness 0, from the same weights and the same tasks, with
keyed sampling. So the ratio of two runs' throughputs is that of their times. One world is built and compiled once; the two runs
of a pair follow each other, and change places from pair to pair, so that a machine that grows slower or faster favours neither.

The record is that of `harness run`: every event and interval, spilled to files every half second while the run goes on. Making
Parquet tables of them comes after the run and is given apart: `tables_s`, of one run, most of which does not grow with it.

The interval is Wilcoxon's, of the median of the pairs' log ratios: a run that some other program delayed counts as one, however
long it took. Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., section 3.4.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import harness
from harness.engines import live
from harness.live_record import LiveRecord
from harness.live_run import TICK_S
from pipeline.build import Pipeline
from pipeline.live import LiveWorld
from pipeline.numerics import saves
from pipeline.numerics.dispatch import Decision

SCENARIO = Path(__file__).parents[2] / "scenarios" / "cpu_live.toml"
SYNCHRONOUS = (
    "pipeline.max_staleness=0", "pipeline.pipeline_depth=0", "pipeline.eval_interval=0", "pipeline.groups_per_step=8",
    "pipeline.checkpoint_interval=0",
    "live.learner.warm_start_steps=0",
)  # fmt: skip
STEPS = 2
PAIRS = 120
SEED = 0


class Spent(NamedTuple):
    """What one run took.

    Attributes:
        wall_s: from its first instant to its last.
        cpu_s: of the whole process on the processor, in the same time.
        groups: kept.
        loop_s: of the event loop's thread on the processor: all that recording does, but for writing the files.

    """

    wall_s: float
    cpu_s: float
    groups: int
    loop_s: float


class Bench:
    """A world that is built once, and runs that are all the same in it."""

    def __init__(self) -> None:
        self._scenario = harness.load(SCENARIO, overrides=SYNCHRONOUS)
        self._world = LiveWorld(
            self._scenario.live, self._scenario.pipeline, replicas=1, chips_per_replica=1, learner_chips=1, seed=SEED
        )
        self._world.start()
        self._begin = saves.on_host(self._world.dispatcher.run(Decision("learner.state")))

    def close(self) -> None:
        """End its threads."""
        self._world.stop()

    def run(self, *, recorded: bool) -> Spent:
        """One run."""
        folder = Path(tempfile.mkdtemp())
        record = LiveRecord(self._scenario, folder, SEED, 0) if recorded else None
        try:
            return self._run(record)
        finally:
            if record is not None:
                record.recorder.close()
            shutil.rmtree(folder)

    def tables_s(self) -> float:
        """Seconds to make the tables of one run, and to check them."""
        with tempfile.TemporaryDirectory() as folder:
            record = LiveRecord(self._scenario, Path(folder), SEED, 0)
            self._run(record)
            began_s = time.perf_counter()
            record.write()
            return time.perf_counter() - began_s

    def _run(self, record: LiveRecord | None) -> Spent:
        world = self._world
        world.restore(self._begin)
        world.source.restore({"given": 0, "again": []})

        async def main(rt: Any) -> Any:
            if record is not None:
                record.watch(rt.lanes)
                rt.background(spill, rt, record, name="record")
            await world.install(0)
            pipeline = Pipeline(rt, self._scenario.pipeline, world.hardware, world.source, world.learner.snapshot)
            gc.collect()
            began_s, began_cpu_s, began_loop_s = time.perf_counter(), time.process_time(), time.thread_time()
            report = await pipeline.run(steps=STEPS, at_end=record.end if record is not None else lambda report: None)
            spent = time.perf_counter() - began_s, time.process_time() - began_cpu_s, time.thread_time() - began_loop_s
            return report.tally.groups, *spent

        recorder = record.recorder if record is not None else None
        groups, wall_s, cpu_s, loop_s = live.run(main, performers=world.performers, seed=SEED, recorder=recorder)
        return Spent(wall_s, cpu_s, groups, loop_s)


async def spill(rt: Any, record: LiveRecord) -> None:
    """As `harness run` does."""
    while True:
        await rt.sleep(int(TICK_S * 1e9))
        record.recorder.spill()


def pairs(bench: Bench, count: int) -> list[tuple[Spent, Spent]]:
    """(recorded, not recorded), so many times after one pair that is not counted."""
    found = []
    for number in range(count + 1):
        if number % 2:
            on, off = bench.run(recorded=True), bench.run(recorded=False)
        else:
            off, on = bench.run(recorded=False), bench.run(recorded=True)
        if number:
            found.append((on, off))
            ratio = off.wall_s / on.wall_s
            sys.stderr.write(f"pair {number} of {count}  {off.wall_s:.3f} s off, {on.wall_s:.3f} s on: {ratio:.3f}\n")
    return found


def interval(values: list[float], z: float = 1.96) -> tuple[float, float, float]:
    """Hodges and Lehmann's estimate of the median of symmetric values and its interval (lower, estimate, upper)."""
    n = len(values)
    walsh = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    cut = max(0, math.floor(len(walsh) / 2 - z * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return walsh[cut], walsh[len(walsh) // 2], walsh[-1 - cut]


def figures(found: list[tuple[Spent, Spent]]) -> dict[str, float]:
    """Ratios, recorded over not recorded: of kept groups per second, and of kept groups per second on the processor.

    `recording_host_ratio`: what the first would be if every second that the event loop's thread spends on recording came on top
    of the run's time, as if nothing went on beside it. Other programs on the machine hardly touch it.
    """
    wall = interval([math.log((on.groups / on.wall_s) / (off.groups / off.wall_s)) for on, off in found])
    cpu = interval([math.log((on.groups / on.cpu_s) / (off.groups / off.cpu_s)) for on, off in found])
    host = interval([-math.log1p((on.loop_s - off.loop_s) / off.wall_s) for on, off in found])
    return {
        "recording_ratio_lower": math.exp(wall[0]),
        "recording_ratio": math.exp(wall[1]),
        "recording_ratio_upper": math.exp(wall[2]),
        "recording_cpu_ratio_lower": math.exp(cpu[0]),
        "recording_cpu_ratio": math.exp(cpu[1]),
        "recording_host_ratio_lower": math.exp(host[0]),
        "recording_host_ratio": math.exp(host[1]),
        "pairs": len(found),
    }


def measure(count: int = PAIRS) -> dict[str, float]:
    """All of it."""
    bench = Bench()
    try:
        return figures(pairs(bench, count)) | {"tables_s": bench.tables_s()}
    finally:
        bench.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="What recording costs a live run, in pairs.")
    parser.add_argument("--json", action="store_true", help="one flat object of numbers on standard output")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"pairs of runs (default {PAIRS})")
    options = parser.parse_args()
    found = measure(options.pairs)
    lines = [json.dumps({name: round(value, 4) for name, value in found.items()})] if options.json else [
        f"{name:<28}{value:>8.4f}" for name, value in found.items()
    ]  # fmt: skip
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
