"""Passes of the learner, saves, and weights on their way, in modelled time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.perform import Timed
from harness.core.units import ns_from_s
from harness.core.work import Checkpoint, LogProbs, Outcome, Publish, Restore, Switch, TrainStep
from harness.costs.draws import Uniforms
from harness.costs.link import SharedLink

if TYPE_CHECKING:
    from harness.costs.step_time import TrainLaw
    from harness.scenario.schema import Scenario

_DONE = Outcome()


class SimulatedLearner:
    """Passes of the learner, saves, and weights on their way.

    Args:
        scenario: world of the learner.
        seed: of the replication.
        colocated: whether learner and replicas take turns on the same chips: a version then need not travel.

    """

    def __init__(self, scenario: Scenario[Any], seed: int, *, colocated: bool = False) -> None:
        world = scenario.world
        self._switch = world.switch
        self._colocated = colocated
        self._train = world.learner.train
        self._log_probs = world.learner.log_probs
        self._transfer = world.weights.transfer
        self._save = world.checkpoint.save if world.checkpoint is not None else None
        self._restore = world.checkpoint.restore if world.checkpoint is not None else None
        self._uniforms = Uniforms(seed)

    def _pass_ns(self, law: TrainLaw, purpose: str, work: TrainStep | LogProbs, *, last: bool) -> int:
        factor = law.factor(self._uniforms, purpose, work.entity)
        return law.pass_ns(work.samples, work.tokens, factor, last=last)

    def train(self, work: TrainStep) -> tuple[int, Outcome]:
        """Forward and backward, and the optimizer step with the last chunk."""
        return self._pass_ns(self._train, "train", work, last=bool(work.last)), _DONE

    def log_probs(self, work: LogProbs) -> tuple[int, Outcome]:
        """A forward pass."""
        assert self._log_probs is not None
        return self._pass_ns(self._log_probs, "log_probs", work, last=True), _DONE

    @property
    def publisher(self) -> Timed | SharedLink:
        """Performs `Publish`: each transfer by itself, or all that overlap over the sender's one link."""
        transfer = self._transfer
        if self._colocated or transfer.sender_bytes_per_s is None:
            return Timed(self.publish)
        return SharedLink(ns_from_s(transfer.base_s), transfer.bytes_per_s, transfer.sender_bytes_per_s)

    def publish(self, work: Publish) -> tuple[int, Outcome]:
        """Move and install a version; on shared chips it is there already and changes its layout at most."""
        if self._colocated:
            reshard_s = self._switch.reshard.seconds if self._switch is not None else 0.0
            return ns_from_s(reshard_s), Outcome(amount=work.weights_bytes)
        return self._transfer.transfer_ns(work.weights_bytes), Outcome(amount=work.weights_bytes)

    def switch(self, work: Switch) -> tuple[int, Outcome]:
        """One role leaves the chips and the other comes on; free where the scenario says nothing of it."""
        if self._switch is None:
            return 0, _DONE
        return ns_from_s((self._switch.to_training if work.to_training else self._switch.to_rollout).seconds), _DONE

    def checkpoint(self, work: Checkpoint) -> tuple[int, Outcome]:
        """Save; free where the scenario says nothing of it."""
        duration_ns = self._save.transfer_ns(work.state_bytes) if self._save is not None else 0
        return duration_ns, Outcome(amount=work.state_bytes)

    def restore(self, work: Restore) -> tuple[int, Outcome]:
        """Load a checkpoint; free where the scenario says nothing of it."""
        duration_ns = self._restore.transfer_ns(work.state_bytes) if self._restore is not None else 0
        return duration_ns, Outcome(amount=work.state_bytes)
