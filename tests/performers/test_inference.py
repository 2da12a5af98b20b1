"""The inference performer under the real `Replica` actors: whatever comes, tokens are the request's own and add up."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.accounts import Accounts
from harness.core.errors import ActorError, LawError
from harness.core.work import Decode, Publish
from harness.engines import live
from pipeline.actors.engines import Engines
from pipeline.actors.inference import Replica
from pipeline.actors.requests import Request, Swap
from pipeline.actors.supervisor import supervise
from pipeline.data import Generation
from pipeline.numerics.dispatch import Decision, Dispatcher
from pipeline.numerics.engine import CompileCounter, InferenceEngine, programs
from pipeline.numerics.model import ModelConfig, abstract_parameters
from pipeline.numerics.weights import WeightStore
from pipeline.performers.inference import InferencePerformer
from pipeline.policies.kinds import RouterPolicy
from pipeline.policies.kv import KvRoom
from pipeline.policies.routing import Router
from pipeline.policies.sync import Quiesce

CONFIG = ModelConfig(vocab_size=30, hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8)
REPLICAS, SLOTS, CONTEXT, CHUNK, END = 2, 4, 64, 4, 1


def weights(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), abstract_parameters(CONFIG))


@dataclass
class Devices:
    """The device side of a process: engines and store on the dispatcher's thread."""

    dispatcher: Dispatcher
    engines: list[InferenceEngine]
    store: WeightStore

    def __post_init__(self):
        self.dispatcher.register("put", lambda version, seed: self.store.put(version, weights(seed)))

    def put(self, version, seed=0):
        self.dispatcher.run(Decision("put", {"version": version, "seed": seed}))

    def begin(self, seed=0):
        for engine in self.engines:
            engine.install(0, weights(seed))


@pytest.fixture(scope="module")
def devices():
    engines = [
        InferenceEngine(CONFIG, weights(0), slots=SLOTS, max_context_tokens=CONTEXT, chunk_steps=CHUNK, end_ids=(END,))
        for _ in range(REPLICAS)
    ]
    for engine in engines:
        engine.warm_up()
    store = WeightStore(REPLICAS)
    dispatcher = Dispatcher(programs(engines, store))
    dispatcher.start()
    yield Devices(dispatcher, engines, store)
    dispatcher.stop()


@dataclass
class Script:
    """Drives requests and swaps through the actors, one act after the other.

    Acts: ("submit", generation), ("withdraw", index of a submitted one), ("swap", quiesce), ("chunks", how many to let pass).
    """

    devices: Devices
    acts: list[tuple]
    seed_of_version: object = staticmethod(lambda version: 0)
    requests: list[Request] = field(default_factory=list)
    version: int = 0
    performer: InferencePerformer | None = None

    def play(self):
        self.devices.begin(self.seed_of_version(0))
        self.performer = InferencePerformer(
            self.devices.dispatcher, replicas=REPLICAS, slots=SLOTS, max_context_tokens=CONTEXT, seed=5, start_id=END
        )
        performers = {**self.performer.performers(), Decode: self._decode}
        live.run(self._main, performers=performers)
        return self

    async def _decode(self, rt, work):
        outcome = await self.performer.decode(rt, work)
        self._pass()
        return outcome

    def _pass(self):
        self._passed.set()
        self._passed = trio.Event()

    async def _main(self, rt):
        self._passed = trio.Event()
        self.accounts = Accounts()
        loads = [0] * REPLICAS
        common = {"loads": loads, "slots": SLOTS, "chunk_steps": CHUNK, "chips": 1}
        self.replicas = [
            Replica(rt, index, self.accounts, kv=KvRoom(SLOTS * CONTEXT, CHUNK), **common) for index in range(REPLICAS)
        ]
        self.router = Engines(rt, self.replicas, Router(RouterPolicy.LEAST_LOADED, REPLICAS), loads)
        async with rt.nursery() as nursery:
            for replica in self.replicas:
                nursery.start_soon(supervise, rt, f"replica/{replica.index}", replica.run)
            async with rt.nursery() as clients:
                for act, argument in self.acts:
                    await getattr(self, f"_{act}")(rt, clients, argument)
                for request in self.requests:
                    await request.done.wait()
            self.loads = list(loads)
            nursery.cancel_scope.cancel()

    async def _submit(self, rt, clients, generation):
        episode = len(self.requests)
        request = Request(episode, self.accounts.admit(episode), rt.lane(f"episode/{episode}", "rollout"))
        request.ask(0, len(generation.prompt), generation.max_tokens, generation, rt.event())
        self.requests.append(request)
        self.router.submit(request)

    async def _withdraw(self, rt, clients, index):
        async def leave(request):
            await self.router.withdraw(request)
            self._pass()  # perhaps nothing else runs

        if self.requests:
            clients.start_soon(leave, self.requests[index % len(self.requests)])

    async def _swap(self, rt, clients, quiesce):
        self.version += 1
        self.devices.put(self.version, self.seed_of_version(self.version))
        swaps = [Swap(rt, self.version, quiesce, 1, self.version) for _ in self.replicas]
        for replica, swap in zip(self.replicas, swaps, strict=True):
            replica.order(swap)
        for swap in swaps:
            await swap.quiesced.wait()
        for swap in swaps:
            swap.go.set()
        for swap in swaps:
            await swap.done.wait()

    async def _chunks(self, rt, clients, number):
        for _ in range(number):
            if any(not request.done.is_set() for request in self.requests):
                await self._passed.wait()


