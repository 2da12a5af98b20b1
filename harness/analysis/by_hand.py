"""What can be expected by hand: closed forms from the scenario alone, beside which every simulated result is put.

**Fluid bounds.** A resource with c servers, of which a group needs s seconds in all, completes at most c/s groups a second. A
server is a replica at full slots (the time of a decode step is shared by its batch), the learner, a tool worker, a sandbox
(held for a whole episode), a scoring worker.

**Little's law.** At most N groups are between their start and the publication that gives their credit back, and each is there
for at least its slowest member, the learner's pass and the publication: throughput <= N / (Z + S). The same for the cap on
episodes in flight.

**Order statistics.** A group is complete with its slowest member (`harness.analysis.demand.slowest`).

**Closed network.** With N customers, stations of demand D_i and delays Z, approximate mean value analysis gives the throughput
with queueing: R_i = D_i (1 + Q_i (N-1)/N), X = N / (Z + Σ R_i), Q_i = X R_i, iterated to its fixed point. A pool of c servers
is a station of demand s/c behind a delay of s (c-1)/c.

Bounds allow for nothing but luck: a run above a firm one is a bug. Below the expected throughput there is always a reason; the
usual ones (discarded work, outages, a run that is too short) are looked for before anybody is warned.

Sources: Lazowska, Zahorjan, Graham, Sevcik, "Quantitative System Performance", 1984, chapters 5 (bounds) and 6 (MVA and
Schweitzer's approximation); Seidmann, Schweitzer, Shalev-Oren, "Computerized closed queueing network models of flexible
manufacturing systems", Large Scale Systems 12, 1987 (several servers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.analysis.demand import Demand, Moments, demand, slowest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.scenario.schema import World
    from harness.scenario.workload import Workload

ROUNDING = 0.005
"""Relative error of the closed forms themselves (rounded token counts, quadrature of capped laws) that a firm bound allows."""

SWEEPS, SETTLED = 200, 1e-6
"""Most iterations of the mean value analysis, and the relative change at which it ends."""

PAUSE_SWEEPS = 6
"""Rounds between the throughput and the share of time in which replicas stand still for new weights."""

RARE_CUT = 1e-3
"""Share of episodes that a deadline or the longest context may cut short before bounds that rest on whole episodes are only
estimates: what is cut short has asked for less."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the closed forms need to know of a pipeline's configuration, in its own terms.

    Attributes:
        members_planned: episodes started for a group.
        members_needed: finished episodes that release it.
        groups_per_step: groups of an optimizer step.
        steps_per_sync: optimizer steps from one publication to the next.
        outstanding_groups: groups that may be under way at once; None where only the cap limits them.
        whole_credit: the credit is for groups until they are published (by step, by window), not only until they are complete.
        chunk_groups: groups of one pull of the learner.
        max_inflight: episodes in flight at once.
        env_workers: sandboxes.
        tool_workers: tool calls at once.
        reward_workers: episodes scored at once.
        slots: requests that a replica decodes at once.
        chunk_steps: decode steps between two decisions of a replica.
        rolling: replicas take new weights in turn.
        checkpoint_interval: optimizer steps between saves, 0 for never.
        tool_limit_s: deadline of a tool call.
        episode_limit_s: deadline of an episode.
        buffer_groups: complete groups that may wait.
        colocated: learner and replicas take turns on the same chips.
        evaluates: episodes are played for evaluation, too.
        drifts: numbers of the scenario change over training.

    """

    members_planned: int
    members_needed: int
    groups_per_step: int
    steps_per_sync: int
    outstanding_groups: int | None
    whole_credit: bool
    chunk_groups: int
    max_inflight: int
    env_workers: int
    tool_workers: int
    reward_workers: int
    slots: int
    chunk_steps: int
    rolling: bool
    checkpoint_interval: int
    tool_limit_s: float
    episode_limit_s: float
    buffer_groups: int
    colocated: bool = False
    evaluates: bool = False
    drifts: bool = False

    @property
    def in_bursts(self) -> bool:
        """Whether all groups that may be under way start together at a publication, and the next one needs all of them."""
        return self.outstanding_groups == self.steps_per_sync * self.groups_per_step


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on the throughput of kept groups.

    Attributes:
        name: of the resource.
        groups_per_s: at most so many.
        firm: whether no run can be above it, but for luck and for work that was done before its window.
        stored: whether work of groups that are not yet kept may have been done before the window.

    """

    name: str
    groups_per_s: float
    firm: bool
    stored: bool = True


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the closed forms say.

    Attributes:
        limits: of throughput, the narrowest first.
        groups_per_s: kept groups a second with queueing; what is discarded is not taken off.
        episode_s: seconds of an episode with nothing in its way: alone on a replica, no queue.
        loaded_episode_s: the same with its replica's slots full.
        group_s: seconds until the slowest member of a group, slots full.
        stored_groups: most groups that can be under way or in the buffer.
        episodes_in_flight: most episodes at once.
        loop_utilisation: share of the host event loop's time that is in use.
        left_out: what the closed forms do not know of, and a simulated run may lose to.

    """

    limits: tuple[Limit, ...]
    groups_per_s: float
    episode_s: float
    loaded_episode_s: float
    group_s: float
    stored_groups: int
    episodes_in_flight: int
    loop_utilisation: float
    left_out: tuple[str, ...] = ()

    @property
    def bound_groups_per_s(self) -> float:
        """The narrowest limit."""
        return self.limits[0].groups_per_s

    @property
    def narrowest(self) -> Limit:
        """Which limit that is."""
        return self.limits[0]


def expect(world: World, workload: Workload, knobs: Knobs) -> Expectation:
    """Work it out. Microseconds, once the workload has been seen."""
    needs = demand(workload, world, knobs.tool_limit_s)
    times = _times(world, workload, needs, knobs)
    firm = _whole_episodes(world, workload, needs, knobs, times)
    limits = sorted(_limits(world, workload, needs, knobs, times, firm=firm), key=lambda limit: limit.groups_per_s)
    in_flight = _in_flight(knobs)
    rate = min(limits[0].groups_per_s, _with_queues(needs, replace(knobs, buffer_groups=0, chunk_groups=0), times))
    stored = knobs.outstanding_groups or knobs.max_inflight + knobs.buffer_groups
    return Expectation(
        limits=tuple(limits),
        groups_per_s=rate,
        episode_s=times.alone_s,
        loaded_episode_s=times.loaded.mean,
        group_s=times.group_s,
        stored_groups=stored + knobs.groups_per_step,
        episodes_in_flight=in_flight,
        loop_utilisation=_loop(world, needs, knobs, times, rate * knobs.members_planned),
        left_out=_left_out(world, workload, knobs),
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds, from the laws of the world.

    Attributes:
        replica_s: of one replica for an episode, its slots full.
        generation_s: that an episode generates, alone on a replica.
        alone_s: from sandbox to teardown, alone.
        loaded: moments of the same with slots full.
        group_s: until the slowest member, slots full.
        pass_s: of the learner for an optimizer step.
        step_s: the same with its share of the saves.
        pause_s: that a replica stands still for a publication.
        sync_s: of a publication, over all replicas.

    """

    replica_s: float
    generation_s: float
    alone_s: float
    loaded: Moments
    group_s: float
    pass_s: float
    step_s: float
    pause_s: float
    sync_s: float
    replicas: int
    correlation: float


