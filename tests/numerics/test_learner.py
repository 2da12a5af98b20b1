"""Learner: what a step does must not depend on how it was cut, packed, published, saved or interrupted."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trio

from harness.core.errors import ConfigError, DataError, LawError
from harness.core.work import LogProbs, TrainStep
from pipeline.data import Ended, EpisodeResult, Group, Sample, Task, episode_id
from pipeline.live_config import LearnerTable
from pipeline.numerics.dispatch import Dispatcher
from pipeline.numerics.engine import CompileCounter
from pipeline.numerics.learner import Learner, needs_log_probs
from pipeline.numerics.model import ModelConfig, new_model, parameters, with_parameters
from pipeline.numerics.train_step import make_schedule
from pipeline.numerics.weights import WeightStore
from pipeline.performers.learner import LearnerPerformer

VOCAB, MAX = 12, 16
CONFIG = ModelConfig(VOCAB, 16, 32, 1, 2, 1, 8)
MODEL = new_model(CONFIG, 0)


def make(store=None, **settings):
    settings = {"learning_rate": 1e-2, "micro_batch_tokens": MAX} | settings
    return Learner(CONFIG, parameters(MODEL), LearnerTable(**settings), max_tokens=MAX, store=store)


def sequence(number, rng, *, tokens=None, length=None, log_prob=None):
    n = len(tokens) if tokens else length or int(rng.integers(10, MAX + 1))
    trained = rng.random(n) < 0.7
    trained[-1] = True
    return {
        "id": number,
        "tokens": tokens or rng.integers(0, VOCAB, n).tolist(),
        "trained": trained.tolist(),
        "log_probs": [log_prob] * n if log_prob is not None else rng.normal(-2.5, 0.3, n).tolist(),
        "advantage": float(rng.standard_normal()),
    }


def batch(seed, count=9, **options):
    rng = np.random.default_rng(seed)
    return [sequence(number, rng, **options) for number in range(count)]


@jax.jit
def every_log_prob(weights, ids):
    """Log-probabilities (MAX, VOCAB) of what follows each token of one sequence, alone in its row: ids (1, MAX)."""
    logits = with_parameters(CONFIG, weights)(ids, jnp.arange(MAX)[None], jnp.ones_like(ids))
    return jax.nn.log_softmax(logits[0])


def padded(tokens):
    return np.array([tokens + [0] * (MAX - len(tokens))])


def plain_log_probs(weights, tokens):
    """Log-probabilities (n - 1,) of a sequence's tokens but the first."""
    return np.asarray(every_log_prob(weights, padded(tokens)))[np.arange(len(tokens) - 1), tokens[1:]]


def on_policy(learner, sequences):
    """The same sequences as if the learner's weights had sampled them."""
    weights = learner.weights()
    return [s | {"log_probs": [0.0, *plain_log_probs(weights, s["tokens"]).tolist()]} for s in sequences]


def arrays(state):
    return {f"{part}/{path}": np.asarray(leaf) for part, tree in state.items() for path, leaf in tree.items()}


