"""One sender, several receivers: transfers that share the sender's link while they overlap.

A transfer alone goes at the receiver's rate r. Those under way at one instant share the sender's rate s equally, so that with n
of them each goes at min(r, s / n): processor sharing with a cap. A receiver that takes turns with the others (rolling sync)
never shares; replicas that receive all at once do.

Exact arithmetic: work left is kept in nanoseconds of a transfer alone, as fractions, and a transfer ends at the first whole
nanosecond at which nothing of it is left. With no further arrival the one with work w ends when those with less have ended:
between two ends n transfers are slowed by max(1, n r / s). A transfer sleeps until then; whoever arrived meanwhile has made it
longer, and then it sleeps again.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from harness.core.units import NS_PER_S
from harness.core.work import Outcome, Publish, Work

if TYPE_CHECKING:
    from harness.core.runtime import Runtime


class SharedLink:
    """Performs `Publish` over one sender's link.

    Args:
        base_ns: of each transfer, before it begins to move bytes: not shared.
        bytes_per_s: of one receiver alone.
        sender_bytes_per_s: of the sender, for all together.

    """

    def __init__(self, base_ns: int, bytes_per_s: float, sender_bytes_per_s: float) -> None:
        self._base_ns = base_ns
        self._alone = bytes_per_s
        self._share = Fraction(bytes_per_s) / Fraction(sender_bytes_per_s)  # r / s
        self._left: dict[int, Fraction] = {}
        self._since_ns = 0
        self._count = 0

    async def __call__(self, rt: Runtime, work: Publish, /) -> Outcome:
        """Move one version to one replica."""
        await rt.sleep(self._base_ns)
        self._move(rt.now())
        key = self._count
        self._count += 1
        self._left[key] = Fraction(max(round(work.weights_bytes / self._alone * NS_PER_S), 1))
        while (left_ns := self._until(key)) > 0:
            await rt.sleep(left_ns)
            self._move(rt.now())
        return Outcome(amount=work.weights_bytes)

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """The link is free of it as soon as the call ends."""

    def _slowed(self, transfers: int) -> Fraction:
        return max(Fraction(1), transfers * self._share)

    def _move(self, now_ns: int) -> None:
        """Let time pass on the link: everyone under way has less left, and some nothing."""
        passed = Fraction(now_ns - self._since_ns)
        self._since_ns = now_ns
        while self._left and passed > 0:
            slowed = self._slowed(len(self._left))
            step = min(min(self._left.values()), passed / slowed)
            self._left = {key: left - step for key, left in self._left.items() if left > step}
            passed -= step * slowed

    def _until(self, key: int) -> int:
        """Nanoseconds until a transfer ends if nobody comes, rounded up; 0 where it has ended."""
        if key not in self._left:
            return 0
        own, before, time = self._left[key], Fraction(0), Fraction(0)
        lefts = sorted(self._left.values())
        for i, left in enumerate(lefts):
            upto = min(left, own)
            time += (upto - before) * self._slowed(len(lefts) - i)
            before = upto
        return math.ceil(time)