def _times(world: World, workload: Workload, needs: Demand, knobs: Knobs) -> _Times:
    inference = world.inference
    decode, prefill = inference.decode, inference.prefill
    context = needs.context / needs.tokens if needs.tokens else 0.0
    full_s = decode.step_s(knobs.slots, knobs.slots * context)
    alone_s = decode.step_s(1, context)
    computed = prefill.prefill_s(0) * needs.turns.mean, prefill.prefill_s(round(needs.prefill_tokens)) - prefill.prefill_s(0)
    replica_s = needs.tokens * full_s / knobs.slots + computed[0] / knobs.slots + computed[1]
    generation_s = needs.tokens * alone_s + computed[0] + computed[1]
    around_s = needs.reset_s.mean + needs.tool_s.mean + needs.reward_s.mean + needs.close_s
    turn = Moments(needs.turn_tokens.mean * full_s, needs.turn_tokens.square * full_s**2)
    loaded_s = around_s + needs.tokens * full_s + computed[0] + computed[1]
    # Tools and generation of an episode grow together with its turns.
    per_turn = turn.mean + (needs.tool_s.mean / needs.turns.mean if workload.agent_run is None else 0.0)
    generation = needs.turns.mean * turn.variance + needs.turns.variance * (per_turn**2 - (per_turn - turn.mean) ** 2)
    spread = needs.reset_s.variance + needs.reward_s.variance + needs.tool_s.variance + generation
    loaded = Moments(loaded_s, loaded_s**2 + spread)
    by_turns = needs.turns.variance * per_turn**2
    correlation = workload.task_correlation * by_turns / spread if spread else 0.0
    pass_s = _pass_s(world, needs, knobs)
    pause_s = world.weights.transfer.transfer_s(world.weights.weights_bytes)
    return _Times(
        replica_s=replica_s,
        generation_s=generation_s,
        alone_s=around_s + generation_s,
        loaded=loaded,
        group_s=slowest(loaded, knobs.members_planned, correlation),
        pass_s=pass_s,
        step_s=pass_s + _save_s(world, knobs),
        pause_s=pause_s,
        sync_s=pause_s * (inference.replicas if knobs.rolling else 1),
        replicas=inference.replicas,
        correlation=correlation,
    )


