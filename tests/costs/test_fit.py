"""Fits find the law that made the data, and say what they cannot know."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.costs.fit import FEW_ROWS, find_atoms, fit
from harness.costs.laws import Constant, Empirical, Exponential, Lognormal, Mixture

GRID = (np.arange(2000) + 0.5) / 2000


def shuffled(values, seed=0):
    return np.random.default_rng(seed).permutation(np.asarray(values, float))


@pytest.mark.parametrize("law", [Exponential(mean_s=12.0), Lognormal(mu=1.5, sigma=0.7), Lognormal(mu=-2.0, sigma=0.3)])
def test_a_known_law_is_found_again(law):
    found = fit(shuffled(law.quantile(GRID)))
    assert found.law.law == law.law
    assert found.fitted_s == pytest.approx([law.quantile(p) for p in (0.5, 0.9, 0.99)], rel=0.03)
    assert found.measured_s == pytest.approx([law.quantile(p) for p in (0.5, 0.9, 0.99)], rel=0.03)
    assert found.held_out_error[0] < 0.1
    assert found.held_out_error[1] < 0.15


def test_body_and_tail_are_found():
    truth = Mixture.model_validate(
        {
            "parts": [
                {"weight": 0.9, "of": {"law": "lognormal", "mu": 0.0, "sigma": 0.3}},
                {"weight": 0.1, "of": {"law": "lognormal", "mu": 3.0, "sigma": 0.5}},
            ]
        }
    )
    found = fit(shuffled(truth.quantile(GRID)))
    assert isinstance(found.law, Mixture)
    assert found.fitted_s == pytest.approx([truth.quantile(p) for p in (0.5, 0.9, 0.99)], rel=0.1)
    assert found.law.expected_s() == pytest.approx(truth.expected_s(), rel=0.05)


def test_time_limits_become_atoms_with_their_share():
    body = Lognormal(mu=4.0, sigma=0.8).quantile((np.arange(1500) + 0.5) / 1500)
    values = shuffled(np.concatenate([body, np.full(400, 300.0), np.full(100, 600.0)]))
    assert find_atoms(values) == {300.0: 400, 600.0: 100}
    found = fit(values)
    assert isinstance(found.law, Mixture)
    assert {atom.at_s: atom.weight for atom in found.law.atoms} == pytest.approx({300.0: 0.2, 600.0: 0.05})
    assert sum(part.weight for part in found.law.parts) + 0.25 == pytest.approx(1)
    assert any("piles up at 300 s" in remark for remark in found.remarks)
    assert found.fitted_s[2] == 600.0


def test_a_clock_that_rounds_makes_no_atoms():
    assert find_atoms(np.round(Lognormal(mu=2.0, sigma=0.5).quantile(GRID))) == {}
    assert find_atoms(np.full(50, 3.0)) == {}


def test_always_the_same_is_a_constant():
    found = fit(np.full(600, 2.5))
    assert isinstance(found.law, Constant)
    assert found.law.value_s == 2.5
    assert found.held_out_error == pytest.approx((0, 0, 0))


@pytest.mark.parametrize("rows", [2, 7, 40, FEW_ROWS - 1])
def test_few_rows_get_a_simple_law_and_a_remark(rows):
    found = fit(shuffled(Lognormal(mu=1.0, sigma=0.6).quantile((np.arange(rows) + 0.5) / rows)))
    assert any(f"{rows} rows: too few for a tail" in remark for remark in found.remarks)
    longest = Lognormal(mu=1.0, sigma=0.6).quantile((rows - 0.5) / rows)
    assert found.law.quantile(1 - 1e-15) <= longest * (1 + 1e-5)  # nothing is drawn that was not seen
    assert math.isnan(found.held_out_error[2])


def test_what_fits_no_family_is_kept_as_quantiles():
    values = np.concatenate([np.linspace(1, 2, 700), np.linspace(50, 52, 700), np.linspace(300, 310, 600)])
    found = fit(shuffled(values))
    assert isinstance(found.law, Empirical)
    assert found.fitted_s == pytest.approx(found.measured_s, rel=0.02)


def test_rows_are_held_out_by_run():
    """Runs that differ: the error must show it. A split at random would have hidden it."""
    runs = np.repeat(np.arange(6), 100)
    rng = np.random.default_rng(1)
    values = np.exp(rng.normal(0, 0.05, 600) + np.where(runs % 2, 0.5, -0.5))
    by_run = fit(values, runs)
    mixed = fit(shuffled(values))
    assert by_run.split == "6 runs in 5 parts"
    assert "blocks in the order" in mixed.split
    assert by_run.held_out_error[0] > 0.3
    assert mixed.held_out_error[1] < 0.1


def test_a_fitted_tail_ends_at_a_multiple_of_what_was_seen():
    values = shuffled(Lognormal(mu=1.0, sigma=1.5).quantile(GRID))
    assert fit(values).law.quantile(1 - 1e-15) <= 2 * values.max() * (1 + 1e-5)


def test_nothing_goes_beyond_a_limit_that_nothing_has_passed():
    """What was cut at 60 s is an atom there; the law of the rest ends there, or the limit would be counted twice."""
    whole = Lognormal(mu=2.5, sigma=1.2).quantile(GRID)
    cut = np.minimum(whole, 60.0)
    law = fit(cut).law
    assert law.cdf(60.0) == pytest.approx(1.0, abs=1e-9)
    assert 1 - law.cdf(59.999) == pytest.approx(float((cut == 60.0).mean()), abs=2e-3)


def test_an_atom_below_longer_rows_cuts_nothing():
    whole = Lognormal(mu=2.5, sigma=1.2).quantile(GRID)
    law = fit(np.append(whole, np.full(400, 20.0))).law
    assert 1 - law.cdf(60.0) > 0.01
