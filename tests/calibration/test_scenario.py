"""From a file to a whole scenario: on real measurements, on made ones, and on files that hold nothing to fit."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

import harness
from harness.__main__ import main
from harness.core.errors import ConfigError, DataError, OutputError
from harness.costs.laws import Lognormal
from harness.files import write_whole
from harness.scenario.load import load
from pipeline.config import PipelineConfig

ROOT = Path(__file__).parents[2]
BASE = ROOT / "scenarios" / "coding_agent.toml"


def run(csv, out, **options):
    given = {"duration": "seconds", "by": "kind", "base": BASE, **options}
    return harness.calibrate(csv, out=out, **given)


def made(tmp_path, rows: int = 300, header: str = "kind,seconds") -> Path:
    grid = (np.random.default_rng(0).permutation(rows) + 0.5) / rows
    lines = [f"quick,{x}" for x in Lognormal(mu=0.0, sigma=0.5).quantile(grid)]
    lines += [f"slow,{x}" for x in Lognormal(mu=3.0, sigma=0.3).quantile(grid[: rows // 3] * 0.999)]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_sandbox_tasks_become_a_scenario(tmp_path, measured):
    out = tmp_path / "calibrated.toml"
    began = time.process_time()
    done = run(measured("sandbox_tasks.csv"), out, duration="value", by="task")
    assert time.process_time() - began < 20  # four in practice; ten thousand rows a second is what a person waits for
    assert done.rows == 16_292
    assert done.duplicates == 279
    assert len(done.steps) == 19
    scenario = load(out, PipelineConfig)
    assert [tool.name for tool in scenario.workload.tools] == [step.name for step in done.steps]
    for step in done.steps:
        p50, p90, p99 = step.fit.held_out_error
        assert p50 < 0.2
        assert p90 < 0.8
        assert not math.isnan(p99)
        assert step.fit.fitted_s[0] == pytest.approx(step.fit.measured_s[0], rel=0.1)
        assert step.fit.fitted_s[1] == pytest.approx(step.fit.measured_s[1], rel=0.25)
    clones = [step.fit.law.cv for step in done.steps if "clone" in step.name]
    builds = [step.fit.law.cv for step in done.steps if "build" in step.name]
    assert min(clones) > 1.2  # network steps are heavy-tailed
    assert max(builds) < 0.6  # compute steps are not


def test_agent_steps_are_few_and_it_says_so(tmp_path, measured):
    done = run(measured("agent_steps.csv"), tmp_path / "o.toml", duration="execution_time_s", by="command_word")
    assert done.rows == 40
    assert done.duplicates == 0
    assert {step.name for step in done.steps} >= {"edit", "other"}
    assert all(any("too few for a tail" in remark for remark in step.fit.remarks) for step in done.steps)
    assert "ls" in done.steps[-1].pooled


def test_requests_are_read_in_milliseconds_too(tmp_path):
    csv = made(tmp_path)
    seconds = run(csv, tmp_path / "s.toml")
    millis = run(csv, tmp_path / "ms.toml", unit="ms")
    for one, other in zip(seconds.steps, millis.steps, strict=True):
        assert other.fit.mean_s == pytest.approx(one.fit.mean_s / 1000)


def test_all_but_the_tools_stays_as_it_was(tmp_path):
    out = tmp_path / "o.toml"
    done = run(made(tmp_path), out)
    base, written = load(BASE, PipelineConfig), load(out, PipelineConfig)
    assert written.model_copy(update={"workload": base.workload}) == base
    kept = {"tools": base.workload.tools, "agent_run": base.workload.agent_run}
    assert written.workload.model_copy(update=kept) == base.workload
    assert any("agent_run" in remark for remark in done.remarks)
    comments = [line for line in BASE.read_text().split("\n") if line.startswith("# ------")]
    assert all(comment in out.read_text() for comment in comments)
    assert [tool.share for tool in written.workload.tools] == pytest.approx([0.75, 0.25])
    law = written.workload.tools[0].duration
    assert law.quantile(0.5) == pytest.approx(1.0, rel=0.02)
    assert "steps.csv" in law.source
    assert "held-out error" in law.note


def test_calibrating_again_replaces_what_was_fitted(tmp_path):
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    csv = made(tmp_path)
    run(csv, first)
    run(csv, second, base=first)
    assert second.read_text() == first.read_text()


def test_a_base_laid_out_in_another_way_is_written_anew(tmp_path):
    text = BASE.read_text()
    head, tools = text.split("[[workload.tools]]", 1)
    rest = tools[tools.index("# ---") :]
    base = tmp_path / "base.toml"
    inline = 'tools = [{ name = "only", share = 1.0, duration = { law = "constant", value_s = 1.0 } }]\n'
    head = head.replace("[workload]\n", "[workload]\n" + inline)
    base.write_text(head + rest)
    run(made(tmp_path), tmp_path / "o.toml", base=base)
    assert [tool.name for tool in load(tmp_path / "o.toml", PipelineConfig).workload.tools] == ["quick", "slow"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["is empty"]),
        (b"kind,seconds\n", ["no rows"]),
        (b"\x89PNG\r\n\x1a\n\x00\x00", ["binary"]),
        (b"kind,secs\na,1\n", ["--duration", "'seconds'", "kind, secs", "did you mean --duration secs"]),
        (b"kinds,seconds\na,1\n", ["--by", "'kind'", "kinds, seconds"]),
        (b"kind,seconds\na,1\na,fast\n", ["not a number", ":3", "'fast'"]),
        (b"kind,seconds\na,1\na,-2\na,0\n", ["not above 0", "2 of 3 rows", "lines 3, 4"]),
        (b"kind,seconds\na,nan\na,2\n", ["not a finite number", "line 2"]),
        (b"kind,seconds\na,\na,2\n", ["is missing", "line 2"]),
        (b"kind,seconds\n,1\na,2\n", ["is empty in 1 of 2 rows", "--by"]),
        (b"kind,seconds\na,1\na,2\na,3\n", ["fewer than 5 usable rows: 3", "100 for a tail", "measure more"]),
        (b"kind,seconds\na,1\na,2,3\n", [":3", "has 3 fields where the header has 2"]),
        (b"kind,seconds\na,1\na\n", ["is missing", "line 3"]),
        (b"kind;seconds\na;1,5\na;2,5\n", ["not a number", "'1,5'", "decimal point, not a comma"]),
        (b"kind,seconds\na\xff,1\n", ["not in UTF-8"]),
        (b"\x1f\x8b\x08\x00\x00", ["gzip", "unpack"]),
        (b'[{"kind": "a", "seconds": 1}]', ["one JSON array", "one object a line"]),
        (b'{"kind": "a", "seconds": 1}\n{"kind": "a", "seconds"\n', [":2", "not a JSON object"]),
        (b'{"kind": "a", "seconds": 1}\n{"kind": "a", "seconds": -1}\n', ["not above 0", "row 2"]),
        (b"PAR1 and no more", ["not a whole Parquet file"]),
        (b'kind,seconds\n"a,1\n', ["well-formed"]),
    ],
)
def test_data_that_cannot_be_fitted_is_refused_and_nothing_written(tmp_path, content, words):
    csv, out = tmp_path / "x.csv", tmp_path / "o.toml"
    csv.write_bytes(content)
    with pytest.raises(DataError) as caught:
        run(csv, out)
    assert caught.value.exit_code == 2
    for word in [str(csv), *words]:
        assert word in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv"]


def test_files_and_folders_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        run(tmp_path / "none.csv", tmp_path / "o.toml")
    with pytest.raises(DataError, match="folder"):
        run(tmp_path, tmp_path / "o.toml")
    csv = made(tmp_path)
    with pytest.raises(ConfigError, match="its folder does not exist"):
        run(csv, tmp_path / "nowhere" / "o.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        run(csv, tmp_path)
    with pytest.raises(ConfigError, match="unit"):
        run(csv, tmp_path / "o.toml", unit="minutes")


def test_neither_the_base_nor_the_data_is_overwritten(tmp_path):
    base, csv = tmp_path / "base.toml", made(tmp_path)
    base.write_text(BASE.read_text())
    with pytest.raises(ConfigError, match="base scenario"):
        run(csv, tmp_path / "." / "base.toml", base=base)
    with pytest.raises(ConfigError, match="the data"):
        run(csv, csv, base=base)
    assert base.read_text() == BASE.read_text()


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    """A limit on file sizes fails in the middle of a write, as a full disk does."""
    target = tmp_path / "o.toml"
    target.write_text("old")
    with pytest.raises(OutputError) as caught:
        write_whole(Path("/proc/o.toml"), "new")
    assert caught.value.exit_code == 4
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OutputError, match="nothing was changed"):
            write_whole(target, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["o.toml"]


def test_failures_and_hangs_of_the_base_are_kept_on_average(tmp_path):
    out = tmp_path / "calibrated.toml"
    done = run(made(tmp_path), out)
    base, fitted = load(BASE, PipelineConfig).workload.tools, load(out, PipelineConfig).workload.tools
    for name in ("failure", "infra_failure", "hang"):
        average = sum(tool.share * getattr(tool, name) for tool in base)
        assert all(math.isclose(getattr(tool, name), average, rel_tol=1e-4, abs_tol=1e-6) for tool in fitted)
    assert any("failures and hangs are not in the data" in remark for remark in done.remarks)


def test_the_base_can_be_overridden(tmp_path):
    rows = "tool,seconds\n" + "".join(f"search,{1 + i / 10}\n" for i in range(40))
    (tmp_path / "tools.csv").write_text(rows)
    out = tmp_path / "mine.toml"
    harness.calibrate(
        tmp_path / "tools.csv", duration="seconds", by="tool", base=BASE, out=out,
        overrides=["pipeline.max_inflight=48", "run.seed=9"],
    )  # fmt: skip
    written = load(out, PipelineConfig)
    assert (written.pipeline.max_inflight, written.run.seed) == (48, 9)
    assert [tool.name for tool in written.workload.tools] == ["search"]


def logged(tmp_path, outages: bool = True) -> Path:
    """A log of calls by 20 agents, in which everything fails for a minute every quarter of an hour."""
    rng = np.random.default_rng(11)
    rows = []
    for agent in range(20):
        at = 0.0
        while at < 8000:
            at += float(rng.exponential(6))
            down = outages and at % 900 > 840
            took, state = (
                (0.3, "unavailable") if down else (float(rng.lognormal(0, 0.6)), "failed" if rng.random() < 0.04 else "ok")
            )
            rows.append((at, f"{at:.3f},{'test' if rng.random() < 0.4 else 'edit'},{took:.5f},{state},agent{agent}"))
            at += took
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["at,tool,seconds,state,run", *(row for _, row in sorted(rows))]) + "\n")
    return path


LOG = {"duration": "seconds", "by": "tool", "outcome": "state", "time": "at"}


def test_outages_of_a_log_become_an_entry_of_the_world_and_are_simulated(tmp_path):
    out = tmp_path / "o.toml"
    done = run(logged(tmp_path), out, **LOG)
    written = load(out, PipelineConfig)
    (outage,) = written.world.outages
    assert outage == done.outages.outage
    assert outage.down.expected_s() == pytest.approx(60, rel=0.05)
    assert outage.up.expected_s() == pytest.approx(840, rel=0.2)  # the last stretch without an outage is not whole
    for tool in written.workload.tools:
        assert tool.failure == pytest.approx(0.04, abs=0.01)
        assert tool.infra_failure < 0.002  # that was the outages
    again = tmp_path / "again.toml"
    run(logged(tmp_path), again, base=out, **LOG)
    assert again.read_text() == out.read_text()
    short = ["run.learner_steps=3", "run.warmup_steps=0", "pipeline.group_size=2", "pipeline.groups_per_step=2"]
    summary = harness.simulate_once(harness.load(out, overrides=[*short, "pipeline.max_inflight=8"]), 0)
    assert summary.learner_steps == 3


def test_without_evidence_no_outage_is_written(tmp_path):
    out = tmp_path / "o.toml"
    done = run(logged(tmp_path, outages=False), out, **LOG)
    assert done.outages.verdict == "independent"
    assert load(out, PipelineConfig).world.outages == ()
    assert any("no sign of outages" in remark for remark in done.remarks)


def test_the_page_opens_without_a_network_and_draws_every_law(tmp_path):
    page = tmp_path / "page.html"
    run(made(tmp_path), tmp_path / "o.toml", html=page)
    text = page.read_text()
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "<script" not in text
    for word in ("quick", "slow", "larger than x", "held out"):
        assert word in text


def test_what_the_command_prints_is_what_was_fitted(tmp_path, capsys):
    csv = made(tmp_path)
    words = [
        "calibrate",
        str(csv),
        "--duration",
        "seconds",
        "--by",
        "kind",
        "--base",
        str(BASE),
        "--out",
        str(tmp_path / "o.toml"),
    ]
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in data["steps"]] == ["quick", "slow"]
    quick = data["steps"][0]
    assert quick["law"]["law"] == "lognormal"
    assert quick["chosen"] == "lognormal"
    assert quick["tried"]["lognormal"] <= quick["tried"]["exponential"]
    assert quick["held_out_error"][0] < 0.1
    assert data["outages"]["verdict"] == "not measured"
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 + len(str(tmp_path))
    for word in ("quick", "slow", "lognormal", "error", "parts", "harness tune"):
        assert word in shown


def test_kinds_may_be_called_anything(tmp_path):
    names = ['a"b,\\', "two\nlines", "日本語", "[[x]]", "# no comment", "x" * 300]
    lines = [f'"{name.replace(chr(34), chr(34) * 2)}",{1 + i / 7 + j}' for j, name in enumerate(names) for i in range(8)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["kind,seconds", *lines]) + "\n")
    out = tmp_path / "o.toml"
    run(path, out)
    assert [tool.name for tool in load(out, PipelineConfig).workload.tools] == names


def with_tokens(text: str, form: str) -> str:
    """The base with its prompt tokens, and arrivals, laid out in another way."""
    line = next(line for line in text.split("\n") if line.startswith("prompt_tokens"))
    if form == "several lines":
        return text.replace(
            line, 'prompt_tokens = { law = "empirical", probabilities = [\n 0.0,\n 1.0,\n], values = [\n 1,\n 9, # nine\n] }'
        )
    if form == "table":
        table = '[workload.prompt_tokens]\nlaw = "constant"\nvalue = 7\n\n[[workload.tools]]'
        return text.replace(line + "\n", "").replace("[[workload.tools]]", table, 1)
    if form == "dotted":
        return text.replace(line, 'prompt_tokens.law = "constant"\nprompt_tokens.value = 7')
    if form == "arrivals inline":
        return text.replace(line, line + '\narrivals = { gap = { law = "constant", value_s = 3.0 }, waiting_max = 5 }')
    return text + '\n[workload.arrivals]\nwaiting_max = 5\ngap = { law = "constant", value_s = 3.0 }\n'


@pytest.mark.parametrize("form", ["several lines", "table", "dotted", "arrivals inline", "arrivals table"])
def test_requests_go_into_a_base_however_it_is_laid_out(tmp_path, form):
    base, path, out = tmp_path / "b.toml", tmp_path / "r.csv", tmp_path / "o.toml"
    base.write_text(with_tokens(BASE.read_text(), form))
    before = load(base, PipelineConfig)
    path.write_text("at,in\n" + "".join(f"{i * 2 + i % 3},{10 + i % 7}\n" for i in range(50)))
    done = harness.calibrate(path, arrival="at", input_tokens="in", base=base, out=out)
    after = load(out, PipelineConfig)
    assert after.workload.prompt_tokens == done.counts[0].law
    assert after.workload.arrivals.gap.expected_s() == pytest.approx(2, rel=0.1)
    assert after.workload.arrivals.waiting_max == (5 if "arrivals" in form else None)
    kept = {name: getattr(before.workload, name) for name in ("prompt_tokens", "arrivals")}
    assert after.model_copy(update={"workload": after.workload.model_copy(update=kept)}) == before


def test_words_of_outcomes_are_explained_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("kind,seconds,state\n" + "".join(f"a,{1 + i / 9},{'A=1' if i % 4 else 'B'}\n" for i in range(40)))
    words = ["calibrate", str(path), "--duration", "seconds", "--by", "kind", "--base", str(BASE), "--out", str(tmp_path / "o")]
    words += ["--outcome", "state"]
    assert main(words) == 2
    assert "--outcome-is 'A=1=failure'" in capsys.readouterr().err
    assert main([*words, "--outcome-is", "A=1=ok", "--outcome-is", "B=infra_failure", "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert step["faults"] == {"failure": 0.0, "infra_failure": 0.25, "hang": 0.0, "limited": 0.0}
    assert main([*words, "--outcome-is", "B"]) == 2
    assert "value=outcome" in capsys.readouterr().err
