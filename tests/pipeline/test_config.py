"""The configuration: strict types, every refusal at load, every notice, and the rules about knobs."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.core.errors import ConfigError
from harness.core.knobs import Knob, KnobKind, Scale
from pipeline.config import Deadlines, PipelineConfig, knobs

REFUSED = {
    "generation runs further ahead than samples may be late": (
        {"pipeline_depth": 3, "max_staleness": 2, "buffer_capacity": 1000},
        "pipeline.pipeline_depth",
        ("pipeline_depth > max_staleness", "pipeline_depth = 3", "max_staleness = 2"),
    ),
    "lead: the next publish is never reached": (
        {"steps_per_sync": 3, "pipeline_depth": 1},
        "pipeline.steps_per_sync",
        ("steps_per_sync > pipeline_depth + 1", "steps_per_sync = 3", "pipeline_depth = 1"),
    ),
    "window: the next publish is never reached": (
        {"admission": "window", "steps_per_sync": 3, "max_staleness": 1},
        "pipeline.steps_per_sync",
        ("steps_per_sync > max_staleness + 1", "admission = window", "stale_policy = drop"),
    ),
    "target_step: the next publish is never reached": (
        {"admission": "target_step", "steps_per_sync": 3, "max_staleness": 1},
        "pipeline.steps_per_sync",
        ("steps_per_sync > max_staleness + 1",),
    ),
    "inflight: the next publish is never reached": (
        {"admission": "inflight", "steps_per_sync": 3, "max_staleness": 1},
        "pipeline.steps_per_sync",
        ("steps_per_sync > max_staleness + 1",),
    ),
    "target_step: a waiting learner waits for ever": (
        {"admission": "target_step", "stale_policy": "wait"},
        "pipeline.stale_policy",
        ("without regard to the published version", "admission = target_step"),
    ),
    "inflight: a waiting learner waits for ever": (
        {"admission": "inflight", "stale_policy": "wait"},
        "pipeline.stale_policy",
        ("without regard to the published version",),
    ),
    "window: a waiting learner waits for ever": (
        {"admission": "window", "stale_policy": "wait", "window_fraction": 1.0, "max_staleness": 1},
        "pipeline.window_fraction",
        ("(3 + 2*tau)*k > S + 1", "window_fraction = 1.0"),
    ),
    "the buffer cannot hold the batches made ahead": (
        {"buffer_capacity": 63},
        "pipeline.buffer_capacity",
        ("groups_per_step * (pipeline_depth + 1)", "buffer_capacity = 63", "groups_per_step = 32"),
    ),
    "the buffer cannot hold one batch": (
        {"admission": "inflight", "buffer_capacity": 31},
        "pipeline.buffer_capacity",
        ("can never hold what the learner takes",),
    ),
    "the buffer cannot hold one chunk": (
        {"consume_chunk": 8, "buffer_capacity": 7},
        "pipeline.buffer_capacity",
        ("can never hold what the learner takes", "consume_chunk = 8"),
    ),
    "the group that a waiting learner needs stands outside": (
        {"consume_chunk": 8, "buffer_capacity": 63, "stale_policy": "wait"},
        "pipeline.buffer_capacity",
        ("outside a full buffer",),
    ),
    "more groups than a waiting learner can use": (
        {"stale_policy": "wait", "overprovision_groups": 1, "buffer_capacity": 65},
        "pipeline.overprovision_groups",
        ("beyond the credit", "overprovision_groups = 1"),
    ),
    "the cap cannot hold one group": (
        {"start_unit": "group", "max_inflight": 8, "overprovision_members": 1},
        "pipeline.max_inflight",
        ("can never hold one group", "max_inflight = 8", "overprovision_members = 1"),
    ),
    "a batch is no whole number of chunks": (
        {"consume_chunk": 5},
        "pipeline.consume_chunk",
        ("whole number of chunks", "consume_chunk = 5", "groups_per_step = 32"),
    ),
    "a chunk above the batch": ({"consume_chunk": 64}, "pipeline.consume_chunk", ("whole number of chunks",)),
    "a quorum above the group": ({"group_quorum": 9}, "pipeline.group_quorum", ("never reach its quorum", "group_size = 8")),
    "groups of one have no variance": (
        {"group_size": 1, "filter": "zero_variance"},
        "pipeline.filter",
        ("every group would be filtered",),
    ),
    "quorums of one have no variance": (
        {"group_quorum": 1, "filter": "zero_variance"},
        "pipeline.filter",
        ("every group would be filtered",),
    ),
    "a rolling sync of whole episodes": (
        {"sync_mode": "drain_episodes", "sync_rollout": "rolling", "deadlines": {"sync_s": 7200.0}},
        "pipeline.sync_rollout",
        ("leaves no episode",),
    ),
    "the first back-off is the longest": (
        {"backoff_s": 61.0},
        "pipeline.backoff_s",
        ("backoff_s = 61.0", "backoff_max_s = 60.0"),
    ),
}

INNER_ABOVE_OUTER = [
    ("tool_s", "step_s", {}),
    ("build_s", "episode_s", {}),
    ("reset_s", "episode_s", {}),
    ("generation_s", "episode_s", {"sync_mode": "keep"}),
    ("step_s", "episode_s", {}),
    ("reward_s", "episode_s", {}),
    ("episode_s", "evaluation_s", {"eval_interval": 10}),
    ("generation_s", "sync_s", {"sync_mode": "drain"}),
    ("episode_s", "sync_s", {"sync_mode": "drain_episodes"}),
]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_load(name):
    values, field, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.model_validate(values)
    error = caught.value
    assert error.field == field
    assert error.value is not None
    assert error.allowed
    assert error.remedy
    for word in words:
        assert word in str(error), str(error)


@pytest.mark.parametrize(("inner", "outer", "others"), INNER_ABOVE_OUTER)
def test_an_inner_deadline_above_an_outer_one_is_refused(inner, outer, others):
    wide = {**dict.fromkeys(Deadlines.model_fields, 1000.0), "episode_s": 2000.0, "evaluation_s": 2000.0, "sync_s": 2000.0}
    wide[outer] = wide[inner]
    PipelineConfig.model_validate({**others, "deadlines": wide})
    with pytest.raises(ConfigError, match=f"{inner} > {outer}") as caught:
        PipelineConfig.model_validate({**others, "deadlines": {**wide, inner: wide[inner] + 1}})
    assert caught.value.field.startswith("pipeline.deadlines.")


def test_deadlines_that_do_not_meet_are_not_compared():
    wide = {**dict.fromkeys(Deadlines.model_fields, 1000.0), "sync_s": 1.0, "evaluation_s": 1.0, "close_s": 5000.0}
    PipelineConfig.model_validate({"sync_mode": "keep", "deadlines": wide})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_size", "32"),
        ("group_size", 32.5),
        ("group_size", 32.0),
        ("group_size", True),
        ("group_size", None),
        ("group_size", 0),
        ("group_size", -1),
        ("max_staleness", 65),
        ("window_fraction", math.nan),
        ("window_fraction", math.inf),
        ("window_fraction", "0.5"),
        ("window_fraction", -0.1),
        ("backoff_s", True),
        ("stale_policy", "wiat"),
        ("stale_policy", 1),
        ("max_stalenes", 1),
        ("deadlines", {"tool_s": 0.0}),
        ("deadlines", {"tool_s": -1.0}),
        ("deadlines", {"tool_s": math.inf}),
        ("deadlines", {"tool_s": math.nan}),
        ("deadlines", {"tool_s": "60"}),
        ("deadlines", {"tool_ms": 60.0}),
        ("deadlines", {"tool_s": 8 * 86_400.0}),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused(field, value):
    with pytest.raises(ValidationError) as caught:
        PipelineConfig.model_validate({field: value})
    assert caught.value.errors()[0]["loc"][0] == field


def test_whole_numbers_serve_as_seconds_and_fractions():
    config = PipelineConfig.model_validate({"backoff_s": 2, "deadlines": {"tool_s": 60}})
    assert (config.backoff_s, config.deadlines.tool_s) == (2.0, 60.0)


def test_the_default_is_accepted_without_a_notice():
    config = PipelineConfig()
    assert config.notices() == ()
    assert config.chunk_groups == config.groups_per_step
    assert config.members_needed == config.members_planned == config.group_size


def test_the_synchronous_and_the_one_step_off_baselines_are_accepted():
    synchronous = {"max_staleness": 0, "pipeline_depth": 0, "steps_per_sync": 1, "buffer_capacity": 32}
    PipelineConfig.model_validate(synchronous)
    PipelineConfig.model_validate({**synchronous, "sync_mode": "drain_episodes", "deadlines": {"sync_s": 7200.0}})
    PipelineConfig.model_validate({"max_staleness": 1, "pipeline_depth": 1, "sync_mode": "drain"})


NOTICES = [
    ({"window_fraction": 0.5}, "window_fraction has no effect"),
    ({"admission": "inflight", "pipeline_depth": 1}, "pipeline_depth has no effect"),
    ({"admission": "window", "pipeline_depth": 1}, "pipeline_depth has no effect"),
    ({"admission": "window", "stale_policy": "train", "max_staleness": 2}, "max_staleness has no effect"),
    ({"pipeline_depth": 0, "stale_policy": "wait"}, "stale_policy has no effect"),
    ({"pipeline_depth": 0, "order_policy": "freshest"}, "order_policy has no effect"),
    ({"consume_chunk": 32}, "consume_chunk has no effect"),
    ({"start_unit": "group"}, "start_unit has no effect"),
    (
        {"consume_chunk": 8, "buffer_capacity": 63, "stale_policy": "wait", "on_full": "drop_oldest"},
        "evicts what stale_policy = wait would wait for",
    ),
    ({"admission": "inflight", "overprovision_groups": 2}, "overprovision_groups merely raises"),
    ({"on_full": "drop_oldest"}, "on_full has no effect"),
    ({"retry_infra": 0, "backoff_s": 2.0}, "backoff_max_s have no effect"),
    ({"eval_episodes": 8}, "eval_episodes has no effect"),
    ({"group_quorum": 8}, "group_quorum has no effect"),
    ({"max_inflight": 513, "env_workers": 513}, "max_inflight has no effect"),
    ({"env_workers": 511}, "an environment is held for the whole episode"),
    ({"sync_mode": "drain_episodes", "deadlines": {"sync_s": 7200.0}}, "synchronous baseline"),
]


@pytest.mark.parametrize(("values", "words"), NOTICES)
def test_a_knob_without_effect_is_said(values, words):
    found = PipelineConfig.model_validate(values).notices()
    assert sum(words in notice for notice in found) == 1, found


def test_a_change_is_checked_as_a_whole_again():
    config = PipelineConfig(max_staleness=4)
    deeper = config.with_changes(pipeline_depth=2, buffer_capacity=96)
    assert (deeper.max_staleness, deeper.pipeline_depth) == (4, 2)
    with pytest.raises(ConfigError, match="buffer"):
        config.with_changes(pipeline_depth=2)
    with pytest.raises(ValidationError):
        config.with_changes(max_stalenes=2)
    with pytest.raises(ValidationError):
        config.max_staleness = 3


def test_it_survives_json():
    config = PipelineConfig(max_staleness=3, stale_policy="wait", deadlines=Deadlines(tool_s=5.0))
    assert PipelineConfig.model_validate_json(config.model_dump_json()) == config
    assert PipelineConfig.model_validate(json.loads(config.model_dump_json())) == config


def test_there_are_at_most_40_knobs_with_one_owner_each():
    table = knobs()
    assert len(table) <= 40
    assert len({knob.path for knob in table}) == len(table) == len(PipelineConfig.model_fields) - 1
    assert all(knob.path == f"pipeline.{knob.name}" and knob.owner and knob.doc for knob in table)
    assert all(knob.unit for knob in table if knob.kind is not KnobKind.CHOICE)


def test_knobs_say_what_the_fields_accept():
    config = PipelineConfig()
    for knob in knobs():
        assert getattr(config, knob.name) == knob.default
        if knob.kind is KnobKind.CHOICE:
            assert knob.allowed == ", ".join(knob.choices)
            continue
        assert knob.low is not None
        assert knob.high is not None
        for outside in (knob.low - 1, knob.high + 1):
            value = int(outside) if knob.kind is KnobKind.INT else float(outside)
            with pytest.raises(ValidationError):
                PipelineConfig.model_validate({knob.name: value})


def test_every_field_is_described_with_unit_and_range_for_editors():
    schema = PipelineConfig.model_json_schema()
    for name, field in schema["properties"].items():
        assert field["description"], name
    for name, field in schema["$defs"]["Deadlines"]["properties"].items():
        assert "seconds" in field["description"], name


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            knob.name: st.sampled_from(knob.choices)
            if knob.kind is KnobKind.CHOICE
            else st.integers(int(knob.low or 0), int(min(knob.high or 0, (knob.low or 0) + 40)))
            for knob in knobs()
        },
    )
)
def test_whatever_is_in_range_is_accepted_or_refused_with_a_remedy(values):
    try:
        config = PipelineConfig.model_validate(values)
    except ConfigError as error:
        refusal = error
    else:
        assert all(isinstance(notice, str) for notice in config.notices())
        return
    assert refusal.field.startswith("pipeline.")
    assert refusal.allowed
    assert refusal.remedy


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "", "kind": KnobKind.INT, "default": 1, "owner": "buffer", "low": 0, "high": 2},
        {"path": "p.x", "kind": KnobKind.INT, "default": 1, "owner": "", "low": 0, "high": 2},
        {"path": "p.x", "kind": KnobKind.INT, "default": 3, "owner": "buffer", "low": 0, "high": 2},
        {"path": "p.x", "kind": KnobKind.INT, "default": 3, "owner": "buffer"},
        {"path": "p.x", "kind": KnobKind.CHOICE, "default": "c", "owner": "buffer", "choices": ("a", "b")},
    ],
)
def test_a_descriptor_that_contradicts_itself_is_refused(arguments):
    with pytest.raises(ValueError):
        Knob(**arguments)


def test_a_descriptor_says_what_is_allowed():
    knob = Knob("p.x", KnobKind.INT, 1, "buffer", unit="groups", low=0, high=8, scale=Scale.LOG)
    assert knob.allowed == "a whole number from 0 to 8 (groups)"
    assert Knob("p.y", KnobKind.BOOL, default=True, owner="buffer").allowed == "true, false"
