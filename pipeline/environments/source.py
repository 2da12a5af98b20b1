"""Where a live run's tasks come from: a cursor over numbered tasks, and an episode for each member of a group.

A task of training is its number; after the last one the first comes again as a new dispatch. A task of evaluation is one whose
dispatch is an evaluation group (`pipeline.data.EVALUATION_GROUPS`): it is taken from the held-out split.

State is the cursor and the tasks to issue again first: what was in flight when a run was killed.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.core.errors import ConfigError, DataError, HarnessError
from pipeline.data import EVALUATION_GROUPS, Sample, Task
from pipeline.environments.episode import LiveEpisode, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.environments.agents import Agent
    from pipeline.environments.environment import BaseTaskEnv
    from pipeline.live_config import LiveConfig


class LiveSource:
    """Gives out tasks and episodes.

    Args:
        environment: class of the environments (`pipeline.environments.resolve`).
        live: the scenario's table `[live]`.
        agent: tokenizer and chat format.
        seed: of the run.

    """

    def __init__(self, environment: type[BaseTaskEnv], live: LiveConfig, agent: Agent, *, seed: int) -> None:
        table, sampling = live.environment, live.sampling
        self._environment = environment
        self._options = dict(table.options)
        self._agent = agent
        self._seed = seed
        self._train_tasks = table.train_tasks
        self._eval_tasks = table.eval_tasks
        limits = {
            "max_turns": table.max_turns,
            "max_response_tokens": sampling.max_response_tokens,
            "max_context_tokens": sampling.max_context_tokens,
        }
        self._train = Rules(agent, temperature=sampling.temperature, **limits)
        self._eval = Rules(agent, temperature=sampling.eval_temperature, **limits)
        self._given = 0
        self._again: deque[Task] = deque()

    def next_task(self) -> Task:
        """The next task; first those that have to be issued again."""
        if self._again:
            return self._again.popleft()
        dispatch, index = divmod(self._given, self._train_tasks)
        self._given += 1
        return Task(index, dispatch)

    def driver(self, task: Task, member: int, version: int = 0, /) -> LiveEpisode:
        """A new episode; its environment is built by the reset. What it is like does not depend on the published version."""
        if task.dispatch >= EVALUATION_GROUPS:
            build, rules = partial(self._build, "eval", task.index % self._eval_tasks), self._eval
        else:
            build, rules = partial(self._build, "train", task.index), self._train
        return LiveEpisode(task, member, self._environment, build, rules)

    def task(self, split: str, index: int) -> Any:
        """The user's task with this number in `train` or `eval`."""
        return self._environment.tasks(split, index, self._seed, **self._options)

    def _build(self, split: str, index: int) -> BaseTaskEnv:
        return self._environment(self.task(split, index), **self._options)

    def demonstrations(self, count: int) -> list[Sample]:
        """Perfect transcripts of the first training tasks, as the learner trains on them; log-probabilities are 0.

        Raises:
            ConfigError: the environment gives no demonstrations.
            DataError: one does not fit into the context.

        """
        return [self._demonstration(index % self._train_tasks) for index in range(count)]

    def _demonstration(self, index: int) -> Sample:
        environment = self._environment
        try:
            task = self.task("train", index)
            transcript = list(environment.demonstration(task, **self._options))
        except NotImplementedError:
            raise ConfigError(
                f"{environment.__name__} gives no demonstrations to learn from", field="live.learner.warm_start_steps",
                allowed="0 for this environment",
                remedy="set it to 0, or give the environment a classmethod demonstration(task, **options)",
            ) from None  # fmt: skip
        except HarnessError:
            raise
        except Exception as failure:
            raise ConfigError(
                f"{environment.__name__}.demonstration of training task {index} raises {type(failure).__name__}: {failure}",
                field="live.environment.name", allowed="a transcript of every training task", remedy="mend the method",
            ) from failure  # fmt: skip
        if not transcript or not all(_is_said(entry) for entry in transcript):
            raise ConfigError(
                f"{environment.__name__}.demonstration of training task {index} is no transcript",
                field="live.environment.name", value=transcript[:4],
                allowed="pairs of a text and whether the agent says it, beginning with the prompt",
                remedy="return [(prompt, False), (answer, True), …]",
            )  # fmt: skip

        def tools() -> Any:
            shown = getattr(environment(task, **self._options), "schemas", None)
            return shown() if shown is not None else ()

        sample = Sample([], [], [], [])
        for number, (text, trained) in enumerate(transcript):
            if trained:
                tokens = [*self._agent.tokenizer.encode(text), self._agent.tokenizer.end_id]
            else:
                tokens = self._agent.observation(text) if number else self._agent.first(text, tools)
            sample.tokens += tokens
            sample.trained += [trained] * len(tokens)
            sample.log_probs += [0.0] * len(tokens)
            sample.versions += [0 if trained else -1] * len(tokens)
        if len(sample.tokens) > self._train.max_context_tokens:
            raise DataError(
                f"the demonstration of training task {index} has {len(sample.tokens)} tokens",
                field="live.sampling.max_context_tokens", value=self._train.max_context_tokens,
                remedy="raise it, or make the tasks smaller",
            )  # fmt: skip
        return sample

    # ── checkpoint and resume ───────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, Any]:
        """The cursor and the tasks that wait to be issued again, as plain data."""
        return {"given": self._given, "again": [[task.index, task.dispatch] for task in self._again]}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Go on where `state` was taken."""
        self._given = int(state["given"])
        self._again = deque(Task(int(index), int(dispatch)) for index, dispatch in state["again"])

    def issue_again(self, tasks: Iterable[Task]) -> None:
        """Give these out first, in this order: they were in flight when the run ended."""
        self._again.extendleft(reversed(list(tasks)))


def _is_said(entry: Any) -> bool:
    """Whether it is a text and who says it, or a prompt in messages."""
    return isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str | list) and isinstance(entry[1], bool)
