"""What a study on disk promises: nothing finished is lost or made again, and nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import TODAY, Pipeline, admit, problem
from virtual_crew import VirtualCrew

import harness
from harness.analysis.summary import RunSummary
from harness.analysis.waste import Lengths
from harness.core.errors import ConfigError, OutputError
from harness.tuning import study as studies
from harness.tuning.bench import Job
from harness.tuning.measured import HONEST_STEPS
from harness.tuning.result import TuneResult, Verdict
from harness.tuning.search import Promise, tune
from harness.tuning.study import STUDY_SCHEMA, Identity, Study, code_fingerprint, run_from_json
from harness.tuning.worker import Failure

SCENARIO = {"world": {"chips": 8, "links": [1, 2.5]}, "pipeline": {"max_staleness": 0}}
IDENTITY = Identity("small", SCENARIO, "code")
RUN = Pipeline()(TODAY, 3, 20)
FAILED = Failure("ConfigError", "does not fit\nat all", 2, "Traceback …")
ROOT = Path(__file__).parents[2]
POSIX = os.name == "posix"


def job(number: int = 0) -> Job:
    return Job.of(TODAY | {"pipeline.max_inflight": 100 + number, "pipeline.sync_mode": "drain"}, 7, 20)


def begun(folder: Path, runs: int = 3) -> Path:
    """A study with some simulations and a failure; the path of its runs."""
    with Study.open(folder, IDENTITY) as study:
        for number in range(runs):
            study.file(job(number), dataclasses.replace(RUN, seed=number), 1.5)
        study.file(job(-1), FAILED, 0.25)
    return folder / "runs.jsonl"


def refused(folder: Path, identity: Identity = IDENTITY, kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        Study.open(folder, identity)
    assert "do:" in str(caught.value)
    return str(caught.value)


# ── what is read is what was written ────────────────────────────────────────────────────────────────────────────────────────

WHOLE, NUMBER, TEXT = st.integers(-(2**70), 2**70), st.floats(allow_nan=False) | st.integers(-5, 5), st.text(max_size=5)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": WHOLE,
    "float": NUMBER,
    "str": TEXT,
    "int | None": st.none() | WHOLE,
    "dict[str, int]": st.dictionaries(TEXT, WHOLE, max_size=2),
    "dict[str, float]": st.dictionaries(TEXT, NUMBER, max_size=2),
    "tuple[str, ...]": st.lists(TEXT, max_size=2).map(tuple),
    "tuple[int, ...]": st.lists(WHOLE, max_size=2).map(tuple),
    "tuple[Lengths, ...]": st.lists(st.builds(Lengths, TEXT, WHOLE, WHOLE, WHOLE), max_size=2).map(tuple),
}
SUMMARIES = st.builds(RunSummary, **{one.name: BY_TYPE[str(one.type)] for one in dataclasses.fields(RunSummary)})


def exactly(one: object, other: object) -> bool:
    """Equal, and of equal types all the way down."""
    return one == other and repr(one) == repr(other)


@given(SUMMARIES)
@settings(max_examples=40, deadline=None)
def test_a_summary_is_read_as_it_was_written(run: RunSummary) -> None:
    assert exactly(run_from_json(json.loads(json.dumps(dataclasses.asdict(run)))), run)


@given(run=SUMMARIES, seconds=st.floats(0, 1e6), value=st.integers() | st.floats(allow_nan=False) | st.text())
@settings(max_examples=15, deadline=None)
def test_a_study_knows_what_it_was_told(
    tmp_path_factory: pytest.TempPathFactory, run: RunSummary, seconds: float, value: float | str
) -> None:
    folder = tmp_path_factory.mktemp("study")
    one, other = Job.of({"a.b": value, "c": 1}, 2**80, 5), job()
    with Study.open(folder, IDENTITY) as study:
        study.file(one, run, seconds)
        study.file(other, FAILED, 2.0)
        told = (study.runs, study.failures, study.seconds)
    with Study.open(folder, IDENTITY) as study:
        assert exactly((study.runs, study.failures, study.seconds), told)
        assert study.runs == {one: run}
        assert study.known == 2


def test_a_real_run_is_read_as_it_was_made(tmp_path: Path) -> None:
    tiny = ["pipeline.group_size=2", "pipeline.groups_per_step=2", "pipeline.max_inflight=8", "pipeline.buffer_capacity=4"]
    scenario = harness.load(ROOT / "scenarios/one_step_async.toml", overrides=[*tiny, "run.warmup_steps=1"])
    run = harness.simulate_once(scenario, 0, learner_steps=3)
    assert run.lengths
    with Study.open(tmp_path, IDENTITY) as study:
        study.file(job(), run, 1.0)
    with Study.open(tmp_path, IDENTITY) as study:
        assert exactly(study.runs, {job(): run})


def test_what_more_time_may_finish_is_not_kept(tmp_path: Path) -> None:
    with Study.open(tmp_path, IDENTITY) as study:
        for number, kind in enumerate(("CutOff", "WorkerDied", "MemoryError")):
            study.file(job(number), Failure(kind, "words", 1), 1.0)
        assert not study.failures
    with Study.open(tmp_path, IDENTITY) as study:
        assert study.known == 0
        assert not study.failures


def test_hints_are_kept(tmp_path: Path) -> None:
    with Study.open(tmp_path, IDENTITY) as study:
        study.hint(screen_steps=7)
        study.hint(final_steps=20)
    with Study.open(tmp_path, IDENTITY) as study:
        assert study.hints == {"screen_steps": 7, "final_steps": 20}


# ── a kill, and damage ──────────────────────────────────────────────────────────────────────────────────────────────────────


def reopens(log: Path, whole: int) -> None:
    """The study opens with so many lines, takes another, and opens with that."""
    with Study.open(log.parent, IDENTITY) as study:
        assert study.known == whole
        study.file(job(99), RUN, 1.0)
    with Study.open(log.parent, IDENTITY) as study:
        assert study.known == whole + 1
        assert study.runs[job(99)] == RUN


def test_a_kill_at_any_byte_costs_that_line_alone(tmp_path: Path) -> None:
    log = begun(tmp_path / "study", runs=1)
    data = log.read_bytes()
    start = data[:-1].rfind(b"\n") + 1
    for end in range(start, len(data)):
        log.write_bytes(data[:end])
        with Study.open(log.parent, IDENTITY) as study:
            assert study.known == 1
            assert study.runs == {job(0): dataclasses.replace(RUN, seed=0)}
        assert log.read_bytes() == data[:start]
    log.write_bytes(data[: len(data) - 9])
    reopens(log, 1)
    log.write_bytes(data[:5])  # not one line whole
    reopens(log, 0)


@given(junk=st.binary(min_size=1, max_size=40))
@settings(max_examples=20, deadline=None)
def test_bytes_that_a_power_cut_leaves_at_the_end_are_cut_off(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    log = begun(tmp_path_factory.mktemp("study"), runs=1)
    with log.open("ab") as stream:
        stream.write(b"\xff" + junk.replace(b"\n", b"\n\xff"))
    reopens(log, 2)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0\0\0",
        b"\xff\xfe",
        b"3",
        b"[]",
        b"[" * 100_000,
        b'{"settings":{"a":1},"seed":1,"steps":2,"seconds":3}',
        b'{"settings":[1],"seed":1,"steps":2,"seconds":3,"failure":{"kind":"a","message":"b","exit_code":1}}',
        b'{"settings":{"a":[1]},"seed":1,"steps":2,"seconds":3,"failure":{"kind":"a","message":"b","exit_code":1}}',
        b'{"settings":{"a":1},"seed":"x","steps":2,"seconds":3,"failure":{"kind":"a","message":"b","exit_code":1}}',
        b'{"settings":{"a":1},"seed":1,"steps":2,"seconds":3,"failure":{"kind":"a"}}',
        b'{"settings":{"a":1},"seed":1,"steps":2,"seconds":3,"run":{"lengths":[]}}',
        b'{"settings":{"a":1},"seed":1,"steps":2,"seconds":3,"run":[1]}',
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_changed(tmp_path: Path, line: bytes) -> None:
    log = begun(tmp_path)
    lines = log.read_bytes().split(b"\n")
    lines[1] = line
    log.write_bytes(b"\n".join(lines))
    said = refused(tmp_path)
    assert f"{log}:2: " in said
    assert "is damaged" in said
    assert log.read_bytes() == b"\n".join(lines)
    log.write_bytes(b"\n".join([lines[0], *lines[2:]]))  # as the error says
    with Study.open(tmp_path, IDENTITY) as study:
        assert study.known == 3


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_another_scenario_is_refused_with_what_differs(tmp_path: Path) -> None:
    log = begun(tmp_path)
    before = log.read_bytes()
    other = {"world": {"chips": 16, "links": [1, 3.5], "racks": 2}, "pipeline": {"max_staleness": 0}}
    said = refused(tmp_path, Identity("large", other, "code"))
    assert "(small)" in said
    assert "world.chips is 8 in the study and 16 here" in said
    assert "world.links.1 is 2.5 in the study and 3.5 here" in said
    assert "world.racks is absent in the study and 2 here" in said
    many = SCENARIO | {f"field_{number}": number for number in range(10)}
    assert "and 7 fields more" in refused(tmp_path, Identity("many", many, "code"))
    assert log.read_bytes() == before
    with Study.open(tmp_path, Identity("another title", SCENARIO, "code")) as study:
        assert study.known == 4


def test_other_code_is_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    assert "another version of this program" in refused(tmp_path, Identity("small", SCENARIO, "changed"))


def test_the_code_is_another_when_a_file_of_the_pipeline_changes(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "actors").mkdir()
    found = {code_fingerprint(tmp_path)}
    for name in ("main.py", "policies/one.py", "actors/one.py"):
        for text in ("a = 1\n", "a = 2\n"):
            (tmp_path / name).write_text(text)
            found.add(code_fingerprint(tmp_path))
    assert len(found) == 7
    assert code_fingerprint(tmp_path) in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no study"),
        ("{", "is no study"),
        ("[1]", "is no study"),
        ("[" * 100_000, "is no study"),
        ('{"kind": "calibration", "schema": 1}', "is no study"),
        (json.dumps({"kind": "study", "schema": STUDY_SCHEMA + 1}), "another schema"),
        (json.dumps({"kind": "study", "schema": STUDY_SCHEMA, "code": "code"}), "is damaged"),
        (json.dumps({"kind": "study", "schema": STUDY_SCHEMA, "scenario": SCENARIO, "hints": {"a": "b"}}), "is damaged"),
    ],
)
def test_a_head_that_is_none_of_ours_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "study.json").write_text(text)
    assert said in refused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]
    assert (tmp_path / "study.json").read_text() == text


def test_places_where_no_study_can_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(tmp_path / "file", kind=OutputError)
    assert "is a file" in refused(tmp_path / "file" / "below", kind=OutputError)
    (tmp_path / "a" / "study.json").mkdir(parents=True)
    assert "cannot be read" in refused(tmp_path / "a")
    (tmp_path / "b" / "runs.jsonl").mkdir(parents=True)
    assert "cannot be written" in refused(tmp_path / "b", kind=OutputError)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "runs.jsonl").write_text("{}\n")
    assert "no study.json" in refused(tmp_path / "c")
    assert (tmp_path / "file").read_text() == "mine"
    with Study.open(tmp_path / "new" / "deep", IDENTITY) as study:
        assert study.known == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "study")
    (tmp_path / "study").chmod(0o500)
    try:
        assert "no permission" in refused(tmp_path / "study", kind=OutputError)
    finally:
        (tmp_path / "study").chmod(0o700)


def test_a_full_disk_is_said_and_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the kernel writes what fits and refuses the rest."""
    resource = pytest.importorskip("resource")
    log = begun(tmp_path)
    before = log.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Study.open(tmp_path, IDENTITY) as study:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        try:
            with pytest.raises(OutputError) as caught:
                study.file(job(50), RUN, 1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, ignored)
        assert caught.value.exit_code == 4
        assert os.strerror(errno.EFBIG) in str(caught.value)
        assert "resume with the same --study" in str(caught.value)
        assert log.read_bytes() == before
        assert job(50) not in study.runs
        study.file(job(51), RUN, 1.0)
    reopens(log, 5)


