"""Learner: pulls chunks of groups until a batch is whole, trains on each as it comes, and then sees what is due.

The last chunk of a batch applies the optimizer. What may be taken, what is too old and when to wait is `policies.staleness`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.accounts import Fate
from harness.core.blame import BlameMeter
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import Compile, LogProbs, Status, TrainStep
from pipeline.policies.kinds import StalePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane
    from harness.core.primitives import WakeUp
    from harness.core.runtime import CancelScope, Runtime
    from harness.core.work import Work
    from pipeline.actors.buffer import Buffer
    from pipeline.actors.checkpointer import Checkpointer
    from pipeline.actors.evaluation import Evaluation
    from pipeline.actors.groups import Groups
    from pipeline.actors.placement import Placement
    from pipeline.actors.publisher import Publisher
    from pipeline.actors.shared import Tally
    from pipeline.config import PipelineConfig
    from pipeline.data import Group
    from pipeline.policies.admission import Admission
    from pipeline.policies.cadence import Cadence
    from pipeline.policies.staleness import Consumption
    from pipeline.policies.versions import VersionClock


class Learner:
    """The consumer side of the pipeline."""

    def __init__(
        self, rt: Runtime, config: PipelineConfig, accounts: Accounts, versions: VersionClock, admission: Admission,
        consumption: Consumption, cadence: Cadence, buffer: Buffer, groups: Groups, publisher: Publisher,
        checkpointer: Checkpointer, evaluation: Evaluation, tally: Tally, bell: WakeUp, *, chips: int, log_probs: bool,
        compiles: bool = False, lane: Lane | None = None,
    ) -> None:  # fmt: skip
        self._rt = rt
        self._config = config
        self._accounts = accounts
        self._versions = versions
        self._admission = admission
        self._consumption = consumption
        self._cadence = cadence
        self._buffer = buffer
        self._groups = groups
        self._publisher = publisher
        self._checkpointer = checkpointer
        self._evaluation = evaluation
        self._tally = tally
        self._bell = bell
        self.capture: Callable[[], Any] = _nothing
        self._log_probs = log_probs
        self._compiles = compiles
        self._taken: list[Group] = []
        self._given: list[Group] = []  # taken before a resume, for a step that was not completed
        self._patient: CancelScope | None = None  # round a wait that a stop cuts short
        self.stopping = False
        self.lane = lane or rt.lane("learner", "learner", chips=chips)
        self.placement: Placement | None = None  # where the chips are the replicas' as well
        self.meter = BlameMeter(rt.lanes.role("rollout"))
        self.lane.to(State.WAIT_BATCH)

    async def run(self, steps: int, after_step: Callable[[int], None]) -> None:
        """Make optimizer steps until `steps` are completed, those before a resume included; fewer when it is stopped."""
        if self._compiles and self._versions.t < steps:
            self.lane.to(State.COMPILE)
            await self._rt.perform(Compile(-1, 0))
            self.lane.to(State.WAIT_BATCH)
        while self._versions.t < steps and not self.stopping and await self._step():
            after_step(self._versions.t)

    def stop(self) -> None:
        """Complete the step that runs if its batch is whole, and make no other one."""
        self.stopping = True
        self._bell.ring()
        if self._patient is not None:
            self._patient.cancel()

    def resume(self, taken: Sequence[Group]) -> None:
        """Go on with groups that had been taken when a checkpoint was made."""
        self._given = list(taken)

    async def evaluate(self) -> None:
        """Have the newest version published, where the cadence did not, and stand still while it is evaluated.

        A stop cuts it short.
        """
        step = self._versions.t
        await self._give_chips()
        self.lane.to(State.SYNC_WAIT, step)
        with self._rt.cancel_scope() as self._patient:
            await self._publisher.settle(step)
            self.lane.to(State.EVAL, step)
            await self._evaluation.hold(step)
        self._patient = None
        self.lane.to(State.WAIT_BATCH)

    async def save(self) -> None:
        """Save the completed steps, where that has not been done."""
        if self._checkpointer.saved < self._versions.t:
            self.lane.to(State.CHECKPOINT, self._versions.t)
            await self._checkpointer.save(self._versions.t, self.capture)

    async def _step(self) -> bool:
        """One optimizer step; whether it was completed. Groups of one that was not stay taken."""
        config, step = self._config, self._versions.t + 1
        samples = tokens = 0
        while len(self._taken) < config.groups_per_step:
            want = min(config.chunk_groups, config.groups_per_step - len(self._taken))
            chunk = await self._pull(want)
            if not chunk:
                return False
            if self.placement is not None:
                await self.placement.take(step)
            chunk_samples = sum([len(group.members) for group in chunk])
            chunk_tokens = sum([group.sequence_tokens for group in chunk])
            if self._log_probs:
                self.lane.to(State.LOG_PROBS, step)
                await self._work(LogProbs(step, chunk_samples, chunk_tokens, chunk))
            self.lane.to(State.TRAIN, step)
            last = int(len(self._taken) == config.groups_per_step)
            await self._work(TrainStep(step, chunk_samples, chunk_tokens, last, chunk))
            samples += chunk_samples
            tokens += chunk_tokens
        self._complete(step, samples, tokens)
        await self._what_is_due(step)
        return True

    async def _work(self, work: Work) -> None:
        """A pass. One that was cut off because its chips are gone is not made: whoever watches them ends all this."""
        outcome = await self._rt.perform(work)
        if outcome.status is not Status.OK:
            await self._rt.event().wait()

    def _complete(self, step: int, samples: int, tokens: int) -> None:
        """The optimizer step is done: its groups are trained, the version counts up."""
        taken, self._taken = self._taken, []
        for group in taken:
            for member in group.members:
                self._accounts.settle(member.episode, Fate.TRAINED)
                self._tally.trained_lengths.append(member.tokens)
        self._versions.step_done()
        self._admission.stepped(step)
        self._tally.steps += 1
        self._tally.groups += len(taken)
        self._rt.emit(EventKind.STEP, step, len(taken), samples, tokens, self._versions.t)
        self._groups.pump()

    async def _pull(self, want: int) -> list[Group]:
        """A chunk of groups, as soon as there is one that may be taken; none when it is to stop."""
        if self._given:
            return self._consume_given(want)
        t, waits = self._versions.t, self._config.stale_policy is StalePolicy.WAIT
        while not self.stopping:
            running = self._groups.running_versions() if waits else ()
            pull = self._consumption.pull(t, self._buffer.in_order(), running, want=want, taken=len(self._taken))
            for group in pull.drop:
                self._buffer.drop(group)
            if pull.drop:
                self._groups.pump()
            if pull.take:
                return self._consume(pull.take)
            waiting = State.WAIT_BATCH if pull.waits_for_version is None else State.STALE_WAIT
            await self._wait(waiting)
        return []

    def _consume(self, take: tuple[int, ...]) -> list[Group]:
        chunk = []
        for group, entry in self._buffer.take(take):
            self._count(group, entry.entered_at_step)
            chunk.append(group)
        self._taken.extend(chunk)
        return chunk

    def _consume_given(self, want: int) -> list[Group]:
        chunk, self._given = self._given[:want], self._given[want:]
        for group in chunk:
            self._count(group, group.entered_version)
        self._taken.extend(chunk)
        return chunk

    def _count(self, group: Group, entered_at_step: int) -> None:
        lag = self._versions.lag(group.oldest, entered_at_step)
        self._rt.emit(
            EventKind.CONSUME, group.group, self._versions.t + 1, lag.total_steps, lag.in_flight_steps, lag.in_queue_steps,
            group.tokens,
        )  # fmt: skip
        self._tally.lags.append(lag.total_steps)
        self._tally.lags_in_queue.append(lag.in_queue_steps)

    async def _give_chips(self) -> None:
        if self.placement is not None:
            await self.placement.give(self._versions.t)

    async def _wait(self, state: State) -> None:
        await self._give_chips()
        self.lane.to(state)
        self.meter.begin(self._rt.now())
        try:
            await self._bell.wait()
        finally:
            self.meter.end(self._rt.now())

    async def _what_is_due(self, step: int) -> None:
        due = self._cadence.due(step)
        if due.publish:
            await self._offer(step)
        if self.stopping:
            return
        if due.checkpoint:
            await self.save()
        if due.evaluate:
            self._evaluation.order(step)
        if due.publish:
            await self._give_chips()
        self.lane.to(State.WAIT_BATCH)

    async def _offer(self, step: int) -> None:
        """Hand the version over to be published. The wait for the one before ends when the learner is stopped."""
        if not self._publisher.busy:
            await self._publisher.offer(step)
            return
        self.lane.to(State.SYNC_WAIT, step)
        with self._rt.cancel_scope() as self._patient:
            await self._publisher.offer(step)
        self._patient = None

    @property
    def in_hands(self) -> tuple[Group, ...]:
        """Groups of a step that is not completed."""
        return (*self._taken, *self._given)

    def holders(self) -> dict[int, str]:
        """Episodes that are in these hands."""
        return {member.episode: "learner" for group in self.in_hands for member in group.members}


def _nothing() -> None:
    """Nothing but the learner's own state is saved."""
