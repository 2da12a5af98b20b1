"""From a file of measurements to a whole scenario.

A file of steps gives `[[workload.tools]]`: share as frequent as in the file, duration as fitted, faults and time limits as they
ended, and `[[world.outages]]` where failures come together. A file of requests gives token counts and `[workload.arrivals]`.
The rest of the base stays as it stands there, comments included.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel

from harness.calibration.columns import Measurements, StepColumns, read_steps
from harness.calibration.correlation import Correlation, find_outages
from harness.calibration.requests import CountFit, RequestColumns, read_requests
from harness.calibration.steps import StepFit, fit_steps
from harness.calibration.write import FAULTS, tool_tables, with_requests, with_steps
from harness.core.errors import ConfigError
from harness.files import check_folder, write_whole
from harness.scenario.load import parse, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.costs.fit import Fit
    from harness.scenario.schema import Scenario

PipelineT = TypeVar("PipelineT", bound=BaseModel)

BAD_FIT = 1.0
"""Held-out error of a quantile above which a fit is remarked on."""

NEIGHBOURS = 0.2
"""Correlation of the durations of neighbours above which it is said: 0.04 of their variance is shared."""

_DIGITS = 9

_ROUNDING = 1e-20
"""Variance of logarithms below which values are all the same."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `calibrate` did.

    Attributes:
        out: the scenario written.
        source: the file read.
        dated: what is known of when it was measured.
        rows: rows in it.
        duplicates: rows that repeat another and were left out.
        steps: one for each tool, in the order of the file.
        counts: one for each column of tokens.
        gap: law of seconds between arrivals; None when they were not asked for.
        outages: what was found of failures in time; None for a file of requests.
        remarks: what a reader should know beside the remarks of each fit.

    """

    out: Path
    source: Path
    dated: str
    rows: int
    duplicates: int
    steps: tuple[StepFit, ...]
    counts: tuple[CountFit, ...]
    gap: Fit | None
    outages: Correlation | None
    remarks: tuple[str, ...]


def calibrate(
    file: str | Path,
    columns: StepColumns | RequestColumns,
    *,
    base: str | Path,
    out: str | Path,
    pipeline_type: type[PipelineT],
    html: str | Path | None = None,
    page: Callable[[Calibration], str] | None = None,
    overrides: Sequence[str] = (),
    patch: str | Path | None = None,
) -> Calibration:
    """Fit the laws of a file of measurements and write a whole scenario.

    Args:
        file: CSV with a header line, Parquet, or JSONL.
        columns: which column holds what.
        base: scenario to take everything else from.
        out: scenario to write. Written whole or not at all.
        pipeline_type: record type of the `[pipeline]` table.
        html: file for the page.
        page: the page of a calibration, as HTML; None for none.
        overrides: `path=value`, put over the base's fields.
        patch: a TOML file that is put over the base before them.

    Raises:
        DataError: the file cannot be read or does not hold what was asked of it.
        ConfigError: an option or the base scenario is wrong.
        OutputError: the scenario could not be written.

    """
    source, base_path, out_path = Path(file), Path(base), Path(out)
    _check_target(out_path, base_path, source, "--out")
    if html is not None:
        _check_target(Path(html), base_path, source, "--html")
        check_folder(Path(html).parent)
    text = read_text(base_path)
    scenario = parse(text, pipeline_type, file=str(base_path), overrides=overrides, patch=patch)
    if isinstance(columns, StepColumns):
        done, written = _steps(source, columns, text, scenario, out_path)
    else:
        done, written = _requests(source, columns, text, scenario, out_path)
    write_whole(out_path, written)
    if html is not None and page is not None:
        write_whole(Path(html), page(done))
    return done


def _steps(source: Path, columns: StepColumns, text: str, scenario: Scenario[PipelineT], out: Path) -> tuple[Calibration, str]:
    measured = read_steps(source, columns)
    found = find_outages(measured)
    steps = fit_steps(measured, found.inside)
    tables = tool_tables(steps, f"{measured.file}, {measured.dated}", _base_faults(scenario))
    heading = f"# Fitted to {measured.file} ({measured.dated}): {measured.rows} rows, {measured.duplicates} repeats left out."
    written = with_steps(text, scenario, tables, found.outage, heading, str(out))
    remarks = _step_remarks(scenario, steps, measured, found)
    done = Calibration(
        out, source, measured.dated, measured.rows, measured.duplicates, tuple(steps), (), None, found, remarks
    )  # fmt: skip
    return done, written


def _requests(
    source: Path, columns: RequestColumns, text: str, scenario: Scenario[PipelineT], out: Path
) -> tuple[Calibration, str]:
    found = read_requests(source, columns)
    heading = f"# Fitted to {found.file} ({found.dated}): {found.rows} requests."
    written = with_requests(text, scenario, found, heading, str(out))
    remarks = list(found.remarks)
    turns: Any = scenario.workload.turns
    one_turn = turns.law == "constant" and turns.value == 1
    if any(count.field == "prompt_tokens" for count in found.counts) and not one_turn:
        remarks.append(
            "input tokens became the first prompt of an episode; where the file holds every turn of a conversation, each "
            "later request repeats it, and only first requests should be in the file"
        )
    longest = scenario.workload.max_context_tokens
    remarks += [
        f"{count.column}: prompts above workload.max_context_tokens = {longest:,} end their episode at once"
        for count in found.counts
        if count.field == "prompt_tokens" and count.curve and count.curve[-1][1] > longest
    ]
    done = Calibration(out, source, found.dated, found.rows, 0, (), found.counts, found.gap, None, tuple(remarks))
    return done, written


def _base_faults(scenario: Scenario[PipelineT]) -> dict[str, float]:
    """How calls fail and hang, on average over the base's tools, for files that do not tell."""
    tools = scenario.workload.tools
    means = {name: sum(tool.share * getattr(tool, name) for tool in tools) for name in FAULTS}
    return {name: round(mean, _DIGITS) for name, mean in means.items() if mean > 0}


