"""Requests become arrivals and token counts, by laws that say how wrong they are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import harness
from harness.calibration.requests import RequestColumns, fit_counts, quantiles, read_requests
from harness.core.errors import ConfigError, DataError
from harness.costs.workload import count_sampler
from harness.scenario.counts import ConstantCount, EmpiricalCount, GeometricCount, LognormalCount
from harness.scenario.load import load
from pipeline.config import PipelineConfig

ROOT = Path(__file__).parents[2]
BASE = ROOT / "scenarios" / "coding_agent.toml"
AZURE = {"arrival": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}


NAME = "llm_requests_azure_code_2023.csv"


def test_the_azure_trace_has_the_figures_that_its_readme_gives(measured):
    found = read_requests(measured(NAME), RequestColumns(**AZURE))
    prompts, answers = found.counts
    assert found.rows == 8819
    assert found.dated == "2023-11-16"
    assert (round(prompts.mean), *map(round, (prompts.measured[0], prompts.measured[2]))) == (2048, 1469, 7436)
    assert (round(answers.mean), round(answers.measured[0]), round(answers.measured[2])) == (28, 13, 251)
    assert found.gap is not None
    assert found.gap.mean_s * 8818 == pytest.approx(3436, rel=0.01)
    assert found.gap.law.expected_s() == pytest.approx(found.gap.mean_s, rel=0.1)
    assert found.gap.law.cv == pytest.approx(13.2, rel=0.1)
    for count in found.counts:
        assert max(count.held_out_error) < 0.15
        # no worse than what the blocks differ by among themselves
        assert max(count.held_out_error) < 1.2 * max(count.unlike) + 0.01


def test_the_azure_trace_becomes_a_scenario(tmp_path, measured):
    out = tmp_path / "o.toml"
    done = harness.calibrate(measured(NAME), base=BASE, out=out, html=tmp_path / "o.html", **AZURE)
    base, written = load(BASE, PipelineConfig), load(out, PipelineConfig)
    changed = {"prompt_tokens", "response_tokens", "arrivals"}
    kept = {name: getattr(base.workload, name) for name in changed}
    assert written.workload.model_copy(update=kept) == base.workload
    assert written.workload.arrivals is not None
    assert written.workload.arrivals.gap.source == "llm_requests_azure_code_2023.csv, 2023-11-16"
    assert written.workload.response_tokens == done.counts[1].law
    text = out.read_text()
    assert "# llm_requests_azure_code_2023.csv (GeneratedTokens), 2023-11-16: 8819 rows; held-out error (5 blocks" in text
    assert "Assumption, chosen so that 16 turns" not in text  # it spoke of the figure that is gone
    page = (tmp_path / "o.html").read_text()
    assert page.count("<svg") >= 1
    assert "http" not in page.replace("http://www.w3.org", "")
    again = tmp_path / "again.toml"
    harness.calibrate(measured(NAME), base=out, out=again, **AZURE)
    assert again.read_text() == text


def requests(tmp_path, arrivals, prompts=None, header="at,in"):
    prompts = prompts if prompts is not None else [10 + i % 7 for i in range(len(arrivals))]
    path = tmp_path / "r.csv"
    path.write_text("\n".join([header, *(f"{a},{p}" for a, p in zip(arrivals, prompts, strict=True))]) + "\n")
    return path


def test_poisson_arrivals_are_exponential_gaps(tmp_path):
    at = np.cumsum(np.random.default_rng(0).exponential(0.8, 4000))
    found = read_requests(requests(tmp_path, at), RequestColumns(arrival="at"))
    assert found.gap is not None
    assert found.gap.law.law == "exponential"
    assert found.gap.law.expected_s() == pytest.approx(0.8, rel=0.05)
    assert not any("swarms" in remark for remark in found.remarks)


def test_swarms_that_gaps_do_not_make_are_said(tmp_path):
    rng = np.random.default_rng(1)
    rate = np.where(np.arange(4000) // 400 % 2, 0.2, 2.0)
    found = read_requests(requests(tmp_path, np.cumsum(rng.exponential(rate))), RequestColumns(arrival="at"))
    assert any("swarms" in remark for remark in found.remarks)


def test_requests_at_one_instant_are_an_atom_at_zero(tmp_path):
    at = np.repeat(np.cumsum(np.random.default_rng(2).exponential(2.0, 1000)), 2)
    found = read_requests(requests(tmp_path, at), RequestColumns(arrival="at"))
    assert found.gap is not None
    assert found.gap.law.cdf(0.0) == pytest.approx(0.5, abs=0.001)
    assert found.gap.law.expected_s() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    "truth",
    [
        GeometricCount(mean=30.0, max=2000),
        LognormalCount(mean=500.0, cv=1.2, min=1, max=50_000),
        ConstantCount(value=64),
        EmpiricalCount(probabilities=(0.0, 0.5, 0.51, 1.0), values=(10, 20, 1000, 1100)),
    ],
)
def test_a_known_law_of_counts_is_found_again(truth):
    sample = count_sampler(truth)
    us = np.random.default_rng(3).permutation((np.arange(3000) + 0.5) / 3000)
    found = fit_counts("prompt_tokens", "in", np.array([float(sample(u)) for u in us]))
    assert found.law.law == truth.law
    assert found.fitted == pytest.approx(found.measured, rel=0.05)
    assert quantiles(found.law, np.array([0.25, 0.75])) == pytest.approx([sample(0.25), sample(0.75)], rel=0.06)


def test_few_requests_say_so_and_nothing_larger_is_drawn():
    found = fit_counts("prompt_tokens", "in", np.arange(40.0) ** 2 + 1)
    assert any("too few for a tail" in remark for remark in found.remarks)
    assert count_sampler(found.law)(1 - 1e-12) <= 39**2 + 1
    assert math.isnan(found.held_out_error[2])


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([5, 0, 3, 4, 5, 6], ["is not above 0 in 1 of 6 rows (line 3)", "refused requests"]),
        ([5, "x", 3, 4, 5, 6], ["missing or not a number", "line 3"]),
        ([5, 2.5, 3, 4, 5, 6], ["not a whole number"]),
        ([5, 2_000_000, 3, 4, 5, 6], ["above 1,000,000"]),
    ],
)
def test_wrong_token_counts_are_named(tmp_path, prompts, words):
    path = requests(tmp_path, range(len(prompts)), prompts)
    with pytest.raises(DataError) as caught:
        read_requests(path, RequestColumns(input_tokens="in"))
    for word in [str(path), "in", *words]:
        assert word in str(caught.value)


def test_times_that_cannot_be_read_are_named(tmp_path):
    path = requests(tmp_path, [*range(5), "soon", 7, 8])
    with pytest.raises(DataError, match=r"missing or not a time in 1 of 8 rows \(line 7\)"):
        read_requests(path, RequestColumns(arrival="at"))
    path = requests(tmp_path, ["soon"] * 8)
    with pytest.raises(DataError, match="since 1970"):
        read_requests(path, RequestColumns(arrival="at"))
    path = requests(tmp_path, ["2026-01-01"] * 8)
    with pytest.raises(DataError, match="instants of their own"):
        read_requests(path, RequestColumns(arrival="at"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--duration"),
        ({"duration": "at"}, "--by"),
        ({"duration": "at", "by": "in", "arrival": "at"}, "does not go with --arrival"),
    ],
)
def test_a_file_is_of_steps_or_of_requests(tmp_path, given, words):
    with pytest.raises(ConfigError, match=words):
        harness.calibrate(requests(tmp_path, range(9)), base=BASE, out=tmp_path / "o.toml", **given)
