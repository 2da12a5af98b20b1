"""A replica on one stub server, by itself: what a program may ask of it, and what the server and the books then hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from openai_server import StubServer
from trio.testing import MockClock

from harness.core.accounts import Accounts
from harness.core.lanes import State, check_lanes
from harness.engines import live
from pipeline.actors.engines import Engines
from pipeline.actors.external import ExternalReplica
from pipeline.actors.requests import Request
from pipeline.data import Generation
from pipeline.live_config import ServerTable
from pipeline.performers.openai import external_performers
from pipeline.policies.kinds import RouterPolicy
from pipeline.policies.routing import Router

JUMP_AFTER_S = 0.02
"""Real seconds without anything to do after which the clock jumps: longer than the loopback interface takes."""

PROMPT = [5, 6, 7]
TABLE = {"max_retries": 3, "backoff_s": 0.5, "backoff_max_s": 4.0, "silence_timeout_s": 50.0, "control_timeout_s": 5.0}


@dataclass
class Asked:
    """A replica and its server, for a program under test."""

    rt: Any
    server: StubServer
    replica: ExternalReplica
    engines: Engines
    accounts: Accounts
    requests: list[Request] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    waited_ns: int = 0

    def request(self, max_tokens: int = 4, prompt: Any = None) -> Request:
        """A new episode's request."""
        number = len(self.requests)
        request = Request(number, self.accounts.admit(number), self.rt.lane(f"slot/{number}", "rollout"))
        asked = Generation(list(prompt or PROMPT), max_tokens, (number, 0, 0, 0))
        request.ask(0, len(asked.prompt), max_tokens, asked, self.rt.event())
        self.requests.append(request)
        return request

    async def generate(self, max_tokens: int = 4, prompt: Any = None) -> Request:
        """Ask and wait; a caller that is cancelled withdraws, as the rollout does."""
        request = self.request(max_tokens, prompt)
        self.engines.submit(request)
        try:
            await request.done.wait()
        except BaseException:
            await self.engines.withdraw(request)
            raise
        return request


def ask(
    program: Any,
    server: StubServer | None = None,
    *,
    clock: Any = None,
    real: bool = False,
    vocab_size: int | None = None,
    **table: Any,
) -> Asked:
    """Run `program(asked)` beside a replica on a stub server; afterwards every token must be on the books."""
    server = server or StubServer()
    kept: list[Asked] = []

    async def main(rt: Any) -> None:
        async with server.serve():
            heard: list[str] = []
            config = ServerTable.model_validate({**TABLE, "urls": [server.url], "dialect": server.dialect, **table})
            rt._performers = external_performers(config, seed=3, vocab_size=vocab_size, heard=heard.append)
            accounts, loads = Accounts(), [0]
            replica = ExternalReplica(rt, 0, accounts, loads=loads, kv_tokens=10_000, chips=1)
            engines = Engines(rt, [replica], Router(RouterPolicy.ROUND_ROBIN, 1), loads)
            asked = Asked(rt, server, replica, engines, accounts, heard=heard)
            kept.append(asked)
            async with rt.nursery() as nursery:
                nursery.start_soon(replica.run)
                await program(asked)
                asked.waited_ns = replica.lane.spent_ns(rt.now())[State.WAIT_TASK]
                nursery.cancel_scope.cancel()
            check(asked, loads)

    live.run(main, clock=None if real else clock or MockClock(autojump_threshold=JUMP_AFTER_S))
    return kept[0]


def check(asked: Asked, loads: list[int]) -> None:
    now, lane = asked.rt.now(), asked.replica.lane
    asked.replica.balance()
    check_lanes(asked.rt.lanes, 0, now)
    spent = lane.spent_ns(now)
    assert sum(request.account.work_ns for request in asked.requests) == pytest.approx(spent[State.GENERATE], rel=1e-9)
    assert sum(asked.replica.meter.totals(now).values()) == asked.waited_ns
    made = sum(len(request.payload.tokens) for request in asked.requests)
    assert asked.accounts.made_tokens == asked.accounts.in_flight_tokens == made
    assert loads == [0]
    for request in asked.requests:
        kept = request.payload
        assert len(kept.tokens) == len(kept.log_probs) == len(kept.versions) == request.tokens
        assert request.kv_tokens == len(kept.prompt) + len(kept.tokens)