def _check_target(out: Path, base: Path, source: Path, option: str) -> None:
    for other, what in ((base, "the base scenario"), (source, "the data")):
        if out.exists() and other.exists() and out.samefile(other):
            raise ConfigError(f"would overwrite {what}", field=option, value=str(out), remedy="name another file")
    if out.is_dir():
        raise ConfigError("is a folder", field=option, value=str(out), remedy=f"name a file in it: {out / 'calibrated.toml'}")
    if not out.parent.is_dir():
        raise ConfigError("its folder does not exist", field=option, value=str(out), remedy=f"make {out.parent} first")


def _step_remarks(
    scenario: Scenario[PipelineT], steps: list[StepFit], measured: Measurements, found: Correlation
) -> tuple[str, ...]:
    remarks = [*measured.remarks, *([] if found.verdict == "not measured" else [found.words])]
    told = {name for step in steps for name in (step.name, *step.pooled)}
    left = [kind for kind in measured.kinds if kind not in told]
    if left:
        remarks.append(f"left out, since too few of them have a duration: {', '.join(left)}")
    faults = _base_faults(scenario)
    if measured.ended is None and faults:
        shown = ", ".join(f"{name} {mean:g}" for name, mean in faults.items())
        remarks.append(f"failures and hangs are not in the data: every tool has the base's average ({shown})")
    bad = [step.name for step in steps if max((e for e in step.fit.held_out_error if e == e), default=0.0) > BAD_FIT]
    if bad:
        remarks.append(
            f"unlike runs, or too few rows for a tail: a quantile is off by more than {BAD_FIT:.0%} on rows not seen: "
            f"{', '.join(bad)}"
        )
    alike = _neighbours(measured, found)
    if alike > NEIGHBOURS:
        remarks.append(
            f"durations of one kind that follow on each other are alike (correlation {alike:.2f} of their logarithms): slow "
            "spells; laws draw each by itself, so that a simulated run evens out more than yours"
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


def _neighbours(measured: Measurements, found: Correlation) -> float:
    """Correlation of the logarithms of neighbours of one kind outside outages, in order of time; 0 where none are known."""
    if measured.at_s is None:
        return 0.0
    kept = np.ones(len(measured.codes), np.bool_) if found.inside is None else ~found.inside
    logs, codes = np.log(measured.values_s[kept]), measured.codes[kept]
    centred = logs - (np.bincount(codes, logs) / np.maximum(np.bincount(codes), 1))[codes]
    order = np.argsort(codes, kind="stable")
    one, other = centred[order][:-1], centred[order][1:]
    same = codes[order][:-1] == codes[order][1:]
    if same.sum() < 30:
        return 0.0
    spread = float(np.sqrt((one[same] ** 2).mean() * (other[same] ** 2).mean()))
    return float((one[same] * other[same]).mean()) / spread if spread > _ROUNDING else 0.0