def same(left, right):
    left, right = arrays(left), arrays(right)
    assert left.keys() == right.keys()
    return all(np.array_equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def shared():
    """A learner and the state that it began with: each test starts from there."""
    learner = make(WeightStore(1), warm_start_learning_rate=1e-2, warm_start_steps=60)
    learner.warm_up()
    return learner, learner.state()


@pytest.fixture
def learner(shared):
    learner, start = shared
    learner.restore(start)
    return learner


# ── one step, however it is cut ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(8))
def test_any_split_into_chunks_gives_the_gradient_of_the_whole_batch(learner, shared, seed):
    sequences = batch(seed)
    learner.train(step=1, sequences=sequences, last=False)
    whole = {path: np.asarray(g) for path, g in learner.mean_gradients().items()}
    learner.restore(shared[1])
    rng = np.random.default_rng(seed + 100)
    cuts = sorted(rng.choice(np.arange(1, len(sequences)), int(rng.integers(1, 6)), replace=False).tolist())
    order = rng.permutation(len(sequences)).tolist()
    for start, end in zip([0, *cuts], [*cuts, len(sequences)], strict=True):
        learner.train(step=1, sequences=[sequences[i] for i in order[start:end]], last=False)
    scale = max(np.abs(g).max() for g in whole.values())
    for path, gradient in learner.mean_gradients().items():
        np.testing.assert_allclose(gradient, whole[path], rtol=1e-5, atol=1e-5 * scale)


def test_the_gradient_is_that_of_the_mean_over_trained_tokens_written_out(learner):
    """Policy gradient on sequences one by one, unpacked, against the packed and accumulated one."""
    sequences = on_policy(learner, batch(3, count=4))

    ids = np.concatenate([padded(s["tokens"]) for s in sequences])
    factors = np.zeros((*ids.shape, VOCAB), np.float32)  # of the log-probability of each token behind each position
    for row, s in enumerate(sequences):
        for i in range(1, len(s["tokens"])):
            factors[row, i - 1, s["tokens"][i]] = -s["advantage"] * s["trained"][i]
    count = sum(sum(s["trained"][1:]) for s in sequences)

    def loss(weights):
        logits = with_parameters(CONFIG, weights)(ids, np.arange(MAX)[None].repeat(len(ids), 0), np.ones_like(ids))
        return jnp.sum(factors * jax.nn.log_softmax(logits)) / count

    wanted = jax.tree.leaves(jax.jit(jax.grad(loss))(learner.weights()))
    learner.train(step=1, sequences=sequences, last=False)
    for gradient, want in zip(learner.mean_gradients().values(), wanted, strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-3, atol=1e-5)


def test_metrics_of_a_step_on_its_own_policys_samples(learner):
    metrics = learner.train(step=1, sequences=on_policy(learner, batch(4)), last=True).result()
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["clip_fraction"] == 0.0
    assert 0.0 < metrics["entropy"] <= np.log(VOCAB)
    assert metrics["grad_norm"] > 0.0
    assert (metrics["updates"], metrics["skipped"]) == (1.0, 0.0)


def test_a_chunk_of_another_step_before_the_last_is_refused(learner):
    learner.train(step=1, sequences=batch(0, count=1), last=False)
    with pytest.raises(LawError, match="step 2 came while step 1"):
        learner.train(step=2, sequences=batch(0, count=1), last=False)


def test_a_step_with_nothing_to_train_on_changes_nothing(learner, shared):
    silent = [s | {"trained": [False] * len(s["tokens"])} for s in batch(0)]
    metrics = learner.train(step=1, sequences=silent, last=True).result()
    assert same(learner.state(), shared[1])
    assert metrics["updates"] == metrics["skipped"] == 0.0


def test_nothing_compiles_after_the_warm_up(learner):
    with CompileCounter() as compilations:
        for step, (count, length) in enumerate([(1, 3), (2, 8), (7, None), (30, 5), (1, 16), (50, None)], 1):
            learner.train(step=step, sequences=batch(step, count=count, length=length), last=False).result()
            learner.train(step=step, sequences=batch(step + 50, count=3), last=True).result()
            learner.weights()
            learner.restore(learner.state())
    assert compilations.count == 0


# ── what is not finite ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_that_is_not_finite_is_skipped_and_counted_and_the_next_one_is_made(learner, shared):
    broken = batch(0, log_prob=float("nan"))
    metrics = learner.train(step=1, sequences=broken, last=True).result()
    assert (metrics["skipped"], metrics["skipped_in_a_row"], metrics["updates"]) == (1.0, 1.0, 0.0)
    for part in ("params", "optimizer"):
        assert same({part: learner.state()[part]}, {part: shared[1][part]})
    metrics = learner.train(step=2, sequences=batch(1), last=True).result()
    assert (metrics["skipped"], metrics["skipped_in_a_row"], metrics["updates"]) == (1.0, 0.0, 1.0)
    assert np.isfinite(metrics["loss"])


def test_too_many_such_steps_in_a_row_end_the_run_with_the_step_named(learner):
    broken = batch(0, log_prob=float("nan"))
    for step in range(1, 5):
        learner.train(step=step, sequences=broken, last=True).result()
    with pytest.raises(ConfigError, match="5 steps in a row, up to step 5"):
        learner.train(step=5, sequences=broken, last=True).result()


# ── snapshots and saves ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_stays_what_it_was_while_training_goes_on(learner):
    store = learner.store
    learner.snapshot(version=0)
    learner.train(step=1, sequences=batch(0), last=True).result()
    learner.snapshot(version=1)
    old, new = store.get(0), store.get(1)
    start = jax.tree.leaves(parameters(MODEL))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(old), start, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(new), start, strict=True))
    assert jax.tree.structure(new) == jax.tree.structure(parameters(MODEL))


