"""Checkpoints of Hugging Face's layout, read and written: `config.json` and safetensors files.

Theirs hold each matrix with the output axis first, heads and head width joined in one axis; ours have the input axis first
and the heads apart. A matrix goes over by one transpose and one reshape, whichever way. Names and shapes are those of
`Qwen3ForCausalLM`. Every header is checked before the first tensor is read; tensors are read one at a time, so that beside
the parameters no more than one of them is in memory twice.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from harness.core.errors import ConfigError, DataError, OutputError
from pipeline.numerics.config_json import read_config, read_object, write_config
from pipeline.numerics.model import ModelConfig, Parameters, abstract_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ParameterPath = tuple[Any, ...]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_READABLE = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"

_LAYER_NAMES: dict[ParameterPath, str] = {
    ("attention_norm", "scale"): "input_layernorm",
    ("attention", "query"): "self_attn.q_proj",
    ("attention", "key"): "self_attn.k_proj",
    ("attention", "value"): "self_attn.v_proj",
    ("attention", "out"): "self_attn.o_proj",
    ("attention", "query_norm", "scale"): "self_attn.q_norm",
    ("attention", "key_norm", "scale"): "self_attn.k_norm",
    ("feed_norm", "scale"): "post_attention_layernorm",
    ("feed", "gate"): "mlp.gate_proj",
    ("feed", "up"): "mlp.up_proj",
    ("feed", "down"): "mlp.down_proj",
}
_TOP_NAMES: dict[ParameterPath, str] = {
    ("embedding",): _EMBEDDING,
    ("final_norm", "scale"): "model.norm.weight",
    ("head",): _HEAD,
}
_OUT = ("attention", "out")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor in both layouts. `inputs` is the number of its leading axes, in ours, that are inputs; 0: the same in both."""

    name: str
    path: ParameterPath
    shape: tuple[int, ...]
    inputs: int

    @property
    def stored_shape(self) -> tuple[int, ...]:
        if not self.inputs:
            return self.shape
        return prod(self.shape[self.inputs :]), prod(self.shape[: self.inputs])

    def ours(self, stored: np.ndarray) -> np.ndarray:
        return stored.T.reshape(self.shape) if self.inputs else stored

    def stored(self, ours: np.ndarray) -> np.ndarray:
        if not self.inputs:
            return ours
        return np.ascontiguousarray(ours.reshape(self.stored_shape[::-1]).T)


def _entries(config: ModelConfig) -> dict[str, _Entry]:
    """Every tensor of a model, by its name in a file."""
    entries = {}
    for path, leaf in nnx.to_flat_state(abstract_parameters(config)):
        if path[0] == "blocks":
            inner = path[2:]
            name = f"model.layers.{path[1]}.{_LAYER_NAMES[inner]}.weight"
            inputs = 0 if inner[-1] == "scale" else 2 if inner == _OUT else 1
        else:
            name, inputs = _TOP_NAMES[path], int(path == ("head",))
        entries[name] = _Entry(name, path, tuple(leaf.shape), inputs)
    return entries


def load_checkpoint(
    folder: str | Path, *, dtype: str = "", place: Callable[[ParameterPath, np.ndarray], jax.Array] | None = None
) -> tuple[ModelConfig, Parameters]:
    """The shape and the parameters of a checkpoint.

    Args:
        folder: holds `config.json` and either `model.safetensors` or shards with `model.safetensors.index.json`.
        dtype: of the parameters, `float32` or `bfloat16`; empty: as `config.json` says (float16 becomes float32).
        place: puts one parameter, given its path and its value, on devices; on the default device if not given.

    Returns:
        The configuration, and the state that `model.with_parameters` takes.

    Raises:
        DataError: the folder is not a complete checkpoint of a model that we can run; names the file, field or tensor.

    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            "there is no such folder",
            file=str(folder),
            allowed="a folder with config.json and safetensors files",
            remedy="give the folder that the checkpoint was saved to; nothing is downloaded",
        )
    config = read_config(folder / "config.json", dtype=dtype)
    with ExitStack() as files:
        stored = _open(folder, files)
        entries = _entries(config)
        _check(folder, config, entries, stored)
        values = {}
        for name, entry in entries.items():
            value = entry.ours(stored[name].read()).astype(config.dtype)
            values[entry.path] = place(entry.path, value) if place else jnp.asarray(value)
    params = abstract_parameters(config)
    return config, nnx.map_state(lambda path, leaf: leaf.replace(values[path]), params)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor in an open file."""

    file: Path
    handle: Any
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        try:
            return np.asarray(self.handle.get_tensor(self.name))
        except (SafetensorError, OSError) as error:
            raise _unreadable(self.file, error) from error


