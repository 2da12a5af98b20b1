"""A pipeline small enough to write down: the objective in closed form, with noise keyed by seed.

Generation and training overlap the more, the deeper the pipeline; a sync costs its time every k steps; slots limit how many
episodes help. Two knobs can be switched off, so that they are dead. `common` noise is shared by all settings of a seed,
`own` noise is not: paired comparisons cancel the first only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from harness.analysis.summary import RunSummary
from harness.core.errors import ConfigError
from harness.core.knobs import Knob, KnobKind, Scale
from harness.tuning.search import Problem
from harness.tuning.space import Settings, Space, search_knobs

CHIPS = 8
BATCH_GROUPS = 8

KNOBS = tuple(
    Knob(f"pipeline.{name}", KnobKind.INT, default, "stand-in", low=low, high=high, scale=scale)
    for name, default, low, high, scale in (
        ("max_staleness", 0, 0, 64, Scale.LINEAR),
        ("pipeline_depth", 0, 0, 64, Scale.LINEAR),
        ("steps_per_sync", 1, 1, 64, Scale.LINEAR),
        ("max_inflight", 64, 0, 100_000, Scale.LOG),
        ("buffer_capacity", 0, 0, 100_000, Scale.LOG),
    )
)
TODAY: Settings = {
    "pipeline.max_staleness": 0,
    "pipeline.pipeline_depth": 0,
    "pipeline.steps_per_sync": 1,
    "pipeline.max_inflight": 64,
    "pipeline.buffer_capacity": 0,
}


@dataclass(frozen=True)
class Pipeline:
    """Seconds of its parts, per learner step."""

    generate_s: float = 10.0
    train_s: float = 8.0
    sync_s: float = 1.0
    slots: int = 64
    common: float = 0.2
    own: float = 0.005
    overlaps: bool = True
    """Whether depth helps at all; without it today's settings are the best."""
    crashes_above: int = 10**9
    """A `max_inflight` above this makes the simulation fail."""
    trains_stale: bool = False
    """Whether a sync interval takes the lag beyond `max_staleness`."""
    waste: float = 0.0
    """Work made for nothing, per version of depth, as a share of a step: less idle, and fewer kept groups."""

    tokens_for_depth: float = 0.0
    """Share of the tokens of a trained group that each version of depth takes."""

    def __call__(self, settings: Settings, seed: int, steps: int) -> RunSummary:
        depth = settings["pipeline.pipeline_depth"]
        k = settings["pipeline.steps_per_sync"]
        inflight = settings["pipeline.max_inflight"] or self.slots
        if inflight > self.crashes_above:
            raise ConfigError("does not fit", field="pipeline.max_inflight", value=inflight)
        generate = self.generate_s * max(1.0, self.slots / inflight)
        overlap = 1 - 2.0**-depth if self.overlaps else 0.0
        busy = max(generate, self.train_s)
        step_s = busy + (1 - overlap) * (generate + self.train_s - busy) + self.sync_s / k
        step_s += self.waste * depth * (generate + self.train_s)
        own = _normal(seed, *(value for _, value in sorted(settings.items()))) / math.sqrt(steps)
        step_s *= math.exp(self.common * _normal(seed) + self.own * own)
        window_s = steps * step_s
        total_ns = round(window_s * 1e9) * CHIPS
        work = min(total_ns, round(steps * (self.generate_s + self.train_s) / 2 * 1e9) * CHIPS)
        wasted_s = self.waste * depth * (generate + self.train_s) * steps
        discarded = min(total_ns - work, round(wasted_s * 1e9) * CHIPS)
        idle = total_ns - work - discarded
        return RunSummary(
            seed=seed,
            window_s=window_s,
            total_s=window_s,
            chips=CHIPS,
            learner_steps=steps,
            groups=steps * BATCH_GROUPS,
            turns=steps * BATCH_GROUPS * 60,
            episodes=steps * BATCH_GROUPS * 4,
            tokens_made=1000 * steps,
            tokens_trained=round(1000 * steps * max(0.0, 1 - self.tokens_for_depth * depth)),
            chip_ns={"kept": work, "discarded:stale": discarded, "idle:generation": idle // 2, "idle:tools": idle - idle // 2},
            lag_mean=depth / 2,
            lag_p95=float(depth),
            lag_max=depth + k - 1 if self.trains_stale else min(depth + k - 1, settings["pipeline.max_staleness"]),
            lag_in_queue_mean=depth / 4,
            utilisation={"tools": 0.5},
            warmup_steps=WARMUP_STEPS,
        )


WARMUP_STEPS = 5


def _normal(*key: int) -> float:
    return random.Random(repr(key)).gauss(0.0, 1.0)


def admit(settings: Settings) -> None:
    """The rules between knobs that a pipeline of this kind has."""
    if settings["pipeline.pipeline_depth"] > settings["pipeline.max_staleness"]:
        raise ConfigError("is above max_staleness", field="pipeline.pipeline_depth")
    if settings["pipeline.steps_per_sync"] > settings["pipeline.pipeline_depth"] + 1:
        raise ConfigError("can never be reached", field="pipeline.steps_per_sync")
    if 0 < settings["pipeline.buffer_capacity"] < BATCH_GROUPS:
        raise ConfigError("does not hold a batch", field="pipeline.buffer_capacity")


def problem(pipeline: Pipeline, today: Settings = TODAY, learner_steps: int = 40) -> Problem:
    """The search for it."""
    space = Space(search_knobs(KNOBS, today), admit)
    return Problem("stand-in", space, pipeline, learner_steps, 5, 11, "stand_in.toml")
