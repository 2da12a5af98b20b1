"""Laws of time, work, draws and the record (law 8 of `harness.core.runtime`, and `harness.core.perform`)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from harness.core.errors import LawError, ModelError
from harness.core.events import EventKind, MemoryRecorder
from harness.core.lanes import State
from harness.core.primitives import Permits
from harness.core.seeds import Stream, derive_key
from harness.core.work import Cancellation, Outcome, Status, Work, WorkKind, record
from harness.engines._law import MS, LawBook, expect, failure_of

if TYPE_CHECKING:
    from harness.core.runtime import Engine

BOOK = LawBook()

GRACE_NS = 300 * MS
"""How long the caller of a killed work waits for its worker, in these laws."""


@record
class Job(Work):
    """Work that takes `duration_ns`; once cancelled, its worker needs `dying_ns` more to go. The caller is released at once."""

    duration_ns: int
    dying_ns: int = 0
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Duration, time to die."""
        return (self.duration_ns, self.dying_ns, 0)


@record
class BoundaryJob(Job):
    """The same, but runs to its end."""

    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY


@record
class KilledJob(Job):
    """The same, but the caller waits for the worker's death, for a while."""

    CANCELLATION: ClassVar[Cancellation] = Cancellation.KILL
    GRACE_NS: ClassVar[int] = GRACE_NS


@record
class AbandonedJob(Job):
    """The same, but the caller goes on while the worker works to its end."""

    CANCELLATION: ClassVar[Cancellation] = Cancellation.ABANDON


class Worker:
    """Performs jobs by letting time pass, and knows how long a cancelled one stays busy."""

    def __init__(self) -> None:
        self._ends_at: dict[int, int] = {}

    async def __call__(self, rt: Any, work: Job, /) -> Outcome:
        """Take the job's time; what it was done to is marked when it is done."""
        started = rt.now()
        self._ends_at[work.entity] = started + work.duration_ns
        await rt.sleep(work.duration_ns)
        if isinstance(work.payload, list):
            work.payload.append("done")
        return Outcome(result=work.payload, amount=work.duration_ns, started_ns=started, completed=((work.entity, 1),))

    async def gone(self, rt: Any, work: Job, /) -> None:
        """A killed worker dies in its time, an abandoned one works to its end."""
        if work.CANCELLATION is Cancellation.KILL:
            await rt.sleep(work.dying_ns)
        else:
            await rt.sleep(self._ends_at[work.entity] - rt.now())


def job_performers() -> dict[type[Work], Any]:
    """Fresh performers for all jobs."""
    worker = Worker()
    return {Job: worker, BoundaryJob: worker, KilledJob: worker, AbandonedJob: worker}


def _cut_off(run: Engine, work: Job, timeout_ns: int) -> tuple[int, int, bool, int]:
    """When a timed out call returned, when its worker's permit was free, whether the scope caught, permits left in use."""

    async def main(rt: Any) -> tuple[int, int, bool, int]:
        pool = Permits(rt, 1)
        await pool.acquire()
        freed = []

        async def watcher() -> None:
            await pool.acquire()
            freed.append(rt.now())
            pool.release()

        async with rt.nursery() as nursery:
            nursery.start_soon(watcher)
            with rt.move_on_after(timeout_ns) as scope:
                await rt.perform(work, permit=pool)
            returned = rt.now()
        return returned, freed[0], scope.cancelled_caught, pool.in_use

    return run(main, performers=job_performers())


@BOOK.of_programs
async def time_is_integer_and_monotone(rt: Any) -> None:
    """Time starts at 0 and is an integer; a sleep ends exactly where it should, many small ones where one long one would."""
    expect((rt.now(), type(rt.now())), (0, int), "the time at the start, and its type")
    for _ in range(10):
        await rt.sleep(100 * MS)
    expect(rt.now(), 1000 * MS, "the time after ten sleeps of 0.1 s")
    await rt.sleep(1)
    await rt.sleep(86_400_000 * MS)
    await rt.sleep(3)
    expect(rt.now(), 86_401_000 * MS + 4, "the time after a day and some nanoseconds")


@BOOK.of_programs
async def sleeps_end_in_order_of_time(rt: Any) -> None:
    """Sleeps end in the order of their instants, not of their beginning."""
    log = []

    async def sleeper(duration_ns: int) -> None:
        await rt.sleep(duration_ns)
        log.append((duration_ns, rt.now()))

    durations = [5 * MS, MS, 3 * MS, 2 * MS, 4 * MS]
    async with rt.nursery() as nursery:
        for duration_ns in durations:
            nursery.start_soon(sleeper, duration_ns)
    expect(log, [(d, d) for d in sorted(durations)], "who woke when")


