"""The laws are checked at every event. Each is broken in turn, in a recorded log, and its first breach is named."""

from __future__ import annotations

import pytest
from tiny_world import play, scenario

from harness.checks import limits_of
from harness.core.errors import ConfigError, TraceError
from harness.core.events import EventKind as K
from harness.core.work import WorkKind
from harness.run import simulate_once
from harness.trace.online import Limits, OnlineChecks, check_log
from pipeline.policies.capacity import EpisodeCap
from pipeline.policies.kinds import StalePolicy, StartUnit
from pipeline.policies.staleness import Consumption

KNOBS = {
    "group_size": 3, "overprovision_members": 1, "overprovision_groups": 1, "env_workers": 5, "tool_workers": 2,
    "reward_workers": 1, "slots_per_replica": 3, "max_inflight": 8, "eval_interval": 1, "checkpoint_interval": 2,
    "deadlines": {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0},
}  # fmt: skip
BAD_LUCK = {"inference": {"replicas": 2}, "environments": {"reset_hang": 0.05, "reset_infra_failure": 0.1}}


def busy(steps=4, **knobs):
    tool = {"hang": 0.05, "infra_failure": 0.1}
    return scenario({**KNOBS, **knobs}, random=True, world=BAD_LUCK, tool=tool, steps=steps)


WHAT = busy()
LIMITS = limits_of(WHAT)


@pytest.fixture(scope="module")
def log():
    """All events of one run in which much goes wrong."""
    return tuple(play(WHAT, 1).all_events)


# ── runs that obey the laws ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sync_mode", ["drain", "drain_episodes", "abort_resume", "keep"])
def test_every_event_of_a_run_obeys(seed, sync_mode):
    what = busy(sync_mode=sync_mode)
    events = play(what, seed, checks=False).all_events
    checks = check_log(events, limits_of(what))
    checks.left()
    assert checks.events == len(events)


def test_looking_on_changes_nothing():
    plain, checked = simulate_once(WHAT, 3), simulate_once(WHAT, 3, check=True)
    assert checked == plain


def test_the_environment_may_ask_for_it(monkeypatch):
    seen = []
    monkeypatch.setattr(OnlineChecks, "finish", lambda self, end_ns: seen.append(self.events))
    simulate_once(WHAT, 3)
    monkeypatch.setenv("HARNESS_DEBUG_INVARIANTS", "1")
    simulate_once(WHAT, 3)
    assert len(seen) == 1
    assert seen[0] > 500
    monkeypatch.setenv("HARNESS_DEBUG_INVARIANTS", "yes")
    with pytest.raises(ConfigError, match="HARNESS_DEBUG_INVARIANTS"):
        simulate_once(WHAT, 3)


# ── a log in which something is wrong ───────────────────────────────────────────────────────────────────────────────────────


def nth(log, kind, n=3, **fields):
    """Index of the n-th event of a kind whose fields have these values."""
    names = ("time_ns", "kind", "entity", "a", "b", "c", "d", "e")
    places = {names.index(name): value for name, value in fields.items()}
    found = [i for i, event in enumerate(log) if event[1] == kind and all(event[j] == v for j, v in places.items())]
    return found[n]


def changed(log, index, **fields):
    names = ("time_ns", "kind", "entity", "a", "b", "c", "d", "e")
    event = list(log[index])
    for name, change in fields.items():
        place = names.index(name)
        event[place] = change(event[place]) if callable(change) else change
    return [*log[:index], tuple(event), *log[index + 1 :]]


def gone(log, index):
    return [*log[:index], *log[index + 1 :]]


def twice(log, index):
    return [*log[: index + 1], log[index], *log[index + 1 :]]


def up(value):
    return value + 1


TOOL, RESET, CLOSE, REWARD = (
    int(kind) for kind in (WorkKind.TOOL_CALL, WorkKind.ENV_RESET, WorkKind.ENV_CLOSE, WorkKind.REWARD)
)
DECODE, TRAIN, PUBLISH = int(WorkKind.DECODE), int(WorkKind.TRAIN_STEP), int(WorkKind.PUBLISH)

