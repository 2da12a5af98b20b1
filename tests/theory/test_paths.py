"""Exact theory: from the draws alone, every instant of a run follows by recursion, with a difference of 0 ns.

Nothing is read from the log but what is compared with it.
"""

from __future__ import annotations

import itertools

import pytest
from queues import ENTRY_NS, Path, constant, exponential, queue

from harness.analysis.oracles import area, batch_starts, blocked_departures, fifo_starts, most_at_once
from harness.core.events import EventKind
from harness.core.work import Arrive, WorkKind
from harness.costs.arrivals import SimulatedArrivals

SERVERS = [1, 2, 5]


def drawn_arrivals(what, seed, n):
    """When the first tasks come, from the law of gaps alone."""
    source = SimulatedArrivals(what.workload.arrivals, seed)
    return list(itertools.accumulate(source.arrive(Arrive(k))[0] for k in range(n)))


def lognormal(mean_s):
    return {"law": "lognormal", "mu": mean_s, "sigma": 1.2}


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("seed", range(2))
def test_tool_workers_serve_first_come_first_served(servers, seed):
    what = queue({"tool_workers": servers}, gap=exponential(1.2 / servers), tool={"duration": exponential(1.0)})
    path = Path(what, seed)
    came = drawn_arrivals(what, seed, len(path.arrivals))
    assert path.arrivals == came
    starts = path.starts(WorkKind.TOOL_CALL)
    called = [instant + ENTRY_NS for instant in came[: len(starts)]]
    served = [path.plan(task).tool_ns[0] for task in range(len(starts))]
    assert starts == fifo_starts(called, served, servers)
    assert sum(a < b for a, b in zip(called, starts, strict=True)) > len(starts) / 5, (
        "a queue in which nobody waits says nothing"
    )


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("seed", range(2))
def test_sandboxes_are_held_for_a_whole_episode(servers, seed):
    world = {"environments": {"reset": exponential(0.4), "close": exponential(0.2)}}
    what = queue({"env_workers": servers}, gap=exponential(1.4 / servers), tool={"duration": lognormal(-1.2)}, world=world)
    path = Path(what, seed)
    starts = path.starts(WorkKind.ENV_RESET)
    plans = [path.plan(task) for task in range(len(starts))]
    held = [plan.reset_ns + ENTRY_NS + plan.tool_ns[0] + plan.close_ns for plan in plans]
    assert starts == fifo_starts(path.arrivals[: len(starts)], held, servers)
    assert starts != path.arrivals[: len(starts)]


