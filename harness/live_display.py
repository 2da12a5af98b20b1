"""What a person sees of a live run: a few lines that change while it goes on, and a summary at its end."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.terminal import WIDEST
from harness.tuning.wording import cause, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from harness.live_run import Glance, LiveRun

SHOWN_CAUSES = 3
SHOWN_EVALUATIONS = 4
CURVE_BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40
BAR_WIDTH = 20
ROOM_FOR_BAR = 72
"""Columns below which there is no bar."""

LABEL_WIDTH = 12
REFRESHES_PER_S = 2
UNITS = {
    "loading": "", "compiling": "programs", "warm start": "supervised steps", "saving": "", "training": "steps",
    "evaluating": "steps", "stopping": "steps",
}  # fmt: skip
"""What a phase counts."""

OUTSIDE = ("loading", "compiling", "warm start", "saving")
"""Phases in which no pipeline runs."""


class LiveDisplay:
    """Shows how a run stands, on standard error; quiet when that is not a terminal. Warnings go above it.

    Args:
        wanted: False for warnings alone; what environments and loggers print then goes to standard error as well, so that
            standard output holds one JSON object and nothing else.
        console: to print on; standard error by default, and nowhere where that is closed.
        clock: seconds, for the time that passes while nothing is heard.

    """

    def __init__(self, *, wanted: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or _stderr()
        self._clock = clock
        self._rewards: list[float] = []
        self._step = -1
        self._glance: Glance | None = None
        self._heard_s = clock()
        self._keeps_stdout = not wanted
        self._live = self._make_live() if wanted and self._console.is_terminal else None

    def _make_live(self) -> Live:
        return Live(
            console=self._console, refresh_per_second=REFRESHES_PER_S, transient=True, get_renderable=self._now,
            redirect_stdout=bool(sys.stdout) and sys.stdout.isatty(),  # what goes elsewhere is left alone
        )  # fmt: skip

    @contextmanager
    def context(self) -> Iterator[None]:
        """Shown while this is open."""
        handler = _Handler(self._console)
        logger = logging.getLogger("rollout_harness")
        logger.addHandler(handler)
        propagated, logger.propagate = logger.propagate, False  # a library that logs on its own must not say it a second time
        try:
            with self._live or contextlib.nullcontext(), self._stdout():
                yield
        finally:
            logger.propagate = propagated
            logger.removeHandler(handler)

    def _stdout(self) -> AbstractContextManager[object]:
        if not self._keeps_stdout:
            return contextlib.nullcontext()
        return contextlib.redirect_stdout(cast("IO[str]", _Forgiving(sys.stderr)))

    def hear(self, glance: Glance) -> None:
        """Take how it stands now; it is drawn at the next refresh. Quick, and from any thread."""
        if glance.step > self._step and glance.reward is not None:
            self._step = glance.step
            self._rewards.append(glance.reward)
        self._glance, self._heard_s = glance, self._clock()

    def _now(self) -> Group:
        """What is drawn at a refresh: time goes on while nothing is heard."""
        glance = self._glance
        if glance is None:
            return Group()
        return self.view(glance, glance.elapsed_s + self._clock() - self._heard_s)

    def view(self, glance: Glance, elapsed_s: float) -> Group:
        """The lines of one moment, no wider than the console."""
        facts = Table.grid(padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True, min_width=LABEL_WIDTH - 2, style="dim")
        facts.add_column(max_width=self._width - LABEL_WIDTH)
        if glance.detail:
            facts.add_row("", Text(glance.detail))
        for label, text in self._facts(glance) if glance.phase not in OUTSIDE else ():
            facts.add_row(label, Text(text))
        if glance.stall:
            facts.add_row(Text("stalled", style="bold yellow"), Text(glance.stall, style="yellow"))
        return Group(self._head(glance, elapsed_s), facts)

    def _head(self, glance: Glance, elapsed_s: float) -> Table:
        head = Table.grid(padding=(0, 2, 0, 0))
        counted = f"{glance.step} of {glance.steps} {UNITS.get(glance.phase, '')}".rstrip() if glance.steps else ""
        cells: list[RenderableType] = [Text(f"{glance.phase:<{LABEL_WIDTH - 2}}", style="bold"), counted, duration(elapsed_s)]
        if glance.steps and self._width >= ROOM_FOR_BAR:
            cells.insert(1, ProgressBar(glance.steps, min(glance.step, glance.steps), width=BAR_WIDTH))
        head.add_row(*cells)
        return head

    @property
    def _width(self) -> int:
        return min(self._console.width, WIDEST)

    def _facts(self, glance: Glance) -> Iterator[tuple[str, str]]:
        if glance.reward is not None:
            room = max(0, min(CURVE_WIDTH, self._width - LABEL_WIDTH - 8))
            yield "reward", f"{glance.reward:.3f}  {curve(self._rewards, room)}"
        if glance.evaluations:
            shown = glance.evaluations[-SHOWN_EVALUATIONS:]
            yield "held out", ", ".join(f"{reward:.3f} (step {step})" for step, reward in shown)
        yield "generated", f"{glance.tokens_per_s:,.0f} tokens/s"
        yield "idle", idle_in_words(glance.idle) + " of chip time"
        waiting = ", ".join(f"{count} wait for {what}" for what, count in glance.waiting.items())
        yield "episodes", f"{glance.running} running" + (f"; {waiting}" if waiting else "")
        yield "buffer", f"{glance.buffered} of {glance.capacity} groups"
        yield "staleness", f"{glance.lag_mean:.1f} steps on average, {glance.lag_max:.0f} at most"
        if glance.faults:
            yield "failures", faults_in_words(glance.faults)


def _stderr() -> Console:
    """Standard error, whatever becomes of it: a run does not end because nobody looks any more."""
    return Console(file=cast("IO[str]", _Forgiving(sys.stderr)), highlight=False)


class _Forgiving:
    """A text stream that may be closed, or never was open."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"


