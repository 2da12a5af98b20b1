"""What is due after a learner step: publish every k steps, checkpoint and evaluate at their intervals (0: never)."""

from __future__ import annotations

from typing import NamedTuple

from harness.core.errors import LawError


class Due(NamedTuple):
    """What is due."""

    publish: bool
    checkpoint: bool
    evaluate: bool


class Cadence:
    """Intervals in optimizer steps, counted from step 0 so that a resumed run keeps its rhythm."""

    __slots__ = ("_checkpoint", "_evaluate", "_publish")

    def __init__(self, *, steps_per_sync: int, checkpoint_interval: int = 0, eval_interval: int = 0) -> None:
        if steps_per_sync < 1 or checkpoint_interval < 0 or eval_interval < 0:
            raise LawError(f"intervals that cannot be: {steps_per_sync}, {checkpoint_interval}, {eval_interval}")
        self._publish = steps_per_sync
        self._checkpoint = checkpoint_interval
        self._evaluate = eval_interval

    def due(self, t: int) -> Due:
        """What is due now that the learner has completed step `t`."""
        if t < 1:
            raise LawError(f"nothing is due before the first step (t={t})")
        return Due(
            t % self._publish == 0,
            self._checkpoint > 0 and t % self._checkpoint == 0,
            self._evaluate > 0 and t % self._evaluate == 0,
        )

    def next_publish(self, t: int) -> int:
        """The first version after `t` that will be published."""
        return (t // self._publish + 1) * self._publish