def test_a_learner_that_was_saved_and_restored_goes_on_bit_by_bit(learner, shared):
    learner.train(step=1, sequences=batch(0), last=True)
    saved = {part: {path: np.array(leaf) for path, leaf in tree.items()} for part, tree in learner.state().items()}
    learner.train(step=2, sequences=batch(1), last=True)
    straight = learner.state()
    learner.restore(shared[1])
    learner.restore(saved)
    learner.train(step=2, sequences=batch(1), last=True)
    assert same(learner.state(), straight)


def test_a_state_in_the_middle_of_a_step_is_that_before_it_and_the_step_can_be_made_again(learner):
    before = learner.state()
    learner.train(step=1, sequences=batch(0), last=False)
    middle = learner.state()
    assert same(middle, before)
    learner.train(step=1, sequences=batch(1), last=True)
    straight = learner.state()
    learner.restore(middle)
    learner.train(step=1, sequences=batch(0), last=False)
    learner.train(step=1, sequences=batch(1), last=True)
    assert same(learner.state(), straight)


def test_a_state_of_another_learner_is_refused_with_what_differs(learner, shared):
    path = next(iter(shared[1]["params"]))
    with pytest.raises(DataError, match="lacks params/"):
        learner.restore(shared[1] | {"params": {}})
    with pytest.raises(DataError, match=f"params/{path} has another shape"):
        learner.restore(shared[1] | {"params": dict(shared[1]["params"]) | {path: np.zeros(3)}})
    assert same(learner.state(), shared[1])


# ── passes before the step ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def decoupled():
    return make(WeightStore(1), loss="decoupled_ppo", kl_coefficient=0.1, importance_cap=1.5)


def test_only_some_settings_need_a_pass_for_log_probabilities():
    assert [needs_log_probs(LearnerTable(loss=loss)) for loss in ("grpo", "decoupled_ppo", "tis_token", "tis_sequence")] == [
        False, True, False, False,
    ]  # fmt: skip
    assert needs_log_probs(LearnerTable(kl_coefficient=0.1))


def test_proximal_and_reference_are_scored_apart_and_used(decoupled):
    """Chunk by chunk, with and without a pass of its own, the step is the same; the KL grows from nought."""
    start = decoupled.state()
    sequences = batch(5)
    kl = []
    for step in (1, 2, 3):
        for chunk in (sequences[:4], sequences[4:]):
            decoupled.log_probs(step=step, sequences=chunk).result()
            metrics = decoupled.train(step=step, sequences=chunk, last=chunk[-1] is sequences[-1]).result()
        kl.append(metrics["kl"])
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[0] < kl[1] < kl[2]
    ended = decoupled.state()
    decoupled.restore(start)
    for step in (1, 2, 3):
        decoupled.train(step=step, sequences=sequences[:4], last=False)
        decoupled.train(step=step, sequences=sequences[4:], last=True)
    assert same(decoupled.state(), ended)


def test_decoupled_weights_are_those_of_the_steps_start(decoupled):
    sequences = on_policy(decoupled, batch(6))
    shifted = [s | {"log_probs": [x - 0.3 for x in s["log_probs"]]} for s in sequences]
    metrics = decoupled.train(step=9, sequences=shifted, last=True).result()
    assert metrics["ratio"] == pytest.approx(np.exp(0.3), rel=1e-4)
    shifted = [s | {"log_probs": [x - 1.0 for x in s["log_probs"]]} for s in on_policy(decoupled, batch(6))]
    assert decoupled.train(step=10, sequences=shifted, last=True).result()["clip_fraction"] == 1.0  # exp(1) is above the cap


