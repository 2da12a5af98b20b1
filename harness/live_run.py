"""Composition root of live runs: `harness.run_live` stands here, as `harness.run` is that of simulated ones.

The pipeline is the one that is simulated, with the same configuration; the engine is `live`, and the world is real
(`pipeline.live`). JAX is imported by the first live run, never before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError
from harness.core.events import NullRecorder
from harness.core.lanes import check_lanes
from harness.core.units import ns_from_s
from harness.core.work import TrainStep
from harness.engines import live as engine
from harness.loggers import JsonLines, Loggers
from harness.run import first_failure, summarise
from pipeline.build import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.analysis.summary import RunSummary
    from harness.core.runtime import Runtime
    from harness.core.work import Outcome
    from harness.loggers import ScalarLogger
    from harness.scenario.schema import Scenario
    from pipeline.actors.evaluation import Evaluated
    from pipeline.build import Report
    from pipeline.config import PipelineConfig
    from pipeline.live import LiveWorld

TICK_S = 0.5
"""Between two looks at a run for the display."""


@dataclass(frozen=True, slots=True)
class Glance:
    """How a live run stands, for whoever watches.

    Attributes:
        phase: what goes on: `compiling`, `warm start`, `training`, `evaluating`.
        step: optimizer steps completed.
        steps: of the whole run.
        elapsed_s: since the run began.
        reward: mean of the last step's samples.
        evaluations: (version, mean reward on held-out tasks), oldest first.
        tokens_per_s: made, over the last few seconds.
        idle: share of chip time idle since the run began, by cause.
        running: episodes in flight.
        buffered: groups that wait for the learner.
        capacity: groups that the buffer holds.
        lag_mean: of the last step's samples, in optimizer steps.
        lag_max: the largest of them.
        faults: what went wrong outside so far, by kind.

    """

    phase: str
    step: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    reward: float | None = None
    evaluations: tuple[tuple[int, float], ...] = ()
    tokens_per_s: float = 0.0
    idle: dict[str, float] = field(default_factory=dict)
    running: int = 0
    buffered: int = 0
    capacity: int = 0
    lag_mean: float = 0.0
    lag_max: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What a live run came to.

    Attributes:
        summary: the same numbers as of a simulated run.
        evaluations: (version, mean reward, failed episodes) of each round on held-out tasks.
        metrics: of each optimizer step, by name.
        stopped: why it ended early; empty where it did not.
        out: its folder.

    """

    summary: RunSummary
    evaluations: tuple[tuple[int, float, int], ...]
    metrics: tuple[dict[str, float], ...]
    stopped: str
    out: Path | None
    faults: dict[str, int] = field(default_factory=dict)


def run_live(
    scenario: Scenario[PipelineConfig],
    *,
    steps: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    loggers: Sequence[ScalarLogger] = (),
    heard: Callable[[Glance], object] = lambda glance: None,
) -> LiveRun:
    """Train for real.

    Args:
        scenario: with a `[live]` table.
        steps: optimizer steps; the scenario's own by default, warm-up included.
        seed: of weights, tasks and sampling; the scenario's own by default.
        out: folder for metrics, record and checkpoints; nothing is written without it.
        loggers: told of every number.
        heard: told how the run stands, every now and then.

    Raises:
        ConfigError: the scenario has no `[live]` table, or something in it cannot be.
        ActorError: an actor failed; the message names who waits on what where it was a stall.

    """
    if scenario.live is None:
        raise ConfigError(
            "this scenario is for the simulator only", field="live",
            allowed="a table [live] with environment, model and learner",
            remedy="add one, see scenarios/cpu_live.toml; or use harness simulate",
        )  # fmt: skip
    from pipeline.live import LiveWorld

    heard(Glance("compiling"))
    inference, chosen = scenario.world.inference, scenario.run.seed if seed is None else seed
    world = LiveWorld(
        scenario.live, scenario.pipeline, replicas=inference.replicas, chips_per_replica=inference.chips_per_replica,
        learner_chips=scenario.world.learner.chips, seed=chosen,
    )  # fmt: skip
    folder = Path(out) if out is not None else None
    sinks = [*loggers, *([JsonLines(folder / "metrics.jsonl")] if folder is not None else [])]
    session = _Session(scenario, world, Loggers(sinks), heard, steps or scenario.run.warmup_steps + scenario.run.learner_steps)
    try:
        world.start()
        report = session.go(chosen)
    finally:
        world.stop()
        session.loggers.close()
    if folder is not None:
        world_export = folder / "policy"
        del world_export
    return session.result(report, chosen, folder)


