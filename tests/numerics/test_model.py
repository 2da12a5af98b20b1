"""The policy network against `transformers`, on tiny Qwen3 checkpoints with expected logits (`tests/fixtures`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.numerics.checkpoints import load_checkpoint
from pipeline.numerics.engine import InferenceEngine
from pipeline.numerics.model import ModelConfig, Parameters, abstract_parameters, new_model, parameters, with_parameters

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Reference:
    """A checkpoint, and what `transformers` computes with it."""

    folder: Path
    config: ModelConfig
    params: Parameters
    tokens: np.ndarray
    lengths: np.ndarray
    logits: np.ndarray
    prompts: np.ndarray
    continued: np.ndarray

    def sequence(self, row: int) -> np.ndarray:
        return self.tokens[row, : self.lengths[row]]


@pytest.fixture(scope="module", params=["tied", "untied"])
def reference(request):
    folder = FIXTURES / f"qwen3_tiny_{request.param}"
    config, params = load_checkpoint(folder)
    with np.load(folder / "expected.npz") as expected:
        return Reference(folder, config, params, **expected)


@nnx.jit
def run(model, tokens, positions, segments):
    return model(tokens, positions, segments)


def logits_of(config, params, tokens, positions, segments):
    arrays = (jnp.asarray(array, jnp.int32) for array in (tokens, positions, segments))
    return np.asarray(run(with_parameters(config, params), *arrays))


def whole(reference, config=None, params=None):
    """Each sequence in a row of its own, padded at the end: logits, and which of them count."""
    order = np.broadcast_to(np.arange(reference.tokens.shape[1]), reference.tokens.shape)
    real = order < reference.lengths[:, None]
    given = (config or reference.config, reference.params if params is None else params)
    return logits_of(*given, reference.tokens, order, real), real


def test_the_fixtures_differ_where_a_mistake_would_hide(reference):
    config = reference.config
    assert config.heads * config.head_dim != config.hidden_size
    assert config.kv_heads < config.heads
    assert len(set(reference.lengths)) == len(reference.lengths)
    assert np.std(reference.logits[0, : reference.lengths[0]]) > 0.5, "logits close to zero would all be within the tolerance"


def test_whole_sequences_give_the_logits_of_transformers(reference):
    logits, real = whole(reference)
    assert np.abs(logits - reference.logits)[real].max() < TOLERANCE


def test_packed_sequences_give_the_same_logits(reference):
    rows = [[2, 0, 3], [1]]
    width = max(sum(reference.lengths[i] for i in row) for row in rows) + 2
    tokens, positions, segments = (np.zeros((len(rows), width), np.int32) for _ in range(3))
    expected, where = [], []
    for index, row in enumerate(rows):
        start = 0
        for number, i in enumerate(row, start=1):
            end = start + reference.lengths[i]
            tokens[index, start:end] = reference.sequence(i)
            positions[index, start:end] = np.arange(reference.lengths[i])
            segments[index, start:end] = number
            expected.append(reference.logits[i, : reference.lengths[i]])
            where.append((index, slice(start, end)))
            start = end
    logits = logits_of(reference.config, reference.params, tokens, positions, segments)
    for each, place in zip(expected, where, strict=True):
        assert np.abs(logits[place] - each).max() < TOLERANCE
    assert np.isfinite(logits).all(), "padding attends to nothing and must still not become NaN"


def test_greedy_answers_with_a_cache_are_those_of_generate(reference):
    """Ragged prompts side by side through prefill and chunks of decode steps, the last of them cut short."""
    chunk = 3
    count, wanted = reference.continued.shape
    engine = InferenceEngine(
        reference.config, reference.params, slots=count, max_context_tokens=32, chunk_steps=chunk, end_ids=()
    )
    prompts = [reference.sequence(row)[: reference.prompts[row]].tolist() for row in range(count)]
    answers = [[] for _ in prompts]
    engine.prefill(range(count), [prompt[:-1] for prompt in prompts])
    while (made := len(answers[0])) < wanted:
        table = []
        for slot, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            table.append([slot, len(prompt) + made - 1, (prompt + answer)[-1], made, wanted - made, 0, 0, 0])
        result = engine.decode(np.array(table, np.int32).T, chunk).result()
        for row, answer in enumerate(answers):
            answer.extend(result.tokens[: result.made[row], row].tolist())
    assert answers == reference.continued.tolist()


def test_bfloat16_loads_and_stays_near(reference):
    config, params = load_checkpoint(reference.folder, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    logits, real = whole(reference, config, params)
    assert np.isfinite(logits).all()
    assert logits.dtype == np.float32
    spread = np.std(reference.logits[real])
    assert np.abs(logits - reference.logits)[real].mean() < 0.1 * spread


def test_what_comes_later_changes_nothing_before(reference):
    """Causal: another last token leaves all logits before it to the bit."""
    longest = int(np.argmax(reference.lengths))
    tokens = reference.tokens.copy()
    tokens[longest, -1] += 1
    before, _ = whole(reference)
    after, _ = whole(replace(reference, tokens=tokens))
    assert (before[longest, :-1] == after[longest, :-1]).all()
    assert (before[longest, -1] != after[longest, -1]).any()


SMALL = ModelConfig(vocab_size=11, hidden_size=8, intermediate_size=12, layers=1, heads=2, kv_heads=1, head_dim=4)


def test_a_new_model_is_its_seed():
    one, same, other = (parameters(new_model(SMALL, seed)) for seed in (3, 3, 4))
    assert all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True))
    assert (one["embedding"][...] != other["embedding"][...]).any()


@pytest.mark.parametrize("tied", [True, False])
def test_only_an_untied_model_has_an_output_projection(tied):
    assert ("head" in abstract_parameters(replace(SMALL, tied=tied))) is not tied
