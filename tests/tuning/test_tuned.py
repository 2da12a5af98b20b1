from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.core.errors import ConfigError
from harness.run import load
from harness.tuned import check_objective, chip_splits, parse_share, tunable, with_settings
from harness.tuning.result import toml_patch
from harness.tuning.space import as_fields, chips_of

SCENARIOS = Path(__file__).parents[2] / "scenarios"
WORKED_OUT = SCENARIOS / "colocated.toml"
APART = ["pipeline.placement=disaggregated"]


@pytest.fixture(scope="module")
def given():
    return load(SCENARIOS / "one_step_async.toml")


@pytest.fixture(scope="module")
def worked_out():
    return load(WORKED_OUT, overrides=APART)


def test_what_stands_today_changes_nothing(given, worked_out):
    for scenario in (given, worked_out):
        assert with_settings(scenario, tunable(scenario).today) == scenario


def test_a_deadline_is_changed_alone_and_must_fit_the_others(given):
    changed = with_settings(given, {"pipeline.deadlines.tool_s": 30.0})
    assert changed.pipeline.deadlines == given.pipeline.deadlines.model_copy(update={"tool_s": 30.0})
    with pytest.raises(ConfigError, match="outlasts"):
        with_settings(given, {"pipeline.deadlines.tool_s": 1e5})
    with pytest.raises(ConfigError, match="is no knob"):
        with_settings(given, {"run.seed": 1})


def admitted(scenario, settings):
    try:
        with_settings(scenario, settings)
    except ConfigError:
        return False
    return True


def test_of_every_knob_something_can_be_tried(worked_out):
    for knob in tunable(worked_out).listing():
        assert knob["today"] in knob["values"]
        assert any(admitted(worked_out, {knob["path"]: value}) for value in knob["values"])


# ── the split of the chips ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_splits_pay_for_the_same_chips_and_stand_in_a_file_as_fields(worked_out):
    splits = chip_splits(worked_out)
    assert len(splits) > 3
    for split in splits:
        changed = with_settings(worked_out, {"world.chip_split": split})
        replicas, each, learner = chips_of(split)
        assert changed.world.chips == worked_out.world.chips == replicas * each + learner
        fields = as_fields({"world.chip_split": split})
        assert toml_patch(fields).count("\n[") == 1
        assert (
            load(WORKED_OUT, overrides=[*APART, *(f"{path}={value}" for path, value in fields.items())]).world == changed.world
        )


def test_shared_chips_are_divided_among_replicas_alone():
    shared = load(WORKED_OUT)
    assert {chips_of(split)[2] for split in chip_splits(shared)} == {shared.world.learner.chips}


def test_without_a_law_for_other_numbers_of_chips_the_reason_is_said(given):
    assert not any(knob.path == "world.chip_split" for knob in tunable(given).knobs)
    for asked in ({"wishes": ["chips"]}, {"wishes": ["chip_split=2x1+6"]}, {"chips": True}):
        with pytest.raises(ConfigError, match=r"world\.learner\.train"):
            tunable(given).space(**asked)
    assert tunable(given).space(["all"]).knobs


# ── what is searched ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_knobs_that_have_nothing_to_win_are_not_searched_unless_asked_for(worked_out):
    kept = load(SCENARIOS / "fully_async.toml")
    assert "sync_mode" not in tunable(kept).default
    assert "sync_mode" in {knob.name for knob in tunable(kept).space(["sync_mode"]).knobs}
    assert "chip_split" not in {knob.name for knob in tunable(worked_out).space().knobs}
    assert {knob.name for knob in tunable(worked_out).space(chips=True).knobs} == {*tunable(worked_out).default, "chip_split"}


def test_the_order_of_wishes_makes_no_difference(given):
    wishes = ["capacity", "max_inflight=16..64", "tool_s", "sync_mode"]
    assert tunable(given).space(wishes).knobs == tunable(given).space(wishes[::-1]).knobs


def test_a_higher_ceiling_has_more_lag_searched(given):
    (knob,) = tunable(given).space(["max_staleness"], max_lag=9).knobs
    assert knob.values[-1] == 9


def test_groups_of_another_size_are_compared_by_their_tokens():
    check_objective("tokens", ["group_size"])
    with pytest.raises(ConfigError, match="smaller groups are more groups"):
        check_objective("kept", ["group_size"])


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), (0.5, 0.5), ("0.1%", 0.001)])
def test_shares_are_read_in_either_way(text, share):
    assert parse_share(text, "--indifference") == pytest.approx(share)


@pytest.mark.parametrize("text", ["2", "60%", "0.05%", "0", "-1%", "nan", "inf", "", "%", "much"])
def test_shares_that_make_no_sense_are_refused(text):
    with pytest.raises(ConfigError, match="no share"):
        parse_share(text, "--indifference")


# ── at the command line ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_knobs_are_listed_in_words_and_as_data(capsys):
    scenario = str(SCENARIOS / "one_step_async.toml")
    assert main(["tune", scenario, "--knobs"]) == 0
    words = capsys.readouterr().out
    assert main(["tune", scenario, "--knobs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["knobs"]
    assert len(listed) > 40
    assert "chip_split" in words.splitlines()[-1]
    for knob in listed:
        assert f" {knob['knob']} = {knob['today']}" in words
        assert knob["owner"]
        assert knob["values"]


@pytest.mark.parametrize(
    "options",
    [["--knob", "max_stalenes"], ["--knob", "max_inflight=9..3"], ["--chips"], ["--indifference", "80%"], ["--error", "x"]],
)
def test_what_cannot_be_searched_costs_no_simulation(options, tmp_path, capsys):
    assert (
        main(["tune", str(SCENARIOS / "one_step_async.toml"), *options, "--out", str(tmp_path / "out")])
        == ConfigError.exit_code
    )
    assert "Traceback" not in capsys.readouterr().err


def test_inputs_are_scaled_beside_knobs_and_after_the_chips_are_divided(worked_out):
    settings = {
        "scale:world.inference.decode": 2.0,
        "world.chip_split": chip_splits(worked_out)[0],
        "pipeline.max_inflight": 99,
    }
    changed = with_settings(worked_out, settings)
    del settings["scale:world.inference.decode"]
    plain = with_settings(worked_out, settings)
    assert changed.world.inference.decode.weights_s == pytest.approx(2 * plain.world.inference.decode.weights_s)
    assert changed.pipeline == plain.pipeline
