"""Whose study it is: one process at a time, one version of the code, one scenario, whatever a session wishes."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

import pipeline
from harness.__main__ import main
from harness.core.errors import ConfigError
from harness.run import load
from harness.tuned import study_of
from harness.tuning import study as studies
from harness.tuning.bench import Job
from harness.tuning.result import TuneResult, Verdict
from harness.tuning.search import Promise, tune
from harness.tuning.study import LOCK, Identity, Study, code_files, versions
from harness.tuning.worker import Failure

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scenarios" / "fully_async.toml"
IDENTITY = Identity("small", {"world": {"chips": 8}}, "code", {"rollout-harness": "1.0", "numpy": "2.1"})


def complaint(folder: Path, identity: Identity = IDENTITY) -> str:
    with pytest.raises(ConfigError, match="do:") as caught:
        Study.open(folder, identity)
    return str(caught.value)


# ── one process at a time ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["with locks of the system", "without"])
def locks(request, monkeypatch):
    """Both ways to keep others out."""
    if request.param == "without":
        monkeypatch.setattr(studies, "fcntl", None)
    elif studies.fcntl is None:
        pytest.skip("this system has none")


@pytest.mark.usefixtures("locks")
def test_whoever_holds_a_study_is_named_and_leaves_nothing_behind(tmp_path):
    with Study.open(tmp_path, IDENTITY):
        said = complaint(tmp_path)
        assert f"in use by another process {os.getpid()}" in said
        assert str(tmp_path) in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl", "study.json"]
    with Study.open(tmp_path, IDENTITY):
        pass


def of_a_dead_process() -> str:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return f"{process.pid} {platform.node()}\n"


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize(
    "left", [of_a_dead_process, lambda: f"{os.getpid()} {platform.node()}\n", str], ids=["dead", "number again", "empty"]
)
def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path, left):
    (tmp_path / LOCK).write_text(left())
    with Study.open(tmp_path, IDENTITY):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()} {platform.node()}\n"


def test_without_locks_a_living_process_and_one_elsewhere_are_respected(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "fcntl", None)
    for holder, named in ((f"{os.getppid()} {platform.node()}", str(os.getppid())), ("7 elsewhere", "7 on elsewhere")):
        (tmp_path / LOCK).write_text(holder)
        said = complaint(tmp_path)
        assert f"process {named}" in said
        assert f"delete {tmp_path / LOCK}" in said
        assert (tmp_path / LOCK).read_text() == holder


# ── one version of the code ─────────────────────────────────────────────────────────────────────────────────────────────────

NOT_DECISIVE = ("harness.tuning", "harness.trace", "harness.expected")
"""What searches, looks at records and works by hand: no figure of a simulation comes from there."""

LOADED = """
import sys
from functools import partial
from harness.run import _evaluate, load
scenario = load(sys.argv[1], overrides=sys.argv[2:])
assert _evaluate(scenario, None, {}, 0, 2).groups
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("harness", "pipeline")]
print(*(module.__file__ for module in ours), sep="\\n")
"""


def test_every_file_that_a_simulation_reads_is_in_the_fingerprint():
    tiny = ["pipeline.group_size=2", "pipeline.groups_per_step=2", "pipeline.max_inflight=8", "run.warmup_steps=0"]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(SCENARIO), *tiny], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(line).resolve().relative_to(ROOT) for line in done.stdout.split()]
    named = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    counted = {path.resolve().relative_to(ROOT) for path in code_files(Path(str(pipeline.__file__)).parent)}
    left_out = {name for name, path in named.items() if path not in counted and path.stat().st_size > 200}
    assert {name for name in left_out if not name.startswith(NOT_DECISIVE)} <= {"harness"}
    assert len(counted) > 80


def test_versions_that_differ_are_named(tmp_path):
    Study.open(tmp_path, IDENTITY).close()
    newer = replace(IDENTITY, code="other", versions={"rollout-harness": "1.0", "numpy": "2.2"})
    said = complaint(tmp_path, newer)
    assert "numpy 2.1 in the study and 2.2 here" in said
    assert "rollout-harness" not in said
    assert "source files have changed" in complaint(tmp_path, replace(IDENTITY, code="other"))
    assert {"rollout-harness", "numpy"} <= versions().keys()


def test_versions_alone_refuse_nothing(tmp_path):
    """The fingerprint decides; the numbers are for people."""
    Study.open(tmp_path, IDENTITY).close()
    Study.open(tmp_path, replace(IDENTITY, versions={})).close()


# ── one scenario ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wishes_are_not_part_of_a_study_and_worlds_are(tmp_path):
    with study_of(load(SCENARIO), tmp_path) as study:
        study.hint(screen_steps=14)
    for harmless in ("run.seed=5", "run.replications=9", "title=other", 'question="which?"'):
        with study_of(load(SCENARIO, overrides=[harmless]), tmp_path) as study:
            assert study.hints == {"screen_steps": 14}
    for path, value in (("run.warmup_steps", 7), ("pipeline.max_inflight", 77), ("workload.max_context_tokens", 30_000)):
        with pytest.raises(ConfigError, match=rf"another scenario.*{path} is .* in the study and {value} here"):
            study_of(load(SCENARIO, overrides=[f"{path}={value}"]), tmp_path)
    with pytest.raises(ConfigError, match="own_pipeline"):
        study_of(load(SCENARIO), tmp_path, code="module:build 1")


@pytest.mark.parametrize("head", ["", '{"name": "my-package"}', '{"schema": 99, "kind": "study"}'])
def test_the_command_line_refuses_in_words_and_leaves_the_folder_alone(tmp_path, capsys, head):
    (tmp_path / "study.json").write_text(head)
    command = [
        "tune",
        str(SCENARIO),
        "--budget",
        "5s",
        "--study",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "--study" in said
    assert "do:" in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


def test_a_study_that_goes_on_says_so_and_what_a_kill_has_torn(tmp_path):
    with Study.open(tmp_path, IDENTITY) as study:
        assert study.said() == ()
    line = {
        "settings": {"a": 1},
        "seed": 1,
        "steps": 2,
        "seconds": 3.0,
        "failure": {"kind": "a", "message": "b", "exit_code": 1},
    }
    (tmp_path / "runs.jsonl").write_text(json.dumps(line) + '\n{"settings": ')
    with Study.open(tmp_path, IDENTITY) as study:
        known, torn = study.said()
        assert known == "Continues a study of 1 simulation."
        assert "torn by a kill" in torn
    with Study.open(tmp_path, IDENTITY) as study:
        assert study.said() == (known,)


def of_another_type(value):
    return {} if isinstance(value, list) else [] if isinstance(value, dict) else True if isinstance(value, str) else "x"


@pytest.mark.parametrize("record", [Pipeline()(TODAY, 0, 10), Failure("ConfigError", "does not fit", 2)])
def test_a_value_of_another_type_is_damage_whatever_its_field(tmp_path, record):
    with Study.open(tmp_path, IDENTITY) as study:
        study.file(Job.of(TODAY, 0, 10), record, 1.0)
    log = tmp_path / "runs.jsonl"
    line = json.loads(log.read_text())
    (what,) = {"run", "failure"} & line.keys()
    for name, value in line[what].items():
        changed = line | {what: line[what] | {name: of_another_type(value)}}
        log.write_text(json.dumps(changed) + "\n")
        said = complaint(tmp_path)
        assert f"{log}:1: " in said
        assert f"{name} is no " in said


# ── sessions of other lengths ───────────────────────────────────────────────────────────────────────────────────────────────


def session(folder: Path, budget_s: float, *, own: float, interrupt_at: float = math.inf) -> tuple[TuneResult, set[Job]]:
    """The answer of one session in virtual time, and the simulations that it made."""
    made = Pipeline(own=own)
    crew = VirtualCrew(made, 2, lambda setting, seed, steps: 0.15 * (steps + 5), interrupt_at=interrupt_at)
    with Study.open(folder, IDENTITY) as study:
        result = tune(problem(made), promise=Promise(budget_s), workers=2, crew=crew, study=study)
    return result, {Job.of(*call) for call in crew.calls}


@pytest.mark.parametrize("own", [0.005, 0.05])
def test_a_short_session_knows_what_a_long_one_has_shown(tmp_path, own):
    long, made = session(tmp_path, 150, own=own)
    assert long.verdict is Verdict.BETTER
    assert not long.provisional
    for budget_s in (20, 4):
        short, again = session(tmp_path, budget_s, own=own)
        assert not made & again
        made |= again
        assert short.verdict is Verdict.BETTER
        assert not short.provisional
        assert short.effort.final_steps == long.effort.final_steps
        assert short.gain.half_width < 0.05
        assert any(note.startswith("Continues a study of") for note in short.notes)


def test_session_after_session_the_interval_gets_narrower_and_nothing_is_made_twice(tmp_path):
    """Noise is large and its spread is itself an estimate, so that not every single session need narrow it."""
    made: set[Job] = set()
    pairs, widths = [], []
    for interrupt_at in (20.0, math.inf, math.inf, math.inf, math.inf):
        result, now = session(tmp_path, 60, own=0.05, interrupt_at=interrupt_at)
        assert result.interrupted is (interrupt_at < math.inf)
        with Study.open(tmp_path, IDENTITY) as study:
            study.today = TODAY
            finished = set(study.recalled())
        assert not made & now
        assert len(now - finished) <= 2, "what was running at the end"
        made = finished
        if not result.interrupted:
            pairs.append(len(result.effort.final_seeds))
            widths.append(result.gain.half_width)
    assert pairs == sorted(pairs)
    assert pairs[-1] >= 2 * pairs[0]
    assert widths[-1] < 0.9 * widths[0]
