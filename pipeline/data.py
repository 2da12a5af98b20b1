"""What crosses the pipeline: tasks, episodes, groups, batches.

Ids are whole numbers. A group's id is its admission ordinal; an episode's id is `group * MEMBERS + member`, so that either
can be read off the other, and the canonical order of episodes is that of their groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

MEMBERS = 1 << 16
"""More members than a group can have."""

EVALUATION_GROUPS = 1 << 40
"""Ids of evaluation groups start here, out of the way of training groups."""


def episode_id(group: int, member: int) -> int:
    """The id of a group's member."""
    return group * MEMBERS + member


class Ended(IntEnum):
    """How an episode ended. Numbers are part of the event log."""

    DONE = 0  # the agent finished, or the environment said so
    TURN_LIMIT = 1  # truncated: too many turns
    TIME_LIMIT = 2  # truncated: a limit inside the task, which is part of its outcome
    FAILED_INFRA = 3  # infrastructure failed and the retries are used up
    FAILED_DATA = 4  # the episode's own data failed
    TIMED_OUT = 5  # a deadline of ours cut it off
    CANCELLED = 6  # cut off on purpose
    CONTEXT_LIMIT = 7  # truncated: the next turn would not fit the model's context
    TOKEN_LIMIT = 8  # truncated: an answer reached its cap on tokens before it was complete


USABLE = (Ended.DONE, Ended.TURN_LIMIT, Ended.TIME_LIMIT, Ended.CONTEXT_LIMIT, Ended.TOKEN_LIMIT)
"""Ends that leave a sample to train on. The others are recorded outcomes, never zero rewards."""


@dataclass(frozen=True, slots=True)
class Task:
    """A thing to attempt: an index into the task source, and how many times it was issued before."""

    index: int
    dispatch: int


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """One finished episode.

    Attributes:
        episode: its id.
        ended: how.
        turns: turns of generation.
        tokens: tokens generated.
        sequence_tokens: tokens of the whole sequence, prompts and observations included: what the learner runs over.
        oldest: version that sampled its oldest token (the version at its start when it generated none).
        newest: version that sampled its newest token.
        reward: score; meaningful for usable ends only.
        payload: opaque: the tokens to train on, or nothing when simulated.

    """

    episode: int
    ended: Ended
    turns: int
    tokens: int
    sequence_tokens: int
    oldest: int
    newest: int
    reward: float = 0.0
    payload: Any = None

    @property
    def usable(self) -> bool:
        """Whether there is a sample to train on."""
        return self.ended in USABLE


@dataclass(frozen=True, slots=True)
class Group:
    """Finished episodes of one task, whole or by quorum.

    Attributes:
        group: id.
        task: what they attempted.
        members: the episodes to train on.
        oldest: version of the oldest token in it.
        newest: version of the newest.
        tokens: tokens that the members generated.
        sequence_tokens: tokens that the learner runs over.
        entered_version: the learner's version when it entered the buffer, which splits its lag.

    """

    group: int
    task: Task
    members: tuple[EpisodeResult, ...]
    oldest: int
    newest: int
    tokens: int
    sequence_tokens: int
    entered_version: int


@dataclass(slots=True)
class Generation:
    """What a live engine is asked for, and what it made so far: the payload of a request. The engine fills the lists.

    Attributes:
        prompt: token ids of the whole context.
        max_tokens: cap on the answer.
        key: (task index, dispatch, member, turn): with the run's seed and the token's number it keys the sampling, so that a
            token does not depend on what else is in the batch.
        temperature: of the sampling; 0 is greedy.
        tokens: ids made so far, the end-of-turn token included; a resumed request goes on behind them.
        log_probs: of each made token, under the weights and the temperature that sampled it.
        versions: of the weights that sampled each token.
        finished: whether it ended with the end-of-turn token, not at its cap.

    """

    prompt: list[int]
    max_tokens: int
    key: tuple[int, int, int, int]
    temperature: float = 1.0
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finished: bool = False


@dataclass(slots=True)
class Sample:
    """What the learner trains on: one sequence. Lists have one entry for each token of the sequence.

    Attributes:
        tokens: ids of the whole sequence: prompts, answers, observations.
        trained: whether the policy made this token, so that it is trained on.
        log_probs: sampled log-probability; 0 where not trained.
        versions: of the weights that sampled it; -1 where not trained.
        truncated: whether the episode was cut off by a limit of turns, tokens or time.

    """

    tokens: list[int]
    trained: list[bool]
    log_probs: list[float]
    versions: list[int]
    truncated: bool = False
