"""A page with every fit drawn against its data: one file, no network, no script."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from harness.calibration.terminal import HEADER, LEGEND, answer, endings, remarks, rows
from harness.report import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.calibration.calibrate import Calibration

MOST_CHARTS = 24
"""Laws that are drawn, those with the most rows; more make a page that nobody reads."""

MEASURED_COLOUR, FITTED_COLOUR = "#75869c", "#b5442f"
_WIDTH, _HEIGHT, _COLUMNS = 230, 160, 3
_STYLE = f"""{STYLE}
body {{ max-width: 62rem; }} td, th {{ font-size: .9rem; }} td:not(:first-child) {{ white-space: nowrap; }}
figure svg {{ width: auto; max-width: 100%; }}"""


def calibration_page(done: Calibration) -> str:
    """The result of `calibrate` as HTML."""
    from harness.__main__ import version_text

    drawn = list(_curves(done))
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows(done))
    head = "".join(f"<th>{_text(name)}</th>" for name in HEADER)
    left = len(list(rows(done))) - len(drawn)
    parts = [
        f"<h1>{_text(done.source.name)}, {_text(done.dated)}</h1>",
        f'<p class="answer">{_text(answer(done))}</p>',
        f"<p>{_text(_outages(done))}</p>" if done.outages is not None else "",
        "<h2>Fit against data</h2>",
        "<p>Share of the rows that are larger than x, both axes logarithmic: a tail that the law misses shows at the bottom "
        "right. Dots are measured, the line is the law.</p>",
        f"<figure>{_svg(drawn)}</figure>" if drawn else "",
        f"<p>{left} more, of fewer rows, are not drawn.</p>" if left > 0 else "",
        "<h2>How wrong each law is</h2>",
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        f"<p>{_text(LEGEND)}</p>",
        _list("How steps end", endings(done)),
        _list("What to know", remarks(done)),
        f"<footer>Rollout Harness {_text(version_text())}. Written to {_text(done.out)}.</footer>",
    ]
    joined = "\n".join(part for part in parts if part)
    title = _text(f"{done.source.name}: calibrated")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{joined}\n</body>\n</html>\n"
    )


def _list(title: str, lines: list[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if items else ""


def _outages(done: Calibration) -> str:
    assert done.outages is not None
    words = done.outages.words
    return f"{words[0].upper()}{words[1:]}."


def _text(words: object) -> str:
    return html.escape(str(words), quote=False)


def _curves(done: Calibration) -> Iterator[tuple[str, str, tuple[tuple[float, float, float], ...]]]:
    """(name, unit, curve) of the laws with the most rows, in their order."""
    found = [(step.name, "s", step.fit.rows, step.fit.curve) for step in done.steps]
    if done.gap is not None:
        found.append(("gap between arrivals", "s", done.gap.rows, done.gap.curve))
    found += [(count.column, "tokens", count.rows, count.curve) for count in done.counts]
    least = sorted((count for _, _, count, _ in found), reverse=True)[:MOST_CHARTS][-1]
    for name, unit, count, curve in found:
        if count >= least and curve:
            yield name, unit, curve


def _svg(drawn: list[tuple[str, str, tuple[tuple[float, float, float], ...]]]) -> str:
    """Small charts side by side, as SVG."""
    import altair as alt
    import vl_convert

    charts = [_chart(name, unit, curve) for name, unit, curve in drawn[:MOST_CHARTS]]
    lines = [alt.hconcat(*charts[i : i + _COLUMNS], spacing=24) for i in range(0, len(charts), _COLUMNS)]
    whole = alt.vconcat(*lines, spacing=28).configure_view(strokeWidth=0).configure(font="sans-serif")
    return str(vl_convert.vegalite_to_svg(json.loads(whole.to_json(validate=False))))


def _chart(name: str, unit: str, curve: tuple[tuple[float, float, float], ...]) -> Any:
    import altair as alt

    values = [
        {"x": x, "beyond": 1 - p, "which": which}
        for p, measured, fitted in curve
        for which, x in (("measured", measured), ("fitted", fitted))
        if x > 0
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X(
            "x:Q", scale=alt.Scale(type="log", nice=False), title=unit, axis=alt.Axis(tickCount=4, format="~g", grid=False)
        ),
        y=alt.Y(
            "beyond:Q",
            scale=alt.Scale(type="log"),
            title="larger than x",
            axis=alt.Axis(format="~%", tickCount=4, gridColor="#e3e8ee"),
        ),
    )
    dots = base.transform_filter("datum.which == 'measured'").mark_point(
        filled=True, size=22, color=MEASURED_COLOUR, opacity=0.9
    )
    line = base.transform_filter("datum.which == 'fitted'").mark_line(color=FITTED_COLOUR, strokeWidth=1.8)
    shown = name if len(name) <= 34 else name[:33] + "…"
    return alt.layer(dots, line).properties(
        width=_WIDTH, height=_HEIGHT, title=alt.TitleParams(shown, fontSize=12, anchor="start")
    )
