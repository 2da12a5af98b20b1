"""The engine against the network itself, and its promises: keyed tokens, no compilation after warm-up, cheap swaps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.numerics.engine import CompileCounter, InferenceEngine, buckets
from pipeline.numerics.model import ModelConfig, new_model, parameters
from pipeline.numerics.sampling import request_key

CONFIG = ModelConfig(vocab_size=50, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=8)
SLOTS, CONTEXT, CHUNK, END = 6, 96, 8, 1


def network(seed):
    """Weights far enough from zero that distributions differ from position to position."""
    model = new_model(CONFIG, seed)
    model.embedding[...] = model.embedding[...] * 20
    return model


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
    params = parameters(network(0))
    engine = InferenceEngine(CONFIG, params, slots=SLOTS, max_context_tokens=CONTEXT, chunk_steps=CHUNK, end_ids=(END,))
    engine.warm_up()
    return engine


@pytest.fixture(scope="module")
def score():
    """Log-probabilities of an answer by the network's own pass over the whole sequence."""

    @nnx.jit
    def logits(model, tokens):
        length = tokens.shape[1]
        return model(tokens, jnp.arange(length)[None], (jnp.arange(length) < CONTEXT).astype(jnp.int32)[None])

    def of(model, prompt, answer, temperature=1.0):
        padded = np.zeros((1, CONTEXT), np.int32)
        padded[0, : len(prompt) + len(answer)] = prompt + answer
        scores = jax.nn.log_softmax(logits(model, padded)[0] / temperature)
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
    model = network(0)
    for (prompt, *_), (tokens, log_probs) in zip(requests, answers, strict=True):
        expected = score(model, prompt, tokens, temperature or 1.0)
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
