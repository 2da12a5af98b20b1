"""Policy losses: one function each, on arrays of one value per predicted token.

Notation, for a token a after context s:

- π: the policy that is trained (`log_probs`; the only array that carries a gradient);
- μ: the policy that sampled the token, whichever version that was (`sampled`);
- π_prox: the policy at the start of the optimizer step (`proximal`);
- π_ref: the reference of the KL term (`reference`);
- A: the advantage of the token's sequence.

A loss returns one value a token. Summing is left to the learner: it keeps the sum of weight times loss and the sum of weights
apart, so that micro-batches that arrive one after another give the whole batch's mean, whose denominator is known only at the
end.

Add a loss: write a function of this shape, enter it in `LOSSES`, and its name in `LearnerTable.loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from pipeline.live_config import LearnerTable

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within this either way: exp(20) is far beyond every clip and cap, and finite when squared."""


class LossInputs(NamedTuple):
    """What a loss sees of R rows of T predicted tokens. All (R, T).

    Attributes:
        log_probs: log π of the token.
        sampled: log μ of it, as recorded when it was sampled.
        proximal: log π_prox of it.
        reference: log π_ref of it.
        advantages: A of its sequence.
        trained: 1.0 where the token is trained on, else 0.0.
        segments: number of its sequence within the row, from 1; 0 is padding.

    """

    log_probs: jax.Array
    sampled: jax.Array
    proximal: jax.Array
    reference: jax.Array
    advantages: jax.Array
    trained: jax.Array
    segments: jax.Array


class LossTerms(NamedTuple):
    """What a loss gives back. All (R, T); values where nothing is trained are ignored.

    Attributes:
        loss: to be minimised.
        ratio: importance ratio before any clip or cap.
        clipped: 1.0 where a clip or a cap took effect.

    """

    loss: jax.Array
    ratio: jax.Array
    clipped: jax.Array


Loss = Callable[["LossInputs", "LearnerTable"], LossTerms]


def _ratio(log_numerator: jax.Array, log_denominator: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(log_numerator - log_denominator, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def _clipped_surrogate(ratio: jax.Array, advantages: jax.Array, settings: LearnerTable) -> tuple[jax.Array, jax.Array]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and where the clip is the smaller (arXiv 1707.06347, equation 7)."""
    free = ratio * advantages
    held = jnp.clip(ratio, 1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
    return -jnp.minimum(free, held), (held < free).astype(jnp.float32)


def grpo(inputs: LossInputs, settings: LearnerTable) -> LossTerms:
    """PPO's clipped surrogate against the sampled log-probabilities, with an asymmetric clip.

    r = π / μ; loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    GRPO: arXiv 2402.03300, equation 3 (its KL term is added by the learner); the separate upper clip: DAPO, arXiv 2503.14476,
    equation 8. Shapes: (R, T) in and out.
    """
    ratio = _ratio(inputs.log_probs, inputs.sampled)
    loss, clipped = _clipped_surrogate(ratio, inputs.advantages, settings)
    return LossTerms(loss, ratio, clipped)


def decoupled_ppo(inputs: LossInputs, settings: LearnerTable) -> LossTerms:
    """PPO that is held near a recent policy instead of the one that sampled, which may be old.

    r = π / π_prox; w = min(π_prox / μ, importance_cap), without gradient;
    loss = -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    Hilton et al., arXiv 2110.00641; AReaL, arXiv 2505.24298, equation 5. With one optimizer step a batch r is 1 where the
    gradient is taken, and w does the correction. Shapes: (R, T) in and out; `ratio` is π_prox / μ.
    """
    behaviour = jax.lax.stop_gradient(_ratio(inputs.proximal, inputs.sampled))
    weight = jnp.minimum(behaviour, settings.importance_cap)
    loss, clipped = _clipped_surrogate(_ratio(inputs.log_probs, inputs.proximal), inputs.advantages, settings)
    return LossTerms(weight * loss, behaviour, jnp.maximum(clipped, (behaviour > settings.importance_cap).astype(jnp.float32)))


def tis_token(inputs: LossInputs, settings: LearnerTable) -> LossTerms:
    """Policy gradient with an importance weight for each token, truncated above.

    w = min(π / μ, importance_cap), without gradient; loss = -w A log π.

    Truncation: Ionides 2008, "Truncated Importance Sampling"; as a weight of each step: IMPALA, arXiv 1802.01561, section 4.
    Shapes: (R, T) in and out.
    """
    ratio = jax.lax.stop_gradient(_ratio(inputs.log_probs, inputs.sampled))
    return _truncated(inputs, ratio, settings)


def tis_sequence(inputs: LossInputs, settings: LearnerTable) -> LossTerms:
    """Policy gradient with one importance weight for each sequence, truncated above.

    w = min(Π π / μ over the sequence's trained tokens, importance_cap), without gradient; loss = -w A log π.

    Unbiased up to the truncation, where the weight by token is not; of higher variance. Ionides 2008, on whole trajectories.
    Shapes: (R, T) in and out.
    """
    rows, length = inputs.segments.shape
    sequence = inputs.segments + jnp.arange(rows)[:, None] * (length + 1)  # a number of its own for every segment of every row
    log_ratio = inputs.trained * (inputs.log_probs - inputs.sampled)
    sums = jax.ops.segment_sum(log_ratio.reshape(-1), sequence.reshape(-1), num_segments=rows * (length + 1))
    ratio = jax.lax.stop_gradient(jnp.exp(jnp.clip(sums[sequence], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)))
    return _truncated(inputs, ratio, settings)


def _truncated(inputs: LossInputs, ratio: jax.Array, settings: LearnerTable) -> LossTerms:
    weight = jnp.minimum(ratio, settings.importance_cap)
    clipped = (ratio > settings.importance_cap).astype(jnp.float32)
    return LossTerms(-weight * inputs.advantages * inputs.log_probs, ratio, clipped)


def kl_to_reference(log_probs: jax.Array, reference: jax.Array) -> jax.Array:
    """Estimate of KL(π ‖ π_ref) for each token: π_ref / π - log(π_ref / π) - 1. Never negative; unbiased where π sampled.

    Schulman 2020, "Approximating KL Divergence", estimator k3; as in GRPO, arXiv 2402.03300, equation 4. Shapes: (R, T) in and
    out.
    """
    difference = jnp.clip(reference - log_probs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return jnp.exp(difference) - difference - 1.0


def cross_entropy(inputs: LossInputs, settings: LearnerTable) -> LossTerms:
    """Supervised: loss = -log π of the demonstrated token. `settings` and advantages have no part in it."""
    return LossTerms(-inputs.log_probs, jnp.ones_like(inputs.log_probs), jnp.zeros_like(inputs.log_probs))


LOSSES: dict[str, Loss] = {
    "grpo": grpo,
    "decoupled_ppo": decoupled_ppo,
    "tis_token": tis_token,
    "tis_sequence": tis_sequence,
}
"""By the name in `live.learner.loss`."""

NEEDS_PROXIMAL = frozenset({"decoupled_ppo"})
"""Losses that read log π_prox."""
