"""Laws of durations against slow obvious models: numeric integration of the quantile function, and bisection of the CDF."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.special import gammainc, gammaincinv

from harness.costs.laws import (
    AnyLaw,
    BodyTail,
    Constant,
    Empirical,
    Exponential,
    Gamma,
    Law,
    Lognormal,
    Mixture,
    Normal,
    Pareto,
    mixture_sampler,
    sampler,
)

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
ADAPTER: TypeAdapter[AnyLaw] = TypeAdapter(Law)

uniform = st.floats(0, 1, exclude_max=True)
positive = st.floats(0.01, 1000)
maybe = st.none() | st.floats(0.5, 5000)


@st.composite
def lognormals(draw):
    mu, sigma = draw(st.floats(-3, 6)), draw(st.floats(0.05, 1.5))
    cut = draw(st.none() | st.floats(-3, 5))
    return Lognormal(mu=mu, sigma=sigma, max_s=None if cut is None else math.exp(mu + cut * sigma))


@st.composite
def empiricals(draw):
    steps = draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    levels = np.cumsum([0, *steps]) / sum(steps)
    values = np.cumsum(draw(st.lists(st.floats(0, 50), min_size=len(levels), max_size=len(levels))))
    return Empirical(probabilities=(*tuple(levels.tolist()[:-1]), 1.0), values_s=tuple(values.tolist()))


exponentials = st.builds(Exponential, mean_s=positive, max_s=maybe)
constants = st.builds(Constant, value_s=st.floats(0, 1000))
normals = st.builds(lambda sd, z: Normal(mean_s=z * sd, sd_s=sd), st.floats(0.01, 100), st.floats(-3, 12))


@st.composite
def gammas(draw):
    shape, mean_s, cut = draw(st.floats(0.1, 100)), draw(positive), draw(st.none() | st.floats(0.01, 0.999))
    free = Gamma(shape=shape, mean_s=mean_s)
    return free if cut is None else free.model_copy(update={"max_s": free.quantile(cut)})


@st.composite
def body_tails(draw):
    body = draw(
        st.builds(Exponential, mean_s=positive)
        | st.builds(Lognormal, mu=st.floats(-2, 4), sigma=st.floats(0.2, 1.5))
        | st.builds(Gamma, shape=st.floats(0.2, 20), mean_s=positive)
    )
    threshold_s = body.quantile(draw(st.floats(0.3, 0.99)))
    if draw(st.booleans()):
        tail = Pareto(shape=draw(st.floats(-0.5, 0.3)), scale_s=threshold_s * draw(st.floats(0.1, 3)))
    else:
        tail = Lognormal(mu=math.log(threshold_s) + draw(st.floats(-1.5, 1)), sigma=draw(st.floats(0.3, 1.5)))
    max_s = draw(st.none() | st.floats(1.1, 100).map(lambda times: times * threshold_s))
    return BodyTail(
        body=body, threshold_s=threshold_s, tail=tail, tail_weight=draw(st.none() | st.floats(0.01, 0.6)), max_s=max_s
    )


simple = lognormals() | exponentials | constants | empiricals() | normals | gammas() | body_tails()


@st.composite
def mixtures(draw):
    laws = draw(st.lists(simple, min_size=0, max_size=3))
    atoms = draw(st.lists(st.floats(0, 1000), min_size=0 if laws else 1, max_size=3))
    shares = draw(st.lists(st.integers(1, 9), min_size=len(laws) + len(atoms), max_size=len(laws) + len(atoms)))
    weights = [share / sum(shares) for share in shares]
    return Mixture.model_validate(
        {
            "parts": [{"weight": w, "of": law} for w, law in zip(weights, laws, strict=False)],
            "atoms": [{"at_s": at, "weight": w} for w, at in zip(weights[len(laws) :], atoms, strict=True)],
        }
    )


laws = simple | mixtures()


@SETTINGS
@given(laws, st.lists(uniform, min_size=2, max_size=12))
def test_durations_rise_with_the_uniform_and_are_finite(law, us):
    drawn = [law.quantile(u) for u in sorted(us)]
    assert drawn == sorted(drawn)
    assert all(math.isfinite(x) and x >= 0 for x in drawn)


@SETTINGS
@given(laws, st.lists(uniform, min_size=1, max_size=12))
def test_a_vector_is_its_scalars_to_the_last_bit(law, us):
    assert law.quantile(np.array(us)).tolist() == [law.quantile(u) for u in us]
    assert law.quantile(np.array([us, us])).shape == (2, len(us))


@SETTINGS
@given(laws, st.floats(1e-6, 1 - 1e-6))
def test_the_quantile_is_where_the_distribution_function_passes_the_level(law, u):
    x = law.quantile(u)
    assert law.cdf(x * (1 + 1e-3) + 1e-9) >= u - 1e-9
    assert law.cdf(x * (1 - 1e-3) - 1e-9) <= u + 1e-9


@settings(max_examples=30, deadline=None, derandomize=True)
@given(simple | mixtures())
def test_moments_are_those_of_the_quantile_function(law):
    """The slow obvious mean: the quantile function, integrated by midpoints that thicken towards both ends."""
    z = np.linspace(-18, 18, 6001)
    edges = 1 / (1 + np.exp(-z))
    widths = np.diff(np.concatenate([[0.0], (edges[1:] + edges[:-1]) / 2, [1.0]]))
    values = law.quantile(edges)
    mean, square = float(values @ widths), float(values**2 @ widths)
    assert law.expected_s() == pytest.approx(mean, rel=5e-3, abs=1e-9)
    assert law.second_moment_s2() == pytest.approx(square, rel=3e-2, abs=1e-9)


def test_coefficient_of_variation():
    assert Constant(value_s=3.0).cv == 0
    assert Constant(value_s=0.0).cv == 0
    assert Exponential(mean_s=7.0).cv == pytest.approx(1)
    assert Lognormal(mu=1.0, sigma=0.5).cv == pytest.approx(math.sqrt(math.exp(0.25) - 1))


@SETTINGS
@given(lognormals() | exponentials, st.floats(1e-9, 1 - 1e-9))
def test_truncation_conditions_and_leaves_no_heap(law, u):
    if law.max_s is None:
        return
    free = law.model_copy(update={"max_s": None})
    assert law.quantile(u) <= law.max_s
    assert law.quantile(u) == pytest.approx(free.quantile(u * law.mass), rel=1e-6, abs=1e-9)


@SETTINGS
@given(normals, st.integers(0, 2**32))
def test_a_truncated_normal_is_the_normal_drawn_again_while_it_is_negative(law, seed):
    drawn = np.random.default_rng(seed).normal(law.mean_s, law.sd_s, 20_000)
    kept = drawn[drawn >= 0]
    if len(kept) >= 200:
        at = float(np.median(kept))
        assert law.cdf(at) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(len(kept)))


@SETTINGS
@given(mixtures())
def test_atoms_are_hit_exactly_and_as_often_as_they_weigh(law):
    us = (np.arange(4000) + 0.5) / 4000
    drawn = law.quantile(us)
    for atom in law.atoms:
        weight = sum(other.weight for other in law.atoms if other.at_s == atom.at_s)
        constant = sum(p.weight for p in law.parts if isinstance(p.of, Constant) and p.of.value_s == atom.at_s)
        assert (drawn == atom.at_s).mean() >= weight + constant - 2e-3


def test_a_fine_mixture_is_within_a_thousandth_of_bisection():
    law = Mixture.model_validate(
        {
            "parts": [
                {"weight": 0.6, "of": {"law": "lognormal", "mu": 2.36, "sigma": 1.45}},
                {"weight": 0.3, "of": {"law": "exponential", "mean_s": 3.0}},
            ],
            "atoms": [{"at_s": 60.0, "weight": 0.1}],
        }
    )
    coarse = mixture_sampler(law, knots=160)
    for u in (0.001, 0.1, 0.5, 0.9, 0.99, 0.9999):
        low, high = 0.0, 1e6
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if law.cdf(middle) < u else (low, middle)
        assert law.quantile(u) == pytest.approx(high, rel=1e-3)
        assert coarse(u) == pytest.approx(high, rel=1e-2)


@pytest.mark.parametrize("shape", [0.02, 0.1, 0.5, 1.0, 2.0, 7.5, 40.0, 600.0])
def test_the_gamma_law_is_scipys_to_a_billionth(shape):
    levels = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 801), 10.0 ** -np.arange(1, 16), 1 - 10.0 ** -np.arange(1, 15)])
    expected = gammaincinv(shape, levels)
    seen = expected > 1e-250  # where a double holds all its digits
    drawn = Gamma(shape=shape, mean_s=shape).quantile(levels)
    assert drawn[seen] == pytest.approx(expected[seen], rel=1e-9, abs=0)
    at = np.array([0.01, 0.3, 0.9, 1.0, 1.1, 3.0]) * shape
    assert [Gamma(shape=shape, mean_s=shape).cdf(x) for x in at] == pytest.approx(gammainc(shape, at), rel=1e-11, abs=1e-300)
    fine = Gamma(shape=shape, mean_s=3.0).quantile(np.linspace(0, 1, 20_001)[:-1])
    assert (np.diff(fine) >= 0).all()


def test_a_gamma_law_of_shape_one_is_exponential():
    levels = np.linspace(0.001, 0.999, 500)
    for max_s in (None, 5.0):
        one, other = Gamma(shape=1.0, mean_s=2.0, max_s=max_s), Exponential(mean_s=2.0, max_s=max_s)
        assert one.quantile(levels) == pytest.approx(other.quantile(levels), rel=1e-9)
        assert (one.expected_s(), one.cv) == pytest.approx((other.expected_s(), other.cv), rel=1e-12)
    assert Gamma(shape=16.0, mean_s=5.0).cv == pytest.approx(0.25)


@SETTINGS
@given(body_tails())
def test_body_and_tail_meet_at_the_threshold_without_a_jump(law):
    at, share = law.threshold_s, law.tail_share
    assert law.cdf(at) == pytest.approx(1 - share, rel=1e-9)
    assert law.cdf(at * (1 + 1e-12)) == pytest.approx(law.cdf(at), abs=1e-9)
    below, above = law.quantile(np.array([(1 - share) * (1 - 1e-9), 1 - share * (1 - 1e-9)]))
    assert below == pytest.approx(at, rel=1e-4)
    assert above == pytest.approx(at, rel=1e-4)
    if law.max_s is None and law.tail_weight is None:  # the body's own quantiles up to the threshold
        levels = np.linspace(0.01, 0.99, 20) * (1 - share)
        assert law.quantile(levels) == pytest.approx(law.body.quantile(levels), rel=1e-9)


def test_heavy_tails_without_a_mean_are_refused_and_without_a_variance_say_so():
    body = {"law": "lognormal", "mu": 1.0, "sigma": 1.0}

    def law(shape, **more):
        tail = {"law": "pareto", "shape": shape, "scale_s": 5.0}
        return ADAPTER.validate_python({"law": "body_tail", "body": body, "threshold_s": 10.0, "tail": tail, **more})

    with pytest.raises(ValidationError, match="no finite mean"):
        law(1.0)
    assert math.isfinite(law(1.0, max_s=1e6).expected_s())
    assert math.isfinite(law(0.6).expected_s())
    assert law(0.6).cv == math.inf
    assert math.isfinite(law(0.6, max_s=1e6).cv)
    mixed = Mixture.model_validate({"parts": [{"weight": 0.9, "of": law(0.6)}], "atoms": [{"at_s": 60.0, "weight": 0.1}]})
    assert mixed.cv == math.inf
    assert mixed.expected_s() == pytest.approx(0.9 * law(0.6).expected_s() + 6.0)


@pytest.mark.parametrize(
    "text", ["exponential", "lognormal", "normal", "mixture", "empirical", "constant", "gamma", "body_tail"]
)
def test_laws_are_told_apart_by_name(text):
    fields = {
        "exponential": {"mean_s": 2},
        "lognormal": {"mu": 1, "sigma": 0.5},
        "normal": {"mean_s": 10, "sd_s": 3},
        "mixture": {"atoms": [{"at_s": 5, "weight": 1}]},
        "empirical": {"probabilities": [0, 1], "values_s": [1, 2]},
        "constant": {"value_s": 3},
        "gamma": {"shape": 2, "mean_s": 3},
        "body_tail": {
            "body": {"law": "gamma", "shape": 2, "mean_s": 3},
            "threshold_s": 5,
            "tail": {"law": "pareto", "shape": 0.2, "scale_s": 4},
        },
    }[text]
    law = ADAPTER.validate_python({"law": text, **fields})
    assert law.law == text
    assert pickle.loads(pickle.dumps(law)) == law
    assert sampler(law) is sampler(pickle.loads(pickle.dumps(law)))


EXPONENTIAL = {"law": "exponential", "mean_s": 3.0}
PARETO = {"law": "pareto", "shape": 0.2, "scale_s": 4.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"law": "exponential", "mean_s": 0},
        {"law": "exponential", "mean_s": -1},
        {"law": "exponential", "mean_s": math.nan},
        {"law": "exponential", "mean_s": math.inf},
        {"law": "exponential", "mean_s": "3"},
        {"law": "exponential", "mean_s": True},
        {"law": "exponential", "mean_ms": 3},
        {"law": "lognormal", "mu": 1.0, "sigma": 0},
        {"law": "lognormal", "mu": 8.0, "sigma": 0.5, "max_s": 30.0},
        {"law": "normal", "mean_s": 10.0, "sd_s": 0},
        {"law": "normal", "mean_s": -10.0, "sd_s": 1.0},
        {"law": "constant", "value_s": -0.1},
        {"law": "mixture", "atoms": [{"at_s": 1, "weight": 0.5}]},
        {"law": "mixture"},
        {"law": "mixture", "parts": [{"weight": 1.0, "of": {"law": "mixture", "atoms": [{"at_s": 1, "weight": 1}]}}]},
        {"law": "empirical", "probabilities": [0, 0.5], "values_s": [1, 2]},
        {"law": "empirical", "probabilities": [0, 1], "values_s": [2, 1]},
        {"law": "empirical", "probabilities": [0, 0.5, 0.5, 1], "values_s": [1, 2, 3, 4]},
        {"law": "empirical", "probabilities": [0, 1], "values_s": [1, 2, 3]},
        {"law": "weibull", "k": 1},
        {"law": "gamma", "shape": 0, "mean_s": 1},
        {"law": "gamma", "shape": 50.0, "mean_s": 100.0, "max_s": 1.0},
        {"law": "gamma", "shape": 2.0},
        {"law": "body_tail", "body": EXPONENTIAL, "threshold_s": 5.0},
        {"law": "body_tail", "body": EXPONENTIAL, "threshold_s": 5.0, "tail": PARETO, "max_s": 5.0},
        {"law": "body_tail", "body": EXPONENTIAL, "threshold_s": 1e-9, "tail": PARETO},
        {"law": "body_tail", "body": EXPONENTIAL, "threshold_s": 1e9, "tail": PARETO},
        {"law": "body_tail", "body": EXPONENTIAL | {"max_s": 9.0}, "threshold_s": 5.0, "tail": PARETO},
        {"law": "body_tail", "body": EXPONENTIAL, "threshold_s": 5.0, "tail": {"law": "lognormal", "mu": -20.0, "sigma": 0.5}},
    ],
)
def test_what_is_no_law_is_refused(wrong):
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(wrong)
