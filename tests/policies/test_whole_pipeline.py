"""All policies composed into one pipeline in a plain loop: no engine, no waiting, time in whole ticks.

A *world* decides how long things take and which groups fail; every world is fair (all that runs ends). Then

- a configuration that is not refused reaches any number of learner steps (no livelock, no deadlock), and under `drop` and
  `wait` nothing is consumed with a lag above S, for every S, D and k up to 6, each admission law and each stale policy;
- what is refused because it could never work does get stuck in some fair world (or the refusal would be idle caution).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from harness.core.errors import ConfigError
from pipeline.config import PipelineConfig
from pipeline.policies.admission import LeadAdmission, make_admission
from pipeline.policies.buffer import Buffered, GroupBuffer
from pipeline.policies.cadence import Cadence
from pipeline.policies.capacity import EpisodeCap
from pipeline.policies.filtering import keeps
from pipeline.policies.grouping import GroupState, Verdict
from pipeline.policies.kinds import AdmissionKind, FilterKind, OnFull, OrderPolicy, StalePolicy, StartUnit
from pipeline.policies.staleness import Consumption
from pipeline.policies.versions import VersionClock


@dataclass(frozen=True)
class World:
    """How long things take, in ticks. A member takes `fast`, one group in `every` takes `slow`."""

    name: str
    fast: int = 1
    slow: int = 1
    every: int = 1_000_000
    publish: int = 0
    train: int = 0
    fail_share: float = 0.0
    seed: int = 0
    shuffled: bool = False


WORLDS = (
    World("even"),
    World("slow publish", publish=9),
    World("stragglers", slow=23, every=3, train=3, publish=2),
    World("chaos", fast=2, slow=20, every=5, publish=4, train=2, fail_share=0.1, shuffled=True, seed=3),
)


@dataclass(frozen=True)
class Case:
    """The values of a configuration, checked or not."""

    S: int
    k: int
    D: int
    admission: AdmissionKind = AdmissionKind.LEAD
    stale: StalePolicy = StalePolicy.DROP
    B: int = 2
    G: int = 2
    tau: float = 0.0
    chunk: int = 0
    capacity: int = 0
    order: OrderPolicy = OrderPolicy.OLDEST_VERSION
    on_full: OnFull = OnFull.BLOCK
    max_inflight: int = 1000
    start_unit: StartUnit = StartUnit.MEMBER
    extra_groups: int = 0
    extra_members: int = 0
    quorum: int = 0
    filter: FilterKind = FilterKind.NONE

    @property
    def room(self) -> int:
        """Buffer capacity; by default what the checks ask for at most."""
        return self.capacity or 4 * self.B * (self.D + 1 + self.k)

    def config(self) -> PipelineConfig:
        return PipelineConfig(
            max_staleness=self.S,
            steps_per_sync=self.k,
            pipeline_depth=self.D,
            admission=self.admission,
            stale_policy=self.stale,
            groups_per_step=self.B,
            group_size=self.G,
            window_fraction=self.tau,
            consume_chunk=self.chunk,
            buffer_capacity=self.room,
            order_policy=self.order,
            on_full=self.on_full,
            max_inflight=self.max_inflight,
            start_unit=self.start_unit,
            overprovision_groups=self.extra_groups,
            overprovision_members=self.extra_members,
            group_quorum=self.quorum,
            filter=self.filter,
        )


@dataclass
class Running:
    state: GroupState
    version: int
    ends: dict[int, int] = field(default_factory=dict)
    item: Buffered | None = None


class Loop:
    """The pipeline of the actors, without them."""

    def __init__(self, case: Case, world: World, admission=None) -> None:
        self.case, self.world = case, world
        self.rng = Random(world.seed)
        self.clock = VersionClock()
        self.admission = admission or make_admission(
            case.admission,
            groups_per_step=case.B,
            steps_per_sync=case.k,
            max_staleness=case.S,
            pipeline_depth=case.D,
            window_fraction=case.tau,
            overprovision_groups=case.extra_groups,
        )
        self.cap = EpisodeCap(case.max_inflight, case.start_unit)
        self.buffer = GroupBuffer(capacity=case.room, order=case.order, on_full=case.on_full)
        self.consumption = Consumption(case.stale, max_staleness=case.S, groups_per_step=case.B)
        self.cadence = Cadence(steps_per_sync=case.k)
        self.running: dict[int, Running] = {}
        self.next_group = 0
        self.tick = 0
        self.taken = 0
        self.learner_free_at = 0
        self.stepping = False
        self.publishing: tuple[int, int] | None = None
        self.due: int | None = None
        self.lags: list[int] = []

    def run(self, steps: int) -> bool:
        """Whether the learner reaches `steps`, never longer at one step than any fair world excuses."""
        episodes = self.case.B * (self.case.G + self.case.extra_members) * (self.case.D + 2)
        rounds = 4 + 4 * episodes // self.case.max_inflight
        if self.case.filter is not FilterKind.NONE or self.world.fail_share:
            rounds *= 10  # luck is no livelock: a group in two or three is kept
        patience = rounds * (self.world.slow + self.world.fast + self.world.publish + self.world.train + 2)
        reached, since = 0, 0
        while self.clock.t < steps and self.tick - since < patience:
            if self.clock.t > reached:
                reached, since = self.clock.t, self.tick
            self.tick += 1
            parts = [self._finish, self._put, self._publish, self._learn, self._start]
            if self.world.shuffled:
                self.rng.shuffle(parts)
            for part in parts:
                part()
            self._law()
        return self.clock.t >= steps

    def _law(self) -> None:
        case = self.case
        if case.admission is AdmissionKind.LEAD and not case.extra_groups and type(self.admission) is LeadAdmission:
            assert self.admission.accepted + self.admission.running <= (case.D + self.clock.p + 1) * case.B
        assert self.cap.in_flight <= case.max_inflight
        assert len(self.buffer) <= case.room
        assert self.admission.buffered == len(self.buffer)
        assert self.admission.running == len(self.running)
        if not self.world.shuffled:
            members = case.G + case.extra_members
            assert not (self.admission.may_start() and self.cap.startable(members)), "capacity and work, and nothing started"

    def _start(self) -> None:
        for group in sorted(self.running):
            self._start_members(group, resumed=True)
        while self.admission.may_start():
            state = GroupState(
                self.next_group,
                group_size=self.case.G,
                group_quorum=self.case.quorum,
                overprovision_members=self.case.extra_members,
            )
            if not self.cap.startable(state.size):
                break
            group, self.next_group = self.next_group, self.next_group + 1
            self.admission.started(group)
            self.running[group] = Running(state, self.clock.p)
            self._start_members(group, resumed=False)

    def _start_members(self, group: int, *, resumed: bool) -> None:
        run = self.running[group]
        waiting = run.state.waiting
        count = (self.cap.resumable if resumed else self.cap.startable)(len(waiting))
        for member in waiting[:count]:
            self.cap.started(group)
            run.state.started(member)
            slow = group % self.world.every == self.world.every - 1
            run.ends[member] = self.tick + (self.world.slow if slow else self.world.fast)

    def _finish(self) -> None:
        for group in sorted(self.running):
            if group in self.running:
                self._finish_members(group, self.running[group])

    def _finish_members(self, group: int, run: Running) -> None:
        for member in [m for m, end in run.ends.items() if end <= self.tick]:
            del run.ends[member]
            self.cap.ended(group)
            failed = self.rng.random() < self.world.fail_share
            decision = run.state.failed(member) if failed else run.state.finished(member, run.version, self.clock.p)
            if decision.verdict is Verdict.OPEN:
                continue
            for _ in [m for m in decision.surplus if m in run.ends]:
                self.cap.ended(group)
            run.ends.clear()
            if decision.verdict is Verdict.FAILED:
                self.admission.failed(group)
                del self.running[group]
            elif not keeps(self.case.filter, [self.rng.choice((0.0, 1.0)) for _ in decision.members]):
                self.admission.filtered(group)
                del self.running[group]
            else:
                run.item = Buffered(group, run.state.oldest_version, run.state.newest_version, self.clock.t)
            return

    def _put(self) -> None:
        for group in sorted(self.running):
            run = self.running.get(group)
            if run is None or run.item is None:
                continue
            if not self.admission.accepts():
                self._end_surplus(group)
                continue
            put = self.buffer.put(run.item)
            if put.blocked:
                continue
            self.admission.entered(group)
            del self.running[group]
            if put.evicted:
                self.admission.dropped(put.evicted.group)
            for surplus in self.admission.surplus():
                self._end_surplus(surplus)

    def _end_surplus(self, group: int) -> None:
        run = self.running.pop(group)
        if run.ends:
            self.cap.ended(group, len(run.ends))
        self.admission.finished_surplus(group)

    def _publish(self) -> None:
        if self.publishing and self.publishing[1] <= self.tick:
            version = self.publishing[0]
            self.clock.publish(version)
            self.admission.published(version)
            self.publishing = None
        if self.due is not None and self.publishing is None:
            self.publishing, self.due = (self.due, self.tick + self.world.publish), None

    def _learn(self) -> None:
        if self.learner_free_at > self.tick:
            return
        if self.stepping:
            self.stepping = False
            t = self.clock.step_done()
            self.admission.stepped(t)
            self.taken = 0
            if self.cadence.due(t).publish:
                self.due = t
        t, chunk = self.clock.t, self.case.chunk or self.case.B
        running = [run.version for run in self.running.values()]
        pull = self.consumption.pull(t, self.buffer.in_order(), running, want=chunk, taken=self.taken)
        for group in pull.drop:
            self.buffer.remove(group)
            self.admission.dropped(group)
        for group in pull.take:
            item = self.buffer.remove(group)
            self.admission.trained(group)
            self.lags.append(self.clock.lag(item.oldest_version, item.entered_at_step).total_steps)
        self.taken += len(pull.take)
        if pull.take:
            self.learner_free_at = self.tick + self.world.train
            self.stepping = self.taken == self.case.B


def refused(case: Case) -> ConfigError | None:
    try:
        case.config()
    except ConfigError as error:
        return error
    return None


def reaches(case: Case, world: World, admission=None) -> bool:
    """Whether the learner gets somewhere, with the bound kept on the way."""
    loop = Loop(case, world, admission)
    done = loop.run(2 * case.k + case.S + 4)
    if case.stale is not StalePolicy.TRAIN:
        assert max(loop.lags, default=0) <= case.S, f"lag {max(loop.lags)} above {case.S}: {case} in {world}"
    return done


UP_TO_6 = [(S, k, D) for S in range(7) for D in range(7) for k in range(1, 7)]


@pytest.mark.parametrize("stale", StalePolicy)
@pytest.mark.parametrize("admission", AdmissionKind)
def test_what_is_not_refused_makes_steps_within_the_bound(admission, stale):
    accepted = 0
    for S, k, D in UP_TO_6:
        case = Case(S, k, D, admission, stale, G=1)
        if refused(case):
            continue
        accepted += 1
        if D and admission in (AdmissionKind.WINDOW, AdmissionKind.INFLIGHT):
            continue  # the depth has no effect there, and the same was run at 0
        for world in WORLDS[1:]:
            assert reaches(case, world), f"stuck: {case} in {world}"
    never = stale is StalePolicy.WAIT and admission in (AdmissionKind.INFLIGHT, AdmissionKind.TARGET_STEP)
    assert (accepted == 0) is never


def stuck_somewhere(case: Case, admission=None) -> bool:
    return not all(reaches(case, world, admission() if admission else None) for world in WORLDS)


IDLE_CAUTION = "generation would run further ahead"  # D > S is refused as a contradiction, though some such runs get on


@pytest.mark.parametrize("stale", StalePolicy)
@pytest.mark.parametrize("admission", AdmissionKind)
def test_what_is_refused_for_getting_stuck_gets_stuck(admission, stale):
    for S, k, D in [(S, k, D) for S in range(4) for D in range(4) for k in range(1, 5)]:
        if D and admission in (AdmissionKind.WINDOW, AdmissionKind.INFLIGHT):
            continue
        for tau in (0.0, 0.5, 1.0) if admission is AdmissionKind.WINDOW else (0.0,):
            case = Case(S, k, D, admission, stale, tau=tau)
            error = refused(case)
            if error is not None and IDLE_CAUTION not in error.problem and "slow publish" not in error.problem:
                assert stuck_somewhere(case), f"refused for nothing: {case}: {error}"


def test_the_lead_refuses_exactly_what_its_formula_says():
    for S, k, D in UP_TO_6:
        for stale in StalePolicy:
            assert (refused(Case(S, k, D, stale=stale)) is not None) is (D > S or k > D + 1), (S, k, D, stale)


@pytest.mark.parametrize(("tau", "enough"), [(0.5, 3), (1.0, 4)])
def test_a_waiting_learner_and_a_window_need_a_bound_of_three_windows(tau, enough):
    """(3 + 2·tau)·k ≤ S + 1 and no less: a publish may be slow just when the learner has a batch in hand."""
    rng = Random(1)
    stuck = {enough - 1: 0, enough: 0}
    for seed in range(60):
        world = World("publishes at any moment", 1, rng.choice((1, 3, 8)), rng.randint(1, 4), shuffled=True, seed=seed)
        world = replace(world, publish=rng.randint(0, 8), train=rng.randint(0, 3))
        chunk, cap = rng.choice((0, 1)), rng.choice((1, 2, 1000))
        for S in stuck:
            case = Case(S, 1, 0, AdmissionKind.WINDOW, StalePolicy.WAIT, tau=tau, G=1, chunk=chunk, max_inflight=cap)
            assert (refused(case) is None) is (enough == S)
            stuck[S] += not Loop(case, world).run(20)
    assert stuck[enough] == 0
    assert stuck[enough - 1] > 0


class CompletedLead(LeadAdmission):
    """The lead as it was once written: with completed steps in the place of the published version."""

    def _limit(self) -> int:
        return (self._depth + self.t + 1) * self._batch


def test_a_lead_over_completed_versions_never_reaches_its_second_publish():
    case = Case(S=1, k=4, D=1)

    def wrong():
        return CompletedLead(groups_per_step=case.B, pipeline_depth=case.D)

    loop = Loop(case, WORLDS[0], wrong())
    assert not loop.run(50)
    assert loop.clock.t < 4
    assert loop.next_group > 20 * case.B, "it is busy all the time, and throws everything away"


def test_a_lead_over_completed_versions_breaks_the_bound_when_stale_samples_are_trained():
    case = Case(S=1, k=4, D=1, stale=StalePolicy.TRAIN)
    wrong = Loop(case, WORLDS[0], CompletedLead(groups_per_step=case.B, pipeline_depth=case.D))
    assert wrong.run(50)
    right = Loop(replace(case, k=2), WORLDS[0])
    assert right.run(50)
    assert max(right.lags) <= case.S < 4 <= max(wrong.lags)


def test_a_waiting_learner_and_a_small_buffer_block_each_other():
    case = Case(S=2, k=1, D=2, stale=StalePolicy.WAIT, B=2, chunk=1, capacity=2)
    assert "outside a full buffer" in str(refused(case))
    assert stuck_somewhere(case)
    assert not stuck_somewhere(replace(case, capacity=6))


def test_a_waiting_learner_and_over_provisioned_groups_block_each_other():
    case = Case(S=1, k=1, D=1, stale=StalePolicy.WAIT, B=1, G=1, max_inflight=2, extra_groups=1)
    world = World("all slow", slow=2, every=1)
    assert "beyond the credit" in str(refused(case))
    assert not reaches(case, world)
    assert reaches(replace(case, extra_groups=0), world)


def test_without_depth_every_sample_is_used_at_the_version_that_made_it():
    for world in WORLDS:
        loop = Loop(Case(S=3, k=1, D=0, stale=StalePolicy.TRAIN), world)
        assert loop.run(12)
        assert set(loop.lags) == {0}


@st.composite
def cases(draw) -> Case:
    """Any configuration of the policies, most of them sensible."""
    admission = draw(st.sampled_from(AdmissionKind))
    S = draw(st.integers(0, 6 if admission is AdmissionKind.WINDOW else 4))
    D = draw(st.integers(0, S))
    k = draw(st.integers(1, (D if admission is AdmissionKind.LEAD else S) + 1))
    stale = draw(st.sampled_from(StalePolicy))
    B = draw(st.sampled_from((1, 2, 3, 4, 6)))
    G = draw(st.integers(1, 4))
    return Case(
        S,
        k,
        D,
        admission,
        stale,
        B=B,
        G=G,
        tau=draw(st.sampled_from((0.0, 0.1, 0.5, 1.0, 2.5))),
        chunk=draw(st.sampled_from([0, *(c for c in range(1, B + 1) if B % c == 0)])),
        capacity=draw(st.integers(1, 3 * B * (D + 1))),
        order=draw(st.sampled_from(OrderPolicy)),
        on_full=draw(st.sampled_from(OnFull)),
        max_inflight=draw(st.sampled_from((1, 2, 3, 5, 8, 13, 1000))),
        start_unit=draw(st.sampled_from(StartUnit)),
        extra_groups=0 if stale is StalePolicy.WAIT else draw(st.integers(0, 3)),
        extra_members=draw(st.integers(0, 2)),
        quorum=draw(st.integers(0, G)),
        filter=draw(st.sampled_from(FilterKind)),
    )


@st.composite
def worlds(draw) -> World:
    return World(
        "drawn",
        fast=draw(st.integers(1, 3)),
        slow=draw(st.integers(1, 25)),
        every=draw(st.integers(1, 7)),
        publish=draw(st.integers(0, 12)),
        train=draw(st.integers(0, 6)),
        fail_share=draw(st.sampled_from((0.0, 0.1))),
        seed=draw(st.integers(0, 1000)),
        shuffled=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(case=cases(), world=worlds())
def test_any_accepted_configuration_makes_steps_in_any_fair_world(case, world):
    assume(refused(case) is None)
    assert reaches(case, world)
