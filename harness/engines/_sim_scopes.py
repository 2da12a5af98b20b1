"""Tasks, cancel scopes and nurseries of the engine `sim`; its theory of operation is in `harness.engines.sim`."""

from __future__ import annotations

from types import coroutine
from typing import TYPE_CHECKING, Any

from harness.core.errors import DeadlineExceeded, LawError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from types import TracebackType

    from harness.engines.sim import SimRuntime

NEVER = 1 << 100
"""Later than any deadline."""


class Cancelled(BaseException):
    """Raised at a cancellation point inside a cancelled scope. Never swallow it."""


class Task:
    """One coroutine and what it waits for."""

    __slots__ = (
        "armed",
        "box",
        "eid",
        "error",
        "name",
        "nursery",
        "outside",
        "parked",
        "pending",
        "root",
        "scope",
        "send",
        "serial",
        "throw",
        "timer",
    )

    def __init__(
        self, coro: Coroutine[Any, Any, Any], name: str, serial: int, scope: CancelScope | None, nursery: SimNursery | None
    ) -> None:
        self.send = coro.send
        self.throw = coro.throw
        self.name = name
        self.serial = serial
        self.scope = scope
        self.root = scope
        self.nursery = nursery
        self.pending = False
        self.outside = nursery is not None and nursery.outside  # no step of it is the event loop's
        self.parked: Any = None  # what can withdraw the wait; None while running, ready or waiting uncancellably
        self.box: Any = None  # the value that a receive was handed
        self.error: BaseException | None = None  # to be thrown in at the next step
        self.eid = -1  # serial of the queue entry that will wake it; they count from 0
        self.timer = NEVER  # earliest armed deadline
        self.armed: list[int] | None = None  # all armed deadlines, falling


class CancelScope:
    """A region that can be cancelled."""

    __slots__ = ("_called", "_deadline", "_parent", "_rt", "_shield", "_task", "cancelled_caught", "nursery")

    def __init__(self, rt: SimRuntime, deadline_ns: int | None, shield: bool) -> None:  # noqa: FBT001
        self._rt = rt
        self._deadline = deadline_ns
        self._shield = shield
        self._called = False
        self.cancelled_caught = False
        self._task: Task | None = None
        self._parent: CancelScope | None = None
        self.nursery: SimNursery | None = None

    @property
    def cancel_called(self) -> bool:
        """Whether it was cancelled, by a call or a deadline."""
        return self._called

    @property
    def deadline_ns(self) -> int | None:
        """Absolute deadline, or none."""
        return self._deadline

    @deadline_ns.setter
    def deadline_ns(self, deadline_ns: int | None) -> None:
        self._deadline = deadline_ns
        task = self._task
        if task is None or deadline_ns is None:
            return
        if deadline_ns <= self._rt._now:
            self.cancel()
        elif deadline_ns < task.timer:
            self._rt._arm(task, deadline_ns)

    @property
    def shield(self) -> bool:
        """Whether what is outside is hidden."""
        return self._shield

    @shield.setter
    def shield(self, shield: bool) -> None:
        if shield != self._shield:
            self._shield = shield
            self._rt._refresh(self)

    def cancel(self) -> None:
        """Cancel it."""
        if not self._called:
            self._called = True
            self._rt._refresh(self)

    def __enter__(self) -> CancelScope:
        if self._task is not None:
            raise LawError("a cancel scope is entered once")
        rt = self._rt
        task = rt._task
        self._task = task
        self._parent = task.scope
        task.scope = self
        deadline = self._deadline
        if deadline is not None and deadline <= task.timer:
            if deadline <= rt._now:
                self._called = True
            elif deadline < task.timer:
                rt._arm(task, deadline)
        if self._shield:
            task.pending = self._called
        elif self._called:
            task.pending = True
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /) -> bool:
        task = self._task
        if task is None or task.scope is not self:
            raise LawError("cancel scopes are left in the reverse order of entering, by the task that entered them")
        parent = self._parent
        task.scope = parent
        if not self._called:
            if self._shield:
                task.pending = effective(parent)
            return False
        outside = effective(parent)
        task.pending = outside
        if exc is None or (outside and not self._shield):
            return False
        if isinstance(exc, Cancelled):
            self.cancelled_caught = True
            return True
        if isinstance(exc, BaseExceptionGroup):
            return self._split(exc)
        return False

    def _split(self, group: BaseExceptionGroup[BaseException]) -> bool:
        mine, rest = group.split(Cancelled)
        if mine is not None:
            self.cancelled_caught = True
        if rest is None:
            return True
        if mine is None:
            return False
        raise rest


