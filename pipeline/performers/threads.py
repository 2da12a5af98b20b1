"""Threads for what blocks: a bounded number at once, and spare ones for those that hang.

Theory of operation
-------------------
A call is put into a queue that worker threads take from; there are at most `threads` of them. The answer comes back through
one list and one wake-up of the loop for all answers that are ready, which costs a fraction of a wake-up each.

A thread cannot be killed. When the caller of a running call is cancelled, the call is *abandoned*: nobody waits for its answer
any more. Its thread still has its place, so `gone` waits for it for a grace; after that the thread counts as *lost* and a spare
takes its place. At most `spares` threads can be lost at once. A lost thread that ends after all is the spare's loss: one
worker leaves. When one more is lost than there are spares, the pool says who hangs, in which phase and for how long, by
raising `ThreadsLostError`: from `gone` and from every later call. So a hung call costs its thread, never a silent stall.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import outcome
import trio

from pipeline.environments.environment import ThreadsLostError

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger("rollout_harness")

GRACE_S = 5.0
"""Time that an abandoned call gets to end before its thread counts as lost: that of `Cancellation.KILL`."""

_QUEUED, _RUNNING, _DONE, _DROPPED = range(4)


class Job:
    """A call on its way.

    Attributes:
        label: who makes it, and in which phase.
        abandoned: its caller was cancelled while it ran.
        lost: a spare has taken the place of its thread.
        closing: it tears something down, so it is done also when nobody waits for it any more.
        ended: set when an abandoned call has really ended.
        late: called in the loop with the answer of an abandoned call that ended without an error.

    """

    __slots__ = ("abandoned", "answer", "args", "began_s", "closing", "ended", "fn", "label", "late", "lost", "state", "task")

    def __init__(
        self, label: tuple[object, ...], fn: Callable[..., Any], args: tuple[Any, ...], late: Callable[[Any], object] | None
    ) -> None:
        self.label = label
        self.fn = fn
        self.args = args
        self.late = late
        self.state = _QUEUED
        self.abandoned = False
        self.lost = False
        self.closing = False
        self.began_s = 0.0
        self.answer: outcome.Maybe[Any] | None = None
        self.ended: trio.Event | None = None
        self.task: trio.lowlevel.Task | None = None


class Threads:
    """The pool.

    Args:
        threads: calls that run at once.
        spares: further threads, in the place of those that hang; as many again by default.
        grace_s: time for an abandoned call to end.

    Attributes:
        lost: threads that hang and whose place is gone, to a spare as far as there are any.

    """

    def __init__(self, threads: int, spares: int | None = None, grace_s: float = GRACE_S) -> None:
        self._threads = threads
        self.spares = threads if spares is None else spares
        self._grace_s = grace_s
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._live = 0  # workers that are not lost
        self._busy = 0  # calls that were submitted to them and have not ended
        self._ready: deque[Job] = deque()
        self._rung = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._given_up: dict[Job, None] = {}
        self._told: set[tuple[object, ...]] = set()
        self.lost = 0

    def hanging(self) -> list[str]:
        """Calls that were abandoned and still run: who, in which phase, since when; oldest first."""
        now_s = time.monotonic()
        return [
            f"{' '.join(map(str, job.label))} (for {now_s - job.began_s:.1f} s)"
            for job in self._given_up
            if job.state == _RUNNING
        ]

    def close(self) -> None:
        """Idle workers end; those that still work end after their call."""
        for _ in range(self._live):
            self._queue.put(None)

    async def run(
        self, label: tuple[object, ...], fn: Callable[..., Any], /, *args: Any,
        late: Callable[[Any], object] | None = None, given_up: Callable[[Job], object] | None = None, closing: bool = False,
    ) -> Any:  # fmt: skip
        """Call a function on a thread and wait for its answer.

        What is `closing` is served even when too many threads hang, and also when its caller has gone before it began. Any
        other call that is cancelled before it has begun never begins. Cancelled while it runs, it is abandoned: `given_up` is
        called with the job, for `gone`, and `late` with its answer if there ever is one.

        Raises:
            ThreadsLostError: too many threads hang for this call to be served reliably.

        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not closing:
            self._check()
        job = Job(label, fn, args, late)
        job.closing = closing
        job.task = trio.lowlevel.current_task()
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        self._submit(job)

        def abort(_: object) -> trio.lowlevel.Abort:
            if self._abandon(job) and given_up is not None:
                given_up(job)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)

    async def gone(self, job: Job) -> None:
        """Return when the place of an abandoned call is free: it has ended, or a spare has taken its place.

        Raises:
            ThreadsLostError: there is no spare left.

        """
        ended = job.ended
        if ended is None:
            return
        while True:
            begun = job.state != _QUEUED
            with trio.move_on_after(self._grace_s):
                await ended.wait()
                return
            if begun:  # what waits for a thread hangs nowhere: its grace begins when it has one
                break
        with self._lock:
            if job.state == _DONE or job.lost:
                return
            job.lost = True
        self._live -= 1
        self.lost += 1
        self._check()
        self._tell(job)
        self._serve_more()

    def _tell(self, job: Job) -> None:
        """A spare takes over: said once for each place in the code."""
        place = job.label[2:]
        if place not in self._told:
            self._told.add(place)
            LOG.warning(
                "%s hangs: it was given up and still runs after %.1f s\n"
                "  effect:  a spare thread took its place (%d of %d are in use); told once, counted always\n"
                "  do:      give it a time limit of its own",
                ".".join(map(str, place)), time.monotonic() - job.began_s, self.lost, self.spares,
            )  # fmt: skip

    def _check(self) -> None:
        if self.lost > self.spares:
            hanging = self.hanging()
            shown = "\n  ".join(hanging[:12] + ([f"and {len(hanging) - 12} more"] if len(hanging) > 12 else []))
            raise ThreadsLostError(
                f"{self.lost} threads hang in calls that were given up, and there are {self.spares} spare ones:\n  {shown}\n"
                "  do:      give these calls a time limit of their own, or raise live.environment.spare_threads"
            )

    def _submit(self, job: Job) -> None:
        self._busy += 1
        self._serve_more()
        self._queue.put(job)

    def _serve_more(self) -> None:
        if self._live < min(self._threads, self._busy - self.lost):
            self._live += 1
            threading.Thread(target=self._work, name=f"host {self._live}", daemon=True).start()

    def _abandon(self, job: Job) -> bool:
        """In the loop: its caller goes. Whether it runs on without him."""
        with self._lock:
            if job.state == _QUEUED and not job.closing:
                job.state = _DROPPED
            elif job.state == _RUNNING:
                job.abandoned = True
        if job.state == _DROPPED:
            self._busy -= 1
            return False
        job.abandoned = True  # ended already, but the loop does not know yet: the same as if it ended later
        job.ended = trio.Event()
        self._given_up[job] = None
        return True

    def _work(self) -> None:
        """A worker's life."""
        while True:
            job = self._queue.get()
            if job is None:
                return
            with self._lock:
                if job.state == _DROPPED:
                    continue
                job.state = _RUNNING
                job.began_s = time.monotonic()
            try:
                job.answer = outcome.Value(job.fn(*job.args))
            except BaseException as failure:
                job.answer = outcome.Error(failure)
            with self._lock:
                job.state = _DONE
                leave = job.lost
            self._ready.append(job)
            self._ring()
            if leave:
                return
            del job

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            assert self._token is not None
            try:
                self._token.run_sync_soon(self._deliver)
            except trio.RunFinishedError:
                return

    def _deliver(self) -> None:
        """In the loop: hand out all answers that are ready."""
        self._rung = False
        ready = self._ready
        while ready:
            job = ready.popleft()
            self._busy -= 1
            assert job.answer is not None
            if not job.abandoned:
                assert job.task is not None
                trio.lowlevel.reschedule(job.task, job.answer)
                continue
            del self._given_up[job]
            self.lost -= job.lost
            if job.ended is not None:
                job.ended.set()
            if job.late is not None and isinstance(job.answer, outcome.Value):
                job.late(job.answer.value)