@pytest.mark.parametrize("workers", [(1, 1), (3, 2)])
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("seed", range(2))
def test_a_line_of_tools_scoring_and_a_learner_that_takes_batches(workers, batch, seed):
    """Open arrivals, two pools in a row, a single server for batches of B: all instants up to the last step."""
    tools, scorers = workers
    knobs = {"tool_workers": tools, "reward_workers": scorers, "groups_per_step": batch}
    world = {
        "scoring": {"duration": exponential(0.9 * scorers)},
        "learner": {"train": {"base_s": 0.7 * batch, "per_sample_s": 0.2, "cv": 0.3}},
    }
    what = queue(knobs, gap=exponential(1.1), tool={"duration": lognormal(-1.0)}, world=world, steps=140 // batch)
    path = Path(what, seed)
    came = drawn_arrivals(what, seed, len(path.arrivals))
    plans = [path.plan(task) for task in range(len(came))]
    calls = [instant + ENTRY_NS for instant in came]
    ends = [
        s + plan.tool_ns[0] for s, plan in zip(fifo_starts(calls, [p.tool_ns[0] for p in plans], tools), plans, strict=True)
    ]
    order = sorted(range(len(ends)), key=lambda k: (ends[k], k))
    scores = fifo_starts([ends[k] for k in order], [plans[k].reward_ns for k in order], scorers)
    scored = dict(zip(order, scores, strict=True))
    made = sorted(start + plans[k].reward_ns for k, start in scored.items())
    passes = path.spans[WorkKind.TRAIN_STEP]
    lasted = [passes[step][1] - passes[step][0] for step in sorted(passes)]
    assert path.starts(WorkKind.TRAIN_STEP) == batch_starts(made, lasted, batch)
    began = sorted(path.starts(WorkKind.REWARD))
    assert began == sorted(scores)[: len(began)]
    assert [event[0] for event in path.of(EventKind.STEP)] == path.ends(WorkKind.TRAIN_STEP)


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_a_full_buffer_blocks_the_stage_before_it(places, seed):
    """Two stages and K places between them: max-plus linear. One slot makes groups, the learner takes them one by one.

    Nothing is published before the end: a replica that takes new weights would hold a group up for a nanosecond.
    """
    knobs = {
        "max_inflight": 1, "buffer_capacity": places, "on_full": "block", "groups_per_step": 1, "consume_chunk": 1,
        "admission": "inflight", "max_staleness": 1, "pipeline_depth": 0, "steps_per_sync": 64,
    }  # fmt: skip
    world = {"learner": {"train": {"base_s": 1.0, "cv": 1.0}}}
    what = queue(knobs, tool={"duration": exponential(1.0)}, world=world, steps=63)
    path = Path(what, seed)
    passes = path.spans[WorkKind.TRAIN_STEP]
    lasted = [passes[step][1] - passes[step][0] for step in sorted(passes)]
    n = len(lasted)
    made = [ENTRY_NS + path.plan(task).tool_ns[0] for task in range(n)]
    left, taken = blocked_departures(made, lasted, places)
    assert [event[0] for event in path.of(EventKind.BUFFER_PUT)][:n] == left
    assert path.starts(WorkKind.TRAIN_STEP) == taken
    assert any(b > a + c for a, b, c in zip([0, *left], left, made, strict=False)), "it was blocked"


@pytest.mark.parametrize("seed", range(2))
def test_little_flow_and_capacity_hold_on_every_pool_of_a_path(seed):
    """Area form: under the number inside = sum of the times inside, for those who wait, who are served, and both."""
    knobs = {"tool_workers": 2, "reward_workers": 1, "env_workers": 6, "groups_per_step": 5}
    world = {"scoring": {"duration": exponential(0.8)}, "learner": {"train": {"base_s": 3.0}}}
    what = queue(knobs, gap=exponential(1.0), tool={"duration": exponential(1.5)}, world=world, steps=40)
    path = Path(what, seed)
    end = path.end_ns
    tools, rewards = path.spans[WorkKind.TOOL_CALL], path.spans[WorkKind.REWARD]
    resets, closes = path.spans[WorkKind.ENV_RESET], path.spans[WorkKind.ENV_CLOSE]
    held = [(start, closes[e][1] if e in closes else 1 << 62) for e, (start, _) in resets.items()]
    for spans, most in ((tools.values(), 2), (rewards.values(), 1), (held, 6)):
        spans = list(spans)
        assert area(spans, end) == sum(min(b, end) - min(a, end) for a, b in spans)
        assert most_at_once(spans) == most, "never above the capacity, and at it at least once"
    waits = [(path.arrivals[k], start) for k, start in enumerate(path.starts(WorkKind.ENV_RESET))]
    assert all(a <= b for a, b in waits)
    assert area(waits, end) == sum(b - a for a, b in waits)
    ended = len(path.of(EventKind.EPISODE_END))
    inside = len(path.of(EventKind.EPISODE_START)) - ended
    assert len(path.arrivals) == ended + inside + path.pipeline.prompts.waiting, "what comes in goes out or is still there"


@pytest.mark.parametrize("workers", [4, 8, 30])
def test_asymptotic_bounds_of_a_closed_loop_hold(workers):
    """Throughput <= min(N / (Z + S), 1 / S), on a path of constant times exactly up to its ends."""
    think, serve = 10.0, 1.0
    world = {"environments": {"reset": constant(think)}}
    what = queue(
        {"max_inflight": workers, "tool_workers": 1, "groups_per_step": 10}, tool={"duration": constant(serve)}, world=world,
        steps=40,
    )  # fmt: skip
    path = Path(what, 0)
    rate = len(path.of(EventKind.EPISODE_END)) / (path.end_ns / 1e9)
    bound = min(workers / (think + serve), 1 / serve)
    assert rate <= bound
    assert rate > 0.9 * bound, "and without variance it is nearly reached"
