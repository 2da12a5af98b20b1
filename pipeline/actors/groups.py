"""Groups: starts what admission lets start, collects what ends, and hands complete groups on.

`pump` is called after every event that could let something start: it is synchronous, so whatever may start does so in the same
instant. Members of groups that have begun come before new groups. A member that nobody needs any more is cancelled and ends as
surplus; a group that cannot reach its quorum fails, and with it the members that had finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.errors import ActorError, HarnessError
from harness.core.events import EventKind
from harness.core.lanes import State
from pipeline.actors.shared import EpisodeRun
from pipeline.actors.supervisor import alone
from pipeline.constraints import outstanding_groups
from pipeline.data import Ended, EpisodeResult, Group, Task, episode_id
from pipeline.policies.filtering import keeps
from pipeline.policies.grouping import GroupDecision, GroupState, Verdict

if TYPE_CHECKING:
    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane
    from harness.core.primitives import WakeUp
    from harness.core.runtime import CancelScope, Event, Nursery, Runtime
    from pipeline.actors.buffer import Buffer
    from pipeline.actors.rollout import Rollout
    from pipeline.actors.shared import Tally
    from pipeline.config import PipelineConfig
    from pipeline.environments.base import TaskSource
    from pipeline.policies.admission import Admission
    from pipeline.policies.capacity import EpisodeCap
    from pipeline.policies.retries import RetryPolicy
    from pipeline.policies.versions import VersionClock


FRUITLESS_BATCHES, FRUITLESS_GROUPS = 20, 500
"""A run is given up after so many batches of groups in a row, and at least so many groups, that failed or were filtered. Where
one group in a hundred is worth training on, 500 in a row that are not come once in 150 times."""


class LiveGroup:
    """A group whose members run."""

    __slots__ = ("group", "planned", "results", "scopes", "started_version", "state", "task")

    def __init__(self, group: int, task: Task, state: GroupState, started_version: int) -> None:
        self.group = group
        self.task = task
        self.state = state
        self.planned = 0  # next member to start
        self.scopes: dict[int, CancelScope] = {}
        self.results: dict[int, EpisodeResult] = {}
        self.started_version = started_version


class Groups:
    """The producer side of the pipeline."""

    def __init__(
        self, rt: Runtime, config: PipelineConfig, accounts: Accounts, versions: VersionClock, admission: Admission,
        cap: EpisodeCap, source: TaskSource, rollout: Rollout, buffer: Buffer, retries: RetryPolicy, tally: Tally, bell: WakeUp,
    ) -> None:  # fmt: skip
        self._rt = rt
        self._config = config
        self._accounts = accounts
        self._versions = versions
        self._admission = admission
        self._cap = cap
        self._source = source
        self._rollout = rollout
        self._buffer = buffer
        self._retries = retries
        self._tally = tally
        self._bell = bell
        self._nursery: Nursery | None = None
        self._next_group = 0
        self._begun: list[LiveGroup] = []  # groups with members that still wait for the cap
        self.live: dict[int, LiveGroup] = {}
        self.running: dict[int, EpisodeRun] = {}
        self._playing = 0  # episodes that have not ended; one that waits at a full buffer has
        self._held = False  # a sync that drains episodes lets nothing start
        self._drained: Event | None = None  # set when the last episode has ended while held
        self._fruitless = 0  # groups in a row that came to nothing
        self._slots = 0
        self._idle = State.GATED  # why free slots lie idle
        self._free_lanes: list[Lane] = []
        groups = outstanding_groups(config)
        usable = config.max_inflight if groups is None else groups * config.members_planned
        for _ in range(min(config.max_inflight, usable)):
            self._free_lanes.append(self._new_slot())
        self._free_lanes.reverse()

    def _new_slot(self) -> Lane:
        lane = self._rt.lane(f"slot/{self._slots}", "rollout")
        self._slots += 1
        lane.to(self._idle)
        return lane

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, nursery: Nursery) -> None:
        """Start what may start at the beginning."""
        self._nursery = nursery
        self.pump()

    def pump(self) -> None:
        """Start everything that may start now. Free slots lie idle for want of a task, or because the gate is closed."""
        while self.may_start:
            if self._begun:
                live = self._begun[0]
                self._start_member(live)
                if live.planned == live.state.size:
                    self._begun.pop(0)
                continue
            task = self._source.next_task()
            if task is None:
                self._lie_idle(State.NO_WORK)
                return
            self._start_group(task)
        if self._idle is not State.GATED:
            self._lie_idle(State.GATED)

    def _lie_idle(self, state: State) -> None:
        if state is not self._idle:
            self._idle = state
            for lane in self._free_lanes:
                lane.to(state)

    @property
    def may_start(self) -> bool:
        """Whether an episode may start now. When an instant is over none may, unless the source has run dry."""
        if self._nursery is None or self._held:
            return False
        if self._begun:
            return self._cap.resumable(1) > 0
        return self._admission.may_start() and self._cap.startable(self._config.members_planned) > 0

    def _start_group(self, task: Task) -> None:
        config, group = self._config, self._next_group
        self._next_group += 1
        state = GroupState(
            group,
            group_size=config.group_size,
            group_quorum=config.group_quorum,
            overprovision_members=config.overprovision_members,
        )
        live = self.live[group] = LiveGroup(group, task, state, self._versions.p)
        self._admission.started(group)
        now = self._cap.startable(state.size)
        self._rt.emit(EventKind.GROUP_ADMIT, group, task.index, task.dispatch, self._versions.t + 1, self._versions.p, now)
        for _ in range(now):
            self._start_member(live)
        if live.planned < state.size:
            self._begun.append(live)

    def _start_member(self, live: LiveGroup) -> None:
        member = live.planned
        live.planned += 1
        live.state.started(member)
        self._cap.started(live.group)
        episode = episode_id(live.group, member)
        scope = live.scopes[member] = self._rt.cancel_scope()
        driver = self._source.driver(live.task, member, self._versions.p)
        run = EpisodeRun(
            episode, live.group, member, live.task, driver, self._accounts.admit(episode),
            self._free_lanes.pop() if self._free_lanes else self._new_slot(), scope, self._retries,
        )  # fmt: skip
        self.running[episode] = run
        self._playing += 1
        assert self._nursery is not None
        self._nursery.start_soon(self._episode, live, run, name=f"episode {live.group}/{member}")

    # ── ending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _episode(self, live: LiveGroup, run: EpisodeRun) -> None:
        rt, episode, version = self._rt, run.episode, self._versions.p
        rt.emit(EventKind.EPISODE_START, episode, live.group, run.member, 0, version)
        result = EpisodeResult(episode, Ended.CANCELLED, 0, 0, 0, version, version)
        try:
            with run.scope:
                result = await self._rollout.play(run, version)
        except HarnessError:
            raise
        except Exception as failure:
            cause = alone(failure)
            if isinstance(cause, HarnessError):
                raise cause from failure
            raise ActorError(f"episode {live.group}/{run.member}", rt.now(), cause) from cause
        rt.emit(EventKind.EPISODE_END, episode, result.ended, run.turns, run.tokens, *token_versions(run, version))
        self._tally.episodes += 1
        self._played()
        complete = self._collect(live, run, result)
        if complete is not None:
            run.lane.to(State.BLOCKED_PUT, episode)
            await self._buffer.put(complete)
        self._let_go(run)

    def _let_go(self, run: EpisodeRun) -> None:
        """The slot is free again."""
        del self.running[run.episode]
        run.lane.to(self._idle)
        self._free_lanes.append(run.lane)
        self._cap.ended(run.group)
        self._end_surplus_groups()
        self.pump()

    def _played(self) -> None:
        """An episode has ended."""
        self._playing -= 1
        if not self._playing and self._drained is not None:
            self._drained.set()

    def _collect(self, live: LiveGroup, run: EpisodeRun, result: EpisodeResult) -> Group | None:
        """Tell the group's state machine; a complete group comes back when it is to go into the buffer."""
        state = live.state
        live.scopes.pop(run.member, None)
        if state.verdict is not Verdict.OPEN:  # it was cancelled as surplus, or ended in the instant of its group's release
            self._accounts.settle(run.episode, Fate.SURPLUS)
            return None
        if result.usable:
            self._tally.generated_lengths.append(result.tokens)
            live.results[run.member] = result
            decision = state.finished(run.member, result.oldest, result.newest)
        else:
            self._accounts.settle(run.episode, Fate.FAILED)
            decision = state.failed(run.member)
        if decision.verdict is Verdict.OPEN:
            return None
        return self._settle(live, decision)

    def _settle(self, live: LiveGroup, decision: GroupDecision) -> Group | None:
        self._cancel_members(live)
        members = tuple(live.results[member] for member in decision.members)
        if decision.verdict is Verdict.FAILED:
            self._lose(live, members, Fate.FAILED)
            self._admission.failed(live.group)
            self._count_fruitless(Fate.FAILED)
            return None
        if not self._admission.accepts():
            self._lose(live, members, Fate.SURPLUS)
            self._admission.finished_surplus(live.group)
            return None
        if not keeps(self._config.filter, [member.reward for member in members]):
            self._lose(live, members, Fate.FILTERED)
            self._admission.filtered(live.group)
            self._count_fruitless(Fate.FILTERED)
            return None
        self._fruitless = 0
        tokens = sum([member.tokens for member in members])
        self._rt.emit(EventKind.GROUP_RELEASE, live.group, len(members), tokens, live.state.oldest_version, self._versions.t)
        return Group(
            live.group, live.task, members, live.state.oldest_version, live.state.newest_version, tokens,
            sum([member.sequence_tokens for member in members]), self._versions.t,
        )  # fmt: skip

    def _count_fruitless(self, fate: Fate) -> None:
        """End a run in which nothing ever comes of anything, instead of trying for ever."""
        self._fruitless += 1
        if self._fruitless >= max(FRUITLESS_GROUPS, FRUITLESS_BATCHES * self._config.groups_per_step):
            hints = {
                Fate.FAILED: "look at the failures that were told (simulated: the failure probabilities of world.environments, "
                "world.scoring and workload.tools, world.outages, world.preemption, rate limits, a full event loop), at "
                "pipeline.retry_infra and retry_data, at pipeline.group_quorum, and at pipeline.deadlines",
                Fate.FILTERED: "look at the rewards (simulated: at workload.success) and at pipeline.filter: every group had "
                "equal ones",
            }
            said = f"the last {self._fruitless} groups all {fate.name.lower()}, so nothing can be trained; {hints[fate]}"
            raise ActorError("groups", self._rt.now(), TimeoutError(said))

    def _cancel_members(self, live: LiveGroup) -> None:
        """Members that nobody needs any more: those that run are cancelled, those that wait never start."""
        if live in self._begun:
            self._begun.remove(live)
        for scope in list(live.scopes.values()):
            scope.cancel()

    def _lose(self, live: LiveGroup, members: tuple[EpisodeResult, ...], fate: Fate) -> None:
        """A group that is not trained on: its finished members share its fate."""
        for member in members:
            self._accounts.settle(member.episode, fate)
        self.live.pop(live.group)
        self._tally.drop(fate.name.lower())
        tokens = sum([member.tokens for member in members])
        self._rt.emit(EventKind.DROP, live.group, fate, tokens, 0, len(self._buffer))
        self._bell.ring()  # a learner that waits for older groups has one less to wait for

    def _end_surplus_groups(self) -> None:
        """Over-provisioned groups that the credit has no place for any more. Asked after every put and end of an episode."""
        for group in self._admission.surplus():
            live = self.live.get(group)
            if live is None or live.state.verdict is not Verdict.OPEN:
                continue
            decision = live.state.unneeded()
            self._cancel_members(live)
            self._lose(live, tuple(live.results[member] for member in decision.members), Fate.SURPLUS)
            self._admission.finished_surplus(group)

    # ── for others ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self) -> None:
        """Let nothing start and wait until no episode is in flight.

        An episode whose group waits at a full buffer has ended. Waiting for it would be waiting for the learner, which may be
        waiting for this very sync.
        """
        self._held = True
        if self._playing:
            if self._drained is None:
                self._drained = self._rt.event()
            await self._drained.wait()

    def resume(self) -> None:
        """A version is published: start what may start now."""
        self._held, self._drained = False, None
        self.pump()

    @property
    def next_group(self) -> int:
        """Number of the next group."""
        return self._next_group

    @property
    def in_flight(self) -> tuple[Task, ...]:
        """Tasks of the groups that run or wait at the buffer, in the order of the groups."""
        return tuple([live.task for live in self.live.values()])

    @property
    def unfinished(self) -> tuple[EpisodeRun, ...]:
        """Episodes that were cut off: they have not ended, and nobody plays them any more."""
        return tuple([run for run in self.running.values() if self._open(run)])

    def _open(self, run: EpisodeRun) -> bool:
        live = self.live.get(run.group)
        return self._accounts.fate_of(run.episode) is None and (live is None or run.member not in live.results)

    def resume_at(self, next_group: int) -> None:
        """Count on from a checkpoint."""
        self._next_group = next_group

    def running_versions(self) -> list[int]:
        """For each group that runs or waits at the buffer: the published version at its start."""
        return [live.started_version for live in self.live.values()]

    def entered(self, group: int) -> None:
        """A group is in the buffer, or was dropped on its way in."""
        self.live.pop(group, None)

    def holders(self) -> dict[int, str]:
        """Episodes that are in these hands."""
        held = {episode: "running" for episode in self.running if self._accounts.fate_of(episode) is None}
        for live in self.live.values():
            held.update({result.episode: f"group {live.group}" for result in live.results.values()})
        return held


def token_versions(run: EpisodeRun, started_version: int) -> tuple[int, int]:
    """Oldest and newest version of an episode's tokens; those at its start where it has none."""
    return (run.oldest, run.newest) if run.oldest >= 0 else (started_version, started_version)
