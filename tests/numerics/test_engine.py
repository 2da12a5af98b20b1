"""The engine against the network itself, and its promises: keyed tokens, no compilation after warm-up, cheap swaps."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness.core.errors import ConfigError
from pipeline.numerics.engine import CompileCounter, InferenceEngine, buckets
from pipeline.numerics.model import ModelConfig, abstract_parameters, attend, with_parameters
from pipeline.numerics.sampling import request_key

CONFIG = ModelConfig(vocab_size=50, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=8)
SLOTS, CONTEXT, CHUNK, END = 6, 96, 8, 1


def weights(seed):
    """Far enough from zero that distributions differ from position to position."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.5, leaf.dtype), abstract_parameters(CONFIG))


class Serving:
    """The engine with the books that its performer keeps."""

    def __init__(self, engine):
        self.engine = engine

    def generate(self, requests, *, chunk=CHUNK, slots=None, temperature=1.0, between=None):
        """Serve (prompt, max_tokens, key) requests together to their end: (tokens, log-probs) of each."""
        slots = list(range(len(requests))) if slots is None else slots
        answers = [([], []) for _ in requests]
        self.engine.prefill(slots, [prompt[:-1] for prompt, *_ in requests])
        running = list(range(len(requests)))
        while running:
            rows = np.array([self._row(requests[i], answers[i], slots[i], temperature) for i in running], np.int32).T
            made = self.engine.decode(rows, chunk).result()
            for column, i in enumerate(running):
                own = made.made[column]
                answers[i][0].extend(made.tokens[:own, column].tolist())
                answers[i][1].extend(made.log_probs[:own, column].tolist())
            ended = {i for column, i in enumerate(running) if made.ended[column]}
            running = [i for i in running if i not in ended and len(answers[i][0]) < requests[i][1]]
            if between is not None:
                between(running, answers)
        return answers

    def _row(self, request, answer, slot, temperature):
        prompt, max_tokens, key = request
        tokens = prompt + answer[0]
        words = request_key(7, key).view(np.int32).tolist()
        bits = int(np.float32(temperature).view(np.int32))
        return [slot, len(tokens) - 1, tokens[-1], len(answer[0]), max_tokens - len(answer[0]), *words, bits]


@pytest.fixture(scope="module")
def engine():
    engine = InferenceEngine(CONFIG, weights(0), slots=SLOTS, max_context_tokens=CONTEXT, chunk_steps=CHUNK, end_ids=(END,))
    engine.warm_up()
    return engine


@pytest.fixture(scope="module")
def score():
    """Log-probabilities of an answer by the network's own pass over the whole sequence."""

    @jax.jit
    def logits(params, tokens):
        length = tokens.shape[1]
        return with_parameters(CONFIG, params)(tokens, jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))

    def of(params, prompt, answer, temperature=1.0):
        padded = np.zeros((1, CONTEXT), np.int32)
        padded[0, : len(prompt) + len(answer)] = prompt + answer
        scores = jax.nn.log_softmax(logits(params, padded)[0] / temperature)
        return [float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(answer)]

    return of


def some_requests(seed, number, longest=40):
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(2, 50, size=rng.integers(1, longest)).tolist(), int(rng.integers(1, 40)), (i, 0, i % 3, 0))
        for i in range(number)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_log_probs_are_those_of_the_whole_sequence(engine, score, temperature):
    requests = some_requests(1, SLOTS)
    answers = Serving(engine).generate(requests, temperature=temperature)
    for (prompt, *_), (tokens, log_probs) in zip(requests, answers, strict=True):
        expected = score(weights(0), prompt, tokens, temperature or 1.0)
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)


def test_a_token_depends_on_its_own_key_and_context_alone(engine):
    requests = some_requests(2, SLOTS)
    serving = Serving(engine)
    together = serving.generate(requests)
    order = [3, 0, 5, 1, 4, 2]
    reordered = serving.generate([requests[i] for i in order], slots=[5, 4, 3, 2, 1, 0])
    alone = [serving.generate([request], slots=[i % SLOTS])[0] for i, request in enumerate(requests)]
    short = serving.generate(requests, chunk=3)
    for other in ([reordered[order.index(i)] for i in range(SLOTS)], alone, short):
        for (tokens, log_probs), (other_tokens, other_log_probs) in zip(together, other, strict=True):
            assert tokens == other_tokens
            np.testing.assert_allclose(log_probs, other_log_probs, atol=1e-4)
    assert len({tuple(tokens) for tokens, _ in together}) == SLOTS


