"""What one replication of a run says: plain numbers that can cross a process boundary.

Every chip-nanosecond of the window is in exactly one entry of `chip_ns`. Keys are `class` or `class:cause`:

- `idle:CAUSE` no work on the chip; the cause is what those were doing who could have ended it;
- `overhead:WHAT` sync, switch, compile, checkpoint, re-prefill;
- `discarded:FATE` work for episodes that were not trained;
- `kept` work that reached a kept optimizer step;
- `in_flight` work for episodes that are still open at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.waste import Lengths


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One replication, after the warm-up cut.

    Attributes:
        seed: of its draws.
        window_s: length of the reported window: end of warm-up to the end of the last learner step.
        total_s: simulated (or live) time from start to end.
        chips: chips paid for.
        learner_steps: optimizer steps completed in the window.
        groups: groups trained in the window.
        turns: turns of generation finished in the window.
        episodes: episodes that ended in the window.
        tokens_made: tokens generated for episodes settled in the window or open at its end, made in the window.
        tokens_trained: those of them that were trained.
        chip_ns: chip-nanoseconds by class, adding up to `round(window_s * 1e9) * chips` exactly.
        lag_mean: mean lag of the groups trained in the window, in optimizer steps (oldest token).
        lag_p95: 95th percentile.
        lag_max: largest.
        lag_in_queue_mean: the part of the mean that accrued in the buffer.
        dropped_groups: groups dropped in the window, by reason.
        settled: episodes by fate, whole run.
        utilisation: busy share by pool or role, in the window.
        generated_length_mean: mean tokens of all episodes that finished generating.
        trained_length_mean: mean tokens of trained episodes.
        episode_ns: nanoseconds that slots spent on episodes in the window, by state (`harness.analysis.episode_time`).
        idle_by_role_ns: idle chip-nanoseconds of each role's chips; they add up to the idle part of `chip_ns`.
        provider_queue_ns: the part of the time in tool calls that was spent in the queues of their providers (rate limits).
        events_hash: hash of the canonical event log; empty when it was not recorded.
        warnings: what a reader must know: too short, a pool that was never busy.
        warmup_steps: optimizer steps before the window.
        trained_episodes: episodes trained in the window.
        role_bubbles: share of the window in which a role did not compute, where roles take turns on the same chips.
        usd: US dollars of the window by what they were paid for (`harness.analysis.money`); empty without prices.
        outage_ns: nanoseconds of the window in which each outage was down.
        tokens_by_fate: tokens made in the window by what became of them, `in_flight` included: they add up to `tokens_made`.
        episodes_by_fate: episodes settled in the window by fate, and those in flight at its end.
        lengths: settled episodes of the window by fate and length class (`harness.analysis.waste`).
        underfill_ns: chip-nanoseconds of kept generation that full slots would have saved (`harness.analysis.underfill`);
            None where step times have no law: live, or replicas that schedule themselves.
        slice_losses: slices of chips that were lost in the window.
        recoveries: slices that worked again after a loss, in the window.
        recovery_mean_s: mean seconds from such a loss until the slice worked again, of those that did in the window.
        rollbacks: how often the learner went back to a checkpoint in the window.
        steps_lost: optimizer steps that were completed and taken back by it.
        step_ends_ns: when each optimizer step of the whole run was completed, for good; empty where nobody looked.

    """

    seed: int
    window_s: float
    total_s: float
    chips: int
    learner_steps: int
    groups: int
    turns: int
    episodes: int
    tokens_made: int
    tokens_trained: int
    chip_ns: dict[str, int]
    lag_mean: float
    lag_p95: float
    lag_max: int
    lag_in_queue_mean: float
    dropped_groups: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    utilisation: dict[str, float] = field(default_factory=dict)
    generated_length_mean: float = 0.0
    trained_length_mean: float = 0.0
    episode_ns: dict[str, int] = field(default_factory=dict)
    idle_by_role_ns: dict[str, int] = field(default_factory=dict)
    provider_queue_ns: int = 0
    events_hash: str = ""
    warnings: tuple[str, ...] = ()
    warmup_steps: int = 0
    trained_episodes: int = 0
    role_bubbles: dict[str, float] = field(default_factory=dict)
    usd: dict[str, float] = field(default_factory=dict)
    tokens_by_fate: dict[str, int] = field(default_factory=dict)
    episodes_by_fate: dict[str, int] = field(default_factory=dict)
    lengths: tuple[Lengths, ...] = ()
    underfill_ns: int | None = None
    slice_losses: int = 0
    recoveries: int = 0
    recovery_mean_s: float = 0.0
    rollbacks: int = 0
    steps_lost: int = 0
    step_ends_ns: tuple[int, ...] = ()
    outage_ns: dict[str, int] = field(default_factory=dict)

    @property
    def chip_total_ns(self) -> int:
        """Chip-nanoseconds of the window."""
        return sum(self.chip_ns.values())

    @property
    def idle_share(self) -> float:
        """Share of chip time in which nothing ran on the chips."""
        return self.share("idle")

    @property
    def kept_groups_per_chip_s(self) -> float:
        """The objective: trained groups per chip-second."""
        return self.groups / (self.chip_total_ns / 1e9)

    @property
    def usd_total(self) -> float:
        """US dollars of the window; 0 without prices."""
        return math.fsum(self.usd.values())

    @property
    def usd_per_1000_groups(self) -> float:
        """US dollars for a thousand trained groups; 0 where none was trained."""
        return 1000 * self.usd_total / self.groups if self.groups else 0.0

    @property
    def usd_per_1000_episodes(self) -> float:
        """US dollars for a thousand trained episodes; 0 where none was trained."""
        return 1000 * self.usd_total / self.trained_episodes if self.trained_episodes else 0.0

    def share(self, klass: str) -> float:
        """Share of chip time in a class (`idle`, `overhead`, `discarded`, `kept`, `in_flight`)."""
        part = sum(ns for key, ns in self.chip_ns.items() if key == klass or key.startswith(klass + ":"))
        return part / self.chip_total_ns
