"""Every engine keeps every law."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
import trio.testing

from harness.core.primitives import Permits
from harness.engines import _sim_scopes, _sim_waits, live, sim, virtual
from harness.engines.conformance import LAWS


def _live_on_mock_clock(main, /, *args, **options):
    return live.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0), **options)


VIRTUAL = {
    "sim": sim.run,
    "virtual": virtual.run,
    "virtual-shuffled-1": partial(virtual.run, tie_seed=1),
    "virtual-shuffled-2": partial(virtual.run, tie_seed=2),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("engine", VIRTUAL)
def test_virtual_time_engines(engine, law):
    law(VIRTUAL[engine])


@pytest.mark.parametrize("law", [law for law in LAWS if not law.virtual_time_only], ids=lambda law: law.name)
def test_live_on_a_clock_that_jumps(law):
    law(_live_on_mock_clock)


def test_laws_are_named_once_and_say_what_they_are():
    assert [name for name, count in Counter(law.name for law in LAWS).items() if count > 1] == []
    assert [law.name for law in LAWS if len(law.text) < 20] == []


def _nothing(*args):
    return None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("owner", "name", "wrong", "law"),
    [
        (sim, "_DEADLINE", 0, "completion_before_deadline"),
        (_sim_scopes, "effective", lambda scope: False, "shields_nest_and_come_again"),
        (_sim_waits.Sleeping, "withdraw", _nothing, "cancelled_sleep_wakes_nobody"),
        (_sim_waits.Event, "withdraw", _nothing, "cancelled_waiter_leaves_event"),
        (_sim_waits.SendChannel, "withdraw", _nothing, "cancelled_send_sends_nothing"),
        (_sim_waits.ReceiveChannel, "withdraw", _nothing, "cancelled_receive_takes_nothing"),
        (_sim_waits.SendChannel, "close", _nothing, "closing_the_sending_end"),
        (_sim_waits.ReceiveChannel, "close", _nothing, "closing_the_receiving_end"),
        (sim.SimRuntime, "_refresh", _nothing, "sibling_failure"),
        (sim.SimRuntime, "_drop_shields", _nothing, "deadlock_runs_cleanup"),
        (sim.SimRuntime, "emit", _nothing, "events_carry_time"),
        (_sim_scopes.FailAfter, "__exit__", _sim_scopes.CancelScope.__exit__, "fail_after_raises"),
        (Permits, "release", _nothing, "abandoned_work"),
        (sim, "bare_interrupt", nullcontext, "interrupt_is_bare"),
    ],
)
def test_a_law_finds_an_engine_that_breaks_it(monkeypatch, owner, name, wrong, law):
    """`sim` with one thing broken: the law that is about it does not hold any more."""
    monkeypatch.setattr(owner, name, wrong)
    by_name = {law.name: law for law in LAWS}
    with pytest.raises(BaseException):  # noqa: B017  # a broken engine may fail in any way
        by_name[law](sim.run)
    gc.collect()  # what the broken engine left unfinished complains here, and not in some later test
