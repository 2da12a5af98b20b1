"""What files hold is read whole, whatever they look like; what is odd in them is said or asked about."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from harness.calibration.columns import StepColumns, read_steps
from harness.calibration.outcomes import CLASSES
from harness.calibration.readers import open_table
from harness.calibration.steps import fit_steps
from harness.core.errors import ConfigError, DataError

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def steps(rows: int = 400, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(3.0, rows)).round(3)
    return pl.DataFrame(
        {
            "run": [f"r{i % 7}" for i in range(rows)],
            "tool": rng.choice(["edit", "test"], rows),
            "seconds": rng.lognormal(0.5, 0.8, rows).round(6),
            "status": rng.choice(["ok", "Failed", "infra_error", "hung"], rows, p=[0.9, 0.05, 0.03, 0.02]),
            "at": [START + timedelta(seconds=float(s)) for s in at_s],
        }
    )


COLUMNS = StepColumns("seconds", "tool", outcome="status", time="at", runs="run")


def written(frame: pl.DataFrame, path, form: str) -> None:
    text = frame.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")) if "at" in frame.columns else frame
    if form == "parquet":
        frame.write_parquet(path)
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in text.to_dicts()) + "\n")
    else:
        separator = {"semicolons": ";", "tabs": "\t"}.get(form, ",")
        data = text.write_csv(separator=separator, line_terminator="\r\n" if form == "crlf" else "\n").encode()
        path.write_bytes((b"\xef\xbb\xbf" if form == "bom" else b"") + data)


def test_all_formats_say_the_same(tmp_path):
    frame, seen = steps(), {}
    for form in ("csv", "bom", "crlf", "semicolons", "tabs", "parquet", "jsonl"):
        path = tmp_path / f"{form}.data"
        written(frame, path, form)
        seen[form] = read_steps(path, COLUMNS)
    want = seen["csv"]
    assert want.rows == 400
    assert (want.runs == np.array([i % 7 for i in range(400)])).all()
    assert want.values_s == pytest.approx(frame["seconds"].to_numpy())
    assert [CLASSES[code] for code in want.ended[:50]] == [
        {"Failed": "failure", "infra_error": "infra_failure", "hung": "hang"}.get(word, word) for word in frame["status"][:50]
    ]
    for got in seen.values():
        assert (got.kinds, got.dated) == (want.kinds, "2026-03-01")
        for name in ("codes", "values_s", "runs", "ended"):
            assert (getattr(got, name) == getattr(want, name)).all()
        assert np.diff(got.at_s) == pytest.approx(np.diff(want.at_s), abs=1e-5)
    assert any("semicolons" in remark for remark in seen["semicolons"].remarks)


@pytest.mark.parametrize(
    ("texts", "gap_s"),
    [
        (["2026-03-01 12:00:00", "2026-03-01 12:00:01.5"], 1.5),
        (["2026-03-01T12:00:00+02:00", "2026-03-01T11:00:00+00:00"], 3600.0),
        (["2026-03-01", "2026-03-02"], 86_400.0),
        (["1772366400", "1772366402.5"], 2.5),
        (["1772366400000", "1772366402500"], 2.5),
        (["1772366400000000", "1772366402500000"], 2.5),
        (["0.5", "4.5"], 4.0),
    ],
)
def test_times_are_understood_however_they_are_written(tmp_path, texts, gap_s):
    path = tmp_path / "t.csv"
    path.write_text("tool,seconds,at\n" + "".join(f"a,{1 + i / 10},{texts[min(i, 1)]}\n" for i in range(6)))
    found = read_steps(path, StepColumns("seconds", "tool", time="at"))
    assert found.at_s[1] - found.at_s[0] == pytest.approx(gap_s, abs=1e-6)


def csv(tmp_path, rows: list[str], header: str = "tool,seconds,run"):
    path = tmp_path / "x.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_milliseconds_among_seconds_are_asked_about(tmp_path):
    rng = np.random.default_rng(1)
    good = [f"a,{x:.4f},r{i % 4}" for i, x in enumerate(rng.lognormal(0, 0.5, 100))]
    path = csv(tmp_path, [*good, *(f"a,{x * 1000:.1f},r9" for x in rng.lognormal(0, 0.5, 10))])
    with pytest.raises(DataError) as caught:
        read_steps(path, StepColumns("seconds", "tool"))
    for word in ("two units", "100 rows", "lines 102, 103", "--one-unit", ":102"):
        assert word in str(caught.value)
    assert len(read_steps(path, StepColumns("seconds", "tool", one_unit=True)).values_s) == 110


def test_runs_in_other_units_are_found_though_single_durations_overlap(tmp_path):
    rng = np.random.default_rng(2)
    rows = [f"a,{x * (1000 if run == 3 else 1):.6f},r{run}" for run in range(5) for x in rng.lognormal(0, 1.6, 200)]
    with pytest.raises(DataError, match="4 and 1 runs"):
        read_steps(csv(tmp_path, rows), StepColumns("seconds", "tool"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_two_units_are_asked_about_though_wide_heaps_touch(tmp_path, share):
    rng = np.random.default_rng(3)
    rows = [f"a,{x * (1000 if rng.random() < share else 1):.6f},r{i % 9}" for i, x in enumerate(rng.lognormal(0, 1.1, 3000))]
    with pytest.raises(DataError, match="two units"):
        read_steps(csv(tmp_path, rows), StepColumns("seconds", "tool"))


@pytest.mark.parametrize("seed", range(5))
def test_one_wide_heap_is_not_taken_for_two_units(tmp_path, seed):
    rng = np.random.default_rng(seed)
    flat, wide = np.exp(rng.uniform(0, 14, 500)), np.exp(rng.normal(0, 4.4, 500))
    rows = [f"{kind},{x:.9f},r{i % 9}" for kind, xs in (("a", flat), ("b", wide)) for i, x in enumerate(xs)]
    assert len(read_steps(csv(tmp_path, rows), StepColumns("seconds", "tool")).values_s) == 1000


@pytest.mark.parametrize("seed", range(5))
def test_heavy_tails_are_not_taken_for_two_units(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rows = [f"a,{x:.6f},r{i % 9}" for i, x in enumerate(np.exp(rng.normal(0, 2.5, 2000)))]
    rows += [f"b,{x:.6f},r{i % 9}" for i, x in enumerate(rng.pareto(0.9, 500) + 1)]
    assert len(read_steps(csv(tmp_path, rows), StepColumns("seconds", "tool")).values_s) == 2500


def test_clock_jumps_are_named(tmp_path):
    at = np.arange(200.0) * 2 + 1e9
    at[100:] -= 500.0
    at[150:] += 40 * 86_400
    path = csv(tmp_path, [f"a,{1 + i / 999},{x}" for i, x in enumerate(at)], "tool,seconds,at")
    found = read_steps(path, StepColumns("seconds", "tool", time="at"))
    assert any("goes back in 1 place (line 102), by up to 498 s" in remark for remark in found.remarks)
    assert any("jumps ahead" in remark and "line 152" in remark for remark in found.remarks)
    assert (np.diff(found.at_s) >= 0).all()


def test_a_file_out_of_order_is_sorted_and_a_row_that_is_there_twice_counts_once(tmp_path):
    rows = [f"a,{1 + i / 999},{x}" for i, x in enumerate(np.random.default_rng(3).permutation(300) + 0.5)]
    found = read_steps(csv(tmp_path, [*rows, *rows[:40]], "tool,seconds,at"), StepColumns("seconds", "tool", time="at"))
    assert found.duplicates == 40
    assert any("not in order of time" in remark for remark in found.remarks)
    assert (np.diff(found.at_s) > 0).all()


def test_equal_times_of_a_clock_that_rounds_are_no_repeats(tmp_path):
    rng = np.random.default_rng(4)
    rows = [f"a,{x:.1f},r{i % 3},host{i % 2}" for i, x in enumerate(rng.lognormal(1, 0.5, 1000) + 0.05)]
    found = read_steps(csv(tmp_path, rows, "tool,seconds,run,host"), StepColumns("seconds", "tool"))
    assert found.duplicates == 0


def test_words_that_are_not_understood_are_asked_about(tmp_path):
    rows = [f"a,{1 + i / 9},{'weird' if i % 3 == 0 else 'ok'}" for i in range(12)]
    path = csv(tmp_path, rows, "tool,seconds,state")
    with pytest.raises(DataError, match=r"(?s)not understood, in 4 of 12 rows.*--outcome-is 'weird=failure'"):
        read_steps(path, StepColumns("seconds", "tool", outcome="state"))
    found = read_steps(path, StepColumns("seconds", "tool", outcome="state", meanings={"weird": "hang"}))
    assert [CLASSES[code] for code in found.ended[:3]] == ["hang", "ok", "ok"]
    with pytest.raises(ConfigError, match="no outcome"):
        read_steps(path, StepColumns("seconds", "tool", outcome="state", meanings={"weird": "broken"}))


@pytest.mark.parametrize(("name", "first"), [("passed", "ok"), ("failed", "failure"), ("exit_code", "failure")])
def test_truth_means_what_the_column_is_called(tmp_path, name, first):
    rows = [f"a,{1 + i / 9},{1 if i % 2 == 0 else 0}" for i in range(12)]
    path = csv(tmp_path, rows, f"tool,seconds,{name}")
    found = read_steps(path, StepColumns("seconds", "tool", outcome=name))
    other = {"ok": "failure", "failure": "ok"}[first]
    assert [CLASSES[code] for code in found.ended[:2]] == [first, other]


def test_faults_and_time_limits_are_measured(tmp_path):
    rng = np.random.default_rng(5)
    rows = []
    for i in range(2000):
        took, state = float(rng.lognormal(3.0, 1.0)), "ok"
        if took > 60:
            took, state = 60 + float(rng.random()) * 0.1, "timeout"
        elif i % 50 == 0:
            state = "failed"
        elif i % 50 == 1:
            took, state = 3600.0 + i / 7, "hang"
        rows.append(f"a,{took:.4f},{state}")
    (step,) = fit_steps(read_steps(csv(tmp_path, rows, "tool,seconds,state"), StepColumns("seconds", "tool", outcome="state")))
    assert step.time_limit_s == pytest.approx(60, rel=1e-3)
    assert step.faults is not None
    limited = sum("timeout" in row for row in rows) / 2000
    assert step.faults.limited == pytest.approx(limited)
    assert step.faults.hang == pytest.approx(sum("hang" in row for row in rows) / 2000)
    assert step.faults.failure == pytest.approx(sum("failed" in row for row in rows) / 2000)
    (atom,) = step.fit.law.atoms
    assert atom.at_s == step.time_limit_s
    assert atom.weight == pytest.approx(limited, rel=0.05)


def test_a_limit_whose_kills_come_a_little_late_is_found_without_outcomes(tmp_path):
    rng = np.random.default_rng(6)
    took = np.minimum(rng.lognormal(3.0, 1.0, 1000), 60 + rng.random(1000) * 0.1)
    (step,) = fit_steps(read_steps(csv(tmp_path, [f"a,{x:.4f}" for x in took], "tool,seconds"), StepColumns("seconds", "tool")))
    assert any("a time limit" in remark for remark in step.fit.remarks)
    assert [atom.at_s for atom in step.fit.law.atoms] == [pytest.approx(60, rel=2e-3)]


def test_identifiers_are_no_kinds(tmp_path):
    path = csv(tmp_path, [f"id{i},{1 + i / 9}" for i in range(700)], "tool,seconds")
    with pytest.raises(DataError, match="700 different kinds"):
        read_steps(path, StepColumns("seconds", "tool"))


def test_only_what_is_asked_for_is_read(tmp_path):
    """A broken number in a column that nobody named does not matter."""
    path = csv(tmp_path, [f"a,{1 + i / 9},{'?' * (i % 3)}" for i in range(20)], "tool,seconds,rest")
    assert len(read_steps(path, StepColumns("seconds", "tool")).values_s) == 20
    assert open_table(path).columns == ["tool", "seconds", "rest"]


def test_many_rows_take_seconds(tmp_path):
    """A million in less than twenty seconds; here a fifth of that."""
    rng = np.random.default_rng(7)
    rows = 200_000
    kinds = rng.choice(["a", "b", "c", "d"], rows)
    frame = pl.DataFrame({"tool": kinds, "seconds": rng.lognormal(0, 1.2, rows), "run": rng.integers(0, 50, rows)})
    path = tmp_path / "many.csv"
    frame.write_csv(path)
    began = time.process_time()
    found = fit_steps(read_steps(path, StepColumns("seconds", "tool")))
    assert time.process_time() - began < 4
    assert len(found) == 4


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (["a,1e308,ok"] * 6, {}, ["no duration that a step can have in 6 of 6 rows", "--unit"]),
        (["a,1.5,ok"] * 6, {"by": "seconds"}, ["--by", "two things"]),
        (["a,1.5,hang"] * 6, {"outcome": "state"}, ["all hang", "--outcome-is"]),
    ],
)
def test_what_makes_no_law_is_refused(tmp_path, rows, columns, words):
    path = csv(tmp_path, rows, "tool,seconds,state")
    with pytest.raises(ConfigError) as caught:
        fit_steps(read_steps(path, StepColumns(**{"duration": "seconds", "by": "tool", **columns})))
    for word in words:
        assert word in str(caught.value)


def test_a_million_bytes_of_garbage_are_refused_quickly(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(np.random.default_rng(8).bytes(1_000_000))
    with pytest.raises(DataError, match="binary"):
        open_table(path)


def test_a_file_with_too_many_rows_is_refused_with_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.calibration.readers.MOST_ROWS", 100)
    path = csv(tmp_path, ["a,1.5"] * 101, "tool,seconds")
    with pytest.raises(DataError, match=r"more than 100 rows(?s:.*)keep whole runs"):
        read_steps(path, StepColumns("seconds", "tool"))
