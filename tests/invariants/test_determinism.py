"""The command that counts hashes: a small size of it, and that it would tell two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = Path(__file__).parents[1] / "benchmarks" / "determinism.py"


def ask(*options):
    done = subprocess.run(
        [sys.executable, COMMAND, "--json", *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def unsteady():
    """A program whose log depends on the process."""
    return [(0, 99, hash("a string") % 1000, 0, 0, 0, 0, 0)]


def test_a_run_leaves_one_log_in_every_process():
    code, said = ask("--runs", "3", "--program", "tests.pipeline.tiny_world:whole_pipeline")
    assert (code, said["hashes"], said["runs"]) == (0, 1, 3)
    assert said["events"] > 1000


def test_a_log_that_depends_on_the_process_is_told():
    code, said = ask("--runs", "4", "--program", "tests.invariants.test_determinism:unsteady")
    assert code == 1
    assert said["hashes"] > 1