_prompt = st.lists(st.integers(2, 29), min_size=0, max_size=20)
_generation = st.builds(
    Generation,
    prompt=_prompt,
    max_tokens=st.integers(0, 30),
    key=st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 1 << 40]), st.integers(0, 3), st.integers(0, 2)),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
)
_act = st.one_of(
    st.tuples(st.just("submit"), _generation),
    st.tuples(st.just("withdraw"), st.integers(0, 30)),
    st.tuples(st.just("swap"), st.sampled_from([Quiesce.PAUSE, Quiesce.ABORT_REQUESTS, Quiesce.FINISH_REQUESTS])),
    st.tuples(st.just("chunks"), st.integers(1, 4)),
)


def fresh(generation):
    return Generation(list(generation.prompt), generation.max_tokens, generation.key, generation.temperature)


def check_books(script):
    assert script.loads == [0] * REPLICAS
    made = 0
    for request in script.requests:
        generation = request.payload
        assert request.done.is_set()
        assert request.tokens == request.account.tokens == len(generation.tokens)
        assert len(generation.tokens) == len(generation.log_probs) == len(generation.versions)
        assert generation.versions == sorted(generation.versions)
        assert END not in generation.tokens[:-1]
        assert len(generation.tokens) <= generation.max_tokens
        assert generation.finished is (generation.tokens[-1:] == [END])
        if not request.left:
            assert request.result is generation
            assert generation.finished or len(generation.tokens) == generation.max_tokens
        made += len(generation.tokens)
    assert made == script.accounts.made_tokens


@settings(max_examples=25)
@given(acts=st.lists(_act, min_size=4, max_size=25))
def test_whatever_happens_meanwhile_a_request_gets_its_own_tokens(devices, acts):
    """Every version has the same weights here, so a run without swaps and withdrawals must make the same tokens."""
    with CompileCounter() as compilations:
        script = Script(devices, acts).play()
        assert compilations.count == 0
    check_books(script)
    undisturbed = [("submit", fresh(generation)) for act, generation in acts if act == "submit"]
    for request, same in zip(script.requests, Script(devices, undisturbed).play().requests, strict=True):
        got, whole = request.payload.tokens, same.payload.tokens
        assert got == (whole[: len(got)] if request.left else whole)
    assert len(devices.store) == 0


@settings(max_examples=5)
@given(acts=st.lists(_act, min_size=4, max_size=15))
def test_no_slot_is_lost(devices, acts):
    wave = [("submit", Generation([3, 4, 5], 8, (index, 0, 0, 0))) for index in range(REPLICAS * SLOTS)]
    script = Script(devices, [*acts, ("chunks", 100), *wave]).play()
    check_books(script)


def test_versions_name_the_weights_that_sampled(devices):
    def of(quiesce):
        acts = [("submit", Generation([4 + index, 9], 24, (index, 0, 0, 0))) for index in range(6)]
        acts += [("chunks", 2), ("swap", quiesce), ("chunks", 2), ("swap", quiesce)]
        script = Script(devices, acts, seed_of_version=lambda version: version).play()
        check_books(script)
        return [set(request.payload.versions) for request in script.requests]

    assert all(len(versions) == 1 for versions in of(Quiesce.FINISH_REQUESTS))
    for quiesce in (Quiesce.PAUSE, Quiesce.ABORT_REQUESTS):
        assert any(len(versions) > 1 for versions in of(quiesce))


def test_a_request_that_does_not_fit_the_cache_is_refused_by_name(devices):
    with pytest.raises(ExceptionGroup) as caught:
        Script(devices, [("submit", Generation([5] * 60, 10, (0, 0, 0, 0)))]).play()
    (failure,) = caught.value.exceptions
    assert isinstance(failure, LawError)
    assert "70 tokens" in str(failure)
    assert "max_context_tokens" in str(failure)


def test_a_failure_of_the_device_ends_the_actor_with_its_message(devices):
    """The engine of replica 0 loses its cache, as after a device error in the middle of a donated step."""
    engine = devices.engines[0]
    whole = engine._cache
    engine._cache = type(whole)([layer + 0 for layer in whole.keys], [layer + 0 for layer in whole.values])
    for layer in engine._cache.keys:
        layer.delete()
    try:
        with pytest.raises(ExceptionGroup) as caught:
            Script(devices, [("submit", Generation([5, 6], 10, (0, 0, 0, 0)))] * 2).play()
    finally:
        engine._cache = whole
    (failure,) = caught.value.exceptions
    assert isinstance(failure, ActorError)
    assert "replica/0 failed" in str(failure)
    assert "deleted" in str(failure)


def test_swapping_in_a_version_that_is_not_there_is_said(devices):
    async def publish(rt):
        await rt.perform(Publish(9, 0, 1))

    performer = InferencePerformer(devices.dispatcher, replicas=1, slots=1, max_context_tokens=8, seed=0)
    with pytest.raises(LawError, match="no weights of version 9"):
        live.run(publish, performers=performer.performers())
