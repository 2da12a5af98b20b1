"""Sampling: the right frequencies, the log-probability of what sampled, and keys that depend on the request alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from pipeline.numerics.sampling import request_key, sample, uniforms

DRAWS = 20_000
drawn = jax.jit(sample)


def numbers(rows, seed=1):
    key = np.array([request_key(seed, (0, 0, 0, 0))])
    return uniforms(key, jnp.arange(rows)[None])[0]


@pytest.mark.parametrize(("vocabulary", "temperature"), [(1, 1.0), (2, 1.0), (5, 0.5), (64, 1.0), (100, 2.0), (1000, 1.0)])
def test_tokens_come_as_often_as_their_probability_says(vocabulary, temperature):
    logits = np.random.default_rng(vocabulary).normal(size=vocabulary).astype(np.float32) * 2
    log_probs = np.asarray(jax.nn.log_softmax(logits / temperature))
    tokens, got = drawn(jnp.tile(logits, (DRAWS, 1)), numbers(DRAWS), jnp.full(DRAWS, temperature))
    np.testing.assert_allclose(got, log_probs[np.asarray(tokens)], atol=1e-5)
    expected = np.exp(log_probs.astype(np.float64)) * DRAWS
    counts = np.bincount(tokens, minlength=vocabulary)
    common = expected >= 5
    observed, expected = [np.append(of[common], max(of[~common].sum(), 1e-9)) for of in (counts, expected)]
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_temperature_zero_takes_the_likeliest_and_the_first_of_equals():
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 4, size=(500, 37)).astype(np.float32)
    tokens, log_probs = drawn(logits, numbers(500), jnp.zeros(500))
    best = logits.argmax(axis=1)
    np.testing.assert_array_equal(tokens, best)
    np.testing.assert_allclose(log_probs, np.asarray(jax.nn.log_softmax(logits))[np.arange(500), best], atol=1e-5)


def test_rows_of_a_batch_have_their_own_temperature():
    logits = jnp.tile(jnp.array([0.0, 1.0, 2.0, 3.0]), (2, 1))
    _, log_probs = drawn(logits, jnp.full((2, 2), 0.999), jnp.array([1.0, 0.25]))
    assert log_probs[1] > log_probs[0]


@pytest.mark.parametrize("edge", [0.0, 1.0 - 2**-23])
def test_a_token_that_cannot_be_is_never_drawn(edge):
    """At both ends of the uniform numbers, with most of the vocabulary ruled out."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(400, 50)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.9] = -np.inf
    logits[np.arange(400), rng.integers(0, 50, 400)] = 0.0
    tokens, log_probs = drawn(logits, jnp.full((400, 2), edge), jnp.ones(400))
    assert np.isfinite(logits[np.arange(400), tokens]).all()
    assert np.isfinite(log_probs).all()


def test_uniform_numbers_are_uniform_and_independent():
    keys = np.array([request_key(0, (task, 0, member, 0)) for task in range(50) for member in range(4)])
    u = np.asarray(uniforms(keys, jnp.tile(jnp.arange(50), (len(keys), 1))))
    assert u.shape == (200, 50, 2)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert kstest(u.ravel(), "uniform").pvalue > 1e-3
    flat = u.reshape(-1, 2)
    assert abs(np.corrcoef(flat[:, 0], flat[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(u[:, :-1, 0].ravel(), u[:, 1:, 0].ravel())[0, 1]) < 0.03
    assert len(np.unique(flat[:, 0])) > 0.99 * len(flat)


def test_a_key_depends_on_every_part_and_on_whole_numbers_of_64_bits():
    parts = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 1 << 40, 0, 0), (0, (1 << 40) + 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    keys = {tuple(request_key(seed, part).tolist()) for seed in (0, 1) for part in parts}
    assert len(keys) == 2 * len(parts)
    assert request_key(3, (1, 2, 3, 4)).dtype == np.uint32


def test_a_token_number_has_the_same_draw_wherever_its_chunk_begins():
    key = np.array([request_key(9, (4, 0, 1, 2))])
    whole = uniforms(key, jnp.arange(20)[None])
    later = uniforms(key, jnp.arange(13, 20)[None])
    np.testing.assert_array_equal(whole[:, 13:], later)
