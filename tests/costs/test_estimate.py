"""Estimators give back the parameters of the law that made the sample."""

from __future__ import annotations

import numpy as np
import pytest

from harness.costs import estimate
from harness.costs.fit import fit
from harness.costs.laws import BodyTail, Exponential, Gamma, Lognormal, Mixture
from harness.costs.pareto import Pareto

GRID = (np.arange(4000) + 0.5) / 4000


def sample(law) -> np.ndarray:
    return np.sort(law.quantile(GRID))


@pytest.mark.parametrize(("shape", "mean_s"), [(0.3, 5.0), (2.5, 0.01), (40.0, 300.0)])
def test_gamma_parameters_come_back(shape, mean_s):
    found = estimate.gamma(sample(Gamma(shape=shape, mean_s=mean_s)))
    assert isinstance(found, Gamma)
    assert (found.shape, found.mean_s) == pytest.approx((shape, mean_s), rel=0.03)


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.4])
def test_a_pareto_tail_comes_back_with_its_body(shape):
    truth = BodyTail(
        body=Lognormal(mu=1.0, sigma=0.5), threshold_s=5.159, tail=Pareto(shape=shape, scale_s=4.0), tail_weight=0.1, max_s=1e4
    )
    values = sample(truth)
    found = estimate.body_tail(values, "lognormal", "pareto")
    assert isinstance(found, BodyTail)
    assert isinstance(found.tail, Pareto)
    assert found.threshold_s == pytest.approx(5.159, rel=0.01)
    assert found.tail.shape == pytest.approx(shape, abs=0.08)
    assert found.tail.scale_s == pytest.approx(4.0, rel=0.08)
    assert (found.body.mu, found.body.sigma) == pytest.approx((1.0, 0.5), abs=0.02)
    assert found.max_s == pytest.approx(2 * values[-1], rel=1e-5)


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 1.0), (2.0, 0.4)])
def test_a_lognormal_tail_is_that_of_the_whole_law(mu, sigma):
    values = sample(Lognormal(mu=mu, sigma=sigma))
    found = estimate.body_tail(values, "lognormal", "lognormal")
    assert isinstance(found, BodyTail)
    for p in (0.2, 0.5, 0.95, 0.995):
        assert found.quantile(p) == pytest.approx(Lognormal(mu=mu, sigma=sigma).quantile(p), rel=0.03)


def test_the_body_is_not_bent_by_the_tail():
    """With the tail a hundred times further out, the body is found the same."""
    body = sample(Exponential(mean_s=2.0))
    cut = np.quantile(body, 0.9)
    far = np.where(body > cut, cut + (body - cut) * 100, body)
    near, bent = (estimate.body_tail(np.sort(values), "exponential", "pareto") for values in (body, far))
    assert isinstance(near, BodyTail)
    assert isinstance(bent, BodyTail)
    assert isinstance(bent.body, Exponential)
    assert bent.body.mean_s == pytest.approx(2.0, rel=0.02)
    assert near.body.mean_s == pytest.approx(bent.body.mean_s, rel=0.01)


def test_too_few_rows_or_no_spread_give_no_tail():
    assert estimate.body_tail(sample(Exponential(mean_s=1.0))[:200], "exponential", "pareto") is None
    assert estimate.body_tail(np.full(1000, 2.0), "lognormal", "pareto") is None


def test_heavier_than_any_lognormal_is_no_lognormal_tail():
    values = np.sort(1 / (1 - GRID))
    assert estimate.body_tail(values, "lognormal", "lognormal") is None
    assert estimate.body_tail(values, "lognormal", "pareto") is not None


def test_a_tail_apart_is_chosen_where_there_is_one():
    truth = BodyTail(
        body=Lognormal(mu=0.0, sigma=0.3), threshold_s=1.47, tail=Pareto(shape=0.5, scale_s=3.0), tail_weight=0.1, max_s=500.0
    )
    values = np.random.default_rng(0).permutation(sample(truth))
    found = fit(values)
    # the simplest that is as good as the best: a tail of its own, in one of the two ways there are
    assert isinstance(found.law, BodyTail | Mixture)
    assert found.law.quantile(0.995) == pytest.approx(truth.quantile(0.995), rel=0.15)
    losses = {tried.name: tried.loss for tried in found.trials}
    assert losses["lognormal"] > 1.1 * losses[found.chosen]


def test_thinning_keeps_the_law():
    values = np.sort(np.random.default_rng(1).lognormal(0.0, 1.0, 100_000))
    few = estimate.thinned(values)
    assert len(few) == estimate.EM_ROWS
    assert np.quantile(few, [0.1, 0.5, 0.99]) == pytest.approx(np.quantile(values, [0.1, 0.5, 0.99]), rel=0.01)


def test_quantiles_beyond_one_in_a_thousand_are_kept_where_rows_bear_them():
    assert estimate.empirical_levels(100)[-2:] == (0.999, 1.0)
    assert estimate.empirical_levels(10_000)[-2:] == (0.9995, 1.0)
    assert estimate.empirical_levels(1_000_000)[-2:] == (0.99999, 1.0)
