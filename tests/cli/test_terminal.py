"""What a person reads: words, widths, a command that can be pasted."""

from __future__ import annotations

import io
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

from harness.analysis.statistics import mean_interval
from harness.terminal import WIDTH, bar, console, print_simulation, print_tuning, wrapped_command
from harness.tuning.answer import answer, how_sure
from harness.tuning.measured import measure
from harness.tuning.result import TuneResult, Verdict
from harness.tuning.search import tune
from harness.tuning.wording import gain_with_interval, listed, percent, share_with_interval

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)

CASES = {
    "better": Pipeline(common=0.03),
    "no_better": Pipeline(overlaps=False, sync_s=0.0, own=0.002),
    "cannot_tell": Pipeline(overlaps=False, sync_s=0.0, own=1.5),
}


def result_of(pipeline: Pipeline, **options) -> TuneResult:
    return tune(problem(pipeline), workers=2, crew=VirtualCrew(pipeline, 2, lambda s, n, steps: 0.3 * (steps + 5)), **options)


@pytest.fixture(scope="module", params=CASES)
def result(request) -> TuneResult:
    found = result_of(CASES[request.param])
    assert found.verdict.value == request.param
    return found


def printed(show) -> str:
    stream = io.StringIO()
    show(console(stream))
    return stream.getvalue()


def test_lines_are_no_wider_than_a_terminal_and_end_without_blanks(result: TuneResult) -> None:
    text = printed(lambda out: print_tuning(out, result))
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text


def test_the_first_sentence_says_the_idle_share_of_today(result: TuneResult) -> None:
    first = answer(result)[0]
    assert first.startswith(f"Today's configuration leaves the accelerators idle {percent(result.baseline.idle_share.mean)}")


def test_each_verdict_has_its_words(result: TuneResult) -> None:
    words = " ".join(answer(result))
    assert ("No setting is better than yours" in words) is (result.verdict is Verdict.NO_BETTER)
    assert ("cannot be told" in words) is (result.verdict is Verdict.CANNOT_TELL)
    assert ("Lag " in words) is (result.verdict is Verdict.BETTER)


def test_lag_is_said_with_whose_ceiling_it_is() -> None:
    own, given_ = result_of(CASES["better"]), result_of(CASES["better"], max_lag=2)
    assert "set your own ceiling with --max-lag" in " ".join(answer(own))
    assert "within your ceiling of 2" in " ".join(answer(given_))


def test_what_it_rests_on_is_said(result: TuneResult) -> None:
    words = " ".join(how_sure(result))
    assert f"{result.baseline.learner_steps} learner steps" in words
    assert f"{result.effort.candidates} settings tried" in words
    assert ("Provisional" in words) is result.provisional


def test_a_simulation_fits_and_shows_warnings_and_every_class_it_has() -> None:
    pipeline = Pipeline(waste=0.05)
    runs = [pipeline(TODAY | {"pipeline.max_staleness": 2, "pipeline.pipeline_depth": 2}, seed, 20) for seed in range(3)]
    text = printed(lambda out: print_simulation(out, "stand_in", measure(runs), 5, ["no evaluation"]))
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in text.splitlines())
    for words in ("kept work", "work later discarded", "tool calls running", "! no evaluation", "3 replications of 20"):
        assert words in text


@PROFILE
@given(
    st.lists(
        st.tuples(st.sampled_from(["--set", "--seed", "--json"]), st.text("abc.=_ '$\"7", min_size=1, max_size=30)), max_size=8
    )
)
def test_a_wrapped_command_is_the_same_command(options: list[tuple[str, str]]) -> None:
    command = shlex.join(["harness", "simulate", "my file.toml", *(word for pair in options for word in pair)])
    lines = wrapped_command(command)
    assert shlex.split("\n".join(lines).replace(" \\\n", " ")) == shlex.split(command)  # as a shell joins lines


@PROFILE
@given(st.floats(0, 1))
def test_a_bar_is_as_long_as_its_share(share: float) -> None:
    assert abs(len(bar(share, 40)) - 40 * share) <= 1


@pytest.mark.parametrize(
    ("share", "words"), [(0.412, "41%"), (0.0412, "4.1%"), (0.0, "0.0%"), (1.0, "100%"), (-0.0001, "0.0%"), (0.0999, "10%")]
)
def test_percentages(share: float, words: str) -> None:
    assert percent(share) == words


def test_intervals_in_words() -> None:
    assert share_with_interval(mean_interval([0.40, 0.42])) == "41% (28 to 54%)"
    assert share_with_interval(mean_interval([0.0, 0.1])) == "5.0% (0.0 to 69%)"
    assert share_with_interval(mean_interval([0.4])) == "40% (one run, no interval)"
    assert gain_with_interval(mean_interval([0.2, 0.2])) == "+20% (+20 to +20%)"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == ""
