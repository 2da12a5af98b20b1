"""Reading scenarios: round trips, places of errors, overrides, and messages that a person can act on."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from harness.core.errors import ConfigError
from harness.scenario.load import dump, json_schema, load, parse, resolved_json
from harness.scenario.locate import Places
from harness.scenario.schema import Scenario, World
from harness.scenario.workload import Workload

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


class Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    tool_s: float = Field(60.0, gt=0)


class Knobs(BaseModel):
    """The smallest pipeline: this package must know no other."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    max_inflight: int = Field(8, ge=1, le=100, description="Episodes in flight.")
    mode: str = "keep"
    limits: Limits = Limits()


TEXT = """\
title = "small"
question = "does it load?"

[world.inference]
replicas = 2
chips_per_replica = 1
kv_capacity_tokens = 100_000
decode = { base_s = 0.01, per_kv_token_s = 1e-8 }

[world.inference.prefill]
base_s = 0.0
per_token_s = 1e-5

[world.learner]
chips = 4
train = { base_s = 1.0 }

[world.weights]
weights_bytes = 10
transfer = { base_s = 0.1, bytes_per_s = 1e9 }

[world.environments]
reset = { law = "lognormal", mu = 1.0, sigma = 0.5 }
close = { law = "constant", value_s = 0.5 }

[world.scoring]
duration = { law = "exponential", mean_s = 1.0 }

[workload]
tasks = 10
turns = { law = "constant", value = 3 }
prompt_tokens = { law = "constant", value = 100 }
response_tokens = { law = "geometric", mean = 50.0, max = 500 }
observation_tokens = { law = "lognormal", mean = 50.0, cv = 1.0, max = 500 }

[[workload.tools]]
name = "search"
share = 0.75
duration = { law = "exponential", mean_s = 2.0 }

[[workload.tools]]
name = "tests"
share = 0.25
[workload.tools.duration]
law = "mixture"
parts = [
  { weight = 0.9, of = { law = "exponential", mean_s = 2.0 } },
]
atoms = [{ at_s = 60.0, weight = 0.1 }]

[pipeline]
max_inflight = 16

[pipeline.limits]
tool_s = 90.0
"""


def small(**changes: Any) -> Scenario[Knobs]:
    return parse(TEXT, Knobs).model_copy(update=changes)


def line_of(text: str, start: str) -> int:
    return next(i for i, line in enumerate(text.split("\n"), 1) if line.lstrip().startswith(start))


def failure(old: str, new: str, **options: Any) -> ConfigError:
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        parse(TEXT.replace(old, new, 1), Knobs, file="my.toml", **options)
    return caught.value


def test_a_scenario_loads_with_defaults():
    scenario = small()
    assert scenario.pipeline == Knobs(max_inflight=16, limits=Limits(tool_s=90.0))
    assert scenario.world.chips == 6
    assert scenario.run.replications == 5
    assert scenario.workload.tools[1].duration.law == "mixture"


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
fractions = st.floats(0.001, 1.0)


@SETTINGS
@given(names, names, st.floats(1e-12, 1e12), st.lists(names, min_size=1, max_size=4, unique=True), st.integers(1, 100))
def test_what_is_written_is_read_back_the_same(title, note, seconds, tools, inflight):
    table = tomllib.loads(TEXT)["workload"]
    law = {"law": "exponential", "mean_s": seconds, "note": note, "source": title}
    table["tools"] = [{"name": name, "share": 1 / len(tools), "duration": law} for name in tools]
    scenario = small(title=title, workload=Workload.model_validate(table), pipeline=Knobs(max_inflight=inflight))
    again = parse(dump(scenario), Knobs)
    assert again == scenario
    assert dump(again) == dump(scenario)


def test_the_resolved_json_holds_every_field_and_reads_back():
    data = json.loads(resolved_json(small()))
    assert data["run"]["replications"] == 5
    assert Scenario[Knobs].model_validate(data) == small()