class FailAfter(CancelScope):
    """A scope that raises when its deadline cut the body off."""

    __slots__ = ()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /) -> bool:
        swallowed = CancelScope.__exit__(self, kind, exc, tb)
        if self.cancelled_caught:
            raise DeadlineExceeded
        return swallowed


class Shield(CancelScope):
    """A shielded scope that nobody can cancel, and so one that can be used again."""

    __slots__ = ("_epoch", "_outside")

    def __enter__(self) -> CancelScope:
        task = self._rt._task
        self._task = task
        self._parent = task.scope
        self._epoch = self._rt._epoch
        self._outside = task.pending
        task.scope = self
        task.pending = False
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /) -> None:  # type: ignore[override]
        task, parent = self._task, self._parent
        if task is None or task.scope is not self:
            raise LawError("cancel scopes are left in the reverse order of entering, by the task that entered them")
        task.scope = parent
        task.pending = self._outside if self._epoch == self._rt._epoch else effective(parent)
        self._task = None
        if self._shield:  # else it was taken away: a deadlock is being cleaned up
            self._rt._shields.append(self)


def effective(scope: CancelScope | None) -> bool:
    """Whether a scope is cancelled, itself or visibly from outside."""
    while scope is not None:
        if scope._called:
            return True
        if scope._shield:
            return False
        scope = scope._parent
    return False


class SimNursery:
    """Owns child tasks; its own context manager."""

    __slots__ = ("_failures", "_parent", "_rt", "_waiting", "cancel_scope", "children", "closed", "outside")

    def __init__(self, rt: SimRuntime) -> None:
        self._rt = rt
        self.cancel_scope = CancelScope(rt, None, False)  # noqa: FBT003
        self.cancel_scope.nursery = self
        self.children: dict[Task, None] = {}
        self._failures: list[BaseException] = []
        self._waiting = False
        self.closed = False
        self.outside = False  # its children's steps cost nothing (`harness.core.host`)
        self._parent: Task | None = None

    def start_soon(self, fn: Callable[..., Awaitable[object]], /, *args: Any, name: str | None = None) -> None:
        """Start a child."""
        if self.closed or self._parent is None:
            raise LawError("this nursery is closed (or was never opened): no child can start in it")
        rt = self._rt
        scope = self.cancel_scope
        rt._serial = serial = rt._serial + 1
        task = Task(fn(*args), name or fn.__qualname__, serial, scope, self)  # type: ignore[arg-type]
        if scope._called or effective(scope):
            task.pending = True
        self.children[task] = None
        rt._ready.append(task)

    def child_ended(self, task: Task, failure: BaseException | None) -> None:
        """Note a child's end; the last one lets the parent go."""
        del self.children[task]
        if failure is not None:
            self._failures.append(failure)
            self.cancel_scope.cancel()
        if self._waiting and not self.children:
            self._waiting = False
            self._rt._ready.append(self._parent)  # type: ignore[arg-type]

    async def __aenter__(self) -> SimNursery:
        self._parent = parent = self._rt._task
        self.outside = self.outside or parent.outside
        self.cancel_scope.__enter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        if exc is not None:
            self._failures.append(exc)
            self.cancel_scope.cancel()
        if self.children:
            self._waiting = True
            await park()
        self.closed = True
        failures = self._failures
        if not failures:
            self.cancel_scope.__exit__(None, None, None)
            return True
        self._failures = []
        group = BaseExceptionGroup("failures in a nursery", failures)
        if not self.cancel_scope.__exit__(BaseExceptionGroup, group, None):
            raise group
        return True


@coroutine
def park() -> Generator[None, None, None]:
    yield
