from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from harness.analysis import ledger, selection, statistics, summary
from harness.core import blame
statistics.mean_interval([1.0, 2.0, 4.0])
print(*sorted({"numpy", "polars", "scipy", "simpy", "trio"} & sys.modules.keys()))
"""


def test_the_end_of_a_run_needs_no_heavy_import():
    """Every worker process of a search ends its runs with these: importing SciPy alone takes longer than a short run."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
