"""Gates: starts that queue, slow each other down and are refused; limits of a rate. Against recursions."""

from __future__ import annotations

from heapq import heappop, heappush
from math import factorial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.events import EventKind, MemoryRecorder
from harness.core.work import EnvReset, Outcome, Status, ToolCall
from harness.costs.calendars import Outages
from harness.costs.draws import Uniforms
from harness.costs.limits import Rate, Starts
from harness.costs.sandboxes import Exposed
from harness.engines import sim, virtual
from harness.scenario.environments import Environments, Tool

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)
MS = 1_000_000
NOTHING = {"law": "constant", "value_s": 0.0}


def starts(**fields):
    return Starts(Environments.model_validate({"reset": NOTHING, "close": NOTHING} | fields))


def rate(**fields):
    return Rate(Tool.model_validate({"name": "t", "share": 1.0, "duration": NOTHING} | fields))


def played(kind, gate, calls, engine=sim.run):
    """Plays calls (arrival, duration, patience in ms); (status, asked, started, ended) of each, CANCELLED where it left."""
    calls = [(at * MS, takes * MS, patience * MS) for at, takes, patience in calls]
    durations = {i: ns for i, (_, ns, _) in enumerate(calls)}
    exposed = Exposed(lambda work: (durations[work.entity], Outcome()), Outages([], ["t"], 0), [gate])
    ends = [None] * len(calls)
    recorder = MemoryRecorder()

    async def one(rt, i):
        at, _, patience = calls[i]
        await rt.sleep(at)
        payload = SimpleNamespace(homes=(), task=i, dispatch=0, member=0)
        work = ToolCall(i, 0, 0, 0, payload) if kind is ToolCall else EnvReset(i, 0, payload=payload)
        status, started = Status.CANCELLED, -1
        with rt.move_on_after(patience):
            outcome = await rt.perform(work)
            status, started = outcome.status, outcome.started_ns
        ends[i] = (status, at / MS, started / MS, rt.now() / MS)

    async def main(rt):
        async with rt.nursery() as nursery:
            for i in range(len(calls)):
                nursery.start_soon(one, rt, i, name=str(i))

    engine(main, performers={kind: exposed}, recorder=recorder)
    assert gate.load == (0, 0), "everybody has left"
    return ends, [event for event in recorder.events if event[1] == EventKind.REFUSED]


FOREVER = 10**6
calls = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.just(FOREVER)), min_size=1, max_size=12)
impatient = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 6) | st.just(FOREVER)), min_size=1, max_size=25
)


def by_arrival(calls):
    return sorted(range(len(calls)), key=lambda i: (calls[i][0], i))


@SETTINGS
@given(calls, st.integers(1, 4))
def test_starts_at_once_are_the_kiefer_wolfowitz_recursion(calls, servers):
    ends, refused = played(EnvReset, starts(starts_at_once=servers), calls)
    free = [0] * servers
    for i in by_arrival(calls):
        at, ns, _ = calls[i]
        begins = max(heappop(free), at)
        heappush(free, begins + ns)
        assert ends[i] == (Status.OK, at, begins, begins + ns)
    assert not refused


@SETTINGS
@given(calls, st.integers(1, 3), st.integers(0, 3))
def test_a_full_queue_refuses_at_once_and_says_so(calls, servers, queue):
    ends, refused = played(EnvReset, starts(starts_at_once=servers, start_queue=queue, refuse_s=0.002), calls)
    turned_away = [i for i, end in enumerate(ends) if end[0] is Status.INFRA]
    assert sorted(event[2] for event in refused) == turned_away
    assert all(event[6:] == (queue, servers) for event in refused), "with the queue full and all served"
    for i in turned_away:
        assert ends[i][3] == calls[i][0] + 2
    served = [i for i in range(len(calls)) if i not in turned_away]
    for at in sorted({at for at, _, _ in calls}):
        waiting = sum(calls[i][0] <= at < ends[i][2] for i in served)
        busy = sum(ends[i][2] <= at < ends[i][3] for i in served)
        assert waiting <= queue
        assert busy <= servers
        assert waiting == 0 or busy == servers, "work conservation"


@SETTINGS
@given(calls, st.integers(1, 4), st.integers(1, 5))
def test_a_limit_of_the_rate_is_the_bucket_recursion(calls, burst, interval):
    ends, _ = played(ToolCall, rate(rate_per_s=1000 / interval, burst=burst), calls)
    taken = []
    due = -(burst - 1) * interval
    for i in by_arrival(calls):
        at = max(calls[i][0], taken[-1] if taken else 0)
        begins = max(at, due - (burst - 1) * interval)
        due = max(due, begins) + interval
        taken.append(begins)
        assert ends[i] == (Status.OK, calls[i][0], begins, begins + calls[i][1])
    for first in taken:
        for span in range(5):
            assert sum(first <= start < first + span * interval + 1 for start in taken) <= burst + span


