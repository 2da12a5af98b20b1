"""Prefill and decode in modelled time.

A replica has one progress counter, in decode steps. A request that is prefilled at progress p and has n tokens to make ends at
p + n, so a chunk costs a look at the top of a heap and not a look at each slot. This breaks where slots advance at different
rates: speculative decoding, and prefill that is interleaved with decode. A chunk ends early only when nothing runs any more.
Its time is the step-time law's, in closed form over the growing context.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from harness.core.perform import Timed
from harness.core.units import NS_PER_S
from harness.core.work import Compile, Control, Decode, Generate, Outcome, Prefill, Work
from harness.costs.draws import Uniforms, duration_ns
from harness.costs.laws import sampler
from harness.costs.server import SimulatedServers

if TYPE_CHECKING:
    from harness.costs.step_time import DecodeLaw, PrefillLaw
    from harness.scenario.inference import CompileLaw, Inference

_DONE = Outcome()


class _ReplicaState:
    __slots__ = ("heap", "progress")

    def __init__(self) -> None:
        self.progress = 0
        self.heap: list[tuple[int, int]] = []  # (progress at which it ends, ticket)


class SimulatedInference:
    """Prefill and decode of all replicas."""

    def __init__(self, decode: DecodeLaw, prefill: PrefillLaw, replicas: int) -> None:
        self._decode = decode
        self._prefill = prefill
        self._quiet: dict[int, Outcome] = {}  # of chunks in which nobody ends, by their steps
        self._replicas = [_ReplicaState() for _ in range(replicas)]

    def prefill(self, work: Prefill) -> tuple[int, Outcome]:
        """Let requests in: their ends become known to the counter."""
        state = self._replicas[work.entity]
        for request in work.payload[0]:
            heappush(state.heap, (state.progress + request.payload - request.tokens, request.ticket))
        return self._prefill.prefill_ns(work.tokens), _DONE

    def decode(self, work: Decode) -> tuple[int, Outcome]:
        """Run a chunk; say who ended in it. Tickets that are no longer in the batch were aborted."""
        state = self._replicas[work.entity]
        heap, progress, batch = state.heap, state.progress, work.payload
        steps = work.steps
        completed = []
        while heap and heap[0][0] <= progress + steps:
            end, ticket = heappop(heap)
            if ticket in batch:
                completed.append((ticket, end - progress))
        if len(completed) == work.batch:
            steps = completed[-1][1]
        state.progress = progress + steps
        duration_ns = self._decode.chunk_ns(steps, work.batch, work.kv_tokens)
        if completed:
            return duration_ns, Outcome(completed=tuple(completed), amount=steps)
        outcome = self._quiet.get(steps)
        if outcome is None:
            outcome = self._quiet[steps] = Outcome(amount=steps)
        return duration_ns, outcome


class SimulatedCompiler:
    """Compilation on each replica.

    A bucket's time is keyed by (replica, bucket, how often before), so that no knob changes it for a replica that meets the
    same shapes.
    """

    def __init__(self, law: CompileLaw, seed: int) -> None:
        self._law = law
        self._bucket = sampler(law.bucket)
        self._uniforms = Uniforms(seed)
        self._times: dict[tuple[int, int], int] = {}

    def compile(self, work: Compile) -> tuple[int, Outcome]:
        """Bucket 0 is what is compiled before the first request."""
        key = (work.entity, work.bucket)
        before = self._times.get(key, 0)
        self._times[key] = before + 1
        if work.bucket == 0:
            whole_ns = round(self._law.start_s * NS_PER_S)
        else:
            whole_ns = duration_ns(self._bucket, float(self._uniforms.draw(1, "compile", *key, before)[0]))
        return round(whole_ns * (self._law.again_share if before else 1.0)), _DONE


def inference_performers(inference: Inference, seed: int) -> dict[type[Work], Any]:
    """The performers of what generates: the pipeline's own engine, or servers that schedule themselves."""
    compiling: dict[type[Work], Any] = {}
    if inference.compile is not None:
        compiling[Compile] = Timed(SimulatedCompiler(inference.compile, seed).compile)
    if inference.server is not None:
        servers = SimulatedServers(
            inference.decode,
            inference.prefill,
            slots=inference.server.slots,
            kv_tokens=inference.kv_capacity_tokens,
            replicas=inference.replicas,
            grows=inference.server.kv_policy == "grow",
        )
        return compiling | {Generate: servers.generate, Control: servers.control}
    engines = SimulatedInference(inference.decode, inference.prefill, inference.replicas)
    return compiling | {Prefill: Timed(engines.prefill), Decode: Timed(engines.decode)}
