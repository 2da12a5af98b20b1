"""Compilation: which shapes a replica has compiled, and when it has to stand still for another.

XLA compiles a program for every shape that it meets. Engines therefore round shapes up to a few buckets, a batch to the next
batch bucket and a prefill to the next bucket of tokens, and compile each when it is first needed, or all at the start. The
replica computes nothing meanwhile. A process that is started again has nothing compiled, though a cache on disk may make
it quicker.

Numbers of buckets: 0 is what is compiled at the start, 1 the first batch bucket, and those of prefills follow. A prefill longer
than the last bucket is computed in several calls of that one. No batch is larger than the last batch bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from harness.core.errors import LawError

START = 0
"""Bucket number of what is compiled before the first request."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Shapes that a replica compiles for, ascending.

    Attributes:
        batch: requests of a decode step; empty: no decode shape is compiled later than at the start.
        prefill_tokens: tokens of a prefill; empty: the same.

    """

    batch: tuple[int, ...] = ()
    prefill_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for sizes in (self.batch, self.prefill_tokens):
            if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
                raise LawError(f"buckets ascend from 1 or more: {list(sizes)}")


class Compiles:
    """What one replica has compiled."""

    __slots__ = ("_buckets", "_done")

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._done: set[int] = set()

    def start(self) -> int:
        """A process starts with nothing compiled; returns the bucket to be compiled before it serves."""
        self._done = {START}
        return START

    def decode(self, batch: int) -> int | None:
        """The bucket to be compiled before a batch of this size can decode; None where there is none."""
        return self._need(1, self._buckets.batch, batch)

    def prefill(self, tokens: int) -> int | None:
        """The bucket to be compiled before so many tokens can be prefilled; None where there is none."""
        return self._need(1 + len(self._buckets.batch), self._buckets.prefill_tokens, tokens)

    def _need(self, first: int, sizes: tuple[int, ...], size: int) -> int | None:
        if not sizes:
            return None
        bucket = first + min(bisect_left(sizes, size), len(sizes) - 1)
        if bucket in self._done:
            return None
        self._done.add(bucket)
        return bucket
