"""The learner's side of a world: its passes, weights on their way, checkpoints."""

from __future__ import annotations

from pydantic import Field

from harness.costs.laws import Record
from harness.costs.step_time import TrainLaw, TransferLaw


class Learner(Record):
    """The learner's chips and passes."""

    chips: int = Field(ge=1, description="Chips of the learner.")
    train: TrainLaw
    log_probs: TrainLaw | None = Field(default=None, description="Pass for old log-probabilities; absent: the rollouts' own.")


class Weights(Record):
    """A weight version on its way to the replicas."""

    weights_bytes: int = Field(ge=0, description="Bytes of one weight version.")
    transfer: TransferLaw = Field(description="Time for one replica to receive and install a version.")


class CheckpointStore(Record):
    """Saving and restoring the learner's state."""

    state_bytes: int = Field(ge=0, description="Bytes of weights and optimizer state.")
    save: TransferLaw = Field(description="Time that the learner is held up by a save.")
