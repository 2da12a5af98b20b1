"""A scenario with what was fitted in it: the base's own text, with the fitted places replaced.

Where the text is laid out in a way that cannot be edited place by place, the whole is written anew from its values.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from harness.calibration.correlation import NAME
from harness.core.errors import ConfigError
from harness.costs.fit import REPORTED
from harness.scenario.arrivals import Arrivals
from harness.scenario.environments import Tool
from harness.scenario.load import parse
from harness.scenario.locate import Places
from harness.scenario.write import dump, dump_tables, dump_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.calibration.requests import CountFit, Requests
    from harness.calibration.steps import StepFit
    from harness.costs.fit import Fit
    from harness.scenario.environments import Outage
    from harness.scenario.locate import Path
    from harness.scenario.schema import Scenario

PipelineT = TypeVar("PipelineT", bound=BaseModel)

_DIGITS = 9


@dataclass(slots=True)
class _Edit:
    """What is taken out of a text and what is put in.

    Attributes:
        values: new text of single fields, by path, with the comment above each.
        tables: new text of tables, in place of the first that is dropped, else at the end.
        dropped: paths of tables and fields that go.

    """

    values: dict[Path, str] = field(default_factory=dict)
    tables: list[tuple[Path, str]] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)


def errors_in_words(found: Fit | CountFit) -> str:
    """`held-out error (5 blocks …): p50 3%, p90 8%`, or nothing where no part could tell."""
    errors = ", ".join(
        f"p{100 * p:g} {error:.0%}" for p, error in zip(REPORTED, found.held_out_error, strict=True) if math.isfinite(error)
    )
    return f"held-out error ({found.split}): {errors}" if errors else ""


def law_table(found: Fit, source: str) -> dict[str, Any]:
    """A law as a scenario holds it, with its source, its rows and its errors."""
    law = found.law.model_dump(mode="json", exclude_none=True)
    errors = errors_in_words(found)
    law["source"] = source
    law["note"] = "; ".join([f"{found.rows} rows", *([errors] if errors else []), *found.remarks])
    return law


def tool_tables(steps: Sequence[StepFit], source: str, faults: dict[str, float]) -> list[dict[str, Any]]:
    """One table a tool; the shares add up to exactly 1.

    Args:
        steps: what was fitted.
        source: file and date.
        faults: of kinds of which the file does not say how they fail.

    """
    shares = [round(step.share, _DIGITS) for step in steps]
    shares[shares.index(max(shares))] += 1 - sum(shares)
    tables = []
    for step, share in zip(steps, shares, strict=True):
        own = faults
        if step.faults is not None:
            seen = (step.faults.failure, step.faults.infra_failure, step.faults.hang)
            own = {name: round(rate, 6) for name, rate in zip(FAULTS, seen, strict=True) if rate > 0}
        limit = {"time_limit_s": step.time_limit_s} if step.time_limit_s is not None else {}
        law = law_table(step.fit, source)
        tables.append({"name": step.name, "share": round(share, _DIGITS), "duration": law} | limit | own)
    return tables


FAULTS = ("failure", "infra_failure", "hang")


def with_steps(
    text: str, scenario: Scenario[PipelineT], tables: list[dict[str, Any]], outage: Outage | None, heading: str, file: str
) -> str:
    """The scenario's text with other tools, and with the measured outage where there is one."""
    records = tuple(Tool.model_validate(table) for table in tables)
    workload = scenario.workload.model_copy(update={"tools": records, "agent_run": None})
    wanted = scenario.model_copy(update={"workload": workload})
    edit = _Edit(dropped=[("workload", "agent_run"), ("workload", "tools")])
    edit.tables.append((("workload", "tools"), f"{heading}\n{dump_tables(('workload', 'tools'), tables)}"))
    ours = [i for i, one in enumerate(scenario.world.outages) if one.name == NAME]
    if outage is not None:
        others = tuple(one for one in scenario.world.outages if one.name != NAME)
        world = scenario.world.model_copy(update={"outages": (*others, outage)})
        wanted = wanted.model_copy(update={"world": world})
        edit.dropped += [("world", "outages", i) for i in ours]
        entry = outage.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        edit.tables.append(
            (("world", "outages"), f"{heading}\n{dump_tables(('world', 'outages'), [_laws_kept(entry, outage)])}")
        )
    return _edited(text, edit, wanted, heading, file)