def test_chunks_of_groups_go_through_the_performer_and_the_dispatcher(decoupled):
    dispatcher = Dispatcher(decoupled.programs())
    performer = LearnerPerformer(dispatcher, decoupled.settings)
    assert set(performer.performers()) == {LogProbs, TrainStep}
    rng = np.random.default_rng(0)

    def group(number, rewards):
        made = [sequence(m, rng) for m in range(len(rewards))]
        payloads = [Sample(s["tokens"], s["trained"], s["log_probs"], [0] * len(s["tokens"])) for s in made]
        members = [
            EpisodeResult(episode_id(number, m), Ended.DONE, 1, 4, len(payload.tokens), 20, 20, reward, payload)
            for m, (reward, payload) in enumerate(zip(rewards, payloads, strict=True))
        ]
        return Group(number, Task(number, 0), tuple(members), 20, 20, 4, sum(m.sequence_tokens for m in members), 20)

    chunks = [[group(0, [1.0, 0.0])], [group(1, [0.0, 1.0, 1.0])]]
    before = decoupled.state()

    async def go():
        rt = SimpleNamespace()  # the performers ask nothing of the runtime
        for last, chunk in enumerate(chunks):
            await performer.log_probs(rt, LogProbs(21, len(chunk[0].members), chunk[0].sequence_tokens, chunk))
            outcome = await performer.train(rt, TrainStep(21, len(chunk[0].members), chunk[0].sequence_tokens, last, chunk))
        performer.snapshot(21)
        return outcome

    dispatcher.start()
    try:
        outcome = trio.run(go)
    finally:
        dispatcher.stop()
    assert outcome.amount == chunks[1][0].sequence_tokens
    assert outcome.result["updates"] == int(before["counters"]["updates"]) + 1
    assert (outcome.result["lag_steps"], outcome.result["samples"]) == (0.0, 5.0)
    assert jax.tree.structure(decoupled.store.get(21)) == jax.tree.structure(parameters(MODEL))


# ── learning ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bandit_is_learned(learner):
    """Reward 1 for one answer out of twelve: from chance to nearly always."""
    rng, prompt, wanted = np.random.default_rng(0), 1, 3
    for step in range(1, 26):
        chances = np.exp(np.asarray(every_log_prob(learner.weights(), padded([prompt]))[0], float))
        answers = rng.choice(VOCAB, 64, p=chances / chances.sum())
        rewards = (answers == wanted).astype(float)
        sequences = [
            {"id": i, "tokens": [prompt, int(a)], "trained": [False, True], "log_probs": [0.0, float(np.log(chances[a]))],
             "advantage": (reward - rewards.mean()) / (rewards.std() + 1e-6)}
            for i, (a, reward) in enumerate(zip(answers, rewards, strict=True))
        ]  # fmt: skip
        if step == 1:
            assert chances[wanted] < 0.2
        learner.train(step=step, sequences=sequences, last=True).result()
    chances = np.exp(np.asarray(every_log_prob(learner.weights(), padded([prompt]))[0], float))
    assert chances[wanted] > 0.9


def test_a_warm_start_learns_its_demonstrations_and_leaves_a_fresh_optimizer(learner, shared):
    rng = np.random.default_rng(0)
    answers = {number: int(rng.integers(0, VOCAB)) for number in range(4)}
    shown = [
        {"id": n, "tokens": [n, answers[n]], "trained": [False, True], "log_probs": [0.0, 0.0], "advantage": 1.0}
        for n in answers
    ]
    losses = [learner.warm_step(step=step, sequences=shown).result()["loss"] for step in range(1, 61)]
    learner.warm_end()
    assert losses[0] > 1.5
    assert losses[-1] < 0.2
    assert same({"optimizer": learner.state()["optimizer"]}, {"optimizer": shared[1]["optimizer"]})


@pytest.mark.parametrize(
    ("warmup", "decay", "wanted"),
    [
        (0, 0, {0: 1.0, 50: 1.0}),
        (4, 0, {0: 0.25, 1: 0.5, 3: 1.0, 99: 1.0}),
        (2, 10, {0: 0.5, 2: 1.0, 7: 0.55, 12: 0.1, 99: 0.1}),
    ],
)
def test_the_schedule_rises_and_falls_as_it_says(warmup, decay, wanted):
    schedule = make_schedule(LearnerTable(learning_rate=1.0, warmup_steps=warmup, decay_steps=decay, final_fraction=0.1))
    assert {step: float(schedule(step)) for step in wanted} == {step: pytest.approx(rate) for step, rate in wanted.items()}
