"""Outages on absolute time: keyed calendars, known shares of down time, and what an outage does to a call."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.core.work import WorkKind
from harness.costs.calendars import FAILS, HANGS, SURVIVES, Calendar, Outages
from harness.costs.draws import HANG_NS
from harness.scenario.environments import Outage

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
S = 1_000_000_000


def constant(value_s):
    return {"law": "constant", "value_s": value_s}


def exponential(mean_s):
    return {"law": "exponential", "mean_s": mean_s}


def outage(**fields):
    base = {"name": "vendor", "takes": ["tools"], "up": exponential(40.0), "down": exponential(6.0)}
    return Outage.model_validate(base | fields)


laws = st.sampled_from(
    [
        exponential(5.0),
        constant(3.0),
        {"law": "gamma", "shape": 3.0, "mean_s": 8.0},
        {"law": "mixture", "parts": [{"weight": 0.5, "of": exponential(4.0)}], "atoms": [{"at_s": 0.0, "weight": 0.5}]},
    ]
)


@SETTINGS
@given(laws, laws, st.integers(0, 1000), st.booleans(), st.lists(st.integers(0, 10**12), min_size=1, max_size=6))
def test_a_calendar_is_the_same_however_it_is_asked(up, down, seed, begins_up, instants):
    what = outage(up=up, down=down, begins_up=begins_up)
    asked, straight = Calendar(what, seed), Calendar(what, seed)
    for instant in instants:
        asked.down_ns(instant, instant + 10**10)
        asked.meet(0, instant, 10**9, (0, 0, 0, 0, 0, 0))
    end = 10**12
    found = straight.intervals(0, end)
    assert asked.intervals(0, end) == found
    assert all(a[1] <= b[0] for a, b in pairwise(found)), "one host's outages do not overlap"
    for t0 in instants:
        t1 = t0 + 3 * 10**10
        overlap = sum(max(min(e, t1) - max(s, t0), 0) for s, e, _, _ in straight.intervals(0, t1 + 1))
        assert asked.down_ns(t0, t1) == overlap


def test_a_calendar_belongs_to_seed_name_and_host():
    def found(seed=0, **fields):
        return [interval[:2] for interval in Calendar(outage(**fields), seed).intervals(0, 10**12) if interval[2] == 0]

    assert found() == found(takes=["scoring"], in_flight="hang", share=0.2)
    assert found() == found(hosts=7), "more hosts leave the first one's outages as they are"
    assert found() != found(seed=1)
    assert found() != found(name="another")
    hosts = {interval[2]: interval[:2] for interval in Calendar(outage(hosts=2), 0).intervals(0, 10**12)}
    assert hosts[0] != hosts[1]


def test_a_calendar_that_begins_up_counts_from_the_start():
    what = outage(up=constant(10.0), down=constant(2.5), begins_up=True)
    assert [interval[:2] for interval in Calendar(what, 3).intervals(0, 40 * S)] == [
        (10 * S, 12_500_000_000),
        (22_500_000_000, 25 * S),
        (35 * S, 37_500_000_000),
    ]


@pytest.mark.parametrize(
    ("up", "down"),
    [
        (exponential(40.0), exponential(6.0)),
        (constant(40.0), constant(6.0)),
        ({"law": "gamma", "shape": 2.0, "mean_s": 30.0}, {"law": "lognormal", "mu": 1.0, "sigma": 1.0}),
    ],
)
@pytest.mark.parametrize("window_s", [10, 400])
def test_the_share_of_down_time_is_the_known_one_from_the_first_instant_on(up, down, window_s):
    """Renewal reward: 1 - 1 / (1 + down / up). A simultaneous 99.9 % interval over independent seeds, at either window."""
    calendars = [Calendar(outage(up=up, down=down), seed) for seed in range(800)]
    shares = [calendar.down_ns(0, window_s * S) / (window_s * S) for calendar in calendars]
    assert fmean(shares) == pytest.approx(calendars[0].down_share_expected, abs=4 * stdev(shares) / sqrt(len(shares)))


def test_episodes_are_spread_over_hosts_by_key():
    calendar = Calendar(outage(share=0.4, hosts=4), 11)
    homes = [calendar.host_of(task, 0, member) for task in range(600) for member in range(4)]
    assert homes == [Calendar(outage(share=0.4, hosts=4), 11).host_of(t, 0, m) for t in range(600) for m in range(4)]
    assert sum(home >= 0 for home in homes) / len(homes) == pytest.approx(0.4, abs=0.03)
    for host in range(4):
        assert homes.count(host) / len(homes) == pytest.approx(0.1, abs=0.02)
    wider = Calendar(outage(share=0.8, hosts=8), 11)
    dependent = {(t, m) for t in range(600) for m in range(4) if calendar.host_of(t, 0, m) >= 0}
    assert all(wider.host_of(t, 0, m) >= 0 for t, m in dependent), "a larger share adds episodes and takes none away"


@SETTINGS
@given(
    st.sampled_from(["fail", "hang", "slow", "finish"]),
    st.sampled_from(["fail", "hang", "slow"]),
    st.integers(0, 50),
    st.floats(0, 60),
    st.floats(0.001, 30),
)
def test_a_call_meets_what_a_slow_walk_through_time_says(in_flight, new_calls, seed, at_s, takes_s):
    factor = 3.0 if "slow" in (in_flight, new_calls) else None
    what = outage(
        up=exponential(6.0), down=exponential(4.0), in_flight=in_flight, new_calls=new_calls, slow_factor=factor,
        fail_after=constant(0.7),
    )  # fmt: skip
    calendar = Calendar(what, seed)
    at, ns = round(at_s * S), round(takes_s * S)
    known = [interval[:2] for interval in calendar.intervals(0, at + 10 * ns + 200 * S)]
    found = calendar.meet(0, at, ns, (0, 0, 0, 0, 0, 0))[:2]
    tick, now, left = S // 500, at, float(ns)
    expected = None
    while left > 0 and expected is None:
        inside = next((start for start, end in known if start <= now < end), None)
        effect = None if inside is None else new_calls if inside <= at else in_flight
        if effect == "fail":
            expected = (now + 7 * S // 10 - at, FAILS)
        elif effect == "hang":
            expected = (HANG_NS, HANGS)
        left -= tick / factor if effect == "slow" else tick
        now += tick
    expected = expected or (now - at, SURVIVES)
    if found[1] != expected[1]:  # the two differ by a tick at most, so that an edge was as near
        edges = [edge for interval in known for edge in interval]
        assert min(abs(edge - at - end) for edge in edges for end in (found[0], expected[0])) < 60 * tick
    else:
        assert found[0] == pytest.approx(expected[0], abs=60 * tick)


def test_what_ends_at_the_very_instant_has_ended_well():
    calendar = Calendar(outage(up=constant(10.0), down=constant(5.0), begins_up=True), 0)
    key = (0, 0, 0, 0, 0, 0)
    assert calendar.meet(0, 0, 10 * S, key)[:2] == (10 * S, SURVIVES)
    assert calendar.meet(0, 0, 10 * S + 1, key)[:2] == (10 * S, FAILS)
    assert calendar.meet(0, 10 * S, 1, key)[:2] == (0, FAILS)
    assert calendar.meet(0, 15 * S, 1, key)[:2] == (1, SURVIVES)
    assert calendar.meet(0, 0, HANG_NS, key)[:2] == (10 * S, FAILS), "what hangs dies with what it hangs on"


def test_of_several_outages_the_first_that_ends_a_call_decides():
    slow = outage(
        name="slow", up=constant(5.0), down=constant(5.0), begins_up=True, in_flight="slow", new_calls="slow", slow_factor=2.0
    )
    fail = outage(name="fail", up=constant(12.0), down=constant(1.0), begins_up=True, takes=["browse"])
    found = Outages([slow, fail], ["search", "browse"], 0)
    meet = found.meet
    assert meet(WorkKind.TOOL_CALL, 0, (0, 0), 0, 7 * S, (0, 0, 0, 0, 0)) == (9 * S, SURVIVES)
    assert meet(WorkKind.TOOL_CALL, 1, (0, 0), 0, 7 * S, (0, 0, 0, 0, 0)) == (9 * S, SURVIVES)
    assert meet(WorkKind.TOOL_CALL, 1, (0, 0), 0, 11 * S, (0, 0, 0, 0, 0)) == (12 * S, FAILS), "slowed into the next one"
    assert meet(WorkKind.TOOL_CALL, 1, (0, -1), 0, 11 * S, (0, 0, 0, 0, 0)) == (13_500_000_000, SURVIVES), "another host's"
    assert meet(WorkKind.ENV_RESET, 0, (0, 0), 12 * S, S, (0, 0, 0, 0, 0)) == (S, SURVIVES), "starts do not depend on either"
    assert not found.touches(WorkKind.ENV_RESET)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"up": constant(0.5)}, "up has a mean"),
        ({"down": constant(0.0)}, "takes no time"),
        ({"in_flight": "slow"}, "slow_factor"),
        ({"slow_factor": 2.0}, "slow_factor"),
        ({"slow_factor": 1.0, "in_flight": "slow"}, "greater than 1"),
        ({"takes": []}, "at least 1"),
        ({"share": 0.0}, "greater than 0"),
        ({"share": 1.5}, "less than or equal to 1"),
        ({"hosts": 0}, "greater than or equal to 1"),
        ({"new_calls": "finish"}, "fail"),
        ({"name": ""}, "at least 1"),
        ({"minutes": 3}, "Extra"),
    ],
)
def test_what_is_no_outage_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        outage(**fields)
