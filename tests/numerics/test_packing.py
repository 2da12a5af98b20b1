"""Packing: every prediction exactly once, in its row, behind its own context; few shapes; little padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import ConfigError
from pipeline.numerics.packing import bucket_shapes, first_fit_decreasing, pack, split_rows

MAX = 32
SHAPES = bucket_shapes(MAX, 128)


def sequence(number, trained, rng):
    n = len(trained)
    return {
        "id": number,
        "tokens": rng.integers(1, 1000, n).tolist(),
        "trained": list(trained),
        "log_probs": rng.normal(-1, 0.1, n).tolist(),
        "advantage": float(number + 1),
    }


@st.composite
def ragged(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    lengths = draw(st.lists(st.integers(1, MAX), max_size=40))
    return [sequence(number, rng.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0])), rng) for number, n in enumerate(lengths)]


def predictions(packed):
    """Everything that is trained on: (sequence, position, context's last token, target, log-probability, advantage)."""
    return sorted(
        (int(batch.ids[at]), *(int(field[at]) for field in (a.positions, a.tokens, a.targets)), float(a.sampled[at]),
         float(a.advantages[at]))
        for batch in packed.batches
        for a in [batch.arrays]
        for at in zip(*np.nonzero(a.weights), strict=True)
    )  # fmt: skip


def wanted(sequences):
    return sorted(
        (s["id"], i - 1, s["tokens"][i - 1], s["tokens"][i], float(np.float32(s["log_probs"][i])), s["advantage"])
        for s in sequences
        for i in range(1, len(s["tokens"]))
        if s["trained"][i]
    )


@given(ragged())
def test_every_trained_token_is_predicted_once_from_its_own_predecessor_and_the_first_never(sequences):
    assert predictions(pack(sequences, SHAPES)) == wanted(sequences)


@given(ragged())
def test_a_sequence_lies_whole_in_one_row_under_a_number_of_its_own(sequences):
    places = {}
    for index, batch in enumerate(pack(sequences, SHAPES).batches):
        for row in range(batch.ids.shape[0]):
            segments = batch.arrays.segments[row]
            for number in np.unique(segments[segments > 0]):
                (where,) = np.nonzero(segments == number)
                (owner,) = set(batch.ids[row, where].tolist())
                assert owner not in places, "a sequence lies in two places"
                places[owner] = (index, row)
                assert where.tolist() == list(range(where[0], where[-1] + 1))
                assert batch.arrays.positions[row, where].tolist() == list(range(len(where)))
                assert batch.arrays.tokens[row, where].tolist() == sequences[owner]["tokens"][: len(where)]
    assert set(places) == {s["id"] for s in sequences if any(s["trained"][1:])}


@given(ragged())
def test_padding_is_all_nought_and_counted(sequences):
    packed = pack(sequences, SHAPES)
    tokens = slots = 0
    for batch in packed.batches:
        nothing = batch.ids < 0
        tokens += int((~nothing).sum())
        slots += nothing.size
        assert not any(array[nothing].any() for array in batch.arrays)
    assert (packed.tokens, packed.slots) == (tokens, slots)
    assert packed.utilisation == (tokens / slots if slots else 1.0)


@given(ragged())
def test_micro_batches_have_one_of_the_shapes(sequences):
    assert {batch.ids.shape for batch in pack(sequences, SHAPES).batches} <= set(SHAPES)


@given(ragged())
def test_a_mean_over_sequences_gives_each_the_same_weight(sequences):
    sums = dict.fromkeys([s["id"] for s in sequences if any(s["trained"][1:])], 0.0)
    for batch in pack(sequences, SHAPES, mean="sequence").batches:
        for owner, weight in zip(batch.ids.ravel(), batch.arrays.weights.ravel(), strict=True):
            if weight:
                sums[int(owner)] += float(weight)
    assert all(total == pytest.approx(1.0, rel=1e-5) for total in sums.values())


@given(st.lists(st.integers(1, 100), max_size=60))
def test_first_fit_decreasing_keeps_to_its_bound(lengths):
    rows = first_fit_decreasing(lengths, 100)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 100 for row in rows)
    half_full = sum(sum(lengths[i] for i in row) <= 50 for row in rows)
    assert half_full <= 1, "two such rows would have been one"


@given(st.integers(0, 200), st.sampled_from([(1,), (1, 4), (4, 16), (3, 12)]))
def test_rows_are_split_so_that_fewer_than_a_small_micro_batch_are_spare(count, sizes):
    parts = split_rows(count, sizes)
    assert set(parts) <= set(sizes)
    assert 0 <= sum(parts) - count < min(sizes)


def test_shapes_are_few_and_hold_the_longest_sequence():
    shapes = bucket_shapes(250, 4096)
    assert shapes == [(8, 128), (32, 128), (4, 256), (16, 256)]
    assert all(rows % 8 == 0 for rows, _ in bucket_shapes(250, 4096, rows_multiple=8))
    assert bucket_shapes(256, 8) == [(1, 128), (1, 256)]


def test_much_short_work_wastes_little():
    rng = np.random.default_rng(0)
    sequences = [sequence(i, [True] * int(n), rng) for i, n in enumerate(rng.integers(30, 120, 400))]
    assert pack(sequences, bucket_shapes(256, 4096)).utilisation > 0.85


def test_a_sequence_that_is_too_long_is_named_with_the_limit():
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError) as caught:
        pack([sequence(0, [True] * 40, rng)], SHAPES)
    assert "live.sampling.max_context_tokens" in str(caught.value)
    assert "40" in str(caught.value)
