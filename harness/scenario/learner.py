"""The learner's side of a world: its passes, weights on their way, checkpoints."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.costs.laws import Record
from harness.costs.step_time import TrainLaw, TransferLaw
from harness.scenario.chips import FROM_CHIP, ROOFLINE, not_required, or_text


class Learner(Record):
    """The learner's chips and passes."""

    model_config = not_required("train")

    chips: int = Field(ge=1, description="Chips of the learner, all its slices together.")
    slices: int = Field(default=1, ge=1, description="Slices that they are bought in, all of one shape.")
    train: TrainLaw = Field(description=f"Time of training passes; absent: {FROM_CHIP}.")
    compile_s: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="Seconds that the learner compiles before its first pass, and again after its slice was lost.",
    )
    log_probs: TrainLaw | None = Field(
        default=None,
        description=f'Pass for old log-probabilities; absent: the rollouts\' own; "{ROOFLINE}": {FROM_CHIP}.',
        json_schema_extra=or_text(ROOFLINE),
    )


class WeightTransfer(TransferLaw):
    """How a version travels: rates as measured, or the path whose rates the catalogue knows."""

    model_config = not_required("bytes_per_s")

    path: Literal["ici", "dcn"] | None = Field(
        default=None,
        description="Between chips of one slice (ici) or over the data-centre network (dcn); absent rates follow.",
    )
    hosts_per_replica: int | None = Field(
        default=None, ge=1, description="Hosts of a replica's slice, over dcn; absent: chips over chips of a host."
    )
    shares_sender_link: bool = Field(
        default=False, description="Whether replicas that receive at the same time share what the learner's slice can send."
    )
    sender_bytes_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Bytes a second that the learner's slice sends, where it is shared; absent: by path.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shares_sender_link != (self.sender_bytes_per_s is not None):
            missing = "sender_bytes_per_s" if self.shares_sender_link else "shares_sender_link = true"
            raise ValueError(f"the sender's link is shared where shares_sender_link and its rate say so: {missing} is missing")
        return self


class Weights(Record):
    """A weight version on its way to the replicas."""

    model_config = not_required("weights_bytes")

    weights_bytes: int = Field(ge=0, description=f"Bytes of one weight version; absent: {FROM_CHIP}.")
    transfer: WeightTransfer = Field(description="Time for one replica to receive and install a version.")


class Move(Record):
    """Seconds to bring something on or off the chips."""

    base_s: float = Field(default=0.0, ge=0, description="Seconds, whatever its size.")
    moved_bytes: int = Field(default=0, ge=0, description="Bytes that move.")
    bytes_per_s: float | None = Field(default=None, gt=0, description="Bytes a second; needed where bytes move.")
    source: str = Field(default="", description="Where the figures come from.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.moved_bytes and self.bytes_per_s is None:
            raise ValueError(f"{self.moved_bytes} bytes move, and nothing says how fast: give bytes_per_s")
        return self

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.base_s + (self.moved_bytes / self.bytes_per_s if self.bytes_per_s is not None else 0.0)


class Switch(Record):
    """Chips that learner and replicas take turns on (`pipeline.placement = "colocated"`): what each change of turns costs."""

    to_training: Move = Field(description="The engine leaves the chips, weights and KV cache; the learner's state comes on.")
    to_rollout: Move = Field(description="The learner's state leaves the chips, the engine comes back.")
    reshard: Move = Field(
        default=Move(), description="A new version from the learner's layout to the engine's, on the same chips; absent: free."
    )


class CheckpointStore(Record):
    """Saving and restoring the learner's state."""

    state_bytes: int = Field(ge=0, description="Bytes of weights and optimizer state.")
    save: TransferLaw = Field(description="Time that the learner is held up by a save.")
    restore: TransferLaw | None = Field(
        default=None, description="Time for the learner to load a checkpoint after its slice was lost; absent: none."
    )
