"""Theory at full size, for `reports/theory.md`.

    uv run python tests/benchmarks/theory.py means        systems of queueing theory, twenty replications each
    uv run python tests/benchmarks/theory.py repairman    the machine repairman at thirty loads
    uv run python tests/benchmarks/theory.py scenarios    expected by hand beside simulated, over scenarios/*.toml

All intervals of a table hold at once with 99 % (Bonferroni). `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

for place in ("pipeline", "theory"):
    sys.path.insert(0, str(Path(__file__).parents[1] / place))

import means  # noqa: E402
from queues import Path as Run  # noqa: E402

from harness.analysis.agreement import agree  # noqa: E402
from harness.analysis.statistics import mean_interval, simultaneous  # noqa: E402
from harness.expected import expected  # noqa: E402
from harness.run import load, simulate_once  # noqa: E402

ROOT = Path(__file__).parents[2]
REPLICATIONS, LOADS, LARGER = 20, range(1, 31), 3
Row = dict[str, Any]


def compared(cases: list[means.Case], replications: int) -> list[Row]:
    """Each case's mean in theory, and the interval of the runs."""
    confidence = simultaneous(len(cases), 0.99)
    rows = []
    for case in cases:
        interval = mean_interval([case.measure(Run(case.scenario, seed)) for seed in range(replications)], confidence)
        inside = interval.low <= case.truth * (1 + case.bias) and interval.high >= case.truth
        rows.append({"system": case.name, "theory": case.truth, "mean": interval.mean, "half_width": interval.half_width,
                     "inside": inside})  # fmt: skip
    return rows


def scenario_rows(names: list[str], replications: int, steps: int | None) -> list[Row]:
    """Expected and simulated complete groups an hour of each scenario."""
    rows = []
    for path in sorted((ROOT / "scenarios").glob("*.toml")):
        if names and path.stem not in names:
            continue
        what = load(path)
        runs = [simulate_once(what, what.run.seed + n, learner_steps=steps) for n in range(replications)]
        found = agree(expected(what), runs)
        rows.append({
            "scenario": path.stem, "limit": found.expected.narrowest.name,
            "at_most": found.expected.bound_groups_per_s * 3600, "expected": found.expected.groups_per_s * 3600,
            "simulated": found.complete_groups_per_s * 3600, "kept": found.kept_groups_per_s.mean * 3600,
            "difference": found.difference, "loop_expected": found.expected.loop_utilisation,
            "loop_simulated": found.loop_utilisation, "reasons": list(found.reasons), "warning": found.warning,
            "error": found.error,
        })  # fmt: skip
        print(f"{path.stem}: {found.difference:+.1%}", file=sys.stderr)
    return rows


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["means", "repairman", "scenarios"])
    parser.add_argument("names", nargs="*", help="scenarios; all by default")
    parser.add_argument("--replications", type=int, default=REPLICATIONS, help="of each system, or of each scenario")
    parser.add_argument("--steps", type=int, help="optimizer steps of a scenario; its own by default")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if options.what == "scenarios":
        rows = scenario_rows(options.names, options.replications, options.steps)
    elif options.what == "repairman":
        rows = compared([means.repairman_case(n, 20) for n in LOADS], options.replications)
    else:
        larger = [means.open_cases(16 * LARGER), means.sharing_cases(10 * LARGER), means.group_cases(6 * LARGER)]
        rows = compared([case for some in larger for case in some], options.replications)
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
