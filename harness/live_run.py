"""Composition root of live runs: `harness.run_live` stands here, as `harness.run` is that of simulated ones.

The pipeline is the one that is simulated, with the same configuration; the engine is `live`, and the world is real
(`pipeline.live`). JAX is imported by the first live run, never before.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.checks import RunChecks
from harness.core.errors import ConfigError, HarnessError, OutputError, ProcessError
from harness.core.events import NullRecorder
from harness.core.lanes import State
from harness.core.units import ns_from_s
from harness.core.work import Checkpoint, Outcome, TrainStep
from harness.engines import live as engine
from harness.files import write_whole
from harness.loggers import WARM_START, JsonLines, Loggers
from harness.run import checked_seed, first_failure
from harness.scenario.load import resolved_json
from harness.summaries import priced, summarise
from harness.watch import StallWatch
from pipeline.build import Pipeline
from pipeline.performers.loop_watch import LoopWatch
from pipeline.performers.signals import signals_left_to_leader, terminated_as_interrupted, watch_signals
from pipeline.policies.kinds import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.analysis.summary import RunSummary
    from harness.core.perform import Performers
    from harness.core.runtime import Runtime
    from harness.live_record import LiveRecord
    from harness.loggers import ScalarLogger
    from harness.scenario.schema import Scenario
    from pipeline.actors.evaluation import Evaluated
    from pipeline.build import Report
    from pipeline.config import PipelineConfig
    from pipeline.live import LiveWorld
    from pipeline.live_config import LiveConfig
    from pipeline.numerics.processes import Joined
    from pipeline.processes import Processes
    from pipeline.state import PipelineState

LOG = logging.getLogger("rollout_harness")

CHECKPOINTS = "checkpoints"
"""Folder of a run's checkpoints, in its own."""

WEIGHTS = "weights"
"""Folder where servers outside find new weights."""

TICK_S = 0.5
"""Between two looks at a run, for the display and the record."""

QUEUES = {
    State.GEN_QUEUE: "generation", State.TOOL_QUEUE: "tools", State.ENV_QUEUE: "environments", State.REWARD_QUEUE: "scoring",
}  # fmt: skip
"""What a rollout lane waits for a place in, by its state."""


@dataclass(frozen=True, slots=True)
class Glance:
    """How a live run stands, for whoever watches.

    Attributes:
        phase: what goes on: `loading`, `compiling`, `warm start`, `training`, `evaluating`, `stopping`, `saving`.
        step: optimizer steps completed; of a warm start its own, while compiling the programs compiled.
        steps: of the whole run, of the warm start, or programs to compile.
        elapsed_s: since the run began.
        reward: mean of the last step's samples.
        evaluations: (version, mean reward on held-out tasks), oldest first.
        tokens_per_s: made, over the last few seconds.
        idle: share of chip time idle since the run began, by cause.
        running: episodes in flight.
        waiting: episodes that wait for a place, by what for: `generation`, `tools`, `environments`, `scoring`.
        buffered: groups that wait for the learner.
        capacity: groups that the buffer holds.
        lag_mean: of the last step's samples, in optimizer steps.
        lag_max: the largest of them.
        faults: what went wrong outside so far, by kind.
        detail: what exactly, in words: what is being compiled, why it stops.
        stall: who waits on what, while nothing is finished; empty while all is well.

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
    waiting: dict[str, int] = field(default_factory=dict)
    buffered: int = 0
    capacity: int = 0
    lag_mean: float = 0.0
    lag_max: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    detail: str = ""
    stall: str = ""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What a live run came to.

    Attributes:
        summary: the same numbers as of a simulated run.
        evaluations: (version, mean reward, failed episodes) of each round on held-out tasks.
        metrics: of each optimizer step, by name.
        stopped: why it ended early; empty where it did not.
        step: optimizer steps completed, those before a resume included.
        out: its folder.
        faults: what went wrong outside, by kind.
        weights: a hash of the trained weights, the same in every process.

    """

    summary: RunSummary
    evaluations: tuple[tuple[int, float, int], ...]
    metrics: tuple[dict[str, float], ...]
    stopped: str
    step: int
    out: Path | None
    faults: dict[str, int] = field(default_factory=dict)
    weights: str = ""


