"""Step times, KV capacity and weights from a chip, a model and efficiencies: the roofline.

Notation: n chips, each with peak arithmetic F (bf16 operations a second), memory bandwidth B, memory H and interconnect I
(bytes a second, all links, both ways); N weights, of which A work on a token (A = N where the model is dense); L layers, K
key/value heads of width d, model width h; the efficiencies are shares of the peaks and named inputs (`Efficiencies`).

==============================  ==========================================================================================
quantity                        formula
==============================  ==========================================================================================
bytes of the weights            N · bytes a weight
KV bytes a token                2 · L · K · d · bytes a value, times n ÷ K where n > K (heads are then held several times)
KV capacity                     (n · H · usable - weights - n · buffers) ÷ KV bytes a token
decode, reading the weights     weights ÷ (n · B · share): all of them, also of a mixture of experts, whose batch touches
                                nearly every expert as soon as it is worth its name
decode, arithmetic a sequence   2 · A ÷ (n · F · MFU); the slower of this times the batch and the reading hides the other
decode, KV cache                KV bytes a token ÷ (n · B · share) for each token of context
prefill, a token                2 · A ÷ (n · F · MFU)
collectives, a token            2 · L all-reduces of h · 2 bytes: 2 · L · 2 (n - 1) ÷ n · 2 · h ÷ (I ÷ 2 · share)
train, a token                  6 · A ÷ (n · F · MFU): 2 forward, 4 backward
log-probabilities, a token      2 · A ÷ (n · F · MFU)
==============================  ==========================================================================================

Sources: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009 (the slower of two); Kaplan et al., "Scaling laws for
neural language models", 2020, section 2.1 (2N and 6N operations a token); Shoeybi et al., "Megatron-LM", 2019, section 3 (two
all-reduces a layer in a forward pass under tensor parallelism); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms",
J. Parallel Distrib. Comput. 69(2), 2009 (each chip sends 2 (n - 1) ÷ n of the data); JAX scaling book, 2025, sections 4 to 7
(all of it on TPUs).

Left out: arithmetic of attention (quadratic in the context; a measured MFU of long contexts has it), the latency of a
collective's hops (part of `step_overhead_s`), collectives of training (part of its MFU). An efficiency that is not given is
1: the result then is a bound that no run reaches, and is said to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from harness.costs.laws import Record
from harness.costs.step_time import DecodeLaw, PrefillLaw, TrainLaw

Share = Annotated[float, Field(gt=0, le=1)]

_ACTIVATION_BYTES = 2
"""bf16, as the collectives of an inference engine move them."""


class Model(Record):
    """The policy's sizes, from which step times are worked out."""

    parameters: float = Field(gt=0, description="Number of weights.")
    active_parameters: float | None = Field(
        default=None, gt=0, description="Weights that work on one token, in a mixture of experts; absent: all."
    )
    layers: int = Field(gt=0, description="Number of layers.")
    kv_heads: int = Field(gt=0, description="Key/value heads a layer.")
    head_dim: int = Field(gt=0, description="Width of a head.")
    hidden_size: int | None = Field(
        default=None, gt=0, description="Width of the model: what chips of one replica exchange. Needed where it has several."
    )
    bytes_per_parameter: float = Field(default=2.0, gt=0, description="Bytes of a weight in the engine: 2 for bf16, 1 for fp8.")
    kv_bytes_per_value: float = Field(default=2.0, gt=0, description="Bytes of a value of the KV cache: 2 for bf16.")

    @property
    def active(self) -> float:
        """Weights that work on one token."""
        return self.parameters if self.active_parameters is None else self.active_parameters

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as the engine holds them."""
        return round(self.parameters * self.bytes_per_parameter)

    def kv_bytes_per_token(self, chips: int) -> float:
        """Bytes of the keys and values of one token on all of `chips` chips together."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes_per_value * max(1.0, chips / self.kv_heads)


