"""The engine `sim`: coroutines driven from SimPy's event queue, in virtual time.

Theory of operation
-------------------
A task is a coroutine. A verb that must wait *parks* the task: it notes on the task what it waits for (`parked`), leaves it
where the wait will end (the event queue, an event's waiters, a channel's waiters), and yields. Whoever ends the wait puts
the task on the ready list. The loop runs ready tasks until none is left, then takes the next entry off SimPy's queue.

*Order.* The queue holds SimPy's own entries, `(time_ns, priority, serial, item)`. Sleeps have SimPy's NORMAL priority and
deadlines the one behind it, so that at one instant everything that completes, and all that follows from it without time
passing, comes before any deadline. Tasks that become ready together run in the order of their creation, as real trio does
with its deterministic switch, so that the two virtual engines agree also where the order shows.

*Withdrawal.* A sleep that is cancelled stays in the queue and is recognised as stale by its serial, which the task no longer
carries; a parked put or get is taken out of its channel, or it would steal an item later.

*Deadlines.* A task has one timer, not one per scope. Its queue entries form a stack of strictly falling times (`armed`): a
scope whose deadline is not below the top needs no entry, as the timer will fire earlier, look at the scopes that are open
then, and arm itself again for the nearest of them. A 30 s deadline round each of a thousand calls of 3 s costs about one
entry every 30 s. Without that, scopes cost half the speed.

*Cancellation* is trio's: a scope is effectively cancelled when it was cancelled or, unless shielded, its parent is. `pending`
caches that for a task's innermost scope; it is brought up to date when a scope below which the task runs changes, so that
each verb tests one attribute.

*The event loop* that all these tasks would share live is a server of its own (`harness.core.host`): its clock moves with every
step, and a sleep or a piece of work begins when it has come to it. The loop below spells `HostLoop.step` out.

SimPy events and processes may be mixed in: a server model can be a SimPy process, waited for with `wait_simpy`.
"""

from __future__ import annotations

from contextlib import suppress
from heapq import heappop, heappush
from operator import attrgetter
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import simpy

from harness.core.errors import (
    DeadlockError,
    LawError,
    LivelockError,
)
from harness.core.events import EventKind, NullRecorder, Recorder
from harness.core.host import HostCosts, HostLoop
from harness.core.lanes import Lane, Lanes
from harness.core.perform import Performers, Timed, TimedFrom, after_failure, perform
from harness.core.seeds import Stream, derive_key
from harness.core.work import Cancellation
from harness.engines._collector import rarer_collections
from harness.engines._interrupt import bare_interrupt
from harness.engines._sim_scopes import NEVER, Cancelled, CancelScope, FailAfter, Shield, SimNursery, Task, effective
from harness.engines._sim_waits import SLEEPING, Channel, Event, OnSimPy, ReceiveChannel, SendChannel

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Awaitable, Callable, Generator

    from harness.core.runtime import Releasable
    from harness.core.work import Outcome, Work

T = TypeVar("T")

_COMPLETION = 1  # SimPy's NORMAL
_DEADLINE = 2  # behind every completion of the instant
_AT_BOUNDARY = Cancellation.AT_BOUNDARY
_WORK_END = EventKind.WORK_END
_STRIKES = 16  # deadlocks and livelocks of one run, its clean-up included, before it is torn down
_BY_CREATION = attrgetter("serial")