def _laws_kept(entry: dict[str, Any], outage: Outage) -> dict[str, Any]:
    """Without defaults a law would lose the name that tells it apart."""
    return entry | {
        name: getattr(outage, name).model_dump(mode="json", exclude_none=True)
        for name in ("up", "down", "fail_after")
        if name in entry
    }


def with_requests(text: str, scenario: Scenario[PipelineT], found: Requests, heading: str, file: str) -> str:
    """The scenario's text with other token counts, and with arrivals where they were measured."""
    update: dict[str, Any] = {fit.field: fit.law for fit in found.counts}
    edit = _Edit()
    for fit in found.counts:
        errors = errors_in_words(fit)
        said = "; ".join([f"{fit.rows} rows", *([errors] if errors else []), *fit.remarks])
        law = fit.law.model_dump(mode="json", exclude_none=True)
        comment = f"# {found.file} ({fit.column}), {found.dated}: {said}"
        edit.values["workload", fit.field] = f"{comment}\n{fit.field} = {dump_value(law)}"
    if found.gap is not None:
        table: dict[str, Any] = {"gap": law_table(found.gap, f"{found.file}, {found.dated}")}
        before = scenario.workload.arrivals
        if before is not None and before.waiting_max is not None:
            table["waiting_max"] = before.waiting_max
        update["arrivals"] = Arrivals.model_validate(table)
        edit.dropped.append(("workload", "arrivals"))
        body = "\n".join(f"{key} = {dump_value(value)}" for key, value in table.items())
        edit.tables.append((("workload", "arrivals"), f"{heading}\n[workload.arrivals]\n{body}"))
    workload = scenario.workload.model_copy(update=update)
    return _edited(text, edit, scenario.model_copy(update={"workload": workload}), heading, file)


def _edited(text: str, edit: _Edit, wanted: Scenario[PipelineT], heading: str, file: str) -> str:
    pipeline_type = type(wanted.pipeline)
    changed = _apply(text, edit)
    with contextlib.suppress(ConfigError):
        if parse(changed, pipeline_type) == wanted:
            return changed
    rewritten = f"{heading}\n\n{dump(wanted)}"
    parse(rewritten, pipeline_type, file=file)
    return rewritten


def _apply(text: str, edit: _Edit) -> str:
    """Lines of dropped places go, with the comments right above them; new ones come where the first old one stood."""
    lines = text.split("\n")
    places = Places(text)
    headers = places.headers
    begins = sorted({line - 1 for line in places.lines.values()} | {line - 1 for _, line in headers})
    drop: set[int] = set()
    puts: dict[int, list[str]] = {}

    def take(start: int, end: int) -> int:
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1  # comments above what comes next belong to it
        while start > 0 and lines[start - 1].lstrip().startswith("#") and not lines[start - 1].lstrip("# ").startswith("---"):
            start -= 1
        drop.update(range(start, end))
        return start

    firsts: dict[Path, int] = {}
    for path in edit.dropped:
        for i, (header, line) in enumerate(headers):
            if header[: len(path)] == path:
                end = headers[i + 1][1] - 1 if i + 1 < len(headers) else len(lines)
                start = take(line - 1, end)
                firsts.setdefault(path[:2], start)
    for path, value in edit.values.items():
        at = places.lines.get(path)
        if at is None:
            continue
        after = [one for one in begins if one > at - 1 and not _within(places, path, one)]
        start = take(at - 1, after[0] if after else len(lines))
        puts.setdefault(start, []).append(value)
    tail = []
    for path, table in edit.tables:
        if path in firsts:
            puts.setdefault(firsts[path], []).append(table.rstrip("\n"))
        else:
            tail.append("\n" + table.rstrip("\n"))
    kept: list[str] = []
    for i, written in enumerate(lines):
        kept += puts.get(i, [])
        if i not in drop and (written.strip() or not kept or kept[-1].strip()):
            kept.append(written)
    while kept and not kept[-1].strip():
        kept.pop()
    return "\n".join([*kept, *tail]) + "\n"


def _within(places: Places, path: Path, line: int) -> bool:
    """Whether a line holds a part of the value of a field."""
    return any(one[: len(path)] == path and at - 1 == line for one, at in places.lines.items())