class _Handler(logging.Handler):
    """Prints a warning above what is shown."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        self._console.print(Text(f"{record.levelname.lower()}: {record.getMessage()}"), soft_wrap=True)


def curve(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """The course of some values as a line of blocks, from 0 to 1 or as far as they reach beyond."""
    known = [value for value in values if math.isfinite(value)]
    if not known or width < 1:
        return ""
    size = math.ceil(len(known) / width)
    means = [math.fsum(piece) / len(piece) for i in range(0, len(known), size) for piece in (known[i : i + size],)]
    low, high = min(0.0, *means), max(1.0, *means)
    last = len(CURVE_BLOCKS) - 1
    return "".join(CURVE_BLOCKS[min(last, int((mean - low) / (high - low) * len(CURVE_BLOCKS)))] for mean in means)


def duration(seconds: float) -> str:
    """`42 s`, `3:07`, `2:03:07`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def idle_in_words(idle: dict[str, float]) -> str:
    """The share of chip time that is idle, and its largest causes."""
    total = math.fsum(idle.values())
    largest = sorted(idle.items(), key=lambda item: -item[1])[:SHOWN_CAUSES]
    causes = ", ".join(f"{cause(name)} {percent(share)}" for name, share in largest if share >= 0.005)
    return percent(total) + (f" ({causes})" if causes else "")


def faults_in_words(faults: dict[str, int]) -> str:
    """What went wrong outside, and how often."""
    return ", ".join(f"{count} x {kind.replace('_', ' ')}" for kind, count in sorted(faults.items()))


def print_live(out: Console, name: str, done: LiveRun) -> None:
    """The summary of a run."""
    summary = done.summary
    ended = f"stopped by {done.stopped} after step {done.step}" if done.stopped else f"{done.step} optimizer steps"
    out.print(f"{name}: {ended}, {summary.total_s:.0f} s.")
    if done.evaluations:
        first, last = done.evaluations[0], done.evaluations[-1]
        out.print(f"Mean reward on held-out tasks: {first[1]:.3f} at step {first[0]}, {last[1]:.3f} at step {last[0]}.")
    rewards = [metrics["reward"] for metrics in done.metrics]
    if rewards:
        out.print(f"Reward of the trained samples, step by step: {curve(rewards)}")
    window_ns = max(1, sum(summary.chip_ns.values()))
    idle = {key.split(":")[1]: ns / window_ns for key, ns in summary.chip_ns.items() if key.startswith("idle:")}
    out.print(f"Chips idle: {idle_in_words(idle)}.")
    out.print(
        f"{summary.groups / summary.window_s:.2f} kept groups per second, {summary.tokens_made / summary.window_s:,.0f} tokens "
        f"per second; lag {summary.lag_mean:.1f} steps on average, {summary.lag_max} at most."
    )
    if done.faults:
        out.print(f"Failures outside: {faults_in_words(done.faults)}.")
    if done.stopped:
        out.print(f"To go on: harness run SCENARIO --resume {done.out}")
    elif done.out is not None:
        record = "record/, " if (done.out / "record").is_dir() else ""
        out.print(f"In {done.out}: metrics.jsonl, policy/, {record}scenario.json.")


def live_json(name: str, done: LiveRun) -> dict[str, Any]:
    """The same as plain data."""
    summary = done.summary
    return {
        "schema": 1,
        "kind": "run",
        "scenario": name,
        "step": done.step,
        "stopped": done.stopped,
        "evaluations": [
            {"step": step, "reward": reward if math.isfinite(reward) else None, "failed": failed}
            for step, reward, failed in done.evaluations
        ],
        "reward": [metrics["reward"] for metrics in done.metrics],
        "kept_groups_per_s": summary.groups / summary.window_s if summary.window_s else None,
        "window_s": summary.window_s,
        "total_s": summary.total_s,
        "chip_ns": summary.chip_ns,
        "lag_mean": summary.lag_mean,
        "lag_max": summary.lag_max,
        "dropped_groups": summary.dropped_groups,
        "settled": summary.settled,
        "failures": done.faults,
        "events_hash": summary.events_hash,
        "weights": done.weights,
        "out": str(done.out) if done.out is not None else None,
    }
