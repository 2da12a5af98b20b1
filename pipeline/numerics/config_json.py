"""`config.json` of a Hugging Face checkpoint of the Qwen3 family: read into a `ModelConfig`, and written from one.

What we cannot compute is refused here by its field: another family, sliding windows, biases, stretched rotary positions,
quantised weights. A field that is needed and not there is refused too: a default that is guessed wrong gives a model that
talks nonsense.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.core.errors import DataError
from pipeline.numerics.model import ModelConfig

if TYPE_CHECKING:
    from pathlib import Path

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
}
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}
_ROPE_KEYS = {"rope_theta", "rope_type"}
_FALLBACK_DTYPE = "float32"


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        DataError: it is missing, cannot be read, or holds something else.

    """
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror or error}", file=str(file), remedy="copy the whole checkpoint"
        ) from error
    except ValueError as error:
        raise DataError(f"not JSON: {error}", file=str(file), remedy="copy it again: it is truncated or damaged") from error
    if not isinstance(data, dict):
        raise DataError(
            "holds no object", file=str(file), value=type(data).__name__, allowed="a JSON object", remedy="copy it again"
        )
    return data


def read_config(file: Path, *, dtype: str = "") -> ModelConfig:
    """The shape of the network.

    Args:
        file: a `config.json`.
        dtype: of the parameters once loaded; empty: as the file says.

    Raises:
        DataError: the file is no configuration that we can run; names the field.

    """
    data = read_object(file)
    if data.get("model_type") != "qwen3":
        raise _wrong(
            file, data, "model_type", "a model of another family", "'qwen3'", "use a checkpoint of a dense Qwen3 model"
        )
    for field, values in _MUST_BE.items():
        if data.get(field) not in values:
            raise _wrong(file, data, field, "a variant that is not supported", repr(values[0]), "use a checkpoint without it")
    layers = data.get("layer_types")
    if layers is not None and (not isinstance(layers, list) or any(kind != "full_attention" for kind in layers)):
        raise _wrong(
            file, data, "layer_types", "attention that is not supported", "'full_attention' only", "use a checkpoint without it"
        )
    sizes = {ours: _size(file, data, theirs) for theirs, ours in _SIZES.items()}
    if sizes["heads"] % sizes["kv_heads"]:
        allowed = f"a divisor of num_attention_heads = {sizes['heads']}"
        raise _wrong(file, data, "num_key_value_heads", "does not divide the heads", allowed, "copy config.json again")
    if sizes["head_dim"] % 2:
        raise _wrong(file, data, "head_dim", "rotary positions need pairs", "an even number", "copy config.json again")
    tied = data.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise _wrong(file, data, "tie_word_embeddings", "neither true nor false", "true or false", "copy config.json again")
    return ModelConfig(
        **sizes,
        rope_theta=_theta(file, data),
        norm_eps=_number(file, "rms_norm_eps", data.get("rms_norm_eps")),
        tied=tied,
        dtype=dtype or _dtype(file, data),
    )


def _wrong(file: Path, data: dict[str, Any], field: str, problem: str, allowed: str, remedy: str) -> DataError:
    if field not in data:
        problem = "is missing"
    return DataError(problem, file=str(file), field=field, value=data.get(field), allowed=allowed, remedy=remedy)


def _size(file: Path, data: dict[str, Any], field: str) -> int:
    value = data.get(field)
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise _wrong(file, data, field, "not a size", "a whole number from 1", "copy config.json again")
    return value


def _number(file: Path, field: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        problem = "is missing" if value is None else "not a positive number"
        raise DataError(
            problem, file=str(file), field=field, value=value, allowed="a number above 0", remedy="copy config.json again"
        )
    return float(value)


def _theta(file: Path, data: dict[str, Any]) -> float:
    """`rope_theta` stands by itself in older files, within `rope_parameters` in newer ones."""
    rope = data.get("rope_parameters")
    if rope is None:
        return _number(file, "rope_theta", data.get("rope_theta"))
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default" or set(rope) - _ROPE_KEYS:
        raise _wrong(
            file,
            data,
            "rope_parameters",
            "stretched rotary positions are not supported",
            "rope_theta with rope_type 'default'",
            "use the checkpoint at its own context length",
        )
    return _number(file, "rope_parameters.rope_theta", rope.get("rope_theta", data.get("rope_theta")))


def _dtype(file: Path, data: dict[str, Any]) -> str:
    field = "dtype" if "dtype" in data else "torch_dtype"
    value = data.get(field)
    if value in ("float32", "bfloat16"):
        return str(value)
    if value in ("float16", None):
        return _FALLBACK_DTYPE
    raise _wrong(
        file,
        data,
        field,
        "a number type that is not supported",
        "float32, bfloat16, float16",
        "save the checkpoint in one of these",
    )


def write_config(file: Path, config: ModelConfig, *, end_id: int | None = None, pad_id: int | None = None) -> None:
    """Write the shape so that older and newer releases of `transformers` read it."""
    data = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "torch_dtype": config.dtype,
        "bos_token_id": None,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
    }
    file.write_text(json.dumps(data, indent=2) + "\n")
