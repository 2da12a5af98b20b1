"""A small fast world round the pipeline's real actors, and everything that must hold of whatever runs in it.

Laws are constant unless a test says otherwise, so that instants can be worked out by hand. Needs no test framework.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from harness.checks import limits_of
from harness.core.events import Event, EventKind, MemoryRecorder
from harness.core.lanes import State, check_lanes
from harness.core.work import Decode, EnvClose, EnvReset, Outcome, Publish, Reward, ToolCall, TrainStep, WorkKind
from harness.costs.world import SimulatedWorld
from harness.engines import sim
from harness.run import hardware
from harness.scenario.schema import Scenario
from harness.summaries import summarise
from harness.trace.invariants import check_record
from harness.trace.online import check_log
from harness.trace.recorder import TraceRecorder
from harness.trace.store import Manifest, take_record
from pipeline.build import Pipeline
from pipeline.config import PipelineConfig
from pipeline.data import Task
from pipeline.policies.kinds import StalePolicy

S = 1_000_000_000


def constant(value_s: float) -> dict[str, Any]:
    return {"law": "constant", "value_s": value_s}


def exponential(mean_s: float) -> dict[str, Any]:
    return {"law": "exponential", "mean_s": mean_s}


def count(value: int) -> dict[str, Any]:
    return {"law": "constant", "value": value}


def geometric(mean: float, most: int) -> dict[str, Any]:
    return {"law": "geometric", "mean": mean, "max": most}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the tables of `changes` laid over it; a table with a `law` is replaced as a whole."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) and "law" not in value else value
    return result


WORLD = {
    "inference": {
        "replicas": 1,
        "chips_per_replica": 1,
        "kv_capacity_tokens": 10_000,
        "decode": {"base_s": 0.01, "weights_s": 0.0, "per_sequence_s": 0.0, "per_kv_token_s": 0.0},
        "prefill": {"base_s": 0.1, "per_token_s": 0.0},
    },
    "learner": {"chips": 1, "train": {"base_s": 1.0}},
    "weights": {"weights_bytes": 1000, "transfer": {"base_s": 0.5, "bytes_per_s": 1e12}},
    "environments": {"reset": constant(1.0), "close": constant(0.5)},
    "scoring": {"duration": constant(1.0)},
}
TOOL = {"name": "tool", "share": 1.0, "duration": constant(2.0)}
WORKLOAD = {
    "tasks": 50,
    "turns": count(2),
    "prompt_tokens": count(10),
    "response_tokens": count(20),
    "observation_tokens": count(5),
    "max_context_tokens": 1000,
}
PIPELINE = {
    "group_size": 2,
    "groups_per_step": 2,
    "max_staleness": 1,
    "pipeline_depth": 1,
    "max_inflight": 8,
    "buffer_capacity": 4,
    "env_workers": 8,
    "tool_workers": 8,
    "reward_workers": 8,
    "decode_chunk_steps": 10,
    "retry_infra": 2,
    "backoff_s": 0.25,
    "backoff_max_s": 1.0,
    "eval_episodes": 2,
    "deadlines": {"episode_s": 1000.0},
}
RANDOM = {
    "world": {
        "environments": {"reset": exponential(1.0), "close": exponential(0.3)},
        "scoring": {"duration": exponential(0.7)},
    },
    "workload": {
        "turns": geometric(2.0, 4),
        "response_tokens": geometric(15.0, 40),
        "observation_tokens": geometric(6.0, 20),
        "tools": [{"name": "tool", "share": 1.0, "duration": exponential(2.0)}],
    },
}
"""Changes that make the world a random one."""


def scenario(
    pipeline: dict[str, Any] | None = None,
    *,
    world: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    tool: dict[str, Any] | None = None,
    steps: int = 4,
    max_sim_s: float = 100_000.0,
    random: bool = False,
) -> Scenario[PipelineConfig]:
    """The tiny scenario with changes. Raises `ConfigError` when the pipeline refuses its configuration."""
    base = {"world": WORLD, "workload": {**WORKLOAD, "tools": [TOOL]}}
    if random:
        base = merged(base, RANDOM)
    for part, changes in (("world", world), ("workload", workload)):
        base[part] = merged(base[part], changes or {})
    if tool is not None:
        base["workload"]["tools"] = [merged(base["workload"]["tools"][0], tool)]
    return Scenario[PipelineConfig].model_validate(
        {
            "title": "tiny",
            "question": "do the laws hold?",
            **base,
            "pipeline": PipelineConfig.model_validate(merged(PIPELINE, pipeline or {})),
            "run": {"learner_steps": steps, "warmup_steps": 0, "max_sim_s": max_sim_s},
        }
    )


@dataclass
class Played:
    """A run and what it left behind."""

    scenario: Scenario[PipelineConfig]
    pipeline: Pipeline = field(init=False)
    report: Any = None
    events: list[Event] = field(default_factory=list)  # up to the end
    all_events: list[Event] = field(default_factory=list)  # with what was cancelled after it
    record: Any = None
    summary: Any = None
    on_event: Any = lambda event: None
    first_version: int = 0

    def of(self, kind: EventKind, *, entity: int | None = None) -> list[Event]:
        """Events of one kind up to the end."""
        return [event for event in self.events if event[1] == kind and entity in (None, event[2])]

    def works(self, kind: WorkKind, *, ends: bool = False) -> list[Event]:
        """Starts (or ends) of one kind of work, of the whole log."""
        wanted = EventKind.WORK_END if ends else EventKind.WORK_START
        return [event for event in self.all_events if event[1] == wanted and event[3] == kind]


def play(
    what: Scenario[PipelineConfig],
    seed: int = 0,
    *,
    engine: Any = sim.run,
    performers: Any = None,
    warmup_steps: int = 0,
    source: Any = None,
    interrupt: Any = None,
    cut_at_event: int = 0,
    at_event: tuple[int, Any] | None = None,
    at_instant: Any = None,
    checks: bool = True,
    resume: Any = None,
    made: Any = None,
    ends: bool = False,
    **options: Any,
) -> Played:
    """Run a scenario through the real actors and check every law that is the same for all configurations.

    Args:
        what: the scenario.
        seed: of its draws.
        engine: that runs it.
        performers: called with the world, gives performers that replace its own.
        warmup_steps: before the window.
        source: called with the world, gives the task source.
        interrupt: an actor that runs beside the pipeline, and ends the run by cancelling the scope that it is given.
        cut_at_event: the run is cancelled at this event (from 1), from within whoever emits it.
        at_event: (event, from 1; what is then called with the pipeline, from within whoever emits it).
        at_instant: called with what has been played when an instant is over, before anything happens in the next.
        checks: whether to keep and check the record, which takes as long as the run.
        resume: the state to go on from.
        made: called with the pipeline before it runs.
        ends: whether there is an evaluation before the first step and after the last.
        options: for the engine.
    """
    world = SimulatedWorld(what, seed, Task, colocated=hardware(what).colocated)
    trace, memory, played = TraceRecorder(), MemoryRecorder(), Played(what)
    played.first_version = resume.t if resume is not None else 0

    class Both:
        enabled = True

        def append_event(self, event):
            if at_instant and played.report is None and memory.events and event[0] > memory.events[-1][0]:
                at_instant(played)
            trace.append_event(event)
            memory.append_event(event)
            played.on_event(event)

        append_interval = staticmethod(trace.append_interval)

    async def main(rt):
        pipeline = played.pipeline = Pipeline(
            rt, what.pipeline, hardware(what), source(world) if source else world.source, resume=resume
        )
        if made:
            made(pipeline)
        run = {
            "steps": what.run.learner_steps,
            "warmup_steps": warmup_steps,
            "limit_ns": round(what.run.max_sim_s * S),
            "at_end": at_end,
            "evaluate_ends": ends,
        }
        if interrupt is None:
            with rt.cancel_scope() as scope:
                if cut_at_event:
                    played.on_event = lambda event: scope.cancel() if len(memory.events) == cut_at_event else None
                elif at_event:
                    number, then = at_event
                    played.on_event = lambda event: then(pipeline) if len(memory.events) == number else None
                await pipeline.run(**run)
            return
        with rt.cancel_scope() as scope:
            async with rt.nursery() as nursery:
                nursery.start_soon(interrupt, rt, scope)
                await pipeline.run(**run)
                nursery.cancel_scope.cancel()

    def at_end(report):
        check_lanes(played.pipeline.rt.lanes, 0, report.end_ns)
        played.events = list(memory.events)
        played.summary = summarise(report, seed)  # splits the chip time, or raises
        played.report = report
        if checks:
            window = {"end_ns": report.end_ns, "mark_ns": report.start_ns, "complete": False}
            played.record = take_record(trace, report.lanes, Manifest(seed=seed, clock="virtual", config={}, **window))

    engine(main, performers=world.performers | (performers(world) if performers else {}), seed=seed, recorder=Both(), **options)
    played.all_events = memory.events
    check(played)
    return played


def check(played: Played) -> None:
    """What holds of every run, cut short or not."""
    config, pipeline = played.scenario.pipeline, played.pipeline
    taken = sorted({event[2] for event in played.works(WorkKind.ENV_RESET)})
    assert sorted(event[2] for event in played.works(WorkKind.ENV_CLOSE)) == taken, "each sandbox is closed exactly once"
    for pool in pipeline.pools.values():
        assert (pool.in_use, pool.waiting) == (0, 0), f"{pool.name}: {pool.in_use} out, {pool.waiting} waiting"
    pipeline.engines.balance()
    pipeline.accounts.check(pipeline.holders())
    lost = any(lane.state is State.DOWN or lane.totals[State.DOWN] for lane in pipeline.rt.lanes.lanes) and not pipeline.fleet
    limits = replace(limits_of(played.scenario, played.first_version), silent_losses=lost)
    check_log(played.all_events, limits).left()
    if played.record is None:
        return
    bounded = config.stale_policy is not StalePolicy.TRAIN
    check_record(
        played.record,
        capacity=config.buffer_capacity,
        max_lag=config.max_staleness if bounded else None,
        initial_version=played.first_version,
    )
    version = played.first_version
    for _, kind, entity, *fields in played.events:
        if kind == EventKind.STEP:
            version += 1
            assert (entity, fields[0]) == (version, config.groups_per_step)
        elif kind == EventKind.ROLLBACK:
            version = entity
    assert all(0.0 <= share <= 1.0 + 1e-12 for share in played.summary.utilisation.values()), played.summary.utilisation


class Hanging:
    """A performer that never returns for some of its calls; its worker is never free again."""

    def __init__(self, inner: Any, hangs: Any) -> None:
        self._inner = inner
        self._hangs = hangs

    async def __call__(self, rt: Any, work: Any, /) -> Outcome:
        if self._hangs(work):
            await rt.event().wait()
        return await self._inner(rt, work)

    async def gone(self, rt: Any, work: Any, /) -> None:
        if self._hangs(work):
            await rt.event().wait()
        await self._inner.gone(rt, work)


def replaced(**by_kind: Any) -> Any:
    """For `performers`, by class of work: what is called with the world's own and gives the one that replaces it."""
    kinds = {kind.__name__: kind for kind in (Decode, EnvClose, EnvReset, Publish, Reward, ToolCall, TrainStep)}
    return lambda world: {kinds[name]: make(world.performers[kinds[name]]) for name, make in by_kind.items()}


def whole_pipeline() -> list[Event]:
    """The log of some runs in which much goes wrong, for comparisons between processes."""
    return _some_runs(sim.run)


def whole_pipeline_on_virtual() -> list[Event]:
    """The same on real trio."""
    from harness.engines import virtual

    return _some_runs(virtual.run)


def _some_runs(engine: Any) -> list[Event]:
    events: list[Event] = []
    for seed, sync_mode in enumerate(("drain", "abort_resume", "keep")):
        knobs = {"sync_mode": sync_mode, "sync_rollout": "rolling", "overprovision_members": 1, "eval_interval": 2}
        limits = {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0}
        what = scenario(
            knobs | {"env_workers": 6, "tool_workers": 2, "slots_per_replica": 3, "deadlines": limits},
            random=True,
            world={"inference": {"replicas": 2}, "environments": {"reset_infra_failure": 0.1, "reset_hang": 0.05}},
            tool={"infra_failure": 0.1, "hang": 0.05},
        )
        events += play(what, seed, engine=engine, checks=False).all_events
    return events
