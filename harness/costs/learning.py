"""Passes of the learner, saves, and weights on their way, in modelled time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.work import Checkpoint, LogProbs, Outcome, Publish, TrainStep
from harness.costs.draws import Uniforms

if TYPE_CHECKING:
    from harness.costs.step_time import TrainLaw
    from harness.scenario.schema import Scenario

_DONE = Outcome()


class SimulatedLearner:
    """Passes of the learner, saves, and weights on their way."""

    def __init__(self, scenario: Scenario[Any], seed: int) -> None:
        world = scenario.world
        self._train = world.learner.train
        self._log_probs = world.learner.log_probs
        self._transfer = world.weights.transfer
        self._save = world.checkpoint.save if world.checkpoint is not None else None
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

    def publish(self, work: Publish) -> tuple[int, Outcome]:
        """Move and install a version."""
        return self._transfer.transfer_ns(work.weights_bytes), Outcome(amount=work.weights_bytes)

    def checkpoint(self, work: Checkpoint) -> tuple[int, Outcome]:
        """Save; free where the scenario says nothing of it."""
        duration_ns = self._save.transfer_ns(work.state_bytes) if self._save is not None else 0
        return duration_ns, Outcome(amount=work.state_bytes)
