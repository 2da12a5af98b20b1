"""Placement: who has the chips where learner and replicas share them.

Theory of operation. Shared chips are in one phase at a time::

    ROLLOUT ──wanted──► QUIESCING ──all quiesced──► TO_TRAINING ──switched──► TRAINING
       ▲                                                                        │
       └───────────────switched─────────────── TO_ROLLOUT ◄────────done─────────┘

The learner wants them when it has groups in its hands that it may train on, and has them until it must wait again: for the
next groups, or because a version is due at the engines. So it never sits on chips that could make what it waits for, and never
asks for them in vain. Two rules keep that from standing still:

- It asks only when no version is on its way. A version is installed by replicas that have their chips; a replica that waits
  for the others with its weights half changed could not quiesce, and all would wait for each other.
- It gives them back before it hands over a version to be published, or right behind that, and before any wait.

What a replica does to quiesce is the sync mode's (`policies.sync`): it finishes its requests, aborts them so that they are
prefilled again afterwards, or stops between two chunks and keeps their KV cache (which then leaves the chips with the weights:
the switch has to pay for it). Episodes in tools go on; where the mode drains episodes they are waited for. Deadlines go on as
well: a request that is held through a training step longer than its generation may take has failed by then.
"""

from __future__ import annotations

from enum import StrEnum

from harness.core.errors import LawError


class ChipPhase(StrEnum):
    """What shared chips do."""

    ROLLOUT = "rollout"
    QUIESCING = "quiescing"
    TO_TRAINING = "to_training"
    TRAINING = "training"
    TO_ROLLOUT = "to_rollout"


class PlacementPlan:
    """The phases of shared chips.

    Args:
        replicas: how many have to quiesce.

    Attributes:
        phase: what the chips do.

    """

    __slots__ = ("_missing", "_replicas", "phase")

    def __init__(self, replicas: int) -> None:
        if replicas < 1:
            raise LawError(f"chips that {replicas} replicas share with a learner")
        self._replicas = replicas
        self._missing: set[int] = set()
        self.phase = ChipPhase.ROLLOUT

    @property
    def training(self) -> bool:
        """Whether the learner has the chips."""
        return self.phase is ChipPhase.TRAINING

    def wanted(self, *, publishing: bool) -> tuple[int, ...]:
        """The learner wants the chips; returns the replicas that have to quiesce now.

        Args:
            publishing: whether a version is on its way to the replicas.

        """
        self._expect(ChipPhase.ROLLOUT, "the learner wants the chips")
        if publishing:
            raise LawError("the learner wants the chips while a version is on its way to those that have them")
        self.phase = ChipPhase.QUIESCING
        self._missing = set(range(self._replicas))
        return tuple(range(self._replicas))

    def quiesced(self, replica: int) -> bool:
        """A replica has stopped; whether all have, so that the chips may change hands."""
        self._expect(ChipPhase.QUIESCING, f"replica {replica} is quiesced")
        if replica not in self._missing:
            raise LawError(f"replica {replica} is quiesced twice, or does not exist")
        self._missing.remove(replica)
        if not self._missing:
            self.phase = ChipPhase.TO_TRAINING
        return not self._missing

    def done(self) -> None:
        """The learner has nothing to do with the chips just now."""
        self._expect(ChipPhase.TRAINING, "the learner is done")
        self.phase = ChipPhase.TO_ROLLOUT

    def switched(self) -> None:
        """The change of roles is over."""
        if self.phase is ChipPhase.TO_TRAINING:
            self.phase = ChipPhase.TRAINING
        elif self.phase is ChipPhase.TO_ROLLOUT:
            self.phase = ChipPhase.ROLLOUT
        else:
            raise LawError(f"chips in phase {self.phase} have not been switched")

    def _expect(self, phase: ChipPhase, what: str) -> None:
        if self.phase is not phase:
            raise LawError(f"{what} in phase {self.phase}")
