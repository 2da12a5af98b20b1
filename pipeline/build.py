"""Wiring: all actors and policies of one run, put together in one place, and what they leave behind.

Live and simulated runs are built by this same code; they differ in the engine, the performers and the task source that are
handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from harness.core.accounts import Accounts
from harness.core.errors import ActorError
from harness.core.primitives import Permits, WakeUp
from harness.core.units import ns_from_s
from pipeline import usage
from pipeline.actors.buffer import Buffer
from pipeline.actors.checkpointer import Checkpointer
from pipeline.actors.engines import Engines
from pipeline.actors.environments import Environments
from pipeline.actors.evaluation import Evaluation
from pipeline.actors.external import ExternalReplica
from pipeline.actors.fleet import Fleet
from pipeline.actors.groups import Groups
from pipeline.actors.inference import Replica
from pipeline.actors.learner import Learner
from pipeline.actors.placement import Placement, SharedLanes
from pipeline.actors.prompts import Prompts
from pipeline.actors.publisher import Publisher
from pipeline.actors.rollout import Rollout
from pipeline.actors.scoring import Scoring
from pipeline.actors.shared import DeadlinesNs, Tally
from pipeline.actors.stepping import Stepping
from pipeline.actors.supervisor import stall_report, supervise
from pipeline.policies.admission import make_admission
from pipeline.policies.buffer import GroupBuffer
from pipeline.policies.cadence import Cadence
from pipeline.policies.capacity import EpisodeCap
from pipeline.policies.compiles import Compiles
from pipeline.policies.fleet import LEARNER, Slices
from pipeline.policies.kinds import Stepping as SteppingKind
from pipeline.policies.kv import make_kv_room
from pipeline.policies.kv_prefix import PrefixCache
from pipeline.policies.placement import PlacementPlan
from pipeline.policies.retries import RetryPolicy
from pipeline.policies.routing import Router
from pipeline.policies.staleness import Consumption
from pipeline.policies.sync import QUIESCE, SyncPlan
from pipeline.policies.versions import VersionClock
from pipeline.recovery import Recovery
from pipeline.resume import Holders, capture, put_back
from pipeline.resume import resume as restore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from harness.core.blame import BlameMeter
    from harness.core.lanes import Lane
    from harness.core.runtime import CancelScope, Runtime
    from pipeline.config import PipelineConfig
    from pipeline.environments.base import TaskSource
    from pipeline.policies.admission import Admission
    from pipeline.policies.compiles import Buckets
    from pipeline.policies.kv_prefix import PrefixRules
    from pipeline.state import PipelineState


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the pipeline runs on.

    Attributes:
        replicas: inference replicas.
        chips_per_replica: chips of each.
        slots: requests that a replica can decode at once; the knob `slots_per_replica` may ask for fewer.
        kv_tokens: tokens of context that a replica's KV cache holds.
        learner_chips: chips of the learner.
        weights_bytes: bytes of one weight version.
        state_bytes: bytes of one checkpoint.
        log_probs: whether the learner recomputes old log-probabilities.
        external: whether the replicas are servers that schedule themselves; `slots` then is theirs and not looked at.
        arrivals: whether tasks come from outside one by one, instead of being at hand.
        colocated: whether learner and replicas take turns on the same chips; `learner_chips` then are those of all replicas.
        learner_compiles: whether the learner compiles before its first pass (simulated; live that is done before the run).
        losable: slices of chips that can be lost: 0 the learner's, 1 + i that of replica i.
        replacements: for lost slices that are on their way at the same time; None: any number.
        prefix: how a replica keeps contexts between turns; None: as each prompt says (`Prompt.cached_tokens`).
        compiles: shapes that a replica compiles for when it meets them; None: all are compiled before the run.
        waiting_max: tasks that have come and wait at most; one more is turned away. None: all wait.

    """

    replicas: int
    chips_per_replica: int
    slots: int
    kv_tokens: int
    learner_chips: int
    weights_bytes: int
    state_bytes: int = 0
    log_probs: bool = False
    external: bool = False
    arrivals: bool = False
    waiting_max: int | None = None
    colocated: bool = False
    learner_compiles: bool = False
    losable: tuple[int, ...] = ()
    replacements: int | None = None
    prefix: PrefixRules | None = None
    compiles: Buckets | None = None


