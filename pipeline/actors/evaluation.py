"""Evaluation: every few steps some episodes beside the training ones, on the same engines and sandboxes.

They take capacity but no credit, and run in lanes of their own, on the weights that the engines hold: a round that is due with
a publish starts beside it. It has a deadline; the episodes that did not end in time are cancelled and counted as lost. A sync
that drains episodes does not wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.events import EventKind
from harness.core.lanes import State
from pipeline.actors.groups import token_versions
from pipeline.actors.shared import EpisodeRun
from pipeline.actors.supervisor import supervise
from pipeline.data import EVALUATION_GROUPS, Ended, Task, episode_id

if TYPE_CHECKING:
    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane
    from harness.core.runtime import Nursery, Runtime
    from pipeline.actors.rollout import Rollout
    from pipeline.actors.shared import DeadlinesNs
    from pipeline.environments.base import TaskSource
    from pipeline.policies.retries import RetryPolicy
    from pipeline.policies.versions import VersionClock


class Evaluation:
    """Runs evaluation rounds."""

    def __init__(
        self, rt: Runtime, accounts: Accounts, versions: VersionClock, source: TaskSource, rollout: Rollout,
        deadlines: DeadlinesNs, retries: RetryPolicy, *, episodes: int,
    ) -> None:  # fmt: skip
        self._rt = rt
        self._accounts = accounts
        self._versions = versions
        self._source = source
        self._rollout = rollout
        self._deadlines = deadlines
        self._retries = retries
        self._episodes = episodes
        self.rounds = 0
        self.version = -1  # of the last round
        self._lanes: list[Lane] = []
        self._nursery: Nursery | None = None
        self.running: dict[int, EpisodeRun] = {}

    def open(self, nursery: Nursery) -> None:
        """Rounds run in this nursery."""
        self._nursery = nursery

    def order(self, version: int) -> None:
        """Start a round for a version, in the background."""
        assert self._nursery is not None
        self.version = version
        name = f"evaluation of version {version}"
        self._nursery.start_soon(supervise, self._rt, name, self._round, version, name=name)

    async def _round(self, version: int) -> None:
        group = EVALUATION_GROUPS + self.rounds
        self.rounds += 1
        ended = [0]
        with self._rt.move_on_after(self._deadlines.evaluation):
            async with self._rt.nursery() as nursery:
                for member in range(self._episodes):
                    nursery.start_soon(self._episode, group, member, ended, name=f"evaluation {version}/{member}")
        self._rt.emit(EventKind.EVALUATED, version, ended[0], self._episodes - ended[0])

    async def _episode(self, group: int, member: int, ended: list[int]) -> None:
        rt, episode = self._rt, episode_id(group, member)
        task = Task(member, group)
        lane = self._lanes.pop() if self._lanes else rt.lane(f"evaluation/{group - EVALUATION_GROUPS}/{member}", "evaluation")
        run = EpisodeRun(
            episode, group, member, task, self._source.driver(task, member), self._accounts.admit(episode), lane,
            rt.cancel_scope(), self._retries,
        )  # fmt: skip
        self.running[episode] = run
        version, how = self._versions.p, Ended.CANCELLED
        rt.emit(EventKind.EPISODE_START, episode, group, member, 0, version)
        try:
            how = (await self._rollout.play(run, version)).ended
            ended[0] += 1
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