@BOOK.of_engines
def perform_returns_the_outcome(run: Engine) -> None:
    """`perform` takes the performer's time, returns its outcome, and gives the permit back."""
    payload = object()

    async def main(rt: Any) -> tuple[Outcome, int, int]:
        pool = Permits(rt, 1)
        await pool.acquire()
        await rt.sleep(MS)
        outcome = await rt.perform(Job(1, 2 * MS, payload=payload), permit=pool)
        return outcome, rt.now(), pool.in_use

    outcome, at_ns, in_use = run(main, performers=job_performers())
    expect((outcome.status, outcome.amount, outcome.started_ns), (Status.OK, 2 * MS, MS), "status; amount; start")
    expect((outcome.result is payload, at_ns, in_use), (True, 3 * MS, 0), "whether the payload came back; time; in use")


@BOOK.of_engines
def payload_is_opaque(run: Engine) -> None:
    """The payload reaches the performer as it is, and neither the record nor comparison sees it."""
    logs = []
    for payload in (None, object(), ["x"]):
        recorder = MemoryRecorder()

        async def main(rt: Any, payload: Any = payload) -> None:
            await rt.perform(Job(4, MS, payload=payload))

        run(main, performers=job_performers(), recorder=recorder)
        logs.append(recorder.events)
    wanted = [(0, EventKind.WORK_START, 4, WorkKind.USER, MS, 0, 0, 0), (MS, EventKind.WORK_END, 4, WorkKind.USER, 0, MS, 0, 1)]
    expect(logs, [wanted] * 3, "the record of one work with three payloads")
    expect(Job(1, 2, payload="a") == Job(1, 2, payload="b"), True, "equality of works that differ in payload")  # noqa: FBT003


@BOOK.of_engines
def unknown_work_is_a_model_error(run: Engine) -> None:
    """Work that nothing performs is a `ModelError` that names it."""

    async def main(rt: Any) -> None:
        await rt.perform(Job(1, 1))

    failure = failure_of(run, main)
    expect((type(failure), "Job" in str(failure)), (ModelError, True), "what came out, and whether it names the work")


@BOOK.of_engines
def failed_performer_gives_the_permit_back(run: Engine) -> None:
    """A performer that raises fails the call, and the permit is free."""

    async def broken(rt: Any, work: Any) -> Outcome:
        await rt.sleep(work.duration_ns)
        raise OSError("worker")

    async def main(rt: Any) -> tuple[str, int, int]:
        pool = Permits(rt, 1)
        await pool.acquire()
        try:
            await rt.perform(Job(1, MS), permit=pool)
        except OSError as error:
            return str(error), pool.in_use, rt.now()
        raise LawError("the performer's failure was lost")

    expect(run(main, performers={Job: broken}), ("worker", 0, MS), "failure; in use; time")


@BOOK.of_engines
def immediate_work(run: Engine) -> None:
    """A 50 ms deadline round 600 ms of `immediate` work: the call returns at 50 ms, the worker is free at 50 ms."""
    expect(_cut_off(run, Job(1, 600 * MS), 50 * MS), (50 * MS, 50 * MS, True, 0), "returned; free; caught; in use")


@BOOK.of_engines
def at_boundary_work(run: Engine) -> None:
    """The same round `at_boundary` work: returns at 600 ms, free at 600 ms, and what the step made is there."""
    made: list[str] = []
    cut = _cut_off(run, BoundaryJob(1, 600 * MS, payload=made), 50 * MS)
    expect(cut, (600 * MS, 600 * MS, True, 0), "returned; free; caught; in use")
    expect(made, ["done"], "what the step made")


@BOOK.of_engines
def at_boundary_work_ends_first(run: Engine) -> None:
    """`at_boundary` work that ends before the deadline, or at its very instant, returns its outcome."""

    async def main(rt: Any) -> tuple[bool, bool]:
        with rt.move_on_after(MS) as early:
            await rt.perform(BoundaryJob(1, MS - 1))
        with rt.move_on_after(MS) as tied:
            await rt.perform(BoundaryJob(1, MS))
        return early.cancelled_caught, tied.cancelled_caught

    expect(run(main, performers=job_performers()), (False, False), "whether the scopes caught")


@BOOK.of_engines
def killed_work(run: Engine) -> None:
    """The same round `kill` work whose worker dies after 200 ms: returns at 250 ms, free at 250 ms."""
    cut = _cut_off(run, KilledJob(1, 600 * MS, 200 * MS), 50 * MS)
    expect(cut, (250 * MS, 250 * MS, True, 0), "returned; free; caught; in use")


