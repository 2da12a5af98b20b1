"""How fast the simulator is, and how small: ratios, each inside one run on one machine.

    uv run python tests/benchmarks/simulator.py            a table, with the target beside each figure
    uv run python tests/benchmarks/simulator.py --json     one flat object of numbers

Each figure is the median over rounds. A round measures both sides in one process, one after the other and in turn first, in
time on the processor, after a collection of garbage; the collector runs during the measurement as it does in use.

- `sim_over_handwritten`: turns per second of the small pipeline (`small.py`) on the engine `sim`, over those of the same model
  as hand-written SimPy with the same draws. `nested_over_handwritten`: with nested deadlines and a clean-up, on both sides.
- `sim_over_mockclock`: over those on real trio with `MockClock(autojump_threshold=0)`: bare trio (`bare_trio.py`) or our waist
  on it, whichever is faster in that round.
- `pipeline_over_small`: turns per second of the whole pipeline on `scenarios/coding_agent.toml`, over those of the small one.
- `recording_cost`: time of that run with every event and interval kept, packed and hashed, over the same run without.
- `growth`: cost per turn of the small pipeline, one episode each, at 100,000 agents over that at 100; `growth_handwritten`: the
  same for hand-written SimPy.
- `bytes_per_agent`: memory of an agent that waits four coroutines deep inside three cancel scopes, mean over 10,000.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import bare_trio
import trio.testing
from small import AGENTS, EPISODES, NS, TURNS, hand_written, program

import harness
from harness.costs.workload import forget_plans
from harness.engines import live, sim
from harness.trace.recorder import TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.runtime import Runtime

SCENARIO = Path(__file__).parents[2] / "scenarios" / "coding_agent.toml"
LEARNER_STEPS = 10
MANY, FEW = 100_000, 100
WAITING = 10_000

Side = "Callable[[], object]"


def cpu_s(*sides: Side, turns: int = 1) -> list[float]:
    """Seconds on the processor that each side takes, `turns` times in turn."""
    spent = [0.0] * len(sides)
    for _ in range(turns):
        for index, side in enumerate(sides):
            gc.collect()
            began = time.process_time()
            side()
            spent[index] += time.process_time() - began
    return spent


class Bench:
    """Every figure, measured once a call. Sides change places from call to call."""

    def __init__(self) -> None:
        self.scenario = harness.load(SCENARIO)
        self._first = cycle((False, True))

    def _pair(self, ours: Side, theirs: Side, turns: int = 1) -> tuple[float, float]:
        if next(self._first):
            their_s, our_s = cpu_s(theirs, ours, turns=turns)
        else:
            our_s, their_s = cpu_s(ours, theirs, turns=turns)
        return our_s, their_s

    def sim_over_handwritten(self) -> float:
        ours, theirs = self._pair(partial(sim.run, program), hand_written, turns=3)
        return theirs / ours

    def nested_over_handwritten(self) -> float:
        ours, theirs = self._pair(partial(sim.run, partial(program, nested=True)), partial(hand_written, nested=True), turns=3)
        return theirs / ours

    def sim_over_mockclock(self) -> float:
        clock = partial(trio.testing.MockClock, autojump_threshold=0)
        ours, bare, wrapped = cpu_s(
            partial(sim.run, program), partial(bare_trio.run, AGENTS, EPISODES), lambda: live.run(program, clock=clock())
        )
        return min(bare, wrapped) / ours

    def pipeline_over_small(self) -> float:
        turns, small_runs = 0, 4

        def whole() -> None:
            nonlocal turns
            turns += self._simulate(None)

        whole_s, small_s = self._pair(whole, lambda: [sim.run(program) for _ in range(small_runs)])
        return (turns / whole_s) / (small_runs * AGENTS * EPISODES * TURNS / small_s)

    def recording_cost(self) -> float:
        recorded, bare = self._pair(self._record, partial(self._simulate, None), turns=2)
        return recorded / bare

    def _record(self) -> None:
        recorder = TraceRecorder()
        self._simulate(recorder)
        recorder.intervals()
        recorder.log_hash()

    def _simulate(self, recorder: TraceRecorder | None) -> int:
        """Turns of the whole run: without a warm-up, the window is the run. Nothing is left over from the run before."""
        forget_plans()
        return harness.simulate_once(self.scenario, 0, learner_steps=LEARNER_STEPS, warmup_steps=0, recorder=recorder).turns

    def growth(self) -> float:
        return self._growth(partial(sim.run, program))

    def growth_handwritten(self) -> float:
        return self._growth(hand_written)

    def _growth(self, run: Callable[[int, int], object]) -> float:
        """Cost per turn with many agents over that with few, which run as often as makes a second or so."""
        times = 50
        few, many = cpu_s(lambda: [run(FEW, 1) for _ in range(times)], partial(run, MANY, 1))
        return (many / MANY) / (few / (times * FEW))

    def bytes_per_agent(self) -> float:
        return sim.run(waiting_agents)


async def waiting_agents(rt: Runtime) -> float:
    async def four(rt: Runtime) -> None:
        await rt.sleep(1_000 * NS)

    async def three(rt: Runtime) -> None:
        with rt.move_on_after(3_000 * NS):
            await four(rt)

    async def two(rt: Runtime) -> None:
        with rt.move_on_after(4_000 * NS):
            await three(rt)

    async def one(rt: Runtime) -> None:
        with rt.move_on_after(5_000 * NS):
            await two(rt)

    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        async with rt.nursery() as nursery:
            for _ in range(WAITING):
                nursery.start_soon(one, rt)
            await rt.sleep(NS)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            nursery.cancel_scope.cancel()
    finally:
        tracemalloc.stop()
    return (after - before) / WAITING


class Target(NamedTuple):
    """What a figure has to reach."""

    bound: float
    at_least: bool

    def met(self, figure: float) -> bool:
        return figure >= self.bound if self.at_least else figure <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:,g}"


TARGETS = {
    "sim_over_handwritten": Target(2.0, at_least=True),
    "nested_over_handwritten": Target(4.0, at_least=True),
    "sim_over_mockclock": Target(12.0, at_least=True),
    "pipeline_over_small": Target(0.35, at_least=True),
    "recording_cost": Target(1.15, at_least=False),
    "growth": Target(2.5, at_least=False),
    "growth_handwritten": None,
    "bytes_per_agent": Target(6144, at_least=False),
}


def measure(names: list[str], rounds: int) -> dict[str, list[float]]:
    """All rounds of all figures, round by round."""
    bench = Bench()
    cpu_s(partial(sim.run, program, FEW, 1), partial(hand_written, FEW, 1), partial(bare_trio.run, FEW, 1))
    figures: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in names:
            began = time.monotonic()
            figure = getattr(bench, name)()
            figures[name].append(figure)
            sys.stderr.write(f"round {number} of {rounds}  {name:<24}{figure:>10,.3f}  {time.monotonic() - began:6.1f} s\n")
    return figures


def table(figures: dict[str, list[float]]) -> str:
    """For a person."""
    lines = [f"{'figure':<25}{'median':>10}{'lowest':>11}{'highest':>11}   target"]
    medians = {name: statistics.median(values) for name, values in figures.items()}
    for name, values in figures.items():
        target = TARGETS[name]
        said = f"{target}: {'met' if target.met(medians[name]) else 'MISSED'}" if target else "above growth"
        if target is None and "growth" in medians:
            said += ": met" if medians["growth"] < medians[name] else ": MISSED"
        lines.append(f"{name:<25}{medians[name]:>10,.3f}{min(values):>11,.3f}{max(values):>11,.3f}   {said}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast the simulator is, as ratios inside one run.")
    parser.add_argument("--json", action="store_true", help="one flat object of numbers on standard output")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each figure (default 5)")
    parser.add_argument("--only", default=",".join(TARGETS), metavar="NAME[,NAME]", help="figures to measure")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in TARGETS]
    if unknown or options.rounds < 1:
        parser.error(f"no figure {unknown[0]!r}; there are {', '.join(TARGETS)}" if unknown else "--rounds is at least 1")
    figures = measure(names, options.rounds)
    if options.json:
        sys.stdout.write(json.dumps({name: round(statistics.median(values), 4) for name, values in figures.items()}) + "\n")
    else:
        sys.stdout.write(f"{table(figures)}\n{options.rounds} rounds; Python {sys.version.split()[0]}, {sys.platform}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
