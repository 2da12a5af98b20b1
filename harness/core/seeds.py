"""Keyed randomness: a draw belongs to an entity and a purpose, never to a position in a shared stream.

The key of a draw is (seed, purpose, ids…), hashed with BLAKE2b to 128 bits. Two configurations that differ in one knob
therefore see the same draw for the same (task, dispatch, member, turn, attempt): common random numbers hold whatever the
order of execution, and switching a feature on leaves every draw that it does not concern bit-equal.

`Stream` is a small counter-based generator for the few scalar draws that actors make themselves (back-off jitter, say).
Vector draws of the simulated world use the same keys with NumPy's Philox (`harness.costs.draws`).
"""

from __future__ import annotations

from hashlib import blake2b
from struct import pack

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment: Steele, Lea, Flood, "Fast splittable PRNGs", OOPSLA 2014
_TO_UNIT = 2.0**-53


def derive_key(seed: int, purpose: str, *ids: int) -> int:
    """128-bit key of a draw. `ids` are signed 64-bit integers, in a fixed order per purpose."""
    data = pack(f"<q{len(ids)}q", seed, *ids) + purpose.encode()
    return int.from_bytes(blake2b(data, digest_size=16).digest(), "little")


class Stream:
    """SplitMix64 from a key: uniform doubles in [0, 1), the same on every Python."""

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = (key ^ (key >> 64)) & _MASK

    def random(self) -> float:
        """Next uniform double in [0, 1)."""
        self._state = (self._state + _GOLDEN) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * _TO_UNIT

    def below(self, bound: int) -> int:
        """Uniform integer in [0, bound)."""
        return int(self.random() * bound)
