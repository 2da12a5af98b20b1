"""What the event loop costs: calibrated on this machine, and tested on rows that the calibration has not seen.

    uv run python tests/benchmarks/host_loop.py [--json] [--repeats N]

The pipeline's own actors (`host_turn.py`: an engine that answers at once, tools that only sleep) run on the live engine and in
virtual time, with 96 episodes in flight and mean tool latencies from 50 ms down to 1 ms, so that the loop is from mostly idle
to full. The two costs of `[world.host]` are fitted to the rows `FITTED`, to their turns a second and to the loop's busy
share; the other rows are predicted.

The live engine runs on a clock that shows processor time and skips every wait (`ProcessorClock`), so that it does not matter
what else the machine does, nor that epoll wakes a loop that only sleeps in whole milliseconds; what is outside wakes it at
once.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import trio
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness.core.host import HostCosts
from harness.engines import sim
from harness.engines._collector import rarer_collections
from harness.engines.live import SystemClockRuntime
from tests.benchmarks.host_turn import Source, performers, pipeline_of

LATENCIES_MS = (50.0, 20.0, 10.0, 5.0, 2.0, 1.0)
FITTED = (50.0, 10.0, 1.0)
EPISODES = 96
STEPS, WARMUP_STEPS = 10, 2


class ProcessorClock(trio.abc.Clock):
    """Shows the time that this thread has computed, and skips every wait: a machine that does nothing else."""

    def __init__(self) -> None:
        self._skipped_ns = 0

    def start_clock(self) -> None:
        """Nothing to do."""

    def now_ns(self) -> int:
        """Nanoseconds computed and skipped."""
        return time.thread_time_ns() + self._skipped_ns

    def current_time(self) -> float:
        """The same for trio, in seconds."""
        return self.now_ns() / 1e9

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Be there at once."""
        if deadline < math.inf:
            self._skipped_ns += max(0, math.ceil(deadline * 1e9) - self.now_ns())
        return 0.0 if deadline < math.inf else math.inf

    @property
    def waited_ns(self) -> int:
        """All that was skipped."""
        return self._skipped_ns


class ProcessorRuntime(SystemClockRuntime):
    """The live runtime on that clock."""

    def __init__(self, clock: ProcessorClock) -> None:
        super().__init__(performers(), 0, None)
        self._clock = clock

    def start(self) -> None:
        """Time zero is now."""
        super().start()
        self._start_ns = self._clock.now_ns()

    def now(self) -> int:
        """Read once in a step, as the live engine does."""
        if self._instant_ns < 0:
            self._instant_ns = self._clock.now_ns() - self._start_ns
        return self._instant_ns

    def loop_busy_ns(self) -> int:
        """What was not skipped."""
        return self.now() - self._clock.waited_ns


class Seen(NamedTuple):
    """One run: turns a second, and the loop's busy share."""

    turns_per_s: float
    busy: float


def seen(report: Any) -> Seen:
    """What a run says of its window."""
    return Seen(report.tally.turns / (report.end_ns - report.start_ns) * 1e9, report.pools["host loop"])


def played(latency_ms: float) -> Seen:
    """Run the pipeline live with tools of one mean latency."""
    clock = ProcessorClock()
    runtime = ProcessorRuntime(clock)

    async def root() -> Any:
        runtime.start()
        return await runtime.supervise(pipeline_of, (EPISODES, Source(latency_ms / 1e3), STEPS, WARMUP_STEPS))

    gc.collect()
    with rarer_collections():
        return seen(trio.run(root, clock=clock, instruments=[runtime.instrument()]))


def predicted(latency_ms: float, pass_s: float, step_s: float) -> Seen:
    """The same in virtual time, with the loop charged."""
    host = HostCosts(round(pass_s * 1e9), round(step_s * 1e9))
    source = Source(latency_ms / 1e3)
    return seen(sim.run(pipeline_of, EPISODES, source, STEPS, WARMUP_STEPS, performers=performers(), host=host))


def measured(repeats: int) -> dict[float, Seen]:
    """The live rows: the fastest of some repeats, as caches that others have emptied can only slow a run."""
    runs = [[played(latency) for latency in LATENCIES_MS] for _ in range(repeats)]
    return {latency: max(column) for latency, column in zip(LATENCIES_MS, zip(*runs, strict=True), strict=True)}


def fitted(rows: dict[float, Seen]) -> tuple[float, float]:
    """Seconds of a pass and of a step that explain the rows `FITTED` best."""

    def residuals(logs: Any) -> list[float]:
        pass_s, step_s = math.exp(logs[0]), math.exp(logs[1])
        found = []
        for latency in FITTED:
            ours, row = predicted(latency, pass_s, step_s), rows[latency]
            found += [math.log(ours.turns_per_s / row.turns_per_s), ours.busy - row.busy]
        return found

    begin = [math.log(40e-6), math.log(15e-6)]
    pass_log, step_log = least_squares(residuals, begin, diff_step=0.02, max_nfev=15).x
    return math.exp(pass_log), math.exp(step_log)


def main() -> int:
    """Measure, fit, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="live repeats of each row (default 5)")
    options = parser.parse_args()
    rows = measured(options.repeats)
    pass_s, step_s = fitted(rows)
    table = []
    for latency, row in rows.items():
        free, charged = predicted(latency, 0.0, 0.0), predicted(latency, pass_s, step_s)
        table.append(
            {
                "latency_ms": latency,
                "fitted": latency in FITTED,
                "live_turns_per_s": round(row.turns_per_s, 1),
                "free_error": round(free.turns_per_s / row.turns_per_s - 1, 4),
                "error": round(charged.turns_per_s / row.turns_per_s - 1, 4),
                "live_busy": round(row.busy, 3),
                "predicted_busy": round(charged.busy, 3),
            }
        )
    said = {"per_pass_s": round(pass_s, 7), "per_step_s": round(step_s, 7), "rows": table}
    if options.json:
        print(json.dumps(said))
        return 0
    print(f"per_pass_s = {pass_s:.3g}, per_step_s = {step_s:.3g}")
    print(f"{'latency':>10}{'turns/s':>10}{'free loop':>11}{'charged':>9}{'busy':>7}{'predicted':>11}")
    for item in table:
        print(
            f"{item['latency_ms']:>7.0f} ms{item['live_turns_per_s']:>10,.0f}{item['free_error']:>+11.1%}{item['error']:>+9.1%}"
            f"{item['live_busy']:>7.0%}{item['predicted_busy']:>11.0%}  {'fitted' if item['fitted'] else 'not seen by the fit'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