@dataclass(slots=True)
class Report:
    """What a run leaves behind, taken at the instant of its end.

    Attributes:
        start_ns: begin of the reported window.
        end_ns: its end.
        accounts: the books.
        tally: counters of the window.
        lanes: every lane, closed.
        lane_ns: nanoseconds by state in the window, for each lane.
        idle_ns: waiting nanoseconds by cause in the window, for each lane that has a meter.
        pools: busy share of each pool and role in the window (`pipeline.usage`).
        versions: learner step and published version at the end.
        chips: chips paid for.
        stopped: why it ended before its last step; empty where it did not.

    """

    start_ns: int
    end_ns: int
    accounts: Accounts
    tally: Tally
    lanes: list[Lane]
    lane_ns: dict[str, list[int]]
    idle_ns: dict[str, dict[str, int]]
    pools: dict[str, float]
    versions: tuple[int, int]
    chips: int
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What `Pipeline.run` was asked for."""

    warmup_steps: int
    steps: int
    limit_ns: int | None
    at_end: Callable[[Report], object]
    after_step: Callable[[int], None]
    save_at_end: bool
    evaluate_ends: bool


class Pipeline:
    """One run.

    Args:
        rt: the engine's runtime.
        config: the knobs.
        hardware: what it runs on.
        source: tasks, agents and environments.
        snapshot: takes the learner's weights for publishing; live it copies them, simulated there is nothing to copy.
        resume: the state to go on from. The caller has loaded the weights of its step into the learner and every engine.

    Attributes:
        config: the knobs.
        hardware: what it runs on.
        notes: JSON-able, the composition root's own: kept in every checkpoint and given back by a resume.
        scopes: of the actors that run, by name. Cancelling one of them ends the run, as an `ActorError`.

    Raises:
        ConfigError: the configuration has no room for what `resume` holds.

    """

    def __init__(
        self,
        rt: Runtime,
        config: PipelineConfig,
        hardware: Hardware,
        source: TaskSource,
        snapshot: Callable[[int], Any] = lambda version: version,
        resume: PipelineState | None = None,
    ) -> None:
        self.rt = rt
        self.accounts = Accounts()
        self.tally = Tally()
        self.notes: dict[str, Any] = dict(resume.notes) if resume is not None else {}
        self.stopped = ""
        self.scopes: dict[str, CancelScope] = {}
        self.config, self.hardware, self._source, self._snapshot = config, hardware, source, snapshot
        self.chips = hardware.replicas * hardware.chips_per_replica + (0 if hardware.colocated else hardware.learner_chips)
        self.prompts = Prompts(rt, source, hardware.waiting_max) if hardware.arrivals else None
        self.pools = {
            "environments": Permits(rt, config.env_workers, "environments"),
            "tools": Permits(rt, config.tool_workers, "tools"),
            "scoring": Permits(rt, config.reward_workers, "scoring"),
        }
        self._start_ns = self._loop_busy_ns = 0
        self._lane_marks: dict[int, list[int]] = {}
        self._idle_before: dict[str, dict[str, int]] = {}  # of jobs that ended with the learner's chips
        self._assemble(resume)
        if resume is not None:
            restore(self._holders, resume)
        self.fleet: Fleet | None = None
        self.recovery: Recovery | None = None
        self._job: CancelScope | None = None  # while the job runs that ends with the learner's chips
        if hardware.losable:
            slices = Slices(hardware.losable, hardware.replacements)
            self.fleet = Fleet(rt, slices, hardware.losable, self.tally, self.scopes, state_bytes=hardware.state_bytes)
            self.fleet.on_learner_lost = self._end_job
        if LEARNER in hardware.losable:
            self.recovery = Recovery(self.accounts, self.tally, self.learner.lane, self.state())

    def _assemble(self, resume: PipelineState | None) -> None:
        """All actors and policies, for a run that begins or for one that goes on."""
        rt, config, hardware, source, snapshot = self.rt, self.config, self.hardware, self._source, self._snapshot
        self._resumed = resume
        version = resume.t if resume is not None else 0
        self.versions = VersionClock(version)
        tasks: TaskSource = self.prompts or source
        deadlines = DeadlinesNs(config.deadlines)
        bell = WakeUp(rt)
        retries = RetryPolicy(
            retry_infra=config.retry_infra,
            retry_data=config.retry_data,
            backoff_ns=ns_from_s(config.backoff_s),
            backoff_max_ns=ns_from_s(config.backoff_max_s),
        )
        admission = self.admission()
        loads = [0] * hardware.replicas
        self._shared = SharedLanes(rt, hardware.replicas, hardware.chips_per_replica) if hardware.colocated else None
        self.replicas = [self._replica(config, hardware, index, loads) for index in range(hardware.replicas)]
        self.engines = Engines(rt, self.replicas, self.router(), loads)
        rollout = Rollout(
            rt,
            self.engines,
            Environments(rt, self.pools["environments"], deadlines),
            self.pools["tools"],
            Scoring(rt, self.pools["scoring"], deadlines),
            deadlines,
            self.tally,
            Stepping(rt) if config.stepping is SteppingKind.BATCH else None,
        )
        self.buffer = Buffer(rt, self.group_buffer(), config.on_full, self.accounts, self.versions, admission, self.tally, bell)
        self.groups = Groups(
            rt, config, self.accounts, self.versions, admission, EpisodeCap(config.max_inflight, config.start_unit),
            tasks, rollout, self.buffer, retries, self.tally, bell,
        )  # fmt: skip
        self.buffer.on_entered = self.groups.entered
        if self.prompts is not None:
            self.prompts.on_arrival = self.groups.pump
        self.publisher = Publisher(
            rt,
            SyncPlan(mode=config.sync_mode, rollout=config.sync_rollout, replicas=hardware.replicas, version=version),
            self.replicas, self.groups, self.versions, admission, deadlines, bell, weights_bytes=hardware.weights_bytes,
            snapshot=snapshot,
        )  # fmt: skip
        self.engines.on_lost, self.engines.reinstall = self.publisher.lost, self.publisher.restore
        self.evaluation = Evaluation(
            rt, self.accounts, self.versions, source, rollout, deadlines, retries, self.scopes, episodes=config.eval_episodes
        )
        checkpointer = Checkpointer(rt, deadlines, state_bytes=hardware.state_bytes)
        checkpointer.on_saved = self._saved
        self._cadence = Cadence(
            steps_per_sync=config.steps_per_sync, checkpoint_interval=config.checkpoint_interval,
            eval_interval=config.eval_interval,
        )  # fmt: skip
        self.learner = Learner(
            rt, config, self.accounts, self.versions, admission, self.consumption(), self._cadence,
            self.buffer, self.groups, self.publisher, checkpointer, self.evaluation, self.tally, bell,
            chips=hardware.learner_chips, log_probs=hardware.log_probs, compiles=hardware.learner_compiles,
            lane=self._shared.learner if self._shared is not None else None,
        )  # fmt: skip
        if self._shared is not None:
            self.learner.placement = Placement(
                rt, PlacementPlan(hardware.replicas), QUIESCE[config.sync_mode], self._shared, self.replicas,
                self.groups, self.publisher,
            )  # fmt: skip
        self._holders = Holders(
            rt, config, self.accounts, self.versions, admission, tasks, self.groups, self.buffer, self.learner, checkpointer,
            self.evaluation,
        )  # fmt: skip
        self.learner.capture = self.state

    def admission(self) -> Admission:
        """The law that lets groups start. This and the three below are made once a run; a subclass may make its own."""
        config = self.config
        return make_admission(
            config.admission,
            groups_per_step=config.groups_per_step,
            steps_per_sync=config.steps_per_sync,
            max_staleness=config.max_staleness,
            pipeline_depth=config.pipeline_depth,
            window_fraction=config.window_fraction,
            overprovision_groups=config.overprovision_groups,
        )

    def router(self) -> Router:
        """Which replica serves a request."""
        return Router(self.config.router_policy, self.hardware.replicas)

    def group_buffer(self) -> GroupBuffer:
        """Which complete group the learner takes, and which one goes when there is no room."""
        config = self.config
        return GroupBuffer(capacity=config.buffer_capacity, order=config.order_policy, on_full=config.on_full)

    def consumption(self) -> Consumption:
        """What becomes of groups that are too old."""
        config = self.config
        return Consumption(config.stale_policy, max_staleness=config.max_staleness, groups_per_step=config.groups_per_step)

    def _replica(self, config: PipelineConfig, hardware: Hardware, index: int, loads: list[int]) -> Replica | ExternalReplica:
        kv_tokens, chips, version = hardware.kv_tokens, hardware.chips_per_replica, self.versions.p
        compiles = Compiles(hardware.compiles) if hardware.compiles is not None else None
        lane = self._shared.replicas[index] if self._shared is not None else None
        if hardware.external:
            return ExternalReplica(
                self.rt, index, self.accounts, loads=loads, kv_tokens=kv_tokens, chips=chips, version=version,
                compiles=compiles, lane=lane,
            )  # fmt: skip
        return Replica(
            self.rt,
            index,
            self.accounts,
            loads=loads,
            slots=min(config.slots_per_replica, hardware.slots),
            kv=make_kv_room(config.kv_policy, kv_tokens, config.decode_chunk_steps),
            chunk_steps=config.decode_chunk_steps,
            chips=chips,
            version=version,
            lane=lane,
            prefix=PrefixCache(hardware.prefix) if hardware.prefix is not None else None,
            compiles=compiles,
        )

    async def run(
        self,
        *,
        steps: int,
        warmup_steps: int = 0,
        limit_ns: int | None = None,
        at_end: Callable[[Report], object] = lambda report: None,
        at_step: Callable[[int], object] = lambda step: None,
        save_at_end: bool = False,
        evaluate_ends: bool = False,
    ) -> Report:
        """Run until `warmup_steps + steps` optimizer steps are completed and report on the last `steps`.

        A resumed run counts the steps before it; one that was resumed after its warm-up reports on all that it does.

        `at_end` is called with the report at the instant of the end, before anything is cancelled: what comes after it is no
        part of the record. `at_step` is called after each optimizer step. With `save_at_end` the last step is saved too.
        With `evaluate_ends` there is an evaluation before the first step and one on the last version; the run waits for both.

        Raises:
            ActorError: an actor failed, or the run was not done at `limit_ns`; the message names who waits on what.

        """
        marked = False

        def after_step(t: int) -> None:
            nonlocal marked
            if t == warmup_steps and not marked:
                marked = True
                self._mark()
            if self.fleet is not None:
                self.fleet.stepped(t)
            at_step(t)

        self._mark()
        plan = _Plan(warmup_steps, steps, limit_ns, at_end, after_step, save_at_end=save_at_end, evaluate_ends=evaluate_ends)
        if self.fleet is None:
            report = await self._run_job(plan)
        else:
            async with self.rt.nursery() as nursery:
                self.fleet.begin(self.engines, self.learner.lane)
                self.fleet.open(nursery, self.prompts)
                report = await self._run_job(plan)
                while report is None:
                    await self._go_back(plan)
                    report = await self._run_job(plan)
                nursery.cancel_scope.cancel()
        assert report is not None
        return report

    async def _run_job(self, plan: _Plan) -> Report | None:
        """Run until it is done; None when the learner's chips were lost."""
        rt, steps, report = self.rt, plan.warmup_steps + plan.steps, None
        async with rt.nursery() as nursery:
            self._job = nursery.cancel_scope
            for replica in self.replicas:
                name = f"replica {replica.index}"
                nursery.start_soon(self._supervise, name, replica.run, name=name)
            nursery.start_soon(self._supervise, "publisher", self.publisher.run, name="publisher")
            self.evaluation.open(nursery)
            if self._evaluation_is_due():
                self.evaluation.order(self.versions.t)
            self.groups.open(nursery)
            if self.prompts is not None and self.fleet is None:
                nursery.start_soon(self._supervise, "prompts", self.prompts.run, name="prompts")
            if self.fleet is not None:
                self.fleet.start(nursery)
            with rt.cancel_scope(deadline_ns=plan.limit_ns) as limit:
                if plan.evaluate_ends and self._resumed is None:
                    await self._supervise("evaluation", self.learner.evaluate)
                await self._supervise("learner", self.learner.run, steps, plan.after_step)
                if plan.evaluate_ends and not self.stopped:
                    await self._supervise("evaluation", self.learner.evaluate)
                if plan.save_at_end or self.stopped:
                    await self._supervise("learner", self.learner.save)
            if limit.cancelled_caught:
                self._stall(steps)
            report = self._finish()
            plan.at_end(report)
            if self.fleet is not None:
                self.fleet.close()
            nursery.cancel_scope.cancel()
        return report

    async def _supervise(self, name: str, actor: Callable[..., Awaitable[object]], *args: object) -> None:
        await supervise(self.rt, name, actor, *args, scopes=self.scopes)

    def _stall(self, steps: int) -> NoReturn:
        stall = f"only {self.versions.t} of {steps} learner steps by then; {stall_report(self.rt)}"
        raise ActorError("run", self.rt.now(), TimeoutError(stall))

    def _end_job(self) -> None:
        """The learner's chips are gone: the job ends, and everything that it has begun."""
        assert self.fleet is not None
        assert self._job is not None
        self._job.cancel()  # first: whoever waits for a replica is not to go on for its loss
        if self.prompts is not None:
            self.prompts.on_arrival = _nothing
        self.fleet.end()

    async def _go_back(self, plan: _Plan) -> None:
        """The job has ended with the learner's chips: when there are others, go on from the last checkpoint.

        Raises:
            ActorError: there were none at the limit of the run.

        """
        assert self.fleet is not None
        assert self.recovery is not None
        now, lanes = self.rt.now(), self.rt.lanes
        for lane, meter in self._meters():
            totals = self._idle_before.setdefault(lane.name, {})
            for cause, ns in meter.totals(now).items():
                totals[cause] = totals.get(cause, 0) + ns
        lanes.vacate()
        with self.rt.cancel_scope(deadline_ns=plan.limit_ns) as limit:
            await self.fleet.restore(self.recovery.version)
        if limit.cancelled_caught:
            self._stall(plan.warmup_steps + plan.steps)
        before, replicas = self.evaluation, self.replicas
        state = self.recovery.go_back(self._holders)
        self._assemble(None if self.recovery.at_start else state)
        if self.prompts is not None:
            come = self.prompts.arrived, self.prompts.turned_away
            put_back(self._holders, state)
            self.prompts.catch_up(*come)
        else:
            put_back(self._holders, state)
        for replica, gone in zip(self.replicas, replicas, strict=True):
            replica.count_on(gone.tickets)
        self.evaluation.on_done = before.on_done
        self.evaluation.repeated = before.repeated + before.rounds - state.evaluation_rounds
        if self.stopped:
            self.learner.stop()
        self.fleet.begin(self.engines, self.learner.lane)

    def state(self) -> PipelineState:
        """Everything but the learner's arrays, between two optimizer steps."""
        state = capture(self._holders, self.notes)
        if self.recovery is not None:
            self.recovery.captured(state)
        return state

    def _saved(self, state: PipelineState) -> None:
        if self.recovery is not None:
            self.recovery.saved(state)

    def request_stop(self, reason: str) -> None:
        """End the run early: complete the step whose batch is whole, save, report with the reason. Safe to call twice."""
        self.stopped = self.stopped or reason
        self.learner.stop()

    def _evaluation_is_due(self) -> bool:
        """Whether the checkpoint came before the end of an evaluation: it is run again, on the weights that there are."""
        state = self._resumed
        if state is None or state.t < 1:
            return False
        return state.evaluating or (self._cadence.due(state.t).evaluate and state.evaluation_version < state.t)

    @property
    def window_start_ns(self) -> int:
        """When the reported window began."""
        return self._start_ns

    def _mark(self) -> None:
        """The reported window starts now."""
        now = self._start_ns = self.rt.now()
        self._loop_busy_ns = self.rt.loop_busy_ns()
        self.engines.balance()
        self.accounts.mark()
        self.tally.clear()
        self._lane_marks = {lane.index: lane.spent_ns(now) for lane in self.rt.lanes.lanes}
        self._idle_before = {}
        for _, meter in self._meters():
            meter.mark(now)
        if self.recovery is not None:
            self.recovery.mark()

    def _meters(self) -> list[tuple[Lane, BlameMeter]]:
        """Whose waits are charged to causes: lane and meter."""
        if self._shared is not None:  # the learner waits while the replicas have the chips
            return list(zip(self._shared.slices, [replica.meter for replica in self.replicas], strict=True))
        return [(waiter.lane, waiter.meter) for waiter in (*self.replicas, self.learner)]

    def _finish(self) -> Report:
        """Take stock before anything is cancelled."""
        rt = self.rt
        now = rt.now()
        self.engines.balance()
        self.accounts.check(self.holders())
        idle = {lane.name: meter.totals(now) for lane, meter in self._meters()}
        for name, causes in self._idle_before.items():
            for cause, ns in causes.items():
                idle[name][cause] = idle[name].get(cause, 0) + ns
        loop_ns = rt.loop_busy_ns() - self._loop_busy_ns
        rt.lanes.close(now)
        lane_ns = {}
        for lane in rt.lanes.lanes:
            before = self._lane_marks.get(lane.index)
            lane_ns[lane.name] = (
                list(lane.totals) if before is None else [a - b for a, b in zip(lane.totals, before, strict=True)]
            )
        return Report(
            start_ns=self._start_ns,
            end_ns=now,
            accounts=self.accounts,
            tally=self.tally,
            lanes=list(rt.lanes.lanes),
            lane_ns=lane_ns,
            idle_ns=idle,
            pools=usage.shares(
                rt.lanes.lanes,
                lane_ns,
                now - self._start_ns,
                {name: pool.capacity for name, pool in self.pools.items()},
                loop_ns,
            ),
            versions=(self.versions.t, self.versions.p),
            chips=self.chips,
            stopped=self.stopped,
        )

    def holders(self) -> dict[int, str]:
        """Every episode that somebody holds, and who."""
        return self.groups.holders() | self.buffer.holders() | self.learner.holders() | self.evaluation.holders()


def _nothing() -> None:
    """There is no job that could start anything."""
