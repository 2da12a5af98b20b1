"""What a search finds, against what there is; what it costs; and how often it says something wrong.

    uv run python tests/benchmarks/tuning.py --json                    everything, one object (about 40 minutes)
    uv run python tests/benchmarks/tuning.py --only regret --budget 60

- `screen_s`, `study_s`: wall seconds of `harness tune scenarios/coding_agent.toml` with a budget of 60 and of 600 seconds.
- `regret`: of the setting that `tune` names (today's where it names none) against the best of the stored grid (`grids.py`),
  both run again, paired, on seeds that nobody used before.
- `sample_saving`: simulated seconds that the same proposals take with seeds of their own and a fixed number of replications
  of the scenario's own length, over those of `tune`, each until the mean regret is at most `LEVEL`. The plain search makes five
  replications a setting, as `simulate` would, and stops after the number of settings that suits it best. What it takes with
  the number of replications that suits it best too, which nobody knows beforehand, is in `sample_saving_over_best`. On the
  stored grids (`emulated.py`).
- `two_workers`: wall time of one fixed set of simulations with one worker over that with two.
- `selection_right`: share of repeated studies in which nothing that was compared is better than the named setting by more than
  the indifference zone, on the stored grid of `publish_stall`; `intervals_right`: in which the interval of the gain holds it.
- `real_right` and so on: the same with the simulator itself: whole studies of `publish_stall` of twelve seconds on one worker,
  and the truth from fresh seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import emulated
import grids

from harness.analysis.statistics import Interval, RatioSample, relative_ratio_difference
from harness.run import tune
from harness.tuning.crew import Processes
from harness.tuning.result import INDIFFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.tuning.result import TuneResult
    from harness.tuning.space import Settings

ROOT = Path(__file__).parents[2]
FRESH_SEED = 9_000_001
LAG_CEILING = 4
ENOUGH = 0.005
"""Half-width of a regret at which it is measured well enough."""

LEVEL = INDIFFERENCE
STUDIES = 40
CANDIDATES = [10, 20, 40, 80]
REPLICATIONS = [1, 2, 5, 10]
USUAL_REPLICATIONS = 5  # of the shipped scenarios
STEP_BUDGETS = [250, 400, 600, 900, 1400, 2000, 3000, 4500, 7000, 10_000, 15_000]
SELECTION_STEPS = 4500
REAL_BUDGET_S = 12.0


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tuned(name: str, budget_s: float, seed: int | None = None) -> tuple[dict[str, Any], float]:
    """The answer of a whole process, and its wall seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "harness", "tune", f"scenarios/{name}.toml", "--budget", f"{budget_s:g}s", "--json"]
        command += ["--max-lag", str(LAG_CEILING), "--out", folder, *(["--seed", str(seed)] if seed is not None else [])]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return json.loads(done.stdout), time.monotonic() - began


def two_workers(rounds: int = 3) -> dict[str, float]:
    """One fixed set of jobs with one worker and with two, by turns.

    Where others use the machine, two workers get less than two cores, which the wall time cannot tell from waste of ours. So
    there is also the share of that time that the workers spent inside jobs, and the share of a job that it was on a core.
    """
    walls: dict[int, list[float]] = {1: [], 2: []}
    found: dict[str, float] = {}
    for number in range(rounds):
        for workers in (1, 2) if number % 2 else (2, 1):
            wall_s, inside_s, cpu_s = _drain(workers)
            walls[workers].append(wall_s)
            found[f"in_jobs_{workers}"] = inside_s / wall_s / workers
            found[f"on_a_core_{workers}"] = cpu_s / inside_s
    return {"two_workers": statistics.median(a / b for a, b in zip(walls[1], walls[2], strict=True))} | found


