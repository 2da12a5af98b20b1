"""Exact theory through the pipeline's own actors: recursions of queues, with a difference of zero."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise

import pytest
from tiny_world import S, count, exponential, play, scenario

from harness.core.events import EventKind
from harness.core.work import WorkKind

LONE = {"group_size": 1, "max_staleness": 1, "pipeline_depth": 1, "max_inflight": 40, "env_workers": 40, "buffer_capacity": 40}


def served(played, kind):
    """(start, end) of each piece of work by its fields; one that is not over ends with the run, after which nothing starts."""
    open_, spans = {}, {}
    for event in played.events:
        if event[1] == EventKind.WORK_START and event[3] == kind:
            open_[event[2]] = (event[0], event[2:7])
        elif event[1] == EventKind.WORK_END and event[3] == kind:
            start, what = open_.pop(event[2])
            spans[what] = (start, event[0])
    return spans | {what: (start, played.report.end_ns) for start, what in open_.values()}


def arrivals_at_scoring(played, reward):
    """When each episode came to be scored: its last tool call ended."""
    last = {}
    for event in played.events:
        if event[1] == EventKind.WORK_END and event[3] == WorkKind.TOOL_CALL:
            last[event[2]] = event[0]
    return {what: last[what[0]] for what in reward}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_scoring_follows_the_recursion_of_a_first_come_first_served_queue(workers, seed):
    """Lindley (1952) for one worker, Kiefer and Wolfowitz (1955) for several: start = max(arrival, first worker to be free).

    Sources: Lindley, "The theory of queues with a single server"; Kiefer and Wolfowitz, "On the theory of queues with many
    servers".
    """
    world = {"scoring": {"duration": exponential(1.5 * workers)}, "environments": {"reset": exponential(4.0)}}
    knobs = {**LONE, "reward_workers": workers, "groups_per_step": 20}
    played = play(scenario(knobs, random=True, world=world, steps=3), seed)
    spans = served(played, WorkKind.REWARD)
    arrivals = arrivals_at_scoring(played, spans)
    assert len(spans) > 60
    free = [0] * workers
    heapify(free)
    waited = 0
    for what in sorted(spans, key=lambda what: (arrivals[what], what[0])):
        start, end = spans[what]
        begin = max(arrivals[what], heappop(free))
        assert start == begin
        waited += begin - arrivals[what]
        heappush(free, end)
    assert waited > 0


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_the_learner_follows_the_recursion_of_a_batch_server(chunk, seed):
    """With chunks of c groups, and a(n) the instant of the n-th: start of chunk j = max(end of chunk j - 1, a(c·j)).

    The optimizer step, paid with a batch's last chunk, is the only one that takes long; the others take the least, 1 ns.
    """
    knobs = {**LONE, "groups_per_step": 5, "consume_chunk": chunk, "order_policy": "fifo", "stale_policy": "train"}
    train = {"learner": {"train": {"base_s": 2.0, "per_sample_s": 0.25}}}
    played = play(scenario(knobs, random=True, world=train, workload={"turns": count(1)}, steps=8), seed)
    size = chunk or 5
    puts = [event[0] for event in played.of(EventKind.BUFFER_PUT)]
    passes = [event for event in played.works(WorkKind.TRAIN_STEP) if event[0] <= played.report.end_ns]
    free = 0
    for number, event in enumerate(passes):
        assert event[0] == max(free, puts[(number + 1) * size - 1])
        last = (number + 1) % (5 // size) == 0
        free = event[0] + size * S // 4 + (2 * S if last else 0)
    assert [event[0] for event in played.of(EventKind.STEP)][-1] == free


def test_tools_with_one_worker_are_never_idle_while_somebody_waits():
    knobs = {**LONE, "tool_workers": 1, "groups_per_step": 10}
    played = play(scenario(knobs, random=True, tool={"duration": exponential(0.3)}, steps=3), 4)
    spans = sorted(served(played, WorkKind.TOOL_CALL).values())
    decoded = [event for event in played.events if event[1] == EventKind.WORK_END and event[3] == WorkKind.DECODE]
    ready = {event[0] for event in decoded if event[7]}  # a generation ended there
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), "one worker"
    gaps = [other[0] for one, other in pairwise(spans) if one[1] < other[0]]
    assert gaps
    assert ready.issuperset(gaps), "after a pause it starts at the very instant at which a generation ends"
