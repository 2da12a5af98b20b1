"""What a person sees on a terminal of 80 columns. The words come from `harness.tuning.wording`."""

from __future__ import annotations

import math
import re
import shlex
import sys
from typing import IO, TYPE_CHECKING, cast

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.analysis.agreement_words import agreement_rows
from harness.analysis.money import CHIPS, SANDBOXES, TOOL_CALLS, total
from harness.analysis.waste import TRAINED, trained_share_of_long
from harness.tuning.answer import answer, flat_in_words, how_sure, off_in_words
from harness.tuning.result import WITHIN
from harness.tuning.wording import (
    CLASSES,
    EPISODE_STATES,
    cause,
    gain_with_interval,
    limits_in_words,
    listed,
    percent,
    pool,
    provisional,
    settings_in_words,
    share_with_interval,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import TextIO

    from harness.analysis.agreement import Agreement
    from harness.analysis.statistics import Controlled, Interval
    from harness.analysis.stopping import Precision
    from harness.tuning.measured import Measured
    from harness.tuning.result import Contribution, TuneResult
    from harness.tuning.search import Progress

WIDTH = 80
"""Columns where there is no terminal to ask."""

WIDEST = 110
"""Longer lines are hard to read, however wide the terminal."""

BAR_WIDTH = 24
COLOURS = {"kept": "green", "in_flight": "cyan", "discarded": "red", "overhead": "yellow", "idle": "bright_black"}
SMALLEST_CAUSE = 0.005
"""Causes below half a percent of chip time are put together."""


def console(stream: TextIO | None = None) -> Console:
    """Standard output, or another stream; no wider than is easy to read, plain when it is not a terminal."""
    out = stream or sys.stdout
    if not out.isatty():
        return _Printer(file=cast("IO[str]", _Trimmed(out)), highlight=False, width=WIDTH)
    terminal = Console(file=out, highlight=False)
    return _Printer(file=out, highlight=False, width=min(terminal.width, WIDEST))


class _Printer(Console):
    """Leaves a broken pipe to the caller, who may have files to write before the end."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Trimmed:
    """A text stream that leaves out the blanks with which tables fill their lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r" +(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, part = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[part] if part else "")


def print_simulation(
    out: Console,
    name: str,
    measured: Measured,
    warmup_steps: int,
    notes: Sequence[str] = (),
    agreement: Agreement | None = None,
    precision: Precision | None = None,
    adjusted: Controlled | None = None,
    question: str = "",
) -> None:
    """The result of `simulate`.

    Args:
        out: where to.
        name: of the scenario.
        measured: over its replications.
        warmup_steps: learner steps cut from the start.
        notes: what else a reader must know.
        agreement: what was expected by hand, beside it.
        precision: how a wish for one ended.
        adjusted: kept groups per chip-second, adjusted for outages.
        question: that the scenario asks.

    """
    rate = measured.kept_groups_per_chip_s
    out.print(
        f"[bold]{escape(name)}[/bold]: the accelerators are idle [bold]{share_with_interval(measured.idle_share)}[/bold]."
    )
    if question:
        out.print(Text(question, style="italic"))
    for line in limits_in_words(measured, agreement):
        out.print(Text(line))
    out.print()
    out.print(split_table(measured))
    out.print()
    facts = _grid()
    facts.add_row("kept groups", f"{per_chip_hour(rate.mean)} per chip-hour{plus_minus(rate.mean, rate.half_width)}")
    if adjusted is not None:
        steady = adjusted.interval
        words = f"{per_chip_hour(steady.mean)} per chip-hour{plus_minus(steady.mean, steady.half_width)}"
        facts.add_row("", f"{words}, adjusted for how much of the outages was met")
    facts.add_row("step time", f"{measured.window_s / measured.replications / measured.learner_steps:.4g} s per learner step")
    lag = f"mean {measured.lag_mean:.2f}, p95 {measured.lag_p95:.1f}, largest {measured.lag_max} optimizer steps"
    facts.add_row("lag", f"{lag} ({measured.lag_in_queue_mean:.2f} of the mean in the buffer)")
    facts.add_row(
        "tokens", f"{measured.generated_length_mean:,.0f} an episode generated, {measured.trained_length_mean:,.0f} trained"
    )
    for label, words in (*books_rows(measured), *bubble_rows(measured), *loss_rows(measured), *money_rows(measured)):
        facts.add_row(label, words)
    for reason, groups in measured.dropped_groups.items():
        if groups:
            facts.add_row("dropped", f"{groups:.1f} groups a replication: {reason.replace('_', ' ')}")
    out.print(facts)
    if measured.utilisation:
        out.print()
        out.print(_utilisation(measured))
    if measured.episode_s:
        out.print()
        out.print(Text("An episode's time, on average", style="bold"))
        out.print(_episode_time(measured))
    if agreement is not None:
        out.print()
        out.print(Text("Expected by hand", style="bold"))
        by_hand = _grid()
        for label, words in agreement_rows(agreement):
            by_hand.add_row(label, words)
        out.print(by_hand)
    out.print()
    length = f"{measured.learner_steps} learner steps after {warmup_steps} of warm-up"
    amount = f"{measured.groups:,.0f} groups, {measured.episodes:,.0f} episodes, {measured.turns:,.0f} turns each"
    count = "1 replication" if measured.replications == 1 else f"{measured.replications} replications"
    out.print(f"{count} of {length}; {amount}.", style="dim")
    if precision is not None:
        style = "dim" if precision.reached else "yellow"
        out.print(Text(f"{'' if precision.reached else '! '}{capitalised(precision.said)}.", style=style))
    warned = (agreement.warning,) if agreement is not None and agreement.warning else ()
    for note in (*provisional(measured), *measured.warnings, *notes, *warned):
        out.print(Text(f"! {note}", style="yellow"))
    if agreement is not None and agreement.error:
        out.print(Text(f"! {agreement.error}", style="bold red"))


def money_rows(measured: Measured) -> list[tuple[str, str]]:
    """What it cost, in words; nothing where the scenario has no prices."""
    usd = measured.usd
    if not usd:
        return []
    chips = {key.removeprefix(CHIPS): paid for key, paid in usd.items() if key.startswith(CHIPS)}
    split = ", ".join(f"{CLASSES[klass]} {dollars(chips[klass])}" for klass in CLASSES if klass in chips)
    parts = [f"chips {dollars(math.fsum(chips.values()))} ({split})"] if chips else []
    parts += [f"{key.replace('_', ' ')} {dollars(usd[key])}" for key in (SANDBOXES, TOOL_CALLS) if key in usd]
    return [
        ("cost", f"{dollars(total(usd))} a replication: {', '.join(parts)}"),
        (
            "per 1,000 trained",
            f"{dollars(measured.usd_per_1000_groups)} groups, {dollars(measured.usd_per_1000_episodes)} episodes",
        ),
    ]


def books_rows(measured: Measured) -> list[tuple[str, str]]:
    """What became of tokens and episodes, how lengths are biased, and what full slots would save: for every front end."""
    rows = []
    for label, books in (("tokens made", measured.tokens_by_fate), ("episodes", measured.episodes_by_fate)):
        whole = math.fsum(books.values())
        if whole:
            parts = sorted(books.items(), key=lambda item: (-item[1], item[0]))
            said = ", ".join(f"{fate.replace('_', ' ')} {percent(part / whole)}" for fate, part in parts)
            rows.append((label, f"{whole:,.0f} a replication: {said}"))
    trained = measured.mean_lengths.get(TRAINED)
    wasted = [(fate, mean) for fate, mean in measured.mean_lengths.items() if fate not in (TRAINED, "evaluation")]
    if trained is not None and wasted:
        said = ", ".join(f"{fate} {mean:,.0f}" for fate, mean in wasted)
        rows.append(("waste by length", f"trained {trained:,.0f} tokens an episode on average, {said}"))
        long = trained_share_of_long(measured.lengths, trained)
        if long is not None:
            rows.append(("", f"of those of {long[0]:,} tokens and more {percent(long[1])} were trained on"))
    if measured.underfill_share is not None:
        said = "of chip time went into kept decoding that full slots would have done without"
        rows.append(("underfill", f"{percent(measured.underfill_share)} {said}"))
    return rows


def loss_rows(measured: Measured) -> list[tuple[str, str]]:
    """Chips that were lost, and what that took back; nothing where none were."""
    lost = measured.chips_lost
    if not lost:
        return []
    rows = [
        ("slices lost", f"{lost['slices']:.1f} a replication, at work again {lost['recovery_s'] / 60:.1f} min later on average")
    ]
    if lost["rollbacks"]:
        rows.append(("rollbacks", f"{lost['rollbacks']:.1f} a replication, which took back {lost['steps']:.1f} learner steps"))
    return rows


def bubble_rows(measured: Measured) -> list[tuple[str, str]]:
    """How long roles that share their chips stood still; nothing where they have chips of their own."""
    if not measured.role_bubbles:
        return []
    said = ", ".join(f"{role} {percent(share)}" for role, share in measured.role_bubbles.items())
    return [("role bubbles", f"{said} of the time; they take turns on the same chips, which need not be idle then")]


def dollars(usd: float) -> str:
    """An amount of money: cents where they matter, three digits where they do not."""
    return f"${usd:,.0f}" if usd >= 1000 else f"${usd:.2f}" if usd >= 1 else f"${usd:.3g}"


def capitalised(sentence: str) -> str:
    """A sentence with its first letter large."""
    return sentence[0].upper() + sentence[1:]


def per_chip_hour(per_chip_s: float) -> str:
    """A rate that a person can hold in mind."""
    return f"{per_chip_s * 3600:.4g}"


def plus_minus(mean: float, half_width: float) -> str:
    """The half width, relative to the mean."""
    finite = mean > 0 and half_width < float("inf")
    return f" ± {percent(half_width / mean)}" if finite else " (one run, no interval)"


def split_table(measured: Measured) -> Table:
    """The chip-second split as bars, idle and overhead by cause."""
    table = _grid()
    for klass, words in CLASSES.items():
        share = measured.share(klass)
        if share == 0 and klass != "idle":
            continue
        colour = COLOURS[klass]
        table.add_row(words, percent(share), Text(bar(share), style=colour))
        for name, part in _shown_causes(measured, klass):
            table.add_row(
                Text(f"  {name}", style="dim"), Text(percent(part), style="dim"), Text(bar(part), style=f"dim {colour}")
            )
    table.columns[1].justify = "right"
    return table


def _shown_causes(measured: Measured, klass: str) -> Iterator[tuple[str, float]]:
    causes = [(name, part) for name, part in measured.causes(klass) if name and part > 0]
    if len(causes) == 1 and causes[0][0] == "":
        return
    rest = 0.0
    for name, part in causes:
        if part >= SMALLEST_CAUSE:
            yield cause(name), part
        else:
            rest += part
    if rest >= SMALLEST_CAUSE / 10:
        yield "other", rest


def _utilisation(measured: Measured) -> Table:
    table = _grid()
    for name, share in measured.utilisation.items():
        table.add_row(pool(name), percent(share), Text(bar(share), style="blue"))
    table.columns[1].justify = "right"
    return table


def episode_time_rows(measured: Measured) -> list[tuple[str, float]]:
    """What an episode does, in words, and for how many seconds on average; the longest first, the shortest together."""
    whole = math.fsum(measured.episode_s.values())
    shown = sorted(measured.episode_s.items(), key=lambda pair: -pair[1])
    rest = math.fsum(seconds for _, seconds in shown if seconds < SMALLEST_CAUSE * whole)
    large = [(EPISODE_STATES.get(key, cause(key)), seconds) for key, seconds in shown if seconds >= SMALLEST_CAUSE * whole]
    return [*large, *([("other", rest)] if rest else [])]


def _episode_time(measured: Measured) -> Table:
    table = _grid()
    whole = math.fsum(measured.episode_s.values())
    for words, seconds in episode_time_rows(measured):
        table.add_row(Text(f"  {words}", style="dim"), f"{seconds:.3g} s", Text(bar(seconds / whole), style="green"))
    table.columns[1].justify = "right"
    return table


def _grid() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)


