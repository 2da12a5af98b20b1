"""Numbers that drift over training: their values, where they are put, and what is refused with path and point."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import ConfigError
from harness.costs.schedules import MOST_KEPT, Drifting
from harness.scenario import schedules
from harness.scenario.load import dump, load, parse
from harness.scenario.schedules import Schedule
from pipeline.config import PipelineConfig

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
FOLDER = Path(__file__).parents[2] / "scenarios"
BASE = load(FOLDER / "fully_async.toml", PipelineConfig)
CODING = load(FOLDER / "coding_agent.toml", PipelineConfig)


def drifting(*entries, base=CODING):
    text = dump(base)
    for entry in entries:
        pairs = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in entry.items())
        text += f"\n[[schedules]]\n{pairs}\n"
    return parse(text, PipelineConfig, file="mine.toml")


points = st.lists(st.tuples(st.integers(0, 200), st.floats(-1e6, 1e6)), min_size=1, max_size=6, unique_by=lambda p: p[0]).map(
    sorted
)


@SETTINGS
@given(points, st.integers(0, 250), st.sampled_from(["step", "linear"]))
def test_a_schedule_is_its_points_and_what_lies_between(given_points, step, between):
    schedule = Schedule.model_validate({"path": "x", "points": given_points, "between": between})
    for at, value in given_points:
        assert schedule.value(at) == value
    found = schedule.value(step)
    earlier = [value for at, value in given_points if at <= step]
    later = [value for at, value in given_points if at > step]
    if not earlier:
        assert found is None
    elif between == "step" or not later:
        assert found == earlier[-1]
    else:
        low, high = sorted((earlier[-1], later[0]))
        assert low - 1e-6 <= found <= high + 1e-6
        twice = [schedule.value(at) for at, _ in given_points]
        assert twice == [value for _, value in given_points]


PATHS = [
    ("workload.response_tokens.mean", 300.0, lambda s: s.workload.response_tokens.mean),
    ("workload.response_tokens.max", 4000, lambda s: s.workload.response_tokens.max),
    ("workload.success.median", 0.9, lambda s: s.workload.success.median),
    ("workload.tools.edit.duration.mu", 1.5, lambda s: s.workload.tools[1].duration.mu),
    ("workload.tools.0.failure", 0.25, lambda s: s.workload.tools[0].failure),
    ("workload.tools.run.time_limit_s", 90.0, lambda s: s.workload.tools[2].time_limit_s),
    ("workload.agent_run.tool_share", 0.5, lambda s: s.workload.agent_run.tool_share),
    ("world.environments.reset.parts.1.of.sigma", 1.2, lambda s: s.world.environments.reset.parts[1].of.sigma),
    ("world.scoring.failure", 0.5, lambda s: s.world.scoring.failure),
    ("world.learner.train.per_token_s", 1e-4, lambda s: s.world.learner.train.per_token_s),
    ("world.weights.transfer.base_s", 9.0, lambda s: s.world.weights.transfer.base_s),
    ("world.checkpoint.save.base_s", 11.0, lambda s: s.world.checkpoint.save.base_s),
]


@pytest.mark.parametrize(("path", "value", "read"), PATHS, ids=[path for path, _, _ in PATHS])
def test_any_number_of_episodes_passes_and_moves_can_drift(path, value, read):
    what = drifting({"path": path, "points": [[3, value]]})
    before, after = schedules.at(what, 2), schedules.at(what, 3)
    assert before.model_copy(update={"schedules": what.schedules}) == what
    assert read(after) == value
    assert read(before) != value
    assert type(read(after)) is type(value)
    assert parse(dump(what), PipelineConfig) == what
    assert after.schedules == ()


def test_a_whole_number_is_rounded_on_a_line():
    what = drifting({"path": "workload.response_tokens.max", "points": [[0, 1000], [3, 1010]], "between": "linear"})
    assert [schedules.at(what, step).workload.response_tokens.max for step in range(5)] == [1000, 1003, 1007, 1010, 1010]


REFUSED = [
    ({"path": "workload.response_tokens.men", "points": [[0, 5.0]]}, "schedules.0.path", "there is no 'men'"),
    ({"path": "workload.tools.browse.failure", "points": [[0, 0.5]]}, "schedules.0.path", "there is no 'browse'"),
    ({"path": "workload.response_tokens", "points": [[0, 5.0]]}, "schedules.0.path", "is no number"),
    ({"path": "workload.tools.edit.name", "points": [[0, 5.0]]}, "schedules.0.path", "is no number"),
    ({"path": "workload.tasks", "points": [[0, 5]]}, "schedules.0.path", "stays as it is"),
    ({"path": "workload.tools.edit.burst", "points": [[0, 5]]}, "schedules.0.path", "stays as it is"),
    ({"path": "world.inference.replicas", "points": [[0, 5]]}, "schedules.0.path", "stays as it is"),
    ({"path": "pipeline.max_staleness", "points": [[0, 5]]}, "schedules.0.path", "stays as it is"),
    ({"path": "run.seed", "points": [[0, 5]]}, "schedules.0.path", "stays as it is"),
    ({"path": "workload.success.median", "points": [[0, 0.4], [7, 1.0]]}, "schedules.0.points.1", "below 1"),
    ({"path": "workload.response_tokens.mean", "points": [[2, -1.0]]}, "schedules.0.points.0", "above 0"),
    ({"path": "workload.tools.edit.share", "points": [[2, 0.9]]}, "schedules.0.points.0", "add up to"),
    ({"path": "workload.turns.min", "points": [[2, 61]]}, "schedules.0.points.0", "above max"),
    ({"path": "workload.turns.min", "points": [[2, 3.5]]}, "schedules.0.points.0", "not a whole number"),
    ({"path": "world.environments.reset.parts.0.weight", "points": [[1, 0.3]]}, "schedules.0.points.0", "add up to"),
    ({"path": "workload.success.median", "points": [[3, 0.4], [3, 0.5]]}, "schedules.0", "must rise"),
    ({"path": "workload.success.median", "points": [[-1, 0.4]]}, "schedules.0", "must rise"),
    ({"path": "workload.success.median", "points": []}, "schedules.0.points", "at least 1"),
    ({"path": "workload.success.median", "points": [[0, 0.5]], "between": "cubic"}, "schedules.0.between", "choices"),
]


@pytest.mark.parametrize(("entry", "field", "words"), REFUSED, ids=[f"{words} {entry['path']}" for entry, _, words in REFUSED])
def test_what_cannot_drift_is_refused_with_path_and_point(entry, field, words):
    with pytest.raises(ConfigError) as caught:
        drifting(entry)
    said = str(caught.value)
    assert caught.value.field == field
    assert words in said
    assert caught.value.file == "mine.toml"
    assert caught.value.line > 0
    if ".points." in field:
        assert entry["path"] in said
        assert "at step" in said


def test_two_schedules_are_tried_together():
    wide = {"path": "workload.turns.max", "points": [[0, 60], [5, 10]]}
    long = {"path": "workload.turns.min", "points": [[0, 3], [5, 20]]}
    drifting(wide)
    drifting(long)
    with pytest.raises(ConfigError, match=r"above max") as caught:
        drifting(wide, long)
    assert "workload.turns.max = 10, workload.turns.min = 20 at step 5" in str(caught.value)
    with pytest.raises(ConfigError, match="has a schedule already"):
        drifting(wide, wide)


def test_without_schedules_nothing_is_made_twice_and_with_them_only_what_is_needed():
    made = []
    steady = Drifting(BASE, lambda scenario: made.append(scenario) or scenario)
    assert steady.at(5) is steady.at(9) is BASE
    assert len(made) == 1
    what = drifting({"path": "workload.success.median", "points": [[0, 0.1], [50, 0.6]], "between": "linear"})
    models = Drifting(what, lambda scenario: made.append(scenario) or scenario)
    seen = [models.at(step).workload.success.median for step in (*range(5), *range(5), 60, 70, 80)]
    assert seen == sorted(seen[:5]) * 2 + [0.6] * 3
    assert len(made) == 1 + 6
    for step in range(40):
        models.at(step)
    assert len(models._kept) == MOST_KEPT
