"""The policy network that a scenario asks for: a checkpoint with its tokenizer, or a new character-level model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError
from pipeline.numerics.checkpoints import load_checkpoint
from pipeline.numerics.model import ModelConfig, new_model, parameters
from pipeline.numerics.tokenizers import CharTokenizer, HfTokenizer, check_fits

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax
    import numpy as np

    from pipeline.live_config import ModelTable
    from pipeline.numerics.checkpoints import ParameterPath
    from pipeline.numerics.model import Parameters


def new_config(table: ModelTable, vocab_size: int) -> ModelConfig:
    """The shape of a new model.

    Args:
        table: `live.model` of a scenario.
        vocab_size: tokens of its tokenizer.

    Raises:
        ConfigError: `kv_heads` does not divide `heads`, or `head_dim` is odd.

    """
    if table.heads % table.kv_heads:
        raise ConfigError(
            f"does not divide live.model.heads = {table.heads}",
            field="live.model.kv_heads",
            value=table.kv_heads,
            allowed=", ".join(str(count) for count in range(1, table.heads + 1) if table.heads % count == 0),
            remedy="each head of keys and values serves the same number of heads of queries",
        )
    if table.head_dim % 2:
        raise ConfigError(
            "rotary positions turn pairs",
            field="live.model.head_dim",
            value=table.head_dim,
            allowed="an even number",
            remedy=f"use {table.head_dim + 1}",
        )
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=table.hidden_size,
        intermediate_size=table.intermediate_size,
        layers=table.layers,
        heads=table.heads,
        kv_heads=table.kv_heads,
        head_dim=table.head_dim,
        rope_theta=table.rope_theta,
        tied=table.tied,
        dtype=table.dtype,
    )


def open_tokenizer(table: ModelTable) -> CharTokenizer | HfTokenizer:
    """The tokenizer beside the checkpoint; without a checkpoint, one token a character.

    Raises:
        DataError: the checkpoint has no usable tokenizer.

    """
    return HfTokenizer(Path(table.checkpoint)) if table.checkpoint else CharTokenizer()


def open_policy(
    table: ModelTable,
    tokenizer: CharTokenizer | HfTokenizer,
    seed: int,
    *,
    place: Callable[[ParameterPath, np.ndarray], jax.Array] | None = None,
) -> tuple[ModelConfig, Parameters]:
    """Shape and parameters of the policy at the start of a run.

    Args:
        table: `live.model` of a scenario. Of a checkpoint only its dtype applies; the shape is the checkpoint's own.
        tokenizer: that makes its token ids.
        seed: of a new model's weights.
        place: puts a parameter that was loaded on devices.

    Raises:
        ConfigError: the shape cannot be, or tokenizer and checkpoint do not fit.
        DataError: the checkpoint is damaged or of another family.

    """
    if not table.checkpoint:
        config = new_config(table, tokenizer.vocab_size)
        return config, parameters(new_model(config, seed))
    config, params = load_checkpoint(table.checkpoint, dtype=table.dtype, place=place)
    check_fits(tokenizer, config.vocab_size, str(Path(table.checkpoint) / "config.json"))
    return config, params
