"""A pipeline of a user's own: the one of the README runs as it stands there, and what is wrong is said of the user's line."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path

import pytest

import harness
from harness.core.errors import ConfigError
from harness.own_pipeline import find
from pipeline.build import Pipeline

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scenarios" / "fully_async.toml"
TINY = (
    "pipeline.group_size=2", "pipeline.groups_per_step=2", "pipeline.max_inflight=16", "pipeline.buffer_capacity=8",
    "run.learner_steps=3", "run.warmup_steps=1",
)  # fmt: skip
EXAMPLE = re.findall(r"```python\n(from pipeline\.build import .*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes modules into the current folder, and forgets them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    names = []

    def write(name, text):
        Path(f"{name}.py").write_text(text)
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


# ── as the README has it ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_one_of_the_readme_is_short():
    (text,) = EXAMPLE
    assert len(text.splitlines()) <= 25


def test_it_is_simulated_and_its_own_knob_does_something(written):
    written("my_pipeline", EXAMPLE[0])
    own = "my_pipeline:Spilling"
    shares = {}
    for value in (1, 64):
        scenario = harness.load(SCENARIO, overrides=[*TINY, f"pipeline.spill_at={value}"], pipeline=own)
        run = harness.simulate(scenario, replications=1, pipeline=own, workers=1, check=True)
        shares[value] = run.summaries[0].chip_ns
        assert run.agreement is None
        assert any("nothing is expected by hand" in note for note in run.notes)
    assert shares[1] != shares[64]
    ours = harness.simulate_once(harness.load(SCENARIO, overrides=TINY), 0)
    assert shares[64] == ours.chip_ns  # a limit that is never reached changes nothing
    with pytest.raises(ConfigError, match="spill_at"):
        harness.load(SCENARIO, overrides=["pipeline.spill_at=0"], pipeline=own)
    with pytest.raises(ConfigError, match="spill_at: is not a known field"):
        harness.load(SCENARIO, overrides=["pipeline.spill_at=8"])
    with pytest.raises(ConfigError, match=r"needs the knobs of .*; the scenario was loaded with PipelineConfig"):
        harness.simulate(harness.load(SCENARIO, overrides=TINY), pipeline=own)


def test_it_is_tuned_in_other_processes_with_its_own_knob(written, tmp_path):
    written("my_pipeline", EXAMPLE[0])
    own = "my_pipeline:Spilling"
    scenario = harness.load(SCENARIO, overrides=TINY, pipeline=own)
    result = harness.tune(
        scenario, budget_s=15, knobs=["spill_at=4,8,16"], pipeline=own, workers=1, sensitivity=False, study=tmp_path / "study"
    )
    assert set(result.today) == {"pipeline.spill_at"}
    assert result.effort.failed == 0
    assert result.effort.candidates
    assert result.by_hand is None or result.by_hand.ruled_out == 0
    with pytest.raises(ConfigError, match="study"):  # ours is other code
        harness.tune(harness.load(SCENARIO, overrides=TINY), budget_s=5, study=tmp_path / "study")


def test_a_study_is_of_all_the_source_that_a_pipeline_is_made_of(written):
    written("my_helper", "from my_constants import ONE\n")
    written("my_constants", "ONE = 1\n")
    written(
        "my_own", "import my_helper\nfrom pipeline.build import Pipeline\n\nclass Mine(Pipeline):\n    one = my_helper.ONE\n"
    )
    own = find("my_own:Mine")
    before = own.fingerprint
    Path("my_stranger.py").write_text("TWO = 2\n")
    assert own.fingerprint == before
    Path("my_constants.py").write_text("ONE = 2\n")
    assert own.fingerprint != before


# ── what is wrong ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD = """\
from pipeline.build import Pipeline
from pipeline.policies.routing import Router

class Raises(Router):
    def route(self, episode, loads, up):
        return {}["nothing"]

class Far(Router):
    def route(self, episode, loads, up):
        return 99

class RaisesLater(Pipeline):
    def router(self):
        return Raises(self.config.router_policy, self.hardware.replicas)

class GoesFar(Pipeline):
    def router(self):
        return Far(self.config.router_policy, self.hardware.replicas)

def raises(rt, config, hardware, source):
    raise ValueError("no such thing")

def number(rt, config, hardware, source):
    return 3

class Plain:
    def __init__(self, rt, config, hardware, source):
        pass

    def run(self, **asked):
        return None

class Reportless(Plain):
    async def run(self, **asked):
        return None

class OtherKnobs(Pipeline):
    config_type = dict

def two(rt, config):
    pass

five = 5
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad", "is not module:build"),
        ("nothing_there:x", "module 'nothing_there' was not found"),
        ("bad:Lacking", "bad has no Lacking"),
        ("bad:five", "type int, and that cannot be called"),
        ("bad:two", "cannot be called with (rt, config, hardware, source)"),
        ("bad:OtherKnobs", "config_type is no PipelineConfig"),
        ("bad:raises", "bad.py:21: --pipeline: fails: ValueError: no such thing"),
        ("bad:number", "has no run: the int that was built"),
        ("bad:Plain", "run is not async in the Plain"),
        ("bad:Reportless", "its run returned a NoneType"),
        ("bad:RaisesLater", "bad.py:6: --pipeline: fails: KeyError: 'nothing'"),
        ("bad:GoesFar", "the run failed with what this pipeline gave"),
        ("broken:x", "broken.py:2: --pipeline: module 'broken' fails on import: ZeroDivisionError"),
        ("unfinished:x", "unfinished.py:1: --pipeline: module 'unfinished' fails on import: SyntaxError"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(written, name, said):
    written("bad", BAD)
    written("broken", "import os\n1 / 0\n")
    written("unfinished", "x = (\n")
    with pytest.raises(ConfigError) as caught:
        loaded_and_simulated(name)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def loaded_and_simulated(name):
    return harness.simulate(harness.load(SCENARIO, overrides=TINY, pipeline=name), replications=1, pipeline=name, workers=1)


def test_the_place_is_said_by_other_processes_too(written):
    written("bad", BAD)
    scenario = harness.load(SCENARIO, overrides=TINY)
    with pytest.raises(Exception, match=r"bad\.py:6: --pipeline: fails: KeyError") as caught:
        harness.simulate(scenario, replications=2, pipeline="bad:RaisesLater", workers=2)
    assert caught.value.exit_code == 2


# ── handed over, and written from nothing ───────────────────────────────────────────────────────────────────────────────────


class Wholly:
    """Steps on the runtime alone, and borrows the report of ours."""

    def __init__(self, rt, config, hardware, source):
        self.rt, self.inner = rt, Pipeline(rt, config, hardware, source)

    async def run(self, **asked):
        await self.rt.sleep(1_000_000_000)
        return await self.inner.run(**asked)


def test_a_class_that_is_none_of_ours_runs_too():
    scenario = harness.load(SCENARIO, overrides=TINY)
    ours = harness.simulate_once(scenario, 0)
    own = harness.simulate_once(scenario, 0, pipeline=Wholly, check=True)
    assert own.learner_steps == ours.learner_steps == 3
    assert own.total_s > 0


def test_a_class_goes_by_its_name_to_other_processes():
    own = find(Wholly)
    assert pickle.loads(pickle.dumps(own)) == own


def test_what_other_processes_could_not_find_is_refused():
    class Local(Pipeline):
        """Inside a function."""

    scenario = harness.load(SCENARIO, overrides=TINY)
    assert harness.simulate(scenario, replications=1, pipeline=Local, workers=1).summaries
    with pytest.raises(ConfigError, match="cannot be found by other processes"):
        harness.simulate(scenario, pipeline=Local)
