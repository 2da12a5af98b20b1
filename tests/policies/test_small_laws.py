"""Versions, capacity, cadence, retries, routing: each against what its docstring says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harness.core.errors import LawError
from pipeline.policies.cadence import Cadence
from pipeline.policies.capacity import EpisodeCap
from pipeline.policies.kinds import RouterPolicy, StartUnit
from pipeline.policies.retries import Attempts, FailureKind, RetryPolicy
from pipeline.policies.routing import Router
from pipeline.policies.versions import VersionClock

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.integers(-1, 12)


class VersionMachine(RuleBasedStateMachine):
    @initialize()
    def build(self):
        self.clock = VersionClock()
        self.steps: list[int] = []
        self.publishes = [0]

    @rule()
    def step(self):
        self.steps.append(self.clock.step_done())

    @rule(version=numbers)
    def publish(self, version):
        if self.publishes[-1] <= version <= len(self.steps):
            self.clock.publish(version)
            self.publishes.append(version)
        else:
            with pytest.raises(LawError):
                self.clock.publish(version)

    @rule(oldest=numbers, entered=numbers)
    def use(self, oldest, entered):
        if not 0 <= oldest <= entered <= len(self.steps):
            with pytest.raises(LawError):
                self.clock.lag(oldest, entered)
            return
        lag = self.clock.lag(oldest, entered)
        assert lag.total_steps == self.clock.lag_steps(oldest) == len(self.steps) - oldest
        assert lag == (entered - oldest, len(self.steps) - entered)

    @invariant()
    def agrees(self):
        assert self.clock.t == len(self.steps) >= self.clock.p == self.publishes[-1]
        assert self.clock.publish_lag_steps == self.clock.t - self.clock.p


class CapMachine(RuleBasedStateMachine):
    @initialize(cap=st.integers(1, 10), unit=st.sampled_from(StartUnit))
    def build(self, cap, unit):
        self.cap, self.size, self.unit = EpisodeCap(cap, unit), cap, unit
        self.running: dict[int, int] = {}
        self.places: dict[int, int] = {}
        self.groups = 0

    @property
    def episodes(self):
        """Places taken, the slow obvious way."""
        if self.unit is StartUnit.HELD_GROUP:
            return sum(places for group, places in self.places.items() if self.running[group])
        return sum(self.running.values())

    def begin(self, group, count):
        self.cap.started(group, count)
        self.running[group] = self.running.get(group, 0) + count
        self.places[group] = self.places.get(group, 0) + count

    @rule(members=st.integers(1, 6))
    def start_group(self, members):
        count = self.cap.startable(members)
        room = self.size - self.episodes
        assert count == (min(room, members) if self.unit is StartUnit.MEMBER else members * (room >= members))
        if count:
            self.begin(self.groups, count)
            self.groups += 1

    @rule(members=st.integers(1, 6))
    def go_on(self, members):
        count = self.cap.resumable(members)
        assert count == min(self.size - self.episodes, members)
        if count and self.groups and self.running[self.groups - 1]:
            self.begin(self.groups - 1, count)

    @rule(count=st.integers(0, 12), back=st.integers(1, 3))
    def end(self, count, back):
        group = self.groups - back
        most = self.running.get(group, 0) if self.unit is StartUnit.HELD_GROUP else self.episodes
        if not 1 <= count <= most:
            with pytest.raises(LawError):
                self.cap.ended(group, count)
        elif count <= self.running.get(group, 0):
            self.cap.ended(group, count)
            self.running[group] -= count

    @rule(count=st.integers(0, 12))
    def start(self, count):
        if not 1 <= count <= self.size - self.episodes:
            with pytest.raises(LawError):
                self.cap.started(self.groups, count)
            return
        self.begin(self.groups, count)
        self.groups += 1

    @invariant()
    def agrees(self):
        assert 0 <= self.cap.in_flight == self.episodes <= self.size
        assert self.cap.free == self.size - self.episodes
        assert self.cap.free == 0 or self.cap.resumable(1) == 1, "where there is room and work, something starts"


for machine in (VersionMachine, CapMachine):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
TestVersions = VersionMachine.TestCase
TestCap = CapMachine.TestCase


@QUICK
@given(k=st.integers(1, 7), checkpoint=st.integers(0, 7), evaluate=st.integers(0, 7), start=st.integers(0, 40))
def test_cadence(k, checkpoint, evaluate, start):
    cadence = Cadence(steps_per_sync=k, checkpoint_interval=checkpoint, eval_interval=evaluate)
    published = [t for t in range(1, 60) if cadence.due(t).publish]
    assert published == list(range(k, 60, k))
    assert [t for t in range(1, 60) if cadence.due(t).checkpoint] == (
        list(range(checkpoint, 60, checkpoint)) if checkpoint else []
    )
    assert [t for t in range(1, 60) if cadence.due(t).evaluate] == (list(range(evaluate, 60, evaluate)) if evaluate else [])
    assert cadence.next_publish(start) == next(t for t in published if t > start)


@QUICK
@given(
    infra=st.integers(0, 4),
    data=st.integers(0, 4),
    first=st.integers(0, 100),
    longest=st.integers(0, 1000),
    failures=st.lists(st.sampled_from(FailureKind), max_size=12),
)
def test_retries_have_two_budgets_and_a_capped_back_off(infra, data, first, longest, failures):
    if first > longest:
        first, longest = longest, first
    policy = RetryPolicy(retry_infra=infra, retry_data=data, backoff_ns=first, backoff_max_ns=longest)
    attempts = Attempts(policy)
    used = {FailureKind.INFRA: 0, FailureKind.DATA: 0}
    budget = {FailureKind.INFRA: infra, FailureKind.DATA: data}
    for kind in failures:
        delay_ns = attempts.failed(kind)
        if used[kind] == budget[kind]:
            assert delay_ns is None
            continue
        used[kind] += 1
        assert attempts.attempt == sum(used.values())
        assert delay_ns == min(longest, first * 2 ** (sum(used.values()) - 1))


def test_the_thousandth_back_off_is_the_cap():
    policy = RetryPolicy(retry_infra=2000, retry_data=0, backoff_ns=1, backoff_max_ns=60_000_000_000)
    assert policy.delay_ns(1000) == 60_000_000_000
    with pytest.raises(LawError):
        policy.delay_ns(0)


@QUICK
@given(data=st.data(), replicas=st.integers(1, 4), policy=st.sampled_from(RouterPolicy))
def test_routing(data, replicas, policy):
    router = Router(policy, replicas)
    homes: dict[int, int] = {}
    turn = 0
    for _ in range(12):
        loads = data.draw(st.lists(st.integers(0, 3), min_size=replicas, max_size=replicas))
        up = data.draw(st.lists(st.booleans(), min_size=replicas, max_size=replicas))
        episode = data.draw(st.integers(0, 3))
        if not any(up):
            with pytest.raises(LawError):
                router.route(episode, loads, up)
            continue
        least = min((load, replica) for replica, load in enumerate(loads) if up[replica])[1]
        chosen = router.route(episode, loads, up)
        if policy is RouterPolicy.LEAST_LOADED:
            assert chosen == least
        elif policy is RouterPolicy.STICKY:
            home = homes.get(episode)
            homes[episode] = home if home is not None and up[home] else least
            assert chosen == homes[episode]
        else:
            expected = next(r % replicas for r in range(turn, turn + replicas) if up[r % replicas])
            assert chosen == expected
            turn = expected + 1
        if data.draw(st.booleans()):
            router.forget(episode)
            homes.pop(episode, None)


@pytest.mark.parametrize(
    "build",
    [
        lambda: VersionClock(1, 2),
        lambda: EpisodeCap(0, StartUnit.MEMBER),
        lambda: Cadence(steps_per_sync=0),
        lambda: Cadence(steps_per_sync=1).due(0),
        lambda: RetryPolicy(retry_infra=-1, retry_data=0, backoff_ns=0, backoff_max_ns=0),
        lambda: RetryPolicy(retry_infra=0, retry_data=0, backoff_ns=2, backoff_max_ns=1),
        lambda: Router(RouterPolicy.STICKY, 0),
    ],
)
def test_what_cannot_be_is_refused(build):
    with pytest.raises(LawError):
        build()
