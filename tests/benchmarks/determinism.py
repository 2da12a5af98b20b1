"""One scenario in many fresh processes: one hash of the canonical log, whatever the heap and the hash seed.

    uv run python tests/benchmarks/determinism.py [--runs 100] [--program MODULE:FUNCTION] [--json]

Every run is a process of its own with another hash seed, a disturbed heap and another setting of the garbage collector
(`tests/differential/fresh.py`). The default program is a run of a world in which everything that this version simulates is
switched on (`whole_world`). Ends with 1 when there is more than one hash.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.core.events import Event

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.benchmarks.determinism:whole_world"
SCENARIOS = ("fully_async", "flaky_environment", "spot_slices", "colocated", "web_research_agent")
LEARNER_STEPS = 2


def whole_world() -> list[Event]:
    """Shipped scenarios, some learner steps each, one after the other: failures, outages, lost slices, shared chips."""
    import harness
    from harness.core.events import MemoryRecorder

    events: list[Event] = []
    for name in SCENARIOS:
        recorder = MemoryRecorder()
        scenario = harness.load(ROOT / "scenarios" / f"{name}.toml")
        harness.simulate_once(scenario, 1, learner_steps=LEARNER_STEPS, warmup_steps=0, recorder=recorder)
        events += recorder.events
    return events


def fresh_hash(program: str, number: int) -> str:
    """Python version, number of events and hash, from a process of its own. Raises `RuntimeError` when it fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), sysconfig.get_paths()["purelib"])),
        "PYTHONHASHSEED": "random" if number % 2 else str(number),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "tests.differential.fresh", program, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"run {number} failed:\n{done.stderr}")
    return " ".join(done.stdout.split()[:3])


def measure(program: str, runs: int, workers: int) -> Counter[str]:
    """How many runs left which log."""
    with ThreadPoolExecutor(workers) as pool:
        return Counter(pool.map(lambda number: fresh_hash(program, number), range(runs)))


def main() -> int:
    parser = argparse.ArgumentParser(description="One hash from many fresh processes.")
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="processes (default 100)")
    parser.add_argument("--program", default=PROGRAM, metavar="MODULE:FUNCTION", help="what to run (default: whole_world)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="at a time (default: one a core)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    if options.runs < 1 or options.workers < 1:
        parser.error("--runs and --workers are at least 1")
    began = time.monotonic()
    hashes = measure(options.program, options.runs, options.workers)
    version, events, digest = hashes.most_common(1)[0][0].split()
    if options.json:
        said = {
            "runs": options.runs, "hashes": len(hashes), "hash": digest, "events": int(events), "python": version,
            "program": options.program, "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        sys.stdout.write(json.dumps(said) + "\n")
    else:
        sys.stdout.write(f"{options.runs} processes, {len(hashes)} hash(es); {events} events, {digest}, Python {version}\n")
        for log, count in hashes.items() if len(hashes) > 1 else ():
            sys.stdout.write(f"  {count} x {log}\n")
    return 0 if len(hashes) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