def _drain(workers: int) -> tuple[float, float, float]:
    """Seconds on the clock; of all workers inside jobs; and on a core."""
    name, inside_s, cpu_s, waiting = "long_tail_tools", 0.0, 0.0, list(range(1, 25))
    with Processes(grids.evaluate, workers) as crew:
        for _ in range(workers):  # imports and loads
            crew.submit(name, grids.today_of(name), 0, 1)
        for _ in range(workers):
            crew.wait(crew.now() + 600)
        began = time.monotonic()
        while waiting or crew.busy:
            while waiting and crew.idle:
                crew.submit(name, grids.today_of(name), waiting.pop(), 12)
            over = crew.wait(crew.now() + 600)
            if over is not None and isinstance(over.result, grids.Row):
                inside_s, cpu_s = inside_s + over.seconds, cpu_s + over.result.cpu_s
        return time.monotonic() - began, inside_s, cpu_s


# ── regret ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def best_of_grid(name: str) -> grids.Point:
    """The point whose interval has the highest lower end: one that is known to be good, not one that was lucky."""
    points = json.loads((grids.STORED / f"{name}.json").read_text())["points"]
    known = [one for one in points if one["pooled_half_width"] is not None]
    return tuple(max(known, key=lambda one: one["ratio"] - one["pooled_half_width"])["point"])


def paired(name: str, best: Settings, other: Settings, limit_s: float, enough: float = ENOUGH) -> Interval:
    """`other` over `best`, minus 1, on fresh seeds, until that is known well enough or the time is over."""
    if best == other:
        return Interval(0.0, 0.0, 0.0, 0.0, 0)
    ends, rows, seed = time.monotonic() + limit_s, list[tuple[grids.Row, grids.Row]](), FRESH_SEED
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        while True:
            seeds = range(seed, seed + 4)
            steps = grids.PLANS[name].steps
            jobs = [[pool.submit(grids.evaluate_settings, name, one, s, steps) for one in (best, other)] for s in seeds]
            rows += [(a.result(), b.result()) for a, b in jobs]
            seed += 4
            ours, theirs = (RatioSample([r[i].groups for r in rows], [r[i].chip_s for r in rows]) for i in (0, 1))
            found = relative_ratio_difference(ours, theirs)
            if (found.half_width <= enough and found.n >= 8) or time.monotonic() > ends:
                return found