class SimRuntime:
    """The waist in virtual time."""

    cancelled: type[BaseException] = Cancelled

    def __init__(
        self, performers: Performers, seed: int, recorder: Recorder, step_limit: int, host: HostCosts | None = None
    ) -> None:
        self.environment = simpy.Environment()
        self.seed = seed
        self.recorder = recorder
        self.recording = recorder.enabled
        self._append_event = recorder.append_event
        self.lanes = Lanes(self.now, recorder.append_interval if recorder.enabled else None)
        self._performers = performers
        self._timed = {
            work: (performer, performer.starting(self.now), work.KIND, work.CANCELLATION is _AT_BOUNDARY)
            for work, performer in performers.items()
            if isinstance(performer, Timed | TimedFrom)
        }
        self._append_work = recorder.append_event if recorder.enabled else None
        self._step_limit = step_limit
        self._host = HostLoop(host or HostCosts())
        self._charging = self._host.costs != HostCosts()
        self._queue: list[Any] = self.environment._queue
        self._ready: list[Task] = []
        self._shields: list[Shield] = []
        self._epoch = 0  # counts changes of scopes
        self._task: Task = None  # type: ignore[assignment]  # set before any verb can be called
        self._now = 0
        self._eids = self.environment._eid
        self._serial = 0
        self._system: SimNursery = None  # type: ignore[assignment]  # opened by the root task
        self._root: Task = None  # type: ignore[assignment]  # made by `run`
        self._root_scope = CancelScope(self, None, False)  # noqa: FBT003
        self._root_ended = False
        self._root_failure: BaseException | None = None
        self._result: Any = None

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> int:
        """Nanoseconds since the run began."""
        return self._now

    @coroutine
    def sleep(self, duration_ns: int, /) -> Generator[None, None, None]:
        """Let time pass."""
        task = self._task
        if task.pending:
            raise Cancelled
        if duration_ns <= 0:
            return
        eid = next(self._eids)
        task.eid = eid
        task.parked = SLEEPING
        begin, until = self._now, self._host.until
        if until > begin and not task.outside:
            begin = until
        heappush(self._queue, (begin + duration_ns, _COMPLETION, eid, task))
        yield

    @coroutine
    def occupy(self, duration_ns: int, /) -> Generator[None, None, None]:
        """Let time pass on the event loop itself, in turn; for simulated performers only. Nothing withdraws it."""
        task = self._task
        if task.pending:
            raise Cancelled
        if duration_ns <= 0:
            return
        task.eid = eid = next(self._eids)
        heappush(self._queue, (self._host.occupy(self._now, duration_ns), _COMPLETION, eid, task))
        yield

    def loop_busy_ns(self) -> int:
        """How long the event loop has been charged."""
        return self._host.busy_ns(self._now)

    @coroutine
    def checkpoint(self) -> Generator[None, None, None]:
        """A cancellation point that never waits."""
        if self._task.pending:
            raise Cancelled
        return
        yield  # type: ignore[unreachable]  # makes it a generator

    @coroutine
    def wait_simpy(self, event: simpy.Event, /) -> Generator[None, None, Any]:
        """Wait for a SimPy event of `environment`; for simulated servers only. Returns its value."""
        task = self._task
        if task.pending:
            raise Cancelled
        if event.callbacks is None:  # it has happened
            return event.value  # type: ignore[unreachable]

        def wake(fired: simpy.Event) -> None:
            task.parked = None
            if not fired.ok:
                fired.defused = True
                task.error = fired.value
            self._ready.append(task)

        event.callbacks.append(wake)
        task.parked = OnSimPy(event, wake)
        yield
        return event.value

    # ── structure ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def event(self) -> Event:
        """A new event."""
        return Event(self)

    def channel(self, capacity: int, /) -> tuple[SendChannel, ReceiveChannel]:
        """A bounded FIFO channel."""
        if capacity < 0:
            raise LawError(f"a channel's capacity is at least 0, not {capacity}")
        channel = Channel(self, capacity)
        return SendChannel(channel), ReceiveChannel(channel)

    def nursery(self) -> SimNursery:
        """A new nursery."""
        return SimNursery(self)

    def cancel_scope(self, *, deadline_ns: int | None = None, shield: bool = False) -> CancelScope:
        """A scope with an absolute deadline, or none."""
        return CancelScope(self, deadline_ns, shield)

    def shield(self) -> Shield:
        """A shielded scope that nobody can cancel."""
        shields = self._shields
        return shields.pop() if shields else Shield(self, None, True)  # noqa: FBT003

    def move_on_after(self, timeout_ns: int, /, *, shield: bool = False) -> CancelScope:
        """A scope with a deadline from now."""
        return CancelScope(self, self._now + timeout_ns, shield)

    def fail_after(self, timeout_ns: int, /, *, shield: bool = False) -> CancelScope:
        """The same; raises `DeadlineExceeded`."""
        return FailAfter(self, self._now + timeout_ns, shield)

    def background(self, fn: Callable[..., Awaitable[object]], /, *args: Any, name: str | None = None) -> None:
        """Start a task that belongs to the run."""
        self._system.start_soon(fn, *args, name=name)

    # ── work, randomness, record ────────────────────────────────────────────────────────────────────────────────────────

    @coroutine
    def perform(self, work: Work, /, *, permit: Releasable | None = None) -> Generator[None, None, Outcome]:
        """Do some work. A `Timed` performer needs no frames of its own: its time passes here.

        A step that ends at its boundary is a wait that nothing can withdraw, so that it needs no shield either.
        """
        known = self._timed.get(work.__class__)
        task = self._task
        if known is None or task.pending:
            answer: Outcome = yield from perform(self, self._performers, work, permit)
            return answer
        timed, duration, kind, at_boundary = known
        append = self._append_work
        try:
            if append is not None:
                append(work.start_event(self._now))
            duration_ns, outcome = duration(work)
            if duration_ns > 0:
                task.eid = eid = next(self._eids)
                if not at_boundary:
                    task.parked = SLEEPING
                begin, until = self._now, self._host.until
                if until > begin and not task.outside:
                    begin = until
                heappush(self._queue, (begin + duration_ns, _COMPLETION, eid, task))
                yield
        except BaseException as failure:
            yield from after_failure(self, timed, work, permit, failure)
            raise
        if permit is not None:
            permit.release()
        if append is not None:
            completed, started_ns = len(outcome.completed), outcome.started_ns
            append((self._now, _WORK_END, work.entity, kind, outcome.status, outcome.amount, started_ns, completed))
        if at_boundary and task.pending:
            raise Cancelled
        return outcome

    def emit(self, kind: int, entity: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, /) -> None:
        """Write one event of the canonical log."""
        self._append_event((self._now, kind, entity, a, b, c, d, e))

    def rng(self, purpose: str, /, *ids: int) -> Stream:
        """A keyed stream."""
        return Stream(derive_key(self.seed, purpose, *ids))

    def lane(self, name: str, role: str, /, *, chips: int = 0) -> Lane:
        """A new lane."""
        return self.lanes.add(name, role, chips)

    # ── the kernel ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self, task: Task, deadline_ns: int) -> None:
        """Make the task's timer fire at `deadline_ns`, which is earlier than anything armed."""
        if task.armed is None:
            task.armed = [deadline_ns]
        else:
            task.armed.append(deadline_ns)
        task.timer = deadline_ns
        eid = next(self._eids)
        heappush(self._queue, (deadline_ns, _DEADLINE, eid, task))

    def _timer_fired(self, task: Task, now: int) -> None:
        """Cancel the scopes of a task whose deadline has come, and arm the timer for the next."""
        armed = task.armed
        if not armed or armed[-1] != now:  # the task has ended
            return
        armed.pop()
        expired = []
        nearest = NEVER
        scope, root = task.scope, task.root
        while scope is not root and scope is not None:
            deadline = scope._deadline
            if deadline is not None and not scope._called:
                if deadline <= now:
                    expired.append(scope)
                elif deadline < nearest:
                    nearest = deadline
            scope = scope._parent
        task.timer = armed[-1] if armed else NEVER
        if nearest < task.timer:
            self._arm(task, nearest)
        for scope in expired:  # all are marked before any task runs: they expire together
            scope._called = True
        if expired:
            self._now = self.environment._now = now  # not before: a deadline that nobody has any more moves no clock
            self._refresh(expired[-1])

    def _refresh(self, scope: CancelScope) -> None:
        """Bring `pending` up to date for every task inside a scope that changed; deliver what became due."""
        self._epoch += 1
        owner = scope._task
        if owner is None:
            return
        todo: list[tuple[Task, CancelScope | None]] = [(owner, scope._parent)]
        while todo:
            task, stop = todo.pop()
            inner = task.scope
            inside = False
            while inner is not stop and inner is not None:
                inside = inside or inner is scope or task is not owner
                if inner.nursery is not None:
                    todo.extend([(child, child.root) for child in inner.nursery.children])
                inner = inner._parent
            if task is owner and not self._is_inside(task, scope):
                return  # the scope was left already
            pending = effective(task.scope)
            task.pending = pending
            parked = task.parked
            if pending and parked is not None:
                parked.withdraw(task)
                task.parked = None
                task.error = Cancelled()
                self._ready.append(task)

    @staticmethod
    def _is_inside(task: Task, scope: CancelScope) -> bool:
        inner = task.scope
        while inner is not None and inner is not scope:
            inner = inner._parent
        return inner is scope

    def _fail_all(self, waiters: OrderedDict[Task, Any], error: type[Exception]) -> None:
        """Wake every waiter of a channel with an error."""
        while waiters:
            task, _ = waiters.popitem(last=False)
            task.parked = None
            task.error = error()
            self._ready.append(task)

    def _ended(self, task: Task, failure: BaseException | None) -> None:
        """Note the end of a task."""
        task.armed = None  # its timer entries are stale from now on
        nursery = task.nursery
        if nursery is not None:
            nursery.child_ended(task, failure)
        else:
            self._root_failure = failure
            self._root_ended = True

    def _turn(self, task: Task) -> None:
        """Run one task until it waits or ends."""
        self._task = task
        try:
            error = task.error
            if error is None:
                task.send(None)
            else:
                task.error = None
                task.throw(error)
        except StopIteration:
            self._ended(task, None)
        except BaseException as exc:
            self._ended(task, exc)

    def _run(self) -> None:
        """Run until the root task has ended or nothing can happen any more.

        The loop is one function with its commonest case, a single task whose sleep ends, spelled out: calls cost here.
        """
        queue, ready, environment = self._queue, self._ready, self.environment
        turn, limit = self._turn, self._step_limit
        loop, charging = self._host, self._charging
        pass_ns, step_ns = loop.costs.pass_ns, loop.costs.step_ns
        follows = False  # whether what is ready was made so by steps that needed a pass
        steps = 0
        while True:
            while ready:
                if len(ready) == 1:
                    steps += 1
                    self._task = task = ready.pop()
                    if charging:
                        if task.outside:
                            follows = False
                        elif follows:  # in the next pass, of which it is the first
                            loop.began = until = loop.until
                            loop.until = until + pass_ns + step_ns
                        else:
                            follows = loop.step(self._now)
                    if task.error is not None:
                        turn(task)
                        continue
                    try:
                        task.send(None)
                    except StopIteration:
                        self._ended(task, None)
                    except BaseException as exc:
                        self._ended(task, exc)
                else:
                    batch = sorted(ready, key=_BY_CREATION)
                    ready.clear()
                    steps += len(batch)
                    behind, follows = follows, False
                    for task in batch:
                        if charging and not task.outside:
                            if behind and not follows:
                                loop.next_pass()
                                follows = True
                            follows = loop.step(self._now) or follows
                        turn(task)
                if steps > limit:
                    raise LivelockError(steps, self._now, tuple(task.name for task in ready) or (self._task.name,))
            if self._root_ended or not queue:
                return
            follows = False
            at, priority, eid, item = heappop(queue)
            if type(item) is not Task:
                heappush(queue, (at, priority, eid, item))
                if at != self._now:
                    self._now, steps = at, 0
                steps += 1
                environment.step()
            elif priority == _COMPLETION:
                if item.eid != eid:  # withdrawn
                    continue
                if at != self._now:
                    self._now = environment._now = at
                    steps = 0
                item.parked = None
                if not queue or queue[0][0] != at:
                    steps += 1
                    self._task = item
                    if charging and not item.outside:
                        until = loop.until
                        if at > loop.began:
                            follows = True
                            if until < at:
                                loop.slack_ns += at - until
                                until = at
                            loop.began = until
                            until += pass_ns
                        loop.until = until + step_ns
                    try:
                        item.send(None)
                    except StopIteration:
                        self._ended(item, None)
                    except BaseException as exc:
                        self._ended(item, exc)
                    continue
                ready.append(item)
            elif item.armed is None:  # its task has ended
                continue
            else:
                if at != self._now:
                    steps = 0
                self._timer_fired(item, at)
            while queue and queue[0][0] == at and queue[0][1] == priority:  # all of one instant and rank, before anybody runs
                self._take_tied(at, priority)

    def _take_tied(self, at: int, priority: int) -> None:
        """Process one more entry of the instant."""
        _, _, eid, item = self._queue[0]
        if type(item) is not Task:
            self.environment.step()
            return
        heappop(self._queue)
        if priority == _DEADLINE:
            self._timer_fired(item, at)
        elif item.eid == eid:
            item.parked = None
            self._ready.append(item)

    def _loop(self) -> None:
        """Run to the end of the root task.

        A deadlock or livelock cancels everything, so that clean-up runs. If that gets stuck in turn, shields are taken away.
        """
        fatal: LawError | None = None
        strikes = 0
        while not self._root_ended:
            try:
                self._run()
                if not self._root_ended:
                    raise DeadlockError(self._waiting(), self._now)
            except (DeadlockError, LivelockError) as error:
                fatal = fatal or error
                strikes += 1
                if strikes > _STRIKES:
                    raise fatal from error
                if strikes > 1:
                    self._drop_shields()
                self._root_scope.cancel()
        if fatal is not None:
            raise fatal
        if self._root_failure is not None:
            raise self._root_failure

    def _tasks(self) -> list[Task]:
        """Every live task, parents first."""
        found = [self._root]
        for task in found:
            scope = task.scope
            while scope is not task.root and scope is not None:
                if scope.nursery is not None:
                    found.extend(scope.nursery.children)
                scope = scope._parent
        return found

    def _drop_shields(self) -> None:
        """Let the cancellation of everything reach what is shielded now."""
        for task in self._tasks():
            scope = task.scope
            while scope is not task.root and scope is not None:
                scope._shield = False
                scope = scope._parent
        self._refresh(self._root_scope)

    def _waiting(self) -> tuple[str, ...]:
        return tuple(f"{task.name} ({_wait_of(task.parked)})" for task in self._tasks())

    async def _main(self, main: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        failure: BaseException | None = None
        with self._root_scope:
            try:
                async with self.nursery() as self._system:
                    self._system.outside = True
                    try:
                        self._result = await main(self, *args)
                    except BaseException as exc:
                        if self._system.cancel_scope.cancel_called:
                            raise  # a background task failed first: the nursery sorts out who failed and who was cancelled
                        failure = exc
                    self._system.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                if failure is None:
                    raise
                raise BaseExceptionGroup("the main task and background tasks failed", [failure, *group.exceptions]) from None
            if failure is not None:
                raise failure

    def run(self, main: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        """Run `main(self, *args)` to its end."""
        self._root = Task(self._main(main, args), getattr(main, "__qualname__", "main"), 0, None, None)
        self._ready.append(self._root)
        try:
            with rarer_collections():
                self._loop()
        finally:
            if not self._root_ended:
                self._abandon()
        return self._result  # type: ignore[no-any-return]

    def _abandon(self) -> None:
        """Close what cannot be run to its end, innermost first. Every verb of a clean-up raises `Cancelled` at once."""
        corpse = Task(self._nothing(), "abandoned", 0, None, None)
        corpse.pending = True
        self._task = corpse
        for task in reversed(self._tasks()):
            with suppress(BaseException):
                task.send.__self__.close()  # type: ignore[attr-defined]
        corpse.send.__self__.close()  # type: ignore[attr-defined]

    async def _nothing(self) -> None:
        """Do nothing."""


def _wait_of(parked: Any) -> str:
    """What a parked task waits for, in a word."""
    if parked is None:
        return "its children"
    return {Event: "an event", SendChannel: "room in a channel", ReceiveChannel: "a value from a channel"}.get(
        type(parked), "time"
    )


def run(
    main: Callable[..., Awaitable[T]],
    /,
    *args: Any,
    performers: Performers | None = None,
    seed: int = 0,
    recorder: Recorder | None = None,
    step_limit: int = 1_000_000,
    host: HostCosts | None = None,
) -> T:
    """Run `main(rt, *args)` in virtual time; see `harness.core.runtime.Engine`."""
    runtime = SimRuntime(performers or {}, seed, recorder or NullRecorder(), step_limit, host)
    with bare_interrupt():
        return runtime.run(main, args)
