"""What a run goes back to when its learner's chips are lost, and what that costs.

Theory of operation. A process that is killed and resumed starts from its last checkpoint, and what it did since then never
happened (`pipeline.state`). A run whose learner's slice is lost does the same within itself, by the same code: everything that
runs is cancelled, the state of the last checkpoint is put back into new actors, and they go on (`pipeline.resume`). Only three
things are different, because there is one clock, one log and one set of books:

*Names.* A group has one name in a run. Groups that come with the checkpoint get new ones, in the order of the old; so do those
that follow.

*Books.* An episode that comes with the checkpoint is open again, whatever had become of it, with the tokens that were made for
it; it will be trained once more and counted once. An episode that was trained since then is lost, and its task is issued again.
One that was dropped since then stays dropped. The learner's work since the checkpoint is lost.

*Time.* It passes: for the replacement, for loading the checkpoint, and for the weights on their way to the replicas.

Tokens of versions that were taken back are never trained on: whoever held them is lost, and every replica takes the weights of
the checkpoint before it serves again.

A checkpoint counts when its save is complete. Before the first one a run goes back to where it started.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.events import EventKind
from harness.core.lanes import State
from pipeline.actors.groups import token_versions
from pipeline.data import MEMBERS, Ended, Group, episode_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane
    from pipeline.actors.shared import Tally
    from pipeline.resume import Holders
    from pipeline.state import PipelineState


@dataclass(frozen=True, slots=True)
class _Point:
    """Where everything stood when a checkpoint was made."""

    state: PipelineState
    start: bool = False  # nothing has been saved yet
    closed: int = 0  # accounts that had been closed since the checkpoint before
    window: int = 0  # number of the tally's window
    lags: int = 0
    trained: int = 0
    learner_ns: int = 0  # time that the learner had worked


class Recovery:
    """The way back of one run.

    Args:
        accounts: the books; they keep a journal from now on.
        tally: the counters.
        lane: the learner's.
        start: where the run begins.

    """

    def __init__(self, accounts: Accounts, tally: Tally, lane: Lane, start: PipelineState) -> None:
        self._accounts = accounts
        self._tally = tally
        self._lane = lane
        self._point = self._captured = _Point(start, start=True)
        self._marked_ns = 0
        self._times = 0
        accounts.keep_journal()

    def captured(self, state: PipelineState) -> None:
        """A state is about to be saved."""
        self._captured = self._here(state)

    def saved(self, state: PipelineState) -> None:
        """It has been saved: this is where the run goes back to from now on."""
        if self._captured.state is not state:
            return
        self._accounts.forget(self._captured.closed)
        self._point = self._captured

    @property
    def version(self) -> int:
        """What it goes back to."""
        return self._point.state.t

    @property
    def at_start(self) -> bool:
        """Whether it goes back to where it started, for want of a checkpoint."""
        return self._point.start

    def mark(self) -> None:
        """The reported window starts now."""
        self._marked_ns = self._work_ns()

    def _here(self, state: PipelineState) -> _Point:
        tally = self._tally
        return _Point(
            state,
            closed=self._accounts.journal_entries,
            window=tally.windows,
            lags=len(tally.lags),
            trained=len(tally.trained_lengths),
            learner_ns=self._work_ns(),
        )

    def _work_ns(self) -> int:
        spent = self._lane.spent_ns(self._lane.now())
        return spent[State.TRAIN] + spent[State.LOG_PROBS]

    def go_back(self, of: Holders) -> PipelineState:
        """The job is over, its learner's chips lost. What it held is dropped; the state to go on from comes back."""
        t, state = of.versions.t, self._point.state
        for run in of.groups.unfinished:
            ends = token_versions(run, of.versions.p)
            of.rt.emit(EventKind.EPISODE_END, run.episode, Ended.CANCELLED, run.turns, run.tokens, *ends)
        held = [*of.groups.live, *(item.group for item in of.buffer.in_order())]
        for group in held:
            of.rt.emit(EventKind.DROP, group, Fate.LOST)
            self._tally.drop(Fate.LOST.name.lower())
        state, moved = renamed(state, of.groups.next_group)
        self._accounts.roll_back(moved)
        self._take_back(t - state.t, of.config.groups_per_step)
        self._point = replace(self._here(state), start=self._point.start)
        self._times += 1
        of.rt.emit(
            EventKind.ROLLBACK, state.t, t, t - state.t, len(state.groups), len(state.in_flight), self._times
        )  # fmt: skip
        return state

    def _take_back(self, steps: int, groups_per_step: int) -> None:
        tally, point = self._tally, self._point
        same = point.window == tally.windows
        del tally.lags[point.lags if same else 0 :]
        del tally.lags_in_queue[point.lags if same else 0 :]
        del tally.trained_lengths[point.trained if same else 0 :]
        tally.steps -= steps
        tally.groups -= steps * groups_per_step
        tally.steps_lost += steps
        tally.rollbacks += 1
        tally.lost_learner_ns += (self._work_ns() - max(point.learner_ns, self._marked_ns)) * self._lane.chips


def renamed(state: PipelineState, next_group: int) -> tuple[PipelineState, Mapping[int, int]]:
    """The same state with its groups named from `next_group` on, in the order of their names; and episode → new episode."""
    order = sorted(group.group for group in state.groups)
    names = {old: next_group + rank for rank, old in enumerate(order)}
    moved: dict[int, int] = {}

    def rename(group: Group) -> Group:
        name = names[group.group]
        members = []
        for member in group.members:
            moved[member.episode] = episode_id(name, member.episode % MEMBERS)
            members.append(replace(member, episode=moved[member.episode]))
        return replace(group, group=name, members=tuple(members))

    taken = tuple([rename(group) for group in state.taken])
    buffered = tuple([(rename(group), entered) for group, entered in state.buffered])
    return replace(state, taken=taken, buffered=buffered, next_group=next_group + len(order)), moved
