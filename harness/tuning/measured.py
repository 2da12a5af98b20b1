"""What several replications of one configuration say together.

Rates and shares are ratios of sums over replications (groups over chip-seconds, idle over all chip time), with the interval
of a ratio, never means of ratios. Comparisons pair replications by seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.analysis import money, waste
from harness.analysis.statistics import (
    DEFAULT_CONFIDENCE,
    Interval,
    RatioSample,
    paired_ratio_difference,
    ratio_interval,
    relative_ratio_difference,
)
from harness.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.summary import RunSummary
    from harness.analysis.waste import Lengths
    from harness.tuning.result import Objective

HONEST_STEPS = 20
"""Learner steps after the warm-up that a replication needs before a claim rests on it: fewer, and start-up and the luck of
a few long episodes show. Shorter runs are used to screen, and called provisional."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration over its replications.

    Attributes:
        idle_share: share of chip time with nothing on the chips.
        kept_groups_per_chip_s: trained groups per chip-second.
        chip_share: share of chip time by class or `class:cause`, adding up to 1.
        chips: chips paid for.
        window_s: simulated seconds in the windows of all replications.
        learner_steps: optimizer steps of a replication after warm-up, the fewest.
        warmup_steps: optimizer steps before them, the fewest.
        replications: how many.
        turns: turns of generation in the windows, a replication, the mean.
        groups: groups trained in the windows, a replication, the mean.
        episodes: episodes ended in the windows, a replication, the mean.
        lag_mean: in optimizer steps.
        lag_p95: mean of the replications' 95th percentiles.
        lag_max: largest of all.
        lag_in_queue_mean: the part of `lag_mean` that accrued in the buffer.
        utilisation: busy share by pool, the mean.
        episode_s: mean seconds that an episode spends in each state, up to those that reach over the windows' edges.
        idle_by_role: share of all chip time in which chips of each role were idle.
        step_s: seconds a learner step.
        dropped_groups: groups dropped a replication by reason, the mean.
        generated_length_mean: tokens of all episodes that finished generating.
        trained_length_mean: tokens of trained episodes.
        tokens_per_busy_chip_s: tokens generated in the windows per chip-second that was not idle; fuller batches raise it.
        role_bubbles: share of the time in which a role did not compute, where roles share chips; the mean.
        usd: US dollars of a replication's window by what they were paid for, the mean; empty without prices.
        usd_per_1000_groups: for a thousand trained groups; 0 without prices.
        usd_per_1000_episodes: for a thousand trained episodes; 0 without prices.
        tokens_by_fate: tokens made in the windows by what became of them, a replication, the mean.
        episodes_by_fate: episodes by what became of them, `in_flight` included, a replication, the mean.
        lengths: settled episodes of all replications by fate and length class.
        mean_lengths: tokens of a settled episode by its fate, the mean.
        underfill_share: share of chip time in which full slots would have done the kept generation without; None: not known.
        chips_lost: mean of a replication: `slices` lost, `recovery_s` until one works again, `rollbacks` of the learner and the
            `steps` that these took back; empty where no chips were lost.
        warnings: all that the replications warn of, each once.

    """

    idle_share: Interval
    kept_groups_per_chip_s: Interval
    chip_share: dict[str, float]
    chips: int
    window_s: float
    learner_steps: int
    warmup_steps: int
    replications: int
    turns: float
    groups: float
    episodes: float
    lag_mean: float
    lag_p95: float
    lag_max: int
    lag_in_queue_mean: float
    utilisation: dict[str, float]
    episode_s: dict[str, float]
    idle_by_role: dict[str, float]
    step_s: float
    dropped_groups: dict[str, float]
    generated_length_mean: float
    trained_length_mean: float
    tokens_per_busy_chip_s: float
    warnings: tuple[str, ...]
    tokens_by_fate: dict[str, float] = field(default_factory=dict)
    episodes_by_fate: dict[str, float] = field(default_factory=dict)
    lengths: tuple[Lengths, ...] = ()
    mean_lengths: dict[str, float] = field(default_factory=dict)
    underfill_share: float | None = None
    chips_lost: dict[str, float] = field(default_factory=dict)
    role_bubbles: dict[str, float] = field(default_factory=dict)
    usd: dict[str, float] = field(default_factory=dict)
    usd_per_1000_groups: float = 0.0
    usd_per_1000_episodes: float = 0.0

    def share(self, klass: str) -> float:
        """Share of chip time in a class (`idle`, `overhead`, `discarded`, `kept`, `in_flight`)."""
        return math.fsum(part for key, part in self.chip_share.items() if key.partition(":")[0] == klass)

    def causes(self, klass: str) -> list[tuple[str, float]]:
        """Causes within a class with their share of all chip time, the largest first."""
        inside = [(key.partition(":")[2], part) for key, part in self.chip_share.items() if key.partition(":")[0] == klass]
        return sorted(inside, key=lambda pair: (-pair[1], pair[0]))


def measure(runs: Sequence[RunSummary]) -> Measured:
    """Put replications of one configuration together. At least one."""
    n = len(runs)
    lengths = waste.together([run.lengths for run in runs])
    return Measured(
        idle_share=ratio_interval([_idle_ns(run) for run in runs], [run.chip_total_ns for run in runs]),
        kept_groups_per_chip_s=ratio_interval([run.groups for run in runs], [_chip_s(run) for run in runs]),
        chip_share=_chip_share(runs),
        chips=runs[0].chips,
        window_s=math.fsum(run.window_s for run in runs),
        learner_steps=min(run.learner_steps for run in runs),
        warmup_steps=min(run.warmup_steps for run in runs),
        replications=n,
        turns=sum(run.turns for run in runs) / n,
        groups=sum(run.groups for run in runs) / n,
        episodes=sum(run.episodes for run in runs) / n,
        lag_mean=math.fsum(run.lag_mean for run in runs) / n,
        lag_p95=math.fsum(run.lag_p95 for run in runs) / n,
        lag_max=max(run.lag_max for run in runs),
        lag_in_queue_mean=math.fsum(run.lag_in_queue_mean for run in runs) / n,
        utilisation=_means([run.utilisation for run in runs]),
        episode_s=_episode_s(runs),
        idle_by_role=_idle_by_role(runs),
        step_s=math.fsum(run.window_s for run in runs) / max(sum(run.learner_steps for run in runs), 1),
        dropped_groups=_means([run.dropped_groups for run in runs]),
        generated_length_mean=math.fsum(run.generated_length_mean for run in runs) / n,
        trained_length_mean=math.fsum(run.trained_length_mean for run in runs) / n,
        tokens_per_busy_chip_s=_tokens_per_busy_chip_s(runs),
        warnings=tuple(dict.fromkeys(warning for run in runs for warning in run.warnings)),
        tokens_by_fate=_means([run.tokens_by_fate for run in runs]),
        episodes_by_fate=_means([run.episodes_by_fate for run in runs]),
        lengths=lengths,
        mean_lengths=waste.mean_lengths(lengths),
        underfill_share=_underfill_share(runs),
        chips_lost=_chips_lost(runs),
        role_bubbles=_means([run.role_bubbles for run in runs]),
        usd=money.mean_bill(runs),
        usd_per_1000_groups=money.per_thousand(runs, [run.groups for run in runs]),
        usd_per_1000_episodes=money.per_thousand(runs, [run.trained_episodes for run in runs]),
    )


def _chips_lost(runs: Sequence[RunSummary]) -> dict[str, float]:
    n, recoveries = len(runs), sum(run.recoveries for run in runs)
    if not any(run.slice_losses or run.recoveries for run in runs):
        return {}
    return {
        "slices": sum(run.slice_losses for run in runs) / n,
        "recovery_s": math.fsum(run.recovery_mean_s * run.recoveries for run in runs) / recoveries if recoveries else 0.0,
        "rollbacks": sum(run.rollbacks for run in runs) / n,
        "steps": sum(run.steps_lost for run in runs) / n,
    }


def gain(before: Sequence[RunSummary], after: Sequence[RunSummary], confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Kept groups per chip-second of `after` over `before`, minus 1. Entry i of both has the same seed."""
    return relative_ratio_difference(_kept(before), _kept(after), confidence)


