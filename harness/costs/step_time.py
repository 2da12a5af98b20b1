"""How long steps on accelerators take, and how to learn it from one published serving row.

**Decode.** One step of a batch of b sequences that hold c tokens of context in all takes

    base + max(weights, b · per_sequence) + b · collective + c · per_kv_token

`weights` is the time to read all weights from memory once, `per_sequence` the arithmetic of one token; the slower of the two
hides the other (roofline: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009). Reading the KV cache and exchanging
activations (`collective`) come on top, and `base` is what nothing else explains: latencies, sampling, the host. With
`weights_s = 0` the law is linear. The context grows by b a step, so a chunk of n steps takes in closed form

    n (base + max(weights, b · per_sequence) + b · collective) + per_kv_token (n c + b n (n - 1) / 2)

**Prefill.** base + tokens · per_token: limited by arithmetic.

**Fit.** A serving benchmark in a closed loop reports the mean time per output token (TPOT) at a concurrency C, with prompts
of L and outputs of N tokens. Physics gives weights, per_sequence, per_kv_token and the prefill of one prompt, P; the residual
is `base`. Between its first and its last token a request sees N - 1 decode steps and, because every other slot turns over
once in that time, the prefills of the C - 1 others, each of which stalls all. Hence

    TPOT = step(C, C (L + N / 2)) + (C - 1) P / (N - 1)

Calling all of TPOT "decode step" would charge those stalls twice in a simulation that also prefills.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

from pydantic import Field

from harness.core.errors import ConfigError
from harness.core.units import NS_PER_S
from harness.costs.laws import Record

if TYPE_CHECKING:
    from harness.costs.draws import Uniforms


class DecodeLaw(Record):
    """Seconds of decode steps."""

    base_s: float = Field(ge=0, description="Seconds a step, whatever the batch: host, collectives, sampling.")
    weights_s: float = Field(default=0.0, ge=0, description="Seconds to read all weights; hides faster arithmetic.")
    per_sequence_s: float = Field(
        default=0.0, ge=0, description="Seconds a step for each sequence of the batch: arithmetic of one token."
    )
    per_kv_token_s: float = Field(default=0.0, ge=0, description="Seconds a step for each token of context held by the batch.")
    collective_s: float = Field(
        default=0.0, ge=0, description="Seconds a step for each sequence, on top of all else: exchange between chips."
    )
    source: str = Field(default="", description="Where the figures come from.")
    note: str = Field(default="", description="What a reader should know.")

    def step_s(self, batch: int, kv_tokens: float) -> float:
        """Seconds of one step: `batch` sequences with `kv_tokens` of context in all."""
        compute_s = max(self.weights_s, batch * self.per_sequence_s) + batch * self.collective_s
        return self.base_s + compute_s + kv_tokens * self.per_kv_token_s

    def chunk_s(self, steps: int, batch: int, kv_tokens: int) -> float:
        """Seconds of `steps` steps that start at `kv_tokens`, growing by `batch` tokens a step."""
        compute_s = batch * self.per_sequence_s
        if compute_s < self.weights_s:
            compute_s = self.weights_s
        if self.collective_s:
            compute_s += batch * self.collective_s
        context = steps * (kv_tokens + batch * (steps - 1) / 2)
        return steps * (self.base_s + compute_s) + context * self.per_kv_token_s

    def chunk_ns(self, steps: int, batch: int, kv_tokens: int) -> int:
        """The same in whole nanoseconds, at least 1 so that a chunk always takes time."""
        return round(self.chunk_s(steps, batch, kv_tokens) * NS_PER_S) or 1

    def steps_within(self, budget_s: float, batch: int, kv_tokens: int) -> int:
        """Most steps that end within `budget_s` seconds: the positive root of the quadratic above, rounded down."""
        quadratic = batch * self.per_kv_token_s / 2
        linear = self.step_s(batch, kv_tokens) - quadratic
        root = math.sqrt(linear * linear + 4 * quadratic * budget_s)
        if linear > 0:  # in the form that loses no digits where the context hardly matters
            steps = int(2 * budget_s / (linear + root))
        elif quadratic > 0:
            steps = int((root - linear) / (2 * quadratic))
        else:
            return 0
        while self.chunk_s(steps + 1, batch, kv_tokens) <= budget_s:
            steps += 1
        while steps and self.chunk_s(steps, batch, kv_tokens) > budget_s:
            steps -= 1
        return steps


class PrefillLaw(Record):
    """Seconds of a prefill."""

    base_s: float = Field(ge=0, description="Seconds a call, whatever its length.")
    per_token_s: float = Field(ge=0, description="Seconds for each token computed; tokens found in the prefix cache are free.")
    source: str = Field(default="", description="Where the figures come from.")
    note: str = Field(default="", description="What a reader should know.")

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute `tokens` tokens in one call."""
        return self.base_s + tokens * self.per_token_s

    def prefill_ns(self, tokens: int) -> int:
        """The same in whole nanoseconds, at least 1."""
        return round((self.base_s + tokens * self.per_token_s) * NS_PER_S) or 1


