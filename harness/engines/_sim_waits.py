"""What tasks of the engine `sim` wait on: events, channels, time. Each can withdraw a wait that was cancelled."""

from __future__ import annotations

from collections import OrderedDict, deque
from types import coroutine
from typing import TYPE_CHECKING, Any

from harness.core.errors import BrokenChannelError, ClosedChannelError, EndOfChannel, WouldBlock
from harness.engines._sim_scopes import Cancelled, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import simpy

    from harness.engines.sim import SimRuntime


class Event:
    """A one-way flag."""

    __slots__ = ("_rt", "_set", "_waiters")

    def __init__(self, rt: SimRuntime) -> None:
        self._rt = rt
        self._set = False
        self._waiters: Task | list[Task] | None = None  # most events have one waiter: no list for it

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Wake every waiter."""
        if self._set:
            return
        self._set = True
        waiters = self._waiters
        if waiters is None:
            return
        self._waiters = None
        ready = self._rt._ready
        if type(waiters) is Task:
            waiters.parked = None
            ready.append(waiters)
        else:
            for task in waiters:  # type: ignore[union-attr]
                task.parked = None
                ready.append(task)

    @coroutine
    def wait(self) -> Generator[None, None, None]:
        """Wait until it is set."""
        task = self._rt._task
        if task.pending:
            raise Cancelled
        if self._set:
            return
        waiters = self._waiters
        if waiters is None:
            self._waiters = task
        elif type(waiters) is list:
            waiters.append(task)
        else:
            self._waiters = [waiters, task]  # type: ignore[list-item]
        task.parked = self
        yield

    def withdraw(self, task: Task) -> None:
        """Forget a cancelled waiter."""
        waiters = self._waiters
        if type(waiters) is list:
            waiters.remove(task)
        else:
            self._waiters = None


class Channel:
    """What the two ends share."""

    __slots__ = ("buffer", "capacity", "receive_closed", "receivers", "rt", "send_closed", "senders")

    def __init__(self, rt: SimRuntime, capacity: int) -> None:
        self.rt = rt
        self.capacity = capacity
        self.buffer: deque[Any] = deque()
        self.senders: OrderedDict[Task, Any] = OrderedDict()
        self.receivers: OrderedDict[Task, None] = OrderedDict()
        self.send_closed = False
        self.receive_closed = False


class SendChannel:
    """The sending end."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send_nowait(self, value: Any, /) -> None:
        """Put a value in at once, or raise `WouldBlock`."""
        channel = self._channel
        if channel.send_closed:
            raise ClosedChannelError
        if channel.receive_closed:
            raise BrokenChannelError
        if channel.receivers:
            task, _ = channel.receivers.popitem(last=False)
            task.box = value
            task.parked = None
            channel.rt._ready.append(task)
        elif len(channel.buffer) < channel.capacity:
            channel.buffer.append(value)
        else:
            raise WouldBlock

    @coroutine
    def send(self, value: Any, /) -> Generator[None, None, None]:
        """Put a value in, waiting while the channel is full."""
        channel = self._channel
        task = channel.rt._task
        if task.pending:
            raise Cancelled
        try:
            self.send_nowait(value)
        except WouldBlock:
            pass
        else:
            return
        channel.senders[task] = value
        task.parked = self
        yield

    def withdraw(self, task: Task) -> None:
        """Take a cancelled put back."""
        del self._channel.senders[task]

    def close(self) -> None:
        """Close this end."""
        channel = self._channel
        if channel.send_closed:
            return
        channel.send_closed = True
        channel.rt._fail_all(channel.senders, ClosedChannelError)
        if not channel.buffer:
            channel.rt._fail_all(channel.receivers, EndOfChannel)


class ReceiveChannel:
    """The receiving end."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def receive_nowait(self) -> Any:
        """Take the oldest value at once, or raise `WouldBlock`."""
        channel = self._channel
        if channel.receive_closed:
            raise ClosedChannelError
        buffer = channel.buffer
        if channel.senders:
            task, value = channel.senders.popitem(last=False)
            task.parked = None
            channel.rt._ready.append(task)
            buffer.append(value)
        if buffer:
            return buffer.popleft()
        if channel.send_closed:
            raise EndOfChannel
        raise WouldBlock

    @coroutine
    def receive(self) -> Generator[None, None, Any]:
        """Take the oldest value, waiting for one."""
        channel = self._channel
        task = channel.rt._task
        if task.pending:
            raise Cancelled
        if channel.buffer or channel.senders or channel.receive_closed or channel.send_closed:
            return self.receive_nowait()
        channel.receivers[task] = None
        task.parked = self
        yield
        value, task.box = task.box, None
        return value

    def withdraw(self, task: Task) -> None:
        """Take a cancelled get back."""
        del self._channel.receivers[task]

    def close(self) -> None:
        """Close this end."""
        channel = self._channel
        if channel.receive_closed:
            return
        channel.receive_closed = True
        channel.buffer.clear()
        channel.rt._fail_all(channel.receivers, ClosedChannelError)
        channel.rt._fail_all(channel.senders, BrokenChannelError)


class Sleeping:
    """What a sleeping task is parked on: its queue entry becomes stale."""

    __slots__ = ()

    def withdraw(self, task: Task) -> None:
        task.eid = -1


class OnSimPy:
    """What a task is parked on that waits for a SimPy event: its callback is taken away."""

    __slots__ = ("callback", "event")

    def __init__(self, event: simpy.Event, callback: Callable[[simpy.Event], None]) -> None:
        self.event = event
        self.callback = callback

    def withdraw(self, task: Task) -> None:
        if self.event.callbacks is not None:
            self.event.callbacks.remove(self.callback)


SLEEPING = Sleeping()
