"""Episodes of the simulated world: agent and environment of each follow a plan that was drawn when it was admitted.

They offer what `pipeline.environments.base.EpisodeDriver` and `TaskSource` ask for; nothing here knows a pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.work import Outcome
    from harness.costs.schedules import Drifting
    from harness.costs.workload import EpisodePlan, WorkloadModel


class SimulatedEpisode:
    """Agent and environment of one episode, following its plan.

    Args:
        model: draws the plan, and later attempts: what episodes were like when this one started.
        task: which task.
        dispatch: how often it was given out before.
        member: which episode of the group.
        reuse: share of a context whose KV cache is found again.

    """

    __slots__ = ("_cap", "_max_context", "_reuse", "dispatch", "homes", "member", "model", "plan", "task")

    failed = 0

    def __init__(self, model: WorkloadModel, task: int, dispatch: int, member: int, reuse: float) -> None:
        self.model = model
        self.plan: EpisodePlan = model.plan(task, dispatch, member)
        self.task = task
        self.dispatch = dispatch
        self.member = member
        self.homes: tuple[int, ...] | None = None  # hosts that it depends on, looked up when first asked for
        self._cap = model.response_cap
        self._max_context = model.max_context
        self._reuse = reuse

    @property
    def first_tokens(self) -> int:
        """Tokens of the first prompt."""
        return self.plan.prompt_tokens

    @property
    def max_turns(self) -> int:
        """Turns of the plan."""
        return self.plan.turns

    @property
    def time_limited(self) -> bool:
        """Whether the run ends at a time limit."""
        return self.plan.time_limited

    def prompt(self, turn: int, context_tokens: int, observed_tokens: int, /) -> tuple[int, int, int, int]:
        """Cached tokens, new tokens, cap, and how many tokens the answer will have."""
        cached = int(context_tokens * self._reuse)
        response = self.plan.response_tokens[turn]
        cap = self._max_context - context_tokens - observed_tokens
        if cap > self._cap:
            cap = self._cap
        elif cap < response:
            cap = response
        return cached, context_tokens - cached + observed_tokens, cap, response

    def sample(self) -> None:
        """There is nothing to train on."""

    def act(self, turn: int, result: Any, /) -> int:
        """The planned tool."""
        return self.plan.tool[turn]

    def observe(self, turn: int, outcome: Outcome, /) -> tuple[int, bool]:
        """The planned observation; the episode is over after the plan's last turn."""
        return self.plan.observation_tokens[turn], turn + 1 >= self.plan.turns


class SimulatedSource:
    """Gives out tasks in order, and after the last one the first again as a new dispatch.

    Args:
        models: of the workload, by published version.
        make_task: the pipeline's own task type, called with (index, dispatch).
        prefix_reuse: share of a context whose KV cache is found again.

    """

    def __init__(self, models: Drifting[WorkloadModel], make_task: Any, prefix_reuse: float) -> None:
        self._models = models
        self._tasks = models.at(0).tasks
        self._make_task = make_task
        self._reuse = prefix_reuse
        self._given = 0
        self._again: list[Any] = []  # tasks to be issued again, the first one last

    def next_task(self) -> Any:
        """The next task."""
        if self._again:
            return self._again.pop()
        dispatch, index = divmod(self._given, self._tasks)
        self._given += 1
        return self._make_task(index, dispatch)

    def state(self) -> dict[str, Any]:
        """How many tasks were given out, and which of them are to be issued again."""
        return {"given": self._given, "again": [[task.index, task.dispatch] for task in reversed(self._again)]}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Go on where `state` was taken."""
        self._given = state["given"]
        self._again = [self._make_task(index, dispatch) for index, dispatch in reversed(state["again"])]

    def issue_again(self, tasks: Sequence[Any], /) -> None:
        """Give these out first, in this order."""
        self._again.extend(reversed(tasks))

    def driver(self, task: Any, member: int, version: int, /) -> SimulatedEpisode:
        """An episode with its plan drawn, as episodes are under a published version."""
        return SimulatedEpisode(self._models.at(version), task.index, task.dispatch, member, self._reuse)