def idle_change(before: Sequence[RunSummary], after: Sequence[RunSummary], confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Idle share of `after` minus that of `before`. Entry i of both has the same seed."""
    return paired_ratio_difference(_idle(before), _idle(after), confidence)


def tokens_gain(before: Sequence[RunSummary], after: Sequence[RunSummary], confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Trained tokens per chip-second of `after` over `before`, minus 1. Entry i of both has the same seed."""
    return relative_ratio_difference(_tokens(before), _tokens(after), confidence)


def improvement(
    objective: Objective, before: Sequence[RunSummary], after: Sequence[RunSummary], confidence: float = DEFAULT_CONFIDENCE
) -> Interval:
    """How much better `after` is by an objective: a fraction of its rate, or for `idle` the drop of that share."""
    if objective == "kept":
        return gain(before, after, confidence)
    return tokens_gain(before, after, confidence) if objective == "tokens" else idle_change(after, before, confidence)


def _kept(runs: Sequence[RunSummary]) -> RatioSample:
    return RatioSample([run.groups for run in runs], [_chip_s(run) for run in runs])


def _tokens(runs: Sequence[RunSummary]) -> RatioSample:
    return RatioSample([run.tokens_trained for run in runs], [_chip_s(run) for run in runs])


def _idle(runs: Sequence[RunSummary]) -> RatioSample:
    return RatioSample([_idle_ns(run) for run in runs], [run.chip_total_ns for run in runs])


def _chip_s(run: RunSummary) -> float:
    return run.chip_total_ns / NS_PER_S


def _idle_ns(run: RunSummary) -> int:
    return sum(ns for key, ns in run.chip_ns.items() if key.partition(":")[0] == "idle")


def _tokens_per_busy_chip_s(runs: Sequence[RunSummary]) -> float:
    busy_ns = sum(run.chip_total_ns - _idle_ns(run) for run in runs)
    return sum(run.tokens_made for run in runs) * NS_PER_S / busy_ns if busy_ns else 0.0


def _chip_share(runs: Sequence[RunSummary]) -> dict[str, float]:
    total = sum(run.chip_total_ns for run in runs)
    keys = sorted({key for run in runs for key in run.chip_ns})
    return {key: sum(run.chip_ns.get(key, 0) for run in runs) / total for key in keys}


def _episode_s(runs: Sequence[RunSummary]) -> dict[str, float]:
    """`provider_queue` is taken out of the time in tool calls."""
    episodes = sum(run.episodes for run in runs)
    if not episodes:
        return {}
    keys = sorted({key for run in runs for key in run.episode_ns})
    spent = {key: sum(run.episode_ns.get(key, 0) for run in runs) for key in keys}
    queued = min(sum(run.provider_queue_ns for run in runs), spent.get("tool_exec", 0))
    if queued:
        spent |= {"tool_exec": spent["tool_exec"] - queued, "provider_queue": queued}
    return {key: ns / NS_PER_S / episodes for key, ns in spent.items()}


def _idle_by_role(runs: Sequence[RunSummary]) -> dict[str, float]:
    total = sum(run.chip_total_ns for run in runs)
    roles = sorted({role for run in runs for role in run.idle_by_role_ns})
    return {role: sum(run.idle_by_role_ns.get(role, 0) for run in runs) / total for role in roles}


def _underfill_share(runs: Sequence[RunSummary]) -> float | None:
    known = [run.underfill_ns for run in runs if run.underfill_ns is not None]
    return sum(known) / sum(run.chip_total_ns for run in runs) if len(known) == len(runs) else None


def _means(tables: Sequence[dict[str, float] | dict[str, int]]) -> dict[str, float]:
    keys = sorted({key for table in tables for key in table})
    return {key: math.fsum(table.get(key, 0) for table in tables) / len(tables) for key in keys}
