"""What several actors share: one episode in flight, deadlines in nanoseconds, the counters of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.units import ns_from_s
from pipeline.policies.retries import Attempts

if TYPE_CHECKING:
    from harness.core.accounts import Account
    from harness.core.lanes import Lane
    from harness.core.runtime import CancelScope
    from pipeline.config import Deadlines
    from pipeline.data import Task
    from pipeline.environments.base import EpisodeDriver
    from pipeline.policies.retries import RetryPolicy


class DeadlinesNs:
    """The `Deadlines` table in integer nanoseconds."""

    __slots__ = ("checkpoint", "close", "episode", "evaluation", "generation", "reset", "reward", "step", "sync", "tool")

    def __init__(self, table: Deadlines) -> None:
        self.reset = ns_from_s(table.build_s + table.reset_s)  # one piece of work builds and resets
        self.step = ns_from_s(table.step_s)
        self.tool = ns_from_s(table.tool_s)
        self.generation = ns_from_s(table.generation_s)
        self.reward = ns_from_s(table.reward_s)
        self.close = ns_from_s(table.close_s)
        self.sync = ns_from_s(table.sync_s)
        self.checkpoint = ns_from_s(table.checkpoint_s)
        self.evaluation = ns_from_s(table.evaluation_s)
        self.episode = ns_from_s(table.episode_s)


class EpisodeRun:
    """One episode in flight.

    Attributes:
        episode: id.
        group: its group's id.
        member: its place in the group.
        task: what it attempts.
        driver: agent and environment.
        account: its open account.
        lane: the slot it occupies.
        scope: cancels it.
        attempts: failures so far.
        turns: turns done.
        tool: the tool that this turn calls, -1 before the agent chose.
        tool_attempt: how often that call was tried before.
        step_ends_ns: deadline of this turn's step.
        tokens: tokens generated.
        context: tokens of its sequence so far, prompts and observations included.
        oldest: version of its oldest token, -1 before the first.
        newest: version of its newest token.

    """

    __slots__ = (
        "account",
        "attempts",
        "context",
        "driver",
        "episode",
        "group",
        "lane",
        "member",
        "newest",
        "oldest",
        "scope",
        "step_ends_ns",
        "task",
        "tokens",
        "tool",
        "tool_attempt",
        "turns",
    )

    def __init__(
        self,
        episode: int,
        group: int,
        member: int,
        task: Task,
        driver: EpisodeDriver,
        account: Account,
        lane: Lane,
        scope: CancelScope,
        retries: RetryPolicy,
    ) -> None:
        self.episode = episode
        self.group = group
        self.member = member
        self.task = task
        self.driver = driver
        self.account = account
        self.lane = lane
        self.scope = scope
        self.attempts = Attempts(retries)
        self.turns = 0
        self.tool = -1
        self.tool_attempt = 0
        self.step_ends_ns = 0
        self.tokens = 0
        self.context = 0
        self.oldest = -1
        self.newest = -1


class Tally:
    """Counters of a run's reported window."""

    def __init__(self) -> None:
        self.windows = 0
        self.clear()

    def clear(self) -> None:
        """The window starts now."""
        self.windows += 1
        self.turns = 0
        self.episodes = 0
        self.steps = 0
        self.groups = 0
        self.lags: list[int] = []
        self.lags_in_queue: list[int] = []
        self.dropped: dict[str, int] = {}
        self.generated_lengths: list[int] = []
        self.trained_lengths: list[int] = []
        self.calls: dict[int, int] = {}  # of tools that were begun, by index
        self.provider_queue_ns = 0  # of tool calls, until their providers began with them
        self.losses = 0  # slices of chips
        self.recoveries_ns: list[int] = []  # from the loss of a slice until it worked again
        self.rollbacks = 0
        self.steps_lost = 0  # completed, and taken back by a rollback
        self.lost_learner_ns = 0  # of work on steps that were taken back

    def call(self, tool: int) -> None:
        """A tool call begins."""
        self.calls[tool] = self.calls.get(tool, 0) + 1

    def drop(self, reason: str) -> None:
        """A group was dropped."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
