"""Composition root: the one place where the tool meets the pipeline.

`simulate_once` is one replication: a scenario and a seed in, plain numbers out. It runs the pipeline's own actors on the engine
`sim` in the simulated world, checks the conservation laws at the end, and splits every chip-nanosecond of the window.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from harness.analysis import ledger
from harness.analysis.summary import RunSummary
from harness.core.accounts import Fate
from harness.core.errors import HarnessError
from harness.core.events import NullRecorder
from harness.core.units import ns_from_s
from harness.costs.world import SimulatedWorld
from harness.engines import sim
from harness.scenario import load as scenario_files
from pipeline.build import Hardware, Pipeline, Report
from pipeline.config import PipelineConfig
from pipeline.data import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.core.events import Recorder
    from harness.core.runtime import Runtime
    from harness.scenario.schema import Scenario


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario[PipelineConfig]:
    """Read a scenario file.

    Args:
        path: the TOML file.
        overrides: `path=value`, applied before validation: `pipeline.max_staleness=2`.

    Raises:
        ConfigError: file, line, field, value, what is allowed and what to do.

    """
    return scenario_files.load(path, PipelineConfig, overrides)


def hardware(scenario: Scenario[Any]) -> Hardware:
    """What a scenario's world gives the pipeline to run on."""
    world = scenario.world
    return Hardware(
        replicas=world.inference.replicas,
        chips_per_replica=world.inference.chips_per_replica,
        slots=scenario.pipeline.slots_per_replica,
        kv_tokens=world.inference.kv_capacity_tokens,
        learner_chips=world.learner.chips,
        weights_bytes=world.weights.weights_bytes,
        state_bytes=world.checkpoint.state_bytes if world.checkpoint is not None else 0,
        log_probs=world.learner.log_probs is not None,
    )


def simulate_once(
    scenario: Scenario[PipelineConfig],
    seed: int,
    *,
    learner_steps: int | None = None,
    warmup_steps: int | None = None,
    recorder: Recorder | None = None,
    at_end: Callable[[Report], object] = lambda report: None,
) -> RunSummary:
    """Run one replication in virtual time.

    Args:
        scenario: what to run.
        seed: of its draws.
        learner_steps: optimizer steps in the reported window; the scenario's own by default.
        warmup_steps: steps before it; the scenario's own by default.
        recorder: keeps events and intervals.
        at_end: called with the pipeline's report at the instant of the end, before anything is cancelled.

    Raises:
        TraceError: a conservation law does not hold; names the ids.
        ActorError: an actor failed, or the run did not end within `run.max_sim_s`.

    """
    world = SimulatedWorld(scenario, seed, Task)
    plan = scenario.run
    recorder = recorder or NullRecorder()

    async def main(rt: Runtime) -> Report:
        pipeline = Pipeline(rt, scenario.pipeline, hardware(scenario), world.source)
        return await pipeline.run(
            steps=learner_steps or plan.learner_steps,
            warmup_steps=plan.warmup_steps if warmup_steps is None else warmup_steps,
            limit_ns=ns_from_s(plan.max_sim_s),
            at_end=at_end,
        )

    try:
        report = sim.run(main, performers=world.performers, seed=seed, recorder=recorder)
    except BaseExceptionGroup as group:
        raise first_failure(group) from group
    return summarise(report, seed)


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


def summarise(report: Report, seed: int) -> RunSummary:
    """Plain numbers from what a run left behind, live or simulated."""
    tally, accounts = report.tally, report.accounts
    window_ns = report.end_ns - report.start_ns
    lags = sorted(tally.lags)
    in_flight_tokens, _ = accounts.window_in_flight
    return RunSummary(
        seed=seed,
        window_s=window_ns / 1e9,
        total_s=report.end_ns / 1e9,
        chips=report.chips,
        learner_steps=tally.steps,
        groups=tally.groups,
        turns=tally.turns,
        episodes=tally.episodes,
        tokens_made=sum(accounts.window_tokens) + in_flight_tokens,
        tokens_trained=accounts.window_tokens[Fate.TRAINED],
        chip_ns=chip_split(report),
        lag_mean=_mean(lags),
        lag_p95=float(lags[min(len(lags) - 1, math.ceil(0.95 * len(lags)) - 1)]) if lags else 0.0,
        lag_max=lags[-1] if lags else 0,
        lag_in_queue_mean=_mean(tally.lags_in_queue),
        dropped_groups=dict(sorted(tally.dropped.items())),
        settled={fate.name.lower(): accounts.settled[fate] for fate in Fate if accounts.settled[fate]},
        utilisation=dict(report.pools),
        generated_length_mean=_mean(tally.generated_lengths),
        trained_length_mean=_mean(tally.trained_lengths),
        warnings=_warnings(report),
    )


def chip_split(report: Report) -> dict[str, int]:
    """Every chip-nanosecond of the window, in exactly one class."""
    lanes = [
        ledger.ChipLane(lane.name, lane.role, lane.chips, report.lane_ns[lane.name]) for lane in report.lanes if lane.chips
    ]
    _, in_flight = report.accounts.window_in_flight
    books = ledger.GenerationBooks(report.accounts.window_ns, in_flight)
    blame = [ledger.Blame(name, causes) for name, causes in report.idle_ns.items()]
    return ledger.split(lanes, report.end_ns - report.start_ns, books, None, blame)


def _warnings(report: Report) -> tuple[str, ...]:
    said = []
    if report.tally.steps < 20:
        said.append(f"only {report.tally.steps} learner steps were reported on; a claim needs at least 20")
    return tuple(said)


def _mean(values: Sequence[int]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