def test_a_swap_between_chunks_keeps_the_cache(engine):
    """Weights change in the middle of answers: the past stays as the old weights left it, token by token."""
    requests = some_requests(4, 2, longest=10)
    swap = {"after": 2 * CHUNK, "done": False}

    def between(running, answers):
        if not swap["done"] and max(len(tokens) for tokens, _ in answers) >= swap["after"]:
            swap["done"] = True
            engine.install(1, weights(1))

    requests = [(prompt, 30, key) for prompt, _, key in requests]
    try:
        answers = Serving(engine).generate(requests, between=between)
    finally:
        engine.install(0, weights(0))
    assert swap["done"]
    for (prompt, *_), (tokens, log_probs) in zip(requests, answers, strict=True):
        swapped_at = len(prompt) - 1 + swap["after"]
        by_hand = one_by_one(prompt + tokens, [weights(0)] * swapped_at + [weights(1)] * len(tokens))
        expected = [by_hand[len(prompt) - 1 + i][token] for i, token in enumerate(tokens)]
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)
    assert max(len(tokens) for tokens, _ in answers) > swap["after"] + 4


def one_by_one(tokens, params):
    """Log-probabilities after each token; every position keeps the keys and values of the weights it went through."""

    @jax.jit
    def advance(params, past, token, position):
        model, past = with_parameters(CONFIG, params), list(past)

        def attention(layer, queries, keys, values):
            past[layer] = tuple(
                old.at[:, position].set(new[:, 0]) for old, new in zip(past[layer], (keys, values), strict=True)
            )
            return attend(queries, *past[layer], (jnp.arange(CONTEXT) <= position)[None, None])

        x = model.hidden(token[None, None], position[None, None], attention)
        return past, jax.nn.log_softmax(model.logits(x)[0, 0])

    empty = jnp.zeros((1, CONTEXT, CONFIG.kv_heads, CONFIG.head_dim))
    past = [(empty, empty)] * CONFIG.layers
    rows = []
    for position, token in enumerate(tokens):
        past, row = advance(params[position], past, jnp.int32(token), jnp.int32(position))
        rows.append(np.asarray(row))
    return rows


def test_a_context_longer_than_a_piece_goes_in_piece_by_piece(engine, score, monkeypatch):
    monkeypatch.setattr("pipeline.numerics.engine._LARGEST_PIECE", 32)
    pieces = InferenceEngine(CONFIG, weights(0), slots=2, max_context_tokens=64, chunk_steps=CHUNK, end_ids=(END,))
    pieces.warm_up()
    rng = np.random.default_rng(5)
    requests = [(rng.integers(2, 50, size=size).tolist(), 10, (size, 0, 0, 0)) for size in (50, 3)]
    with CompileCounter() as compilations:
        answers = Serving(pieces).generate(requests)
    assert compilations.count == 0
    whole = Serving(engine).generate(requests)
    for (prompt, *_), (tokens, log_probs), (same, _) in zip(requests, answers, whole, strict=True):
        assert tokens == same
        np.testing.assert_allclose(log_probs, score(weights(0), prompt, tokens), atol=1e-4)


def test_the_cache_is_updated_in_place(engine):
    """Donated: no second cache is ever made, and the old handle is dead."""
    before = engine._cache.keys[0]
    address = before.unsafe_buffer_pointer()
    Serving(engine).generate(some_requests(6, 2))
    assert before.is_deleted()
    assert engine._cache.keys[0].unsafe_buffer_pointer() == address


def test_a_cache_that_cannot_be_is_refused_with_the_knobs():
    with pytest.raises(ConfigError) as caught:
        InferenceEngine(CONFIG, weights(0), slots=10**6, max_context_tokens=10**7, chunk_steps=8, end_ids=(END,))
    message = str(caught.value)
    for part in ("1000000 slots", "bytes", "pipeline.slots_per_replica", "live.sampling.max_context_tokens"):
        assert part in message


def test_weights_of_another_network_are_refused(engine):
    other = abstract_parameters(dataclasses.replace(CONFIG, layers=1))
    with pytest.raises(ValueError, match="version 3"):
        engine.install(3, other)
    assert engine.version == 0


def test_an_answer_ends_at_its_end_token_or_at_its_cap(engine):
    requests = [([5, 6, 7], 30, (i, 0, 0, 0)) for i in range(SLOTS)]
    ends = 0
    for start in range(0, 30, SLOTS):
        batch = [(prompt, cap, (start + i, 0, 0, 0)) for i, (prompt, cap, _) in enumerate(requests)]
        for tokens, _ in Serving(engine).generate(batch):
            assert END not in tokens[:-1]
            assert tokens[-1] == END or len(tokens) == 30
            ends += tokens[-1] == END
    assert ends > 3


def test_nothing_compiles_after_the_warm_up(engine):
    serving = Serving(engine)
    requests = some_requests(3, 40, longest=CONTEXT - 40)
    with CompileCounter() as compilations:
        for number in (1, 2, 3, 4, 5, 6):
            serving.generate(requests[number : 2 * number], chunk=number + 1)
    assert compilations.count == 0


def test_the_counter_sees_a_compilation():
    with CompileCounter() as compilations:
        jax.jit(lambda x: x * 3 + 1)(jnp.arange(7))
    first = compilations.count
    assert first >= 1
    jax.jit(lambda x: x * 5 + 1)(jnp.arange(7))
    assert compilations.count == first, "it stops counting when it is left"


def test_buckets_end_with_the_largest():
    assert buckets(8, 64, 4) == (8, 32, 64)
    assert buckets(8, 8, 4) == (8,)
