"""The page of `tune`: each section there exactly where it has something to say, whole, safe, and valid charts."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import vl_convert
from standin import Pipeline, problem
from virtual_crew import VirtualCrew

from harness.analysis.statistics import Interval
from harness.core.lanes import State
from harness.timelines import Span, Timeline
from harness.tuning.result import Contribution, Flatness, Point, Sensitivity
from harness.tuning.search import tune
from harness.tuning.wording import settings_in_words
from harness.tuning_charts import (
    contributions_chart,
    first_chart,
    flatness_chart,
    front_chart,
    timeline_chart,
    tornado_chart,
)
from harness.tuning_page import NO_TIMELINE, tuning_page

if TYPE_CHECKING:
    from harness.tuning.result import TuneResult

SECTIONS = {
    "Gain against lag, cost and waste": {"points": (), "alternatives": ()},
    "What each change is worth": {"contributions": ()},
    "How far each knob may move": {"flatness": ()},
    "If an input is off": {"sensitivity": ()},
    "In the names of": {"peers": {}},
    "Study kept in": {"study": ""},
}
"""What must be there with all fields, and what is emptied for it to be gone."""


def between(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, (high - low) / 2, 4)


ONE_RUN = Interval(0.05, float("-inf"), float("inf"), float("inf"), 1)


def point(settings, gain, lag, *, front=True, fresh=True, usd=3.0) -> Point:
    return Point(settings, gain, 0.01, lag, int(lag) + 1, usd, 0.02 * lag, 0.3, front, 4, 40, fresh)


def timeline(step_s: float, left_out: int = 0, steps: int = 1) -> Timeline:
    spans = (
        Span("learner", 0, 0.4 * step_s, State.WAIT_BATCH), Span("learner", 0.4 * step_s, step_s, State.TRAIN),
        Span("replica/0", 0, 0.7 * step_s, State.GENERATE), Span("replica/0", 0.7 * step_s, step_s, State.SYNC_RECV),
    )  # fmt: skip
    return Timeline(7, 5, steps, 100.0, step_s, 2, ("learner", "replica/0"), left_out, spans)


TIMELINES = (timeline(60.0), timeline(45.0, left_out=9, steps=2))


@pytest.fixture(scope="module")
def bare() -> TuneResult:
    """As a search left it that measured nothing beside the answer."""
    pipeline = Pipeline(common=0.03, waste=0.02)
    found = tune(problem(pipeline), workers=2, crew=VirtualCrew(pipeline, 2, lambda s, n, steps: 0.3 * (steps + 5)))
    assert found.changed
    return replace(found, points=(), flatness=(), sensitivity=(), contributions=(), alternatives=(), peers={}, study="")


@pytest.fixture(scope="module")
def full(bare: TuneResult) -> TuneResult:
    path, value = next(iter(bare.changed.items()))
    other = {path: bare.today[path]}
    inputs = [
        Sensitivity(f"workload.{name}", f"the {name}", factor, between(size * (1 - factor) - 0.01, size * (1 - factor) + 0.01),
                    between(0.1, 0.2), other if factor > 1 and name == "tools" else None, 4, 20)
        for name, size in (("tools", 1.0), ("turns", 0.4), ("tokens", 0.0))
        for factor in (0.9, 1.1)
    ]  # fmt: skip
    return replace(
        bare,
        points=(
            point({}, Interval(0, 0, 0, 0, 4), 1.0),
            point(bare.changed, between(0.2, 0.3), 2.0, usd=2.0),
            point(other, ONE_RUN, 3.0, front=False, fresh=False, usd=4.0),
        ),
        contributions=(
            Contribution(path, bare.today[path], value, between(0.1, 0.2), 20),
            Contribution(path, bare.today[path], value, None, 0),
        ),
        flatness=(Flatness(path, value, (value, "other"), (99,), 20), Flatness("pipeline.kind", "a", ("a",), (), 20)),
        sensitivity=tuple(inputs),
        peers={"verl": "trainer.x = 1"},
        study="runs/study",
    )


def specs(result: TuneResult) -> dict[str, object]:
    return {
        "first": first_chart(result),
        "front": front_chart(result.points, result.changed),
        "worth": contributions_chart(result),
        "flat": flatness_chart(result.flatness),
        "tornado": tornado_chart(result),
    }


@pytest.fixture(scope="module")
def page(full: TuneResult) -> str:
    return tuning_page(full, TIMELINES)


@pytest.fixture(scope="module")
def bare_page(bare: TuneResult) -> str:
    return tuning_page(bare)


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_is_there_where_it_has_something_to_say_and_only_there(title: str, page: str, bare_page: str) -> None:
    assert title in page
    assert title not in bare_page


def test_a_step_is_drawn_or_it_is_said_why_not(page: str, bare_page: str) -> None:
    assert html.escape(NO_TIMELINE, quote=False) not in page
    assert "today: step 5 takes 60 s" in page
    assert "found: steps 5 to 6 take 45 s, 22.5 s each" in page
    assert "9 more chip lanes are not shown (found)" in page
    assert html.escape(NO_TIMELINE, quote=False) in bare_page


def test_it_needs_no_network_and_runs_no_script(page: str) -> None:
    assert "<script" not in page
    assert set(re.findall(r"https?://[^\"' <]+", page)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"\b(src|href)=[\"'](?!#)", page)
    assert "url(" not in page.replace("url(#", "")


def test_every_chart_says_what_it_shows_and_no_identifier_comes_twice(page: str) -> None:
    charts = re.findall(r"<svg\b[^>]*>", page)
    assert len(charts) == 7
    assert all(re.search(r'role="img" aria-label="[^"]{10,}"', chart) for chart in charts)
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(identifiers)


def test_marks_have_tooltips_with_the_settings(full: TuneResult, page: str) -> None:
    titles = re.findall(r"<title>([^<]*)</title>", page)
    path, value = next(iter(full.changed.items()))
    name = path.rpartition(".")[2]
    assert any(f"{name} = {value}" in title and "lag p95 2.0" in title for title in titles)
    assert any("provisional" in title for title in titles)


def test_each_chart_is_valid_vega_lite(full: TuneResult) -> None:
    for name, spec in (specs(full) | {"step": timeline_chart([("today", TIMELINES[0]), ("found", TIMELINES[1])])}).items():
        assert isinstance(spec, dict), name
        assert "vega-lite/v" in spec["$schema"]
        json.dumps(spec, allow_nan=False)
        vl_convert.vegalite_to_vega(spec)


def test_charts_without_data_are_left_out(bare: TuneResult) -> None:
    assert [name for name, spec in specs(bare).items() if spec is not None] == ["first"]
    assert timeline_chart([]) is None


def test_an_idle_share_is_shown_where_that_was_asked(full: TuneResult) -> None:
    assert "idle share of chip time" in json.dumps(first_chart(replace(full, objective="idle")))


def test_both_steps_share_one_scale_of_time() -> None:
    spec = timeline_chart([("today", TIMELINES[0]), ("found", TIMELINES[1])])
    assert spec is not None
    assert [part["encoding"]["x"]["scale"]["domain"] for part in spec["vconcat"]] == [[0, 60.0], [0, 60.0]]


def test_today_s_and_the_answer_are_marked_on_the_front(full: TuneResult) -> None:
    spec = front_chart(full.points, full.changed)
    assert spec is not None
    named = [row for rows in spec["datasets"].values() for row in rows if row.get("name")]
    assert {(row["name"], row["said"].partition(":")[0]) for row in named} == {
        ("today", "today's settings"),
        ("found", settings_in_words(full.changed)),
    }


def test_nothing_found_is_a_page_as_well(bare: TuneResult) -> None:
    page = tuning_page(replace(bare, settings=None, best=None, gain=None, idle_change=None, patch=""))
    assert "Nothing else was tried" in page
    assert "<svg" in page
    assert "As a change to the scenario" not in page
    assert "Optimizer steps, chip by chip" not in page


def test_what_a_user_named_cannot_break_it(full: TuneResult) -> None:
    bad = '<b>&"x"'
    one = replace(full.sensitivity[0], path=bad, doc=bad)
    page = tuning_page(
        replace(full, scenario=bad, study=bad, peers={bad: bad}, sensitivity=(one,), notes=(bad,), staleness_cost=bad),
        (replace(TIMELINES[0], lanes=(bad,), spans=(Span(bad, 0, 60, State.TRAIN),)), TIMELINES[1]),
    )
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
