from __future__ import annotations

import itertools
import struct
from hashlib import blake2b

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.core.seeds import Stream, derive_key

QUIET = settings(max_examples=200, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(-(2**63), 2**63 - 1)
IDS = st.lists(SEEDS, max_size=4).map(tuple)
PURPOSES = st.text("abcxyz/_", min_size=1, max_size=6)


def test_golden_values():
    """They are part of the product: other values would change every simulated run."""
    assert derive_key(0, "tool") == 0x2506BDCEA744A516B8D17028EBDF4CB6
    assert derive_key(7, "tool", 1, -2) == 0x1E8673F8134CC7668F2F5CCEB2FAF3ED
    stream = Stream(derive_key(7, "tool", 1, -2))
    assert [stream.random() for _ in range(3)] == [0.6827974081892504, 0.018457130759373053, 0.8339458974656783]
    assert stream.below(1000) == 639


def test_the_generator_is_splitmix64():
    """First outputs for state 1234567, published with the algorithm's reference implementations; a double keeps 53 bits."""
    stream = Stream(1234567)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [int(stream.random() * 2**53) for _ in published] == [value >> 11 for value in published]


@QUIET
@given(SEEDS, PURPOSES, IDS)
def test_a_key_is_the_hash_of_its_parts(seed, purpose, ids):
    packed = b"".join(struct.pack("<q", number) for number in (seed, *ids)) + purpose.encode()
    assert derive_key(seed, purpose, *ids) == int.from_bytes(blake2b(packed, digest_size=16).digest(), "little")


@QUIET
@given(st.tuples(SEEDS, PURPOSES, IDS), st.tuples(SEEDS, PURPOSES, IDS))
def test_different_draws_have_different_keys(left, right):
    assume(left != right)
    assert derive_key(left[0], left[1], *left[2]) != derive_key(right[0], right[1], *right[2])


def test_neighbouring_ids_are_unrelated():
    """First draws of 20,000 neighbouring ids: uniform by a chi-squared test, and uncorrelated with the next id's."""
    draws = [Stream(derive_key(0, "purpose", task)).random() for task in range(20_000)]
    cells = [0] * 50
    for draw in draws:
        cells[int(draw * 50)] += 1
    chi_squared = sum((cell - 400) ** 2 / 400 for cell in cells)
    assert 23.98 < chi_squared < 85.35  # 0.1 % and 99.9 % points with 49 degrees of freedom
    covariance = sum((a - 0.5) * (b - 0.5) for a, b in itertools.pairwise(draws)) / len(draws)
    assert abs(covariance * 12) < 4 / 20_000**0.5


def test_a_stream_is_uniform():
    stream = Stream(derive_key(3, "one stream"))
    draws = [stream.random() for _ in range(50_000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert sum(draws) / 50_000 == pytest.approx(0.5, abs=4 * 12**-0.5 / 50_000**0.5)
    assert sum(draw * draw for draw in draws) / 50_000 == pytest.approx(1 / 3, abs=4 * (4 / 45) ** 0.5 / 50_000**0.5)


@QUIET
@given(SEEDS, st.integers(1, 10**6))
def test_below_stays_below(seed, bound):
    stream = Stream(derive_key(seed, "below"))
    assert all(0 <= stream.below(bound) < bound for _ in range(20))


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 1.5, "1"])
def test_ids_are_signed_64_bit_integers(bad):
    with pytest.raises(struct.error):
        derive_key(0, "purpose", bad)
