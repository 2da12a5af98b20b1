"""verl, fully asynchronous: what a staleness threshold buys, from one row of the table.

Between two syncs (4 updates of 128 prompts) the rollouter may start (1 + threshold) x 512 prompts less those that are left from
before (`admission = "window"`), at most min(16 x servers, quota) at a time. A prompt holds its place until the last of its 16
responses has ended (`start_unit = "held_group"`), and the responses that run at a sync are aborted and go on with the new
weights (`sync_mode = "abort_resume"`, partial rollout). The learner takes 128 prompts at a time, in the order of their
completion. So with threshold 0 it waits in each window for the longest of 8,192 responses; a threshold lets the longest ones
run on into the next window, in place of idle servers.

What the table calls "gen" is not only waiting: its clock also runs while the trainer unpickles and joins the 128 samples that
it has got. Where the trainer is the bottleneck (16 + 16 cards, update 313.81 s) nothing has to be waited for, and 21.26 s are
left: 2.6 ms a response. So the learner is held for that long before every update, and the predicted wait has it in it.

Fitted: the mean length of a response, on the wait of the row with threshold 0.
Given: the updates of each row; what a step holds beside wait and update, 4.1 s in the row with threshold 0, kept for all rows.
Assumed: see `Engine` and `Lengths`.

Source: verl documentation, "Fully Async Policy Trainer", 128-card stale ablation: Qwen2.5-Math-7B on 64 + 64 H20; scripts of
the same experiment: tensor parallel 4, so 16 servers, and `staleness_threshold`, `trigger_parameter_sync_step = 4`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from published_rows import Learner, Row, learner, scenario, solve

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

PROMPTS_PER_UPDATE, UPDATES_PER_SYNC, RESPONSES = 128, 4, 16
MAX_TOKENS = 28 * 1024
PROMPT_TOKENS = 200
COLLECT_S = 21.26 / (UPDATES_PER_SYNC * PROMPTS_PER_UPDATE * RESPONSES)
"""Seconds for each response that the trainer takes over, within the wait: row 16:16 of the same publication."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A server: 4 H20 with tensor parallelism.

    Qwen2.5-Math-7B: 7.6e9 weights, 28 layers, 4 KV heads of 128. H20: 148 TFLOP/s bf16, 4 TB/s, 96 GB.

    Attributes:
        servers: 64 cards by 4.
        base_s: a step's own time, for launching and for the exchange between cards. Qwen2.5-7B under vLLM 0.6.3 on one A100
            makes 84.28 tokens a second for a single request (Qwen documentation, "Qwen2.5 Speed Benchmark"): 11.87 ms, of which
            15.2 GB at 2.039 TB/s are 7.45. Assumed to be the same here.
        efficiency: share of the arithmetic that decoding reaches. Assumption.

    """

    servers: int = 16
    base_s: float = 0.0044
    efficiency: float = 0.5

    def tables(self) -> dict[str, Any]:
        """`world.inference`."""
        weights_bytes, flops, bandwidth = 2 * 7.6e9, 4 * 148e12 * self.efficiency, 4 * 4e12
        per_token_s = 2 * 7.6e9 / flops
        return {
            "replicas": self.servers,
            "chips_per_replica": 4,
            "kv_capacity_tokens": int((4 * 96e9 * 0.8 - weights_bytes) / 57_344),
            "decode": {
                "base_s": self.base_s,
                "weights_s": weights_bytes / bandwidth,
                "per_sequence_s": per_token_s,
                "per_kv_token_s": 57_344 / bandwidth,
            },
            "prefill": {"base_s": 0.0, "per_token_s": per_token_s},
        }


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a response: lognormal, cut at 28k, alike within a prompt.

    Attributes:
        cv: coefficient of variation. Assumption.
        correlation: of two responses to one prompt. Assumption.

    """

    cv: float = 1.0
    correlation: float = 0.5


