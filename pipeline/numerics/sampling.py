"""Sampling of tokens, keyed per request.

A token depends on its own logits and on its own key, never on the slot, the batch or the chunk that it is made in. The key of
a request is a hash of (run seed, task index, dispatch, member, turn); the token's number in its answer is the counter of the
generator (Threefry; Salmon et al., SC 2011). So a request that is aborted and resumed goes on with the draws that it would
have had.

A token is drawn by inversion of the cumulative distribution, in two steps: ids are split into classes (id modulo their
number), a class is drawn, then a token inside it. That takes two uniform numbers a token. The Gumbel trick would take one for
every entry of the vocabulary, which costs more than the rest of a decode step of a small model.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_NONE = (1 << 31) - 1  # above every id
_HIGHEST = jax.lax.Precision.HIGHEST  # sums of probabilities, not to be rounded to the accelerator's short floats


def request_key(seed: int, key: Sequence[int]) -> np.ndarray:
    """Key data of a request: two 32-bit words (uint32), of its seed and its (task index, dispatch, member, turn).

    Every part may be any whole number of 64 bits.
    """
    packed = struct.pack(f"<{len(key) + 1}q", seed, *key)
    return np.frombuffer(blake2b(packed, digest_size=8, person=b"sampling").digest(), "<u4")


def uniforms(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    """Two uniform numbers in [0, 1) for each token: (R, C, 2), float32.

    Args:
        keys: (R, 2) key data, uint32.
        numbers: (R, C) number of each token in its answer.

    """

    def of_token(key: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), number), (2,))

    return jax.vmap(jax.vmap(of_token, (None, 0)))(keys, numbers)


def _draw(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index (R,) drawn in proportion to weights (R, N) with one uniform number (R,) a row."""
    number = weights.shape[-1]
    upto = jnp.triu(jnp.ones((number, number), jnp.float32))
    cumulative = jnp.matmul(weights, upto, precision=_HIGHEST)
    reached = cumulative <= uniform[:, None] * cumulative[:, -1:]
    return jnp.minimum(reached.sum(axis=-1), number - 1)


def _column(x: jax.Array, column: jax.Array) -> jax.Array:
    """(R, W, N) at one column (R,) each: (R, W)."""
    return jnp.take_along_axis(x, column[:, None, None], axis=2)[:, :, 0]


def sample(logits: jax.Array, uniform: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token of each row (R,) int32, and its log-probability (R,) float32.

    The log-probability is that under the distribution which sampled it, softmax(logits / temperature). A row of temperature 0
    takes the likeliest token (the first of equals); its log-probability is that under softmax(logits).

    Args:
        logits: (R, V), float32.
        uniform: (R, 2) in [0, 1).
        temperature: (R,), 0 or more.

    """
    rows, vocabulary = logits.shape
    classes = 1 << ((max(vocabulary - 1, 1)).bit_length() + 1) // 2
    padding = -vocabulary % classes
    greedy = temperature <= 0.0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    scaled = jnp.pad(scaled, ((0, 0), (0, padding)), constant_values=-jnp.inf).reshape(rows, -1, classes)
    largest = scaled.max(axis=1)
    most = largest.max(axis=1)
    weights = jnp.exp(scaled - most[:, None, None])
    of_class = weights.sum(axis=1)
    drawn_class = _draw(of_class, uniform[:, 0])
    inside = _column(weights, drawn_class)
    drawn = _draw(inside, uniform[:, 1])
    # Rounding of the sums may reach a token that cannot be; then, as when greedy, take the likeliest.
    possible = jnp.take_along_axis(inside, drawn[:, None], axis=1)[:, 0] > 0.0
    best_class, best = _likeliest(scaled, largest)
    taken = possible & ~greedy
    column, row = jnp.where(taken, drawn_class, best_class), jnp.where(taken, drawn, best)
    chosen = jnp.take_along_axis(_column(scaled, column), row[:, None], axis=1)[:, 0]
    return (row * classes + column).astype(jnp.int32), chosen - most - jnp.log(of_class.sum(axis=1))


def _likeliest(scaled: jax.Array, largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Class and place in it of the largest entry of (R, W, N); of equals the one with the smallest id."""
    classes = scaled.shape[2]
    most = largest.max(axis=1, keepdims=True)
    place = jnp.argmax(scaled == most[:, :, None], axis=1)  # first in each class that reaches the maximum
    number = jnp.where(largest == most, place * classes + jnp.arange(classes), _NONE).min(axis=1)
    return number % classes, number // classes