def test_an_interruption_within_a_line_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(stream: Any, data: bytes) -> None:
        stream.write(data[: len(data) // 2])
        raise KeyboardInterrupt

    log = begun(tmp_path)
    with Study.open(tmp_path, IDENTITY) as study:
        with monkeypatch.context() as patched:
            patched.setattr(studies, "_write_all", half)
            with pytest.raises(KeyboardInterrupt):
                study.file(job(50), RUN, 1.0)
        study.file(job(51), RUN, 1.0)
    reopens(log, 5)


# ── one session at a time ───────────────────────────────────────────────────────────────────────────────────────────────────

HOLDER = """
import sys
from harness.tuning.study import Identity, Study
study = Study.open(sys.argv[1], Identity("small", {}, "code"))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not POSIX, reason="no locks on this system")
def test_one_process_at_a_time_and_a_killed_one_is_none(tmp_path: Path) -> None:
    identity = Identity("small", {}, "code")
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert "is in use by another process" in refused(tmp_path, identity)
        holder.kill()
        holder.wait()
    with Study.open(tmp_path, identity) as study:
        assert "is in use" in refused(tmp_path, identity)
        study.file(job(), RUN, 1.0)
    with Study.open(tmp_path, identity) as study:
        assert study.known == 1


@pytest.mark.skipif(not POSIX, reason="no locks on this system")
def test_one_who_comes_late_does_not_change_what_the_study_is_of(tmp_path: Path) -> None:
    with Study.open(tmp_path, IDENTITY):
        head = (tmp_path / "study.json").read_bytes()
        (tmp_path / "study.json").unlink()  # as if the first had come no further than its lock
        refused(tmp_path, Identity("other", {}, "other"))
        assert not (tmp_path / "study.json").exists()
        (tmp_path / "study.json").write_bytes(head)


# ── searches that go on ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Sessions:
    """Searches of one stand-in on one study, in virtual time."""

    def __init__(self, folder: Path, pipeline: Pipeline) -> None:
        self.folder = folder
        self.pipeline = pipeline
        self.calls: list[list[str]] = []

    def tune(self, budget_s: float, *, interrupt_at: float = math.inf, knobs: int | None = None, **options: Any) -> TuneResult:
        crew = VirtualCrew(self.pipeline, 2, lambda setting, seed, steps: 0.15 * (steps + 5), interrupt_at=interrupt_at)
        case = problem(self.pipeline)
        if knobs is not None:
            fewer = dataclasses.replace(case.space, knobs=case.space.knobs[:knobs], admit=lambda some: admit(TODAY | some))
            evaluate = crew._function
            crew._function = lambda some, seed, steps: evaluate(TODAY | some, seed, steps)
            case = dataclasses.replace(case, space=fewer)
        with Study.open(self.folder, IDENTITY) as study:
            result = tune(case, promise=Promise(budget_s), workers=2, crew=crew, study=study, **options)
        self.calls.append([json.dumps([sorted((TODAY | some).items()), seed, steps]) for some, seed, steps in crew.calls])
        return result

    def truth(self, result: TuneResult) -> float:
        """The rate of what was named, without noise."""
        still = dataclasses.replace(self.pipeline, common=0.0, own=0.0)
        named = TODAY if result.settings is None else TODAY | result.settings
        return still(named, 0, 20).kept_groups_per_chip_s


@pytest.mark.parametrize("interrupt_at", [2.0, 9.0, 31.0, 55.0])
def test_what_was_finished_before_an_interruption_is_not_made_again(tmp_path: Path, interrupt_at: float) -> None:
    sessions = Sessions(tmp_path, Pipeline())
    try:
        assert sessions.tune(60, interrupt_at=interrupt_at).interrupted
    except KeyboardInterrupt:  # before anything was finished
        assert interrupt_at < 3
    kept = {json.dumps([sorted((TODAY | done["settings"]).items()), done["seed"], done["steps"]]) for done in lines(tmp_path)}
    result = sessions.tune(60)
    again = sessions.calls[-1]
    assert not kept & set(again)
    assert len(again) == len(set(again))
    assert result.verdict is Verdict.BETTER


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("before_s", "after_s"), [(20, 40), (45, 60)])
def test_more_time_has_at_least_the_pairs_and_no_worse_an_answer(tmp_path: Path, before_s: float, after_s: float) -> None:
    """Pairs too short for a claim give way to longer ones; there are never fewer of those that make a claim."""
    sessions = Sessions(tmp_path, Pipeline(own=0.05))
    first, second = sessions.tune(before_s), sessions.tune(after_s)
    pairs = [len(result.effort.final_seeds) for result in (first, second)]
    assert pairs[0] > 1
    assert second.effort.final_steps >= first.effort.final_steps
    if first.effort.final_steps >= HONEST_STEPS:
        assert second.effort.final_steps == first.effort.final_steps
        assert pairs[1] >= pairs[0]
    assert pairs[1] * second.effort.final_steps >= pairs[0] * first.effort.final_steps
    assert sessions.truth(second) >= 0.99 * sessions.truth(first) > sessions.truth(dataclasses.replace(first, settings=None))


@pytest.mark.parametrize("pipeline", [Pipeline(), Pipeline(sync_s=4.0), Pipeline(slots=256)], ids=["overlap", "sync", "slots"])
def test_two_short_sessions_find_what_a_long_one_does(tmp_path: Path, pipeline: Pipeline) -> None:
    short, long = Sessions(tmp_path / "short", pipeline), Sessions(tmp_path / "long", pipeline)
    short.tune(30)
    both, whole = short.tune(30), long.tune(60)
    assert both.verdict is whole.verdict
    assert short.truth(both) >= 0.98 * long.truth(whole)


def test_other_wishes_and_other_knobs_use_the_same_simulations(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, Pipeline())
    sessions.tune(40)
    for wishes in ({"objective": "idle"}, {"max_lag": 1}, {"knobs": 3}, {}):
        kept = {json.dumps([sorted((TODAY | one["settings"]).items()), one["seed"], one["steps"]]) for one in lines(tmp_path)}
        result = sessions.tune(40, **wishes)
        assert not kept & set(sessions.calls[-1]), wishes
        assert result.effort.evaluations > len(sessions.calls[-1]), wishes
