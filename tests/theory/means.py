"""Systems of queueing theory, made of the pipeline's own actors, with the mean that theory gives and how a run measures it.

Each case gives one number a replication; `tests/theory/test_means.py` compares a few with simultaneous intervals, and
`tests/benchmarks/coverage.py` many.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queues import ENTRY_NS, Path, constant, exponential, queue

from harness.analysis import oracles
from harness.core.events import EventKind
from harness.core.work import WorkKind

if TYPE_CHECKING:
    from collections.abc import Callable

WARM = 60
"""Tasks at the start of an open system that are not counted: it starts empty, and these loads forget that within a few tens."""


@dataclass(frozen=True)
class Case:
    """One system.

    Attributes:
        name: of the system.
        truth: the mean in theory.
        scenario: that makes it.
        measure: one run to one number, or to (numerator, denominator).
        bias: by how much the discrete system may be above the continuous one, in parts of `truth`.

    """

    name: str
    truth: float
    scenario: Any
    measure: Callable[[Path], float]
    bias: float = 0.0


def lognormal(mean_s: float, cv: float) -> dict[str, Any]:
    """A lognormal law by its mean and coefficient of variation."""
    variance = math.log1p(cv * cv)
    return {"law": "lognormal", "mu": math.log(mean_s) - variance / 2, "sigma": math.sqrt(variance)}


def mean_wait(path: Path) -> float:
    """Seconds from a task's call to its worker, after the start."""
    starts = path.starts(WorkKind.TOOL_CALL)[WARM:]
    came = path.arrivals[WARM:]
    return math.fsum(start - at - ENTRY_NS for start, at in zip(starts, came, strict=False)) / len(starts) / 1e9


def mean_response(path: Path) -> float:
    """Seconds from a task's arrival to its tool call, which is when its generation is over."""
    starts = path.starts(WorkKind.TOOL_CALL)[WARM:]
    return math.fsum(start - at for start, at in zip(starts, path.arrivals[WARM:], strict=False)) / len(starts) / 1e9


def turned_away(path: Path) -> float:
    """Share of tasks that found no place, after the start."""
    refused = [event[4] for event in path.of(EventKind.ARRIVAL)[WARM:]]
    return sum(refused) / len(refused)


def inside(path: Path) -> list[tuple[int, int]]:
    """(nanosecond, episodes inside from then on), after the start."""
    changes = [
        (event[0], 1 if event[1] == EventKind.EPISODE_START else -1)
        for event in path.events
        if event[1] in (EventKind.EPISODE_START, EventKind.EPISODE_END)
    ]
    steps, number = [], 0
    for at, change in changes:
        number += change
        steps.append((at, number))
    return steps[2 * WARM :]


def mean_inside(path: Path) -> float:
    """Episodes inside, the mean over time."""
    steps = inside(path)
    area = math.fsum(n * (later[0] - at) for (at, n), later in itertools.pairwise(steps))
    return area / (steps[-1][0] - steps[0][0])


def time_with(number: int) -> Callable[[Path], float]:
    """Share of the time with exactly so many inside."""

    def measure(path: Path) -> float:
        steps = inside(path)
        spent = math.fsum(later[0] - at for (at, n), later in itertools.pairwise(steps) if n == number)
        return spent / (steps[-1][0] - steps[0][0])

    return measure


def group_time(path: Path) -> float:
    """Seconds from a group's start to its release."""
    admitted = {event[2]: event[0] for event in path.of(EventKind.GROUP_ADMIT)}
    spans = [event[0] - admitted[event[2]] for event in path.of(EventKind.GROUP_RELEASE)]
    return math.fsum(spans) / len(spans) / 1e9


def ended_per_s(path: Path) -> float:
    """Tool calls that end a second, after the start."""
    ends = sorted(end for end in path.ends(WorkKind.TOOL_CALL) if end <= path.end_ns)[WARM:]
    return (len(ends) - 1) / ((ends[-1] - ends[0]) / 1e9)