@SETTINGS
@given(impatient, st.integers(1, 3), st.integers(1, 4))
def test_who_gives_up_takes_no_token_and_holds_nobody_up(calls, burst, interval):
    ends, _ = played(ToolCall, rate(rate_per_s=1000 / interval, burst=burst), calls)
    due, waiting = -(burst - 1) * interval, sorted((at, i) for i, (at, _, _) in enumerate(calls))
    now = 0
    for at, i in waiting:
        _, ns, patience = calls[i]
        begins = max(at, now, due - (burst - 1) * interval)
        if begins > at + patience:
            assert ends[i][0] is Status.CANCELLED
            continue
        now = begins
        due = max(due, begins) + interval
        if begins + ns <= at + patience:
            assert ends[i] == (Status.OK, at, begins, begins + ns)
        else:
            assert ends[i][0] is Status.CANCELLED


@SETTINGS
@given(calls, st.integers(1, 3), st.integers(1, 4))
def test_what_is_refused_above_the_rate_uses_no_token(calls, burst, interval):
    ends, refused = played(ToolCall, rate(rate_per_s=1000 / interval, burst=burst, on_excess="refuse", refuse_s=0.001), calls)
    due = -(burst - 1) * interval
    for i in by_arrival(calls):
        at = calls[i][0]
        if due - (burst - 1) * interval <= at:
            due = max(due, at) + interval
            assert ends[i] == (Status.OK, at, at, at + calls[i][1])
        else:
            assert (ends[i][0], ends[i][3]) == (Status.INFRA, at + 1)
    assert len(refused) == sum(end[0] is Status.INFRA for end in ends)


@SETTINGS
@given(impatient, st.integers(1, 3), st.integers(0, 3))
def test_cancelled_starts_leave_the_station_as_it_was(calls, servers, queue):
    """Places are never lost and never used twice, whoever leaves when; the next one waits no longer than it must."""
    ends, _ = played(EnvReset, starts(starts_at_once=servers, start_queue=queue), calls)
    left = [end for end in ends if end[0] is not Status.INFRA]
    for at in range(60):
        assert sum(start <= at < end for _, _, start, end in left if start >= 0) <= servers
    patient = [i for i, (_, _, patience) in enumerate(calls) if patience == FOREVER]
    assert all(ends[i][0] in (Status.OK, Status.INFRA) for i in patient), "who does not give up is served or refused"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(impatient, st.integers(1, 3), st.booleans())
def test_gates_are_the_same_on_real_trio(calls, limit, bucket):
    def gate():
        return rate(rate_per_s=200.0, burst=limit) if bucket else starts(starts_at_once=limit, slowdown_per_start=0.5)

    kind = ToolCall if bucket else EnvReset
    assert played(kind, gate(), calls) == played(kind, gate(), calls, virtual.run)


def test_a_start_is_slower_the_more_are_under_way():
    gate = starts(slowdown_per_start=0.25)
    ends, _ = played(EnvReset, gate, [(0, 100, FOREVER), (10, 100, FOREVER), (20, 100, FOREVER), (200, 100, FOREVER)])
    assert [end[3] - end[2] for end in ends] == [100, 125, 150, 100]


def test_the_share_of_refused_starts_is_erlangs():
    """A loss system: c servers, no queue, arrivals and services memoryless; 4 sigma over batches."""
    servers, offered, n = 4, 3.0, 20_000
    u = Uniforms(5).draw(2 * n, "erlang").reshape(n, 2)
    at = np.cumsum(-np.log1p(-u[:, 0]) / offered * 1000).astype(int).tolist()
    ns = (-np.log1p(-u[:, 1]) * 1000).astype(int).tolist()
    ends, _ = played(
        EnvReset, starts(starts_at_once=servers, start_queue=0), [(a, s, FOREVER) for a, s in zip(at, ns, strict=True)]
    )
    lost = np.array([end[0] is Status.INFRA for end in ends]).reshape(20, -1).mean(axis=1)
    expected = offered**servers / factorial(servers) / sum(offered**k / factorial(k) for k in range(servers + 1))
    assert lost.mean() == pytest.approx(expected, abs=4 * lost.std(ddof=1) / len(lost) ** 0.5)
