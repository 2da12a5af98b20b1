"""Stored grids describe the simulator, and what is held against them is counted as it says."""

from __future__ import annotations

import json
import math
import random
import statistics

import emulated
import grids
import pytest
import tuning

STORED = sorted(path.stem for path in grids.STORED.glob("*.json"))
FEWEST = {"coding_agent": 64}


def stored(name):
    return json.loads((grids.STORED / f"{name}.json").read_text())


@pytest.mark.parametrize("name", STORED)
def test_a_grid_has_what_it_promises(name):
    grid = stored(name)
    points = {tuple(one["point"]): one for one in grid["points"]}
    assert grid["admitted"] >= FEWEST.get(name, 256)
    assert len(points) == grid["computed"] <= grid["admitted"]
    assert sum(len(set(values)) > 1 for values in grid["values"]) >= 4
    assert points[tuple(grid["today"])]["ratio"] == 1
    assert max(one["lag_max"] for one in points.values()) <= tuning.LAG_CEILING
    wide = [one for one in points.values() if one["half_width"] is None or one["half_width"] > grids.GOAL * one["ratio"]]
    assert len(wide) == grid["not_within_1_percent"]
    for point in random.Random(0).sample(sorted(points), 20):
        assert grids.admitted(name, point)


def test_a_stored_level_is_that_of_the_simulator():
    grid = stored("publish_stall")
    one = grid["points"][0]
    row = grids.evaluate("publish_stall", tuple(one["point"]), 77, 24)
    assert row.groups / row.chip_s == pytest.approx(one["kept_groups_per_chip_s"], rel=0.12)


def test_points_that_are_said_to_be_the_same_are():
    grid = stored("publish_stall")
    alike = [tuple(one["point"]) for one in grid["points"] if one["same_as"] == grid["points"][0]["same_as"]]
    assert len({grids.evaluate("publish_stall", point, 78, 8).sign for point in alike[:2]}) == 1


def row(point, seed, steps, sign):
    return grids.Row(point, seed, steps, 1.0, 10, 10.0, 1.0, 1, 0.5, 1, 1, sign)


def test_a_class_is_split_where_two_of_it_differ_and_what_was_written_is_read_again(tmp_path):
    grid = grids.Grid("publish_stall", tmp_path)
    today, other, third = grid.points[:3]
    for point in (today, other, third):
        grid.add(row(point, grids.SHORT_SEED, grids.SHORT_STEPS, "alike"))
    assert [today, other, third] in grid.classes()
    grid.add(row(today, grids.FIRST_SEED, grid.plan.steps, "one"))
    grid.add(row(other, grids.FIRST_SEED, grid.plan.steps, "another"))
    assert [today, third] in grid.classes()
    again = grids.Grid("publish_stall", tmp_path)
    assert again.classes() == grid.classes()
    assert again.rows == grid.rows


def test_of_a_class_another_member_is_looked_at_and_no_job_is_done_twice(tmp_path):
    grid = grids.Grid("publish_stall", tmp_path)
    for point in grid.points:
        grid.add(row(point, grids.SHORT_SEED, grids.SHORT_STEPS, "alike"))
    jobs = grid.jobs_coarse(2)
    assert len({point for point, _, _ in jobs}) == 2
    for point, seed, steps in jobs:
        grid.add(row(point, seed, steps, f"of {seed}"))
    assert grid.jobs_coarse(2) == []
    assert grid.ratio(grid.points).mean == 1


def test_an_emulated_grid_has_the_levels_and_spreads_of_the_grid():
    grid = emulated.Emulated("publish_stall")
    point, entry = max(grid.table.items(), key=lambda item: item[1].ratio)
    settings = grids.settings_of(point)
    today = grids.settings_of(grid.today_point)
    runs = [(grid(today, seed, grid.steps), grid(settings, seed, grid.steps)) for seed in range(2000)]
    logs = [math.log(b.kept_groups_per_chip_s / a.kept_groups_per_chip_s) for a, b in runs]
    stored_spread = next(
        one["spread"] / one["ratio"] for one in stored("publish_stall")["points"] if tuple(one["point"]) == point
    )
    level = grid.table[grid.today_point].level
    assert statistics.fmean(logs) == pytest.approx(math.log(entry.level / level), abs=0.002)
    assert statistics.stdev(logs) == pytest.approx(stored_spread, rel=0.1)
    assert grid.regret(settings) == 0
    assert grid.regret(None) == 1 - 1 / entry.ratio


def test_a_share_of_right_answers_has_an_upper_limit():
    assert tuning.upper_limit(40, 40) == 1
    assert tuning.upper_limit(0, 40) == pytest.approx(1 - 0.05 ** (1 / 40))
    limit = tuning.upper_limit(38, 40)
    two_or_more_wrong = 1 - limit**40 - 40 * limit**39 * (1 - limit)
    assert two_or_more_wrong == pytest.approx(0.05)
