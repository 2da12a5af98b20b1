"""Underfill: chip time of kept generation that full batches would have saved.

A replica that decodes with half of its slots empty is busy, and its work is kept, but it makes fewer tokens than it could.
Beside the split of chip time stands

    underfill = kept decode time x (1 - rate / full rate)

with `rate` the tokens a second of a replica while it decodes, and `full rate` the one that it would have with all slots
taken at the same mean context a sequence: slots / step(slots, slots x mean context). Prefill is left out: it is limited by
arithmetic, so that an empty slot costs it nothing. Underfill is part of kept work, never of idle time.

The full rate needs a law of step times, so it is told of simulated runs. Where the KV cache cannot hold full slots at that
context, part of the underfill cannot be had by more requests; `reachable_slots` says how many it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class StepLaw(Protocol):
    """How long a decode step takes (`harness.costs.step_time.DecodeLaw`)."""

    def step_s(self, batch: int, kv_tokens: float) -> float:
        """Seconds of one step: `batch` sequences with `kv_tokens` of context in all."""


class Decoded(Protocol):
    """What one replica decoded in the window (`harness.core.accounts.Decoding`)."""

    @property
    def spent_ns(self) -> int:
        """Nanoseconds of its decode chunks."""

    @property
    def tokens(self) -> int:
        """Tokens made in them."""

    @property
    def slot_steps(self) -> int:
        """Sum over chunks of steps x requests in the batch."""

    @property
    def context_steps(self) -> int:
        """Sum over chunks of steps x context held, in tokens."""


@dataclass(frozen=True, slots=True)
class Fill:
    """How full the replicas were while they decoded.

    Attributes:
        underfill_ns: chip-nanoseconds of kept decode time that full slots would have saved.
        mean_context: tokens of context of a sequence, the mean.
        rate_share: tokens a second over those at full slots and the same context; 1 when nothing was decoded.
        reachable_slots: requests of that context that the KV cache holds; at most the slots.

    """

    underfill_ns: int
    mean_context: float
    rate_share: float
    reachable_slots: int


def fill(
    decoded: Iterable[Decoded], kept_ns: float, law: StepLaw, *, slots: int, kv_tokens: int, decode_share: float = 1.0
) -> Fill:
    """Work it out.

    Args:
        decoded: of each replica, in the window.
        kept_ns: chip-nanoseconds of generation that was kept, of all replicas.
        law: of decode steps.
        slots: of a replica.
        kv_tokens: that a replica's cache holds.
        decode_share: of the kept time that was decoding, not prefill.

    """
    spent = lost = 0.0
    slot_steps = context_steps = 0
    for one in decoded:
        if not one.slot_steps or not one.spent_ns:
            continue
        context = one.context_steps / one.slot_steps
        step_s = law.step_s(slots, slots * context)
        if step_s <= 0:  # steps that take no time have no rate to fall short of
            continue
        full = slots / step_s
        rate = one.tokens / (one.spent_ns / 1e9)
        lost += one.spent_ns * max(0.0, 1.0 - rate / full)
        spent += one.spent_ns
        slot_steps += one.slot_steps
        context_steps += one.context_steps
    if not spent:
        return Fill(0, 0.0, 1.0, slots)
    mean_context = context_steps / slot_steps
    reachable = min(slots, math.floor(kv_tokens / mean_context)) if mean_context else slots
    share = lost / spent
    return Fill(round(kept_ns * decode_share * share), mean_context, 1.0 - share, reachable)
