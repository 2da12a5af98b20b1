"""The answer of `tune`, as plain data."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.analysis.statistics import Interval
    from harness.analysis.summary import RunSummary
    from harness.tuning.measured import Measured
    from harness.tuning.space import Settings, Value

Objective = Literal["kept", "idle", "tokens"]
"""`kept`: kept groups per chip-second, more is better. `idle`: idle share of chip time, less is better. `tokens`: trained
tokens per chip-second, more is better."""

INDIFFERENCE = 0.01
"""A gain below this fraction is not worth changing a configuration for, and is treated as none. For `idle`, a difference of
this share of chip time."""

WITHIN = 0.01
"""The range of a knob that is reported as flat costs no more than this fraction of the objective."""

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
    before: Value
    after: Value
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
class Flatness:
    """How much one knob may move away from the answer, all others as in it, before it costs more than `WITHIN`.

    Attributes:
        path: of the knob.
        best: its value in the answer.
        within: values that were tried and stay within, in the order of the grid, the answer's own included.
        outside: values that were tried and do not.
        learner_steps: length of the replications behind it.

    """

    path: str
    best: Value
    within: tuple[Value, ...]
    outside: tuple[Value, ...]
    learner_steps: int


@dataclass(frozen=True, slots=True)
class Point:
    """One setting as a point between the objectives that cannot all be had.

    Attributes:
        settings: what differs from today; empty for today's.
        gain: in kept groups per chip-second over today's, paired, as a fraction; 0 for today's.
        kept_groups_per_chip_s: the rate.
        lag_p95: in optimizer steps.
        lag_max: in optimizer steps.
        usd_per_1000_groups: cost; 0 without prices.
        waste_share: share of chip time that made what was discarded.
        idle_share: share of chip time with nothing on the chips.
        on_front: whether no other point is better in one of gain, lag, cost and waste and at least as good in all others.
        replications: behind it.
        learner_steps: of each.
        fresh: whether they were run on seeds that were not used to choose; others look better than they are.

    """

    settings: Settings
    gain: Interval
    kept_groups_per_chip_s: float
    lag_p95: float
    lag_max: int
    usd_per_1000_groups: float
    waste_share: float
    idle_share: float
    on_front: bool
    replications: int
    learner_steps: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What the answer becomes when one calibrated input is off.

    Attributes:
        path: of the input (`workload.tools.browse.duration`).
        doc: what it is, in words.
        factor: by which it was multiplied (0.9, 1.1).
        kept: of the answer over the answer with the input as it is, minus 1: how much the prediction moves.
        gain: of the answer over today's settings under that input, paired, as a fraction.
        rival: what would be the better choice by more than the indifference zone (changes from today; today's own are `{}`), if
            any of those compared; None where the answer stands.
        replications: behind it.
        learner_steps: of each.

    """

    path: str
    doc: str
    factor: float
    kept: Interval
    gain: Interval
    rival: Settings | None
    replications: int
    learner_steps: int


@dataclass(frozen=True, slots=True)
class ByHand:
    """What closed forms said before anything was simulated.

    Attributes:
        combinations: of all values of all knobs, refused ones included.
        looked_at: settings that the closed forms were asked about.
        ruled_out: of them, those whose firm bound lies below what today's settings reach: they cannot win.
        seconds: that it took.
        limits: name and groups a second of today's narrowest bounds, the narrowest first.

    """

    combinations: int
    looked_at: int
    ruled_out: int
    seconds: float
    limits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Elimination:
    """How the finalists were told apart: Kim and Nelson's procedure on paired differences.

    Attributes:
        indifference: what was not worth telling apart, as a fraction of the objective.
        error: probability, at most, that the best by more than this is not the one that is kept.
        entrants: settings that began, today's included.
        rounds: replications of those that stayed longest.
        dropped: what was shown to be worse, as (changes from today, after how many replications).
        survivors: what was not, as changes from today.
        decided: whether it ended by itself, with one left or within the indifference zone; else time or replications ran out.

    """

    indifference: float
    error: float
    entrants: int
    rounds: int
    dropped: tuple[tuple[Settings, int], ...]
    survivors: tuple[Settings, ...]
    decided: bool


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
        indifference: gain below which a change is not worth making, as the user gave it.
        staleness_cost: what the gain costs in lag, in words.
        flatness: of each searched knob round the answer.
        points: every setting that was compared, and whether it is on the Pareto front.
        sensitivity: of the answer to each calibrated input; those that there was no time for are left out.
        inputs: how many calibrated inputs there are.
        by_hand: the analytic screen.
        elimination: how the finalists were told apart.
        peers: the patch in the names of other trainers, by trainer.
        study: folder in which the study is kept, to be resumed or extended; empty when it is not.

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
    indifference: float = INDIFFERENCE
    staleness_cost: str = ""
    flatness: tuple[Flatness, ...] = ()
    points: tuple[Point, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
    inputs: int = 0
    by_hand: ByHand | None = None
    elimination: Elimination | None = None
    peers: dict[str, str] = field(default_factory=dict)
    study: str = ""

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


def toml_patch(changed: Mapping[str, Value]) -> str:
    """The changes as TOML tables, to be put in the scenario by hand."""
    tables: dict[str, list[str]] = {}
    for path, value in changed.items():
        table, _, key = path.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(value)}")
    return "\n\n".join((f"[{table}]\n" if table else "") + "\n".join(lines) for table, lines in tables.items())
