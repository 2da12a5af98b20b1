"""Composition root: the one place where the tool meets the pipeline. `harness.load`, `simulate` and `tune` stand here.

`simulate_once` is one replication: a scenario and a seed in, plain numbers out. It runs the pipeline's own actors on the engine
`sim` in the simulated world, checks the conservation laws at the end, and splits every chip-nanosecond of the window.
"""

from __future__ import annotations

import math
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from harness.analysis.agreement import agree
from harness.analysis.outages import adjusted_kept, headline
from harness.analysis.stopping import Precision, looks_at, one_run_said, reached, too_short
from harness.checks import RunChecks
from harness.checks import wanted as checks_wanted
from harness.core.errors import ConfigError, HarnessError
from harness.core.units import ns_from_s
from harness.costs.calendars import Calendar
from harness.costs.world import SimulatedWorld
from harness.engines import sim
from harness.expected import expected
from harness.notices import largest_batch
from harness.notices import notices as notices
from harness.own_pipeline import OwnPipeline, check_type, find, of_own, shared
from harness.scenario import load as scenario_files
from harness.scenario.inputs import calibrated_inputs
from harness.summaries import summarise_whole
from harness.tuned import (
    ERROR,
    by_hand,
    check_objective,
    fair_lengths,
    parse_share,
    peers_of,
    study_of,
    tunable,
    with_settings,
)
from harness.tuning import search
from harness.tuning.answer import staleness_cost
from harness.tuning.crew import Processes, cores
from harness.tuning.result import INDIFFERENCE
from harness.tuning.wishes import notes_of
from harness.tuning.worker import Failure
from pipeline.build import Hardware, Pipeline, Report
from pipeline.config import PipelineConfig
from pipeline.data import Task
from pipeline.live_config import LiveConfig
from pipeline.policies.compiles import Buckets
from pipeline.policies.fleet import LEARNER, slice_of
from pipeline.policies.kinds import Placement
from pipeline.policies.kv_prefix import PrefixRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.agreement import Agreement
    from harness.analysis.statistics import Controlled
    from harness.analysis.summary import RunSummary
    from harness.core.events import Recorder
    from harness.core.runtime import Runtime
    from harness.scenario.inference import Inference
    from harness.scenario.schema import Scenario, World
    from harness.tuning.result import Objective, TuneResult
    from harness.tuning.search import Progress
    from harness.tuning.space import Settings

Own = str | Callable[..., Any] | OwnPipeline
"""A pipeline of a user's own: `module:build`, or what that names."""

__all__ = ["PipelineConfig", "Run", "fair_lengths", "load", "simulate", "simulate_once", "tune", "with_settings"]


def load(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    patch: str | Path | None = None,
    pipeline: Own | None = None,
) -> Scenario[PipelineConfig]:
    """Read a scenario file.

    Args:
        path: the TOML file.
        overrides: `path=value`, applied before validation: `pipeline.max_staleness=2`.
        patch: a TOML file that is put over it field by field, before the overrides: `patch.toml` of `tune`.
        pipeline: one of your own, as `module:build` or the callable itself, whose knobs the scenario may set.

    Raises:
        ConfigError: file, line, field, value, what is allowed and what to do.

    """
    knobs = find(pipeline).config_type if pipeline is not None else PipelineConfig
    return scenario_files.load(path, knobs, overrides, LiveConfig, check=hardware, patch=patch)


def schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors: every field with its unit and meaning."""
    return scenario_files.editor_schema(PipelineConfig, LiveConfig)


def reference(path: str = "") -> str:
    """The fields of a scenario at and below `path`, as text.

    Raises:
        ConfigError: there is no such field.

    """
    from harness.scenario.reference import reference as text

    return text(scenario_files.json_schema(PipelineConfig, LiveConfig), path)


# ── one replication ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def hardware(scenario: Scenario[Any]) -> Hardware:
    """What a scenario's world gives the pipeline to run on.

    Raises:
        ConfigError: learner and replicas are to share chips, and the world does not let them.

    """
    world = scenario.world
    colocated = scenario.pipeline.placement is Placement.COLOCATED
    if colocated:
        world.check_shared_chips()
    return Hardware(
        replicas=world.inference.replicas,
        chips_per_replica=world.inference.chips_per_replica,
        slots=largest_batch(world.inference) or scenario.pipeline.slots_per_replica,
        kv_tokens=world.inference.kv_capacity_tokens,
        learner_chips=world.learner.chips,
        weights_bytes=world.weights.weights_bytes,
        state_bytes=world.checkpoint.state_bytes if world.checkpoint is not None else 0,
        log_probs=world.learner.log_probs is not None,
        external=world.inference.server is not None,
        prefix=_prefix_rules(world.inference),
        compiles=_buckets(world.inference),
        colocated=colocated,
        learner_compiles=world.learner.compile_s > 0,
        losable=_losable(world),
        replacements=world.preemption.replacements_at_once if world.preemption is not None else None,
        arrivals=scenario.workload.arrivals is not None,
        waiting_max=scenario.workload.arrivals.waiting_max if scenario.workload.arrivals is not None else None,
    )


def _prefix_rules(inference: Inference) -> PrefixRules | None:
    cache = inference.prefix_cache
    return PrefixRules(keep_on_swap=cache.on_swap == "keep", shared_prompts=cache.shared_prompts) if cache is not None else None


def _buckets(inference: Inference) -> Buckets | None:
    law = inference.compile
    return Buckets(tuple(law.batch_buckets), tuple(law.prefill_buckets)) if law is not None else None


def _losable(world: World) -> tuple[int, ...]:
    """Slices of chips that can be lost."""
    preemption = world.preemption
    if preemption is None:
        return ()
    replicas = range(world.inference.replicas) if preemption.replicas is not None else ()
    learner = (LEARNER,) if preemption.learner is not None else ()
    return (*learner, *(slice_of(replica) for replica in replicas))


def simulate_once(
    scenario: Scenario[PipelineConfig],
    seed: int,
    *,
    learner_steps: int | None = None,
    warmup_steps: int | None = None,
    recorder: Recorder | None = None,
    at_end: Callable[[Report], object] = lambda report: None,
    engine: Callable[..., Any] = sim.run,
    check: bool = False,
    pipeline: Own | None = None,
) -> RunSummary:
    """Run one replication in virtual time.

    Args:
        scenario: what to run.
        seed: of its draws.
        learner_steps: optimizer steps in the reported window; the scenario's own by default.
        warmup_steps: steps before it; the scenario's own by default.
        recorder: keeps events and intervals.
        at_end: called with the pipeline's report at the instant of the end, before anything is cancelled.
        engine: `harness.engines.sim.run`, or another that satisfies `harness.core.runtime.Engine`.
        check: hold the laws at every event too, not only at the end (also: `HARNESS_DEBUG_INVARIANTS=1`).
        pipeline: one of your own, as `module:build` or the callable itself, in place of ours.

    Raises:
        TraceError: a law does not hold; names the ids, and the event where that was looked at.
        ActorError: an actor failed, or the run did not end within `run.max_sim_s`.

    """
    equipment = hardware(scenario)
    world = SimulatedWorld(scenario, seed, Task, colocated=equipment.colocated)
    plan = scenario.run
    spill = recorder.spill if isinstance(recorder, Spilling) else _nothing
    step_ends_ns: list[int] = []
    checks = RunChecks(scenario, recorder, at_every_event=check or checks_wanted())
    own = _own(scenario, pipeline)

    async def main(rt: Runtime) -> Report:
        built = (own.made if own is not None else Pipeline)(rt, scenario.pipeline, equipment, world.source)
        checks.built(built)
        report = await built.run(
            steps=learner_steps or plan.learner_steps,
            warmup_steps=plan.warmup_steps if warmup_steps is None else warmup_steps,
            limit_ns=ns_from_s(plan.max_sim_s),
            at_end=finish,
            at_step=lambda step: stepped(step, rt.now()),
        )
        return own.reported(report) if own is not None else report

    def stepped(step: int, now_ns: int) -> None:
        del step_ends_ns[step - 1 :]  # a step that was lost is made once more
        step_ends_ns.append(now_ns)
        spill()

    def finish(report: Report) -> None:
        checks.ended(report)
        at_end(report)

    try:
        report = engine(main, performers=world.performers, seed=seed, recorder=checks.recorder, host=scenario.world.host.costs)
    except (Exception, BaseExceptionGroup) as group:
        failure = first_failure(group) if isinstance(group, BaseExceptionGroup) else group
        if own is not None and isinstance(failure, Exception):
            raise own.blamed(failure) from failure
        if OverflowError in (type(failure), type(failure.__cause__)):
            raise ConfigError(
                "has a time or size beyond what a simulation can count", field="world", allowed="up to 146 years",
                remedy="look for a number that is far too large",
            ) from group  # fmt: skip
        raise failure from group
    summary = summarise_whole(report, seed, scenario)  # of the instant of the end: the books are balanced again below
    checks.over()
    before = plan.warmup_steps if warmup_steps is None else warmup_steps
    down = {one.name: Calendar(one, seed).down_ns(report.start_ns, report.end_ns) for one in scenario.world.outages}
    return replace(summary, warmup_steps=before, step_ends_ns=tuple(step_ends_ns), outage_ns=down)


def _own(scenario: Scenario[PipelineConfig], pipeline: Own | None, *, elsewhere: bool = False) -> OwnPipeline | None:
    """A user's own pipeline, fit for this scenario; `elsewhere`: in other processes too."""
    if pipeline is None:
        return None
    own = find(pipeline)
    check_type(scenario, own)
    return shared(own) if elsewhere else own


