"""One live episode: an agent and an environment behind the interface that the rollout actor sees.

The actor asks for prompts and says what was generated; performers build, reset, step, score and close the environment. The
two meet here and share nothing else. The sequence grows in one place, `act`: first what was observed since, not trained on,
then what the policy made, with its log-probabilities and versions. So its lists are always of one length, and what nobody
answered any more (the observation behind the last answer) is no part of it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from harness.core.work import Status
from pipeline.data import Ended, Generation, Sample
from pipeline.environments.base import DONE, TRUNCATED
from pipeline.environments.environment import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.work import Outcome
    from pipeline.data import Task
    from pipeline.environments.agents import Agent
    from pipeline.environments.environment import BaseTaskEnv


CHARACTERS_A_TOKEN = 64
"""More than tokens have on average. An observation is cut to what cannot fit the context anyway before it is encoded."""


class Fault(StrEnum):
    """What went wrong with an environment: the closed list that `Outcome.error` is taken from."""

    CONSTRUCTOR = "EnvironmentConstructor"
    RESET = "EnvironmentReset"
    STEP = "EnvironmentStep"
    SCORE = "EnvironmentScore"
    CLOSE = "EnvironmentClose"
    KILL = "EnvironmentKill"
    OBSERVATION = "ObservationNotText"
    STEP_TYPE = "StepNotAStep"
    REWARD_TYPE = "RewardNotANumber"
    REWARD_VALUE = "RewardNotFinite"
    ENCODING = "TextNotEncodable"
    CUT_OFF = "StepCutOff"


class Garbage(Exception):
    """A method of an environment returned what it must not.

    Attributes:
        fault: which rule was broken.
        allowed: what would be accepted.
        do: what to change.

    """

    def __init__(self, fault: Fault, problem: str, allowed: str, do: str) -> None:
        super().__init__(problem)
        self.fault = fault
        self.allowed = allowed
        self.do = do


class Rules:
    """What is the same for all episodes of a split.

    Attributes:
        agent: tokenizer and chat format.
        max_turns: of an episode.
        max_response_tokens: of one answer.
        max_context_tokens: of the whole sequence.
        temperature: of the sampling.

    """

    __slots__ = ("agent", "max_context_tokens", "max_response_tokens", "max_turns", "temperature")

    def __init__(
        self, agent: Agent, *, max_turns: int, max_response_tokens: int, max_context_tokens: int, temperature: float
    ) -> None:
        self.agent = agent
        self.max_turns = max_turns
        self.max_response_tokens = max_response_tokens
        self.max_context_tokens = max_context_tokens
        self.temperature = temperature


class LiveEpisode:
    """Agent and environment of one episode.

    Args:
        task: what the source gave out.
        member: its place in the group.
        environment_class: of the environment.
        build: makes it; may block and fail.
        rules: of its split.

    Attributes:
        environment: built by the reset; None before it and after the close.
        time_limited: whether the environment ended it at a limit of its own.
        failed: how it broke, as an `Ended`; 0 while it did not.
        fault: what broke it.
        host: of the loop that it runs in, set by the performers.

    """

    __slots__ = (
        "_asked", "_build", "_complete", "_environment_class", "_member", "_pending", "_rules", "_task", "action", "cut_off",
        "environment", "failed", "fault", "host", "log_probs", "max_turns", "misread", "over", "time_limited", "tokens",
        "trained", "versions",
    )  # fmt: skip

    def __init__(
        self, task: Task, member: int, environment_class: type[BaseTaskEnv], build: Callable[[], BaseTaskEnv], rules: Rules
    ) -> None:
        self._task = task
        self._member = member
        self._environment_class = environment_class
        self._build = build
        self._rules = rules
        self.max_turns = rules.max_turns
        self.environment: BaseTaskEnv | None = None
        self.time_limited = False
        self.failed = 0
        self.fault = ""
        self.action = ""
        self.cut_off = False
        self.misread: BaseException | None = None
        self.over = False
        self.host: Any = None
        self._begin()

    def _begin(self) -> None:
        self.tokens: list[int] = []
        self.trained: list[bool] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self._pending: list[int] = []
        self._asked: Generation | None = None
        self._complete = False

    # ── what the rollout actor asks ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def first_tokens(self) -> int:
        """Tokens of the first prompt."""
        return len(self._pending)

    def prompt(self, turn: int, context_tokens: int, observed_tokens: int, /) -> tuple[int, int, int, Generation]:
        """Nothing is cached between turns; the cap is what the answer may have, or -1 when there is no room for one."""
        rules, task = self._rules, self._task
        prompt = self.tokens + self._pending
        size = len(prompt)
        cap = min(rules.max_response_tokens, rules.max_context_tokens - size)
        if cap < 1:
            cap = -1
        key = (task.index, task.dispatch, self._member, turn)
        self._asked = asked = Generation(prompt, cap, key, rules.temperature)
        return 0, size, cap, asked

    def act(self, turn: int, result: Any, /) -> int:
        """Take the answer in. 0 when the environment has to step, `DONE` or `TRUNCATED` when it need not."""
        asked = self._asked
        assert asked is not None
        self._take(asked)
        if not asked.finished:
            return TRUNCATED
        assert self.environment is not None
        try:
            self.action = self._rules.agent.text(asked.tokens)
            final = self.environment.final(self.action)
        except Exception as failure:
            self.misread = failure
            return 0
        self.cut_off = False
        if final:
            self._complete = True
            return DONE
        return 0

    def _take(self, asked: Generation) -> None:
        """What was observed and what the policy made join the sequence."""
        pending, made = self._pending, asked.tokens
        seen, new = len(pending), len(made)
        self.tokens += pending
        self.tokens += made
        self.trained += [False] * seen + [True] * new
        self.log_probs += [0.0] * seen + asked.log_probs
        self.versions += [-1] * seen + asked.versions
        self._pending = []

    def observe(self, turn: int, outcome: Outcome, /) -> tuple[int, bool]:
        """Tokens of the observation that the step left here, and whether the episode is over."""
        if outcome.status is not Status.OK:
            self.broke(Ended.TIMED_OUT if outcome.error == Fault.CUT_OFF else Ended.FAILED_DATA, outcome.error)
            return 0, True
        return len(self._pending), self.over

    def sample(self) -> Sample:
        """The sequence up to the last answer. Truncated unless the agent or the environment said that it was done."""
        return Sample(self.tokens, self.trained, self.log_probs, self.versions, truncated=not self._complete)

    # ── what the host performers call ───────────────────────────────────────────────────────────────────────────────────

    def broke(self, ended: Ended, fault: str) -> None:
        """There is nothing to score any more."""
        self.failed = int(ended)
        self.fault = fault

    @property
    def inline(self) -> bool:
        """Whether building takes no time worth a thread."""
        return bool(self._environment_class.__dict__.get("inline", False))

    @property
    def name(self) -> str:
        """Of the environment's class."""
        return self._environment_class.__name__

    def build(self) -> BaseTaskEnv:
        """A new environment. May block, hang and fail."""
        return self._build()

    def begin(self, environment: BaseTaskEnv) -> None:
        """An environment was built: it is this episode's from now on, to be closed once."""
        self._begin()
        environment.host = self.host
        environment.rewards = []
        self.environment = environment

    def take(self) -> BaseTaskEnv | None:
        """The environment, to be closed by whoever took it: nobody else gets it."""
        environment, self.environment = self.environment, None
        return environment

    def prompted(self, prompt: Any) -> None:
        """The reset answered.

        Raises:
            Garbage: it is neither a text nor a list of chat messages.

        """
        if not isinstance(prompt, str) and not _messages(prompt):
            raise Garbage(
                Fault.OBSERVATION, f"reset returned {_shown(prompt)}",
                'a text, or a list of {"role": "system", "user" or "assistant", "content": text}', "return the prompt",
            )  # fmt: skip
        tools = getattr(self.environment, "schemas", None)
        self._pending = self._encode(lambda: self._rules.agent.first(prompt, tools))

    def stepped(self, step: Any) -> None:
        """The step answered.

        Raises:
            Garbage: it is no `Step`, or its observation is no text.

        """
        if step.__class__ is not Step:
            raise Garbage(Fault.STEP_TYPE, f"step returned {_shown(step)}", "a Step", "return Step(observation, done=…)")
        if not isinstance(step.observation, str):
            raise Garbage(
                Fault.OBSERVATION, f"Step.observation is {_shown(step.observation)}", "a text", "return Step(text, done=…)"
            )
        assert self.environment is not None
        if step.reward is not None:
            self.environment.rewards.append(self.scored(step.reward))
        self.over = bool(step.done)
        if self.over:
            self.time_limited = bool(step.truncated)
            self._complete = not self.time_limited
            self._pending = []
            return
        observation = step.observation[: CHARACTERS_A_TOKEN * self._rules.max_context_tokens]
        self._pending = self._encode(lambda: self._rules.agent.observation(observation))

    @staticmethod
    def _encode(encode: Callable[[], list[int]]) -> list[int]:
        try:
            return encode()
        except Exception as failure:
            raise Garbage(
                Fault.ENCODING, str(failure), "characters of the tokenizer's vocabulary",
                "add what is missing to the environment's `alphabet`, or leave it out of the text",
            ) from failure  # fmt: skip

    @staticmethod
    def scored(reward: Any) -> float:
        """The score answered.

        Raises:
            Garbage: it is no finite number.

        """
        if isinstance(reward, str | bytes) or not hasattr(reward, "__float__"):
            raise Garbage(Fault.REWARD_TYPE, f"the reward is {_shown(reward)}", "a finite number", "return a float")
        value = float(reward)
        if not math.isfinite(value):
            raise Garbage(
                Fault.REWARD_VALUE, f"the reward is {value}", "a finite number",
                "raise an exception when there is no score: the episode then counts as failed, not as zero",
            )  # fmt: skip
        return value


_ROLES = ("system", "user", "assistant")


def _messages(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
            for message in prompt
        )
    )


def _shown(value: Any) -> str:
    """A value's type, and a little of it."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 64 else text[:61] + '...'}"
