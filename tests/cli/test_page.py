"""The page: offline, whole, and saying what the terminal says."""

from __future__ import annotations

import html
import math
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

from harness.report import simulation_page, split_rows
from harness.tuning.answer import answer, how_sure
from harness.tuning.measured import measure
from harness.tuning.search import tune
from harness.tuning_page import tuning_page

if TYPE_CHECKING:
    from harness.tuning.result import TuneResult


@pytest.fixture(scope="module")
def result() -> TuneResult:
    pipeline = Pipeline(common=0.03, waste=0.02)
    return tune(problem(pipeline), workers=2, crew=VirtualCrew(pipeline, 2, lambda s, n, steps: 0.3 * (steps + 5)))


@pytest.fixture(scope="module")
def page(result: TuneResult) -> str:
    return tuning_page(result)


class Balance(HTMLParser):
    """Counts open elements."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def test_it_needs_no_network_and_runs_no_script(page: str) -> None:
    assert "<script" not in page
    assert set(re.findall(r"https?://[^\"' <]+", page)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"\b(src|href)=[\"'](?!#)", page)


def test_its_elements_are_closed_in_order(page: str) -> None:
    balance = Balance()
    balance.feed(page)
    assert balance.open == []


def test_it_says_what_the_terminal_says(result: TuneResult, page: str) -> None:
    for sentence in (*answer(result), *how_sure(result)):
        assert html.escape(sentence, quote=False) in page
    assert html.escape(result.patch, quote=False) in page
    assert page.index(html.escape(answer(result)[0], quote=False)) < page.index("<svg") < page.index("<table")


def test_the_chart_s_parts_add_up_and_have_a_colour_each(result: TuneResult) -> None:
    assert result.best is not None
    rows, colours = split_rows([("today", result.baseline), ("found", result.best)])
    for label in ("today", "found"):
        assert math.isclose(sum(row["share"] for row in rows if row["bar"] == label), 1.0, abs_tol=2e-3)
    assert {row["part"] for row in rows} == set(colours)
    assert len(set(colours.values())) == len(colours)


def test_what_a_user_named_cannot_break_it() -> None:
    pipeline = Pipeline()
    page = simulation_page("<b>&", measure([pipeline(TODAY, 1, 20)]), 5)
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "one run, no interval" in page