def run_live(
    scenario: Scenario[PipelineConfig],
    *,
    steps: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    fall_back: bool = False,
    record: bool = True,
    loggers: Sequence[ScalarLogger] = (),
    heard: Callable[[Glance], object] = lambda glance: None,
    processes: Processes | None = None,
) -> LiveRun:
    """Train for real.

    Args:
        scenario: with a `[live]` table.
        steps: optimizer steps, those before a resume included; the scenario's own by default, warm-up included.
        seed: of weights, tasks and sampling; the scenario's own by default.
        out: folder for metrics, record, checkpoints and the trained policy; nothing is written without it.
        resume: folder of a run to go on from; results go there unless `out` names another.
        fall_back: resume from an older checkpoint where the newest is damaged.
        record: keep every event and interval, as a simulated run does, in `out`/record.
        loggers: told of every number.
        heard: told how the run stands, every now and then.
        processes: where the run has several; this one leads.

    Raises:
        ConfigError: the scenario has no `[live]` table, or something in it cannot be.
        DataError: a checkpoint that cannot be used.
        ActorError: an actor failed; the message names who waits on what where it was a stall.

    """
    told = Loggers(loggers)
    folder = Path(out) if out is not None else Path(resume) if resume is not None else None
    try:
        with terminated_as_interrupted():
            _live_table(scenario)
            with _joined(processes) as joined:
                return _run(
                    scenario, steps or scenario.run.warmup_steps + scenario.run.learner_steps, seed, folder,
                    _Loaded(resume, fall_back=fall_back), told, heard, joined, record=record,
                )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interrupted(folder)) from None
    finally:
        told.close()


def _interrupted(folder: Path | None) -> str:
    """What is left of a run that was interrupted, and how to go on."""
    saved: list[int] = []
    if folder is not None and (folder / CHECKPOINTS).is_dir():
        with _extra():
            from pipeline.numerics.saves import steps

        saved = steps(folder / CHECKPOINTS)
    if not saved:
        return "interrupted before anything was saved\n  do:      start it again"
    return f"interrupted; saved is step {saved[-1]}\n  do:      to go on: harness run SCENARIO --resume {folder}"


def _run(
    scenario: Scenario[PipelineConfig], wanted: int, seed: int | None, folder: Path | None, loaded: _Loaded, told: Loggers,
    heard: Callable[[Glance], object], joined: Joined | None, *, record: bool,
) -> LiveRun:  # fmt: skip
    began_s = time.monotonic()
    table = _live_table(scenario)
    heard(Glance("loading"))
    with loaded:
        chosen = loaded.seed(checked_seed(scenario, seed), asked=seed is not None)
        if loaded.step >= wanted:
            raise ConfigError(
                f"the run that is resumed has completed {loaded.step} steps", field="--steps", value=wanted,
                allowed=f"more than {loaded.step}", remedy="raise it, or run.learner_steps",
            )  # fmt: skip
        if loaded.state is None and folder is not None and (folder / "metrics.jsonl").is_file():
            raise ConfigError(
                "holds a run already", field="--out", value=str(folder), allowed="a folder without one",
                remedy=f"name another, or go on with --resume {folder}",
            )  # fmt: skip
        if joined is not None:
            joined.tell_plan(resolved_json(scenario), chosen)
        world = _world(scenario, table, chosen, loaded.step, joined, folder / WEIGHTS if folder is not None else None)
    try:
        session = _Session(scenario, world, loaded, heard, wanted, folder, told, began_s)
        world.start(session.compiling)
        loaded.restore(world)
        report = session.go(chosen, record=record)
        session.say("saving")
        if folder is not None:
            world.export(folder / "policy")
        digest = world.digest()
    finally:
        world.stop()
    return replace(session.result(report, chosen, folder), weights=digest)


def follow_live(scenario: Scenario[PipelineConfig], processes: Processes) -> str:
    """In a process that does not lead: do what the leader decides, until it stops. Returns a digest of the weights.

    Raises:
        ConfigError: the leader runs another scenario, or something in it cannot be.
        ProcessError: the leader failed or is gone.

    """
    table = _live_table(scenario)
    with signals_left_to_leader(), _joined(processes) as joined:
        assert joined is not None
        return _world(scenario, table, joined.hear_plan(resolved_json(scenario)), 0, joined).follow()


