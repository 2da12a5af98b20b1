"""Queues made of the pipeline's own actors: everything but one stage takes no time, or the least there is.

A prefill and a decode step of no cost take 1 ns each, so a task reaches its tool 2 ns after it came.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tiny_world import S, constant, count, exponential, merged, scenario

from harness.core.events import EventKind, MemoryRecorder
from harness.costs.world import SimulatedWorld
from harness.engines import sim
from harness.run import hardware
from pipeline.build import Pipeline
from pipeline.data import Task

NOTHING = {
    "inference": {"decode": {"base_s": 0.0}, "prefill": {"base_s": 0.0, "per_token_s": 0.0}, "kv_capacity_tokens": 100_000_000},
    "learner": {"train": {"base_s": 0.0}},
    "weights": {"weights_bytes": 0, "transfer": {"base_s": 0.0, "bytes_per_s": 1e12}},
    "environments": {"reset": constant(0.0), "close": constant(0.0)},
    "scoring": {"duration": constant(0.0)},
}
"""A world in which nothing takes time."""

WIDE = {
    "group_size": 1, "groups_per_step": 20, "max_staleness": 64, "pipeline_depth": 64, "max_inflight": 500,
    "buffer_capacity": 8000, "env_workers": 500, "tool_workers": 500, "reward_workers": 500, "slots_per_replica": 500,
    "decode_chunk_steps": 1, "order_policy": "fifo", "stale_policy": "train",
    "deadlines": dict.fromkeys(("step_s", "tool_s", "generation_s", "reward_s", "episode_s", "reset_s"), 600_000.0),
}  # fmt: skip
"""A pipeline in which nobody waits."""

ENTRY_NS = 2
"""From a task's arrival to its tool call: a prefill and a decode step."""


def queue(
    knobs: dict[str, Any] | None = None,
    *,
    gap: dict[str, Any] | None = None,
    tool: dict[str, Any] | None = None,
    world: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    waiting_max: int | None = None,
    steps: int = 10,
) -> Any:
    """A scenario in which one task makes one tool call, and comes after a `gap` where there is one."""
    base: dict[str, Any] = {"turns": count(1), "prompt_tokens": count(1), "response_tokens": count(1), "tasks": 1_000_000}
    base |= {"observation_tokens": count(0)} | (workload or {})
    if gap is not None:
        base["arrivals"] = {"gap": gap} | ({} if waiting_max is None else {"waiting_max": waiting_max})
    knobs = merged(WIDE, knobs or {})
    week = {"deadlines": {name: min(limit, 604_800.0) for name, limit in knobs["deadlines"].items()}}
    return scenario(
        knobs | week, world=merged(NOTHING, world or {}), workload=base, tool={"duration": constant(0.0)} | (tool or {}),
        steps=steps, max_sim_s=2_000_000.0,
    )  # fmt: skip


class Path:
    """What happened in one run, by kind of work and by entity, in whole nanoseconds."""

    def __init__(self, what: Any, seed: int) -> None:
        world, memory = SimulatedWorld(what, seed, Task), MemoryRecorder()
        self.model = world.model

        async def main(rt: Any) -> Any:
            self.pipeline = Pipeline(rt, what.pipeline, hardware(what), world.source)
            return await self.pipeline.run(steps=what.run.learner_steps, at_end=at_end)

        def at_end(report: Any) -> None:
            self.report, self.events = report, list(memory.events)

        sim.run(main, performers=world.performers, seed=seed, recorder=memory)
        self.end_ns: int = self.report.end_ns
        self.spans: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # kind of work → entity → (start, end)
        opened: dict[tuple[int, int], int] = {}
        for time_ns, kind, entity, work, *_ in self.events:
            if kind == EventKind.WORK_START:
                opened[entity, work] = time_ns
                self.spans[work][entity] = (time_ns, 1 << 62)  # one that is open at the end
            elif kind == EventKind.WORK_END:
                self.spans[work][entity] = (opened.pop((entity, work)), time_ns)

    def of(self, kind: EventKind) -> list[tuple[int, ...]]:
        """Events of a kind."""
        return [event for event in self.events if event[1] == kind]

    def starts(self, kind: int) -> list[int]:
        """When work of a kind began, in the order of its entities."""
        return [self.spans[kind][entity][0] for entity in sorted(self.spans[kind])]

    def ends(self, kind: int) -> list[int]:
        """When it ended."""
        return [self.spans[kind][entity][1] for entity in sorted(self.spans[kind])]

    @property
    def arrivals(self) -> list[int]:
        """When tasks came."""
        return [event[0] for event in self.of(EventKind.ARRIVAL)]

    def plan(self, task: int) -> Any:
        """What was drawn for the only member of a task."""
        dispatch, index = divmod(task, self.model.tasks)
        return self.model.plan(index, dispatch, 0)


__all__ = ["ENTRY_NS", "Path", "S", "constant", "exponential", "queue"]