def print_tuning(out: Console, result: TuneResult) -> None:
    """The result of `tune`: the answer, the comparison, why, how sure, what to do."""
    first, *others = answer(result)
    out.print(Text(first, style="bold"))
    for sentence in others:
        out.print(Text(sentence))
    out.print()
    out.print(comparison_table(result))
    if result.contributions:
        _section(out, "What each change is worth, with the others in place")
        for contribution in result.contributions:
            _indented(out, contribution_in_words(contribution))
    dead = dead_in_words(result)
    if dead:
        _indented(out, f"Without any effect here: {dead}")
    for alternative in result.alternatives:
        tied = "as good as it, within what matters" if alternative.tied else "also compared"
        gained = f"{gain_with_interval(alternative.gain)}, lag p95 {alternative.lag_p95:.1f}"
        words = f"{settings_in_words(alternative.settings)}: {gained}"
        _indented(out, f"{tied[0].upper()}{tied[1:]}: {words}")
    flat = flat_in_words(result)
    if flat:
        _section(out, "How far each may move, with the others in place")
        for line in flat:
            _indented(out, line)
    _section(out, "Where chip time goes")
    for line in result.bottleneck:
        _indented(out, line)
    if result.disagreement:
        _indented(out, result.disagreement)
    off = off_in_words(result)
    if off:
        _section(out, "If what was measured is off")
        for line in off:
            _indented(out, line)
    _section(out, "How sure")
    for line in how_sure(result):
        _indented(out, line)
    if result.changed:
        _section(out, "To see it again" if result.effort.final_seeds else "To try it")
        for line in wrapped_command(result.command):
            out.print(Text("  " + line), soft_wrap=True)