def _pass_s(world: World, needs: Demand, knobs: Knobs) -> float:
    samples = knobs.groups_per_step * knobs.members_needed
    tokens = round(samples * needs.sequence_tokens)
    seconds = world.learner.train.pass_s(samples, tokens)
    if world.learner.log_probs is not None:
        seconds += world.learner.log_probs.pass_s(samples, tokens)
    return seconds


def _save_s(world: World, knobs: Knobs) -> float:
    if not knobs.checkpoint_interval or world.checkpoint is None:
        return 0.0
    return world.checkpoint.save.transfer_s(world.checkpoint.state_bytes) / knobs.checkpoint_interval


def _in_flight(knobs: Knobs) -> int:
    if knobs.outstanding_groups is None:
        return knobs.max_inflight
    return min(knobs.max_inflight, knobs.outstanding_groups * knobs.members_planned)


def _whole_episodes(world: World, workload: Workload, needs: Demand, knobs: Knobs, times: _Times) -> bool:
    """Whether groups that are kept have asked for whole episodes, the long as well as the short ones.

    Where members are cancelled once enough have finished, or long ones fail more often, what is kept is shorter than the mean.
    """
    selects = knobs.members_planned > knobs.members_needed
    fails = world.environments.reset_infra_failure + world.environments.reset_hang
    fails += math.fsum(tool.share * (tool.infra_failure + tool.hang) for tool in workload.tools)
    rarely_cut = max(needs.cut_by_context, _cut_at(times.loaded, knobs.episode_limit_s)) < RARE_CUT
    breaks = any("fail" in (outage.in_flight, outage.new_calls) for outage in world.outages)
    hangs = any("hang" in (outage.in_flight, outage.new_calls) for outage in world.outages)
    refuses = world.environments.start_queue is not None or any(tool.on_excess == "refuse" for tool in workload.tools)
    return rarely_cut and fails == 0 and not (selects or breaks or hangs or refuses or knobs.drifts)


def _cut_at(moments: Moments, limit_s: float) -> float:
    """Largest probability of being above a limit that mean and variance allow (Cantelli's inequality)."""
    room = limit_s - moments.mean
    return moments.variance / (moments.variance + room * room) if room > 0 else 1.0


