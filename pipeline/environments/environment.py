"""Environments, as a user writes them.

An environment is one attempt at one task: built, reset once, stepped until it says that it is done, scored, closed. The
smallest is a `TaskEnvironment`: a prompt and a verifier. Every method may be a plain function or an `async def`. Plain ones
run on threads, a bounded number at once, so they may block; `async def` ones run in the event loop (trio) and must not, and
cost almost nothing.

Tasks are plain data, made from a random source that belongs to their number, so that the n-th task of a run is always the
same. A task is held out for evaluation when a hash of its content says so: train and eval never share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from inspect import iscoroutinefunction
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from harness.core.errors import ConfigError, HarnessError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

Messages = list[dict[str, str]]
"""A conversation: `{"role": "system" | "user" | "assistant", "content": text}` each."""

HELD_OUT = 8
"""One task in so many is held out for evaluation."""

_TRIES = 10_000


class InfraFailure(Exception):
    """Raise it when what the environment runs on has failed, not the task: it is then tried again (`pipeline.retry_infra`).

    `OSError` (with `ConnectionError` and `TimeoutError`) says the same. Any other exception ends the episode as failed.
    """


class ThreadsLostError(HarnessError):
    """More threads hang than there are spares: the run cannot go on. Says who hangs, in which phase and for how long."""

    exit_code = 2


@dataclass(slots=True)
class Step:
    """What `step` answers.

    Attributes:
        observation: what the agent reads next.
        done: whether the environment ends the episode.
        reward: of this step, for environments whose score is the sum.
        truncated: whether it ends it at a limit of its own, which is no success and no failure.

    """

    observation: str
    done: bool = False
    reward: float | None = None
    truncated: bool = False


class Host(Protocol):
    """What an `async def` method may ask of the loop it runs in, without knowing it: `self.host`."""

    async def in_thread(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call a function that blocks, on a thread."""

    async def together(self, calls: Sequence[Callable[[], Awaitable[Any]]], /) -> list[Any]:
        """Run several at once; their results in order. The first failure cancels the rest."""

    async def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


class BaseTaskEnv:
    """One attempt at one task, in any number of turns.

    A subclass gives `make_task`, `reset` and `step`; `score` where the reward is not the sum of the steps'; `close` where there
    is something to tear down, and `kill` where a call that hangs can be ended from outside.

    Args:
        task: what `make_task` made.
        options: the table `live.environment.options` of the scenario.

    Attributes:
        alphabet: characters that prompts, answers and observations are made of; sizes the character model.
        repeatable: whether `step` may be called again with the same action after it was cut off at a deadline.
        inline: whether the constructor is too quick to need a thread. Not inherited.
        host: of the running loop; there from `reset` on.
        rewards: of the steps that gave one; there from `reset` on.

    """

    alphabet: ClassVar[str] = ""
    repeatable: ClassVar[bool] = False
    inline: ClassVar[bool] = False
    host: Host
    rewards: list[float]

    def __init__(self, task: Any, **options: Any) -> None:
        self.task = task
        self.options = options

    @classmethod
    def make_task(cls, rng: Random, *args: Any, **options: Any) -> Any:
        """A task, as plain data, from nothing but the random source."""
        raise NotImplementedError

    @classmethod
    def tasks(cls, split: str, index: int, seed: int, **options: Any) -> Any:
        """The task with this number. Override it to read tasks from a dataset instead of making them.

        Args:
            split: `train` or `eval`, which must not share a task.
            index: from 0.
            seed: of the run.
            options: of the scenario.

        """
        rng = Random(f"{split}/{seed}/{index}")
        for _ in range(_TRIES):
            task = cls.make_task(rng, **options)
            if held_out(task) == (split == "eval"):
                return task
        raise ConfigError(
            f"{cls.__name__}.make_task made {_TRIES:,} tasks and none is for {split}: it makes too few different ones",
            field="live.environment.options",
            value=options,
            allowed=f"tasks of which one in {HELD_OUT} can be held out",
            remedy="widen the options, or override the classmethod tasks(split, index, seed, **options)",
        )

    @classmethod
    def demonstration(cls, task: Any, **options: Any) -> list[tuple[str, bool]]:
        """A perfect transcript for the supervised warm start, as (text, whether the agent says it), beginning with the prompt.

        Optional: without it there is no warm start.
        """
        raise NotImplementedError

    def reset(self) -> Any:
        """Begin. Returns the prompt: a text, or a list of chat messages (`Messages`)."""
        raise NotImplementedError

    def final(self, action: str) -> bool:
        """Whether this answer ends the episode without a step. Called in the event loop: quick, never waits."""
        return False

    def step(self, action: str) -> Any:
        """Take the agent's answer. Returns a `Step`."""
        raise NotImplementedError

    def score(self) -> Any:
        """The episode's reward, a finite number; the steps' sum by default. Called when it has ended, truncated or not."""
        return sum(self.rewards)

    def close(self) -> Any:
        """Tear down. Called exactly once for every environment that was built, also while a call of it still hangs."""

    def kill(self) -> None:
        """A call of this environment is given up: end it if you can. Quick, never waits; may be called more than once."""


class TaskEnvironment(BaseTaskEnv):
    """One turn: a prompt, an answer, a verifier. A subclass gives `make_task`, `prompt` and `verify`."""

    answer: str = ""

    def prompt(self) -> Any:
        """What the agent is asked: a text, or a list of chat messages. Quick: it runs in the event loop."""
        raise NotImplementedError

    def verify(self, answer: str) -> Any:
        """The reward of an answer. May be an `async def`."""
        raise NotImplementedError

    async def reset(self) -> Any:
        """The prompt."""
        return self.prompt()

    def final(self, action: str) -> bool:
        """The first answer is the last."""
        self.answer = action
        return True

    async def step(self, action: str) -> Step:
        """There is no second turn."""
        return Step("", done=True)

    async def score(self) -> Any:
        """What the verifier says of the answer."""
        return await call(self, self.verify, self.answer)

    async def close(self) -> None:
        """There is nothing to tear down."""


def held_out(task: Any) -> bool:
    """Whether a task belongs to evaluation: decided by its content alone."""
    return blake2b(repr(task).encode(), digest_size=8).digest()[0] % HELD_OUT == 0


async def call(environment: BaseTaskEnv, method: Callable[..., Any], *args: Any) -> Any:
    """Call a user's method where it belongs: `async def` in the loop, a plain one on a thread."""
    if iscoroutinefunction(method):
        return await method(*args)
    return await environment.host.in_thread(method, *args)