def regret(name: str, answer: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Of one answer."""
    named = answer["settings"] or answer["today"]
    best = answer["today"] | grids.settings_of(best_of_grid(name))  # knobs that the grid leaves alone are as today
    found = paired(name, best, named, limit_s)
    return {
        "regret": -found.mean if found.mean else 0.0, "half_width": found.half_width, "pairs": found.n,
        "named": {path: value for path, value in named.items() if value != answer["today"][path]},
        "best": {path: value for path, value in best.items() if value != answer["today"][path]},
        "verdict": answer["verdict"], "gain": answer["gain"]["mean"] if answer["gain"] else None,
    }  # fmt: skip


# ── saving and selection, on stored grids ───────────────────────────────────────────────────────────────────────────────────


def _study(job: tuple[str, int, float]) -> tuple[float, float, dict[str, Any]]:
    name, seed, budget = job
    grid = emulated.Emulated(name)
    result, simulated_s = emulated.study(grid, seed, budget)
    return grid.regret(result.settings), simulated_s, judged(grid, result)


def judged(grid: emulated.Emulated, result: TuneResult) -> dict[str, Any]:
    """Whether what a study says is so."""

    def ratio(settings: Settings | None) -> float:
        return grid.table[grid.point(settings) if settings is not None else grid.today_point].ratio

    named = ratio(result.settings)
    compared = [1.0, named, *(ratio(result.today | other.settings) for other in result.alternatives)]
    elimination = result.elimination
    return {
        "right": named >= max(compared) - INDIFFERENCE * max(compared),
        "claimed": 1 - elimination.error if elimination is not None else result.gain.confidence if result.gain else 0.95,
        "interval": result.gain.contains(named - 1) if result.gain is not None else None,
        "of_grid": grid.regret(result.settings) <= INDIFFERENCE,
    }


def _plain(job: tuple[str, int, int]) -> list[tuple[int, float, float]]:
    name, seed, replications = job
    grid = emulated.Emulated(name)
    found = emulated.plain_search(grid, seed, CANDIDATES, replications)
    return [(n, grid.regret(settings), cost) for n, (settings, cost) in zip(CANDIDATES, found, strict=True)]


def _all(job: Callable[[Any], Any], jobs: list[Any], workers: int = 2, chunk: int = 4) -> list[Any]:
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(job, jobs, chunksize=chunk))


def saving(name: str, studies: int, level: float = LEVEL) -> dict[str, Any]:
    """On one stored grid. Each curve is mean regret against mean simulated seconds."""
    seeds = range(1000, 1000 + 100 * studies, 100)
    ours = []
    for budget in STEP_BUDGETS:
        found = _all(_study, [(name, seed, float(budget)) for seed in seeds])
        ours.append((statistics.fmean(f[1] for f in found), statistics.fmean(f[0] for f in found), budget))
        if ours[-1][1] <= level / 2:
            break
    plain = []
    for replications in REPLICATIONS:
        runs = _all(_plain, [(name, seed, replications) for seed in seeds])
        for i, number in enumerate(CANDIDATES):
            rows = [run[i] for run in runs]
            plain.append((statistics.fmean(r[2] for r in rows), statistics.fmean(r[1] for r in rows), (number, replications)))
    usual = [one for one in plain if one[2][1] == USUAL_REPLICATIONS]
    said: dict[str, Any] = {"level": level, "ours": ours, "plain": sorted(plain)}
    needed = [one[0] for one in ours if one[1] <= level]
    for key, curve in (("saving", usual), ("saving_over_best", plain)):
        theirs = [one[0] for one in curve if one[1] <= level]
        said[f"{key}_is_bound"] = not theirs  # it never gets there: what it had spent by then
        said[key] = min(theirs or [max(one[0] for one in curve)]) / min(needed) if needed else None
    return said


def selection(name: str, studies: int, step_budget: float = SELECTION_STEPS) -> dict[str, Any]:
    """Repeated studies of one stored grid."""
    found = [f[2] for f in _all(_study, [(name, 500_000 + 1000 * i, float(step_budget)) for i in range(studies)])]
    right = sum(f["right"] for f in found)
    intervals = [f["interval"] for f in found if f["interval"] is not None]
    return {
        "selection_right": right / studies,
        "selection_studies": studies,
        "selection_right_at_most": upper_limit(right, studies),
        "selection_claimed": statistics.fmean(f["claimed"] for f in found),
        "intervals_right": sum(intervals) / len(intervals) if intervals else None,
        "near_best_of_grid": sum(f["of_grid"] for f in found) / studies,
    }


def _real_study(job: tuple[str, int, float]) -> dict[str, Any]:
    name, seed, budget_s = job
    scenario = grids.scenario_of(name)
    result = tune(scenario, budget_s=budget_s, max_lag=LAG_CEILING, seed=seed, workers=1, sensitivity=False)
    named = result.settings or result.today
    compared = [named, *(result.today | other.settings for other in result.alternatives)]
    error = result.elimination.error if result.elimination is not None else 0.05
    return {"named": named, "compared": compared, "today": result.today, "gain": result.gain, "error": error}


def real_selection(name: str, studies: int, budget_s: float, pairs: int = 16) -> dict[str, Any]:
    """Repeated whole studies of a scenario, and afterwards the truth of all that they compared, on fresh seeds."""
    found = _all(_real_study, [(name, 2_000_000 + 1000 * i, budget_s) for i in range(studies)], chunk=1)
    today = found[0]["today"]
    settings = {str(one): one for study in found for one in study["compared"]} | {str(today): today}
    seeds = range(FRESH_SEED + 1000, FRESH_SEED + 1000 + pairs)
    jobs = [(name, one, seed, grids.PLANS[name].steps) for one in settings.values() for seed in seeds]
    rows = _all(_evaluated, jobs)
    samples = {
        key: RatioSample([r.groups for r in rows[i * pairs :][:pairs]], [r.chip_s for r in rows[i * pairs :][:pairs]])
        for i, key in enumerate(settings)
    }
    truth = {key: relative_ratio_difference(samples[str(today)], sample) for key, sample in samples.items()}
    right = [
        1 + truth[str(one["named"])].mean >= (1 - INDIFFERENCE) * max(1 + truth[str(other)].mean for other in one["compared"])
        for one in found
    ]
    gains = [(one["gain"], truth[str(one["named"])]) for one in found if one["gain"] is not None and one["named"] != today]
    return {
        "real_studies": studies,
        "real_right": sum(right) / studies,
        "real_right_at_most": upper_limit(sum(right), studies),
        "real_claimed": 1 - statistics.fmean(one["error"] for one in found),
        "real_named_a_change": len(gains),
        "real_intervals_right": sum(gain.contains(true.mean) for gain, true in gains) / len(gains) if gains else None,
        "real_gain_claimed_mean": statistics.fmean(gain.mean for gain, _ in gains) if gains else None,
        "real_gain_true_mean": statistics.fmean(true.mean for _, true in gains) if gains else None,
        "real_truth_half_width": max(one.half_width for one in truth.values()),
        "real_settings": len(settings),
    }


def _evaluated(job: tuple[str, Settings, int, int]) -> grids.Row:
    return grids.evaluate_settings(*job)


def upper_limit(right: int, of: int, confidence: float = 0.95) -> float:
    """Largest share of right answers with which so few right ones are not yet a surprise (Clopper and Pearson, one-sided)."""
    low, high = right / of, 1.0
    for _ in range(60 if right < of else 0):
        middle = (low + high) / 2
        no_more = math.fsum(math.comb(of, i) * middle**i * (1 - middle) ** (of - i) for i in range(right + 1))
        low, high = (middle, high) if no_more > 1 - confidence else (low, middle)
    return high


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

FIGURES = ("screen", "study", "regret", "saving", "workers", "selection", "real")


def measure(
    wanted: list[str], names: list[str], budget_s: float, limit_s: float, studies: int, kept: Path | None = None
) -> dict[str, Any]:
    """Everything that is wanted, in the order of `FIGURES`."""
    found: dict[str, Any] = {}
    answers: dict[str, dict[str, Any]] = {}
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        answers = {path.stem: json.loads(path.read_text()) for path in kept.glob("*.json")}
    if "screen" in wanted:
        answers["coding_agent"], found["screen_s"] = tuned("coding_agent", 60)
        _said(found)
    if "study" in wanted:
        answers["coding_agent"], found["study_s"] = tuned("coding_agent", 600)
        _said(found)
    if "workers" in wanted:
        found |= two_workers()
        _said(found)
    if "regret" in wanted:
        found["regret"], found["regrets"] = {}, {}
        for name in names:
            if name not in answers:
                answers[name] = tuned(name, budget_s)[0]
            answer = answers[name]
            found["regrets"][name] = regret(name, answer, limit_s)
            found["regret"][name] = found["regrets"][name]["regret"]
            _said(found["regrets"][name] | {"scenario": name})
    if kept is not None:
        for name, answer in answers.items():
            (kept / f"{name}.json").write_text(json.dumps(answer))
    if "saving" in wanted:
        found["savings"] = {name: saving(name, studies) for name in names}
        for key in ("saving", "saving_over_best"):
            known = [one[key] for one in found["savings"].values() if one[key] is not None]
            found[f"sample_{key}"] = statistics.geometric_mean(known) if known else None
    if "selection" in wanted:
        found |= selection("publish_stall", studies)
    if "real" in wanted:
        found |= real_selection("publish_stall", studies, REAL_BUDGET_S)
    return found


def _said(found: dict[str, Any]) -> None:
    print(json.dumps(found), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object, nothing else on standard output")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--scenarios", nargs="+", choices=list(grids.PLANS), default=list(grids.PLANS))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each study whose regret is measured")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds to measure a regret in")
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--answers", type=Path, help="folder of answers, which are not searched for again")
    args = parser.parse_args()
    found = measure(args.only, args.scenarios, args.budget, args.limit, args.studies, args.answers)
    if args.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:32s} {json.dumps(value)}")


if __name__ == "__main__":
    main()
