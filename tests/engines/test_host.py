"""The event loop as a server: what it charges, on both virtual engines, and what it measures live."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from harness.core.host import HostCosts, HostLoop
from harness.core.perform import Timed
from harness.core.work import Outcome
from harness.engines import live, sim, virtual
from harness.engines.conformance import Job, job_performers
from tests.differential.programs import observe, random_program

ENGINES = {"sim": sim.run, "virtual": virtual.run}
COSTS = HostCosts(pass_ns=7, step_ns=3)

both = pytest.mark.parametrize("run", ENGINES.values(), ids=ENGINES)


class Slow:
    """The loop as a list of all that it served: what `HostLoop` keeps in three numbers."""

    def __init__(self, costs: HostCosts) -> None:
        self.costs = costs
        self.passes: list[int] = []
        self.served: list[tuple[int, int]] = []

    def serve(self, now: int, length: int) -> int:
        begin = max(now, self.served[-1][1] if self.served else 0)
        self.served.append((begin, begin + length))
        return begin + length

    def begin_pass(self, now: int) -> None:
        self.passes.append(max(now, self.served[-1][1] if self.served else 0))
        self.serve(now, self.costs.pass_ns)

    def busy(self, now: int) -> int:
        return sum(max(0, min(end, now) - begin) for begin, end in self.served)


@given(
    story=st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 30), st.integers(0, 3)), max_size=30),
    pass_ns=st.integers(0, 9),
    step_ns=st.integers(0, 9),
)
def test_the_loop_is_a_server_that_serves_in_turn(story, pass_ns, step_ns):
    """Against a list of every service: none begins before it is asked for, none overlaps another, and busy time is theirs."""
    costs = HostCosts(pass_ns, step_ns)
    loop, slow, now = HostLoop(costs), Slow(costs), 0
    for gap, occupied, followers in story:
        now += gap
        if occupied is not None:
            assert loop.occupy(now, occupied) == slow.serve(now, occupied)
            continue
        passes = not slow.passes or now > slow.passes[-1]
        if passes:
            slow.begin_pass(now)
        assert loop.step(now) == passes
        slow.serve(now, step_ns)
        for _ in range(followers):
            if passes:
                slow.begin_pass(now)
                loop.next_pass()
            slow.serve(now, step_ns)
            assert not loop.step(now)
        assert loop.until == slow.served[-1][1]
        assert loop.busy_ns(now) == slow.busy(now)
    assert all(first[1] <= second[0] for first, second in pairwise(slow.served))
    assert loop.busy_ns(10**9) == slow.busy(10**9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), pass_ns=st.integers(0, 5), step_ns=st.integers(0, 5), tied=st.booleans())
def test_both_engines_charge_the_same(seed, pass_ns, step_ns, tied):
    program, host = random_program(seed), HostCosts(pass_ns, step_ns)
    seen = [observe(run, program, tied=tied, host=host) for run in ENGINES.values()]
    assert seen[0] == seen[1]


def test_costs_of_nothing_leave_the_log_as_it_was():
    programs = [random_program(seed) for seed in range(60)]
    for program in programs:
        assert observe(sim.run, program, tied=True, host=HostCosts()) == observe(sim.run, program, tied=True)
    charged = [observe(sim.run, program, tied=True, host=COSTS) for program in programs]
    assert sum(one != observe(sim.run, program, tied=True) for one, program in zip(charged, programs, strict=True)) > 20


async def waits(rt: Any, number: int, ended: list[tuple[int, int]]) -> None:
    await rt.sleep(100)
    await rt.perform(Job(number, 1000))
    ended.append((number, rt.now()))


async def together(rt: Any, many: int) -> Any:
    ended: list[tuple[int, int]] = []
    async with rt.nursery() as nursery:
        for number in range(many):
            nursery.start_soon(waits, rt, number, ended)
    return ended, rt.loop_busy_ns()


@both
def test_what_wakes_together_is_served_one_after_the_other(run):
    """At 0 a pass and the parent's step, a pass and the children's, which end at 20, 23, 26, 29: they sleep to 120, 123, 126,
    129. The first wakes a loop that sleeps, the second is too late for that pass, the others are in the second's: the jobs,
    of 1000, begin at 130, 140, 143, 146. The steps behind them begin at 1130; the run ends at 1146, in the middle of them.
    """
    ended, busy = run(together, 4, performers={Job: Timed(lambda work: (work.duration_ns, Outcome()))}, host=COSTS)
    assert ended == [(0, 1130), (1, 1140), (2, 1143), (3, 1146)]
    assert busy == (29 - 0) + (146 - 120) + (1146 - 1130)


async def holds(rt: Any, delay: int, length: int, seen: list[int]) -> None:
    await rt.sleep(delay)
    with rt.move_on_after(length // 2):
        await rt.occupy(length)
        seen.append(rt.now())


async def held(rt: Any) -> list[int]:
    seen: list[int] = []
    async with rt.nursery() as nursery:
        nursery.start_soon(holds, rt, 10, 1000, seen)
        nursery.start_soon(holds, rt, 20, 500, seen)
        await rt.sleep(100)
        await rt.sleep(1)  # begins when the loop is free again
        seen.append(rt.now())
    return [*seen, rt.loop_busy_ns()]


@both
def test_code_that_computes_holds_the_loop(run):
    """Both are computed in turn, whatever their deadlines say, and a sleep that was asked for meanwhile begins behind them."""
    assert run(held) == [1010, 1510, 1511, 1500]


async def outside(rt: Any, ticks: int) -> None:
    for _ in range(ticks):
        await rt.sleep(1)


async def beside(rt: Any) -> int:
    rt.background(outside, rt, 1000)
    await rt.sleep(2000)
    return rt.loop_busy_ns()


@both
def test_what_runs_outside_costs_nothing(run):
    assert run(beside, host=COSTS) == 10


@both
def test_a_charged_run_is_as_long_as_its_work_where_the_loop_is_the_limit(run):
    """1000 steps of tasks that hardly sleep: the loop is full, and the run takes its steps."""

    async def many(rt: Any) -> tuple[int, int]:
        async with rt.nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(outside, rt, 100)
        return rt.now(), rt.loop_busy_ns()

    end, busy = run(many, host=HostCosts(0, 50))
    assert busy == end
    assert 10 * 99 * 50 <= end <= (10 * 101 + 1) * 50


def test_costs_below_zero_are_refused():
    with pytest.raises(LawError, match="not below zero"):
        HostCosts(step_ns=-1)


@pytest.mark.real_clock
def test_live_measures_what_virtual_time_charges():
    """A loop that computes for half of its time, on the system's clock: between a third and all of it, whatever else runs."""

    async def main(rt: Any) -> tuple[int, int]:
        for _ in range(10):
            await rt.sleep(5_000_000)
            until = trio.current_time() + 0.005
            while trio.current_time() < until:
                pass
        return rt.now(), rt.loop_busy_ns()

    end, busy = live.run(main, host=COSTS)
    assert end / 3 < busy <= end


def test_a_clock_that_jumps_has_no_busy_loop():
    run = partial(live.run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert run(beside, performers=job_performers()) == 0
