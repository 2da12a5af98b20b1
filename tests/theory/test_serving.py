"""A published closed loop, through our own inference actor: vLLM, Llama 3.3 70B on one v6e-8.

64 requests of 1,000 tokens in and 1,000 out are always in flight, 3,000 in all; 1,202.5 s were measured. The step-time law of
`scenarios/coding_agent.toml` was fitted to the 25.35 ms per output token of this row, so the total says whether the actor
spends the law's time as a real engine does: prefills that stall decodes, slots that are refilled.

Source: AI-Hypercomputer/tpu-recipes, August 2026.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.accounts import Accounts
from harness.core.perform import Timed
from harness.core.work import Decode, Prefill
from harness.costs.inference import SimulatedInference
from harness.engines import sim
from harness.run import load
from pipeline.actors.engines import Engines
from pipeline.actors.inference import Replica
from pipeline.actors.requests import Request
from pipeline.policies.kinds import RouterPolicy
from pipeline.policies.kv import KvRoom
from pipeline.policies.routing import Router

REQUESTS, IN_FLIGHT, TOKENS = 3_000, 64, 1_000
MEASURED_S = 1202.5
CHUNK_STEPS = 8  # 1,000 is a multiple of it: no request waits for the end of its last chunk

SCENARIO = Path(__file__).parents[2] / "scenarios" / "coding_agent.toml"


def test_the_published_closed_loop_takes_its_time() -> None:
    inference = load(SCENARIO).world.inference
    model = SimulatedInference(inference.decode, inference.prefill, 1)

    async def main(rt: Any) -> float:
        accounts, loads, left = Accounts(), [0], [REQUESTS]
        replica = Replica(
            rt,
            0,
            accounts,
            loads=loads,
            slots=IN_FLIGHT,
            kv=KvRoom(inference.kv_capacity_tokens, CHUNK_STEPS),
            chunk_steps=CHUNK_STEPS,
            chips=8,
        )
        engines = Engines(rt, [replica], Router(RouterPolicy.ROUND_ROBIN, 1), loads)

        async def client(number: int) -> None:
            request = Request(number, accounts.admit(number), rt.lane(f"slot/{number}", "rollout"))
            while left[0]:
                left[0] -= 1
                request.ask(0, TOKENS, TOKENS, TOKENS, rt.event())
                engines.submit(request)
                await request.done.wait()

        async with rt.nursery() as nursery:
            nursery.start_soon(replica.run)
            async with rt.nursery() as clients:
                for number in range(IN_FLIGHT):
                    clients.start_soon(client, number)
            ended_s: float = rt.now() / 1e9
            nursery.cancel_scope.cancel()
        replica.balance()
        assert accounts.made_tokens == accounts.in_flight_tokens == REQUESTS * TOKENS
        return ended_s

    total_s = sim.run(main, performers={Prefill: Timed(model.prefill), Decode: Timed(model.decode)})
    assert abs(total_s / MEASURED_S - 1) < 0.02, f"{total_s:.1f} s against {MEASURED_S} s"
