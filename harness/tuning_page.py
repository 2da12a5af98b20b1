"""The page of `tune`: the answer first, one chart that tells it, then what it rests on. One file, no network, no script.

Charts are drawn here and put in as SVG. A section without data is left out, or says why it is not there.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from harness.report import page, section, split_svg, table
from harness.terminal import comparison_rows, contribution_in_words, dead_in_words, wrapped_command
from harness.tuning.answer import answer, how_sure
from harness.tuning.wording import gain_with_interval, listed, percent, settings_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.timelines import Timeline
    from harness.tuning.result import Flatness, TuneResult

STYLE = """
body { max-width: 56rem; }
figure { overflow-x: auto; } figure svg { width: auto; max-width: 100%; min-width: 40rem; }
figure:first-of-type svg { min-width: 0; }
figcaption { color: #5a6675; font-size: .9rem; } details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
.wide { overflow-x: auto; }
"""

DRAWING_S = 4.0
"""Seconds that importing the chart library and drawing all charts may take."""

NO_TIMELINE = (
    "Not drawn: no time was left to record a step with today's settings and with those found. A larger --budget has it."
)


def tuning_page(result: TuneResult, timelines: Sequence[Timeline] = ()) -> str:
    """The result of `tune` as HTML.

    Args:
        result: of the search.
        timelines: one step with today's settings and one with those found (`harness.timelines.before_and_after`); empty where
            they could not be made.

    """
    first, *others = answer(result)
    mark = '<div class="provisional">provisional</div>' if result.provisional else ""
    parts = [
        f"<h1>{_text(result.scenario)}</h1>{mark}",
        f'<p class="answer">{_text(first)}</p>',
        *(f"<p>{_text(sentence)}</p>" for sentence in others),
        *([f"<p>{_text(result.staleness_cost)}</p>"] if result.staleness_cost and result.staleness_cost not in others else []),
        _first(result),
        _compared(result),
        _front(result),
        _knobs(result),
        _split(result),
        _step(result, timelines),
        _sensitivity(result),
        section("How sure", how_sure(result)),
        _to_do(result),
    ]
    return page(f"{result.scenario}: tuned", parts, STYLE)


def _first(result: TuneResult) -> str:
    from harness.tuning_charts import first_chart

    caption = f"Lines are intervals; the grey band is what is not worth a change (±{percent(result.indifference)})."
    shown = result.objective != "idle" and result.gain is not None
    return _figure(first_chart(result), "answer", answer(result)[0], caption if shown else "Lines are intervals.")


def _compared(result: TuneResult) -> str:
    named = {path.rpartition(".")[2]: path for path in result.today}
    rows = []
    for label, before, after in comparison_rows(result):
        path = named.get(label)
        rows.append(("" if path is None else "changed" if path in result.changed else "same", (label, before, after)))
    return f'<div class="wide">{table(("", "today", "found" if result.settings else ""), rows)}</div>'


def _front(result: TuneResult) -> str:
    from harness.tuning_charts import front_chart

    lines = [
        f"Alternative {number}, {settings_in_words(other.settings)}: {gain_with_interval(other.gain)}, "
        f"lag p95 {other.lag_p95:.1f}" + ("; as good as the named one, within what matters" if other.tied else "")
        for number, other in enumerate(result.alternatives, 1)
    ]
    priced = any(point.usd_per_1000_groups for point in result.points)
    on_front = sum(point.on_front for point in result.points)
    hollow = " Hollow: measured on the seeds that chose, provisional." if not all(p.fresh for p in result.points) else ""
    caption = (
        f"{len(result.points)} settings compared; the dashed line joins the {on_front} that no other beats in gain, lag"
        f"{', cost' if priced else ''} and waste at once.{' Larger costs more.' if priced else ''}{hollow}"
    )
    chart = _figure(front_chart(result.points, result.changed), "front", "Gain over today against lag. " + caption, caption)
    more = _list(lines)
    title = "Gain against lag, cost and waste" if chart else "Also compared"
    return f"<h2>{title}</h2>{chart}{more}" if chart or more else ""


def _knobs(result: TuneResult) -> str:
    from harness.tuning_charts import contributions_chart, flatness_chart

    words = [contribution_in_words(one) for one in result.contributions]
    parts = []
    if words:
        about = "What each change is worth. " + "; ".join(words)
        chart = _figure(contributions_chart(result), "worth", about, "")
        # The chart says it all where every change was measured.
        unsaid = words if not chart else [
            word for word, one in zip(words, result.contributions, strict=True) if one.gain is None
        ]  # fmt: skip
        parts.append(f"<h2>What each change is worth, with the others in place</h2>{chart}{_list(unsaid)}")
    flat = _figure(
        flatness_chart(result.flatness), "flat", "; ".join(map(_flat_in_words, result.flatness)),
        "Each knob moved alone round the answer. Joined by a bar: no more than 1% worse. Only values that were tried.",
    )  # fmt: skip
    if flat:
        parts.append(f"<h2>How far each knob may move</h2>{flat}")
    dead = dead_in_words(result)
    if dead:
        parts.append(f"<p>{_text(f'Without any effect here: {dead}')}</p>")
    return "".join(parts)


def _split(result: TuneResult) -> str:
    bars = [("today", result.baseline)] + ([("found", result.best)] if result.best is not None else [])
    lines = (*result.bottleneck, *([result.disagreement] if result.disagreement else ()))
    from harness.tuning_charts import standing_alone

    chart = standing_alone(split_svg(bars), "split", html.escape(" ".join(result.bottleneck) or "Where chip time goes"))
    return f"<h2>Where chip time goes</h2><figure>{chart}</figure>{_list(lines)}"


def _step(result: TuneResult, timelines: Sequence[Timeline]) -> str:
    if not result.changed:
        return ""
    title = "<h2>Optimizer steps, chip by chip</h2>"
    if not timelines:
        return f"{title}<p>{_text(NO_TIMELINE)}</p>"
    from harness.tuning_charts import timeline_chart

    named = list(zip(("today", "found"), timelines, strict=False))
    about = listed(f"{label} a step takes {one.length_s / one.steps:.3g} s" for label, one in named)
    notes = [f"One simulated run (seed {named[0][1].seed}), from one weight sync to the next; no figure rests on it."]
    notes += [
        f"Weights are sent every {one.steps_per_sync} steps ({label}), so these may have no sync."
        for label, one in named
        if one.steps_per_sync > one.steps
    ]
    notes += [f"{one.left_out} more chip lanes are not shown ({label})." for label, one in named if one.left_out]
    return title + _figure(timeline_chart(named), "step", about, " ".join(notes))


def _sensitivity(result: TuneResult) -> str:
    from harness.tuning_charts import SHOWN_INPUTS, tornado_chart

    if not result.sensitivity:
        return ""
    inputs = len({one.path for one in result.sensitivity})
    caption = "Each input alone off by what the colour says." + (
        f" The {SHOWN_INPUTS} of {inputs} inputs that move it most." if inputs > SHOWN_INPUTS else ""
    )
    rivals = [
        f"With {one.doc or one.path} off by {100 * (one.factor - 1):+.0f}% a better choice is {settings_in_words(one.rival)}"
        for one in result.sensitivity
        if one.rival is not None
    ]
    said = [f"◆ {rival}." for rival in rivals] or ["No input that was moved makes another of the compared settings better."]
    chart = _figure(tornado_chart(result), "inputs", f"How the prediction moves with its inputs. {said[0]}", caption)
    return f"<h2>If an input is off</h2>{chart}{_list(said)}"


def _to_do(result: TuneResult) -> str:
    if not result.changed:
        return ""
    command = "\n".join(wrapped_command(result.command))
    title = "To see it again" if result.effort.final_seeds else "To try it"
    peers = "".join(
        f"<details><summary>In the names of {_text(name)}</summary><pre>{_text(patch)}</pre></details>"
        for name, patch in result.peers.items()
    )
    study = f"<p>Study kept in <code>{_text(result.study)}</code>.</p>" if result.study else ""
    patch = f"<h2>As a change to the scenario</h2><pre>{_text(result.patch)}</pre>{peers}" if result.patch else ""
    return f"{patch}<h2>{title}</h2><pre>{_text(command)}</pre>{study}"


def _flat_in_words(one: Flatness) -> str:
    worse = f", worse at {listed(map(str, one.outside))}" if one.outside else ""
    return f"{one.path.rpartition('.')[2]} as good at {listed(map(str, one.within))}{worse}"


def _figure(spec: dict[str, object] | None, name: str, about: str, caption: str) -> str:
    if spec is None:
        return ""
    from harness.tuning_charts import drawn

    under = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return f"<figure>{drawn(spec, name, html.escape(about))}{under}</figure>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _text(words: object) -> str:
    return html.escape(str(words), quote=False)
