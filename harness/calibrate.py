"""From a CSV of measured durations to a whole scenario.

`calibrate` reads the file, fits a law to every kind of step (`harness.costs.fit`), and writes the base scenario with its
`[[workload.tools]]` replaced by one tool for each kind: share as frequent as in the file, duration as fitted, its source and
its held-out error beside it. The rest of the base stays as it stands there, comments included.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel

from harness.core.errors import ConfigError
from harness.costs.fit import LEAST_ROWS, REPORTED, Fit, fit
from harness.files import write_whole
from harness.measured import Measurements, read_measurements
from harness.scenario.environments import Tool
from harness.scenario.load import parse, read_text
from harness.scenario.locate import Places
from harness.scenario.write import dump, dump_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.costs.laws import Floats
    from harness.scenario.schema import Scenario

PipelineT = TypeVar("PipelineT", bound=BaseModel)

POOLED = "other"
"""Name of the tool that stands for all kinds of steps with too few rows of their own."""

_DIGITS = 9


@dataclass(frozen=True, slots=True)
class StepFit:
    """One kind of step.

    Attributes:
        name: as in the file.
        share: of all steps.
        fit: law, quantiles and errors.
        pooled: the kinds that it stands for, when there was too little of each.

    """

    name: str
    share: float
    fit: Fit
    pooled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `calibrate` did.

    Attributes:
        out: the scenario written.
        source: the file read.
        rows: rows in it.
        duplicates: rows that repeat a row of another run and were left out.
        steps: one for each tool, in the order of the file.
        remarks: what a reader should know beside the remarks of each fit.

    """

    out: Path
    source: Path
    rows: int
    duplicates: int
    steps: tuple[StepFit, ...]
    remarks: tuple[str, ...]


def calibrate(
    csv: str | Path,
    *,
    duration: str,
    by: str,
    base: str | Path,
    out: str | Path,
    pipeline_type: type[PipelineT],
    unit: str = "s",
    runs: str | None = None,
    overrides: Sequence[str] = (),
) -> Calibration:
    """Fit a law for every kind of step in a CSV and write a whole scenario.

    Args:
        csv: file with a header line, one row a step.
        duration: column of durations.
        by: column of the kind of step.
        base: scenario to take everything else from.
        out: scenario to write. Written whole or not at all.
        pipeline_type: record type of the `[pipeline]` table.
        unit: of the durations: `s`, `ms`, `us` or `ns`.
        runs: column that tells runs apart; by default one that is called like it (`run_id`, `trajectory`, `date`, …).
        overrides: `path=value`, put over the base's fields.

    Raises:
        DataError: the file cannot be read or does not hold what was asked of it.
        ConfigError: an option or the base scenario is wrong.
        OutputError: the scenario could not be written.

    """
    source, base_path, out_path = Path(csv), Path(base), Path(out)
    _check_target(out_path, base_path, source)
    text = read_text(base_path)
    scenario = parse(text, pipeline_type, file=str(base_path), overrides=overrides)
    measured = read_measurements(source, duration=duration, by=by, unit=unit, runs=runs)
    steps = fit_steps(measured)
    tools = [_tool(step, measured) | _faults(scenario) for step in steps]
    written = _scenario_text(text, scenario, tools, measured, str(out_path))
    write_whole(out_path, written)
    remarks = _remarks(scenario, steps, measured)
    return Calibration(out_path, source, measured.rows, measured.duplicates, tuple(steps), remarks)


def fit_steps(measured: Measurements) -> list[StepFit]:
    """A fit for every kind of step; kinds with fewer than `LEAST_ROWS` rows are pooled."""
    kinds = list(dict.fromkeys(measured.kinds))
    column = np.array(measured.kinds)
    masks = {kind: column == kind for kind in kinds}
    scarce = [kind for kind in kinds if masks[kind].sum() < LEAST_ROWS]
    total = len(column)
    steps = []
    for kind in kinds:
        if kind not in scarce:
            mask = masks[kind]
            steps.append(StepFit(kind, float(mask.sum()) / total, _fit(measured, mask)))
    if scarce:
        mask = np.isin(column, scarce)
        name = POOLED if POOLED not in kinds else POOLED + "_kinds"
        if len(scarce) == 1:
            name = scarce[0]
        steps.append(_pooled(name, measured, mask, tuple(scarce)))
    return steps


def _pooled(name: str, measured: Measurements, mask: Any, kinds: tuple[str, ...]) -> StepFit:
    rows = int(mask.sum())
    found = _fit(measured, mask)
    each = f"fewer than {LEAST_ROWS} rows each" if len(kinds) > 1 else f"only {rows} row{'s' if rows > 1 else ''}"
    remark = f"{', '.join(kinds)}: {each}" + (", fitted together" if len(kinds) > 1 else "")
    return StepFit(name, rows / len(measured.kinds), replace(found, remarks=(*found.remarks, remark)), kinds)


def _fit(measured: Measurements, mask: Any) -> Fit:
    values: Floats = measured.values_s[mask]
    return fit(values, measured.runs[mask] if measured.runs is not None else None)


