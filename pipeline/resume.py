"""Capture of a pipeline's state, and a pipeline that goes on from one.

Both are synchronous: they see one instant. What a resumed run was given enters its log at time zero, as groups that are
admitted, released and put there and then, so that the record of a resumed run obeys the same laws as any other.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.accounts import Fate
from harness.core.errors import ConfigError
from harness.core.events import EventKind
from pipeline.data import MEMBERS, Group
from pipeline.state import Books, PipelineState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.core.accounts import Accounts
    from harness.core.runtime import Runtime
    from pipeline.actors.buffer import Buffer
    from pipeline.actors.checkpointer import Checkpointer
    from pipeline.actors.evaluation import Evaluation
    from pipeline.actors.groups import Groups
    from pipeline.actors.learner import Learner
    from pipeline.config import PipelineConfig
    from pipeline.environments.base import TaskSource
    from pipeline.policies.admission import Admission
    from pipeline.policies.versions import VersionClock


@dataclass(frozen=True, slots=True)
class Holders:
    """Whoever holds a part of the state."""

    rt: Runtime
    config: PipelineConfig
    accounts: Accounts
    versions: VersionClock
    admission: Admission
    source: TaskSource
    groups: Groups
    buffer: Buffer
    learner: Learner
    checkpointer: Checkpointer
    evaluation: Evaluation


def capture(of: Holders, notes: Mapping[str, Any]) -> PipelineState:
    """The state at this instant, between two optimizer steps."""
    accounts = of.accounts
    return PipelineState(
        t=of.versions.t,
        p=of.versions.p,
        next_group=of.groups.next_group,
        source=of.source.state(),
        in_flight=of.groups.in_flight,
        buffered=of.buffer.held,
        taken=of.learner.in_hands,
        evaluation_rounds=of.evaluation.rounds,
        evaluation_version=of.evaluation.version,
        evaluating=bool(of.evaluation.running),
        books=Books(accounts.admitted, accounts.made_tokens, _by_name(accounts.settled), _by_name(accounts.tokens)),
        notes=deepcopy(dict(notes)),  # it is written later, by a thread
    )


def _by_name(counts: list[int]) -> dict[str, int]:
    return {fate.name.lower(): counts[fate] for fate in Fate if counts[fate]}


def _by_fate(counts: Mapping[str, int]) -> dict[Fate, int]:
    return {Fate[name.upper()]: count for name, count in counts.items()}


def resume(of: Holders, state: PipelineState) -> None:
    """Go on from a checkpoint. Called on a new pipeline whose versions, engines and sync stand at the checkpoint's step.

    Raises:
        ConfigError: the configuration has no room for what the checkpoint holds.

    """
    config = of.config
    if len(state.taken) > config.groups_per_step:
        raise ConfigError(
            f"the checkpoint was made within a step that had taken {len(state.taken)} groups, more than one step takes",
            field="pipeline.groups_per_step",
            value=config.groups_per_step,
            allowed=f"{len(state.taken)} or more for this resume",
            remedy="resume with the groups_per_step of the run that was checkpointed",
        )
    books = state.books
    held = {member.episode: member.tokens for group in state.groups for member in group.members}
    of.accounts.resume(books.admitted, books.made_tokens, _by_fate(books.settled), _by_fate(books.tokens), held)
    put_back(of, state)


def put_back(of: Holders, state: PipelineState) -> None:
    """Hand everybody what the state says that they held. The books have been seen to."""
    t, config = state.t, of.config
    of.admission.rebuild(
        t,
        of.versions.p,
        trained=t * config.groups_per_step + len(state.taken),
        buffered=[group.group for group, _ in state.buffered],
        since_due=t % config.steps_per_sync * config.groups_per_step + len(state.taken),
    )
    of.source.restore(state.source)
    of.source.issue_again(state.in_flight)
    of.groups.resume_at(state.next_group)
    for group in state.groups:
        _tell(of.rt, group, t)
    of.buffer.restore(state.buffered)
    of.learner.resume(state.taken)
    of.checkpointer.saved = t
    of.evaluation.resume(state.evaluation_rounds, state.evaluation_version)


def _tell(rt: Runtime, group: Group, t: int) -> None:
    """A group that came with the checkpoint enters the log."""
    rt.emit(EventKind.GROUP_ADMIT, group.group, group.task.index, group.task.dispatch, t + 1, t, len(group.members))
    for member in group.members:
        number = member.episode % MEMBERS
        rt.emit(EventKind.EPISODE_START, member.episode, group.group, number, 0, member.oldest)
        rt.emit(EventKind.EPISODE_END, member.episode, member.ended, member.turns, member.tokens, member.oldest, member.newest)
    rt.emit(EventKind.GROUP_RELEASE, group.group, len(group.members), group.tokens, group.oldest, group.entered_version)
