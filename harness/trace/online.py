"""The laws of a run, checked at every event while it happens: a recorder that looks at what it is given.

The first event that breaks a law is named, with its index in the log: the run stops there, with everything still in place. A
record that was kept is checked in the same way (`check_log`), so that a breach found later can be followed to its event.

Causality
    time never goes back. Work ends after it starts, each once. A group is admitted, released, put, and then consumed or
    dropped, each at most once; what is released is what its members made that have ended with a sample: their number, tokens
    and oldest version.
    A tool is called, and a sandbox closed, between an episode's reset and its end; every sandbox is closed exactly once.
Capacity
    no more calls, sandboxes, scorings, episodes, requests of a batch and groups in the buffer than there is room for; a replica
    makes one step at a time, and so does the learner.
Versions
    steps count up by one; nothing is sampled, published, installed or saved that no step has made; a version is published when
    every replica that was told has it. The lag of a group is the learner's step at its use less its oldest version.
    After a rollback they count on from the version that was gone back to, and all that was in flight is over.
Chips
    where learner and replicas take turns on the same chips, neither works in the other's turn.
Conservation
    groups of a step, their samples and tokens are those that were consumed for it; the depth of the buffer is what came in and
    has not gone out.
Little's law
    for calls, sandboxes, scorings, episodes, groups and the buffer, the area under the number in the system is the sum of the
    times spent in it, in whole nanoseconds. Source: Stidham, "A last word on L = λW", Operations Research 22(2), 1974.
Work conservation
    what `probes` say when an instant is over, before anything happens in the next.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.errors import TraceError
from harness.core.events import Event, EventKind, describe
from harness.core.lanes import STATES
from harness.core.work import WorkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.core.events import Recorder

EVALUATION_GROUPS = 1 << 40
"""Ids of evaluation groups start here (`pipeline.data`)."""

UNUSABLE_ENDS = frozenset({3, 4, 5, 6})
"""Reasons of an `EPISODE_END` that leave no sample (`pipeline.data.Ended`)."""

_KINDS = frozenset(int(kind) for kind in EventKind)


@dataclass(frozen=True, slots=True)
class Limits:
    """What there is room for. None: not bounded, or not known.

    Attributes:
        buffer_groups: groups in the buffer.
        max_lag: lag at consumption, in optimizer steps.
        episodes: training episodes at once.
        environments: sandboxes at once.
        tools: tool calls at once.
        scoring: scorings at once.
        batch: requests in a decode chunk of one replica.
        kv_tokens: context that one replica holds.
        initial_version: of the weights at the start; above 0 after a resume.
        silent_losses: whether a replica may be lost without a word in the log, so that who has to have a version is not known.

    """

    buffer_groups: int | None = None
    max_lag: int | None = None
    episodes: int | None = None
    environments: int | None = None
    tools: int | None = None
    scoring: int | None = None
    batch: int | None = None
    kv_tokens: int | None = None
    initial_version: int = 0
    silent_losses: bool = False


class Station:
    """What is inside something, by id, and both sides of Little's law for it.

    Attributes:
        name: for messages.
        limit: of how many may be inside, None where it is not bounded.
        inside: id → instant of its arrival.

    """

    __slots__ = ("_area", "_count", "_left", "_seen_ns", "inside", "limit", "name")

    def __init__(self, name: str, limit: int | None = None) -> None:
        self.name = name
        self.limit = limit
        self.inside: dict[int, int] = {}
        self._count = 0
        self._area = 0
        self._left = 0
        self._seen_ns = 0

    def enter(self, key: int, now_ns: int) -> None:
        """It arrives."""
        if key in self.inside:
            raise TraceError(f"nothing is in {self.name} twice", (key,))
        self._pass(now_ns)
        self._count += 1
        self.inside[key] = now_ns
        if self.limit is not None and self._count > self.limit:
            raise TraceError(f"there is room for {self.limit} in {self.name}", tuple(self.inside), f"{self._count} are there")

    def leave(self, key: int, now_ns: int) -> None:
        """It goes."""
        since = self.inside.pop(key, None)
        if since is None:
            raise TraceError(f"what leaves {self.name} is there", (key,))
        self._pass(now_ns)
        self._count -= 1
        self._left += now_ns - since

    def _pass(self, now_ns: int) -> None:
        self._area += self._count * (now_ns - self._seen_ns)
        self._seen_ns = now_ns

    def little(self, end_ns: int) -> tuple[int, int]:
        """(area under the number inside, sum of the times inside) up to an instant, what is inside then included."""
        area = self._area + self._count * (end_ns - self._seen_ns)
        return area, self._left + sum(end_ns - since for since in self.inside.values())


class _Group:
    """What is known of one group."""

    __slots__ = ("closed_ns", "ended", "oldest", "over", "put", "released", "samples", "tokens")

    def __init__(self) -> None:
        self.closed_ns = -1  # instant of its verdict
        self.ended: list[tuple[int, int]] = []  # (tokens, oldest version) of members with a sample, up to the release
        self.released = self.put = self.over = False
        self.samples = self.tokens = self.oldest = 0


class OnlineChecks:
    """A recorder that checks what it is given and hands it on.

    Args:
        limits: what there is room for.
        inner: keeps the rows; nothing is kept without it.
        probes: asked when an instant is over; each raises `TraceError` where work could have gone on and did not.

    Attributes:
        events: how many it has seen.
        broken: the first breach; nothing is checked after it, so that the clean-up is not drowned in others.
        stations: what is counted, by name.

    """

    enabled = True

    def __init__(self, limits: Limits, inner: Recorder | None = None, probes: Sequence[Callable[[], object]] = ()) -> None:
        self.events = 0
        self.broken: TraceError | None = None
        self.probes = list(probes)
        self._limits = limits
        self._inner = inner
        self._now = 0
        self._open: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)  # (kind, entity) → serials of open work
        self._serial = 0
        self._doing: dict[str, tuple[int, int]] = {}  # replica or learner → the one (kind, entity) that it is at
        self._groups: dict[int, _Group] = {}
        self._group_of: dict[int, int] = {}  # episode that runs → its group
        self._sandbox: dict[int, bool] = {}  # episode → whether it is being closed
        self._consumed: list[int] = []
        self._made = self._published = self._installed = limits.initial_version
        self._replica_version: dict[int, int] = {}
        self._told = (0, 0)  # version on its way, replicas that were told
        self._lossy = limits.silent_losses  # a replica was lost: who is told of a version is not known any more
        self._turn = -1  # shared chips: 1 the learner's, 0 the replicas'; -1 where they do not take turns
        self._lane_ends: dict[int, int] = {}
        self._training = 0
        stations = (
            Station("tools", limits.tools), Station("environments", limits.environments), Station("scoring", limits.scoring),
            Station("the buffer"), Station("groups"), Station("episodes"),
        )  # fmt: skip
        self.stations = {station.name: station for station in stations}
        self._tools, self._environments, self._scoring, self._buffer, self._open_groups, self._episodes = stations
        self._by_kind: dict[int, Callable[..., None]] = {
            EventKind.WORK_START: self._work_start, EventKind.WORK_END: self._work_end, EventKind.GROUP_ADMIT: self._admit,
            EventKind.EPISODE_START: self._episode_start, EventKind.EPISODE_END: self._episode_end,
            EventKind.GROUP_RELEASE: self._release, EventKind.BUFFER_PUT: self._put, EventKind.DROP: self._drop,
            EventKind.CONSUME: self._consume, EventKind.STEP: self._step, EventKind.SYNC_START: self._sync_start,
            EventKind.SYNC_INSTALL: self._sync_install, EventKind.PUBLISHED: self._publish, EventKind.RETRY: self._retry,
            EventKind.CHECKPOINTED: self._checkpointed, EventKind.EVALUATED: self._checkpointed,
            EventKind.CAPACITY_LOST: self._capacity_lost, EventKind.CAPACITY_BACK: self._capacity_back,
            EventKind.ROLLBACK: self._rollback, EventKind.PHASE: self._phase, EventKind.PREEMPT: self._preempt,
        }  # fmt: skip
        self._on_start: dict[int, Callable[..., None]] = {
            WorkKind.TOOL_CALL: self._tool_starts,
            WorkKind.ENV_RESET: self._reset_starts,
            WorkKind.ENV_CLOSE: self._close_starts,
            WorkKind.REWARD: self._reward_starts,
            WorkKind.DECODE: self._decode_starts,
            WorkKind.PREFILL: self._prefill_starts,
            WorkKind.PUBLISH: self._publish_starts,
            WorkKind.TRAIN_STEP: partial(self._learner_starts, WorkKind.TRAIN_STEP),
            WorkKind.LOG_PROBS: partial(self._learner_starts, WorkKind.LOG_PROBS),
        }

    # ── a recorder ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def append_event(self, event: Event, /) -> None:
        """Check one event and hand it on. Raises `TraceError`, with the index of the event."""
        index = self.events
        self.events += 1
        if self._inner is not None:
            self._inner.append_event(event)
        if self.broken is not None:
            return
        try:
            self._take(event)
        except TraceError as breach:
            known = event[1] in _KINDS
            said = describe(event) if known else str(event)
            detail = f"{breach.detail}; " if breach.detail else ""
            self.broken = TraceError(breach.law, breach.ids, f"{detail}event {index}: {said}")
            raise self.broken from None

    def append_interval(self, interval: tuple[int, int, int, int, int], /) -> None:
        """Check one lane interval and hand it on: it begins where the lane's last one ended."""
        if self._inner is not None:
            self._inner.append_interval(interval)
        t0_ns, t1_ns, lane, state, _ = interval
        if self.broken is not None:
            return
        if t0_ns >= t1_ns or self._lane_ends.get(lane, t0_ns) != t0_ns or not 0 <= state < STATES:
            due = self._lane_ends.get(lane, t0_ns)
            self.broken = TraceError(
                "a lane's intervals follow each other without gap or overlap", (lane,),
                f"{t0_ns} to {t1_ns} ns in state {state}, due at {due} ns; before event {self.events}",
            )  # fmt: skip
            raise self.broken
        self._lane_ends[lane] = t1_ns

    def spill(self) -> None:
        """Have the inner recorder pack what it has."""
        spill = getattr(self._inner, "spill", None)
        if spill is not None:
            spill()

    # ── at the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, end_ns: int) -> None:
        """The instant of the end, with everything still in place: both sides of Little's law. Raises `TraceError`."""
        for station in self.stations.values():
            area, times = station.little(end_ns)
            if area != times or len(station.inside) != station._count:
                raise TraceError(f"Little's law holds for {station.name}", tuple(station.inside), f"{area} != {times}")

    def left(self) -> None:
        """Everything was cancelled and has ended: no work is open, every sandbox was closed. Raises `TraceError`."""
        if self.broken is not None:
            return
        works = tuple(f"{WorkKind(kind).name} {entity}" for (kind, entity), starts in self._open.items() if starts)
        if works:
            raise TraceError("when a run is over, no work is open", works)
        unclosed = tuple(episode for episode, closing in self._sandbox.items() if not closing)
        if unclosed:
            raise TraceError("when a run is over, every sandbox was closed", unclosed)

    # ── the laws ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, event: Event) -> None:
        now, kind, entity, a, b, c, d, e = event
        if kind not in _KINDS:
            raise TraceError("an event is of a known kind", (kind,))
        if now < self._now:
            raise TraceError("time never goes back", (entity,), f"{now} ns after {self._now} ns")
        if now > self._now:
            for probe in self.probes:
                probe()
            self._now = now
        handler = self._by_kind.get(kind)
        if handler is not None:
            handler(entity, a, b, c, d, e)

    def _work_start(self, entity: int, kind: int, b: int, c: int, d: int, _: int) -> None:
        self._serial += 1
        self._open[kind, entity].append(self._serial)
        starts = self._on_start.get(kind)
        if starts is not None:
            starts(entity, b, c, d)

    def _work_end(self, entity: int, kind: int, status: int, amount: int, began_ns: int, _: int) -> None:
        starts = self._open[kind, entity]
        if not starts:
            raise TraceError("work ends once, and after it started", (entity,), WorkKind(kind).name)
        serial = starts.popleft()
        if began_ns > self._now:
            raise TraceError("a server begins before the work ends", (entity,), f"{began_ns} ns")
        if amount < 0:
            raise TraceError("work makes no less than nothing", (entity,), str(amount))
        if kind == WorkKind.TOOL_CALL:
            self._tools.leave(serial, self._now)
        elif kind == WorkKind.REWARD:
            self._scoring.leave(serial, self._now)
        elif kind == WorkKind.ENV_CLOSE:
            self._environments.leave(entity, self._now)
        else:
            for who in [who for who, what in self._doing.items() if what == (kind, entity)]:
                del self._doing[who]

    def _tool_starts(self, episode: int, *_: int) -> None:
        if self._sandbox.get(episode) is not False:
            raise TraceError("a tool is called in a sandbox that is open", (episode,))
        self._tools.enter(self._serial, self._now)

    def _reset_starts(self, episode: int, *_: int) -> None:
        if episode not in self._episodes.inside:
            raise TraceError("a sandbox is reset for an episode that runs", (episode,))
        if episode not in self._sandbox:
            self._sandbox[episode] = False
            self._environments.enter(episode, self._now)
        elif self._sandbox[episode]:
            raise TraceError("a sandbox that was closed is not reset", (episode,))

    def _close_starts(self, episode: int, *_: int) -> None:
        if self._sandbox.get(episode) is not False:
            raise TraceError("every sandbox is closed exactly once", (episode,))
        self._sandbox[episode] = True

    def _reward_starts(self, episode: int, *_: int) -> None:
        if episode not in self._episodes.inside:
            raise TraceError("what is scored has not ended", (episode,))
        self._scoring.enter(self._serial, self._now)

    def _decode_starts(self, replica: int, steps: int, batch: int, kv_tokens: int) -> None:
        limits = self._limits
        if steps < 1 or batch < 1:
            raise TraceError("a chunk has requests and steps", (replica,), f"{batch} and {steps}")
        if limits.batch is not None and batch > limits.batch:
            raise TraceError(f"a replica has {limits.batch} slots", (replica,), f"{batch} requests")
        if limits.kv_tokens is not None and kv_tokens > limits.kv_tokens:
            raise TraceError(f"a replica holds {limits.kv_tokens} tokens of context", (replica,), f"{kv_tokens}")
        self._replica_works(WorkKind.DECODE, replica)

    def _prefill_starts(self, replica: int, *_: int) -> None:
        self._replica_works(WorkKind.PREFILL, replica)

    def _replica_works(self, kind: WorkKind, replica: int) -> None:
        if self._turn == 1:
            raise TraceError("no replica works while the learner has the chips", (replica,))
        self._begins(f"replica {replica}", kind, replica)

    def _publish_starts(self, version: int, replica: int, *_: int) -> None:
        if version > self._made:
            raise TraceError("no version is moved before a step has made it", (version,), f"{self._made} is the newest")
        if f"replica {replica}" in self._doing:
            raise TraceError("a replica takes new weights between two steps", (replica,), f"version {version}")

    def _learner_starts(self, kind: WorkKind, step: int, *_: int) -> None:
        if step != self._made + 1:
            raise TraceError("the learner works at the step after the last one", (step,), f"{self._made} are done")
        if self._turn == 0:
            raise TraceError("the learner does not work while the replicas have the chips", (step,))
        self._begins("the learner", kind, step)

    def _begins(self, who: str, kind: WorkKind, entity: int) -> None:
        if who in self._doing:
            raise TraceError(f"{who} does one thing at a time", self._doing[who])
        self._doing[who] = (int(kind), entity)

    def _admit(self, group: int, *_: int) -> None:
        if group in self._groups:
            raise TraceError("a group is admitted once", (group,))
        self._groups[group] = _Group()
        self._open_groups.enter(group, self._now)

    def _episode_start(self, episode: int, group: int, _: int, __: int, version: int, ___: int) -> None:
        if group < EVALUATION_GROUPS:
            live = self._groups.get(group)
            if live is None or live.closed_ns not in (-1, self._now):  # it may have been started in that very instant
                raise TraceError("a member starts while its group is open", (episode, group))
            self._training += 1
            most = self._limits.episodes
            if most is not None and self._training > most:
                raise TraceError(f"no more than {most} episodes run at once", (episode,))
        if version > self._installed:
            raise TraceError("no version is ahead of what is installed", (episode,), f"{version} > {self._installed}")
        self._episodes.enter(episode, self._now)
        self._group_of[episode] = group
        self._sandbox.pop(episode, None)  # it starts again

    def _episode_end(self, episode: int, reason: int, turns: int, tokens: int, oldest: int, newest: int) -> None:
        self._episodes.leave(episode, self._now)
        if self._sandbox.get(episode) is False:
            raise TraceError("an episode ends after its sandbox was closed", (episode,))
        if turns < 0 or tokens < 0:
            raise TraceError("turns and tokens are counts", (episode,), f"{turns}, {tokens}")
        if not oldest <= newest <= self._installed:
            raise TraceError(
                "no version is ahead of what is installed", (episode,), f"{oldest} to {newest}, {self._installed} is installed"
            )
        number = self._group_of.pop(episode)
        if number >= EVALUATION_GROUPS:
            return
        group = self._groups[number]
        self._training -= 1
        if reason not in UNUSABLE_ENDS and not group.released:
            group.ended.append((tokens, oldest))

    def _release(self, number: int, samples: int, tokens: int, oldest: int, version: int, _: int) -> None:
        group = self._group(number)
        if group.released:
            raise TraceError("a group is released once", (number,))
        made = (len(group.ended), sum([own for own, _ in group.ended]), min((old for _, old in group.ended), default=0))
        if (samples, tokens, oldest) != made:
            raise TraceError(
                "what a group releases is what its members made", (number,),
                f"samples, tokens and oldest version {(samples, tokens, oldest)}, made {made}",
            )  # fmt: skip
        if version > self._made:
            raise TraceError("no version is ahead of the learner", (number,), f"{version} > {self._made}")
        group.released, group.closed_ns = True, self._now
        group.samples, group.tokens, group.oldest = samples, tokens, oldest
        group.ended.clear()

    def _group(self, number: int) -> _Group:
        group = self._groups.get(number)
        if group is None:
            raise TraceError("a group was admitted", (number,))
        if group.over:
            raise TraceError("a group is consumed or dropped once, and nothing happens to it after", (number,))
        return group

    def _put(self, number: int, depth: int, *_: int) -> None:
        group = self._group(number)
        if not group.released or group.put:
            raise TraceError("a group is put once, after its release", (number,))
        group.put = True
        self._buffer.enter(number, self._now)
        inside, most = len(self._buffer.inside), self._limits.buffer_groups
        if depth not in (inside, inside - 1):  # one less where it pushes out another in the same instant
            raise TraceError("the buffer holds what came in and has not gone out", (number,), f"{depth}, not {inside}")
        if most is not None and depth > most:
            raise TraceError(f"a buffer never holds more than its capacity of {most}", (number,), str(depth))

    def _drop(self, number: int, reason: int, _: int, __: int, depth: int, ___: int) -> None:
        group = self._group(number)
        if group.put:
            self._buffer.leave(number, self._now)
        if reason == Fate.LOST:  # with all that was in flight
            for episode in [episode for episode, own in self._group_of.items() if own == number]:
                self._lose(episode)
            depth = len(self._buffer.inside)
        elif not group.put and reason in (Fate.STALE, Fate.TRAINED):
            raise TraceError("what is dropped as stale was in the buffer", (number,))
        if depth != len(self._buffer.inside):
            raise TraceError(
                "the buffer holds what came in and has not gone out", (number,), f"{depth}, not {len(self._buffer.inside)}"
            )
        group.over, group.closed_ns = True, self._now
        self._open_groups.leave(number, self._now)

    def _lose(self, episode: int) -> None:
        self._episodes.leave(episode, self._now)
        if self._group_of.pop(episode) < EVALUATION_GROUPS:
            self._training -= 1

    def _consume(self, number: int, step: int, lag: int, in_flight: int, in_queue: int, tokens: int) -> None:
        group = self._group(number)
        if not group.released:
            raise TraceError("a group is consumed after its release", (number,))
        if group.put:
            self._buffer.leave(number, self._now)
        if step != self._made + 1:
            raise TraceError("a group is consumed for the step after the last one", (number,), f"{step}, {self._made} are done")
        if min(in_flight, in_queue) < 0 or in_flight + in_queue != lag or lag != self._made - group.oldest:
            raise TraceError(
                "lag = lag in flight + lag in queue = step - oldest version", (number,),
                f"{lag}, {in_flight} + {in_queue}, {self._made} - {group.oldest}",
            )  # fmt: skip
        if self._limits.max_lag is not None and lag > self._limits.max_lag:
            raise TraceError(f"no group is consumed with a lag above {self._limits.max_lag}", (number,), str(lag))
        if tokens != group.tokens:
            raise TraceError("what is consumed is what was released", (number,), f"{tokens} tokens, not {group.tokens}")
        group.over = True
        self._consumed.append(number)
        self._open_groups.leave(number, self._now)

    def _step(self, step: int, groups: int, samples: int, _: int, version: int, __: int) -> None:
        if (step, version) != (self._made + 1, self._made + 1):
            raise TraceError("steps count up by one", (step,), f"{self._made} are done")
        taken = sum([self._groups[number].samples for number in self._consumed])
        if (groups, samples) != (len(self._consumed), taken):
            raise TraceError(
                "a step has trained what was consumed for it", tuple(self._consumed),
                f"{groups} groups and {samples} samples, {len(self._consumed)} and {taken} consumed",
            )  # fmt: skip
        self._consumed.clear()
        self._made = version

    def _sync_start(self, version: int, _: int, replicas: int, *__: int) -> None:
        if version > self._made:
            raise TraceError("no version is published before a step has made it", (version,), f"{self._made} is the newest")
        self._told = (version, replicas)

    def _sync_install(self, version: int, replica: int, *_: int) -> None:
        if version > self._made:
            raise TraceError("no version is installed before a step has made it", (version,), f"{self._made} is the newest")
        before = self._replica_version.get(replica, -1)
        if version < before and not self._limits.silent_losses:
            raise TraceError("a replica's version never goes back", (replica,), f"{version} after {before}")
        self._replica_version[replica] = version
        self._installed = max(self._installed, version)

    def _publish(self, version: int, previous: int, *_: int) -> None:
        if version > self._made:
            raise TraceError("no version is published before a step has made it", (version,), f"{self._made} is the newest")
        if previous != self._published or version < previous:
            raise TraceError("published versions grow, each after the one before", (version,), f"{previous}, {self._published}")
        told, replicas = self._told
        behind = tuple(index for index, has in self._replica_version.items() if has < version)
        if self._limits.silent_losses:
            behind = ()
        if told == version and (behind or (len(self._replica_version) < replicas and not self._lossy)):
            raise TraceError("a version is published when every replica has it", behind, f"version {version}")
        if self._lossy and not self._replica_version:  # none is up: the next to come back brings it
            self._installed = max(self._installed, version)
        self._published = version
        self._installed = max(self._installed, version)  # while no replica is up, nobody installs what is published

    def _retry(self, episode: int, _: int, attempt: int, backoff_ns: int, *__: int) -> None:
        if episode not in self._episodes.inside or attempt < 1 or backoff_ns < 0:
            raise TraceError("what is tried again runs, and has failed", (episode,), f"attempt {attempt}, {backoff_ns} ns")

    def _capacity_lost(self, slice_: int, *_: int) -> None:
        if slice_ > 0:
            self._lossy = True
            self._replica_version.pop(slice_ - 1, None)

    def _capacity_back(self, slice_: int, _: int, down_ns: int, version: int, *__: int) -> None:
        if down_ns < 0 or version > self._made:
            raise TraceError("what comes back was lost before, and has a version that was made", (slice_,), f"{version}")
        if slice_ > 0:
            self._replica_version[slice_ - 1] = version

    def _rollback(self, version: int, before: int, lost: int, *_: int) -> None:
        if (before, lost) != (self._made, self._made - version) or not self._limits.initial_version <= version <= before:
            raise TraceError("a rollback goes back from the version that there is", (version,), f"from {before}, {lost} lost")
        if self._buffer.inside or self._training:
            raise TraceError("nothing is in flight when a run goes back", tuple(self._buffer.inside), f"{self._training} run")
        self._made = self._published = self._installed = version
        self._lossy = True
        self._consumed.clear()
        self._replica_version.clear()

    def _phase(self, step: int, turn: int, *_: int) -> None:
        if turn == self._turn or (turn == 0 and self._turn == -1):
            raise TraceError("learner and replicas take turns", (step,))
        others = tuple(who for who in self._doing if who.startswith("replica") == bool(turn))
        if others:
            raise TraceError("chips change hands when nobody works on them", others)
        self._turn = turn

    def _preempt(self, episode: int, replica: int, kv_tokens: int, *_: int) -> None:
        if episode not in self._episodes.inside or kv_tokens < 0:
            raise TraceError("who is preempted runs", (episode, replica), f"{kv_tokens} tokens")

    def _checkpointed(self, version: int, *_: int) -> None:
        if version > self._made:
            raise TraceError("nothing is saved or evaluated before a step has made it", (version,), f"{self._made}")


def check_log(events: Iterable[Event], limits: Limits, end_ns: int | None = None) -> OnlineChecks:
    """Check a log event by event.

    Args:
        events: in their order.
        limits: what there is room for.
        end_ns: of the run; the last event's instant by default.

    Raises:
        TraceError: the first event that breaks a law, with its index.

    """
    checks = OnlineChecks(limits)
    last = 0
    for event in events:
        checks.append_event(event)
        last = event[0]
    checks.finish(last if end_ns is None else end_ns)
    return checks