def _tool(step: StepFit, measured: Measurements) -> dict[str, Any]:
    """The table of one tool, as a scenario holds it."""
    law = step.fit.law.model_dump(mode="json", exclude_none=True)
    errors = ", ".join(
        f"p{100 * p:g} {error:.0%}" for p, error in zip(REPORTED, step.fit.held_out_error, strict=True) if error == error
    )
    notes = [f"{step.fit.rows} rows"]
    if errors:
        notes.append(f"held-out error ({step.fit.split}): {errors}")
    law["source"] = f"{measured.file}, {measured.dated}"
    law["note"] = "; ".join([*notes, *step.fit.remarks])
    return {"name": step.name, "share": step.share, "duration": law}


BAD_FIT = 1.0
"""Held-out error of a quantile above which a fit is remarked on."""

FAULTS = ("failure", "infra_failure", "hang")


def _faults(scenario: Scenario[PipelineT]) -> dict[str, float]:
    """How calls fail and hang, on average over the base's tools: durations alone do not tell."""
    tools = scenario.workload.tools
    means = {name: sum(tool.share * getattr(tool, name) for tool in tools) for name in FAULTS}
    return {name: round(mean, _DIGITS) for name, mean in means.items() if mean > 0}


def _scenario_text(
    text: str, scenario: Scenario[PipelineT], tools: list[dict[str, Any]], measured: Measurements, file: str
) -> str:
    """The base's own text with other tools; written anew from its values where the text is laid out in another way."""
    shares = [round(tool["share"], _DIGITS) for tool in tools]
    shares[shares.index(max(shares))] += 1 - sum(shares)
    for tool, share in zip(tools, shares, strict=True):
        tool["share"] = round(share, _DIGITS)
    records = tuple(Tool.model_validate(tool) for tool in tools)
    workload = scenario.workload.model_copy(update={"tools": records, "agent_run": None})
    wanted = scenario.model_copy(update={"workload": workload})
    pipeline_type = type(scenario.pipeline)
    heading = f"# Fitted to {measured.file} ({measured.dated}): {measured.rows} rows, {measured.duplicates} repeats left out."
    edited = _replace_tables(text, f"{heading}\n{dump_tools(tools)}")
    with contextlib.suppress(ConfigError):
        if parse(edited, pipeline_type) == wanted:
            return edited
    rewritten = f"{heading}\n\n{dump(wanted)}"
    parse(rewritten, pipeline_type, file=file)
    return rewritten


def _replace_tables(text: str, tools: str) -> str:
    """The text without `[[workload.tools]]` and `[workload.agent_run]` and the comments right above them, with new tools."""
    lines = text.split("\n")
    headers = Places(text).headers
    drop: set[int] = set()
    first = None
    for i, (path, line) in enumerate(headers):
        is_tool = path[:2] == ("workload", "tools")
        if not is_tool and path[:2] != ("workload", "agent_run"):
            continue
        start = line - 1
        end = headers[i + 1][1] - 1 if i + 1 < len(headers) else len(lines)
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1  # comments above the next table belong to it
        while start > 0 and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        if is_tool and first is None:
            first = start
        drop.update(range(start, end))
    kept = []
    for i, written in enumerate(lines):
        if i == first:
            kept.append(tools.rstrip("\n"))
        if i not in drop and (written.strip() or not kept or kept[-1].strip()):
            kept.append(written)
    return "\n".join(kept)


def _check_target(out: Path, base: Path, source: Path) -> None:
    for other, what in ((base, "the base scenario"), (source, "the data")):
        if out.exists() and other.exists() and out.samefile(other):
            raise ConfigError(f"would overwrite {what}", field="--out", value=str(out), remedy="name another file")
    if out.is_dir():
        raise ConfigError("is a folder", field="--out", value=str(out), remedy=f"name a file in it: {out / 'calibrated.toml'}")
    if not out.parent.is_dir():
        raise ConfigError("its folder does not exist", field="--out", value=str(out), remedy=f"make {out.parent} first")


def _remarks(scenario: Scenario[PipelineT], steps: list[StepFit], measured: Measurements) -> tuple[str, ...]:
    remarks = list(measured.remarks)
    faults = _faults(scenario)
    if faults:
        shown = ", ".join(f"{name} {mean:g}" for name, mean in faults.items())
        remarks.append(f"failures and hangs are not in the data: every tool has the base's average ({shown})")
    bad = [step.name for step in steps if max((e for e in step.fit.held_out_error if e == e), default=0.0) > BAD_FIT]
    if bad:
        remarks.append(
            f"unlike runs, or too few rows for a tail: a quantile is off by more than {BAD_FIT:.0%} on rows not seen: "
            f"{', '.join(bad)}"
        )
    if scenario.workload.agent_run is not None:
        remarks.append("workload.agent_run of the base was left out: it would have overruled the measured durations")
    deadlines = getattr(scenario.pipeline, "deadlines", None)
    limit_s = getattr(deadlines, "tool_s", None)
    if isinstance(limit_s, float):
        cut = [step.name for step in steps if step.fit.fitted_s[-1] > limit_s]
        if cut:
            remarks.append(f"pipeline.deadlines.tool_s = {limit_s:g} s cuts more than 1 % of: {', '.join(cut)}")
    return tuple(remarks)
