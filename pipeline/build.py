"""Wiring: all actors and policies of one run, put together in one place, and what they leave behind.

Live and simulated runs are built by this same code; they differ in the engine, the performers and the task source that are
handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from pipeline.actors.groups import Groups
from pipeline.actors.inference import Replica
from pipeline.actors.learner import Learner
from pipeline.actors.prompts import Prompts
from pipeline.actors.publisher import Publisher
from pipeline.actors.rollout import Rollout
from pipeline.actors.scoring import Scoring
from pipeline.actors.shared import DeadlinesNs, Tally
from pipeline.actors.supervisor import stall_report, supervise
from pipeline.policies.admission import make_admission
from pipeline.policies.buffer import GroupBuffer
from pipeline.policies.cadence import Cadence
from pipeline.policies.capacity import EpisodeCap
from pipeline.policies.retries import RetryPolicy
from pipeline.policies.routing import Router
from pipeline.policies.staleness import Consumption
from pipeline.policies.sync import SyncPlan
from pipeline.policies.versions import VersionClock
from pipeline.resume import Holders, capture
from pipeline.resume import resume as restore

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.lanes import Lane
    from harness.core.runtime import Runtime
    from pipeline.config import PipelineConfig
    from pipeline.environments.base import TaskSource
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
        notes: JSON-able, the composition root's own: kept in every checkpoint and given back by a resume.

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
        self._resumed = resume
        version = resume.t if resume is not None else 0
        self.versions = VersionClock(version)
        self.chips = hardware.replicas * hardware.chips_per_replica + hardware.learner_chips
        self.prompts = Prompts(rt, source, hardware.waiting_max) if hardware.arrivals else None
        tasks = self.prompts or source
        deadlines = DeadlinesNs(config.deadlines)
        bell = WakeUp(rt)
        retries = RetryPolicy(
            retry_infra=config.retry_infra,
            retry_data=config.retry_data,
            backoff_ns=ns_from_s(config.backoff_s),
            backoff_max_ns=ns_from_s(config.backoff_max_s),
        )
        admission = make_admission(
            config.admission,
            groups_per_step=config.groups_per_step,
            steps_per_sync=config.steps_per_sync,
            max_staleness=config.max_staleness,
            pipeline_depth=config.pipeline_depth,
            window_fraction=config.window_fraction,
            overprovision_groups=config.overprovision_groups,
        )
        self.pools = {
            "environments": Permits(rt, config.env_workers, "environments"),
            "tools": Permits(rt, config.tool_workers, "tools"),
            "scoring": Permits(rt, config.reward_workers, "scoring"),
        }
        loads = [0] * hardware.replicas
        self.replicas = [self._replica(config, hardware, index, loads) for index in range(hardware.replicas)]
        self.engines = Engines(rt, self.replicas, Router(config.router_policy, hardware.replicas), loads)
        rollout = Rollout(
            rt,
            self.engines,
            Environments(rt, self.pools["environments"], deadlines),
            self.pools["tools"],
            Scoring(rt, self.pools["scoring"], deadlines),
            deadlines,
            self.tally,
        )
        self.buffer = Buffer(
            rt, GroupBuffer(capacity=config.buffer_capacity, order=config.order_policy, on_full=config.on_full), config.on_full,
            self.accounts, self.versions, admission, self.tally, bell,
        )  # fmt: skip
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
            rt, self.accounts, self.versions, source, rollout, deadlines, retries, episodes=config.eval_episodes
        )
        checkpointer = Checkpointer(rt, deadlines, state_bytes=hardware.state_bytes)
        self._cadence = Cadence(
            steps_per_sync=config.steps_per_sync, checkpoint_interval=config.checkpoint_interval,
            eval_interval=config.eval_interval,
        )  # fmt: skip
        self.learner = Learner(
            rt, config, self.accounts, self.versions, admission,
            Consumption(config.stale_policy, max_staleness=config.max_staleness, groups_per_step=config.groups_per_step),
            self._cadence, self.buffer, self.groups, self.publisher, checkpointer, self.evaluation, self.tally, bell,
            chips=hardware.learner_chips, log_probs=hardware.log_probs,
        )  # fmt: skip
        self._holders = Holders(
            rt, config, self.accounts, self.versions, admission, tasks, self.groups, self.buffer, self.learner, checkpointer,
            self.evaluation,
        )  # fmt: skip
        self.learner.capture = self.state
        if resume is not None:
            restore(self._holders, resume)
        self._start_ns = self._loop_busy_ns = 0
        self._lane_marks: dict[int, list[int]] = {}

    def _replica(self, config: PipelineConfig, hardware: Hardware, index: int, loads: list[int]) -> Replica | ExternalReplica:
        kv_tokens, chips, version = hardware.kv_tokens, hardware.chips_per_replica, self.versions.p
        if hardware.external:
            return ExternalReplica(
                self.rt, index, self.accounts, loads=loads, kv_tokens=kv_tokens, chips=chips, version=version
            )
        return Replica(
            self.rt,
            index,
            self.accounts,
            loads=loads,
            slots=min(config.slots_per_replica, hardware.slots),
            kv_tokens=kv_tokens,
            chunk_steps=config.decode_chunk_steps,
            chips=chips,
            version=version,
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
        rt = self.rt

        def after_step(t: int) -> None:
            if t == warmup_steps:
                self._mark()
            at_step(t)

        self._mark()
        async with rt.nursery() as nursery:
            for replica in self.replicas:
                nursery.start_soon(supervise, rt, f"replica {replica.index}", replica.run, name=f"replica {replica.index}")
            nursery.start_soon(supervise, rt, "publisher", self.publisher.run, name="publisher")
            self.evaluation.open(nursery)
            if self._evaluation_is_due():
                self.evaluation.order(self.versions.t)
            self.groups.open(nursery)
            if self.prompts is not None:
                nursery.start_soon(supervise, rt, "prompts", self.prompts.run, name="prompts")
            with rt.cancel_scope(deadline_ns=limit_ns) as limit:
                if evaluate_ends and self._resumed is None:
                    await supervise(rt, "evaluation", self.learner.evaluate)
                await supervise(rt, "learner", self.learner.run, warmup_steps + steps, after_step)
                if evaluate_ends and not self.stopped:
                    await supervise(rt, "evaluation", self.learner.evaluate)
                if save_at_end or self.stopped:
                    await supervise(rt, "learner", self.learner.save)
            if limit.cancelled_caught:
                stall = f"only {self.versions.t} of {warmup_steps + steps} learner steps by then; {stall_report(rt)}"
                raise ActorError("run", rt.now(), TimeoutError(stall))
            report = self._finish()
            at_end(report)
            nursery.cancel_scope.cancel()
        return report

    def state(self) -> PipelineState:
        """Everything but the learner's arrays, between two optimizer steps."""
        return capture(self._holders, self.notes)

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
        self.learner.meter.mark(now)
        for replica in self.replicas:
            replica.meter.mark(now)

    def _finish(self) -> Report:
        """Take stock before anything is cancelled."""
        rt = self.rt
        now = rt.now()
        self.engines.balance()
        self.accounts.check(self.holders())
        idle = {replica.lane.name: replica.meter.totals(now) for replica in self.replicas}
        idle[self.learner.lane.name] = self.learner.meter.totals(now)
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
                rt.lanes.lanes, lane_ns, now - self._start_ns, {name: pool.capacity for name, pool in self.pools.items()}, loop_ns
            ),
            versions=(self.versions.t, self.versions.p),
            chips=self.chips,
            stopped=self.stopped,
        )

    def holders(self) -> dict[int, str]:
        """Every episode that somebody holds, and who."""
        return self.groups.holders() | self.buffer.holders() | self.learner.holders() | self.evaluation.holders()