def open_cases(steps: int = 16) -> list[Case]:
    """Open systems; each run of 20 tasks a step."""

    def served(law: dict[str, Any], load: float, workers: int = 1) -> Any:
        gap = exponential(1 / (load * workers))
        return queue({"tool_workers": workers}, gap=gap, tool={"duration": law}, steps=steps)

    skewed = lognormal(1.0, 0.5)
    crowd = queue(gap=exponential(0.5), tool={"duration": lognormal(1.5, 0.8)}, steps=steps)
    limited, one = {"max_inflight": 4, "tool_workers": 1}, {"duration": exponential(1.0)}
    full = queue(limited, gap=exponential(1.2), tool=one, waiting_max=0, steps=steps)
    return [
        Case("M/M/1, load 0.4: wait", oracles.mmc_wait(0.4, 1.0, 1), served(exponential(1.0), 0.4), mean_wait),
        Case("M/M/2, load 0.5: wait", oracles.mmc_wait(1.0, 1.0, 2), served(exponential(1.0), 0.5, 2), mean_wait),
        Case("M/D/1, load 0.5: wait", oracles.mg1_wait(0.5, 1.0, 1.0), served(constant(1.0), 0.5), mean_wait),
        Case("M/G/1, load 0.4, CV 0.5: wait", oracles.mg1_wait(0.4, 1.0, 1.25), served(skewed, 0.4), mean_wait),
        Case("M/M/1/4: share turned away", oracles.mm1k_lost(1 / 1.2, 1.0, 4), full, turned_away),
        Case("M/M/1/4: number inside", oracles.mm1k_inside(1 / 1.2, 1.0, 4), full, mean_inside),
        Case("M/G/infinity: number inside", 3.0, crowd, mean_inside),
        Case("M/G/infinity: time with 3 inside", oracles.poisson(3.0, 3), crowd, time_with(3)),
    ]


def sharing_cases(steps: int = 10) -> list[Case]:
    """Continuous batching in its simplest form: a decode step takes a time for each sequence of its batch, and nothing else.

    A step of n sequences is one token for each, so each has 1/n of the replica: processor sharing, in slices of a token. The
    mean does not depend on the law of lengths. A task that comes within a step waits for its end, at most a step of the
    number inside: the response is above theory by at most (number inside + 1) tokens, `bias`.
    """
    tokens, load = 40, 0.4
    per_token = 1.0 / tokens
    world = {"inference": {"decode": {"base_s": 0.0, "per_sequence_s": per_token}}}
    truth = oracles.sharing_response(load, 1.0)
    bias = (load / (1 - load) + 1) * per_token / truth
    fixed = {"response_tokens": {"law": "constant", "value": tokens}}
    spread = {"response_tokens": {"law": "geometric", "mean": float(tokens), "max": 100 * tokens}}
    long_context = {"max_context_tokens": 10_000}
    return [
        Case(
            f"M/{letter}/1 with processor sharing, load 0.4: response", truth,
            queue(gap=exponential(1 / load), world=world, workload=lengths | long_context, steps=steps), mean_response, bias,
        )
        for letter, lengths in (("D", fixed), ("M", spread))
    ]  # fmt: skip


def group_cases(steps: int = 6) -> list[Case]:
    """A group is complete with its slowest member: exponential calls, one group at a time, all its members at once."""
    knobs, call = {"groups_per_step": 8, "start_unit": "group"}, {"duration": exponential(2.0)}
    return [
        Case(
            f"slowest of {size}", oracles.slowest_exponential(2.0, size),
            queue(knobs | {"group_size": size, "max_inflight": size}, tool=call, steps=steps),
            group_time,
        )
        for size in (2, 8)
    ]  # fmt: skip


def repairman_case(customers: int, steps: int = 20) -> Case:
    """N episodes start their sandboxes (think) and queue for one tool worker: the machine repairman, the asynchronous loop."""
    think, serve = 8.0, 1.0
    what = queue(
        {"max_inflight": customers, "tool_workers": 1}, tool={"duration": exponential(serve)},
        world={"environments": {"reset": exponential(think)}}, steps=steps,
    )  # fmt: skip
    return Case(f"repairman, {customers}", oracles.repairman(customers, think, serve), what, ended_per_s)
