"""Weights over the learner's one link: replicas that receive together share it, replicas that take turns do not. And money."""

from __future__ import annotations

import pytest
from tiny_world import S, play, scenario

from harness.analysis.money import NS_PER_HOUR, SANDBOXES, TOOL_CALLS, bill, total
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.scenario.prices import Prices
from harness.summaries import priced

LINK = {"base_s": 0.0, "bytes_per_s": 1000.0, "shares_sender_link": True, "sender_bytes_per_s": 1000.0}


def syncs(rollout, transfer):
    """(seconds of each publish, seconds that each replica received)."""
    world = {"inference": {"replicas": 4}, "weights": {"weights_bytes": 100, "transfer": transfer}}
    played = play(scenario({"sync_rollout": rollout, "sync_mode": "keep"}, world=world))
    starts = {event[2]: event[0] for event in played.of(EventKind.SYNC_START)}
    took = [(event[0] - starts[event[2]]) / S for event in played.of(EventKind.PUBLISHED)]
    first = played.of(EventKind.SYNC_INSTALL, entity=1)
    received = [played.report.lane_ns[f"replica/{i}"][State.SYNC_RECV] / S / len(took) for i in range(4)]
    assert len(first) == 4
    return took, received


def test_all_at_once_shares_the_link_and_rolling_does_not():
    together, each = syncs("all_at_once", LINK)
    assert each == pytest.approx([0.4] * 4, abs=0.15)  # four at a quarter of the rate; the last sync is cut by the end
    assert min(together) >= 0.4
    _, each = syncs("rolling", LINK)
    assert max(each) <= 0.1 + 1e-9
    _, each = syncs("all_at_once", {"base_s": 0.0, "bytes_per_s": 1000.0})
    assert max(each) <= 0.1 + 1e-9


PRICES = Prices(chip_hour_usd=3.6, sandbox_hour_usd=0.36, tool_call_usd=0.5)


def test_a_bill_is_time_held_and_calls_made():
    """Chips are paid for every nanosecond of the window, sandboxes from start to teardown, tools by call and attempt."""
    what = scenario({"retry_infra": 2}, random=True, tool={"infra_failure": 0.2}, steps=5)
    what = what.model_copy(update={"world": what.world.model_copy(update={"prices": PRICES})})
    played = play(what, 3)
    window_h = (played.report.end_ns - played.report.start_ns) / NS_PER_HOUR
    summary = priced(played.summary, played.report, what)
    usd = summary.usd
    assert summary.usd_per_1000_episodes * summary.trained_episodes == pytest.approx(1000 * total(usd))
    assert summary.usd_per_1000_groups * summary.groups == pytest.approx(1000 * summary.usd_total)
    chips = [paid for key, paid in usd.items() if key.startswith("chips:")]
    assert sum(chips) == pytest.approx(3.6 * window_h * played.summary.chips)
    calls = [event for event in played.works(WorkKind.TOOL_CALL) if event[0] <= played.report.end_ns]
    assert usd[TOOL_CALLS] == pytest.approx(0.5 * len(calls))
    began = {event[2]: event[0] for event in reversed(played.works(WorkKind.ENV_RESET)) if event[0] <= played.report.end_ns}
    ended = {event[2]: event[0] for event in played.works(WorkKind.ENV_CLOSE, ends=True) if event[0] <= played.report.end_ns}
    held_ns = sum(ended.get(episode, played.report.end_ns) - start for episode, start in began.items())
    assert usd[SANDBOXES] == pytest.approx(0.36 * held_ns / NS_PER_HOUR, rel=1e-9)


def test_nothing_is_said_in_money_without_prices():
    played = play(scenario(), 1)
    assert priced(played.summary, played.report, played.scenario).usd == {}


def test_tools_may_have_prices_of_their_own():
    usd = bill(PRICES, {"idle:no_batch": NS_PER_HOUR, "idle:down": NS_PER_HOUR, "kept": 0}, 0, {0: 3, 1: 4, 2: 1}, [0.5, 2.0])
    assert usd == {"chips:idle": 7.2, TOOL_CALLS: 3 * 0.5 + 4 * 2.0 + 0.5}
    assert total(usd) == 7.2 + 10.0
    what = scenario(tool={"price_usd": 2.0})
    what = what.model_copy(update={"world": what.world.model_copy(update={"prices": PRICES})})
    played = play(what, 1)
    usd = priced(played.summary, played.report, what).usd
    assert usd[TOOL_CALLS] == pytest.approx(2.0 * sum(played.report.tally.calls.values()))
