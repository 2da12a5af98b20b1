"""A server that schedules itself: continuous batching as vLLM and SGLang do it, in modelled time.

Theory of operation
-------------------
The server works in steps. At the beginning of each it lets in what waits, in the order of arrival, while there is a slot and
the KV cache has room for the request's prompt and all its new tokens; computes the prefills of these, which stall everybody;
and then makes one token for each running request. Its times are the scenario's laws (`harness.costs.step_time`).

*No event per token.* All running requests advance together, so one counter of steps tells how far each is: one that entered
at p and has n tokens to make ends at p + n. The server sleeps to the nearest end, in closed form over the growing context.
Something that matters sooner (an arrival that fits, an order) wakes it, and it sleeps on to the end of the step that is
running: what arrives is let in at the next step, not at the end of a chunk.

*KV.* As told above (`reserve`), nobody is ever pushed out. With `grow` a request is let in when its context and one token fit,
with a hundredth of the cache left over, beside what the others hold and make in the next step (vLLM's watermark). When a step
would not fit, the youngest goes: it keeps its tokens, waits in front of everybody and is prefilled whole. The oldest never
goes, and whoever is alone is let in, so somebody always gets on.

*Orders.* `PAUSE` and `ABORT` are in force at the end of the step that is running, whose tokens count; at once where none runs.
A paused server takes requests in and computes nothing.

Where it breaks: prefill in chunks beside decode; blocks, of which the last one is never full;
speculative decoding, in which slots advance at different rates.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from harness.core.events import EventKind
from harness.core.units import NS_PER_S
from harness.core.work import Control, Generate, Order, Outcome, Status

if TYPE_CHECKING:
    from harness.core.runtime import Event, Runtime
    from harness.costs.step_time import DecodeLaw, PrefillLaw

_DONE = Outcome()

WATERMARK = 0.01
"""Share of the cache that an admission leaves free beside others."""


class _Entry:
    """One request in a server."""

    __slots__ = (
        "aborted", "decodes", "done", "end", "entered", "made", "order", "request", "reserved", "server", "started_ns",
        "status",
    )  # fmt: skip

    def __init__(self, server: _Server, request: Any, reserved: int, order: int, done: Event) -> None:
        self.server = server
        self.request = request
        self.reserved = reserved
        self.order = order
        self.done = done
        self.aborted = False
        self.started_ns = -1
        self.decodes = False  # it makes a token with each step
        self.entered = 0  # step from which it does
        self.end = 0
        self.made = 0  # before that
        self.status = Status.OK

    def progress(self) -> int:
        """Tokens made up to now."""
        return self.made + self.server.steps_now() - self.entered if self.decodes else self.made

    def stops(self, steps: int) -> None:
        """It makes no further token after so many steps of the server."""
        if self.decodes:
            self.made += steps - self.entered
            self.decodes = False

    @property
    def kv_tokens(self) -> int:
        """What it holds when it is let in."""
        held: int = self.request.kv_tokens + self.made
        return held

    @property
    def new_tokens(self) -> int:
        """The part of it that has to be prefilled."""
        new: int = self.request.new_tokens if self.started_ns < 0 else self.kv_tokens
        return new


class _Server:
    """One replica's server."""

    def __init__(
        self, rt: Runtime, index: int, decode: DecodeLaw, prefill: PrefillLaw, slots: int, kv_tokens: int, *, grows: bool
    ) -> None:
        self.rt = rt
        self._index = index
        self._grows = grows
        self._kv_tokens = kv_tokens
        self._pushed_out = 0
        self._decode_law = decode
        self._prefill_law = prefill
        self._slots = slots
        self._kv_free = kv_tokens
        self._kv_used = 0
        self._waiting: list[tuple[int, int, int, _Entry]] = []  # by (arrival, episode)
        self._entries: dict[int, _Entry] = {}  # by ticket: waiting and running
        self._running: dict[int, _Entry] = {}  # by order of arrival
        self._ends: list[tuple[int, int]] = []  # (steps at which it ends, order of arrival)
        self._aborts: list[_Entry] = []
        self._arrivals = 0
        self._steps = 0
        self._began_ns = -1  # of the stretch of decode steps that is running, -1 for none
        self._planned = 0  # its steps
        self._busy = False  # a step is running
        self._paused = False
        self._bell: Event | None = None
        self._quiet: Event | None = None

    # ── for callers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def generate(self, work: Generate) -> Outcome:
        """Serve a request to its end."""
        rt, request = self.rt, work.payload
        self._arrivals += 1
        entry = _Entry(self, request, work.prompt_tokens + work.max_tokens, self._arrivals, rt.event())
        heappush(self._waiting, (rt.now(), work.entity, entry.order, entry))
        self._entries[request.ticket] = entry
        request.progress = entry.progress
        if self._fits(self._waiting[0][3]):
            self._ring()
        await entry.done.wait()
        return Outcome(status=entry.status, amount=entry.made, started_ns=entry.started_ns)

    async def control(self, work: Control) -> Outcome:
        """Obey an order."""
        if work.order == Order.ABORT:
            entry = self._entries.get(work.ticket)
            if entry is not None:
                await self._abort(entry)
        elif work.order == Order.PAUSE:
            self._paused = True
            if self._busy:
                self._ring()
                if self._quiet is None:
                    self._quiet = self.rt.event()
                await self._quiet.wait()
        else:
            self._paused = False
            self._ring()
        return _DONE

    async def _abort(self, entry: _Entry) -> None:
        if not self._busy or entry.order not in self._running:
            self._leave(entry, Status.CANCELLED)
            return
        if not entry.aborted:
            entry.aborted = True
            self._aborts.append(entry)
            self._ring()
        await entry.done.wait()

    def steps_now(self) -> int:
        """Decode steps since the start up to now, those of the running stretch included."""
        if self._began_ns < 0:
            return self._steps
        elapsed = self.rt.now() - self._began_ns
        first = self._first_end(elapsed)
        return self._steps + first - (self._stretch_ns(first) > elapsed)

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self) -> None:
        """Work for ever."""
        rt = self.rt
        while True:
            for entry in self._aborts:
                self._leave(entry, Status.CANCELLED)
            self._aborts.clear()
            self._busy = False
            if self._quiet is not None:
                self._quiet.set()
                self._quiet = None
            fresh = [] if self._paused else self._admit()
            if fresh:
                self._busy = True
                await rt.sleep(self._prefill_law.prefill_ns(sum([entry.new_tokens for entry in fresh])))
                self._start(fresh)
            elif self._running and not self._paused:
                self._busy = True
                await self._decode()
            else:
                self._bell = rt.event()
                await self._bell.wait()

    def _fits(self, entry: _Entry) -> bool:
        if self._paused or len(self._running) >= self._slots:
            return False
        if not self._grows:
            return entry.reserved <= self._kv_free
        if not self._running:
            return True
        room = self._kv_tokens - self._kv_used - len(self._running)
        return entry.kv_tokens + 1 <= room - int(self._kv_tokens * WATERMARK)

    def _admit(self) -> list[_Entry]:
        fresh: list[_Entry] = []
        while self._waiting:
            entry = self._waiting[0][3]
            if entry.done.is_set():  # aborted while it waited
                heappop(self._waiting)
                continue
            if not self._fits(entry):
                break
            heappop(self._waiting)
            self._kv_free -= entry.reserved
            self._kv_used += entry.kv_tokens
            self._running[entry.order] = entry
            fresh.append(entry)
        return fresh

    def _start(self, fresh: list[_Entry]) -> None:
        """Their prefill is computed: they make a token with each step from now on."""
        now = self.rt.now()
        for entry in fresh:
            request = entry.request
            entry.started_ns = now if entry.started_ns < 0 else entry.started_ns
            entry.decodes = True
            entry.entered = self._steps
            entry.end = self._steps + request.payload - request.tokens - entry.made
            heappush(self._ends, (entry.end, entry.order))
        self._finish()

    async def _decode(self) -> None:
        """Steps until the first request ends, or until the end of the step in which something else happens."""
        rt, running = self.rt, self._running
        if self._grows:
            self._push_out()
        while self._ended(self._ends[0]) is None:
            heappop(self._ends)
        planned = self._ends[0][0] - self._steps
        if self._grows:
            planned = min(planned, (self._kv_tokens - self._kv_used) // len(running))
        self._planned = planned
        self._began_ns = began = rt.now()
        whole_ns = self._stretch_ns(planned)
        self._bell = rt.event()
        with rt.move_on_after(whole_ns):
            await self._bell.wait()
        self._bell = None
        elapsed = rt.now() - began
        if elapsed < whole_ns:
            planned = self._first_end(elapsed)
            await rt.sleep(self._stretch_ns(planned) - elapsed)
        self._began_ns = -1
        self._steps += planned
        self._kv_used += planned * len(running)
        self._finish()

    def _ended(self, end: tuple[int, int]) -> _Entry | None:
        """Who ends there; None where it is gone, or was let in again since."""
        entry = self._running.get(end[1])
        return entry if entry is not None and entry.end == end[0] else None

    def _push_out(self) -> None:
        """Have the youngest go until the next step fits."""
        running = self._running
        while len(running) > 1 and self._kv_used + len(running) > self._kv_tokens:
            _, entry = running.popitem()
            entry.stops(self._steps)
            entry.end = -1
            self._kv_used -= entry.kv_tokens
            self._kv_free += entry.reserved
            self._pushed_out += 1
            heappush(self._waiting, (-self._pushed_out, entry.request.episode, entry.order, entry))
            self.rt.emit(EventKind.PREEMPT, entry.request.episode, self._index, entry.kv_tokens, len(running))

    def _stretch_ns(self, steps: int) -> int:
        return self._decode_law.chunk_ns(steps, len(self._running), self._kv_used) if steps else 0

    def _first_end(self, elapsed_ns: int) -> int:
        """The step of the running stretch, from 1, that is the first to end at `elapsed_ns` or later."""
        steps = self._decode_law.steps_within(elapsed_ns / NS_PER_S, len(self._running), self._kv_used)
        steps = min(max(steps, 1), self._planned)
        while steps > 1 and self._stretch_ns(steps - 1) >= elapsed_ns:
            steps -= 1
        while steps < self._planned and self._stretch_ns(steps) < elapsed_ns:
            steps += 1
        return steps

    def _finish(self) -> None:
        ends = self._ends
        while ends and ends[0][0] <= self._steps:
            entry = self._ended(heappop(ends))
            if entry is not None:
                self._leave(entry, Status.OK)

    def _leave(self, entry: _Entry, status: Status) -> None:
        """A request ends, wherever it is; one that has ended already does not end again."""
        if entry.done.is_set():
            return
        if self._running.pop(entry.order, None) is not None:
            entry.stops(self._steps)
            self._kv_free += entry.reserved
            self._kv_used -= entry.kv_tokens
        del self._entries[entry.request.ticket]
        entry.status = status
        entry.done.set()

    def _ring(self) -> None:
        """Something has changed that the loop may want to act on. It looks for itself whenever it does not wait."""
        if self._bell is not None:
            self._bell.set()
            self._bell = None


class SimulatedServers:
    """The servers of all replicas.

    Args:
        decode: seconds of decode steps.
        prefill: seconds of prefills.
        slots: requests that a server computes at once.
        kv_tokens: tokens of context that a server holds.
        replicas: servers.
        grows: whether requests are let in by what they hold, and pushed out when there is no room.

    """

    def __init__(
        self, decode: DecodeLaw, prefill: PrefillLaw, *, slots: int, kv_tokens: int, replicas: int, grows: bool = False
    ) -> None:
        self._decode = decode
        self._prefill = prefill
        self._slots = slots
        self._kv_tokens = kv_tokens
        self._grows = grows
        self._servers: list[_Server | None] = [None] * replicas

    async def generate(self, rt: Runtime, work: Generate, /) -> Outcome:
        """Perform a `Generate`."""
        return await self._server(rt, work.replica).generate(work)

    async def control(self, rt: Runtime, work: Control, /) -> Outcome:
        """Perform a `Control`."""
        return await self._server(rt, work.entity).control(work)

    def _server(self, rt: Runtime, replica: int) -> _Server:
        server = self._servers[replica]
        if server is None:
            server = self._servers[replica] = _Server(
                rt, replica, self._decode, self._prefill, self._slots, self._kv_tokens, grows=self._grows
            )
            rt.background(server.serve, name=f"server {replica}")
        return server
