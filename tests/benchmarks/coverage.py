"""How often the product's own intervals cover the truth: whole experiments, again and again, on fresh seeds.

    uv run python tests/benchmarks/coverage.py --experiments 1000 --json

Each experiment is what `harness simulate` does: ten replications through the actors, and the interval of kept groups per
chip-second. The truth is known in closed form: mean value analysis for the machine repairman, availability over service for a
server that breaks down and always has work. Three rates are counted: without failures; with outages, plain; with outages,
adjusted by the control variate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

for place in ("pipeline", "theory"):
    sys.path.insert(0, str(Path(__file__).parents[1] / place))

from breakdowns import TRUTH, broken_server  # noqa: E402
from queues import exponential, queue  # noqa: E402

from harness.analysis.oracles import repairman  # noqa: E402
from harness.analysis.outages import adjusted_kept  # noqa: E402
from harness.analysis.statistics import ratio_interval  # noqa: E402
from harness.run import simulate_once  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.statistics import Interval
    from harness.analysis.summary import RunSummary

REPLICATIONS = 10
CUSTOMERS, THINK_S, SERVE_S = 6, 8.0, 1.0
Row = dict[str, float]
SPACING = 1_000
"""Between the first seeds of two experiments."""


def failure_free() -> tuple[Any, float]:
    """The machine repairman: six episodes think and queue for one tool worker; 60 tasks after 20 of warm-up."""
    knobs = {"max_inflight": CUSTOMERS, "tool_workers": 1, "groups_per_step": 10}
    world = {"environments": {"reset": exponential(THINK_S)}}
    what = queue(knobs, tool={"duration": exponential(SERVE_S)}, world=world, steps=6)
    what = what.model_copy(update={"run": what.run.model_copy(update={"warmup_steps": 2})})
    return what, repairman(CUSTOMERS, THINK_S, SERVE_S)


def replications(what: Any, experiment: int) -> list[RunSummary]:
    """Ten replications of one experiment."""
    first = experiment * SPACING
    return [simulate_once(what, seed) for seed in range(first, first + REPLICATIONS)]


def plain(runs: list[RunSummary]) -> Interval:
    """Kept groups a second, as the headline has it (there are two chips)."""
    return ratio_interval([run.groups for run in runs], [run.window_s for run in runs])


def failure_free_covers(experiments: int) -> dict[str, Row]:
    """Coverage without failures."""
    what, truth = failure_free()
    return {"failure_free": rate([against(plain(replications(what, number)), truth) for number in range(experiments)])}


def outages_cover(experiments: int) -> dict[str, Row]:
    """Coverage with outages, plain and adjusted, on the same runs."""
    what = broken_server()
    shares = {outage.name: outage.down_share for outage in what.world.outages}
    simple, controlled = [], []
    for number in range(experiments):
        runs = replications(what, number)
        simple.append(against(plain(runs), TRUTH))
        found = adjusted_kept(runs, shares)
        if found is not None:
            controlled.append(against(found.interval, TRUTH / runs[0].chips))
    return {"outages_plain": rate(simple), "outages_control_variate": rate(controlled)}


def against(interval: Interval, truth: float) -> tuple[bool, float]:
    """Whether an interval covers, and its relative half width."""
    return interval.contains(truth), interval.half_width / interval.mean


def rate(hits: Sequence[tuple[bool, float]]) -> Row:
    """Share of intervals that cover, their mean relative half width, and how many there were."""
    n = len(hits)
    return {"coverage": sum(hit for hit, _ in hits) / n, "half_width": sum(width for _, width in hits) / n, "experiments": n}


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experiments", type=int, default=1000, help="whole experiments of ten replications, without failures")
    parser.add_argument("--outage-experiments", type=int, default=400, help="the same with outages")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    began = time.process_time()
    found = failure_free_covers(options.experiments) | outages_cover(options.outage_experiments)
    seconds = time.process_time() - began
    if options.json:
        print(json.dumps({"cpu_s": round(seconds, 1), "regimes": found}, indent=2))
        return
    for name, row in found.items():
        width = f"mean half width {row['half_width']:.1%}"
        print(f"{name:<26}{row['coverage']:.1%} of {row['experiments']:,.0f} intervals cover; {width}")


if __name__ == "__main__":
    main()
