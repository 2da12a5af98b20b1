"""The schema, for editors and for people: every field says its unit and what it means."""

from __future__ import annotations

import json
import re

import pytest

from harness.core.errors import ConfigError
from harness.run import reference, schema
from harness.scenario.load import json_schema
from harness.scenario.reference import WIDTH, fields
from pipeline.config import PipelineConfig
from pipeline.live_config import LiveConfig
from tests.scenario.test_shipped import FOLDER

EVERY = fields(json_schema(PipelineConfig, LiveConfig))
UNITS = (
    # a suffix of the name, or a word of the meaning
    r"(_s|_ns|_bytes|_tokens|_episodes|_steps|_usd|_fraction|_share|_per_s|_turns|_tasks)$",
    r"\b(seconds?|bytes?|tokens?|share|probability|steps?|times|how many|number|dollars|chips?|replicas?|requests?|episodes?|"
    r"groups?|tasks?|turns?|factor|coefficient|deviation|threads?|layers?|heads?|width|weight|logarithm|version|repetitions|"
    r"seed|retries|correlation|mean|hosts?|operations|unit|per cent|rate|count|environments?|sandboxes|calls?|exponent|"
    r"shape|log-odds|degree|ratio|size)\b",
)


def test_every_field_has_a_meaning():
    assert [one.path for one in EVERY if not one.meaning] == []


def test_every_number_has_its_unit_in_its_name_or_meaning():
    """Those of `[live]` apart: much there is a pure number that has a name in the literature."""
    numbers = [one for one in EVERY if one.kind.startswith(("number", "whole number")) and not one.path.startswith("live.")]
    assert len(numbers) > 80
    without = [one.path for one in numbers if not re.search(UNITS[0], one.path) and not re.search(UNITS[1], one.meaning, re.I)]
    assert without == []


def test_the_reference_is_for_a_terminal():
    text = reference()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(one.path in text for one in EVERY if len(one.path) < WIDTH - 10)


def test_a_part_of_the_reference():
    assert reference("world.inference.replicas").startswith(
        "world.inference.replicas: whole number from 1 to 4,096; required\n"
    )
    assert "workload.tools[].share" in reference("workload.tools")
    with pytest.raises(ConfigError, match="there is no such field"):
        reference("world.infrence")


def test_the_published_schema_is_that_of_the_code():
    """Written by `harness schema --json > scenarios/scenario.schema.json`."""
    published = json.loads((FOLDER / "scenario.schema.json").read_text())
    assert published == schema(), "write it again: harness schema --json > scenarios/scenario.schema.json"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_scenario_names_its_schema_for_editors(path):
    assert path.read_text().startswith("#:schema scenario.schema.json\n")
