"""The charts of the page of `tune`, as Vega-Lite specifications; None where there is nothing to show.

Every mark carries a description: it becomes the tooltip and is what a screen reader says.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import altair as alt

from harness.core.lanes import State
from harness.terminal import contribution_in_words
from harness.tuning.wording import gain_with_interval, percent, settings_in_words, share_with_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.statistics import Interval
    from harness.timelines import Timeline
    from harness.tuning.result import Flatness, Point, TuneResult
    from harness.tuning.space import Value

    Spec = dict[str, Any]

WIDTH = 820
INK, MUTED, GRID = "#1c2430", "#77828f", "#e3e8ee"
GREEN, RED, AMBER, BLUE = "#2a7f62", "#b5442f", "#e0a12b", "#3b6ea8"
SHOWN_INPUTS = 12
SIDE = 230
"""Room for names at the left, at most."""

DOING = {
    State.TRAIN: ("training", GREEN),
    State.GENERATE: ("generating", "#5aa88a"),
    State.PREFILL: ("reading prompts", "#a9d6c4"),
    State.REPREFILL: ("reading prompts again", "#d98a4b"),
    State.LOG_PROBS: ("log-probabilities", "#7a6fb0"),
    State.EVAL: ("evaluation", "#9ecbe8"),
    State.SYNC_SEND: ("weights on their way", AMBER),
    State.SYNC_RECV: ("weights on their way", AMBER),
    State.SYNC_PAUSE: ("paused for weights", "#f3d38b"),
    State.SYNC_WAIT: ("paused for weights", "#f3d38b"),
    State.CHECKPOINT: ("checkpoint or restart", "#8a5a3c"),
    State.RESTORE: ("checkpoint or restart", "#8a5a3c"),
    State.COMPILE: ("checkpoint or restart", "#8a5a3c"),
    State.SWITCH: ("changing roles", "#c26b9a"),
    State.DOWN: ("lost", RED),
    State.PROVISION: ("lost", RED),
}
"""What a chip lane does, in words, with a colour. Every other state is idle."""

IDLE = ("idle", "#cfd7e1")


def first_chart(result: TuneResult) -> Spec | None:
    """The answer at a glance: its gain over today and those of the other finalists, or the idle shares where that is asked."""
    if result.objective == "idle" or result.gain is None or result.settings is None:
        return _idle_chart(result)
    rows = [_gain_row("found", result.gain, settings_in_words(result.changed), GREEN if result.gain.low > 0 else MUTED)]
    for number, other in enumerate(result.alternatives, 1):
        words = settings_in_words(other.settings)
        rows.append(_gain_row(f"alternative {number}", other.gain, words, BLUE if other.gain.low > 0 else MUTED))
    rows.append({"label": "today", "value": 0.0, "colour": INK, "shown": "", "said": "today's settings: the reference"})
    zone = result.indifference
    band = alt.Chart(_data([{"low": -zone, "high": zone, "said": f"not worth a change: within {percent(zone)}"}]))
    chart = alt.layer(
        band.mark_rect(color=GRID).encode(x="low:Q", x2="high:Q", description="said:N"),
        alt.Chart(_data([{"at": 0.0}])).mark_rule(color=MUTED).encode(x="at:Q"),
        *_dots(rows, "kept groups per chip-second, over today's"),
    )
    return _finished(chart, height=alt.Step(34))


def _idle_chart(result: TuneResult) -> Spec:
    bars = [("today", result.baseline, MUTED)] + ([("found", result.best, GREEN)] if result.best is not None else [])
    rows = []
    for label, measured, colour in bars:
        words = share_with_interval(measured.idle_share)
        row = _row(label, measured.idle_share, colour) | {"shown": words, "said": f"{label}: idle {words}"}
        rows.append(row)
    return _finished(alt.layer(*_dots(rows, "idle share of chip time", zero=True)), height=alt.Step(34))


def front_chart(points: Sequence[Point], answer: object) -> Spec | None:
    """What was compared, gain against lag: larger is dearer, redder wastes more."""
    if len({(point.lag_p95, point.gain.mean) for point in points}) < 2:  # all in one place: nothing to see
        return None
    priced = any(point.usd_per_1000_groups for point in points)
    rows: list[dict[str, Any]] = []
    for point in points:
        words = settings_in_words(point.settings)
        cost = f", {point.usd_per_1000_groups:,.2f} USD per 1000 groups" if priced else ""
        said = (
            f"{words}: {gain_with_interval(point.gain)} kept groups, lag p95 {point.lag_p95:.1f}, at most {point.lag_max}"
            f" optimizer steps, waste {percent(point.waste_share)}, idle {percent(point.idle_share)}{cost};"
            f" {point.replications} x {point.learner_steps} steps{'' if point.fresh else ', provisional'}"
        )
        name = "today" if not point.settings else "found" if point.settings == answer else ""
        rows.append(
            _row(words, point.gain, "") | {
                "lag": point.lag_p95, "waste": point.waste_share, "usd": point.usd_per_1000_groups, "said": said,
                "name": name, "front": point.on_front, "fresh": point.fresh,
            }
        )  # fmt: skip
    x = alt.X(
        "lag:Q",
        title="lag at p95, in optimizer steps",
        axis=alt.Axis(tickCount=8),
        scale=alt.Scale(zero=False, nice=True, padding=12),
    )
    y = alt.Y(
        "value:Q", title="kept groups, over today's", axis=alt.Axis(format="+.1~%"), scale=alt.Scale(zero=False, padding=10)
    )
    colour = alt.Color(
        "waste:Q",
        title="share of chip time wasted",
        scale=alt.Scale(range=["#5aa88a", "#e0a12b", "#b5442f"], domainMin=0),
        legend=alt.Legend(orient="bottom", format=".1%", gradientLength=180, titleLimit=300),
    )
    size: Any = (
        alt.Size(
            "usd:Q",
            title="USD per 1000 groups",
            scale=alt.Scale(range=[60, 360], zero=False),
            legend=alt.Legend(
                orient="bottom",
                symbolType="circle",
                symbolStrokeColor=MUTED,
                symbolStrokeWidth=1.5,
                titleLimit=300,
                tickCount=3,
            ),
        )
        if priced and len({point.usd_per_1000_groups for point in points}) > 1
        else alt.value(110)
    )
    front = sorted((row for row in rows if row["front"]), key=lambda row: (row["lag"], row["value"]))
    layers: list[Any] = []
    if len(front) > 1:
        line = [{"lag": row["lag"], "value": row["value"], "place": place} for place, row in enumerate(front)]
        layers.append(
            alt.Chart(_data(line)).mark_line(color=MUTED, strokeDash=[4, 3], strokeWidth=1.2).encode(x=x, y=y, order="place:O")
        )
    bounded = [row for row in rows if "low" in row and row["high"] > row["low"]]
    if bounded:
        layers.append(alt.Chart(_data(bounded)).mark_rule(color=MUTED, opacity=0.7).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"))
    for fresh in (False, True):
        mine = [row for row in rows if row["fresh"] is fresh]
        if mine:
            base = alt.Chart(_data(mine))
            mark = base.mark_point(filled=True, opacity=1) if fresh else base.mark_point(strokeWidth=2, opacity=1)
            layers.append(mark.encode(x=x, y=y, color=colour, size=size, description="said:N"))
    named = [row for row in rows if row["name"]]
    if named:
        layers.append(
            alt.Chart(_data(named))
            .mark_text(dy=-16, dx=10, align="left", fontSize=13, fontWeight=600, color=INK)
            .encode(x=x, y=y, text="name:N")
        )
    return _finished(alt.layer(*layers), height=300)


def contributions_chart(result: TuneResult) -> Spec | None:
    """What each changed knob is worth with the others in place."""
    rows = []
    for one in result.contributions:
        if one.gain is not None:
            label = f"{_short(one.path)} {one.before} → {one.after}"
            row = _gain_row(label, one.gain, "", GREEN if one.gain.low > 0 else MUTED)
            rows.append(row | {"said": contribution_in_words(one)})
    if not rows:
        return None
    rows.sort(key=lambda row: -float(row["value"]))
    zero = alt.Chart(_data([{"at": 0.0}])).mark_rule(color=MUTED).encode(x="at:Q")
    return _finished(alt.layer(zero, *_dots(rows, "kept groups per chip-second that the change is worth")), height=alt.Step(30))


def flatness_chart(flat: Sequence[Flatness]) -> Spec | None:
    """How far each knob may move from the answer: what stays within is joined by a bar."""
    dots: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    for one in flat:
        grid = _grid(one)
        inside = [place for place, value in enumerate(grid) if value in one.within]
        at = grid.index(one.best) if one.best in grid else 0
        low = high = at
        while low - 1 in inside:
            low -= 1
        while high + 1 in inside:
            high += 1
        label = _short(one.path)
        bars.append({"label": label, "low": low, "high": high, "said": f"{label}: flat from {grid[low]} to {grid[high]}"})
        for place, value in enumerate(grid):
            kind = "the answer" if value == one.best else "as good" if value in one.within else "worse"
            dots.append(
                {"label": label, "place": place, "shown": str(value), "kind": kind, "said": f"{label} = {value}: {kind}"}
            )
    if not dots:
        return None
    wide = max(dot["place"] for dot in dots)
    names = list(dict.fromkeys(dot["label"] for dot in dots))
    x = alt.X("place:Q", axis=None, scale=alt.Scale(domain=[-0.4, max(wide, 3) + 0.4]))
    y = alt.Y("label:N", sort=names, title=None, axis=_names_axis())
    kinds = alt.Scale(domain=["the answer", "as good", "worse"], range=[GREEN, "#8cc5ae", "#d5a9a0"])
    chart = alt.layer(
        alt.Chart(_data(bars)).mark_rule(color="#8cc5ae", strokeWidth=7, strokeCap="round", opacity=0.55)
        .encode(x=alt.X("low:Q", axis=None), x2="high:Q", y=y, description="said:N"),
        alt.Chart(_data(dots)).mark_circle(size=110, opacity=1)
        .encode(x=x, y=y, color=alt.Color("kind:N", title=None, scale=kinds, legend=_legend(3)), description="said:N"),
        alt.Chart(_data(dots)).mark_text(dy=17, fontSize=11.5, color=INK).encode(x=x, y=y, text="shown:N"),
    )  # fmt: skip
    return _finished(chart, height=alt.Step(46))


def timeline_chart(timelines: Sequence[tuple[str, Timeline]]) -> Spec | None:
    """What each purchased unit does from one weight sync to the next, all on one scale of time."""
    if not timelines:
        return None
    longest = max(timeline.length_s for _, timeline in timelines)
    rows = [[_span_row(label, timeline, i) for i in range(len(timeline.spans))] for label, timeline in timelines]
    used = {row["doing"] for part in rows for row in part}
    colours = {word: colour for word, colour in (*DOING.values(), IDLE) if word in used}
    charts = []
    for (label, timeline), part in zip(timelines, rows, strict=True):
        last = timeline is timelines[-1][1]
        charts.append(
            alt.Chart(_data(part)).mark_bar(stroke=None).encode(
                x=alt.X(
                    "start:Q", scale=alt.Scale(domain=[0, longest], nice=False),
                    title="seconds since the step before ended" if last else None, axis=alt.Axis(grid=False),
                ),
                x2="end:Q",
                y=alt.Y(
                    "lane:N", sort=list(timeline.lanes), title=None, axis=_names_axis(), scale=alt.Scale(paddingInner=0.15)
                ),
                color=alt.Color(
                    "doing:N", title=None, legend=_legend(3),
                    scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                ),
                description="said:N",
            )
            .properties(
                width=WIDTH - 90, height=alt.Step(16),
                title=alt.Title(
                    _step_title(label, timeline), anchor="start", fontSize=13
                ),
            )
        )  # fmt: skip
    return _spec(alt.vconcat(*charts, spacing=14))


def tornado_chart(result: TuneResult) -> Spec | None:
    """How much the prediction moves when an input is off, the most important input first."""
    most: dict[str, float] = {}
    for one in result.sensitivity:
        most[one.path] = max(most.get(one.path, 0.0), abs(one.kept.mean))
    order = sorted(most, key=lambda path: (-most[path], path))[:SHOWN_INPUTS]
    rows: list[dict[str, Any]] = []
    for one in result.sensitivity:
        if one.path in order:
            side = f"{100 * (one.factor - 1):+.0f} %"
            rival = "" if one.rival is None else f"; then better: {settings_in_words(one.rival)}"
            said = f"{one.path} {side} ({one.doc}): prediction {gain_with_interval(one.kept)}, gain over today "
            rows.append(
                _row(one.path, one.kept, "") | {
                    "side": side, "factor": one.factor, "mark": "" if one.rival is None else "◆",
                    "said": said + gain_with_interval(one.gain) + rival,
                }
            )  # fmt: skip
    if not rows:
        return None
    sides = [side for _, side in sorted({(row["factor"], row["side"]) for row in rows})]
    palette = [BLUE, AMBER, MUTED, RED]
    base = alt.Chart(_data(rows)).encode(
        y=alt.Y("label:N", sort=order, title=None, axis=_names_axis(limit=300)),
        yOffset=alt.YOffset("side:N", sort=sides),
    )
    x = alt.X(
        "value:Q", title="change of the predicted kept groups per chip-second", axis=alt.Axis(format="+.1~%", tickCount=6)
    )
    scale = alt.Scale(domain=sides, range=[palette[i % len(palette)] for i in range(len(sides))])
    layers = [
        base.mark_bar().encode(
            x=x, color=alt.Color("side:N", title="input", scale=scale, legend=_legend(4)), description="said:N"
        )
    ]
    bounded = [row for row in rows if "low" in row and row["high"] > row["low"]]
    if bounded:
        ends = base.properties(data=_data(bounded))
        layers.append(ends.mark_rule(color=INK, opacity=0.6).encode(x=alt.X("low:Q"), x2="high:Q"))
    marked = [row for row in rows if row["mark"]]
    if marked:
        layers.append(base.properties(data=_data(marked)).mark_text(color=RED, fontSize=13).encode(x=x, text="mark:N"))
    return _finished(alt.layer(*layers), height=alt.Step(13))


def drawn(spec: Spec, name: str, about: str) -> str:
    """A specification as SVG, `standing_alone`."""
    import vl_convert

    return standing_alone(str(vl_convert.vegalite_to_svg(spec)), name, about)


def standing_alone(svg: str, name: str, about: str) -> str:
    """An SVG named for screen readers, with tooltips, and with no identifier that another one on the page has.

    Args:
        svg: a drawn chart.
        name: unique on the page.
        about: what the chart says, in words; already escaped.

    """
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'(<path\b[^>]*?aria-label="([^"]*)"[^>]*?)(?:/>|></path>)', r"\1><title>\2</title></path>", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{about}"', 1)


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _row(label: str, interval: Interval, colour: str) -> dict[str, Any]:
    """A mean, and its ends where it has any."""
    ends = {"low": interval.low, "high": interval.high} if math.isfinite(interval.half_width) else {}
    return {"label": label, "value": interval.mean, "colour": colour, **ends}


def _gain_row(label: str, gain: Interval, words: str, colour: str) -> dict[str, Any]:
    shown = gain_with_interval(gain)
    return _row(label, gain, colour) | {"shown": shown, "said": f"{label}, {words}: {shown}"}


def _dots(rows: list[dict[str, Any]], title: str, *, zero: bool = False) -> list[Any]:
    """A dot with its interval and its number, one row each."""
    y = alt.Y("label:N", sort=[row["label"] for row in rows], title=None, axis=_names_axis())
    x = alt.X(
        "value:Q", title=title, scale=alt.Scale(zero=zero, padding=14),
        axis=alt.Axis(format=".0%" if zero else "+.1~%", tickCount=6, gridColor=GRID),
    )  # fmt: skip
    colour = alt.Color("colour:N", scale=None, legend=None)
    bounded = [row for row in rows if "low" in row]
    layers: list[Any] = []
    if bounded:
        layers.append(
            alt.Chart(_data(bounded)).mark_rule(strokeWidth=3, opacity=0.55)
            .encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
        )  # fmt: skip
    layers.append(alt.Chart(_data(rows)).mark_circle(size=120, opacity=1).encode(x=x, y=y, color=colour, description="said:N"))
    layers.append(
        alt.Chart(_data(rows)).mark_text(dy=-13, fontSize=12, color=INK).encode(x=x, y=y, text="shown:N")
    )  # fmt: skip
    return layers


def _grid(one: Flatness) -> list[Value]:
    """All values that were tried, in the order of the grid where they have one."""
    values = list(dict.fromkeys((*one.within, *one.outside)))
    numbers = [value for value in values if not isinstance(value, str)]
    return sorted(numbers) + [value for value in values if isinstance(value, str)]


def _span_row(label: str, timeline: Timeline, i: int) -> dict[str, Any]:
    span = timeline.spans[i]
    doing = DOING.get(span.state, IDLE)[0]
    why = "" if span.state in DOING else f" ({span.state.name.lower().replace('_', ' ')})"
    said = f"{label}, {span.lane}: {doing}{why}, {_seconds(span.end_s - span.start_s)}"
    return {"lane": span.lane, "start": span.start_s, "end": span.end_s, "doing": doing, "said": said}


def _step_title(label: str, timeline: Timeline) -> str:
    if timeline.steps == 1:
        return f"{label}: step {timeline.step} takes {_seconds(timeline.length_s)}"
    steps = f"steps {timeline.step} to {timeline.step + timeline.steps - 1} take {_seconds(timeline.length_s)}"
    return f"{label}: {steps}, {_seconds(timeline.length_s / timeline.steps)} each"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _data(rows: list[dict[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=rows)


def _names_axis(limit: int = SIDE) -> alt.Axis:
    return alt.Axis(ticks=False, domain=False, labelFontSize=12.5, labelLimit=limit, labelColor=INK, grid=False, labelPadding=8)


def _legend(columns: int) -> alt.Legend:
    return alt.Legend(orient="bottom", columns=columns, labelLimit=240, labelFontSize=12, symbolType="circle")


def _finished(chart: Any, *, height: object) -> Spec:
    """As wide as all others, names included."""
    return _spec(chart.properties(width=WIDTH, height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")))


def _spec(chart: Any) -> Spec:
    configured = (
        chart.configure(font="sans-serif")  # first: it replaces what was configured before
        .configure_view(strokeWidth=0)
        .configure_axis(
            gridColor=GRID, domainColor=GRID, tickColor=GRID, labelColor=INK, titleColor=MUTED, titleFontWeight="normal"
        )
        .configure_legend(titleColor=MUTED, titleFontWeight="normal")
        .configure_title(color=INK)
    )
    spec: Spec = json.loads(configured.to_json(validate=False))
    return spec
