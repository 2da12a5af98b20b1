"""What calibrated laws are off by on rows that they have not seen, and what reading a large file costs.

::

    uv run python tests/benchmarks/calibration.py --data DIR     # the three files of measurements
    uv run python tests/benchmarks/calibration.py --rows 1000000
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import harness
from harness.calibration.terminal import calibration_json

ROOT = Path(__file__).parents[2]
BASE = ROOT / "scenarios" / "coding_agent.toml"
FILES: dict[str, dict[str, str]] = {
    "sandbox_tasks.csv": {"duration": "value", "by": "task"},
    "llm_requests_azure_code_2023.csv": {
        "arrival": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens",
    },
    "agent_steps.csv": {"duration": "execution_time_s", "by": "command_word"},
}  # fmt: skip


def held_out(data: Path, out: Path) -> dict[str, Any]:
    """Name of each law, its rows, the law taken, and (law's, parts' own) error of p50, p90 and p99."""
    found: dict[str, Any] = {}
    for name, columns in FILES.items():
        done = calibration_json(harness.calibrate(data / name, base=BASE, out=out, **columns))
        fits = [*done["steps"], *([done["gap"] | {"name": "gap"}] if done["gap"] else []), *done["counts"]]
        found[name] = {
            fit.get("name", fit.get("column")): {key: fit[key] for key in ("rows", "chosen", "held_out_error", "unlike")}
            for fit in fits
        }
    return found


def large(rows: int, folder: Path) -> dict[str, float]:
    """Seconds to calibrate so many rows with outcome, time and run, and the most memory that this process ever took."""
    rng = np.random.default_rng(0)
    tools = rng.choice(["read", "edit", "test", "build", "search", "clone"], rows, p=[0.3, 0.2, 0.2, 0.1, 0.15, 0.05])
    scale = {"read": -1.5, "edit": -1.0, "test": 2.0, "build": 3.0, "search": 0.5, "clone": 1.0}
    took = np.minimum(np.exp(rng.normal(pl.Series(tools).replace_strict(scale).to_numpy(), 0.9)), 300.0)
    frame = pl.DataFrame(
        {
            "run": [f"r{i}" for i in rng.integers(0, 200, rows)],
            "tool": tools,
            "seconds": took.round(4),
            "status": np.where(took >= 300, "timeout", np.where(rng.random(rows) < 0.02, "error", "ok")),
            "at": np.cumsum(rng.exponential(0.05, rows)).round(4),
        }
    )
    path = folder / "large.csv"
    frame.write_csv(path)
    wall, cpu = time.perf_counter(), time.process_time()
    harness.calibrate(
        path, base=BASE, out=folder / "o.toml", duration="seconds", by="tool", outcome="status", time="at", runs="run"
    )  # fmt: skip
    return {
        "rows": rows,
        "file_mb": round(path.stat().st_size / 1e6, 1),
        "wall_s": round(time.perf_counter() - wall, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the three files")
    parser.add_argument("--rows", type=int, default=0, help="rows of a made file to time")
    given = parser.parse_args()
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if given.data is not None:
            answer["held_out"] = held_out(given.data, Path(folder) / "o.toml")
        if given.rows:
            answer["large"] = large(given.rows, Path(folder))
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
