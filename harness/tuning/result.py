"""The answer of `tune`, as plain data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.analysis.statistics import Interval
    from harness.analysis.summary import RunSummary
    from harness.tuning.measured import Measured
    from harness.tuning.space import Settings

Objective = Literal["kept", "idle"]
"""`kept`: kept groups per chip-second, more is better. `idle`: idle share of chip time, less is better."""

INDIFFERENCE = 0.01
"""A gain below this fraction is not worth changing a configuration for, and is treated as none. For `idle`, a difference of
this share of chip time."""

SCHEMA = 1
"""Version of the JSON form. Fields are added under one number; a changed meaning raises it."""


class Verdict(Enum):
    """What can be said."""

    BETTER = "better"
    """A setting is better than today's, and its interval excludes no gain."""

    NO_BETTER = "no_better"
    """Nothing tried is better than today's by more than the indifference zone."""

    CANNOT_TELL = "cannot_tell"
    """The interval of the best setting includes both no gain and one that would matter."""

    WITHIN_CEILING = "within_ceiling"
    """Today's setting exceeds the lag ceiling; the best that does not is named, faster or not."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one changed knob does to the answer: the best settings against the same with this knob as it was.

    Attributes:
        path: of the knob.
        before: its value today.
        after: its value in the answer.
        gain: of having it changed, as a fraction of kept groups per chip-second; None where it was not measured.
        learner_steps: length of the replications behind it.
        needed: whether the pipeline refuses the answer without this change, so that there is nothing to compare.

    """

    path: str
    before: int
    after: int
    gain: Interval | None
    learner_steps: int
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another finalist.

    Attributes:
        settings: what differs from today.
        gain: over today, like `TuneResult.gain`.
        lag_p95: in optimizer steps.
        lag_max: in optimizer steps.
        tied: whether it is not distinguishable from the named one by more than the indifference zone.

    """

    settings: Settings
    gain: Interval
    lag_p95: float
    lag_max: int
    tied: bool


@dataclass(frozen=True, slots=True)
class Effort:
    """What the answer rests on.

    Attributes:
        budget_s: the promise.
        wall_s: seconds from the start of the process until the answer.
        evaluations: simulations finished.
        candidates: settings tried beside today's.
        refused: settings that the pipeline refused at load.
        over_ceiling: settings that exceeded the lag ceiling.
        failed: settings whose simulation failed, with the first reason.
        cut_off: simulations stopped because they would have broken the promise.
        screen_steps: learner steps after warm-up of a screening replication.
        screen_seeds: seeds of the screen; no reported figure uses them.
        final_steps: learner steps after warm-up of a final replication.
        final_seeds: seeds of the reported replications.
        warmup_steps: learner steps cut from the start of each.
        workers: processes.

    """

    budget_s: float
    wall_s: float
    evaluations: int
    candidates: int
    refused: int
    over_ceiling: int
    failed: int
    cut_off: int
    screen_steps: int
    screen_seeds: tuple[int, ...]
    final_steps: int
    final_seeds: tuple[int, ...]
    warmup_steps: int
    workers: int


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The answer.

    Attributes:
        scenario: its name.
        verdict: what can be said.
        provisional: whether the replications are too short or too few for a claim; `notes` says which.
        interrupted: whether the search was stopped from outside; the rest is what was finished.
        objective: what was maximised or minimised.
        ceiling_lag: largest lag allowed, in optimizer steps.
        ceiling_given: whether the user set it.
        today: the searched knobs as they stand.
        baseline: measured today.
        settings: the named settings, all searched knobs; None when nothing was compared.
        best: measured with `settings`.
        gain: paired gain of `settings` over today in kept groups per chip-second, as a fraction, at a confidence that
            allows for having chosen among the finalists.
        idle_change: paired change of the idle share.
        contributions: of each changed knob.
        dead_knobs: searched knobs that made no difference at all wherever they were varied alone.
        alternatives: the other finalists.
        disagreement: what the other objective would have chosen, in words; empty when they agree.
        bottleneck: where the chip time goes today, and with `settings`, in words.
        notes: what a reader must know to trust the answer as much as it deserves.
        effort: what it rests on.
        command: shell command that simulates `settings` on the reported seeds.
        patch: `settings` as TOML, only what changes.

    """

    scenario: str
    verdict: Verdict
    provisional: bool
    interrupted: bool
    objective: Objective
    ceiling_lag: int
    ceiling_given: bool
    today: Settings
    baseline: Measured
    settings: Settings | None
    best: Measured | None
    gain: Interval | None
    idle_change: Interval | None
    contributions: tuple[Contribution, ...]
    dead_knobs: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    disagreement: str
    bottleneck: tuple[str, ...]
    notes: tuple[str, ...]
    effort: Effort
    command: str
    patch: str

    @property
    def changed(self) -> Settings:
        """Only what the answer changes."""
        return {path: value for path, value in (self.settings or {}).items() if value != self.today[path]}

    def to_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dictionaries; an end of an interval that does not exist is null."""
        fields: dict[str, Any] = plain(self)
        return {"schema": SCHEMA, "kind": "tune", "changed": self.changed} | fields


def simulation_json(scenario: str, measured: Measured, runs: Sequence[RunSummary], warmup_steps: int) -> dict[str, Any]:
    """The result of `simulate` in the same form: together, and replication by replication."""
    return {
        "schema": SCHEMA,
        "kind": "simulate",
        "scenario": scenario,
        "warmup_steps": warmup_steps,
        "measured": plain(measured),
        "replications": [plain(run) for run in runs],
    }


def plain(value: Any) -> Any:
    """Any result of this package as JSON-able data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def toml_patch(changed: Mapping[str, int]) -> str:
    """The changes as TOML tables, to be put in the scenario by hand."""
    tables: dict[str, list[str]] = {}
    for path, value in changed.items():
        table, _, key = path.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {value}")
    return "\n\n".join((f"[{table}]\n" if table else "") + "\n".join(lines) for table, lines in tables.items())