@BOOK.of_engines
def killed_work_that_hangs(run: Engine) -> None:
    """A worker that takes longer to die than the grace of 300 ms: returns at 350 ms, free when it is gone, at 950 ms."""
    cut = _cut_off(run, KilledJob(1, 600 * MS, 900 * MS), 50 * MS)
    expect(cut, (350 * MS, 950 * MS, True, 0), "returned; free; caught; in use")


@BOOK.of_engines
def abandoned_work(run: Engine) -> None:
    """The same round `abandon` work: returns at 50 ms, and the pool stays full until the work ends at 600 ms."""
    cut = _cut_off(run, AbandonedJob(1, 600 * MS), 50 * MS)
    expect(cut, (50 * MS, 600 * MS, True, 0), "returned; free; caught; in use")


@BOOK.of_engines
def no_work_starts_once_cancelled(run: Engine) -> None:
    """Inside a cancelled scope no kind of work takes time or makes anything, and its permit is free again."""

    async def main(rt: Any, kind: type[Job], made: list[str]) -> tuple[int, bool, int]:
        pool = Permits(rt, 1)
        await pool.acquire()
        with rt.move_on_after(0) as scope:
            await rt.perform(kind(1, MS, payload=made), permit=pool)
        returned = rt.now()
        await rt.sleep(5 * MS)
        return returned, scope.cancelled_caught, pool.in_use

    for kind in (Job, BoundaryJob, KilledJob, AbandonedJob):
        made: list[str] = []
        got = run(main, kind, made, performers=job_performers())
        expect((kind.__name__, got, made), (kind.__name__, (0, True, 0), []), "kind; (returned, caught, in use); made")


@BOOK.of_engines
def cancelled_work_is_recorded(run: Engine) -> None:
    """The record has the end of every work, with what became of it: cancelled at the deadline, or completed at the boundary."""

    async def main(rt: Any) -> None:
        for entity, kind in enumerate((Job, BoundaryJob, AbandonedJob)):
            with rt.move_on_after(MS):
                await rt.perform(kind(entity, 2 * MS))
            await rt.sleep(MS)

    recorder = MemoryRecorder()
    run(main, performers=job_performers(), recorder=recorder)
    ends = [(e[0], e[2], e[4]) for e in recorder.events if e[1] == EventKind.WORK_END]
    wanted = [(MS, 0, Status.CANCELLED), (4 * MS, 1, Status.OK), (6 * MS, 2, Status.CANCELLED)]
    expect(ends, wanted, "time, entity and status of the ends")


@BOOK.of_engines
def events_carry_time(run: Engine) -> None:
    """`emit` writes the time and eight integers; without a recorder it does nothing."""

    async def main(rt: Any) -> None:
        rt.emit(99, 1)
        await rt.sleep(MS)
        rt.emit(99, 2, 3, 4, 5, 6, 7)

    recorder = MemoryRecorder()
    run(main, recorder=recorder)
    run(main)
    expect(recorder.events, [(0, 99, 1, 0, 0, 0, 0, 0), (MS, 99, 2, 3, 4, 5, 6, 7)], "the log")


@BOOK.of_engines
def draws_are_keyed(run: Engine) -> None:
    """A draw depends on seed, purpose and ids alone."""

    async def main(rt: Any) -> list[float]:
        rt.rng("other").random()
        return [rt.rng("purpose", 1, 2).random(), rt.rng("purpose", 1, 3).random()]

    wanted = [Stream(derive_key(11, "purpose", *ids)).random() for ids in ((1, 2), (1, 3))]
    expect(run(main, seed=11), wanted, "draws")


@BOOK.of_engines
def lanes_run_on_the_engines_time(run: Engine) -> None:
    """A lane's times come from the engine's clock, and its intervals go to the recorder."""

    async def main(rt: Any) -> list[int]:
        lane = rt.lane("tool/0", "tool", chips=2)
        await rt.sleep(MS)
        lane.to(State.TOOL_EXEC, 7)
        await rt.sleep(2 * MS)
        lane.to(State.NO_WORK)
        return [lane.chips, lane.totals[State.NO_WORK], lane.totals[State.TOOL_EXEC]]

    recorder = MemoryRecorder()
    expect(run(main, recorder=recorder), [2, MS, 2 * MS], "chips; idle; busy")
    wanted = [(0, MS, 0, State.NO_WORK, -1), (MS, 3 * MS, 0, State.TOOL_EXEC, 7)]
    expect(recorder.intervals, wanted, "intervals")
