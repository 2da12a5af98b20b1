"""The same scenario live, against the stub server, and simulated, with the modelled one: the throughput of both.

On a clock that jumps, HTTP, streams and orders all take place and the host's time for them is not counted: what is left is the
difference of the two servers. On the system clock everything that a busy machine does slows the live run down, a few
milliseconds at each wait, where a model that is wrong would be wrong each time; so the best of a few tries counts there. Tokens
are compared: the groups of so few steps are too few.
"""

from __future__ import annotations

import pytest
from twin_scenarios import SCENARIOS, twin
from twins import compared, lived_in_no_time

MODEL_TOLERANCE = 0.03
"""What is left is the order of what is simultaneous: `tests/benchmarks/external.py` measures it."""

TOLERANCE = 0.05
TRIES = 4


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_modelled_server_serves_as_the_stub_does(name):
    both = compared(twin(**SCENARIOS[name], steps=5), 1, lived_in_no_time)
    assert abs(both["tokens_error"]) <= MODEL_TOLERANCE, both


@pytest.mark.real_clock
@pytest.mark.parametrize("name", ["overload", "keep"])
def test_throughput_on_the_system_clock_is_that_of_the_model(name):
    what = twin(**SCENARIOS[name], scale=1.5, steps=4)
    tried = []
    for _ in range(TRIES):
        tried.append(compared(what, 1)["tokens_error"])
        if abs(tried[-1]) <= TOLERANCE:
            return
    pytest.fail(f"tokens a second, live over simulated - 1: {tried}")
