"""How many groups have a signal: what comes out of the pipeline against the integral over difficulties.

A task of difficulty z, standard normal, is solved with probability p(z) = 1 / (1 + exp(spread z - logit(median))). A group of G
teaches something unless all its members fail or all succeed, so that the share kept is ∫ φ(z) (1 - p^G - (1 - p)^G) dz.
"""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
import pytest
from tiny_world import constant, count, play, scenario

from harness.core.accounts import Fate
from harness.core.events import EventKind

KNOBS = {"groups_per_step": 8, "filter": "zero_variance", "max_inflight": 64, "env_workers": 64, "tool_workers": 64}
KNOBS |= {"reward_workers": 64, "buffer_capacity": 32, "start_unit": "group"}
QUICK = {"turns": count(1), "response_tokens": count(2), "tasks": 100_000}


def kept_share(median, spread, members):
    """The closed form, by the trapezoidal rule on a grid far finer than the integrand."""
    z = np.linspace(-9, 9, 20_001)
    p = 1 / (1 + np.exp(spread * z - log(median / (1 - median))))
    density = np.exp(-z * z / 2) / sqrt(2 * pi)
    return float(np.trapezoid(density * (1 - p**members - (1 - p) ** members), z))


def groups(played):
    """(version at its start, whether it was kept) of every group that was judged."""
    version = {event[2]: event[6] for event in played.of(EventKind.GROUP_ADMIT)}
    kept = [(version[event[2]], True) for event in played.of(EventKind.GROUP_RELEASE)]
    return kept + [(version[event[2]], False) for event in played.of(EventKind.DROP) if event[3] == Fate.FILTERED]


def check(judged, expected):
    """Four standard errors of a share."""
    share, n = sum(kept for _, kept in judged) / len(judged), len(judged)
    assert n > 200
    assert share == pytest.approx(expected, abs=4 * sqrt(expected * (1 - expected) / n)), f"{share} of {n}, expected {expected}"


@pytest.mark.parametrize(("median", "spread", "members"), [(0.5, 0.0, 2), (0.2, 0.0, 4), (0.4, 1.5, 4), (0.1, 3.0, 8)])
def test_the_share_of_groups_with_a_signal_comes_out_of_the_groups(median, spread, members):
    knobs = KNOBS | {"group_size": members, "max_inflight": 16 * members, "env_workers": 16 * members}
    success = {"median": median, "spread": spread}
    played = play(scenario(knobs, workload=QUICK | {"success": success}, steps=40), 1, checks=False)
    check(groups(played), kept_share(median, spread, members))


def test_the_share_drifts_with_a_schedule_of_success():
    """Tasks become easy at version 30: groups that start before and after have each their own closed form."""
    what = scenario(
        KNOBS | {"group_size": 4},
        workload=QUICK | {"success": {"median": 0.4, "spread": 1.5}},
        world={"environments": {"reset": constant(0.1)}},
        steps=60,
    )
    schedules = [{"path": "workload.success.median", "points": [[30, 0.95]]}]
    played = play(type(what).model_validate(what.model_dump() | {"schedules": schedules}), 2, checks=False)
    judged = groups(played)
    check([group for group in judged if group[0] < 30], kept_share(0.4, 1.5, 4))
    check([group for group in judged if group[0] >= 30], kept_share(0.95, 1.5, 4))


def test_the_closed_form_is_that_of_equal_tasks_without_spread():
    assert kept_share(0.3, 0.0, 5) == pytest.approx(1 - 0.3**5 - 0.7**5, rel=1e-9)
    assert kept_share(0.5, 50.0, 2) < 0.05, "tasks that all succeed or all fail teach nothing"
