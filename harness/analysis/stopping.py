"""When to stop: whether replications are long enough and many enough, and what it would take.

**Long enough.** The warm-up is fixed before the run, from the model: D + k optimizer steps, of which the first D + 1 are
started together. MSER-5 on the step times (averaged over replications, as Welch did) only checks it, where there are steps
enough; with outages it is not asked, because it is free to cut an outage away. A window in which much work is still in flight
at the end is too short whatever its steps say.

**Many enough.** Replications are added until the relative half width of the headline is reached, looking at fixed checkpoints
only, never before the tenth; at the end of its budget it says that it was not reached, and how many it would take.

Sources: Law, "Simulation Modeling and Analysis", 5th ed. 2015, sections 9.4.1 (sequential procedure) and 9.5.1 (Welch); White,
Cobb and Spratt, Winter Simulation Conference 2000 (MSER-5).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.analysis.statistics import LEAST_REPLICATIONS, BatchMeans, Interval, SequentialStop, batch_means, mser5
from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.summary import RunSummary

HONEST_STEPS = 20
"""Learner steps after the warm-up that a replication needs before a claim rests on it."""

OPEN_SHARE = 0.2
"""Share of chip time for work still in flight at the end, above which a window is called too short."""

FEW_OPEN = 0.1
"""The share that a long enough window has: the length that is asked for is worked out from it."""

LEAST_STEPS = 50
"""Steps, warm-up included, from which MSER-5 is asked: with fewer than ten batches of five it cuts by chance."""

NOTABLE = 0.03
"""Relative difference that a further cut has to make to the mean step time before it is asked for."""

LEAST_BATCH_STEPS = 40
"""Steps from which one replication gives an interval by batch means: twenty batches of two."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How the wish for a precision ended.

    Attributes:
        target: relative half width that was asked for.
        reached: whether it was.
        interval: of the headline, kept groups per chip-second.
        needed: replications that it would take, at the spread that was seen; those made where it was reached.

    """

    target: float
    reached: bool
    interval: Interval
    needed: int

    @property
    def said(self) -> str:
        """One sentence."""
        width = self.interval.relative_half_width
        if self.reached:
            return f"kept groups are known to {width:.1%}, asked for {self.target:.1%}: {self.interval.n} replications do"
        many = f"about {self.needed:,} replications" if self.needed else "more replications than can be said from these"
        return (
            f"the precision was not reached: kept groups are known to {width:.1%} after {self.interval.n} replications, "
            f"asked for {self.target:.1%}; it would take {many}, or longer ones"
        )


def looks_at(target: float, replications: int | None, most: int) -> tuple[int, ...]:
    """Numbers of replications at which to see whether a precision is reached.

    Args:
        target: relative half width, above 0 and below 1.
        replications: before the first look, if more than `LEAST_REPLICATIONS`.
        most: replications at the last look.

    Raises:
        ConfigError: the target is no precision, or `most` is below the first look.

    """
    if not 0 < target < 1:
        raise ConfigError("is not a precision", field="precision", value=target, allowed="above 0 and below 1; 0.02 is 2 %")
    least = max(replications or 0, LEAST_REPLICATIONS)
    if most < least:
        raise ConfigError(
            "is too small", field="max_replications", value=most, allowed=f"{least} or more, the number of the first look"
        )
    return SequentialStop(target, minimum=least, maximum=most).checkpoints()


def reached(target: float | None, interval: Interval) -> Precision | None:
    """Judge an interval; None where nothing was asked for. The half width falls with the root of the number of replications."""
    if target is None:
        return None
    width = interval.relative_half_width
    done = width <= target
    needed = math.ceil(interval.n * (width / target) ** 2) if math.isfinite(width) else 0
    return Precision(target, done, interval, interval.n if done else needed)


def too_short(runs: Sequence[RunSummary], *, model_warmup_steps: int, outages: bool = False) -> tuple[str, ...]:
    """What makes the replications too short, each with the length that they should have. Empty where they are long enough.

    Args:
        runs: replications of one configuration.
        model_warmup_steps: optimizer steps after which its own rhythm is reached.
        outages: whether rare outages are part of the world: then steps are not asked whether they are steady.

    """
    said = []
    window, warmup = min(run.learner_steps for run in runs), min(run.warmup_steps for run in runs)
    if warmup < model_warmup_steps:
        said.append(
            f"the warm-up of {warmup} learner steps is shorter than the pipeline takes to fill: set run.warmup_steps to "
            f"{model_warmup_steps} or more"
        )
    total = sum(run.chip_total_ns for run in runs)
    open_share = sum(run.chip_ns.get("in_flight", 0) for run in runs) / total
    if open_share > OPEN_SHARE and window >= HONEST_STEPS:
        said.append(
            f"{open_share:.0%} of chip time went into work that is still in flight at the end: set run.learner_steps to about "
            f"{math.ceil(window * open_share / FEW_OPEN)}"
        )
    if not outages:
        said += _not_steady(runs, warmup)
    return tuple(said)


def _not_steady(runs: Sequence[RunSummary], warmup: int) -> list[str]:
    series = step_times_s(runs)
    if len(series) < LEAST_STEPS:
        return []
    cut = mser5(series)
    early, late = series[warmup:], series[cut.cut :]
    if cut.cut <= warmup or abs(sum(early) / len(early) * len(late) / sum(late) - 1) < NOTABLE:
        return []
    if cut.settled:
        return [f"step times are steady only after {cut.cut} learner steps: set run.warmup_steps to that or more"]
    return [
        f"step times are not steady within {len(series)} learner steps: set run.warmup_steps to {cut.cut} or more and "
        f"run.learner_steps to {2 * len(series)} or more"
    ]


def step_times_s(runs: Sequence[RunSummary]) -> list[float]:
    """Seconds of the first, second, … optimizer step, the mean over replications: from the start, the warm-up included."""
    length = min(len(run.step_ends_ns) for run in runs)
    ends = [sum(run.step_ends_ns[i] for run in runs) / len(runs) for i in range(length)]
    return [(b - a) / 1e9 for a, b in itertools.pairwise([0.0, *ends])]


def from_one_run(run: RunSummary) -> BatchMeans | None:
    """Step time of a single replication from twenty batches of its steps; None where it has too few."""
    steps = [(b - a) / 1e9 for a, b in itertools.pairwise(run.step_ends_ns[run.warmup_steps - 1 :])] if run.warmup_steps else []
    return batch_means(steps) if len(steps) >= LEAST_BATCH_STEPS else None


def one_run_said(run: RunSummary) -> str:
    """What a single replication can say of its own precision; empty where it can say nothing."""
    found = from_one_run(run)
    if found is None:
        return ""
    width = found.interval.relative_half_width
    if not found.independent:
        return (
            f"one replication: its steps follow each other too closely for an interval (lag-1 correlation of batch means "
            f"{found.lag1:+.2f}); run several replications, or a longer one"
        )
    return f"one replication: {found.interval.mean:.4g} s a step, ± {width:.1%} by batch means; several replications say more"