def test_the_json_schema_describes_every_field():
    schema = json_schema(Knobs)
    assert schema["$defs"]["Knobs"]["properties"]["max_inflight"]["description"] == "Episodes in flight."
    for record in (World, Workload):
        for name, field in record.model_fields.items():
            assert field.description or isinstance(field.annotation, type) or name in ("checkpoint", "prices", "success"), name


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("replicas = 2", "replica = 2", "world.inference.replica", ["did you mean `replicas`"]),
        ("tool_s = 90.0", "tool_ms = 90.0", "pipeline.limits.tool_ms", ["did you mean `tool_s`", "seconds"]),
        ("tool_s = 90.0", 'tool_s = "90s"', "pipeline.limits.tool_s", ["'90s'", "seconds", "write tool_s = 90"]),
        ("mean_s = 1.0", 'mean_s = "1"', "world.scoring.duration.mean_s", ["text", "write mean_s = 1"]),
        ("mean_s = 1.0", "mean_s = -1.0", "world.scoring.duration.mean_s", ["-1.0", "above 0"]),
        ("mean_s = 1.0", "mean_s = nan", "world.scoring.duration.mean_s", ["finite"]),
        ("mean_s = 1.0", "mean_s = inf", "world.scoring.duration.mean_s", ["finite"]),
        ("mean_s = 1.0", "mean_s = true", "world.scoring.duration.mean_s", ["number"]),
        ("mean_s = 1.0", "mean_s = [1]", "world.scoring.duration.mean_s", ["number"]),
        ("max_inflight = 16", "max_inflight = 0", "pipeline.max_inflight", ["at least 1", "Episodes in flight"]),
        ("max_inflight = 16", "max_inflight = 16.5", "pipeline.max_inflight", ["whole number"]),
        ("max_inflight = 16", "max_inflight = 2_000", "pipeline.max_inflight", ["2000", "at most 100"]),
        ('law = "lognormal", mu', 'law = "lognormall", mu', "world.environments.reset.law", ["did you mean `lognormal`"]),
        ('law = "lognormal", mu', "mu", "world.environments.reset.law", ["missing", "exponential"]),
        ("sigma = 0.5", "sgma = 0.5", "world.environments.reset", ["sigma"]),
        ("tasks = 10\n", "", "workload.tasks", ["missing", "Distinct tasks"]),
        ("share = 0.25", "share = 0.35", "workload", ["add up to 1.1"]),
        ('name = "tests"', 'name = "search"', "workload", ["two tools", "search"]),
        ("weight = 0.9, of", "weight = 0.8, of", "workload.tools.1.duration", ["add up to 0.9"]),
        ("kv_capacity_tokens = 100_000", "kv_capacity_tokens = 1000", "workload.max_context_tokens", ["32768", "1000"]),
        ("tasks = 10", "tasks = {}", "workload.tasks", ["whole number"]),
        ("[world.scoring]\nduration", "[world.scorin]\nduration", "world.scor", ["scoring"]),
    ],
)
def test_errors_name_file_line_field_value_and_remedy(old, new, field, words):
    error = failure(old, new)
    text = str(error)
    assert error.field.startswith(field)
    assert text.startswith("my.toml:")
    for word in words:
        assert word in text
    assert error.allowed or error.remedy
    changed = TEXT.replace(old, new, 1)
    if new and "=" in new and error.field.rsplit(".", 1)[-1] in new:
        needle = new.strip().split("\n")[-1]
        assert needle in changed.split("\n")[error.line - 1] or error.line == line_of(changed, error.field.split(".")[-2])


def test_several_errors_are_named_together():
    error = failure("replicas = 2\nchips_per_replica = 1", "replicas = 0\nchips_per_replica = 0")
    assert error.field == "world.inference.replicas"
    assert "also wrong: world.inference.chips_per_replica" in error.remedy


