"""Rollout Harness: one asynchronous RL pipeline, run live or in virtual time.

::

    import harness

    scenario = harness.load("scenarios/coding_agent.toml")
    run = harness.simulate(scenario)
    result = harness.tune(scenario, budget_s=60)  # a TuneResult, with a Verdict, an Effort and the rest
    harness.calibrate("tools.csv", duration="seconds", by="tool", base="scenarios/coding_agent.toml", out="mine.toml")
    trained = harness.run_live(harness.load("scenarios/cpu_live.toml"), out="runs/first")

The names are imported when they are first used: `import harness` by itself imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.analysis.summary import RunSummary
    from harness.calibrating import Calibration, calibrate
    from harness.live_run import LiveRun, run_live
    from harness.run import Run, load, simulate, simulate_once, tune
    from harness.tuning.result import (
        Alternative,
        ByHand,
        Contribution,
        Effort,
        Elimination,
        Flatness,
        Point,
        Sensitivity,
        TuneResult,
        Verdict,
    )

__all__ = [
    "Alternative",
    "ByHand",
    "Calibration",
    "Contribution",
    "Effort",
    "Elimination",
    "Flatness",
    "LiveRun",
    "Point",
    "Run",
    "RunSummary",
    "Sensitivity",
    "TuneResult",
    "Verdict",
    "calibrate",
    "load",
    "run_live",
    "simulate",
    "simulate_once",
    "tune",
]

_HOMES = {
    "Calibration": "harness.calibrating",
    "LiveRun": "harness.live_run",
    "Run": "harness.run",
    "RunSummary": "harness.analysis.summary",
    "calibrate": "harness.calibrating",
    "load": "harness.run",
    "run_live": "harness.live_run",
    "simulate": "harness.run",
    "simulate_once": "harness.run",
    "tune": "harness.run",
} | dict.fromkeys(
    (
        "Alternative",
        "ByHand",
        "Contribution",
        "Effort",
        "Elimination",
        "Flatness",
        "Point",
        "Sensitivity",
        "TuneResult",
        "Verdict",
    ),
    "harness.tuning.result",
)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