def _open(folder: Path, files: ExitStack) -> dict[str, _Stored]:
    """Every tensor of a folder; the files stay open as long as `files`."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return dict(_tensors(folder / SINGLE, files))
    if not index.is_file():
        torch_files = any(folder.glob("pytorch_model*.bin"))
        raise DataError(
            "the folder holds no weights",
            file=str(folder),
            allowed=f"{SINGLE}, or {INDEX} with its shards",
            remedy="save it again with safe_serialization" if torch_files else "copy the whole checkpoint",
        )
    shard_of = read_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise DataError(
            "no map of tensors to shards",
            file=str(index),
            field="weight_map",
            value=type(shard_of).__name__,
            allowed="an object of tensor name: file name",
            remedy="copy it again",
        )
    stored: dict[str, _Stored] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard:
            raise DataError(
                "a shard lies outside the folder",
                file=str(index),
                field="weight_map",
                value=shard,
                allowed="a plain file name",
                remedy=f"put the shards into {folder}",
            )
        if not (folder / shard).is_file():
            raise DataError(
                "a shard that the index names is missing",
                file=str(index),
                field="weight_map",
                value=shard,
                remedy=f"copy {shard} into {folder}",
            )
        stored.update(_tensors(folder / shard, files))
    for name, shard in shard_of.items():
        if name not in stored or stored[name].file.name != shard:
            raise DataError(
                f"tensor {name} is not in the shard that the index names",
                file=str(index),
                field=f"weight_map.{name}",
                value=shard,
                remedy="copy index and shards from the same save",
            )
    return stored


def _tensors(file: Path, files: ExitStack) -> Iterator[tuple[str, _Stored]]:
    try:
        handle = files.enter_context(safe_open(file, framework="numpy"))
        for name in handle.keys():  # noqa: SIM118 - not a mapping
            part = handle.get_slice(name)
            yield name, _Stored(file, handle, name, str(part.get_dtype()), tuple(part.get_shape()))
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(
        f"not a whole safetensors file: {error}",
        file=str(file),
        value=f"{file.stat().st_size} bytes" if file.exists() else None,
        remedy="copy it again: it is truncated or damaged",
    )


def _check(folder: Path, config: ModelConfig, entries: Mapping[str, _Entry], stored: dict[str, _Stored]) -> None:
    """Hold names, shapes and number types against what the configuration asks for."""
    if config.tied and _HEAD in stored:
        _check_tied(stored)
    missing = [name for name in entries if name not in stored]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(entries)} tensors are missing",
            file=str(folder),
            field=missing[0],
            value=missing[:5],
            allowed=f"the tensors of a {config.layers}-layer qwen3 model"
            + ("" if config.tied else " with an output projection of its own (tie_word_embeddings is false)"),
            remedy="copy the whole checkpoint, or correct config.json",
        )
    extra = sorted(set(stored) - set(entries))
    if extra:
        raise DataError(
            f"{len(extra)} tensors belong to no part of this model",
            file=str(stored[extra[0]].file),
            field=extra[0],
            value=extra[:5],
            allowed=f"the {len(entries)} tensors of a {config.layers}-layer qwen3 model",
            remedy="config.json and weights must come from the same save; adapters and quantised weights must be merged first",
        )
    for name, entry in entries.items():
        tensor = stored[name]
        if tensor.shape != entry.stored_shape:
            raise DataError(
                "the tensor has another shape than config.json gives it",
                file=str(tensor.file),
                field=name,
                value=list(tensor.shape),
                allowed=str(list(entry.stored_shape)),
                remedy="config.json and weights must come from the same save",
            )
        if tensor.dtype not in _READABLE:
            raise DataError(
                "the tensor has a number type that is not read",
                file=str(tensor.file),
                field=name,
                value=tensor.dtype,
                allowed=", ".join(_READABLE),
                remedy="save the checkpoint in one of these; quantised weights are not supported",
            )


def _check_tied(stored: dict[str, _Stored]) -> None:
    """Some savers write the tied projection out as well. Take it for what it is, once it is known to be the same."""
    head, embedding = stored[_HEAD], stored.get(_EMBEDDING)
    if embedding is not None and not np.array_equal(head.read(), embedding.read()):
        raise DataError(
            "the output projection differs from the embedding although they are tied",
            file=str(head.file),
            field=_HEAD,
            remedy="set tie_word_embeddings to false in config.json if the model was trained so",
        )
    del stored[_HEAD]


def save_checkpoint(
    folder: str | Path,
    config: ModelConfig,
    params: Parameters,
    *,
    shard_bytes: int = 4 << 30,
    beside: Sequence[str | Path] = (),
    end_id: int | None = None,
    pad_id: int | None = None,
) -> None:
    """Write parameters as `transformers` and the serving engines read them.

    The folder appears whole or not at all: it is made under another name beside it and renamed.

    Args:
        folder: must not exist yet.
        config: shape.
        params: as `load_checkpoint` and `model.parameters` give them.
        shard_bytes: at most this much in one file (or one tensor, where that is larger).
        beside: files to copy along, such as `tokenizer.json`.
        end_id: end-of-turn token, which tells other engines where an answer ends.
        pad_id: padding token.

    Raises:
        ConfigError: the folder exists.
        OutputError: it could not be written.

    """
    folder = Path(folder)
    if folder.exists():
        raise ConfigError("the folder exists already", file=str(folder), remedy="choose another name, or move it away")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        write_config(unfinished / "config.json", config, end_id=end_id, pad_id=pad_id)
        _write_shards(unfinished, config, params, shard_bytes)
        for file in beside:
            shutil.copy(file, unfinished)
        for file in unfinished.iterdir():
            _flush(file)
        unfinished.chmod(0o755)  # mkdtemp makes it private
        unfinished.rename(folder)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_shards(folder: Path, config: ModelConfig, params: Parameters, shard_bytes: int) -> None:
    leaves = dict(nnx.to_flat_state(params))
    width = jnp.dtype(config.dtype).itemsize
    shards: list[list[_Entry]] = [[]]
    room = shard_bytes
    for entry in _entries(config).values():
        size = prod(entry.shape) * width
        if shards[-1] and size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(entry)
        room -= size
    shard_of = {}
    for number, entries in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {entry.name: entry.stored(np.asarray(leaves[entry.path][...])) for entry in entries}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        shard_of.update(dict.fromkeys(tensors, file))
    if len(shards) > 1:
        total = sum(prod(entry.shape) * width for entries in shards for entry in entries)
        index = {"metadata": {"total_size": total}, "weight_map": shard_of}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _flush(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
