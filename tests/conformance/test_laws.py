"""Every engine keeps every law."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import trio.testing

from harness.core.errors import LawError
from harness.engines import live, sim, virtual
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


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_can_fail(law):
    """An engine that runs nothing keeps no law that looks at an outcome; one whose clock stands keeps none about time."""

    class Broken(Exception):
        pass

    def broken(main, /, *args, **options):
        raise Broken

    with pytest.raises((Broken, LawError, AssertionError)):
        law(broken)