class _Session:
    """One live run: what is told to whom, and when."""

    def __init__(
        self,
        scenario: Scenario[PipelineConfig],
        world: LiveWorld,
        loggers: Loggers,
        heard: Callable[[Glance], object],
        steps: int,
    ) -> None:
        self.scenario = scenario
        self.world = world
        self.loggers = loggers
        self.metrics: list[dict[str, float]] = []
        self.evaluations: list[Evaluated] = []
        self._heard = heard
        self._steps = steps
        self._began_s = time.monotonic()
        self._pipeline: Pipeline | None = None
        self._phase = "training"
        self._made = (0, 0.0)
        self._tokens_per_s = 0.0

    def go(self, seed: int) -> Report:
        """Run it."""
        performers = {**self.world.performers, TrainStep: self._train}
        try:
            return engine.run(self._main, performers=performers, seed=seed, recorder=NullRecorder())
        except BaseExceptionGroup as group:
            raise first_failure(group) from group

    async def _main(self, rt: Runtime) -> Report:
        await self.world.warm_start(self._warm_step)
        self.world.install(0)
        pipeline = self._pipeline = Pipeline(
            rt, self.scenario.pipeline, self.world.hardware, self.world.source, self.world.learner.snapshot
        )
        pipeline.evaluation.on_done = self._evaluated
        rt.background(self._tick, rt, name="display")
        plan = self.scenario.run

        def check(report: Report) -> None:
            check_lanes(rt.lanes, 0, report.end_ns)

        return await pipeline.run(
            steps=self._steps - min(plan.warmup_steps, self._steps - 1),
            warmup_steps=min(plan.warmup_steps, self._steps - 1),
            limit_ns=ns_from_s(plan.max_sim_s),
            at_end=check,
            at_step=self._stepped,
            evaluate_ends=bool(self.scenario.pipeline.eval_interval),
        )

    async def _train(self, rt: Runtime, work: TrainStep, /) -> Outcome:
        outcome = await self.world.performers[TrainStep](rt, work)
        if work.last:
            self.metrics.append(outcome.result)
            self.loggers.log("train", outcome.result, step=work.entity)
        return outcome

    def _warm_step(self, step: int, metrics: dict[str, float]) -> None:
        self.loggers.log("warm_start", metrics, step=step)
        assert self.scenario.live is not None
        settings = self.scenario.live.learner
        self._heard(Glance("warm start", step, settings.warm_start_steps, time.monotonic() - self._began_s))

    def _evaluated(self, evaluated: Evaluated) -> None:
        self.evaluations.append(evaluated)
        values = {"reward": evaluated.reward, "failed": evaluated.failed, "lost": len(evaluated.lost)}
        self.loggers.log("eval", values, step=evaluated.version)
        self._heard(self.glance())

    def _stepped(self, step: int) -> None:
        self._heard(self.glance())

    async def _tick(self, rt: Runtime) -> None:
        while True:
            await rt.sleep(ns_from_s(TICK_S))
            self._heard(self.glance())

    def glance(self) -> Glance:
        """How it stands now."""
        pipeline = self._pipeline
        assert pipeline is not None
        now = pipeline.rt.now()
        self._count_tokens(pipeline, now)
        last = self.metrics[-1] if self.metrics else {}
        return Glance(
            phase=self._phase,
            step=pipeline.versions.t,
            steps=self._steps,
            elapsed_s=time.monotonic() - self._began_s,
            reward=last.get("reward"),
            evaluations=tuple((done.version, done.reward) for done in self.evaluations),
            tokens_per_s=self._tokens_per_s,
            idle=_idle(pipeline, now),
            running=len(pipeline.groups.running) + len(pipeline.evaluation.running),
            buffered=len(pipeline.buffer),
            capacity=self.scenario.pipeline.buffer_capacity,
            lag_mean=last.get("lag_steps", 0.0),
            lag_max=last.get("lag_steps_max", 0.0),
            faults=dict(self.world.faults.faults),
        )

    def _count_tokens(self, pipeline: Pipeline, now_ns: int) -> None:
        made, at_s = self._made
        now_s, total = now_ns / 1e9, pipeline.accounts.made_tokens
        if now_s - at_s >= 2 * TICK_S:
            self._tokens_per_s = (total - made) / (now_s - at_s)
            self._made = (total, now_s)

    def result(self, report: Report, seed: int, folder: Path | None) -> LiveRun:
        """What it came to."""
        summary = replace(summarise(report, seed), warmup_steps=self.scenario.run.warmup_steps)
        return LiveRun(
            summary, tuple((done.version, done.reward, done.failed) for done in self.evaluations), tuple(self.metrics),
            report.stopped, folder, dict(self.world.faults.faults),
        )  # fmt: skip


def _idle(pipeline: Pipeline, now_ns: int) -> dict[str, float]:
    """Share of chip time idle since the window began, by cause."""
    lanes = [pipeline.learner, *pipeline.replicas]
    chips = sum(lane.lane.chips for lane in lanes)
    idle: dict[str, float] = {}
    window_ns = max(1, now_ns - pipeline.window_start_ns)
    for lane in lanes:
        for cause, spent_ns in lane.meter.totals(now_ns).items():
            idle[cause] = idle.get(cause, 0.0) + spent_ns * lane.lane.chips / (chips * window_ns)
    return idle