def _limits(world: World, workload: Workload, needs: Demand, knobs: Knobs, times: _Times, *, firm: bool) -> Iterable[Limit]:
    """Every limit on kept groups a second."""
    planned = knobs.members_planned
    members = planned if planned == knobs.members_needed else knobs.members_needed
    yield Limit("learner", _rate(knobs.groups_per_step, times.pass_s), firm, stored=False)
    yield Limit("inference, slots full", _rate(times.replicas, members * times.replica_s), firm)
    yield Limit("tool workers", _rate(knobs.tool_workers, members * needs.tool_s.mean), firm)
    yield Limit("sandboxes", _rate(knobs.env_workers, members * times.alone_s), firm)
    yield Limit("scoring workers", _rate(knobs.reward_workers, members * needs.reward_s.mean), firm)
    yield Limit("episodes in flight", _rate(knobs.max_inflight, members * times.alone_s), firm)
    yield Limit("weight sync", _rate(knobs.steps_per_sync * knobs.groups_per_step, times.sync_s), firm=True)
    if knobs.outstanding_groups is not None:
        chunks = math.ceil(knobs.groups_per_step / knobs.chunk_groups)
        learning_s = times.pass_s * (chunks + 1) / (2 * chunks)  # until its step is complete, the mean over a step's groups
        held_s = times.alone_s + (learning_s + times.sync_s if knobs.whole_credit else 0.0)
        yield Limit("credit to run ahead", _rate(knobs.outstanding_groups, held_s), firm)
    for tool in workload.tools:
        if tool.rate_per_s is not None:
            calls = members * needs.turns.mean * tool.share
            yield Limit(f"rate limit of {tool.name}", _rate(tool.rate_per_s, calls), firm and tool.burst == 1)
    if world.environments.starts_at_once is not None:
        yield Limit("starts at once", _rate(world.environments.starts_at_once, members * needs.reset_s.mean), firm)
    if knobs.colocated and world.switch is not None:
        turns_s = world.switch.to_training.seconds + world.switch.to_rollout.seconds + world.switch.reshard.seconds
        generating_s = knobs.groups_per_step * members * times.replica_s / times.replicas
        yield Limit("chips in turn", _rate(knobs.groups_per_step, generating_s + times.pass_s + turns_s), firm=False)
    if workload.arrivals is not None:
        yield Limit("tasks that come", _rate(1, workload.arrivals.gap.expected_s()), firm)


EPISODE_WAKES, TURN_WAKES = 4, 2
"""How often an episode's task wakes up: after its start, reset, score and teardown; and in each turn after its answer and its
tool call. Waits for a place in a pool come on top."""


def _loop(world: World, needs: Demand, knobs: Knobs, times: _Times, episodes_per_s: float) -> float:
    """Share of the event loop's time that is in use, from wake-ups a second.

    Each wake-up costs a step, and a pass where the loop was asleep: U = w (step + pass (1 - U)).
    """
    if not math.isfinite(episodes_per_s):
        return 1.0
    generating = episodes_per_s * times.generation_s / times.replicas
    batch = min(max(generating, 1.0), knobs.slots)
    context = needs.context / needs.tokens if needs.tokens else 0.0
    chunk_s = world.inference.decode.step_s(round(batch), batch * context) * knobs.chunk_steps
    chunks = times.replicas * -math.expm1(-generating) / chunk_s if chunk_s else episodes_per_s * needs.tokens
    wakes = episodes_per_s * (EPISODE_WAKES + TURN_WAKES * needs.turns.mean) + chunks
    step_s, pass_s = world.host.per_step_s, world.host.per_pass_s
    return min(wakes * (step_s + pass_s) / (1 + wakes * pass_s), 1.0)


def _rate(servers: float, seconds: float) -> float:
    return servers / seconds if seconds > 0 else math.inf