class TrainLaw(Record):
    """Seconds of a pass of the learner over some samples.

    `base_s` is paid once an optimizer step (with its last micro-batch), the rest by each micro-batch.
    """

    base_s: float = Field(default=0.0, ge=0, description="Seconds an optimizer step, whatever its size.")
    per_sample_s: float = Field(default=0.0, ge=0, description="Seconds for each trained episode.")
    per_token_s: float = Field(default=0.0, ge=0, description="Seconds for each token, prompts and observations included.")
    cv: float = Field(default=0.0, ge=0, le=5, description="Coefficient of variation of a lognormal factor of mean 1 a step.")
    source: str = Field(default="", description="Where the figures come from.")
    note: str = Field(default="", description="What a reader should know.")

    def pass_s(self, samples: int, tokens: int, *, last: bool = True) -> float:
        """Mean seconds for `samples` episodes of `tokens` tokens in all; with `last` the optimizer step as well."""
        return (self.base_s if last else 0.0) + samples * self.per_sample_s + tokens * self.per_token_s

    def factor(self, uniforms: Uniforms, purpose: str, step: int) -> float:
        """Jitter of a step, of mean 1: keyed by the step, so that no knob changes it."""
        return jitter(self.cv, uniforms, purpose, step)

    def pass_ns(self, samples: int, tokens: int, factor: float = 1.0, *, last: bool = True) -> int:
        """Whole nanoseconds with a jitter factor, at least 1."""
        return max(round(self.pass_s(samples, tokens, last=last) * factor * NS_PER_S), 1)


class TransferLaw(Record):
    """Seconds to move some bytes: a weight version to one replica, a checkpoint to storage."""

    base_s: float = Field(ge=0, description="Seconds a transfer, whatever its size.")
    bytes_per_s: float = Field(gt=0, description="Bytes a second.")
    source: str = Field(default="", description="Where the figures come from.")
    note: str = Field(default="", description="What a reader should know.")

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds for `size_bytes`."""
        return self.base_s + size_bytes / self.bytes_per_s

    def transfer_ns(self, size_bytes: int) -> int:
        """The same in whole nanoseconds, at least 1."""
        return max(round(self.transfer_s(size_bytes) * NS_PER_S), 1)


def jitter(cv: float, uniforms: Uniforms, purpose: str, *ids: int) -> float:
    """A lognormal factor of mean 1 and coefficient of variation `cv`, keyed by (seed, purpose, ids); 1 without spread."""
    if cv == 0:
        return 1.0

    variance = math.log1p(cv * cv)
    u = float(uniforms.draw(1, purpose, *ids)[0])
    return math.exp(NormalDist(-variance / 2, math.sqrt(variance)).inv_cdf(max(u, 2.0**-54)))


class Chip(Record):
    """What the fit needs to know of one chip."""

    flops_per_s: float = Field(gt=0, description="Peak bf16 operations a second.")
    hbm_bytes_per_s: float = Field(gt=0, description="Peak memory bandwidth, bytes a second.")


class Transformer(Record):
    """What the fit needs to know of a dense decoder."""

    parameters: float = Field(gt=0, description="Number of weights.")
    layers: int = Field(gt=0, description="Number of layers.")
    kv_heads: int = Field(gt=0, description="Key/value heads a layer.")
    head_dim: int = Field(gt=0, description="Width of a head.")
    bytes_per_value: int = Field(default=2, gt=0, description="2 for bf16.")

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights."""
        return round(self.parameters * self.bytes_per_value)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token: 2 · layers · KV heads · head width · bytes a value."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value


class ServingRow(Record):
    """One published row of a closed-loop serving benchmark."""

    chips: int = Field(gt=0, description="Chips of the replica.")
    concurrency: int = Field(gt=0, description="Requests in flight, always.")
    input_tokens: int = Field(gt=0, description="Tokens of each prompt.")
    output_tokens: int = Field(gt=1, description="Tokens of each output.")
    time_per_output_token_s: float = Field(gt=0, description="Mean seconds from token to token, the first one excluded.")


def fit_step_time(
    row: ServingRow, model: Transformer, chip: Chip, *, prefill_efficiency: float, memory_efficiency: float = 1.0
) -> tuple[DecodeLaw, PrefillLaw]:
    """Step-time laws of one replica: physics, with the residual of one published row as `base_s`.

    Args:
        row: the row to fit on.
        model: the model served.
        chip: the chip served on.
        prefill_efficiency: share of peak arithmetic that a prefill reaches. Training MFU of the same chip is a fair guess.
        memory_efficiency: share of peak bandwidth that decoding reaches. What it really loses ends up in `base_s`.

    Raises:
        ConfigError: the row is faster than the physics given, so nothing is left for the residual.

    """
    bandwidth = row.chips * chip.hbm_bytes_per_s * memory_efficiency
    per_token_s = 2 * model.parameters / (row.chips * chip.flops_per_s * prefill_efficiency)
    prefill_s = row.input_tokens * per_token_s
    stalls_s = (row.concurrency - 1) * prefill_s / (row.output_tokens - 1)
    law = DecodeLaw(
        base_s=0.0,
        weights_s=model.weights_bytes / bandwidth,
        per_sequence_s=per_token_s,
        per_kv_token_s=model.kv_bytes_per_token / bandwidth,
    )
    context = row.concurrency * (row.input_tokens + row.output_tokens / 2)
    physics_s = law.step_s(row.concurrency, context) + stalls_s
    base_s = row.time_per_output_token_s - physics_s
    if base_s < 0:
        raise ConfigError(
            "the row is faster than the physics allows",
            field="time_per_output_token_s",
            value=row.time_per_output_token_s,
            allowed=f"at least {physics_s:.6g} s for this model on these chips",
            remedy="check the chip's figures, the number of chips and the efficiencies",
        )
    return law.model_copy(update={"base_s": base_s}), PrefillLaw(base_s=0.0, per_token_s=per_token_s)
