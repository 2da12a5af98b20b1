"""Keyed vectors: equal to fresh generators, and independent of the order of draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.seeds import derive_key
from harness.costs.draws import HANG_NS, Uniforms, duration_ns, uniforms
from harness.costs.laws import Constant, sampler

SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)
keys = st.tuples(st.sampled_from(["episode", "retry", "train"]), st.lists(st.integers(0, 2**40), min_size=1, max_size=4))


@SETTINGS
@given(st.integers(0, 2**62 - 1), st.lists(st.tuples(keys, st.integers(0, 9)), min_size=1, max_size=8))
def test_a_reset_generator_gives_what_a_fresh_one_gives(seed, asked):
    reused = Uniforms(seed)
    for (purpose, ids), n in asked:
        fresh = np.random.Generator(np.random.Philox(key=derive_key(seed, purpose, *ids))).random(n)
        assert reused.draw(n, purpose, *ids).tolist() == fresh.tolist() == uniforms(seed, purpose, *ids, n=n).tolist()


@SETTINGS
@given(st.integers(0, 100), keys, st.integers(1, 50), st.integers(0, 50))
def test_a_longer_vector_starts_with_the_shorter_one(seed, key, n, more):
    purpose, ids = key
    draws = Uniforms(seed)
    assert draws.draw(n + more, purpose, *ids)[:n].tolist() == draws.draw(n, purpose, *ids).tolist()


def test_seed_purpose_and_every_id_matter():
    vectors = [
        tuple(uniforms(seed, purpose, *ids, n=2))
        for seed in (0, 1)
        for purpose in ("a", "b")
        for ids in ((1, 2), (2, 1), (1, 3), (1,), (1, 2, 0))
    ]
    assert len(set(vectors)) == len(vectors)


def test_durations_are_whole_nanoseconds_below_a_hang():
    assert duration_ns(sampler(Constant(value_s=1.5)), 0.3) == 1_500_000_000
    assert duration_ns(sampler(Constant(value_s=1e15)), 0.3) == HANG_NS
    assert HANG_NS * 8 < 2**63
