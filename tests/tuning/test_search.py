"""What a search finds and says, on a pipeline whose truth is known in closed form."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from standin import TODAY, Pipeline, admit, problem
from virtual_crew import VirtualCrew

from harness.core.errors import ConfigError
from harness.tuning.analytic import ByHandSaid
from harness.tuning.around import alone
from harness.tuning.measured import HONEST_STEPS
from harness.tuning.result import INDIFFERENCE, WITHIN, TuneResult, Verdict
from harness.tuning.search import Problem, Promise, tune
from harness.tuning.study import Identity, Study

if TYPE_CHECKING:
    from pathlib import Path

    from harness.tuning.space import Settings

DEEP = TODAY | {"pipeline.max_staleness": 2, "pipeline.pipeline_depth": 2}


def quick(setting: dict[str, int], seed: int, steps: int) -> float:
    return 0.15 * (steps + 5)


def searched(pipeline: Pipeline, *, case: Problem | None = None, budget_s: float = 60.0, **options) -> TuneResult:
    case = case or problem(pipeline)
    return tune(case, promise=Promise(budget_s), workers=2, crew=VirtualCrew(pipeline, 2, quick), **options)


def best_by_brute_force(pipeline: Pipeline, case: Problem, most_lag: int) -> float:
    """The largest rate over every admitted combination within the ceiling, without noise."""
    still = replace(pipeline, common=0.0, own=0.0)
    best = 0.0
    for values in itertools.product(*(knob.values for knob in case.space.knobs)):
        setting = dict(zip((knob.path for knob in case.space.knobs), values, strict=True))
        try:
            admit(setting)
        except ConfigError:
            continue
        run = still(setting, 0, 20)
        if run.lag_max <= most_lag:
            best = max(best, run.kept_groups_per_chip_s)
    return best


@pytest.mark.parametrize(
    "pipeline",
    [Pipeline(), Pipeline(generate_s=4.0, sync_s=6.0), Pipeline(slots=256, sync_s=0.0)],
    ids=["overlap", "sync", "slots"],
)
def test_what_is_named_is_nearly_the_best_there_is(pipeline: Pipeline) -> None:
    case = problem(pipeline)
    result = searched(pipeline, case=case)
    assert result.verdict is Verdict.BETTER
    assert result.settings is not None
    truth = replace(pipeline, common=0.0, own=0.0)
    named = truth(result.settings, 0, 20).kept_groups_per_chip_s
    assert named >= 0.95 * best_by_brute_force(pipeline, case, 8)
    gain = named / truth(TODAY, 0, 20).kept_groups_per_chip_s - 1
    assert result.gain is not None
    assert abs(result.gain.mean - gain) < 0.02
    assert not result.provisional


def test_all_settings_run_on_the_seeds_of_the_baseline_and_the_final_s_are_fresh() -> None:
    pipeline = Pipeline()
    crew = VirtualCrew(pipeline, 2, quick)
    result = tune(problem(pipeline), workers=2, crew=crew)
    today = {(seed, steps) for setting, seed, steps in crew.calls if setting == TODAY}
    assert {(seed, steps) for _, seed, steps in crew.calls} == today
    assert not set(result.effort.final_seeds) & set(result.effort.screen_seeds)
    assert len({json.dumps([sorted(s.items()), seed, steps]) for s, seed, steps in crew.calls}) == len(crew.calls)


def test_the_same_search_gives_the_same_answer() -> None:
    assert searched(Pipeline()) == searched(Pipeline())


def test_what_is_refused_at_load_is_never_simulated() -> None:
    crew = VirtualCrew(Pipeline(), 2, quick)
    result = tune(problem(Pipeline()), workers=2, crew=crew)
    for setting, _, _ in crew.calls:
        admit(setting)
    assert result.effort.refused > 0


def test_no_setting_is_better_when_none_is() -> None:
    result = searched(Pipeline(overlaps=False, sync_s=0.0, own=0.002))
    assert result.verdict is Verdict.NO_BETTER


def test_it_cannot_tell_when_noise_hides_what_would_matter() -> None:
    noisy = Pipeline(overlaps=False, sync_s=0.0, own=1.5)
    verdicts = []
    for seed in range(20):
        crew = VirtualCrew(noisy, 2, lambda setting, seed, steps: 0.3 * (steps + 5))
        verdicts.append(tune(replace(problem(noisy), seed=1000 * seed), workers=2, crew=crew).verdict)
    # Nothing matters here, and the noise is large: a winner is named by chance, seldom, and mostly nothing can be told.
    assert verdicts.count(Verdict.BETTER) <= 2
    assert verdicts.count(Verdict.CANNOT_TELL) > 10


def test_it_seldom_names_a_winner_where_there_is_none() -> None:
    noisy = Pipeline(overlaps=False, sync_s=0.0, own=0.5)
    named = 0
    for seed in range(40):
        case = replace(problem(noisy), seed=1000 * seed)
        crew = VirtualCrew(noisy, 2, lambda setting, seed, steps: 0.3 * (steps + 5))
        named += tune(case, workers=2, crew=crew).verdict is Verdict.BETTER
    assert named <= 4  # two-sided 95 % says one in forty; five or more would happen once in 250 such tests


def test_changes_that_do_nothing_are_taken_back() -> None:
    result = searched(Pipeline(sync_s=0.0))
    assert set(result.changed) == {"pipeline.max_staleness", "pipeline.pipeline_depth"}


def test_a_dead_knob_is_said_and_a_live_one_is_not() -> None:
    result = searched(Pipeline())
    assert result.dead_knobs == ()  # own noise is keyed by all settings, so nothing repeats exactly
    quiet = searched(Pipeline(own=0.0, slots=16))  # no value that is searched limits so few
    assert {"pipeline.buffer_capacity", "pipeline.max_inflight"} <= set(quiet.dead_knobs)
    assert "pipeline.steps_per_sync" not in quiet.dead_knobs
    assert "pipeline.max_inflight" not in searched(Pipeline(own=0.0, slots=256)).dead_knobs


def test_a_knob_is_dead_only_where_its_far_end_was_tried() -> None:
    quiet = Pipeline(own=0.0)
    crew = VirtualCrew(quiet, 2, quick)
    result = tune(problem(quiet), workers=2, crew=crew)
    for path in result.dead_knobs:
        knob = next(knob for knob in problem(quiet).space.knobs if knob.path == path)
        tried = {setting[path] for setting, _, _ in crew.calls}
        assert tried & {knob.values[0], knob.values[-1]} - {knob.today}


def test_flat_ranges_are_those_of_the_truth() -> None:
    pipeline = Pipeline(sync_s=4.0, own=0.0)
    result = searched(pipeline)
    assert result.settings is not None
    still = replace(pipeline, common=0.0)
    best = still(result.settings, 0, 20).kept_groups_per_chip_s
    space = problem(pipeline).space
    movable = {knob.path for knob in space.knobs if alone(space, result.settings, knob)}
    assert {flat.path for flat in result.flatness} == movable
    for flat in result.flatness:
        assert result.settings[flat.path] == flat.best
        assert flat.best in flat.within
        for value in (*flat.within, *flat.outside):
            there = result.settings | {flat.path: value}
            admit(there)
            loss = -math.log(still(there, 0, 20).kept_groups_per_chip_s / best)
            assert (loss <= WITHIN + 1e-9) is (value in flat.within), (flat.path, value, loss)


def test_a_flat_range_never_reaches_over_the_lag_ceiling() -> None:
    pipeline = Pipeline(trains_stale=True, own=0.0)
    result = searched(pipeline, max_lag=3)
    assert result.settings is not None
    for flat in result.flatness:
        for value in flat.within:
            assert pipeline(result.settings | {flat.path: value}, 0, 20).lag_max <= 3


def test_finalists_are_told_apart_and_losers_stop_early() -> None:
    crew = VirtualCrew(Pipeline(), 2, lambda setting, seed, steps: 0.02 * (steps + 5))
    result = tune(problem(Pipeline()), workers=2, crew=crew)
    race = result.elimination
    assert race is not None
    assert race.entrants == len(race.dropped) + len(race.survivors) == len(result.alternatives) + 2
    assert ({}, 5) in race.dropped  # today's is far behind
    assert result.changed in race.survivors
    lengths = [alternative.gain.n for alternative in result.alternatives]
    assert all(after <= race.rounds for _, after in race.dropped)
    assert max(lengths) >= race.rounds


def test_today_s_settings_survive_where_nothing_is_better() -> None:
    race = searched(Pipeline(overlaps=False, sync_s=0.0, own=0.002)).elimination
    assert race is not None
    assert race.decided
    assert {} in race.survivors


def test_a_tie_is_said_to_be_one_and_the_least_lag_is_named() -> None:
    result = searched(Pipeline(own=0.0, slots=256))
    assert result.settings is not None
    assert result.elimination is not None
    tied = [alternative for alternative in result.alternatives if alternative.tied]
    for alternative in tied:
        assert alternative.settings in result.elimination.survivors
        assert alternative.lag_p95 >= result.settings["pipeline.pipeline_depth"] - 0.25


def test_a_gain_within_the_indifference_zone_is_no_reason_to_change() -> None:
    slight = Pipeline(overlaps=False, sync_s=0.5, own=0.0, common=0.05)  # a longer sync interval gains under 3 %
    fine, coarse = searched(slight, indifference=0.005), searched(slight, indifference=0.05)
    assert fine.verdict is Verdict.BETTER
    assert coarse.verdict is Verdict.NO_BETTER
    assert (fine.indifference, coarse.indifference) == (0.005, 0.05)
    assert coarse.patch == ""


@pytest.mark.parametrize("options", [{"indifference": 0.0}, {"indifference": 1.0}, {"error": 0.0}, {"error": 0.5}])
def test_a_zone_or_an_error_that_means_nothing_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="range"):
        searched(Pipeline(), **options)


def test_a_smaller_error_widens_the_intervals() -> None:
    usual, strict = searched(Pipeline()), searched(Pipeline(), error=0.001)
    assert usual.gain is not None
    assert strict.gain is not None
    assert strict.gain.confidence > usual.gain.confidence


def test_the_best_of_a_screen_run_longer_and_on_another_seed_first() -> None:
    crew = VirtualCrew(Pipeline(), 2, lambda setting, seed, steps: 0.03 * (steps + 5))
    result = tune(problem(Pipeline()), workers=2, crew=crew)
    short, long = result.effort.screen_steps, result.effort.final_steps
    between = [(setting, seed) for setting, seed, steps in crew.calls if short < steps < long and setting != TODAY]
    wide = [setting for setting, _, steps in crew.calls if steps == short]
    assert between
    assert between[0][1] == result.effort.screen_seeds[1]
    assert len(between) < len(wide)


def test_tokens_are_counted_where_they_are_the_objective() -> None:
    pipeline = Pipeline(tokens_for_depth=0.1)
    by_groups, by_tokens = searched(pipeline), searched(pipeline, objective="tokens")
    assert by_groups.settings is not None
    assert by_tokens.settings is not None
    assert by_tokens.settings["pipeline.pipeline_depth"] < by_groups.settings["pipeline.pipeline_depth"]
    assert by_tokens.verdict is Verdict.BETTER
    assert "By trained tokens" in by_groups.disagreement
    assert "By kept groups" in by_tokens.disagreement
    with pytest.raises(ConfigError, match="none was trained"):
        searched(replace(pipeline, tokens_for_depth=1e9), objective="tokens", case=problem(pipeline, DEEP))


def test_closed_forms_give_the_first_guess_and_rule_out_what_cannot_win() -> None:
    pipeline = Pipeline()
    still = replace(pipeline, common=0.0, own=0.0)

    def by_hand(setting: Settings) -> ByHandSaid:
        admit(setting)
        rate = still(setting, 0, 20).kept_groups_per_chip_s
        return ByHandSaid(rate, 1.01 * rate)

    case = replace(problem(pipeline), by_hand=by_hand)
    crew = VirtualCrew(pipeline, 2, quick)
    result = tune(case, workers=2, crew=crew)
    told, plain = result.by_hand, searched(pipeline)
    assert told is not None
    assert told.ruled_out > 0
    screened = [setting for setting, _, steps in crew.calls if steps == result.effort.screen_steps and setting != TODAY]
    first = still(screened[0], 0, 20).kept_groups_per_chip_s
    assert first >= 0.99 * best_by_brute_force(pipeline, case, 8)
    bar = still(TODAY, 0, 20).kept_groups_per_chip_s
    slow = [setting for setting in screened if still(setting, 0, 20).kept_groups_per_chip_s < 0.5 * bar]
    assert not slow
    assert plain.by_hand is None


def test_closed_forms_rule_nothing_out_for_another_objective() -> None:
    said = ByHandSaid(1e-9, 1e-9)  # as if nothing could reach what today's settings do
    case = replace(problem(Pipeline()), by_hand=lambda setting: said)
    assert searched(Pipeline(), case=case, objective="idle").verdict is Verdict.BETTER


def test_a_study_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    identity = Identity("stand-in", {}, "code")
    calls: list[list[str]] = []
    for interrupt_at in (20.0, math.inf, math.inf):
        crew = VirtualCrew(Pipeline(), 2, quick, interrupt_at=interrupt_at)
        with Study.open(tmp_path / "study", identity) as study:
            result = tune(problem(Pipeline()), workers=2, crew=crew, study=study)
        calls.append([json.dumps([sorted(setting.items()), seed, steps]) for setting, seed, steps in crew.calls])
        assert result.interrupted is (interrupt_at < math.inf)
        assert result.study == str(tmp_path / "study")
    first, second, third = map(set, calls)
    assert not (first | second) & third
    assert len(first & second) <= 2  # what was running when it was interrupted
    assert result.verdict is Verdict.BETTER
    assert result.effort.candidates > searched(Pipeline()).effort.candidates


def test_contributions_are_those_of_the_truth() -> None:
    pipeline = Pipeline(sync_s=4.0)
    result = searched(pipeline)
    assert result.settings is not None
    still = replace(pipeline, common=0.0, own=0.0)
    for one in result.contributions:
        without = result.settings | {one.path: one.before}
        if one.needed:
            with pytest.raises(ConfigError):
                admit(without)
            continue
        truth = still(result.settings, 0, 20).kept_groups_per_chip_s / still(without, 0, 20).kept_groups_per_chip_s - 1
        assert one.gain is not None
        assert abs(one.gain.mean - truth) < 0.02


@pytest.mark.parametrize(("most", "trains_stale"), [(0, False), (2, False), (3, True)])
def test_the_ceiling_holds_whatever_makes_the_lag(most: int, trains_stale: bool) -> None:
    pipeline = Pipeline(trains_stale=trains_stale)
    case = problem(pipeline)
    result = searched(pipeline, case=case, max_lag=most)
    assert result.settings is not None
    assert result.best is not None
    assert result.settings["pipeline.max_staleness"] <= most
    assert result.best.lag_max <= most
    assert result.ceiling_given
    named = replace(pipeline, common=0.0, own=0.0)(result.settings, 0, 20).kept_groups_per_chip_s
    assert named >= 0.9 * best_by_brute_force(pipeline, case, most)


def test_a_configuration_over_the_ceiling_gets_the_best_within_it() -> None:
    today = TODAY | {"pipeline.max_staleness": 6, "pipeline.pipeline_depth": 6}
    pipeline = Pipeline()
    result = searched(pipeline, case=problem(pipeline, today), max_lag=1)
    assert result.verdict is Verdict.WITHIN_CEILING
    assert result.best is not None
    assert result.best.lag_max <= 1
    assert result.gain is not None
    assert result.gain.mean < 0


def test_a_negative_ceiling_is_refused() -> None:
    with pytest.raises(ConfigError, match="negative"):
        searched(Pipeline(), max_lag=-1)


def test_objectives_that_disagree_are_said_to() -> None:
    wasteful = Pipeline(waste=0.12, common=0.02)
    kept, idle = searched(wasteful, objective="kept"), searched(wasteful, objective="idle")
    assert kept.settings is not None
    assert idle.settings is not None
    assert idle.settings["pipeline.pipeline_depth"] > kept.settings["pipeline.pipeline_depth"]
    assert "By idle share alone" in kept.disagreement
    assert "By kept groups" in idle.disagreement
    assert searched(Pipeline()).disagreement == ""


def test_a_simulation_that_fails_is_left_out_and_said() -> None:
    result = searched(Pipeline(crashes_above=100))
    assert result.verdict is Verdict.BETTER
    assert result.effort.failed > 0
    assert any("does not fit" in note for note in result.notes)


def test_short_runs_are_provisional() -> None:
    crew = VirtualCrew(Pipeline(), 2, lambda setting, seed, steps: 0.5 * (steps + 5))
    result = tune(problem(Pipeline()), workers=2, crew=crew)
    assert result.baseline.learner_steps < HONEST_STEPS
    assert result.provisional


def test_the_command_simulates_what_is_reported() -> None:
    pipeline = Pipeline()
    result = searched(pipeline)
    words = shlex.split(result.command)
    sets = dict(words[i + 1].split("=") for i, word in enumerate(words) if word == "--set")
    steps = int(sets.pop("run.learner_steps", 40))
    first, count = (int(words[words.index(option) + 1]) for option in ("--seed", "--replications"))
    settings = TODAY | {path: int(value) for path, value in sets.items()}
    runs = [pipeline(settings, first + i, steps) for i in range(count)]
    rate = sum(run.groups for run in runs) / sum(run.chip_total_ns / 1e9 for run in runs)
    assert result.best is not None
    assert math.isclose(rate, result.best.kept_groups_per_chip_s.mean)
    assert words[:3] == ["harness", "simulate", "stand_in.toml"]


def test_json_is_plain_and_whole() -> None:
    result = searched(Pipeline())
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["schema"] == 1
    assert data["kind"] == "tune"
    assert data["verdict"] == "better"
    assert data["changed"] == result.changed
    assert data["gain"]["low"] > INDIFFERENCE
    assert data["baseline"]["kept_groups_per_chip_s"]["n"] == len(result.effort.final_seeds)
    assert math.isclose(sum(data["best"]["chip_share"].values()), 1.0)
    assert set(data["effort"]) >= {"budget_s", "wall_s", "candidates", "refused", "cut_off", "final_steps", "final_seeds"}


def test_an_interval_that_does_not_exist_is_null_in_json() -> None:
    crew = VirtualCrew(Pipeline(), 1, lambda setting, seed, steps: 35.0)
    data = tune(problem(Pipeline()), workers=1, crew=crew).to_json()
    assert data["baseline"]["idle_share"]["low"] is None
    json.dumps(data, allow_nan=False)


def test_finalists_are_not_the_same_thing_twice() -> None:
    quiet = Pipeline(own=0.0, slots=16)  # two knobs do nothing
    crew = VirtualCrew(quiet, 2, lambda setting, seed, steps: 0.02 * (steps + 5))
    result = tune(problem(quiet), workers=2, crew=crew)
    named = [result.settings or TODAY, *(result.today | other.settings for other in result.alternatives)]
    rates = [quiet(setting, 0, 20).kept_groups_per_chip_s for setting in named]
    assert len(rates) > 2
    assert len(set(rates)) == len(rates)


def test_a_rate_that_no_run_can_keep_is_not_claimed() -> None:
    """Above a firm bound the window held work of before: the answer is provisional and says so."""
    pipeline = Pipeline()
    crew = VirtualCrew(pipeline, 2, lambda settings, seed, steps: 0.02 * steps)
    bounded = replace(problem(pipeline), by_hand=lambda settings: ByHandSaid(rate=0.05, bound=0.06))
    result = tune(bounded, promise=Promise(60.0), crew=crew, workers=2)
    assert result.best is not None
    above = result.best.kept_groups_per_chip_s.mean > 0.0606
    assert above == any("above what closed forms allow" in note for note in result.notes)
    assert above
    assert result.provisional
