"""Events and channels on real trio, which yield to the scheduler only when they wait.

Two things here are not public in trio: the constructor of `trio.Cancelled`, which trio itself raises behind a pass of the
scheduler, and a verb that does not wait must not make one; and a task's cancel status, whose flag says at once what
`trio.current_effective_deadline` finds out by walking through all scopes. Tests guard both.
"""

from __future__ import annotations

from typing import Any

import trio

from harness.core.errors import BrokenChannelError, ClosedChannelError, EndOfChannel, WouldBlock


def cancellation_point() -> None:
    """Raise `trio.Cancelled` here and now if the task is inside a cancelled scope; never yields."""
    if trio.lowlevel.current_task()._cancel_status.effectively_cancelled:
        raise trio.Cancelled._create()


class Event:
    """trio's event, without a schedule point once it is set."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._event.is_set()

    def set(self) -> None:
        """Wake every waiter."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until it is set."""
        cancellation_point()
        if not self._event.is_set():
            await self._event.wait()


class SendChannel:
    """The sending end."""

    __slots__ = ("_channel",)

    def __init__(self, channel: trio.MemorySendChannel[Any]) -> None:
        self._channel = channel

    def send_nowait(self, value: Any, /) -> None:
        """Put a value in at once, or raise `WouldBlock`."""
        try:
            self._channel.send_nowait(value)
        except trio.WouldBlock:
            raise WouldBlock from None
        except trio.ClosedResourceError:
            raise ClosedChannelError from None
        except trio.BrokenResourceError:
            raise BrokenChannelError from None

    async def send(self, value: Any, /) -> None:
        """Put a value in, waiting while the channel is full."""
        cancellation_point()
        try:
            self.send_nowait(value)
        except WouldBlock:
            pass
        else:
            return
        try:
            await self._channel.send(value)
        except trio.ClosedResourceError:
            raise ClosedChannelError from None
        except trio.BrokenResourceError:
            raise BrokenChannelError from None

    def close(self) -> None:
        """Close this end."""
        self._channel.close()


class ReceiveChannel:
    """The receiving end."""

    __slots__ = ("_channel",)

    def __init__(self, channel: trio.MemoryReceiveChannel[Any]) -> None:
        self._channel = channel

    def receive_nowait(self) -> Any:
        """Take the oldest value at once, or raise `WouldBlock`."""
        try:
            return self._channel.receive_nowait()
        except trio.WouldBlock:
            raise WouldBlock from None
        except trio.EndOfChannel:
            raise EndOfChannel from None
        except trio.ClosedResourceError:
            raise ClosedChannelError from None

    async def receive(self) -> Any:
        """Take the oldest value, waiting for one."""
        cancellation_point()
        try:
            return self.receive_nowait()
        except WouldBlock:
            pass
        try:
            return await self._channel.receive()
        except trio.EndOfChannel:
            raise EndOfChannel from None
        except trio.ClosedResourceError:
            raise ClosedChannelError from None

    def close(self) -> None:
        """Close this end."""
        self._channel.close()