@contextmanager
def _extra() -> Iterator[None]:
    """What is imported in here comes with the extra `live`."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"a live run needs the package {missing.name}", field="harness run", allowed="an installation with the extra live",
            remedy="uv run --extra live harness run ..., or pip install 'rollout-harness[live]'",
        ) from missing  # fmt: skip


@contextmanager
def _joined(processes: Processes | None) -> Iterator[Joined | None]:
    """Among the other processes, where there are any. They are told when this one fails or is done."""
    if processes is None:
        yield None
        return
    with _extra():
        from pipeline.numerics.processes import join

    joined = join(processes)
    try:
        yield joined
    except BaseException as failure:
        if to_blame := joined.failed(failure):
            raise ProcessError(to_blame) from failure
        raise
    finally:
        joined.stop()


def _live_table(scenario: Scenario[PipelineConfig]) -> LiveConfig:
    if scenario.live is None:
        raise ConfigError(
            "this scenario is for the simulator only", field="live",
            allowed="a table [live] with environment, model and learner",
            remedy="add one, see scenarios/cpu_live.toml; or use harness simulate",
        )  # fmt: skip
    if scenario.pipeline.placement is Placement.COLOCATED:
        raise ConfigError(
            "a live run has devices of its own for learner and replicas", field="pipeline.placement", value="colocated",
            allowed="disaggregated", remedy='leave it out; harness simulate says what "colocated" would do',
        )  # fmt: skip
    table: LiveConfig = scenario.live
    return table


def _world(
    scenario: Scenario[PipelineConfig],
    table: LiveConfig,
    seed: int,
    version: int,
    joined: Joined | None,
    weights_folder: Path | None = None,
) -> LiveWorld:
    with _extra():
        from pipeline.live import LiveWorld

    inference = scenario.world.inference
    return LiveWorld(
        table, scenario.pipeline, replicas=inference.replicas, chips_per_replica=inference.chips_per_replica,
        learner_chips=scenario.world.learner.chips, seed=seed, version=version, joined=joined,
        weights_folder=weights_folder,
    )  # fmt: skip


class _Loaded:
    """The checkpoint that a run goes on from, or none."""

    def __init__(self, resume: str | Path | None, *, fall_back: bool) -> None:
        self._folder = Path(resume) / CHECKPOINTS if resume is not None else None
        self._arrays: Any = None
        self._fall_back = fall_back
        self.state: PipelineState | None = None

    def __enter__(self) -> _Loaded:
        if self._folder is not None:
            with _extra():
                from pipeline.numerics.saves import load

            loaded = load(self._folder, fall_back=self._fall_back)
            for skipped in loaded.skipped:
                LOG.warning("a checkpoint was passed over: %s", skipped)
            self._arrays, self.state = loaded.arrays, loaded.state
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    @property
    def step(self) -> int:
        """Optimizer steps that it has completed."""
        return self.state.t if self.state is not None else 0

    def seed(self, wanted: int, *, asked: bool) -> int:
        """The seed of the run, which a resume does not change."""
        if self.state is None:
            return wanted
        own = int(self.state.notes.get("seed", wanted))
        if asked and own != wanted:
            raise ConfigError(
                "a resumed run keeps its seed", field="--seed", value=wanted, allowed=str(own), remedy="leave it out"
            )
        return own

    def restore(self, world: LiveWorld) -> None:
        """Give the learner its arrays back."""
        if self._arrays is not None:
            world.restore(self._arrays)
            self._arrays = None


class _Session:
    """One live run: what is told to whom, and when."""

    def __init__(
        self, scenario: Scenario[PipelineConfig], world: LiveWorld, loaded: _Loaded, heard: Callable[[Glance], object],
        steps: int, folder: Path | None, loggers: Loggers, began_s: float,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.world = world
        self.metrics: list[dict[str, float]] = []
        self.evaluations: list[Evaluated] = []
        self._resume = loaded.state
        self._heard = heard
        self._steps = steps
        self._folder = folder
        self._record: LiveRecord | None = None
        self._loggers = loggers
        self._saves = world.saves(folder / CHECKPOINTS, LOG.warning) if folder is not None else None
        self._began_s = began_s
        self._pipeline: Pipeline | None = None
        self._checks = RunChecks(scenario, None, at_every_event=False)
        self._made = (0, 0.0)
        self._tokens_per_s = 0.0

    def go(self, seed: int, *, record: bool) -> Report:
        """Run it."""
        saves: Performers = self._saves.performers() if self._saves is not None else {Checkpoint: _not_saved}
        performers = {**self.world.performers, **saves, TrainStep: self._train}
        if self._folder is not None:
            kept = self._resume.t if self._resume is not None else 0
            self._loggers.add(JsonLines(self._folder / "metrics.jsonl", keep_steps=kept))
            write_whole(self._folder / "scenario.json", resolved_json(self.scenario))
        if record and self._folder is not None:
            from harness.live_record import LiveRecord

            self._record = LiveRecord(self.scenario, self._folder, seed, self._resume.t if self._resume is not None else 0)
        recorder = self._record.recorder if self._record is not None else NullRecorder()
        try:
            return engine.run(self._main, seed, performers=performers, seed=seed, recorder=recorder)
        except BaseExceptionGroup as group:
            self._give_up_record()
            raise first_failure(group) from group
        except BaseException:
            self._give_up_record()
            raise

    def _give_up_record(self) -> None:
        """The run failed; what was recorded until then is kept. A second failure must not hide the first."""
        if self._record is not None:
            try:
                self._record.write()
            except HarnessError as problem:
                LOG.warning("%s", problem)

    async def _main(self, rt: Runtime, seed: int) -> Report:
        if self._record is not None:
            self._record.watch(rt.lanes, rt.now())
        if self._resume is None:
            if self.world.warm_start_steps:
                self.say("warm start", 0, self.world.warm_start_steps)
            await self.world.warm_start(self._warm_step)
        await self.world.install(self._resume.t if self._resume is not None else 0)
        pipeline = self._pipeline = Pipeline(
            rt, self.scenario.pipeline, self.world.hardware, self.world.source, self.world.learner.snapshot, self._resume
        )
        self._checks.built(pipeline)
        pipeline.notes["seed"] = seed
        pipeline.evaluation.on_done = self._evaluated
        rt.background(self._tick, rt, name="display")
        rt.background(watch_signals, rt, self._stop, name="signals")
        warmup = min(self.scenario.run.warmup_steps, self._steps - 1)
        with LoopWatch():
            report = await pipeline.run(
                steps=self._steps - warmup,
                warmup_steps=warmup,
                limit_ns=ns_from_s(self.scenario.run.max_sim_s),
                at_end=lambda report: self._taken(rt, report),
                at_step=self._stepped,
                save_at_end=self._saves is not None and bool(self.scenario.pipeline.checkpoint_interval),
                evaluate_ends=bool(self.scenario.pipeline.eval_interval),
            )
        if self._saves is not None:
            await self._saves.finish()
        return report

    def _stop(self, name: str) -> None:
        assert self._pipeline is not None
        self._pipeline.request_stop(name)
        self._heard(self.glance())

    def _taken(self, rt: Runtime, report: Report) -> None:
        """The instant of the end: check the books, and end the record."""
        self._checks.ended(report)
        if self._record is not None:
            self._record.end(report)

    async def _train(self, rt: Runtime, work: TrainStep, /) -> Outcome:
        outcome: Outcome = await self.world.performers[TrainStep](rt, work)
        if work.last:
            self.metrics.append(outcome.result)
            self._loggers.log("train", outcome.result, step=work.entity)
        return outcome

    def _warm_step(self, step: int, metrics: dict[str, float]) -> None:
        self._loggers.log(WARM_START, metrics, step=step)
        self.say("warm start", step, self.world.warm_start_steps)

    def compiling(self, what: str, done: int, of: int) -> None:
        """What is compiled next. On the thread that does it."""
        self.say("compiling", done, of, what)

    def say(self, phase: str, done: int = 0, of: int = 0, detail: str = "") -> None:
        """What goes on outside the run itself."""
        self._heard(Glance(phase, done, of, time.monotonic() - self._began_s, detail=detail))

    def _evaluated(self, evaluated: Evaluated) -> None:
        self.evaluations.append(evaluated)
        values = {"reward": evaluated.reward, "failed": evaluated.failed, "lost": len(evaluated.lost)}
        self._loggers.log("eval", values, step=evaluated.version)
        if evaluated.lost:
            LOG.warning(
                "evaluation of version %d lost the tasks %s: not done by its deadline", evaluated.version, evaluated.lost
            )
        self._heard(self.glance())

    def _stepped(self, step: int) -> None:
        glance = self.glance()
        values = {"tokens_per_s": glance.tokens_per_s, "running": glance.running, "buffered": glance.buffered}
        self._loggers.log("run", values, step=step)
        self._loggers.log("idle", glance.idle | {"all": math.fsum(glance.idle.values())}, step=step)
        self._heard(glance)

    async def _tick(self, rt: Runtime) -> None:
        watch = StallWatch(rt, self._finished)
        while True:
            await rt.sleep(ns_from_s(TICK_S))
            if self._record is not None:
                self._record.recorder.spill()
            before, stall = watch.stalls, watch.look()
            if watch.stalls > before:
                LOG.warning("%s", stall)
            self._heard(replace(self.glance(), stall=stall))

    def _finished(self) -> tuple[int, int, int, int]:
        """Changes with every optimizer step and every episode that ends; one that begins counts as well."""
        pipeline = self._pipeline
        assert pipeline is not None
        running, evaluated = len(pipeline.groups.running), len(pipeline.evaluation.running)
        return pipeline.versions.t, pipeline.accounts.admitted, running, evaluated

    def glance(self) -> Glance:
        """How it stands now."""
        pipeline = self._pipeline
        assert pipeline is not None
        now = pipeline.rt.now()
        self._count_tokens(pipeline, now)
        last = self.metrics[-1] if self.metrics else {}
        return Glance(
            phase=self._phase(pipeline),
            step=pipeline.versions.t,
            steps=self._steps,
            elapsed_s=time.monotonic() - self._began_s,
            reward=last.get("reward"),
            evaluations=tuple((done.version, done.reward) for done in self.evaluations),
            tokens_per_s=self._tokens_per_s,
            idle=_idle(pipeline, now),
            running=len(pipeline.groups.running) + len(pipeline.evaluation.running),
            waiting=_waiting(pipeline.rt),
            buffered=len(pipeline.buffer),
            capacity=self.scenario.pipeline.buffer_capacity,
            lag_mean=last.get("lag_steps", 0.0),
            lag_max=last.get("lag_steps_max", 0.0),
            faults=dict(self.world.faults),
            detail=pipeline.stopped,
        )

    def _phase(self, pipeline: Pipeline) -> str:
        if pipeline.stopped:
            return "stopping"
        return "evaluating" if pipeline.learner.lane.state is State.EVAL else "training"

    def _count_tokens(self, pipeline: Pipeline, now_ns: int) -> None:
        made, at_s = self._made
        now_s, total = now_ns / 1e9, pipeline.accounts.made_tokens
        if now_s - at_s >= 2 * TICK_S:
            self._tokens_per_s = (total - made) / (now_s - at_s)
            self._made = (total, now_s)

    def result(self, report: Report, seed: int, folder: Path | None) -> LiveRun:
        """What it came to; the record is written."""
        summary = priced(summarise(report, seed), report, self.scenario)
        summary = replace(summary, warmup_steps=self.scenario.run.warmup_steps)
        if self._record is not None:
            try:
                summary = replace(summary, events_hash=self._record.write())
            except OutputError as problem:  # what was trained is there, and so are the record's parts
                LOG.warning("%s", problem)
        return LiveRun(
            summary, tuple((done.version, done.reward, done.failed) for done in self.evaluations), tuple(self.metrics),
            report.stopped, report.versions[0], folder, dict(self.world.faults),
        )  # fmt: skip


async def _not_saved(rt: Runtime, work: Checkpoint, /) -> Outcome:
    """There is no folder to save to."""
    return Outcome()


def _waiting(rt: Runtime) -> dict[str, int]:
    """Rollout lanes that wait for a place, by what for."""
    clock = rt.lanes.role("rollout")
    return {name: count for state, name in QUEUES.items() if (count := clock.count(state))}


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
