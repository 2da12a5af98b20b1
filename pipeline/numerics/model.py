"""Policy network: a decoder-only transformer of the Qwen3 family, in Flax NNX.

Pre-norm blocks; attention with grouped keys and values, a norm over each head's queries and keys, and rotary positions; a
SwiGLU feed-forward. Qwen3 technical report (arXiv 2505.09388); rotary embedding arXiv 2104.09864; RMSNorm arXiv 1910.07467;
grouped queries arXiv 2305.13245; SwiGLU arXiv 2002.05202.

Two ways through the same weights:

- `Transformer.__call__`: whole sequences, several of them packed into a row (`segments`), for learning and scoring;
- `Transformer.hidden`: with an attention of the caller's own, such as one over a KV cache, for generation.

Shapes: B rows, T tokens of a row, S positions looked at, V vocabulary, H heads, K heads of keys and values, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

if TYPE_CHECKING:
    from collections.abc import Callable

Parameters = nnx.State[Any, Any]
"""Parameters of a network by path, such as ("blocks", 0, "attention", "query")."""

_MASKED = -1e30  # not -inf: a row of padding attends to nothing, and must not become NaN


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the network.

    Attributes:
        vocab_size: tokens.
        hidden_size: width of the residual stream.
        intermediate_size: width of the feed-forward.
        layers: blocks.
        heads: of queries.
        kv_heads: of keys and values; divides `heads`.
        head_dim: width of a head.
        rope_theta: base of the rotary frequencies.
        norm_eps: of RMSNorm.
        tied: whether the output projection is the embedding.
        dtype: of weights and activations; norms and softmax are computed in float32.

    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6
    tied: bool = True
    dtype: str = "float32"


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary positions, halves convention. x: (B, T, heads, D); positions: (B, T)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    sine, cosine = jnp.sin(angles)[:, :, None, :], jnp.cos(angles)[:, :, None, :]
    low, high = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1).astype(x.dtype)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped attention. queries: (B, T, H, D); keys, values: (B, S, K, D); mask: (B, T, S), true where seen."""
    batch, length, heads, width = queries.shape
    groups = keys.shape[2]
    grouped = queries.reshape(batch, length, groups, heads // groups, width)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, keys, preferred_element_type=jnp.float32) * width**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _MASKED), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, values).reshape(batch, length, heads, width)


class RmsNorm(nnx.Module):
    """x / rms(x) * scale, over the last axis."""

    def __init__(self, width: int, eps: float, dtype: str) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise in float32."""
        exact = x.astype(jnp.float32)
        normal = exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + self.eps)
        return (normal * self.scale[...].astype(jnp.float32)).astype(x.dtype)


def _weight(rngs: nnx.Rngs, shape: tuple[int, ...], fan_in: int, dtype: str) -> nnx.Param[jax.Array]:
    return nnx.Param((jax.random.normal(rngs.params(), shape, jnp.float32) * fan_in**-0.5).astype(dtype))


def _split(x: jax.Array, weights: jax.Array) -> jax.Array:
    """(B, T, hidden) by (hidden, heads, D): (B, T, heads, D), as one plain matrix product, which is the fastest kind."""
    return (x @ weights.reshape(weights.shape[0], -1)).reshape(*x.shape[:2], *weights.shape[1:])


class Attention(nnx.Module):
    """Projections of one block's attention. Weights have the input axis first."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        hidden, width, dtype = config.hidden_size, config.head_dim, config.dtype
        self.query = _weight(rngs, (hidden, config.heads, width), hidden, dtype)
        self.key = _weight(rngs, (hidden, config.kv_heads, width), hidden, dtype)
        self.value = _weight(rngs, (hidden, config.kv_heads, width), hidden, dtype)
        self.out = _weight(rngs, (config.heads, width, hidden), config.heads * width, dtype)
        self.query_norm = RmsNorm(width, config.norm_eps, dtype)
        self.key_norm = RmsNorm(width, config.norm_eps, dtype)
        self.theta = config.rope_theta

    def project(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries (B, T, H, D), keys and values (B, T, K, D) of x (B, T, hidden)."""
        queries = self.query_norm(_split(x, self.query[...]))
        keys = self.key_norm(_split(x, self.key[...]))
        values = _split(x, self.value[...])
        return rotate(queries, positions, self.theta), rotate(keys, positions, self.theta), values

    def join(self, heads: jax.Array) -> jax.Array:
        """Back to the residual stream: (B, T, H, D) to (B, T, hidden)."""
        weights = self.out[...]
        return heads.reshape(*heads.shape[:2], -1) @ weights.reshape(-1, weights.shape[-1])


class FeedForward(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        hidden, inner, dtype = config.hidden_size, config.intermediate_size, config.dtype
        self.gate = _weight(rngs, (hidden, inner), hidden, dtype)
        self.up = _weight(rngs, (hidden, inner), hidden, dtype)
        self.down = _weight(rngs, (inner, hidden), inner, dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, T, hidden) to the same."""
        return (jax.nn.silu(x @ self.gate[...]) * (x @ self.up[...])) @ self.down[...]


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = RmsNorm(config.hidden_size, config.norm_eps, config.dtype)
        self.attention = Attention(config, rngs)
        self.feed_norm = RmsNorm(config.hidden_size, config.norm_eps, config.dtype)
        self.feed = FeedForward(config, rngs)

    def finish(self, x: jax.Array, heads: jax.Array) -> jax.Array:
        """What follows the attention."""
        x = x + self.attention.join(heads)
        return x + self.feed(self.feed_norm(x))


class Transformer(nnx.Module):
    """The network."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = nnx.Param(
            (jax.random.normal(rngs.params(), (config.vocab_size, config.hidden_size), jnp.float32) * 0.02).astype(config.dtype)
        )
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.final_norm = RmsNorm(config.hidden_size, config.norm_eps, config.dtype)
        self.head = (
            None if config.tied else _weight(rngs, (config.hidden_size, config.vocab_size), config.hidden_size, config.dtype)
        )

    def __call__(self, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        """Logits (B, T, V), in float32, of packed sequences.

        Args:
            tokens: (B, T) ids.
            positions: (B, T) position of each token in its own sequence.
            segments: (B, T) number of its sequence in the row, from 1; 0 is padding.

        """
        order = jnp.arange(tokens.shape[1])
        mask = (segments[:, :, None] == segments[:, None, :]) & (order[:, None] >= order[None, :])
        mask &= segments[:, :, None] > 0
        return self.logits(self.hidden(tokens, positions, lambda _, q, k, v: attend(q, k, v, mask)))

    def hidden(
        self, tokens: jax.Array, positions: jax.Array, attention: Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """Hidden states (B, T, hidden) behind all blocks, whatever the attention looks at.

        Args:
            tokens: (B, T) ids.
            positions: (B, T) position of each token in its own sequence.
            attention: of one layer: its number, queries (B, T, H, D), keys and values (B, T, K, D) of `tokens`; answers the
                attended values (B, T, H, D).

        """
        x = self.embedding[...][tokens]
        for number, block in enumerate(self.blocks):
            x = block.finish(x, attention(number, *block.attention.project(block.attention_norm(x), positions)))
        return x

    def logits(self, x: jax.Array) -> jax.Array:
        """Logits (..., V) of hidden states (..., hidden), in float32."""
        x = self.final_norm(x)
        weights = self.embedding[...].T if self.head is None else self.head[...]
        return jnp.matmul(x, weights, preferred_element_type=jnp.float32)


def new_model(config: ModelConfig, seed: int) -> Transformer:
    """A network with random weights, the same for the same seed."""
    return Transformer(config, rngs=nnx.Rngs(seed))


def abstract_model(config: ModelConfig) -> Transformer:
    """A network whose parameters are shapes and dtypes only: nothing is allocated."""
    return nnx.eval_shape(lambda: new_model(config, 0))


def abstract_parameters(config: ModelConfig) -> Parameters:
    """Shapes and dtypes of the parameters, as `parameters` would give them."""
    return parameters(abstract_model(config))


def parameters(model: Transformer) -> Parameters:
    """The parameters of a network."""
    return nnx.state(model, nnx.Param)


def with_parameters(config: ModelConfig, params: Parameters) -> Transformer:
    """The network that computes with these parameters."""
    model: Transformer = nnx.merge(nnx.graphdef(abstract_model(config)), params)
    return model
