"""Ragged sequences into rows of a few fixed shapes, so that nothing is padded much and nothing compiles anew.

A sequence of n tokens gives n - 1 predictions: the token at i predicts the one at i + 1. What stands behind its last trained
token predicts nothing that counts, and is cut. The pieces go into rows by first-fit decreasing (at most 11/9 of the fewest
rows, and 6/9 of a row; Dósa 2007), whole; a row holds several, told apart by `segments`. Rows are cut into micro-batches of a
handful of shapes (rows, row length).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


A = TypeVar("A")


class Arrays(NamedTuple, Generic[A]):
    """One micro-batch, in NumPy or on devices. All (rows, row length); zeros where there is no token.

    Attributes:
        tokens: int32, the token that stands here.
        targets: int32, the one that follows it in its sequence, which is predicted here.
        positions: int32, of the token in its sequence.
        segments: int32, number of its sequence in the row, from 1.
        weights: float32, weight of the prediction in the loss; 0 where it is not trained on.
        sampled: float32, log-probability of the target when it was sampled.
        advantages: float32, of the sequence.

    """

    tokens: A
    targets: A
    positions: A
    segments: A
    weights: A
    sampled: A
    advantages: A


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A packed micro-batch.

    Attributes:
        arrays: for the device.
        ids: (rows, row length) number of the sequence in the list that was packed; -1 is padding. Stays on the host.

    """

    arrays: Arrays[NDArray[Any]]
    ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """A list of sequences, packed.

    Attributes:
        batches: the micro-batches.
        tokens: input tokens in them, without padding.
        slots: places for tokens in them.

    """

    batches: list[MicroBatch]
    tokens: int
    slots: int

    @property
    def utilisation(self) -> float:
        """Share of places that hold a token."""
        return self.tokens / self.slots if self.slots else 1.0


class Shape(NamedTuple):
    """Shape of a micro-batch."""

    rows: int
    length: int


def bucket_shapes(max_tokens: int, micro_batch_tokens: int, *, rows_multiple: int = 1) -> list[Shape]:
    """Shapes that micro-batches may have: rows for the longest sequence and for half of it, whole and quarter micro-batches.

    Args:
        max_tokens: tokens of the longest sequence.
        micro_batch_tokens: tokens of a whole micro-batch; one row where that is less than a row.
        rows_multiple: rows are a multiple of it: devices that share the rows of a micro-batch.

    """
    longest = _up(max_tokens, 8)
    shapes = []
    for length in sorted({_up(longest // 2, 8), longest}):
        whole = max(micro_batch_tokens // length // rows_multiple, 1) * rows_multiple
        quarter = max(whole // 4 // rows_multiple, 1) * rows_multiple
        shapes += [Shape(rows, length) for rows in sorted({quarter, whole})]
    return shapes


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of indices: longest first, each into the first row that has room for it."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        need = lengths[index]
        row = next((number for number, free in enumerate(room) if free >= need), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(index)
        room[row] -= need
    return rows


def split_rows(count: int, sizes: Sequence[int]) -> list[int]:
    """Sizes of the micro-batches that hold `count` rows: whole ones, then small ones while they save anything."""
    small, whole = min(sizes), max(sizes)
    full, rest = divmod(count, whole)
    smalls = -(-rest // small)
    return [whole] * full + ([small] * smalls if smalls * small < whole else [whole])


def pack(sequences: Sequence[Mapping[str, Any]], shapes: Sequence[Shape], *, mean: str = "token") -> Packed:
    """Pack sequences into micro-batches.

    Args:
        sequences: each with `tokens`, `trained`, `log_probs` (one entry a token) and `advantage`. The first token is never
            trained on: nothing predicts it.
        shapes: that micro-batches may have.
        mean: what the loss is a mean over: every trained `token` weighs 1, or every `sequence` does.

    Raises:
        ConfigError: a sequence is longer than the longest row.

    """
    pieces = [_piece(sequence, mean) for sequence in sequences]
    lengths = [len(piece[0]) for piece in pieces]
    used = [index for index, length in enumerate(lengths) if length]
    if not used:
        return Packed([], 0, 0)
    length = _row_length(max(lengths), shapes)
    rows = first_fit_decreasing([lengths[index] for index in used], length)
    batches, start = [], 0
    for size in split_rows(len(rows), [shape.rows for shape in shapes if shape.length == length]):
        batches.append(_fill(pieces, [[used[i] for i in row] for row in rows[start : start + size]], Shape(size, length)))
        start += size
    return Packed(batches, sum(lengths), sum(batch.ids.size for batch in batches))


def _row_length(longest: int, shapes: Sequence[Shape]) -> int:
    fitting = [shape.length for shape in shapes if shape.length >= longest]
    if not fitting:
        raise ConfigError(
            "a sequence is longer than the learner's rows",
            field="live.sampling.max_context_tokens",
            value=longest + 1,
            allowed=f"at most {max(shape.length for shape in shapes)} tokens in an episode",
            remedy="raise it, or have the agent end episodes earlier",
        )
    return min(fitting)


_Piece = tuple["NDArray[np.int32]", "NDArray[np.int32]", "NDArray[np.float32]", "NDArray[np.float32]", float]


def _piece(sequence: Mapping[str, Any], mean: str) -> _Piece:
    """Inputs, targets, weights and sampled log-probabilities of one sequence's predictions, and its advantage."""
    trained = np.asarray(sequence["trained"], bool)[1:]
    (where,) = np.nonzero(trained)
    end = int(where[-1]) + 1 if where.size else 0
    tokens = np.asarray(sequence["tokens"], np.int32)
    weights = trained[:end].astype(np.float32)
    if mean == "sequence" and end:
        weights /= where.size
    sampled = np.where(trained, np.asarray(sequence["log_probs"], np.float32)[1:], 0.0)[:end].astype(np.float32)
    return tokens[:end], tokens[1 : end + 1], weights, sampled, float(sequence["advantage"])


def _fill(pieces: Sequence[_Piece], rows: Sequence[Sequence[int]], shape: Shape) -> MicroBatch:
    arrays = empty(shape)
    ids = np.full(shape, -1, np.int32)
    for row, members in enumerate(rows):
        start = 0
        for number, index in enumerate(members):
            tokens, targets, weights, sampled, advantage = pieces[index]
            span = slice(start, start + len(tokens))
            arrays.tokens[row, span] = tokens
            arrays.targets[row, span] = targets
            arrays.positions[row, span] = np.arange(len(tokens))
            arrays.segments[row, span] = number + 1
            arrays.weights[row, span] = weights
            arrays.sampled[row, span] = sampled
            arrays.advantages[row, span] = advantage
            ids[row, span] = index
            start += len(tokens)
    return MicroBatch(arrays, ids)


def empty(shape: Shape) -> Arrays[NDArray[Any]]:
    """A micro-batch of padding."""
    whole, real = np.int32, np.float32
    return Arrays(*(np.zeros(shape, kind) for kind in (whole, whole, whole, whole, real, real, real)))
