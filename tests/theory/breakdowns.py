"""A server that breaks down: one tool worker that is never without work, and outages in which it stands still."""

from __future__ import annotations

from typing import Any

from queues import exponential, queue

SERVE_S, UP_S, DOWN_S = 1.0, 40.0, 6.0
STILL = 1e6
"""How many times as long a call takes in an outage: it stands still."""

NAME = "vendor"


def broken_server(*, waiting: int = 4, batch: int = 10, steps: int = 6, warmup: int = 2) -> Any:
    """Throughput = share of the time that is up ÷ service, whatever the laws: work is resumed where it stood."""
    outage = {
        "name": NAME, "takes": ["tools"], "up": exponential(UP_S), "down": exponential(DOWN_S), "in_flight": "slow",
        "new_calls": "slow", "slow_factor": STILL,
    }  # fmt: skip
    knobs = {"tool_workers": 1, "max_inflight": waiting, "groups_per_step": batch}
    what = queue(knobs, tool={"duration": exponential(SERVE_S)}, world={"outages": [outage]}, steps=steps)
    return what.model_copy(update={"run": what.run.model_copy(update={"warmup_steps": warmup})})


TRUTH = UP_S / (UP_S + DOWN_S) / SERVE_S
"""Groups a second in the long run; 1e-6 less than nothing is done in an outage."""
