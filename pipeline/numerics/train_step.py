"""One optimizer step as pure functions: sums over a micro-batch, and the update by their quotient. `Learner` compiles them.

A log-probability here is that of the distribution that was sampled from: logits divided by the sampling temperature.

Shapes: R rows, T row length, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]  # it ships no types

from pipeline.numerics.losses import Loss, LossInputs, kl_to_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.live_config import LearnerTable
    from pipeline.numerics.packing import Arrays

Tree = Any
"""A pytree of arrays."""


class Sums(NamedTuple):
    """Weighted sums over tokens: float32 scalars (or their shardings), and gradients in the shape of the parameters."""

    gradients: Tree
    weight: Any
    loss: Any
    kl: Any
    ratio: Any
    clipped: Any
    entropy: Any


class Counters(NamedTuple):
    """int32 scalars (or their shardings): updates done, steps skipped as not finite, and of those the last in a row."""

    updates: Any
    skipped: Any
    skipped_in_a_row: Any


class Trained(NamedTuple):
    """What an optimizer step changes."""

    params: Tree
    optimizer: Tree
    counters: Counters


def make_schedule(settings: LearnerTable) -> optax.Schedule:
    """Learning rate by updates done: linear warm-up to the peak, then cosine decay, or the peak for good."""
    peak = settings.learning_rate
    after = (
        optax.cosine_decay_schedule(peak, settings.decay_steps, settings.final_fraction)
        if settings.decay_steps
        else optax.constant_schedule(peak)
    )
    if not settings.warmup_steps:
        return after
    rising = optax.linear_schedule(peak / settings.warmup_steps, peak, max(settings.warmup_steps - 1, 1))
    return optax.join_schedules([rising, after], [settings.warmup_steps])


def make_optimizer(settings: LearnerTable, schedule: optax.Schedule) -> optax.GradientTransformation:
    """AdamW (arXiv 1711.05101) behind a clip of the global norm."""
    return optax.chain(
        optax.clip_by_global_norm(settings.max_grad_norm), optax.adamw(schedule, weight_decay=settings.weight_decay)
    )


def token_log_probs(logits: jax.Array, targets: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities (R, T) of targets (R, T) under logits (R, T, V) at a temperature, and entropies (R, T) in nats."""
    scaled = logits / temperature
    normal = jax.nn.log_softmax(scaled, axis=-1)
    chosen = jnp.take_along_axis(normal, targets[..., None], axis=-1)[..., 0]
    held = jax.lax.stop_gradient(normal)
    return chosen, -jnp.sum(jnp.exp(held) * held, axis=-1)


def micro_sums(
    forward: Callable[[Tree, Arrays[jax.Array]], tuple[jax.Array, jax.Array]],
    loss: Loss,
    settings: LearnerTable,
    kl_coefficient: float,
    params: Tree,
    arrays: Arrays[jax.Array],
    proximal: jax.Array | None,
    reference: jax.Array | None,
) -> tuple[jax.Array, Sums]:
    """Weighted sum of the loss over one micro-batch, and the other sums beside it (no gradients yet)."""
    log_probs, entropy = forward(params, arrays)
    held = jax.lax.stop_gradient(log_probs)
    inputs = LossInputs(
        log_probs=log_probs,
        sampled=arrays.sampled,
        proximal=held if proximal is None else proximal,
        reference=held if reference is None else reference,
        advantages=arrays.advantages,
        trained=(arrays.weights > 0).astype(jnp.float32),
        segments=arrays.segments,
    )
    terms = loss(inputs, settings)
    kl = jnp.zeros_like(log_probs) if reference is None else kl_to_reference(log_probs, reference)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(arrays.weights > 0, arrays.weights * values, 0.0))

    objective = total(terms.loss + kl_coefficient * kl)
    sums = Sums(None, jnp.sum(arrays.weights), objective, total(kl), total(terms.ratio), total(terms.clipped), total(entropy))
    return objective, jax.lax.stop_gradient(sums)


def apply_sums(
    optimizer: optax.GradientTransformation, schedule: optax.Schedule, trained: Trained, sums: Sums
) -> tuple[Trained, Sums, dict[str, jax.Array]]:
    """One optimizer step with the mean gradient, unless it is not finite or there is nothing to train on."""
    some = sums.weight > 0
    scale = 1.0 / jnp.where(some, sums.weight, 1.0)
    gradients = jax.tree.map(lambda g: g * scale, sums.gradients)
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(norm) & jnp.isfinite(sums.loss)
    go = finite & some
    updates, optimizer_state = optimizer.update(gradients, trained.optimizer, trained.params)
    params = optax.apply_updates(trained.params, updates)
    counters = Counters(
        trained.counters.updates + go,
        trained.counters.skipped + ~finite,
        jnp.where(finite, jnp.where(some, 0, trained.counters.skipped_in_a_row), trained.counters.skipped_in_a_row + 1),
    )
    metrics = {
        "loss": sums.loss * scale,
        "kl": sums.kl * scale,
        "ratio": sums.ratio * scale,
        "clip_fraction": sums.clipped * scale,
        "entropy": sums.entropy * scale,
        "grad_norm": norm,
        "learning_rate": jnp.asarray(schedule(trained.counters.updates), jnp.float32),
        "updates": counters.updates,
        "skipped": counters.skipped,
        "skipped_in_a_row": counters.skipped_in_a_row,
    }
    changed = Trained(params, optimizer_state, counters)
    kept = jax.tree.map(partial(jnp.where, go), (params, optimizer_state), (trained.params, trained.optimizer))
    return changed._replace(params=kept[0], optimizer=kept[1]), jax.tree.map(jnp.zeros_like, sums), metrics