def print_files(out: Console, folder: Path, result: TuneResult) -> None:
    """Where the patch lies, in the scenario's own names and in those of others."""
    _section(out, "To take it over")
    _indented(out, f"{folder / 'patch.toml'}: any command puts it over the scenario with --patch")
    if result.peers:
        _indented(out, f"{folder / 'peers'}: the same in the names of {listed(result.peers)}")


def wrapped_command(command: str, width: int = WIDTH - 4) -> list[str]:
    """A shell command over several lines, broken between options with backslashes."""
    words, parts = shlex.split(command), list[str]()
    for word in words:
        quoted = shlex.quote(word)
        if parts and not word.startswith("--") and parts[-1].startswith("--") and " " not in parts[-1]:
            parts[-1] += " " + quoted
        else:
            parts.append(quoted)
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " \\"
            lines.append("  " + part)
        else:
            lines[-1] += " " + part
    return lines


def _section(out: Console, title: str) -> None:
    out.print()
    out.print(Text(title, style="bold"))


def dead_in_words(result: TuneResult) -> str:
    """Names of the knobs without effect, but for those that the answer changes because others need it."""
    return ", ".join(path.rpartition(".")[2] for path in result.dead_knobs if path not in result.changed)


def _indented(out: Console, line: str) -> None:
    out.print(Padding(Text(line), (0, 0, 0, 2)))


