"""What a live run costs and gains: every figure of one run of this script.

    uv run python tests/benchmarks/live.py            a table, with the target beside each figure
    uv run python tests/benchmarks/live.py --json     one flat object

- `turn_us_100`, `turn_us_2000`: host time of a turn, in microseconds on the processor, with so many episodes at once, sleeping
  tools and an instant engine (`host_turn.py`). `turn_growth` is the second over the first.
- `turn_over_bare_trio`: that of 2,000 episodes over a minimal trio loop that does the same on the outside, in the same run.
- `sync_env_turn_us`: host time of a turn where the environment blocks a thread.
- `decode_over_transformers`: tokens per second of our engine over `generate` of transformers, same model, same 16 requests
  (`decode.py`); null where `make_transformers_env.sh` has not been run.
- `async_over_sync`: kept groups per second with samples up to two steps old over none, when a tool takes a lognormal second;
  median of paired runs, with its interval (`async_sync.py`). `recompilations_after_warmup`: XLA compilations in all of them.
- `recording_ratio_lower`: 95 % lower bound of the throughput with the run record over that without it, paired (`recording.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import async_sync
import decode
import host_turn
import recording

if TYPE_CHECKING:
    from collections.abc import Callable

HOST_ROUNDS = 5
FEW, MANY = 104, 2000
FEW_STEPS, MANY_STEPS = 20, 1
"""Learner steps, so that both make about as many turns."""


class Target(NamedTuple):
    """What a figure has to reach."""

    value: float
    at_least: bool

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.value:g}"

    def met(self, figure: float) -> bool:
        return figure >= self.value if self.at_least else figure <= self.value


TARGETS = {
    "turn_us_2000": Target(150, at_least=False),
    "turn_growth": Target(1.3, at_least=False),
    "turn_over_bare_trio": Target(2.0, at_least=False),
    "decode_over_transformers": Target(2.0, at_least=True),
    "async_over_sync_lower": Target(1.0, at_least=True),
    "recording_ratio_lower": Target(0.98, at_least=True),
    "recompilations_after_warmup": Target(0, at_least=False),
}


def host() -> dict[str, float]:
    """Host time of turns: medians of rounds, all sides in each round."""
    host_turn.pipeline_turn_us(FEW, 1)
    sides: dict[str, Callable[[], float]] = {
        "turn_us_100": lambda: host_turn.pipeline_turn_us(FEW, FEW_STEPS),
        "turn_us_2000": lambda: host_turn.pipeline_turn_us(MANY, MANY_STEPS),
        "bare_trio_turn_us": lambda: host_turn.bare_turn_us(MANY, 2 * MANY_STEPS),
        "sync_env_turn_us": lambda: host_turn.blocking_turn_us(MANY, MANY_STEPS),
    }
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(HOST_ROUNDS):
        order = list(sides.items())
        for name, side in order if number % 2 else order[::-1]:
            rounds[name].append(side())
            sys.stderr.write(f"round {number + 1} of {HOST_ROUNDS}  {name:<20}{rounds[name][-1]:>8.1f}\n")
    pairs = zip(rounds["turn_us_2000"], rounds["bare_trio_turn_us"], strict=True)
    growth = zip(rounds["turn_us_2000"], rounds["turn_us_100"], strict=True)
    return {name: statistics.median(values) for name, values in rounds.items()} | {
        "turn_over_bare_trio": statistics.median([ours / bare for ours, bare in pairs]),
        "turn_growth": statistics.median([many / few for many, few in growth]),
    }


def decoding() -> dict[str, Any]:
    """Our engine against `generate`, sampled; the greedy figures under names of their own."""
    found = decode.figures()
    return found["sampled"] | {f"greedy_{name}": value for name, value in found["greedy"].items()}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "host": host,
    "decode": decoding,
    "async_sync": async_sync.measure,
    "recording": recording.measure,
}


def table(figures: dict[str, Any]) -> str:
    """One line a figure, with its target."""
    lines = []
    for name, value in figures.items():
        shown = "null" if value is None else f"{value:,.3f}" if isinstance(value, float | int) else str(value)
        target = TARGETS.get(name)
        said = "" if target is None or value is None else f"{target}: {'met' if target.met(value) else 'MISSED'}"
        lines.append(f"{name:<30}{shown:>12}   {said}".rstrip())
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a live run costs and gains.")
    parser.add_argument("--json", action="store_true", help="one flat object on standard output")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART[,PART]", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    wanted = options.only.split(",")
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {}
    for name in wanted:
        figures |= PARTS[name]()
    sys.stdout.write((json.dumps(figures) if options.json else table(figures)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
