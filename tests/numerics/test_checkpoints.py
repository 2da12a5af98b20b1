"""Checkpoints: what was saved comes back to the bit; whatever is wrong with a folder is named by file and field."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from harness.core.errors import ConfigError, DataError, OutputError
from pipeline.live_config import ModelTable
from pipeline.numerics.checkpoints import load_checkpoint, save_checkpoint
from pipeline.numerics.policy import new_config, open_policy, open_tokenizer
from pipeline.numerics.tokenizers import CharTokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
TIED, UNTIED = FIXTURES / "qwen3_tiny_tied", FIXTURES / "qwen3_tiny_untied"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.dtype == b.dtype and bool((a == b).all()) for a, b in pairs)


@pytest.fixture
def folder(tmp_path):
    """A copy of the tied checkpoint, to be spoilt."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(TIED, copy)
    return copy


def set_config(folder, **fields):
    """Change fields of config.json; None takes one out."""
    file = folder / "config.json"
    data = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))


def set_weights(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def refused(folder, *words):
    """The message of a checkpoint that is not taken, which has these words in it."""
    with pytest.raises(DataError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    for word in (str(folder), *words):
        assert word in message, message
    assert "do:" in message


# What is saved


@pytest.mark.parametrize("source", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000], ids=["one file", "shards"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_saved_comes_back_to_the_bit(tmp_path, source, shard_bytes, dtype):
    config, params = load_checkpoint(source, dtype=dtype)
    save_checkpoint(tmp_path / "saved", config, params, shard_bytes=shard_bytes)
    assert (tmp_path / "saved" / INDEX).exists() is (shard_bytes < 1 << 30)
    again, loaded = load_checkpoint(tmp_path / "saved")
    assert again == config
    assert same(loaded, params)


def test_saving_writes_the_tensors_that_transformers_wrote(tmp_path):
    for source in (TIED, UNTIED):
        saved = tmp_path / source.name
        save_checkpoint(saved, *load_checkpoint(source))
        theirs, ours = load_file(source / WEIGHTS), load_file(saved / WEIGHTS)
        assert theirs.keys() == ours.keys()
        assert all((theirs[name] == ours[name]).all() for name in theirs)


def test_config_json_says_what_theirs_says(tmp_path):
    save_checkpoint(tmp_path / "saved", *load_checkpoint(TIED), end_id=258, pad_id=256, beside=[TIED / "tokenizer.json"])
    theirs, ours = (json.loads((place / "config.json").read_text()) for place in (TIED, tmp_path / "saved"))
    common = theirs.keys() & ours.keys()
    assert {"vocab_size", "head_dim", "rms_norm_eps", "eos_token_id", "architectures"} <= common
    assert {name: ours[name] for name in common} == {name: theirs[name] for name in common}
    assert ours["rope_theta"] == theirs["rope_parameters"]["rope_theta"]
    assert (tmp_path / "saved" / "tokenizer.json").read_bytes() == (TIED / "tokenizer.json").read_bytes()


def test_a_folder_that_exists_is_left_alone(folder):
    before = (folder / WEIGHTS).read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        save_checkpoint(folder, *load_checkpoint(TIED))
    assert (folder / WEIGHTS).read_bytes() == before


def test_a_save_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OutputError, match="saved"):
        save_checkpoint(tmp_path / "saved", *load_checkpoint(TIED), beside=[tmp_path / "not there"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        save_checkpoint(tmp_path / "file" / "saved", *load_checkpoint(TIED))


# What is taken


def test_the_older_way_to_write_rope_theta_and_dtype(folder):
    config, params = load_checkpoint(folder)
    set_config(folder, rope_parameters=None, dtype=None, rope_theta=1e6, torch_dtype="float32", layer_types=None)
    again, loaded = load_checkpoint(folder)
    assert again == config
    assert same(loaded, params)


def test_a_tied_projection_that_is_written_out_is_taken_if_equal(folder):
    config, params = load_checkpoint(folder)
    set_weights(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}))
    again, loaded = load_checkpoint(folder)
    assert again == config
    assert same(loaded, params)
    set_weights(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"] + 1}))
    refused(folder, "lm_head.weight", "tie_word_embeddings")


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
def test_weights_are_brought_to_the_asked_number_type(folder, stored):
    set_weights(folder, lambda tensors: tensors.update({name: value.astype(stored) for name, value in tensors.items()}))
    config, params = load_checkpoint(folder)
    assert config.dtype == "float32"
    assert same(params, load_checkpoint(TIED)[1]), "the fixtures' weights are exact in either type"


def test_each_parameter_is_placed_as_it_is_read():
    placed = []

    def place(path, value):
        placed.append((path, value.shape))
        return jnp.asarray(value)

    _, params = load_checkpoint(UNTIED, place=place)
    assert same(params, load_checkpoint(UNTIED)[1])
    assert len(placed) == len(jax.tree.leaves(params))
    assert (("blocks", 1, "attention", "out"), (4, 16, 24)) in placed


# What is refused


def test_no_folder(tmp_path):
    refused(tmp_path / "nowhere", "no such folder")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "llama"}, ("model_type", "'llama'", "'qwen3'")),
        ({"model_type": None}, ("model_type", "missing")),
        ({"model_type": ["qwen3"]}, ("model_type",)),
        ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'", "'silu'")),
        ({"attention_bias": True}, ("attention_bias", "True", "False")),
        ({"use_sliding_window": True}, ("use_sliding_window",)),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ("layer_types", "sliding_attention")),
        ({"layer_types": 5}, ("layer_types",)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ("rope_scaling", "yarn")),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, ("rope_parameters", "yarn")),
        ({"rope_parameters": {"rope_type": "default"}}, ("rope_parameters.rope_theta", "missing")),
        ({"rope_parameters": None}, ("rope_theta", "missing")),
        ({"quantization_config": {"bits": 4}}, ("quantization_config", "bits")),
        ({"hidden_size": None}, ("hidden_size", "missing")),
        ({"hidden_size": 24.0}, ("hidden_size", "24.0", "whole number")),
        ({"num_hidden_layers": True}, ("num_hidden_layers", "True")),
        ({"vocab_size": 0}, ("vocab_size", "0")),
        ({"num_key_value_heads": 3}, ("num_key_value_heads", "3", "divisor", "4")),
        ({"head_dim": 15}, ("head_dim", "15", "even")),
        ({"rms_norm_eps": "small"}, ("rms_norm_eps", "'small'")),
        ({"rms_norm_eps": -1e-6}, ("rms_norm_eps", "-1e-06")),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "'yes'")),
        ({"dtype": "float8_e4m3fn"}, ("dtype", "float8_e4m3fn", "bfloat16")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_configuration_that_we_cannot_run(folder, fields, words):
    set_config(folder, **fields)
    refused(folder, "config.json", *words)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model_type": ', "\xff\xfe"])
def test_config_json_that_is_none(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(folder, "config.json")


def test_no_config_json(folder):
    (folder / "config.json").unlink()
    refused(folder, "config.json", "No such file")


@pytest.mark.parametrize("size", [0, 5, 8, 100, 5000, 80_000])
def test_truncated_weights(folder, size):
    file = folder / WEIGHTS
    whole = file.read_bytes()
    assert size < len(whole)
    file.write_bytes(whole[:size])
    refused(folder, WEIGHTS, f"{size} bytes", "truncated")


def test_weights_of_noise(folder):
    (folder / WEIGHTS).write_bytes(np.random.default_rng(0).bytes(4000))
    refused(folder, WEIGHTS)


def test_no_weights(folder):
    (folder / WEIGHTS).unlink()
    refused(folder, "no weights", WEIGHTS, INDEX)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    refused(folder, "safe_serialization")


MLP = "model.layers.1.mlp.up_proj.weight"


def test_a_missing_tensor(folder):
    set_weights(folder, lambda tensors: tensors.pop(MLP))
    refused(folder, MLP, "1 of 24")


def test_an_extra_tensor(folder):
    set_weights(folder, lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": np.ones(3, np.float32)}))
    refused(folder, "model.layers.2.mlp.up_proj.weight", "no part of this model")


def test_a_tensor_of_another_shape(folder):
    set_weights(folder, lambda tensors: tensors.update({MLP: tensors[MLP].T.copy()}))
    refused(folder, MLP, "[24, 36]", "[36, 24]")


def test_a_tensor_of_another_number_type(folder):
    set_weights(folder, lambda tensors: tensors.update({MLP: tensors[MLP].astype(np.int8)}))
    refused(folder, MLP, "I8", "BF16")


def test_an_untied_configuration_without_a_projection(folder):
    set_config(folder, tie_word_embeddings=False)
    refused(folder, "lm_head.weight", "tie_word_embeddings")


# Shards


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    save_checkpoint(folder, *load_checkpoint(TIED), shard_bytes=40_000)
    return folder


def set_index(folder, change):
    data = json.loads((folder / INDEX).read_text())
    change(data["weight_map"])
    (folder / INDEX).write_text(json.dumps(data))


def test_a_shard_that_is_not_there(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    refused(sharded, INDEX, shard.name, "missing")


def test_a_truncated_shard(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-1])
    refused(sharded, shard.name, "truncated")


def test_an_index_that_names_another_shard(sharded):
    shards = sorted(file.name for file in sharded.glob("*.safetensors"))
    set_index(sharded, lambda names: names.update({"model.norm.weight": shards[0]}))
    refused(sharded, INDEX, "model.norm.weight", shards[0])


def test_an_index_that_leads_out_of_the_folder(sharded):
    set_index(sharded, lambda names: names.update({"model.norm.weight": "../elsewhere.safetensors"}))
    refused(sharded, INDEX, "outside", "elsewhere")


@pytest.mark.parametrize("data", ["{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "nothing"])
def test_an_index_that_is_none(sharded, data):
    (sharded / INDEX).write_text(data)
    refused(sharded, INDEX)


# The policy of a scenario


def test_a_new_policy_has_the_shape_of_the_table():
    table = ModelTable(hidden_size=16, intermediate_size=24, layers=1, heads=4, kv_heads=2, head_dim=6, tied=False)
    tokenizer = open_tokenizer(table)
    assert isinstance(tokenizer, CharTokenizer)
    config, params = open_policy(table, tokenizer, seed=1)
    assert (config.vocab_size, config.heads, config.kv_heads, config.head_dim) == (tokenizer.vocab_size, 4, 2, 6)
    assert params["head"].shape == (16, tokenizer.vocab_size)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 4, "kv_heads": 3}, ("live.model.kv_heads", "3", "live.model.heads = 4", "1, 2, 4")),
        ({"head_dim": 7}, ("live.model.head_dim", "7", "even")),
    ],
)
def test_a_shape_that_cannot_be(fields, words):
    with pytest.raises(ConfigError) as caught:
        new_config(ModelTable(**fields), 99)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_policy_from_a_checkpoint(folder):
    table = ModelTable(checkpoint=str(folder), dtype="bfloat16")
    tokenizer = open_tokenizer(table)
    config, params = open_policy(table, tokenizer, seed=1)
    expected, values = load_checkpoint(folder)
    assert config == replace(expected, dtype="bfloat16")
    assert same(jax.tree.map(lambda leaf: leaf.astype("float32"), params), values)


def test_a_tokenizer_with_more_tokens_than_the_model(folder):
    table = ModelTable(checkpoint=str(folder))
    large = json.loads((folder / "tokenizer.json").read_text())
    first = large["added_tokens"][0]
    large["added_tokens"] += [first | {"id": number, "content": f"<more {number}>"} for number in range(259, 265)]
    (folder / "tokenizer.json").write_text(json.dumps(large))
    with pytest.raises(ConfigError) as caught:
        open_policy(table, open_tokenizer(table), seed=1)
    message = str(caught.value)
    for words in (str(folder / "tokenizer.json"), "265", str(folder / "config.json"), "264"):
        assert words in message, message