BREACHES = {
    # what is done to which event: (change, (kind, fields), the law that is named)
    "unknown kind": (lambda log, i: changed(log, i, kind=77), (K.STEP, {}), "known kind"),
    "time goes back": (lambda log, i: changed(log, i, time_ns=lambda t: t - 10**9), (K.WORK_END, {}), "time never goes back"),
    "work ends twice": (twice, (K.WORK_END, {"a": DECODE}), "work ends once"),
    "work ends unstarted": (lambda log, i: changed(log, i, entity=10**6), (K.WORK_END, {"a": TOOL}), "work ends once"),
    "server from the future": (lambda log, i: changed(log, i, d=10**15), (K.WORK_END, {"a": TOOL}), "server begins"),
    "less than nothing made": (lambda log, i: changed(log, i, c=-1), (K.WORK_END, {"a": DECODE}), "no less than nothing"),
    "two steps at once": (twice, (K.WORK_START, {"a": DECODE}), "does one thing at a time"),
    "too many requests": (lambda log, i: changed(log, i, c=4), (K.WORK_START, {"a": DECODE}), "has 3 slots"),
    "too much context": (lambda log, i: changed(log, i, d=10**5), (K.WORK_START, {"a": DECODE}), "tokens of context"),
    "tool after the close": (lambda log, i: changed(log, i, a=TOOL), (K.WORK_START, {"a": REWARD}), ""),
    "closed twice": (twice, (K.WORK_START, {"a": CLOSE}), "closed exactly once"),
    "never closed": (gone, (K.WORK_START, {"a": CLOSE}), ""),
    "reset of nobody": (lambda log, i: changed(log, i, entity=10**6), (K.WORK_START, {"a": RESET}), "an episode that runs"),
    "scored after its end": (lambda log, i: changed(log, i, entity=10**6), (K.WORK_START, {"a": REWARD}), "has not ended"),
    "wrong step": (lambda log, i: changed(log, i, entity=up), (K.WORK_START, {"a": TRAIN}), "the step after the last one"),
    "version from nowhere": (
        lambda log, i: changed(log, i, entity=99),
        (K.WORK_START, {"a": PUBLISH}),
        "before a step has made",
    ),
    "admitted twice": (twice, (K.GROUP_ADMIT, {}), "admitted once"),
    "member of no group": (lambda log, i: changed(log, i, a=5000), (K.EPISODE_START, {}), "while its group is open"),
    "started twice": (twice, (K.EPISODE_START, {}), "twice"),
    "version not installed": (lambda log, i: changed(log, i, d=50), (K.EPISODE_START, {}), "ahead of what is installed"),
    "ends twice": (twice, (K.EPISODE_END, {}), "what leaves episodes is there"),
    "negative tokens": (lambda log, i: changed(log, i, c=-1), (K.EPISODE_END, {}), "are counts"),
    "sampled ahead": (lambda log, i: changed(log, i, e=50), (K.EPISODE_END, {}), "ahead of what is installed"),
    "tokens lost": (lambda log, i: changed(log, i, b=lambda n: n - 1), (K.GROUP_RELEASE, {}), "what its members made"),
    "sample lost": (lambda log, i: changed(log, i, a=lambda n: n - 1), (K.GROUP_RELEASE, {}), "what its members made"),
    "released as younger": (lambda log, i: changed(log, i, c=up), (K.GROUP_RELEASE, {}), "what its members made"),
    "released twice": (twice, (K.GROUP_RELEASE, {}), "released once"),
    "never released": (gone, (K.GROUP_RELEASE, {}), "after its release"),
    "put twice": (twice, (K.BUFFER_PUT, {}), "put once"),
    "depth": (lambda log, i: changed(log, i, a=up), (K.BUFFER_PUT, {}), "came in and has not gone out"),
    "consumed twice": (twice, (K.CONSUME, {}), "consumed or dropped once"),
    "lag does not add up": (lambda log, i: changed(log, i, c=up), (K.CONSUME, {}), "lag in flight + lag in queue"),
    "wrong lag": (lambda log, i: changed(log, i, b=up, c=up), (K.CONSUME, {}), "step - oldest version"),
    "consumed for another step": (lambda log, i: changed(log, i, a=up), (K.CONSUME, {}), "for the step after the last one"),
    "consumed tokens": (lambda log, i: changed(log, i, e=up), (K.CONSUME, {}), "what was released"),
    "consumption lost": (gone, (K.CONSUME, {}), "what was consumed for it"),
    "step repeated": (twice, (K.STEP, {}), "count up by one"),
    "step skipped": (gone, (K.STEP, {}), ""),
    "samples": (lambda log, i: changed(log, i, b=up), (K.STEP, {}), "what was consumed for it"),
    "installed ahead": (lambda log, i: changed(log, i, entity=up), (K.SYNC_INSTALL, {}), "before a step has made"),
    "an engine left out": (gone, (K.SYNC_INSTALL, {}), "every replica has it"),
    "published ahead": (lambda log, i: changed(log, i, entity=99), (K.PUBLISHED, {}), "before a step has made"),
    "wrong predecessor": (lambda log, i: changed(log, i, a=up), (K.PUBLISHED, {}), "each after the one before"),
    "retry of nobody": (lambda log, i: changed(log, i, entity=10**6), (K.RETRY, {}), "what is tried again runs"),
    "saved ahead": (lambda log, i: changed(log, i, entity=99), (K.CHECKPOINTED, {}), "before a step has made"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_broken_law_is_named_with_its_event(log, name):
    change, (kind, fields), law = BREACHES[name]
    index = nth(log, kind, n=1 if kind in (K.CHECKPOINTED, K.STEP, K.PUBLISHED) else 3, **fields)
    with pytest.raises(TraceError) as caught:
        check_log(change(log, index), LIMITS).left()
    assert law in caught.value.law
    if law:
        assert "event " in caught.value.detail
        assert int(caught.value.detail.rpartition("event ")[2].partition(":")[0]) >= index


ROOM = {
    "tools": (1, "there is room for 1 in tools"),
    "environments": (2, "there is room for 2 in environments"),
    "scoring": (0, "there is room for 0 in scoring"),
    "episodes": (2, "no more than 2 episodes"),
    "buffer_groups": (0, "its capacity of 0"),
    "max_lag": (-1, "a lag above -1"),
    "batch": (1, "a replica has 1 slots"),
    "kv_tokens": (30, "holds 30 tokens"),
}


@pytest.mark.parametrize("field", ROOM)
def test_no_more_than_there_is_room_for(log, field):
    room, law = ROOM[field]
    with pytest.raises(TraceError) as caught:
        check_log(log, Limits(**{field: room}))
    assert law in caught.value.law
    check_log(log, Limits())


def test_only_the_first_breach_is_told(log):
    checks = OnlineChecks(LIMITS)
    broken = twice(log, nth(log, K.STEP, 1))
    breaches = 0
    for event in broken:
        try:
            checks.append_event(event)
        except TraceError:
            breaches += 1
    assert breaches == 1
    assert checks.events == len(broken)


def test_a_lane_that_leaves_a_gap_is_named():
    checks = OnlineChecks(Limits())
    checks.append_interval((0, 5, 1, 2, -1))
    checks.append_interval((5, 9, 1, 3, -1))
    with pytest.raises(TraceError, match=r"gap or overlap \[1\]: 10 to 11 ns in state 2, due at 9 ns"):
        checks.append_interval((10, 11, 1, 2, -1))


def test_both_sides_of_littles_law_are_kept_apart(log):
    """Somebody who is inside and not counted, or counted and not inside, shows."""
    checks = check_log(log, LIMITS)
    end_ns = log[-1][0]
    for station in checks.stations.values():
        area, times = station.little(end_ns)
        assert area == times > 0
    checks.stations["episodes"].inside[10**9] = 0
    with pytest.raises(TraceError, match="Little's law holds for episodes"):
        checks.finish(end_ns)


# ── a policy that is wrong ──────────────────────────────────────────────────────────────────────────────────────────────────


def tails(**knobs):
    """A world with a heavy tail of tool durations, in which much gets stale when the freshest is used first."""
    roomy = {"max_inflight": 24, "env_workers": 24, "tool_workers": 24, "buffer_capacity": 8, "order_policy": "freshest"}
    tail = {"duration": {"law": "lognormal", "mu": 0.0, "sigma": 1.6}}
    return scenario({**roomy, **knobs}, random=True, tool=tail, steps=8)


def lax_consumption(pipeline):
    pipeline.learner._consumption = Consumption(StalePolicy.TRAIN, max_staleness=9, groups_per_step=2)


def lax_cap(pipeline):
    pipeline.groups._cap = EpisodeCap(100, StartUnit.MEMBER)


def lax_pool(pipeline):
    pipeline.pools["tools"].capacity += 1


def lax_slots(pipeline):
    pipeline.replicas[0]._slots += 1


WRONG = {
    "stale groups are used": (lax_consumption, tails(), "lag above 1"),
    "the cap is not kept": (lax_cap, tails(max_inflight=5, start_unit="member"), "no more than 5 episodes"),
    "a worker too many": (lax_pool, busy(steps=6), "there is room for 2 in tools"),
    "a slot too many": (lax_slots, tails(slots_per_replica=4), "a replica has 4 slots"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_policy_that_is_wrong_is_caught(name):
    """The pipeline's own actors run with one policy that was tampered with; the same run without it is clean."""
    tamper, what, law = WRONG[name]
    check_log(play(what, 1, checks=False).all_events, limits_of(what))
    with pytest.raises(TraceError) as caught:
        check_log(play(what, 1, checks=False, made=tamper).all_events, limits_of(what))
    assert law in caught.value.law