@lru_cache(maxsize=4096)
def _with_queues(needs: Demand, knobs: Knobs, times: _Times) -> float:
    """Kept groups a second with queueing: whichever closes first, the cap on episodes or the credit for groups.

    Remembered: a search asks about many settings that differ in what makes no difference here.
    """
    members = knobs.members_planned
    light_s = times.generation_s
    stations = [
        (times.replica_s / times.replicas, light_s),
        _pool(needs.tool_s.mean, knobs.tool_workers),
        _pool(needs.reward_s.mean, knobs.reward_workers),
    ]
    delay_s = needs.reset_s.mean + needs.close_s + math.fsum(delay for _, delay in stations)
    demands = [demand for demand, _ in stations]
    alone = min(knobs.max_inflight, knobs.env_workers)
    by_cap = closed_network(alone, demands, delay_s) / members
    if knobs.outstanding_groups is None:
        return by_cap
    together = members * (knobs.outstanding_groups if knobs.in_bursts else 1)
    late_s = slowest(times.loaded, together, times.correlation) - times.loaded.mean
    group = [*(members * demand for demand in demands)]
    if not knobs.whole_credit:
        return min(by_cap, closed_network(knobs.outstanding_groups, group, delay_s + late_s))
    # Credit comes back with a publication, to all its groups at once: until the last of them is there, the others wait.
    customers: float = knobs.outstanding_groups
    if not knobs.in_bursts:
        customers -= (knobs.steps_per_sync * knobs.groups_per_step - 1) / 2
    per_group_s = times.step_s / knobs.groups_per_step
    wait_s = times.step_s - per_group_s + times.sync_s
    # A replica that takes new weights holds up whoever comes to generate; a tool call may hide a part of it.
    pause_s = max(times.pause_s - needs.tool_call_s.mean, 0.0)
    by_credit, stalled = math.inf, 0.0
    for _ in range(PAUSE_SWEEPS):
        stalled_s = times.group_s * stalled / (1 - stalled)
        by_credit = closed_network(customers, [*group, per_group_s], delay_s + late_s + wait_s + stalled_s)
        stalled = min(by_credit * pause_s / (knobs.steps_per_sync * knobs.groups_per_step), 0.9)
    return min(by_cap, by_credit)


def _pool(seconds: float, servers: int) -> tuple[float, float]:
    """Demand and delay of a station with several servers."""
    return seconds / servers, seconds * (servers - 1) / servers


def closed_network(customers: float, demands: Iterable[float], delay_s: float) -> float:
    """Customers a second through stations with these demands and a delay, by Schweitzer's approximation of mean value analysis.

    Args:
        customers: in the network, always.
        demands: seconds that a customer needs of each station.
        delay_s: seconds that it spends elsewhere, without queueing.

    """
    needed = [demand for demand in demands if demand > 0]
    if customers <= 0 or not (needed or delay_s > 0):
        return math.inf if customers > 0 else 0.0
    queues = [customers / (len(needed) + 1)] * len(needed)
    rate, seen = 0.0, max(customers - 1, 0.0) / customers
    for _ in range(SWEEPS):
        spent = [demand * (1 + queue * seen) for demand, queue in zip(needed, queues, strict=True)]
        new = customers / (delay_s + math.fsum(spent))
        queues = [new * seconds for seconds in spent]
        if abs(new - rate) <= SETTLED * new:
            return new
        rate = new
    return rate


def exact_mva(customers: int, demands: Iterable[float], delay_s: float) -> list[float]:
    """Customers a second with 1, 2, …, `customers` of them, exact for product-form networks.

    R_i(n) = D_i (1 + Q_i(n - 1)), X(n) = n / (Z + Σ R_i(n)), Q_i(n) = X(n) R_i(n).

    Source: Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks", Journal of the ACM 27(2), 1980.
    """
    needed = list(demands)
    queues, rates = [0.0] * len(needed), []
    for n in range(1, customers + 1):
        spent = [demand * (1 + queue) for demand, queue in zip(needed, queues, strict=True)]
        rates.append(n / (delay_s + math.fsum(spent)))
        queues = [rates[-1] * seconds for seconds in spent]
    return rates


def _left_out(world: World, workload: Workload, knobs: Knobs) -> tuple[str, ...]:
    """What makes a run slower than the closed forms say, in words for a reader."""
    failing = world.environments.reset_infra_failure + world.environments.reset_hang + world.scoring.failure
    failing += math.fsum(tool.infra_failure + tool.hang for tool in workload.tools)
    found = {
        "failures and their retries": failing > 0,
        "members that are started beyond those needed": knobs.members_planned > knobs.members_needed,
        "outages": bool(world.outages),
        "chips that are lost and replaced": world.preemption is not None,
        "turns on shared chips": knobs.colocated,
        "evaluation": knobs.evaluates,
        "numbers that drift over training": knobs.drifts,
        "starts that slow each other down": world.environments.slowdown_per_start > 0,
        "rate limits": any(tool.rate_per_s is not None for tool in workload.tools),
    }
    return tuple([words for words, there in found.items() if there])
