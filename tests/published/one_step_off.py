"""verl, one step off policy: the wait that is left when one batch is made while the one before it is trained.

The batch that trains was made by the weights of one step before, always. With G the time to generate a batch and T the rest of
a step (old log-probabilities, update, and what the row does not name), the learner waits max(0, G - T): a mean G below T does
not end the wait, the spread of G makes it. The spread is the one number fitted, on the wait of the FSDP2 row; the Megatron
row's wait follows from its own times of generation, log-probabilities and update.

An engine call that generates a whole batch is one request here, so one episode is one batch: nothing of a batch is handed
out before its last sample, and the next call starts when this one is over. That is what verl does, and why the cap is one.
What a step holds beside those is 30 s in the FSDP2 row, and is taken to be that in the other row too: what that row itself
leaves over could only be known from the wait that is to be predicted.

Assumed: G is lognormal; those 30 s are the learner's, beside generation. In verl's trainer that is so of rewards and
advantages: the next call is launched before them, and weights are handed over in less than 0.3 s.

Source: verl documentation, "One Step Off Async", Qwen2.5-Math-7B on 16 H20, 4 generate and 12 train.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from published_rows import Learner, Row, learner, scenario, solve

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

TOKENS = 10_000
"""Mean length of the one request, so that its time is drawn to a ten-thousandth of its mean."""

STEPS = 1_500


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the table, seconds a step."""

    name: str
    step_s: float
    wait_s: float
    generate_s: float
    log_probs_s: float
    update_s: float

    @property
    def other_s(self) -> float:
        """What the row does not name."""
        return self.step_s - self.wait_s - self.log_probs_s - self.update_s


FSDP2 = Published("FSDP2, 20k max", 520, 45, 458, 108, 337)
MEGATRON = Published("Megatron, 8k max", 566, 59, 501, 120, 347)


def one_step_off(row: Published, cv: float, other_s: float = FSDP2.other_s) -> Scenario[Any]:
    """One batch generated ahead: `generate_s` on average with this coefficient of variation, and the learner's own times.

    Neither the row's step nor its wait is looked at.
    """
    return scenario(
        f"verl one step off, {row.name}",
        world={
            "inference": {"decode": {"base_s": row.generate_s / TOKENS, "weights_s": 0.0, "per_sequence_s": 0.0}},
            "learner": {
                "chips": 12,
                "train": {"base_s": row.update_s + other_s},
                "log_probs": {"base_s": row.log_probs_s},
            },
        },
        workload={
            "response_tokens": {"law": "lognormal", "mean": float(TOKENS), "cv": cv, "max": 100 * TOKENS},
            "max_context_tokens": 200 * TOKENS,
        },
        pipeline={
            "group_size": 1,
            "groups_per_step": 1,
            "max_staleness": 1,
            "pipeline_depth": 1,
            "max_inflight": 1,
            "buffer_capacity": 2,
            "sync_mode": "drain",
            "decode_chunk_steps": 65_536,
            "slots_per_replica": 1,
        },
    )


def measured(row: Published, cv: float, *, steps: int = STEPS) -> Learner:
    """What the learner's lane shows."""
    return learner(one_step_off(row, cv), steps=steps, warmup_steps=10)


@lru_cache(maxsize=1)
def fitted_cv() -> float:
    """The coefficient of variation at which the FSDP2 row waits as long as published."""
    return solve(lambda cv: measured(FSDP2, cv).wait_s, FSDP2.wait_s, 0.1, 0.6)


def rows() -> list[Row]:
    """The Megatron row, predicted."""
    cv = fitted_cv()
    fitted = f"CV of generation time {cv:.3f}, on the FSDP2 row's wait"
    here, there = measured(FSDP2, cv), measured(MEGATRON, cv)
    return [
        Row("one step off, FSDP2: wait, s (the fit)", fitted, here.wait_s, FSDP2.wait_s, 0.10),
        Row("one step off, Megatron: wait, s", fitted, there.wait_s, MEGATRON.wait_s, 0.10),
        Row("one step off, Megatron: step, s", fitted, there.step_s, MEGATRON.step_s, 0.10),
    ]