def test_a_syntax_error_has_its_line():
    error = failure("tasks = 10", "tasks = = 10")
    assert error.line == line_of(TEXT, "tasks")
    assert "not valid TOML" in str(error)
    assert failure('title = "small"', 'title = "sm').line == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\xff\xfe\x00", "not text"), (b"title = \x00", "binary"), (None, "no such file"), (b"", "is missing")],
)
def test_files_that_are_no_scenarios(tmp_path, content, words):
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load(path, Knobs)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="folder"):
        load(tmp_path, Knobs)


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load(path, Knobs) == small()


def test_overrides():
    changed = parse(
        TEXT,
        Knobs,
        overrides=[
            "pipeline.max_inflight=32",
            "pipeline.mode=drain",
            "run.seed = 7",
            'workload.turns={law="constant", value=5}',
            "workload.tools.search.duration.mean_s=9",
            "workload.tools.1.time_limit_s=50",
        ],
    )
    assert (changed.pipeline.max_inflight, changed.pipeline.mode, changed.run.seed) == (32, "drain", 7)
    assert changed.workload.turns.value == 5
    assert changed.workload.tools[0].duration.mean_s == 9
    assert changed.workload.tools[1].time_limit_s == 50


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pipeline.max_inflight=0", ["--set pipeline.max_inflight=0", "at least 1"]),
        ("pipeline.max_inflght=3", ["did you mean `max_inflight`"]),
        ("pipline.max_inflight=3", ["pipline", "did you mean `pipeline`"]),
        ("run.seed", ["field.path=value"]),
        ("=3", ["field.path=value"]),
        ("run.seed=[1", ["not TOML"]),
        ("run.seed=1\nrun.x=2", ["more than one"]),
        ("workload.tools.serch.share=1", ["search, tests"]),
        ("workload.tools.7.share=1", ["0 to 1"]),
        ("title.x=1", ["is a value"]),
    ],
)
def test_wrong_overrides_are_named_as_given(override, words):
    with pytest.raises(ConfigError) as caught:
        parse(TEXT, Knobs, file="my.toml", overrides=[override])
    for word in words:
        assert word in str(caught.value)


def test_places_follow_every_way_to_write_a_field():
    text = (
        '# comment\na.b = 1\n"c d" = [\n  { x = 1, y = "]}#" },\n  { x = """\n} # no\n""", z = [1, 2] },\n]\n'
        "[t]\nk = '''\n[not]\n'''\nl = 2 # [no]\n[[t.m]]\nn = 1\n[[t.m]]\nn = 2\n[t.m.o]\np = 3\n"
    )
    assert tomllib.loads(text)["t"]["m"][1]["o"]["p"] == 3
    places = Places(text)
    expected = {
        ("a", "b"): 2,
        ("c d",): 3,
        ("c d", 0, "y"): 4,
        ("c d", 1, "x"): 5,
        ("c d", 1, "z"): 7,
        ("t", "k"): 10,
        ("t", "l"): 13,
        ("t", "m", 0, "n"): 15,
        ("t", "m", 1, "n"): 17,
        ("t", "m", 1, "o", "p"): 19,
    }
    assert {path: places.line(path) for path in expected} == expected
    assert places.line(("t", "m", 1, "missing")) == 16
    assert places.line(("nowhere",)) == 0


@SETTINGS
@given(st.text(alphabet="ab.=\"[]{}'\n #,1", max_size=60))
def test_the_locator_ends_on_any_text(text):
    Places(text)


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path, *(p for key, one in items for p in _paths(one, (*path, key)))]
        if path
        else [p for key, one in items for p in _paths(one, (key,))]
    )


def test_every_field_of_a_scenario_has_its_line():
    places = Places(TEXT)
    lines = TEXT.split("\n")
    for path in _paths(tomllib.loads(TEXT)):
        line = lines[places.line(path) - 1]
        last = next(part for part in reversed(path) if isinstance(part, str))
        assert last in line or line.strip().startswith(("[", "{"))


def test_a_pipe_is_no_scenario(tmp_path):
    """It would be waited for without end."""
    import os

    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        load(pipe, Knobs)
