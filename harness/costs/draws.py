"""Keyed vectors of uniform numbers.

The key (seed, purpose, ids…) is hashed to 128 bits (`harness.core.seeds`) and put into NumPy's Philox, a counter-based
generator: each key is a stream of its own that starts at counter 0, so nothing depends on the order of draws.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.seeds import derive_key
from harness.core.units import NS_PER_S

if TYPE_CHECKING:
    from harness.costs.laws import Floats, Sampler

HANG_NS = 15 * 86_400 * NS_PER_S
"""Duration of work that never returns by itself: fifteen days, twice the longest deadline that can be set, and little enough
that a run of a month and a hang on top of it stay within what every engine's clock can count (52 days, a float's exact
seconds)."""

_WORD = (1 << 64) - 1


class Uniforms:
    """Draws vectors by key.

    One Philox object is reset to each key instead of being built anew, which is four times as fast; the numbers are those of
    a fresh `Philox(key=…)`. Not to be shared between threads.
    """

    __slots__ = ("_bits", "_key", "_random", "_state", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._bits = np.random.Philox(key=0)
        self._random = np.random.Generator(self._bits).random
        self._state: Any = self._bits.state
        self._state["state"] = {"counter": np.zeros(4, np.uint64), "key": np.zeros(2, np.uint64)}
        self._key = self._state["state"]["key"]

    def draw(self, n: int, purpose: str, *ids: int) -> Floats:
        """`n` uniform doubles in [0, 1) that belong to (seed, purpose, ids)."""
        key = derive_key(self.seed, purpose, *ids)
        self._key[0] = key & _WORD
        self._key[1] = key >> 64
        self._bits.state = self._state
        return self._random(n)


def uniforms(seed: int, purpose: str, *ids: int, n: int) -> Floats:
    """`n` uniform doubles in [0, 1) that belong to (seed, purpose, ids). For single draws; loops keep a `Uniforms`."""
    return Uniforms(seed).draw(n, purpose, *ids)


def duration_ns(sample: Sampler, u: float) -> int:
    """One duration in whole nanoseconds, at most `HANG_NS`. `sample` is `harness.costs.laws.sampler(law)`."""
    return min(round(sample(u) * NS_PER_S), HANG_NS)
