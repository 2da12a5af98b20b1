"""Evaluation: every few steps some episodes beside the training ones, on the same engines and sandboxes.

They take capacity but no credit, and run in lanes of their own, on the weights that the engines hold: a round that is due with
a publish starts beside it. It has a deadline; the episodes that did not end in time are cancelled and counted as lost. A sync
that drains episodes does not wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, nan
from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.events import EventKind
from harness.core.lanes import State
from pipeline.actors.groups import token_versions
from pipeline.actors.shared import EpisodeRun
from pipeline.actors.supervisor import supervise
from pipeline.data import EVALUATION_GROUPS, MEMBERS, Ended, Task, episode_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane
    from harness.core.runtime import CancelScope, Nursery, Runtime
    from pipeline.actors.rollout import Rollout
    from pipeline.actors.shared import DeadlinesNs
    from pipeline.data import EpisodeResult
    from pipeline.environments.base import TaskSource
    from pipeline.policies.retries import RetryPolicy
    from pipeline.policies.versions import VersionClock


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What came of a round.

    Attributes:
        version: that it was ordered for.
        rewards: of the episodes that could be scored.
        failed: episodes that ended without a score.
        lost: tasks whose episodes had not ended by the deadline.

    """

    version: int
    rewards: tuple[float, ...]
    failed: int
    lost: tuple[int, ...]

    @property
    def reward(self) -> float:
        """Mean reward; NaN where nothing was scored."""
        return fsum(self.rewards) / len(self.rewards) if self.rewards else nan


def _nobody(evaluated: Evaluated) -> None:
    """Nobody needs to know."""


class Evaluation:
    """Runs evaluation rounds.

    Attributes:
        on_done: told of each round.

    """

    def __init__(
        self, rt: Runtime, accounts: Accounts, versions: VersionClock, source: TaskSource, rollout: Rollout,
        deadlines: DeadlinesNs, retries: RetryPolicy, scopes: dict[str, CancelScope], *, episodes: int,
    ) -> None:  # fmt: skip
        self._rt = rt
        self._accounts = accounts
        self._versions = versions
        self._source = source
        self._rollout = rollout
        self._deadlines = deadlines
        self._retries = retries
        self._scopes = scopes  # of the actors that run, by name
        self._episodes = episodes
        self.rounds = 0
        self.version = -1  # of the last round
        self.repeated = 0  # rounds that were lost and take their numbers once more: names of episodes go on
        self._lanes: list[Lane] = []
        self._nursery: Nursery | None = None
        self.running: dict[int, EpisodeRun] = {}
        self.on_done: Callable[[Evaluated], object] = _nobody

    def open(self, nursery: Nursery) -> None:
        """Rounds run in this nursery."""
        self._nursery = nursery

    def order(self, version: int) -> None:
        """Start a round for a version, in the background."""
        assert self._nursery is not None
        self.version = version
        name = f"evaluation of version {version}"
        self._nursery.start_soon(self._supervise, name, version, name=name)

    async def _supervise(self, name: str, version: int) -> None:
        await supervise(self._rt, name, self._round, version, scopes=self._scopes)

    async def hold(self, version: int) -> None:
        """Make a round and wait for it."""
        self.version = version
        await self._round(version)

    async def _round(self, version: int) -> None:
        dispatch = EVALUATION_GROUPS + self.rounds
        group = dispatch + self.repeated
        self.rounds += 1
        ended: list[EpisodeResult] = []
        with self._rt.move_on_after(self._deadlines.evaluation):
            async with self._rt.nursery() as nursery:
                for member in range(self._episodes):
                    nursery.start_soon(self._episode, group, dispatch, member, ended, name=f"evaluation {version}/{member}")
        self._rt.emit(EventKind.EVALUATED, version, len(ended), self._episodes - len(ended))
        rewards = [result.reward for result in ended if result.usable]
        lost = sorted(set(range(self._episodes)) - {result.episode % MEMBERS for result in ended})
        self.on_done(Evaluated(version, tuple(rewards), len(ended) - len(rewards), tuple(lost)))

    async def _episode(self, group: int, dispatch: int, member: int, ended: list[EpisodeResult]) -> None:
        rt, episode = self._rt, episode_id(group, member)
        task = Task(member, dispatch)
        lane = self._lanes.pop() if self._lanes else rt.lane(f"evaluation/{group - EVALUATION_GROUPS}/{member}", "evaluation")
        run = EpisodeRun(
            episode, group, member, task, self._source.driver(task, member, self._versions.p), self._accounts.admit(episode),
            lane, rt.cancel_scope(), self._retries,
        )  # fmt: skip
        self.running[episode] = run
        version, how = self._versions.p, Ended.CANCELLED
        rt.emit(EventKind.EPISODE_START, episode, group, member, 0, version)
        try:
            result = await self._rollout.play(run, version)
            how = result.ended
            ended.append(result)
        finally:
            rt.emit(EventKind.EPISODE_END, episode, how, run.turns, run.tokens, *token_versions(run, version))
            del self.running[episode]
            self._accounts.settle(episode, Fate.EVALUATION)
            lane.to(State.NO_WORK)
            self._lanes.append(lane)

    def resume(self, rounds: int, version: int) -> None:
        """Count on from a checkpoint; rounds that were under way are lost."""
        self.rounds, self.version = rounds, version

    def holders(self) -> dict[int, str]:
        """Episodes that are in these hands."""
        return dict.fromkeys(self.running, "evaluation")