@dataclass(frozen=True, slots=True)
class Published:
    """A row: seconds a sync window."""

    threshold: float
    step_s: float
    wait_s: float
    update_s: float

    @property
    def other_s(self) -> float:
        """What is neither wait nor update."""
        return self.step_s - self.wait_s - self.update_s


FIT = Published(0.0, 231.34, 128.47, 98.77)
PREDICTED = Published(0.1, 171.30, 58.17, 109.12)


def fully_async(
    threshold: float,
    mean_tokens: float,
    *,
    update_s: float,
    other_s: float = FIT.other_s,
    engine: Engine = Engine(),
    lengths: Lengths = Lengths(),
) -> Scenario[Any]:
    """One configuration of the table, with the learner's own times."""
    window = PROMPTS_PER_UPDATE * UPDATES_PER_SYNC
    quota = int(window * (1 + threshold))
    most = min(16 * engine.servers, quota)
    return scenario(
        f"verl fully asynchronous, threshold {threshold:g}",
        world={
            "inference": engine.tables(),
            "learner": {"chips": 64, "train": {"base_s": (update_s + other_s) / UPDATES_PER_SYNC, "per_sample_s": COLLECT_S}},
        },
        workload={
            "prompt_tokens": {"law": "constant", "value": PROMPT_TOKENS},
            "response_tokens": {"law": "lognormal", "mean": mean_tokens, "cv": lengths.cv, "max": MAX_TOKENS},
            "max_context_tokens": 2 * MAX_TOKENS,
            "response_correlation": lengths.correlation,
        },
        pipeline={
            "group_size": RESPONSES,
            "groups_per_step": PROMPTS_PER_UPDATE,
            "steps_per_sync": UPDATES_PER_SYNC,
            "admission": "window",
            "window_fraction": threshold,
            "stale_policy": "train",
            "order_policy": "fifo",
            "start_unit": "held_group",
            "max_inflight": most * RESPONSES,
            "buffer_capacity": quota,
            "sync_mode": "abort_resume",
            "router_policy": "least_loaded",
            "env_workers": most * RESPONSES,
            "tool_workers": most * RESPONSES,
            "reward_workers": most * RESPONSES,
            "slots_per_replica": 1024,
            "decode_chunk_steps": 64,
        },
    )


WINDOWS, WARM_UP = 8, 3


def measured(made: Scenario[Any], *, windows: int = WINDOWS) -> Learner:
    """A sync window of the learner, with what it takes to collect the samples counted as wait, as the table does."""
    found = learner(made, steps=windows * UPDATES_PER_SYNC, warmup_steps=WARM_UP * UPDATES_PER_SYNC, per=UPDATES_PER_SYNC)
    collect_s = made.world.learner.train.per_sample_s * made.pipeline.group_size * PROMPTS_PER_UPDATE * UPDATES_PER_SYNC
    return replace(found, wait_s=found.wait_s + collect_s, update_s=found.update_s - collect_s)


@lru_cache(maxsize=1)
def fitted_tokens() -> float:
    """The mean length at which the row with threshold 0 waits as long as published."""
    return solve(
        lambda mean: measured(fully_async(FIT.threshold, mean, update_s=FIT.update_s)).wait_s,
        FIT.wait_s,
        1_000,
        3_000,
        rel=0.005,
    )


def predicted(row: Published) -> Learner:
    """A row, from its threshold and update."""
    return measured(fully_async(row.threshold, fitted_tokens(), update_s=row.update_s))


def rows() -> list[Row]:
    """Threshold 0.1, predicted."""
    fitted = f"mean response of {fitted_tokens():.0f} tokens, on the wait at threshold 0"
    found = predicted(PREDICTED)
    return [
        Row("fully async, threshold 0.1: step, s", fitted, found.step_s, PREDICTED.step_s, 0.10),
        Row("fully async, threshold 0.1: wait, s", fitted, found.wait_s, PREDICTED.wait_s, 0.10),
    ]
