"""Servers outside: how far the throughput of a live run is from the simulated one.

    uv run python tests/benchmarks/external.py [--json] [--repeat N] [--scale X] [--only NAME]

Each scenario is run live, over HTTP against a stub server on the loopback interface, and on `sim` with the modelled server,
with the same drawn episodes. Printed are tokens and groups a second of both, and live over simulated - 1, as the median of N
runs with different seeds; `worst_error` is the largest of the medians. `--scale` multiplies all durations: what the host adds
to each wait (a millisecond on a free machine, several on a busy one) stays the same. The `…_model_error` are of the same live
runs on a clock that jumps, where what the host takes is not counted; `worst_model_error` is the largest of their medians.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median

for folder in ("external", "stubs", "pipeline"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

from twin_scenarios import SCENARIOS, twin  # noqa: E402
from twins import compared, lived_in_no_time  # noqa: E402


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description="Live against simulated throughput with servers outside.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each scenario, with seeds of their own")
    parser.add_argument("--scale", type=float, default=2.0, help="factor on all durations; 1 is a decode step of 20 ms")
    parser.add_argument("--only", choices=list(SCENARIOS), help="one scenario")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for name in [options.only] if options.only else SCENARIOS:
        what = twin(**SCENARIOS[name], scale=options.scale)
        runs = [compared(what, seed) for seed in range(options.repeat)]
        models = [compared(what, seed, lived_in_no_time) for seed in range(options.repeat)]
        for key in runs[0]:
            figures[f"{name}_{key}"] = round(median(run[key] for run in runs), 4)
            if key.endswith("_error"):
                figures[f"{name}_{key.replace('_error', '_model_error')}"] = round(median(run[key] for run in models), 4)
        errors = {key: value for key, value in figures.items() if key.startswith(name) and key.endswith("error")}
        print(", ".join(f"{key} {value:+.2%}" for key, value in errors.items()), file=sys.stderr)
    model = {key: value for key, value in figures.items() if key.endswith("_model_error")}
    figures["worst_error"] = max(
        (value for key, value in figures.items() if key.endswith("_error") and key not in model), key=abs
    )
    figures["worst_model_error"] = max(model.values(), key=abs)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for key, value in figures.items():
            print(f"{key:32} {value:10.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
