"""A page that says the same as the terminal, with a chart: one file, no network, no script.

The chart is drawn here and put in as SVG, so the page opens anywhere and keeps its look in an archive or an e-mail.
"""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from harness.analysis.agreement_words import agreement_rows
from harness.terminal import (
    books_rows,
    bubble_rows,
    episode_time_rows,
    loss_rows,
    money_rows,
    per_chip_hour,
    plus_minus,
)
from harness.tuning.wording import (
    CLASSES,
    cause,
    limits_in_words,
    percent,
    pool,
    provisional,
    share_with_interval,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.analysis.agreement import Agreement
    from harness.tuning.measured import Measured

SHOWN_CAUSES = 3
"""Causes of idle time with a colour of their own; the rest share one."""

COLOURS = {
    "kept work": "#2a7f62",
    "work still in flight": "#8cc5ae",
    "work later discarded": "#b5442f",
    "overhead": "#e0a12b",
}
IDLE_COLOURS = ("#46566b", "#75869c", "#a3b0c1", "#cfd7e1")
"""Of idle time by cause, the largest first: one hue, because it is one thing."""

PALE = ("#8cc5ae", "#e0a12b", "#a3b0c1", "#cfd7e1")
"""Colours on which a number is dark."""

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2430; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.05rem; font-weight: 600; color: #5a6675; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.answer { font-size: 1.3rem; line-height: 1.4; font-weight: 600; margin: 0 0 .75rem; }
p, ul { margin: .4rem 0; } ul { padding-left: 1.2rem; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid #e3e8ee; }
th { font-weight: 600; } tr.changed td { font-weight: 600; } tr.same td { color: #77828f; }
pre { background: #f3f5f8; padding: .75rem 1rem; overflow-x: auto; border-radius: 4px; font-size: .9rem; }
.provisional { display: inline-block; background: #fff3d6; color: #7a5200; border-radius: 4px; padding: .1rem .5rem;
  font-size: .85rem; font-weight: 600; margin-bottom: .5rem; }
footer { margin-top: 2.5rem; color: #77828f; font-size: .85rem; }
"""


def simulation_page(
    scenario: str, measured: Measured, warmup_steps: int, agreement: Agreement | None = None, question: str = ""
) -> str:
    """The result of `simulate` as HTML.

    Args:
        scenario: its name.
        measured: over the replications.
        warmup_steps: learner steps cut from the start of each.
        agreement: what was expected by hand, beside it.
        question: that the scenario asks.

    """
    rate = measured.kept_groups_per_chip_s
    facts = (
        ("kept groups per chip-hour", per_chip_hour(rate.mean) + plus_minus(rate.mean, rate.half_width)),
        ("seconds a learner step", f"{measured.step_s:.4g}"),
        ("lag: mean, p95, largest", f"{measured.lag_mean:.2f}, {measured.lag_p95:.1f}, {measured.lag_max}"),
        ("tokens an episode, made", f"{measured.generated_length_mean:,.0f}"),
        ("tokens an episode, trained", f"{measured.trained_length_mean:,.0f}"),
        *books_rows(measured),
        *bubble_rows(measured),
        *loss_rows(measured),
        *money_rows(measured),
        *((f"{pool(name)} in use", percent(share)) for name, share in measured.utilisation.items()),
    )
    length = (
        f"{measured.replications} replications of {measured.learner_steps} learner steps after {warmup_steps} of warm-up; "
        f"each {measured.groups:,.0f} groups, {measured.episodes:,.0f} episodes and {measured.turns:,.0f} turns."
    )
    parts = [
        f"<h1>{_text(scenario)}</h1>",
        f'<p class="answer">The accelerators are idle {_text(share_with_interval(measured.idle_share))}.</p>',
        *([f"<p><em>{_text(question)}</em></p>"] if question else []),
        *(f"<p>{_text(line)}</p>" for line in limits_in_words(measured, agreement)),
        _figure([("", measured)]),
        table(("", ""), [("", fact) for fact in facts]),
        *_by_hand(agreement),
        "<h2>An episode's time, on average</h2>",
        table(("", ""), [("", (words, f"{seconds:.3g} s")) for words, seconds in episode_time_rows(measured)]),
        section("How sure", (length, *provisional(measured), *measured.warnings)),
    ]
    return page(f"{scenario}: simulated", parts)


def _by_hand(agreement: Agreement | None) -> tuple[str, ...]:
    if agreement is None:
        return ()
    rows = [("", row) for row in agreement_rows(agreement)]
    said = [line for line in (agreement.warning, agreement.error) if line]
    return ("<h2>Expected by hand</h2>", table(("", ""), rows), *(f"<p>{_text(line)}</p>" for line in said))


def _text(words: object) -> str:
    return html.escape(str(words), quote=False)


def section(title: str, lines: Iterable[str]) -> str:
    """A heading and a list; nothing where there are no lines."""
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<h2>{_text(title)}</h2><ul>{items}</ul>" if items else ""


def table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A table; each row with a class of its style."""
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join(
        f'<tr class="{klass}">' + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for klass, row in rows
    )
    top = f"<thead><tr>{cells}</tr></thead>" if any(head) else ""
    return f"<table>{top}<tbody>{body}</tbody></table>"


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """The whole document; the title is escaped here, the parts are HTML; more style goes with it."""
    from harness.__main__ import version_text

    body = "\n".join(part for part in parts if part)
    footer = f"<footer>Rollout Harness {_text(version_text())}</footer>"
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}{style}</style></head>\n<body>\n{body}\n{footer}\n</body>\n</html>\n"
    )


def _figure(bars: Sequence[tuple[str, Measured]]) -> str:
    return f"<figure>{split_svg(bars)}</figure>"


def split_rows(bars: Sequence[tuple[str, Measured]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Data of the chart, and the colour of each part in the order in which they are stacked.

    The idle causes that get a colour are the largest over all bars, so that a colour means one thing.
    """
    weight: dict[str, float] = {}
    for _, measured in bars:
        for name, share in measured.causes("idle"):
            weight[name] = weight.get(name, 0.0) + share
    top = sorted((name for name in weight if name), key=lambda name: -weight[name])[:SHOWN_CAUSES]
    rows: list[dict[str, Any]] = []
    for label, measured in bars:
        parts = {CLASSES[klass]: measured.share(klass) for klass in CLASSES if klass != "idle"}
        causes = dict(measured.causes("idle"))
        parts |= {f"idle: {cause(name)}": causes.get(name, 0.0) for name in top}
        parts["idle: other"] = sum(share for name, share in causes.items() if name not in top)
        rows += [{"bar": label, "part": part, "share": share, "shown": _shown(share)} for part, share in parts.items()]
    idle = [f"idle: {cause(name)}" for name in top]
    colours = COLOURS | dict(zip(idle, IDLE_COLOURS, strict=False)) | {"idle: other": IDLE_COLOURS[-1]}
    used = {row["part"] for row in rows if row["share"] >= 0.0005}
    order = {part: colour for part, colour in colours.items() if part in used}
    for row in rows:
        row["order"] = list(colours).index(row["part"])
        row["ink"] = "#1c2430" if colours[row["part"]] in PALE else "white"
    return [row for row in rows if row["part"] in order], order


def _shown(share: float) -> str:
    """A number inside the bar where there is room for one."""
    return percent(share) if share >= 0.05 else ""


def split_svg(bars: Sequence[tuple[str, Measured]]) -> str:
    """The chip-second split, one stacked bar each, as SVG."""
    import altair as alt
    import vl_convert

    rows, colours = split_rows(bars)
    labels = [label for label, _ in bars]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("bar:N", sort=labels, title=None, axis=alt.Axis(ticks=False, domain=False, labelFontSize=13)),
        x=alt.X(
            "share:Q",
            stack="zero",
            title="share of chip time",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(format="%", tickCount=5, grid=False),
        ),
        order=alt.Order("order:Q"),
    )
    color = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(orient="bottom", columns=2, labelLimit=320, labelFontSize=12, symbolType="square"),
    )
    numbers = base.mark_text(fontSize=13).encode(
        x=alt.X("share:Q", stack="zero", bandPosition=0.5),
        text="shown:N",
        detail="part:N",
        color=alt.Color("ink:N", scale=None, legend=None),
    )
    chart = (
        alt.layer(base.mark_bar(height=34).encode(color=color), numbers)
        .resolve_scale(color="independent")
        .properties(width=620, height=alt.Step(48))
    )
    spec = json.loads(chart.configure(font="sans-serif").configure_view(strokeWidth=0).to_json(validate=False))
    return str(vl_convert.vegalite_to_svg(spec))
