"""Statistical theory: systems of queueing theory through the pipeline's actors, each mean inside its interval.

All intervals of a test hold at once with 99 % (Bonferroni). The seeds are fixed: a failure is a change, not bad luck.
`tests/benchmarks/coverage.py` does the same at full size, and counts how often intervals cover.
"""

from __future__ import annotations

import itertools
import math

import pytest
from means import WARM, group_cases, open_cases, repairman_case, sharing_cases
from queues import Path

from harness.analysis import oracles
from harness.analysis.by_hand import closed_network, exact_mva
from harness.analysis.statistics import batch_means, mean_interval, simultaneous
from harness.core.work import WorkKind

REPLICATIONS = 8
CASES = [*open_cases(), *sharing_cases(), *group_cases()]
LOADS = range(1, 31)


PATHS: dict[int, list[Path]] = {}


def paths(case):
    """Replications of a case; several measures of one system look at the same ones."""
    key = id(case.scenario)
    if key not in PATHS:
        PATHS[key] = [Path(case.scenario, seed) for seed in range(REPLICATIONS)]
    return PATHS[key]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_means_are_those_of_theory(case):
    values = [case.measure(path) for path in paths(case)]
    interval = mean_interval(values, simultaneous(len(CASES), 0.99))
    assert interval.low <= case.truth * (1 + case.bias), (case.truth, interval)
    assert interval.high >= case.truth, (case.truth, interval)
    assert interval.half_width < 1.25 * case.truth, "an interval that says something"


def test_a_closed_loop_is_the_machine_repairman_at_thirty_loads():
    """Throughput from batch means of the gaps between ends; all thirty intervals at once."""
    confidence = simultaneous(len(LOADS), 0.99)
    widths = []
    for customers in LOADS:
        case = repairman_case(customers, steps=10)
        path = Path(case.scenario, customers)
        ends = sorted(end for end in path.ends(WorkKind.TOOL_CALL) if end <= path.end_ns)[WARM:]
        gaps = [(b - a) / 1e9 for a, b in itertools.pairwise(ends)]
        found = batch_means(gaps, 10, confidence).interval
        assert found.contains(1 / case.truth), (customers, 1 / case.truth, found)
        assert 1 / found.mean <= min(customers / 9.0, 1.0) * 1.25, "asymptotic bound, with luck"
        widths.append(found.relative_half_width)
    assert max(widths) < 1.0


def test_more_customers_come_closer_to_the_bound_and_never_beyond():
    """min(N / (Z + S), 1 / S) holds of theory itself, of exact and approximate mean value analysis alike."""
    exact = exact_mva(40, [1.0], 8.0)
    for customers in range(1, 41):
        bound = min(customers / 9.0, 1.0)
        truth = oracles.repairman(customers, 8.0, 1.0)
        assert exact[customers - 1] == pytest.approx(truth, rel=1e-12)
        assert truth <= bound * (1 + 1e-12)
        assert closed_network(customers, [1.0], 8.0) == pytest.approx(truth, rel=0.09), "Schweitzer's approximation"


@pytest.mark.parametrize(("load", "servers"), [(0.5, 1), (2.1, 3), (7.5, 8)])
def test_formulas_agree_with_each_other(load, servers):
    assert oracles.mmc_wait(load, 1.0, servers) == pytest.approx(oracles.erlang_c(load, servers) / (servers - load), rel=1e-12)
    if servers == 1:
        assert oracles.mmc_wait(load, 1.0, 1) == pytest.approx(oracles.mg1_wait(load, 1.0, 2.0))
        assert oracles.mm1k_inside(load, 1.0, 200) == pytest.approx(load / (1 - load))
    total = sum(oracles.poisson(load, n) for n in range(100))
    assert total == pytest.approx(1.0)
    states = [load**n / math.factorial(n) for n in range(servers + 1)]
    assert oracles.erlang_b(load, servers) == pytest.approx(states[-1] / sum(states))