class Efficiencies(Record):
    """Shares of the peaks that are reached, measured or assumed by the user. What is left at 1 makes a bound."""

    train_mfu: Share = Field(default=1.0, description="Share of peak arithmetic that training and log-prob passes reach (MFU).")
    inference_mfu: Share = Field(default=1.0, description="Share of peak arithmetic that prefill and decode reach.")
    hbm_share: Share = Field(default=1.0, description="Share of peak memory bandwidth that decoding reaches.")
    ici_share: Share = Field(default=1.0, description="Share of the interconnect's peak that collectives and transfers reach.")
    dcn_share: Share = Field(default=1.0, description="Share of the data-centre network's peak that transfers reach.")
    step_overhead_s: float = Field(
        default=0.0, ge=0, description="Seconds of each decode step that nothing here explains: host, sampling, latencies."
    )
    prefill_overhead_s: float = Field(default=0.0, ge=0, description="Seconds of each prefill, likewise.")
    train_overhead_s: float = Field(default=0.0, ge=0, description="Seconds of each optimizer step, likewise.")
    train_cv: float = Field(default=0.0, ge=0, le=5, description="Coefficient of variation of the passes' jitter.")
    usable_hbm: Share = Field(
        default=0.9, description="Share of memory that the engine takes: weights, buffers, KV cache. 0.9 is vLLM's default."
    )
    buffers_bytes: int = Field(default=0, ge=0, description="Bytes of each chip for activations and what else is no KV cache.")
    source: str = Field(default="", description="Where the figures come from, and when.")

    @property
    def bounds(self) -> tuple[str, ...]:
        """Efficiencies at 1: the roof itself."""
        names = ("train_mfu", "inference_mfu", "hbm_share", "ici_share", "dcn_share")
        return tuple(name for name in names if getattr(self, name) == 1.0)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one chip can do at most.

    Attributes:
        name: for the `source` of what is worked out.
        flop_per_s: bf16 operations a second.
        hbm_bytes: of memory.
        hbm_bytes_per_s: to it.
        ici_bytes_per_s: to the other chips of the slice, all links, both ways; not looked at on one chip.

    """

    name: str
    flop_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    ici_bytes_per_s: float


def collective_s_per_token(peaks: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> float:
    """Seconds of tensor-parallel all-reduces for one token of a forward pass; 0 on one chip, which exchanges nothing."""
    if chips == 1:
        return 0.0
    assert model.hidden_size is not None
    moved = 2 * (chips - 1) / chips * model.hidden_size * _ACTIVATION_BYTES
    return 2 * model.layers * moved / (peaks.ici_bytes_per_s / 2 * efficiencies.ici_share)


def _arithmetic_s(operations: float, peaks: Peaks, chips: int, mfu: float) -> float:
    return operations / (chips * peaks.flop_per_s * mfu)


def _said(peaks: Peaks, chips: int) -> str:
    return f"roofline of {chips} x {peaks.name}"


def decode_law(peaks: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> DecodeLaw:
    """Decode steps of one replica of `chips` chips."""
    bandwidth = chips * peaks.hbm_bytes_per_s * efficiencies.hbm_share
    return DecodeLaw(
        base_s=efficiencies.step_overhead_s,
        weights_s=model.weights_bytes / bandwidth,
        per_sequence_s=_arithmetic_s(2 * model.active, peaks, chips, efficiencies.inference_mfu),
        per_kv_token_s=model.kv_bytes_per_token(chips) / bandwidth,
        collective_s=collective_s_per_token(peaks, model, efficiencies, chips),
        source=_said(peaks, chips),
    )


def prefill_law(peaks: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> PrefillLaw:
    """Prefills of one replica of `chips` chips."""
    arithmetic_s = _arithmetic_s(2 * model.active, peaks, chips, efficiencies.inference_mfu)
    return PrefillLaw(
        base_s=efficiencies.prefill_overhead_s,
        per_token_s=arithmetic_s + collective_s_per_token(peaks, model, efficiencies, chips),
        source=_said(peaks, chips),
    )


def train_law(peaks: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> TrainLaw:
    """Training passes of a learner of `chips` chips."""
    return TrainLaw(
        base_s=efficiencies.train_overhead_s,
        per_token_s=_arithmetic_s(6 * model.active, peaks, chips, efficiencies.train_mfu),
        cv=efficiencies.train_cv,
        source=_said(peaks, chips),
    )


def log_probs_law(peaks: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> TrainLaw:
    """Forward passes of a learner of `chips` chips."""
    return TrainLaw(
        per_token_s=_arithmetic_s(2 * model.active, peaks, chips, efficiencies.train_mfu),
        cv=efficiencies.train_cv,
        source=_said(peaks, chips),
    )


def kv_capacity_tokens(peaks: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> int:
    """Tokens of context that one replica holds; below 1 where the weights leave no room."""
    room = chips * (peaks.hbm_bytes * efficiencies.usable_hbm - efficiencies.buffers_bytes) - model.weights_bytes
    return int(room // model.kv_bytes_per_token(chips))
