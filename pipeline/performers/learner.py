"""Live learner: groups become sequences with advantages, and the dispatcher's thread does the rest.

Here, on the event loop, only references are gathered. Packing and everything with arrays is done on the dispatcher's thread,
and the wait for the devices on a worker thread: so neither the loop nor the devices of the engines stand still meanwhile.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import trio

from harness.core.errors import ConfigError
from harness.core.work import LogProbs, Outcome, TrainStep
from pipeline.numerics.advantages import group_advantages
from pipeline.numerics.dispatch import Decision
from pipeline.performers.device import on_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.core.perform import Performers
    from harness.core.runtime import Runtime
    from pipeline.data import Group, Sample
    from pipeline.live_config import LearnerTable
    from pipeline.numerics.dispatch import Dispatcher


class LearnerPerformer:
    """Performs `LogProbs` and `TrainStep`, and takes snapshots. The learner's programs are registered with the dispatcher.

    Args:
        dispatcher: whose thread the learner lives on.
        settings: `live.learner`.

    """

    def __init__(self, dispatcher: Dispatcher, settings: LearnerTable) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._failed: BaseException | None = None  # of a snapshot, which nobody waits for
        self._taken: list[Group] = []  # groups of the step so far, for its metrics

    def performers(self) -> Performers:
        """By class of work."""
        return {LogProbs: self.log_probs, TrainStep: self.train}

    async def log_probs(self, rt: Runtime, work: LogProbs, /) -> Outcome:
        """Score a chunk under the weights at the step's start; the learner keeps the scores until the chunk is trained on."""
        await self._ask("learner.log_probs", step=work.entity, sequences=self._sequences(work.payload))
        return Outcome(amount=work.tokens)

    async def train(self, rt: Runtime, work: TrainStep, /) -> Outcome:
        """Train on a chunk. The outcome of a step's last chunk carries the step's metrics: a dict of floats."""
        groups: list[Group] = work.payload
        self._taken += groups
        metrics = await self._ask("learner.train", step=work.entity, sequences=self._sequences(groups), last=bool(work.last))
        if not work.last:
            return Outcome(amount=work.tokens)
        taken, self._taken = self._taken, []
        return Outcome(amount=work.tokens, result=metrics | _of_groups(work.entity, taken))

    def snapshot(self, version: int) -> int:
        """Have the weights copied, behind the step that was last asked for. Returns at once; a failure is raised later."""

        def answered(_: Any, failure: BaseException | None) -> None:
            self._failed = self._failed or failure

        self._dispatcher.submit(Decision("learner.snapshot", {"version": version}), answered)
        return version

    async def warm_start(
        self, demonstrations: Sequence[Sample], *, seed: int, report: Callable[[int, dict[str, float]], object] | None = None
    ) -> dict[str, float]:
        """Supervised steps on solved tasks, drawn without replacement pass by pass, to the last step or the loss to stop at.

        Args:
            demonstrations: sequences whose `trained` tokens the policy is to say.
            seed: of the order.
            report: called after each step with its number, from 1, and its metrics.

        Returns:
            metrics of the last step; empty when there are none.

        """
        if not self._settings.warm_start_steps:
            return {}
        if not demonstrations:
            raise ConfigError(
                "there are no solved tasks to start from",
                field="live.learner.warm_start_steps",
                value=self._settings.warm_start_steps,
                allowed="0, or tasks that come with solutions",
                remedy="set it to 0, or have the environment give demonstrations",
            )
        sequences = [_sequence(number, sample, 1.0) for number, sample in enumerate(demonstrations)]
        order, metrics = random.Random(seed), dict[str, float]()
        waiting: list[dict[str, Any]] = []
        for step in range(1, self._settings.warm_start_steps + 1):
            while len(waiting) < min(self._settings.warm_start_batch, len(sequences)):
                waiting += order.sample(sequences, len(sequences))
            batch, waiting = waiting[: self._settings.warm_start_batch], waiting[self._settings.warm_start_batch :]
            metrics = await self._ask("learner.warm_step", step=step, sequences=batch)
            if report is not None:
                report(step, metrics)
            if metrics["loss"] < self._settings.warm_start_stop_loss:
                break
        await on_device(self._dispatcher, Decision("learner.warm_end"))
        return metrics

    async def _ask(self, program: str, **arguments: Any) -> dict[str, float]:
        if self._failed is not None:
            raise self._failed
        pending = await on_device(self._dispatcher, Decision(program, arguments))
        result: dict[str, float] = await trio.to_thread.run_sync(pending.result)
        return result

    def _sequences(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Plain data of all members that are trained on, with their advantages within their group.

        In the order of tasks and members, whoever finished first: sums of floats depend on it, and a resumed synchronous run is
        to have the same parameters as one that was never cut.
        """
        sequences = []
        for group in sorted(groups, key=lambda group: (group.task.dispatch, group.task.index)):
            members = sorted(group.members, key=lambda member: member.episode)
            advantages = group_advantages([member.reward for member in members], normalise_std=self._settings.normalise_std)
            for member, advantage in zip(members, advantages.tolist(), strict=True):
                if not (self._settings.mask_truncated and member.payload.truncated):
                    sequences.append(_sequence(member.episode, member.payload, advantage))
        return sequences


def _sequence(number: int, sample: Sample, advantage: float) -> dict[str, Any]:
    return {
        "id": number, "tokens": sample.tokens, "trained": sample.trained, "log_probs": sample.log_probs, "advantage": advantage,
    }  # fmt: skip


def _of_groups(step: int, groups: Sequence[Group]) -> dict[str, float]:
    """What the groups themselves say: mean reward, and the lag of the oldest token of each sample in optimizer steps."""
    members = [member for group in groups for member in group.members]
    lags = [step - 1 - member.oldest for member in members]
    return {
        "reward": sum(member.reward for member in members) / len(members),
        "lag_steps": sum(lags) / len(lags),
        "lag_steps_max": float(max(lags)),
        "samples": float(len(members)),
    }
