"""What a person sees of a live run: a few lines that change while it goes on, and a summary at its end."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.tuning.wording import cause, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.live_run import Glance, LiveRun

SHOWN_CAUSES = 4
CURVE_BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40


class LiveDisplay:
    """Shows how a run stands, on standard error; quiet when that is not a terminal. Warnings go above it."""

    def __init__(self, *, wanted: bool, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._live = (
            Live(console=self._console, refresh_per_second=4, transient=True) if wanted and self._console.is_terminal else None
        )
        self._rewards: list[float] = []
        self._step = -1

    @contextmanager
    def context(self) -> Iterator[None]:
        """Shown while this is open."""
        handler = _Handler(self._console)
        logger = logging.getLogger("rollout_harness")
        logger.addHandler(handler)
        try:
            if self._live is None:
                yield
            else:
                with self._live:
                    yield
        finally:
            logger.removeHandler(handler)

    def hear(self, glance: Glance) -> None:
        """Show it."""
        if glance.step > self._step and glance.reward is not None:
            self._step = glance.step
            self._rewards.append(glance.reward)
        if self._live is not None:
            self._live.update(self.view(glance))

    def view(self, glance: Glance) -> Group:
        """The lines of one moment."""
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(glance.phase, style="bold"),
            ProgressBar(total=max(glance.steps, 1), completed=glance.step, width=24),
            f"{glance.step} of {glance.steps} steps" if glance.steps else "",
            f"{glance.elapsed_s:.0f} s" if glance.elapsed_s else "",
        )
        if glance.phase in ("compiling", "warm start"):
            return Group(head)
        return Group(head, self._table(glance))

    def _table(self, glance: Glance) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row("reward", f"{_number(glance.reward)}  {curve(self._rewards)}")
        if glance.evaluations:
            table.add_row("held out", ", ".join(f"{reward:.2f} (step {step})" for step, reward in glance.evaluations[-3:]))
        table.add_row("generated", f"{glance.tokens_per_s:,.0f} tokens/s, {glance.running} episodes running")
        table.add_row("idle", idle_in_words(glance.idle))
        table.add_row("buffer", f"{glance.buffered} of {glance.capacity} groups")
        table.add_row("staleness", f"{glance.lag_mean:.1f} steps on average, {glance.lag_max:.0f} at most")
        if glance.faults:
            table.add_row("failures", ", ".join(f"{count} x {kind}" for kind, count in sorted(glance.faults.items())))
        return table


class _Handler(logging.Handler):
    """Prints a warning above what is shown."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        self._console.print(Text(f"{record.levelname.lower()}: {record.getMessage()}"))


def curve(values: list[float], width: int = CURVE_WIDTH) -> str:
    """The course of values from 0 to 1 as a line of blocks."""
    if not values:
        return ""
    size = max(1, math.ceil(len(values) / width))
    means = [
        math.fsum(values[start : start + size]) / len(values[start : start + size]) for start in range(0, len(values), size)
    ]
    top = max(1.0, *means) if means else 1.0
    return "".join(CURVE_BLOCKS[min(7, max(0, int(mean / top * 8)))] for mean in means)


def idle_in_words(idle: dict[str, float]) -> str:
    """The share of chip time that is idle, and its largest causes."""
    total = math.fsum(idle.values())
    largest = sorted(idle.items(), key=lambda item: -item[1])[:SHOWN_CAUSES]
    causes = ", ".join(f"{cause(name)} {percent(share)}" for name, share in largest if share >= 0.005)
    return percent(total) + (f": {causes}" if causes else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


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
    out.print(f"Chips idle {idle_in_words(idle)}.")
    out.print(
        f"{summary.groups / summary.window_s:.2f} kept groups per second, {summary.tokens_made / summary.window_s:,.0f} tokens "
        f"per second; lag {summary.lag_mean:.1f} steps on average, {summary.lag_max} at most."
    )
    if done.faults:
        out.print("Failures outside: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(done.faults.items())) + ".")
    if done.stopped:
        out.print(f"To go on: harness run SCENARIO --resume {done.out}")
    elif done.out is not None:
        out.print(f"In {done.out}: metrics.jsonl, policy/, record/, scenario.json.")


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
        "out": str(done.out) if done.out is not None else None,
    }
