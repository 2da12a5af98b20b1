"""What the rollout actor needs to know of tasks, agents and environments: three small interfaces.

A simulated episode and a real one look the same from here. The actor hands the driver to performers as payload: live it
holds an agent and an environment, simulated it holds a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.work import Outcome
    from pipeline.data import Task


Prompt = tuple[int, int, int, Any]
"""What to generate from: tokens of context whose KV still exists, tokens to prefill, cap on the answer's tokens, and an opaque
payload (token ids, or the simulated length). A cap below zero says that not even the prompt fits the model's context."""

DONE, TRUNCATED = -1, -2
"""What `EpisodeDriver.act` says instead of a tool: the agent has finished, or its answer was cut off at the cap on tokens."""


class EpisodeDriver(Protocol):
    """Agent and environment of one episode. Nothing here waits: what takes time is work, done by performers."""

    def prompt(self, turn: int, context_tokens: int, observed_tokens: int, /) -> Prompt:
        """The request of a turn.

        Args:
            turn: from 0.
            context_tokens: tokens of the episode before `observed_tokens`.
            observed_tokens: what joined since: the first prompt, or the last observation.

        """

    def act(self, turn: int, result: Any, /) -> int:
        """The tool that the agent calls after generating; `DONE` or `TRUNCATED` when it calls none."""

    def observe(self, turn: int, outcome: Outcome, /) -> tuple[int, bool]:
        """Tokens of the observation, and whether the environment ends the episode."""

    def sample(self) -> Any:
        """What to train on, opaque, when the episode has ended with a usable result; None when simulated."""

    @property
    def first_tokens(self) -> int:
        """Tokens of the first prompt; asked for after the reset."""

    @property
    def max_turns(self) -> int:
        """Turns after which the episode is truncated."""

    @property
    def time_limited(self) -> bool:
        """Whether the task ended at a time limit of its own."""

    @property
    def failed(self) -> int:
        """0, or how an episode that `observe` called over has broken, as a `pipeline.data.Ended`: there is nothing to score."""


class TaskSource(Protocol):
    """Where tasks come from."""

    def next_task(self) -> Task | None:
        """The next task to start a group for; None when there are no more."""

    def driver(self, task: Task, member: int, version: int, /) -> EpisodeDriver:
        """Agent and environment for one member of a group, which starts while `version` is published."""

    def state(self) -> Mapping[str, Any]:
        """Where the source stands: JSON-able, for a checkpoint."""

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Stand where `state` was taken."""

    def issue_again(self, tasks: Sequence[Task], /) -> None:
        """Give these out before anything else, in this order: they were in flight when the run ended."""