@runtime_checkable
class Spilling(Protocol):
    """A recorder that packs what it has now and then, so that a long run does not drag millions of loose numbers along."""

    def spill(self) -> None:
        """Pack."""


def _nothing() -> None:
    """Do nothing."""


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that a group of failures is about: a deliberate error if there is one, else the first leaf."""
    leaves: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo:
        item = todo.pop(0)
        if isinstance(item, BaseExceptionGroup):
            todo.extend(item.exceptions)
        else:
            leaves.append(item)
    return next((leaf for leaf in leaves if isinstance(leaf, HarnessError)), leaves[0])


# ── replications ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Run:
    """Replications of one scenario.

    Attributes:
        scenario: what was run.
        summaries: one for each replication that was finished, in the order of their seeds.
        notes: what a reader must know of the configuration.
        interrupted: whether it was stopped before all were done.
        records: folders of the run records, where they were asked for.
        agreement: what was expected by hand, and whether the simulation agrees.
        precision: how the wish for a precision ended, where there was one.
        adjusted: kept groups per chip-second, adjusted for how much of the outages the replications met.

    """

    scenario: Scenario[PipelineConfig]
    summaries: tuple[RunSummary, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    records: tuple[Path, ...] = ()
    agreement: Agreement | None = None
    precision: Precision | None = None
    adjusted: Controlled | None = None


def simulate(
    scenario: Scenario[PipelineConfig],
    *,
    replications: int | None = None,
    seed: int | None = None,
    record: bool = False,
    out: str | Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    precision: float | None = None,
    max_replications: int = 200,
    check: bool = False,
    pipeline: Own | None = None,
) -> Run:
    """Run independent replications, one process a core.

    Args:
        scenario: what to run.
        replications: how many; the scenario's own by default.
        seed: of the first one, the others count up; the scenario's own by default.
        record: keep events, intervals, lanes and samples as Parquet, in `out`/`seed-N`.
        out: folder for records and for `scenario.json`, the fully resolved configuration; nothing is written without it.
        workers: processes; one a core by default.
        progress: told (done, all) after each.
        precision: go on until kept groups per chip-second are known to this relative half width (0.02 is 2 %).
        max_replications: but make no more than these; then the result says that it was not reached.
        check: hold the laws of a run at every event (also: `HARNESS_DEBUG_INVARIANTS=1`); takes about twice as long.
        pipeline: one of your own, as `module:build` or the callable itself, in place of ours.

    Raises:
        ConfigError: `record` without `out`, or a precision that is none.
        HarnessError: a replication failed.

    """
    if record and out is None:
        raise ConfigError("needs a folder", field="--record", remedy="say where the record goes with --out")
    wanted = scenario.run.replications if replications is None else replications
    if wanted < 1:
        raise ConfigError("is too small", field="replications", value=replications, allowed="1 or more")
    looks = looks_at(precision, replications, max_replications) if precision is not None else (wanted,)
    first = checked_seed(scenario, seed)
    own = _own(scenario, pipeline, elsewhere=workers != 1)
    folder = Path(out) if out is not None else None
    if folder is not None:
        from harness.files import write_whole

        write_whole(folder / "scenario.json", scenario_files.resolved_json(scenario))
    down = {outage.name: outage.down_share for outage in scenario.world.outages}
    job = partial(_replicate, scenario, folder if record else None, check, own)
    done: dict[int, RunSummary] = {}
    interrupted = False
    try:
        for look in looks:
            seeds = list(range(first + len(done), first + look))
            _run_all(job, seeds, min(workers or cores(), len(seeds)), done, progress)
            judged = reached(precision, headline([done[key] for key in sorted(done)], down))
            if judged is not None and judged.reached:
                break
    except KeyboardInterrupt:
        interrupted = True
        if not done:
            raise
    finally:
        for half_written in folder.glob(".seed-*") if record and folder is not None else ():  # by a worker that was stopped
            shutil.rmtree(half_written, ignore_errors=True)
    summaries = tuple(done[key] for key in sorted(done))
    records = tuple(_record_folder(folder, key) for key in sorted(done)) if record and folder is not None else ()
    config = scenario.pipeline
    rare = bool(scenario.world.outages) or scenario.world.preemption is not None
    short = too_short(summaries, model_warmup_steps=config.pipeline_depth + config.steps_per_sync, outages=rare)
    said = (
        *notices(scenario),
        *of_own(own),
        *short,
        *filter(None, [one_run_said(summaries[0])] if len(summaries) == 1 else []),
    )
    agreement = agree(expected(scenario), summaries) if own is None else None
    judged = reached(precision, headline(summaries, down))
    return Run(scenario, summaries, said, interrupted, records, agreement, judged, adjusted_kept(summaries, down))


def checked_seed(scenario: Scenario[PipelineConfig], seed: int | None) -> int:
    if seed is None:
        return scenario.run.seed
    if not 0 <= seed < 1 << 62:
        raise ConfigError("is not a seed", field="seed", value=seed, allowed="a whole number from 0 to 2^62 - 1")
    return seed


def _run_all(
    job: Callable[[int], RunSummary],
    seeds: list[int],
    workers: int,
    done: dict[int, RunSummary],
    progress: Callable[[int, int], None],
) -> None:
    """Every seed, in this process or in several."""
    if workers == 1:
        for number in seeds:
            done[number] = job(number)
            progress(len(done), len(seeds))
        return
    with Processes(job, workers) as crew:
        waiting = list(seeds)
        tickets: dict[int, int] = {}
        while waiting or tickets:
            while waiting and crew.idle:
                number = waiting.pop(0)
                tickets[crew.submit(number)] = number
            over = crew.wait(math.inf if not waiting and not tickets else crew.now() + 3600)
            if over is None:
                continue
            number = tickets.pop(over.ticket)
            if isinstance(over.result, Failure):
                raise search.EvaluationError(f"seed {number}: {over.result.message}", over.result.exit_code)
            done[number] = over.result
            progress(len(done), len(seeds))


def _replicate(
    scenario: Scenario[PipelineConfig],
    folder: Path | None,
    check: bool,  # noqa: FBT001
    own: OwnPipeline | None,
    seed: int,
) -> RunSummary:
    """One replication, recorded where a folder is given. A function of the module, so that other processes find it."""
    if folder is None:
        return simulate_once(scenario, seed, check=check, pipeline=own)
    return record_once(scenario, seed, _record_folder(folder, seed), check=check, pipeline=own)


def _record_folder(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def record_once(
    scenario: Scenario[PipelineConfig],
    seed: int,
    folder: Path,
    *,
    learner_steps: int | None = None,
    check: bool = False,
    pipeline: Own | None = None,
) -> RunSummary:
    """One replication with its whole record on disk, checked against the invariants before it is written.

    Raises:
        TraceError: an invariant does not hold.
        OutputError: it could not be written.

    """
    from harness.trace.invariants import check_record
    from harness.trace.recorder import TraceRecorder
    from harness.trace.store import Manifest, RunRecord, books_of, take_record, write_record

    recorder = TraceRecorder()
    taken: list[RunRecord] = []
    config = scenario.pipeline

    def take(report: Report) -> None:
        manifest = Manifest(
            seed=seed,
            clock="virtual",
            end_ns=report.end_ns,
            mark_ns=report.start_ns,
            complete=False,
            config=scenario.model_dump(mode="json"),
            versions={"python": platform.python_version()} | {name: metadata.version(name) for name in ("numpy", "simpy")},
            books=books_of(report.accounts),
        )
        taken.append(take_record(recorder, report.lanes, manifest))

    summary = simulate_once(
        scenario, seed, recorder=recorder, at_end=take, learner_steps=learner_steps, check=check, pipeline=pipeline
    )
    bounded = config.stale_policy.value != "train"
    check_record(taken[0], capacity=config.buffer_capacity, max_lag=config.max_staleness if bounded else None)
    write_record(taken[0], folder)
    return replace(summary, events_hash=taken[0].manifest.events_hash)


# ── tuning ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tune(
    scenario: Scenario[PipelineConfig],
    *,
    budget_s: float = 60.0,
    objective: Objective = "kept",
    max_lag: int | None = None,
    knobs: Sequence[str] = (),
    chips: bool = False,
    indifference: float = INDIFFERENCE,
    error: float = ERROR,
    sensitivity: bool | None = None,
    study: str | Path | None = None,
    pipeline: Own | None = None,
    seed: int | None = None,
    workers: int | None = None,
    source: str = "SCENARIO",
    started_at: float | None = None,
    reserve_s: float = 0.5,
    heard: Callable[[Progress], None] | None = None,
) -> TuneResult:
    """Find the settings that keep the chips busiest, within the promised time.

    Args:
        scenario: today's settings.
        budget_s: seconds until the answer.
        objective: `kept` groups per chip-second, the `idle` share, or trained `tokens` per chip-second.
        max_lag: largest lag allowed, in optimizer steps: it depends on the loss and is never inferred from throughput.
        knobs: what is searched: names of knobs or groups, `NAME=v1,v2` or `NAME=low..high`; by default the group `schedule`.
        chips: search the split of the chips between replicas and learner as well.
        indifference: a gain below this fraction is not worth changing a configuration for.
        error: probability, at most, that a setting better by more than this is thrown away for luck.
        sensitivity: ask what the answer becomes when calibrated inputs are off; None where time is left.
        study: folder in which every simulation is kept; one that is there is gone on with.
        pipeline: one of your own, as `module:build` or the callable itself, in place of ours; `knobs` may name its own knobs.
        seed: of the first reported replication; the scenario's own by default.
        workers: processes; one a core by default.
        source: how a shell names the scenario, for the command to reproduce the answer.
        started_at: when the promise began, on the monotonic clock; now by default.
        reserve_s: kept back for saying the answer.
        heard: told of progress.

    Raises:
        ConfigError: what is to be searched is not there, or the budget does not hold one simulation.

    """
    parse_share(indifference, "indifference"), parse_share(error, "error")
    own = _own(scenario, pipeline, elsewhere=True)
    space = tunable(scenario).space(knobs, chips=chips, max_lag=max_lag)
    names = [knob.name for knob in space.knobs]
    check_objective(objective, names)
    problem = search.Problem(
        scenario=scenario.title,
        space=space,
        evaluate=partial(_evaluate, scenario, own),
        learner_steps=scenario.run.learner_steps,
        warmup_steps=scenario.run.warmup_steps,
        seed=checked_seed(scenario, seed),
        source=source,
        by_hand=partial(by_hand, scenario, objective=objective, ours=own is None),
        inputs=calibrated_inputs(scenario),
    )
    with study_of(scenario, study, code=own.fingerprint if own is not None else "") as kept:
        result = search.tune(
            problem,
            promise=search.Promise(budget_s, started_at, reserve_s),
            objective=objective,
            max_lag=max_lag,
            workers=workers,
            heard=heard,
            indifference=indifference,
            error=error,
            sensitivity=sensitivity,
            study=kept,
        )
    notes = (*result.notes, *notes_of(path.rpartition(".")[2] for path in result.changed))
    return replace(result, notes=notes, staleness_cost=staleness_cost(result), peers=peers_of(scenario, result))


def _evaluate(
    scenario: Scenario[PipelineConfig], own: OwnPipeline | None, settings: Settings, seed: int, steps: int
) -> RunSummary:
    changed = with_settings(scenario, settings)
    warmup_steps, window_steps = fair_lengths(changed, steps)
    return simulate_once(changed, seed, learner_steps=window_steps, warmup_steps=warmup_steps, pipeline=own)
