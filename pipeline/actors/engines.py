"""All inference replicas behind one router, and what happens when one is lost and comes back.

A replica that is lost gives its requests back; the router sends them to others, which prefill them whole. While none is up they
wait here, in the order of (arrival, episode). One that comes back first takes the newest version that was handed over, and only
then is a route again; a sync that was ordered meanwhile goes on without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import LawError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from harness.core.runtime import Runtime
    from pipeline.actors.external import ExternalReplica
    from pipeline.actors.inference import Replica
    from pipeline.actors.requests import Request
    from pipeline.policies.routing import Router


async def _nothing_to_install(index: int) -> None:
    """Serve with what the replica holds."""


class Engines:
    """All replicas.

    Attributes:
        kv_tokens: tokens of context that the largest of them holds.
        up: whether each is up.
        on_lost: told the index of a replica that was lost.
        reinstall: brings the newest weights to a replica that is there again.

    """

    def __init__(
        self, rt: Runtime, replicas: Sequence[Replica | ExternalReplica], router: Router, loads: Sequence[int]
    ) -> None:
        self._rt = rt
        self._router = router
        self._loads = loads  # requests of each replica, waiting or running; the replicas keep it up to date
        self._none_up = False
        self._held: dict[Request, tuple[int, int]] = {}  # while no replica is up: since when, and the episode
        self.kv_tokens = max(replica.kv_tokens for replica in replicas)
        self.up = [True] * len(replicas)
        self.replicas = replicas
        self.on_lost: Callable[[int], object] = lambda index: None
        self.reinstall: Callable[[int], Awaitable[object]] = _nothing_to_install

    def submit(self, request: Request) -> None:
        """Send a request to the replica that the router names; `request.done` is set when its answer is in it."""
        if self._none_up:
            request.replica = -1
            self._held[request] = (self._rt.now(), request.episode)
            return
        replica = self._router.route(request.episode, self._loads, self.up)
        request.replica = replica
        self.replicas[replica].submit(request)

    async def withdraw(self, request: Request) -> None:
        """The caller is cancelled: return at the next chunk boundary, when what was generated is on the books."""
        if request.replica < 0:
            self._held.pop(request, None)
            return
        self.replicas[request.replica].withdraw(request)
        with self._rt.shield():
            await request.done.wait()

    def forget(self, episode: int) -> None:
        """An episode has ended."""
        self._router.forget(episode)

    def balance(self) -> None:
        """Book everything up to now."""
        for replica in self.replicas:
            replica.balance()

    # ── loss and return ─────────────────────────────────────────────────────────────────────────────────────────────────

    def lose(self, index: int) -> int:
        """A replica's chips are gone, now. Its requests go to others; returns how many.

        Its lane is `DOWN`, and the caller's until `recover`.

        Raises:
            LawError: it was lost before and has not come back.

        """
        if not self.up[index]:
            raise LawError(f"replica {index} was lost twice")
        self.up[index] = False
        self._none_up = not any(self.up)
        moved = self._loads[index]
        self.on_lost(index)
        self.replicas[index].lose(self.submit)
        return moved

    async def recover(self, index: int) -> None:
        """A replica's chips are there again: compile, install the newest weights, serve. Returns when it is a route.

        Cancelled, it leaves the replica down.

        Raises:
            LawError: it is up.

        """
        if self.up[index]:
            raise LawError(f"replica {index} comes back and was never lost")
        replica = self.replicas[index]
        await replica.made_ready()
        await replica.warm_up()
        await self.reinstall(index)  # last: from then on it takes part in the next sync
        replica.rejoin()
        self.up[index] = True
        if self._none_up:
            self._none_up = False
            held, self._held = self._held, {}
            for request in sorted(held, key=held.__getitem__):
                self.submit(request)