def contribution_in_words(one: Contribution) -> str:
    """`max_staleness 0 → 2: +31% (+28 to +34%)`."""
    head = f"{one.path.rpartition('.')[2]} {one.before} → {one.after}"
    if one.needed:
        return f"{head}: the other changes need it"
    if one.gain is None:
        return f"{head}: not measured alone, no time was left"
    return f"{head}: {gain_with_interval(one.gain)}{_unsettled(one.gain)}"


def _unsettled(gain: Interval) -> str:
    """What a contribution does not show."""
    if gain.low > 0 or not math.isfinite(gain.half_width):
        return ""
    if gain.high < 0:
        return "; better as it was"
    if gain.mean < WITHIN and gain.high < 2 * WITHIN:
        return "; it could as well stay as it is"
    return f"; {gain.n} pairs do not settle it"


def comparison_rows(result: TuneResult) -> list[tuple[str, str, str]]:
    """Label, today, found; the rows of the comparison, for every front end."""
    before, after = result.baseline, result.best
    rows = [
        (path.rpartition(".")[2], str(result.today[path]), str((result.settings or {}).get(path, ""))) for path in result.today
    ]
    measures: tuple[tuple[str, Callable[[Measured], str]], ...] = (
        ("idle", lambda m: share_with_interval(m.idle_share)),
        ("kept groups per chip-hour", lambda m: per_chip_hour(m.kept_groups_per_chip_s.mean)),
        ("kept work", lambda m: percent(m.share("kept"))),
        ("overhead", lambda m: percent(m.share("overhead"))),
        ("work still in flight", lambda m: percent(m.share("in_flight"))),
        ("work later discarded", lambda m: percent(m.share("discarded"))),
        ("lag: mean, p95, largest", lambda m: f"{m.lag_mean:.1f}, {m.lag_p95:.1f}, {m.lag_max}"),
        ("tokens an episode, made", lambda m: f"{m.generated_length_mean:,.0f}"),
        ("tokens an episode, trained", lambda m: f"{m.trained_length_mean:,.0f}"),
    )
    rows += [(label, of(before), of(after) if after is not None else "") for label, of in measures]
    return rows


def comparison_table(result: TuneResult) -> Table:
    """Today against what was found."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("today")
    table.add_column("found" if result.settings else "")
    names = {path.rpartition(".")[2]: path for path in result.today}
    for label, before, after in comparison_rows(result):
        path = names.get(label)
        changed = path is not None and path in result.changed
        style = "bold" if changed else "dim" if path is not None else ""
        table.add_row(label, before, after, style=style)
    return table


class ProgressLine:
    """One line on standard error while a search runs; nothing when that is not a terminal."""

    def __init__(self, *, wanted: bool) -> None:
        self._console = Console(file=sys.stderr)
        self._status = self._console.status("starting") if wanted and self._console.is_terminal else None

    def context(self) -> AbstractContextManager[object]:
        """Shown while this is open."""
        from contextlib import nullcontext

        return self._status if self._status is not None else nullcontext()

    def count(self, what: str) -> Callable[[int, int], None]:
        """For work of a known number of parts: (done, all)."""

        def show(done: int, of: int) -> None:
            if self._status is not None:
                self._status.update(f"{what}: {done} of {of}")

        return show

    def hear(self, progress: Progress) -> None:
        """Show where it is."""
        if self._status is None:
            return
        best = f", best so far {100 * progress.leading:+.1f}%" if progress.leading is not None else ""
        time = f"{progress.elapsed_s:.0f} of {progress.budget_s:.0f} s"
        self._status.update(
            f"{progress.phase}: {progress.candidates} settings, {progress.evaluations} simulations{best} · {time}"
        )
