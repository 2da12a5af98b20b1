"""A published figure beside its prediction, and the small world that every case starts from.

A case module has `rows()`, which runs its scenarios and says for each figure what was fitted, and builders that are functions
of a published row's own inputs, so that other rows of the same publication can be asked for with the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.lanes import State
from harness.run import PipelineConfig, simulate_once
from harness.scenario.schema import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.build import Report

FREE_S = {"law": "constant", "value_s": 0.0}
LONG_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        case: section of the publication and the figure, with its unit.
        fitted: what was fitted, and on what; "nothing" for a prediction from inputs alone. A fit is called one in `case`.
        predicted: by the simulation.
        published: by the source.
        tolerance: largest relative error that is taken.

    """

    case: str
    fitted: str
    predicted: float
    published: float
    tolerance: float

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return self.predicted / self.published - 1

    @property
    def inside(self) -> bool:
        """Whether the prediction is within the tolerance."""
        return abs(self.error) <= self.tolerance


def scenario(title: str, *, world: dict[str, Any], workload: dict[str, Any], pipeline: dict[str, Any]) -> Scenario[Any]:
    """A scenario in which everything that is not said is free: sandboxes, scores, prefills, transfers take no time."""
    whole: dict[str, Any] = {
        "inference": {
            "replicas": 1,
            "chips_per_replica": 1,
            "kv_capacity_tokens": 1 << 40,
            "decode": {"base_s": 1e-3, "weights_s": 0.0, "per_sequence_s": 0.0},
            "prefill": {"base_s": 0.0, "per_token_s": 0.0},
        },
        "learner": {"chips": 1, "train": {"base_s": 1e-3}},
        "weights": {"weights_bytes": 0, "transfer": {"base_s": 0.0, "bytes_per_s": 1e12}},
        "environments": {"reset": FREE_S, "close": FREE_S},
        "scoring": {"duration": FREE_S},
        "host": {"per_pass_s": 0.0, "per_step_s": 0.0},
    }
    episodes: dict[str, Any] = {
        "tasks": 1_000_000,
        "turns": {"law": "constant", "value": 1},
        "prompt_tokens": {"law": "constant", "value": 1},
        "response_tokens": {"law": "constant", "value": 1},
        "observation_tokens": {"law": "constant", "value": 0},
        "tools": [{"name": "none", "share": 1.0, "duration": FREE_S}],
    }
    for name, table in world.items():
        whole[name] = {**whole.get(name, {}), **table}
    limits = ("build_s", "reset_s", "step_s", "tool_s", "generation_s", "reward_s", "sync_s", "evaluation_s", "episode_s")
    deadlines = {"deadlines": dict.fromkeys(limits, LONG_S)}
    return Scenario[PipelineConfig].model_validate(
        {
            "title": title,
            "question": "Does the simulator give the published figures?",
            "world": whole,
            "workload": {**episodes, **workload},
            "pipeline": {**deadlines, **pipeline},
            "run": {"max_sim_s": 3650 * 86_400.0},
        }
    )


@dataclass(frozen=True, slots=True)
class Learner:
    """Where the learner's time went, in seconds a step.

    Attributes:
        step_s: the whole of it.
        wait_s: no batch.
        log_probs_s: old log-probabilities.
        update_s: optimizer step.
        lag_mean: of consumed groups, optimizer steps.
        lag_max: largest.

    """

    step_s: float
    wait_s: float
    log_probs_s: float
    update_s: float
    lag_mean: float
    lag_max: int


def learner(made: Scenario[Any], *, steps: int, warmup_steps: int, seed: int = 0, per: int = 1) -> Learner:
    """Run once; the learner's own lane over the reported window, divided by its steps (or by groups of `per` steps)."""
    reports: list[Report] = []
    summary = simulate_once(made, seed, learner_steps=steps, warmup_steps=warmup_steps, at_end=reports.append)
    (report,) = reports
    spent = report.lane_ns["learner"]

    def share_s(*states: State) -> float:
        return sum(spent[state] for state in states) / 1e9 / (steps / per)

    return Learner(
        step_s=(report.end_ns - report.start_ns) / 1e9 / (steps / per),
        wait_s=share_s(State.WAIT_BATCH, State.STALE_WAIT),
        log_probs_s=share_s(State.LOG_PROBS),
        update_s=share_s(State.TRAIN),
        lag_mean=summary.lag_mean,
        lag_max=summary.lag_max,
    )


def solve(value_of: Callable[[float], float], target: float, low: float, high: float, *, rel: float = 1e-3) -> float:
    """The argument in [low, high] at which a rising function meets `target` to within `rel`: Illinois's false position.

    Raises:
        ValueError: the target is outside of what the ends give.

    """
    below, above = value_of(low) - target, value_of(high) - target
    if below > 0 or above < 0:
        raise ValueError(f"{target} is not between {below + target} and {above + target}")
    kept = 0
    while True:
        middle = high - above * (high - low) / (above - below)
        off = value_of(middle) - target
        if abs(off) <= rel * abs(target):
            return middle
        if off < 0:
            low, below, above, kept = middle, off, above / 2 if kept < 0 else above, -1
        else:
            high, above, below, kept = middle, off, below / 2 if kept > 0 else below, 1
