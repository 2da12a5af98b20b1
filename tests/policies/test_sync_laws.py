"""Weight sync: any order of events, replicas lost and restored at any time; every sync ends and no rule is broken."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.core.errors import LawError
from pipeline.policies.kinds import SyncMode, SyncRollout
from pipeline.policies.sync import Phase, Quiesce, SyncPlan


class SyncMachine(RuleBasedStateMachine):
    """The world: replicas that were told to do something (`orders`) do it in any order, or go down."""

    @initialize(mode=st.sampled_from(SyncMode), rollout=st.sampled_from(SyncRollout), replicas=st.integers(1, 4))
    def build(self, mode, rollout, replicas):
        self.plan = SyncPlan(mode=mode, rollout=rollout, replicas=replicas)
        self.mode, self.rollout, self.replicas = mode, rollout, replicas
        self.orders: dict[int, str] = {}
        self.ready: set[int] = set()
        self.down: set[int] = set()
        self.version = dict.fromkeys(range(replicas), 0)
        self.target = 0

    def tell(self, quiesce=(), install=()):
        for replica in quiesce:
            assert replica not in self.orders
            self.orders[replica] = "quiesce"
        for replica in install:
            assert replica in self.ready
            self.ready.remove(replica)
            self.orders[replica] = "install"

    @rule(ahead=st.integers(0, 3))
    def begin(self, ahead):
        if self.plan.busy or ahead == 0:
            with pytest.raises(LawError):
                self.plan.begin(self.target + ahead)
            return
        self.target += ahead
        self.tell(quiesce=self.plan.begin(self.target))

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def obey(self, data):
        replica = data.draw(st.sampled_from(sorted(self.orders)))
        order = self.orders.pop(replica)
        if order == "quiesce":
            with pytest.raises(LawError):
                self.plan.installed(replica)
            self.ready.add(replica)
            self.tell(install=self.plan.quiesced(replica))
        else:
            with pytest.raises(LawError):
                self.plan.quiesced(replica)
            self.version[replica] = self.target
            self.tell(quiesce=self.plan.installed(replica))

    @rule(data=st.data())
    def lose(self, data):
        replica = data.draw(st.integers(0, self.replicas - 1))
        if replica in self.down:
            with pytest.raises(LawError):
                self.plan.lost(replica)
            return
        self.down.add(replica)
        self.orders.pop(replica, None)
        self.ready.discard(replica)
        quiesce, install = self.plan.lost(replica)
        self.tell(quiesce, install)

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def restore(self, data):
        replica = data.draw(st.sampled_from(sorted(self.down)))
        with pytest.raises(LawError):
            self.plan.restored(replica, self.target + 1)
        self.plan.restored(replica, self.target)
        self.down.remove(replica)
        self.version[replica] = self.target

    @invariant()
    def progress(self):
        """A sync under way has somebody to wait for, and one that is over left nobody up behind."""
        assert self.plan.busy == bool(self.orders), (self.orders, self.ready)
        if not self.plan.busy:
            assert not self.ready
            assert all(self.version[replica] == self.target for replica in self.version if replica not in self.down)

    @invariant()
    def agrees(self):
        up = [replica for replica in self.version if replica not in self.down]
        assert self.plan.published == min((self.version[replica] for replica in up), default=self.target)
        for replica in range(self.replicas):
            phase = self.plan.phase(replica)
            assert (phase is Phase.DOWN) == (replica in self.down)
            assert (phase is Phase.QUIESCING) == (self.orders.get(replica) == "quiesce")
            assert (phase is Phase.INSTALLING) == (self.orders.get(replica) == "install")
            busy_here = phase is not Phase.SERVING
            of_running_episodes = self.mode is SyncMode.DRAIN_EPISODES and phase is Phase.QUIESCING
            assert self.plan.admits_requests(replica) == (not busy_here or of_running_episodes)

    @invariant()
    def rolling_stops_one_at_a_time(self):
        stopped = len(self.orders) + len(self.ready)
        if self.rollout is SyncRollout.ROLLING:
            assert stopped <= 1
        if "install" in self.orders.values():
            assert "quiesce" not in self.orders.values(), "a collective needs everybody at the same time"

    @invariant()
    def only_the_baseline_stops_episodes(self):
        assert self.plan.admits_episodes() == (not (self.plan.busy and self.mode is SyncMode.DRAIN_EPISODES))


TestSync = SyncMachine.TestCase
TestSync.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_all_at_once_installs_when_the_last_one_is_quiet():
    plan = SyncPlan(mode=SyncMode.DRAIN, rollout=SyncRollout.ALL_AT_ONCE, replicas=2)
    assert plan.quiesce is Quiesce.FINISH_REQUESTS
    assert plan.begin(4) == (0, 1)
    assert plan.quiesced(1) == ()
    assert plan.quiesced(0) == (0, 1)
    plan.installed(0)
    assert plan.admits_requests(0)
    assert plan.published == 0
    plan.installed(1)
    assert plan.published == 4


def test_rolling_takes_one_after_the_other_and_a_lost_one_does_not_hold_it_up():
    plan = SyncPlan(mode=SyncMode.KEEP, rollout=SyncRollout.ROLLING, replicas=3)
    assert plan.begin(1) == (0,)
    assert plan.admits_requests(1)
    assert plan.quiesced(0) == (0,)
    assert plan.installed(0) == (1,)
    assert plan.lost(1) == ((2,), ())
    assert plan.quiesced(2) == (2,)
    assert plan.installed(2) == ()
    assert plan.published == 1
    assert not plan.busy
