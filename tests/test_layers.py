"""What may import what, where a contract of the import linter cannot say it: per command, per call and per module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = "pipeline.group_size=2 pipeline.groups_per_step=2 pipeline.max_inflight=8 run.learner_steps=2 run.warmup_steps=0"
ACTORS = sorted((ROOT / "pipeline" / "actors").glob("*.py"))
POLICIES = sorted((ROOT / "pipeline" / "policies").glob("*.py"))


def modules_after(code):
    """What a fresh interpreter has imported after some code, by top-level name and in full."""
    probe = f"{code}\nimport sys\nprint(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_nothing_heavy():
    loaded = modules_after("from harness.__main__ import main\nassert main(['--help']) == 0")
    assert "harness.core.errors" in loaded
    assert not loaded & {"numpy", "polars", "pydantic", "scipy", "trio", "simpy", "optuna", "rich", "cyclopts", "jax"}


def test_importing_the_package_imports_nothing_of_it():
    loaded = modules_after("import harness\nassert 'simulate' in dir(harness)")
    assert {name for name in loaded if name.partition(".")[0] in ("harness", "pipeline")} == {"harness"}


def test_the_run_path_imports_no_statistics_no_search_no_chart_and_no_jax():
    code = f"""
import harness
scenario = harness.load('scenarios/fully_async.toml', overrides={TINY.split()})
assert harness.simulate_once(scenario, 0).learner_steps == 2
"""
    loaded = modules_after(code)
    assert {"simpy", "numpy"} <= loaded
    assert not loaded & {"jax", "scipy", "optuna", "polars", "altair", "trio", "cyclopts"}


def imports_of(path):
    """Every module that a file imports, wherever in it, also for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def known(name, *allowed):
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


SYNTAX = (
    *("__future__", "typing", "collections", "dataclasses", "enum", "contextlib"),
    *("functools", "itertools", "operator", "bisect", "heapq", "math", "fractions"),
)
"""Standard modules that neither look at a clock nor draw, wait, read or write."""


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_policies_know_policies_and_plain_data(path):
    allowed = (*SYNTAX, "pipeline.policies", "harness.core.errors", "harness.core.units")
    assert {name for name in imports_of(path) if not known(name, *allowed)} == set()
    tree = ast.parse(path.read_text("utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


@pytest.mark.parametrize("path", ACTORS, ids=lambda path: path.stem)
def test_actors_know_the_waist_and_their_pipeline(path):
    allowed = (*SYNTAX, "harness.core", "pipeline")
    found = imports_of(path)
    assert {name for name in found if not known(name, *allowed)} == set()
    assert not {name for name in found if known(name, "pipeline.build", "pipeline.numerics", "pipeline.performers")}


@pytest.mark.parametrize("package", ["actors", "policies"])
def test_there_is_something_to_look_at(package):
    assert len({"actors": ACTORS, "policies": POLICIES}[package]) > 5
