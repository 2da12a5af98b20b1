"""Step times from chip and model: formulas by hand, what a scenario may leave out, slices, transfer rates, every refusal."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import ConfigError
from harness.costs import roofline
from harness.costs.catalogue import CATALOGUE, FIGURES
from harness.costs.roofline import Efficiencies, Model, Peaks
from harness.scenario.chips import Chip
from harness.scenario.load import dump, parse
from harness.scenario.schema import World
from pipeline.config import PipelineConfig

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SEVEN_B = {"parameters": 7.6e9, "layers": 28, "kv_heads": 4, "head_dim": 128, "hidden_size": 3584}
V6E = Peaks("v6e", 918e12, 32e9, 1638e9, 800e9)
ALL = Efficiencies()


def whole(**changes):
    """A world of v6e chips in which all that can be worked out is left out, with tables laid over it."""
    given_ = tomllib.loads((SCENARIOS / "parts" / "v6e_7b.toml").read_text())
    world = {key: given_[key] for key in ("environments", "scoring")}
    world |= {
        "chip": "v6e",
        "model": dict(SEVEN_B),
        "roofline": {"train_mfu": 0.455, "inference_mfu": 0.455, "step_overhead_s": 0.005},
        "inference": {"replicas": 4, "chips_per_replica": 1},
        "learner": {"chips": 4},
        "weights": {"transfer": {"base_s": 0.5, "path": "dcn"}},
    }
    for path, value in changes.items():
        *tables, last = path.split("__")
        at = world
        for table in tables:
            at = at.setdefault(table, {})
        if value is None:
            at.pop(last)
        else:
            at[last] = value
    return world


def made(**changes):
    return World.model_validate(whole(**changes))


# ── the catalogue ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_figure_has_a_source_and_a_date():
    for chip in CATALOGUE.values():
        assert chip.figures.keys() <= set(FIGURES)
        assert all(figure.value > 0 and figure.source and figure.date for figure in chip.figures.values())
        assert list(chip.slice_shapes) == sorted(set(chip.slice_shapes))
        assert bool(chip.slice_shapes) == bool(chip.shapes_source)


def test_there_are_no_prices_in_it():
    assert not any("usd" in name or "price" in name for chip in CATALOGUE.values() for name in chip.figures)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_figure_of_ones_own_wins_over_the_catalogue(name):
    own = Chip(name=name, hbm_bytes=1.0)
    assert own.figure("hbm_bytes") == 1.0
    assert own.figure("hbm_bytes_per_s") == CATALOGUE[name].figures["hbm_bytes_per_s"].value


# ── formulas ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_chip_by_hand():
    """The figures that the small scenarios worked out by hand, from the same sources."""
    by_hand = tomllib.loads((SCENARIOS / "parts" / "v6e_7b.toml").read_text())
    decode, prefill = made().inference.decode, made().inference.prefill
    for name in ("base_s", "weights_s", "per_sequence_s", "per_kv_token_s"):
        assert getattr(decode, name) == pytest.approx(by_hand["inference"]["decode"][name], rel=2e-3)
    assert prefill.per_token_s == pytest.approx(by_hand["inference"]["prefill"]["per_token_s"], rel=2e-3)
    assert decode.collective_s == 0.0


def test_capacity_is_memory_less_weights_over_bytes_a_token():
    """32 GB x 0.9 - 15.2 GB - 2 GB of buffers, over 2 x 28 layers x 4 heads x 128 x 2 bytes."""
    assert made(roofline__buffers_bytes=2_000_000_000).inference.kv_capacity_tokens == int((28.8e9 - 15.2e9 - 2e9) / 57_344)


def test_tensor_parallel_chips_exchange_activations():
    """Two all-reduces a layer, each sending 2 (n - 1) / n of a vector of bf16, over what the links send one way."""
    eight = roofline.decode_law(V6E, Model(**SEVEN_B), ALL, 8)
    assert eight.collective_s == pytest.approx(2 * 28 * (2 * 7 / 8) * 3584 * 2 / 400e9)
    assert eight.step_s(16, 0) == pytest.approx(max(15.2e9 / (8 * 1638e9), 16 * eight.per_sequence_s) + 16 * eight.collective_s)
    assert eight.chunk_s(10, 16, 0) > 10 * eight.step_s(16, 0)  # the context grows


def test_a_mixture_reads_all_weights_and_computes_with_the_active_ones():
    dense, sparse = Model(**SEVEN_B), Model(**SEVEN_B, active_parameters=0.76e9)
    for law in (roofline.decode_law, roofline.prefill_law, roofline.train_law, roofline.log_probs_law):
        a, b = (law(V6E, model, ALL, 1) for model in (dense, sparse))
        name = "per_sequence_s" if law is roofline.decode_law else "per_token_s"
        assert getattr(b, name) == pytest.approx(getattr(a, name) / 10)
    assert roofline.decode_law(V6E, sparse, ALL, 1).weights_s == roofline.decode_law(V6E, dense, ALL, 1).weights_s


def test_heads_are_held_several_times_where_there_are_more_chips():
    model = Model(**SEVEN_B)
    assert model.kv_bytes_per_token(8) == 2 * model.kv_bytes_per_token(4) == 2 * model.kv_bytes_per_token(1)


shares = st.floats(0.05, 1.0)


@given(chips=st.integers(1, 64), share=shares, mfu=shares, batch=st.integers(1, 256), kv=st.integers(0, 100_000))
def test_no_run_beats_the_roof_and_more_chips_are_no_slower_without_exchange(chips, share, mfu, batch, kv):
    model = Model(**{**SEVEN_B, "kv_heads": 64})
    reached = Efficiencies(hbm_share=share, inference_mfu=mfu, train_mfu=mfu, ici_share=share)
    roof, real, more = (
        roofline.decode_law(V6E, model, efficiency, n)
        for efficiency, n in ((ALL, chips), (reached, chips), (reached, 2 * chips))
    )
    assert real.step_s(batch, kv) >= roof.step_s(batch, kv)
    assert more.step_s(batch, kv) - batch * more.collective_s <= real.step_s(batch, kv) - batch * real.collective_s
    one, two = (roofline.train_law(V6E, model, reached, n) for n in (chips, 2 * chips))
    assert two.per_token_s == pytest.approx(one.per_token_s / 2)


@given(chips=st.integers(1, 32), usable=st.floats(0.6, 1.0))
def test_one_large_replica_holds_more_context_than_two_of_half_its_size(chips, usable):
    """The weights are there once."""
    model, efficiencies = Model(**{**SEVEN_B, "kv_heads": 64}), Efficiencies(usable_hbm=usable)
    half, large = (roofline.kv_capacity_tokens(V6E, model, efficiencies, n) for n in (chips, 2 * chips))
    assert large > 2 * half


# ── what a scenario may leave out ───────────────────────────────────────────────────────────────────────────────────────────

LAID_OUT = ["inference.decode", "inference.prefill", "inference.kv_capacity_tokens", "learner.train", "weights.weights_bytes"]


def test_what_is_absent_is_worked_out_and_listed():
    world = made(learner__log_probs="roofline")
    assert list(world.derived) == [*LAID_OUT, "learner.log_probs", "weights.transfer.bytes_per_s"]
    assert world.learner.log_probs.per_token_s == pytest.approx(world.learner.train.per_token_s / 3)
    assert world.weights.weights_bytes == 15_200_000_000
    said = world.derived_in_words()
    assert "v6e" in said
    assert "hbm_share" in said  # nobody said what is reached of it


def test_what_is_given_stands_whole():
    law = {"base_s": 0.1}
    world = made(inference__decode=law, weights__weights_bytes=5)
    assert world.inference.decode.model_dump() | law == world.inference.decode.model_dump()
    assert world.inference.decode.weights_s == 0.0
    assert world.weights.weights_bytes == 5
    assert list(world.derived) == [path for path in [*LAID_OUT, "weights.transfer.bytes_per_s"] if path not in
                                   ("inference.decode", "weights.weights_bytes")]  # fmt: skip


def test_nothing_is_worked_out_where_all_is_given():
    world = World.model_validate(tomllib.loads((SCENARIOS / "parts" / "v6e_7b.toml").read_text()))
    assert world.derived == ()
    assert world.derived_in_words() == ""


@pytest.mark.parametrize("log_probs", [None, "roofline"])
def test_written_out_and_read_again_it_is_the_same(log_probs):
    text = (SCENARIOS / "one_step_async.toml").read_text()
    base = parse(text, PipelineConfig, file=str(SCENARIOS / "one_step_async.toml"))
    changes = {"learner__log_probs": log_probs} if log_probs else {}
    what = base.model_copy(update={"world": made(**changes)})
    again = parse(dump(what), PipelineConfig)
    assert again == what
    assert World.model_validate(what.world.model_dump()) == what.world


def test_the_split_of_chips_changes_what_was_worked_out():
    world = made()
    split = world.with_chips(replicas=2, chips_per_replica=4, learner_chips=8)
    assert split.learner.train.per_token_s == pytest.approx(world.learner.train.per_token_s / 2)
    assert split.inference.decode.weights_s == pytest.approx(world.inference.decode.weights_s / 4)
    assert split.inference.kv_capacity_tokens > 4 * world.inference.kv_capacity_tokens
    assert split == World.model_validate(whole(inference={"replicas": 2, "chips_per_replica": 4}, learner={"chips": 8}))


def test_the_split_leaves_alone_what_was_given():
    world = made(learner__train={"base_s": 3.0}, inference__kv_capacity_tokens=1000)
    split = world.with_chips(learner_chips=8)
    assert split.learner.train == world.learner.train
    assert split.inference == world.inference


# ── slices and transfers ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_slices_of_the_learner_are_of_one_shape():
    assert made(learner={"chips": 12, "slices": 3}).learner.chips == 12


def test_shapes_of_ones_own_win():
    assert made(chip={"name": "v6e", "slice_shapes": [2, 1]}, inference__chips_per_replica=2, learner__chips=2)


def test_rates_follow_from_the_path():
    dcn, ici = made().weights.transfer, made(weights__transfer__path="ici").weights.transfer
    assert dcn.bytes_per_s == 25e9 / 8  # a chip's part of its host
    assert ici.bytes_per_s == 800e9 / 2
    shared = made(weights__transfer__shares_sender_link=True, learner__chips=8).weights.transfer
    assert shared.sender_bytes_per_s == 25e9
    several = made(weights__transfer__hosts_per_replica=2, learner__chips=32).weights.transfer
    assert several.bytes_per_s == 50e9
    assert made(weights__transfer__bytes_per_s=7.0).weights.transfer.bytes_per_s == 7.0


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"chip": None}, "world.chip", "v5e"),
        ({"model": None}, "world.model", "world.inference.decode"),
        ({"chip": {"name": "b200"}}, "world.chip.chips_per_host", "v5e"),
        ({"chip": {"name": "mine", "hbm_bytes": 1e9}}, "world.chip.bf16_flop_per_s", "mine"),
        ({"inference__chips_per_replica": 4, "model__hidden_size": None}, "world.model.hidden_size", "4 chips"),
        ({"model__parameters": 70e9}, "world.inference.chips_per_replica", "more than"),
        ({"roofline__buffers_bytes": 10**12}, "world.inference.chips_per_replica", "buffers"),
        ({"inference__chips_per_replica": 2}, "world.inference.chips_per_replica", "1, 4, 8, 16, 32, 64, 128, 256"),
        ({"learner__chips": 3}, "world.learner.chips", "1, 4, 8"),
        ({"learner": {"chips": 4, "slices": 3}}, "world.learner.chips", "multiple"),
        ({"chip": None, "model": None, "learner__log_probs": "roofline"}, "world.chip", "v5e"),
    ],
)
def test_what_cannot_be_worked_out_is_refused(changes, field, words):
    with pytest.raises(ConfigError) as refusal:
        made(**changes)
    assert refusal.value.field == field
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("override", "field", "words"),
    [
        ('chip = "v7"', "world.chip", "no chip 'v7'"),
        ("chip = 5", "world.chip", "table"),
        ('chip = {name = "v6e", slice_shapes = []}', "world.chip", "slice_shapes"),
        ("model.layers = 0", "world.model.layers", "above 0"),
        ('model.layers = "28"', "world.model.layers", "without quotes"),
        ("model.kv_head = 4", "world.model.kv_head", "kv_heads"),
        ("roofline.train_mfu = 1.5", "world.roofline.train_mfu", "at most 1"),
        ("roofline.hbm_share = nan", "world.roofline.hbm_share", "finite"),
        ('weights.transfer.path = "pcie"', "world.weights.transfer.path", "ici, dcn"),
        ("weights.transfer.sender_bytes_per_s = 1e9", "world.weights.transfer", "shares_sender_link"),
        ('derived = ["learner.chips"]', "world.derived", "choices"),
        ("derived = 3", "world.derived", "list"),
        ("modell.layers = 3", "world.modell", "model"),
        ("switch.to_training.moved_bytes = 5", "world.switch", ""),
    ],
)
def test_bad_input_is_named_with_its_field(override, field, words, tmp_path):
    file = tmp_path / "here.toml"
    base = parse((SCENARIOS / "one_step_async.toml").read_text(), PipelineConfig, file=str(SCENARIOS / "one_step_async.toml"))
    file.write_text(dump(base.model_copy(update={"world": made()})))
    with pytest.raises(ConfigError) as refusal:
        parse(file.read_text(), PipelineConfig, file=str(file), overrides=["world." + override])
    assert refusal.value.field.startswith(field)
    assert words in str(refusal.value)


def test_data_that_is_validated_is_not_changed():
    data = whole(weights__transfer__shares_sender_link=True)
    before = deepcopy(data)
    World.model_validate(data)
    assert data == before
