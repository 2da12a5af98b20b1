"""Losses and advantages against NumPy written out token by token, and what must hold of their gradients."""

from __future__ import annotations

import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.live_config import LearnerTable
from pipeline.numerics import losses
from pipeline.numerics.advantages import group_advantages
from pipeline.numerics.losses import LOSSES, LossInputs, kl_to_reference
from pipeline.numerics.train_step import token_log_probs

SETTINGS = [LearnerTable(), LearnerTable(clip_low=0.1, clip_high=0.5, importance_cap=1.2), LearnerTable(importance_cap=1.0)]


def draw(seed, rows=4, length=11):
    """Random inputs: two or three sequences a row, padding at its end, holes where a token is not trained on."""
    rng = np.random.default_rng(seed)

    def normal(centre, spread):
        return (centre + spread * rng.standard_normal((rows, length))).astype(np.float32)

    log_probs = normal(-1.5, 0.5)
    segments = np.sort(rng.integers(1, 4, (rows, length)), axis=1).astype(np.int32)
    segments[:, length - 2 :] = 0
    return LossInputs(
        log_probs=log_probs,
        sampled=log_probs + normal(0.0, 0.3),
        proximal=log_probs + normal(0.0, 0.2),
        reference=log_probs + normal(0.0, 0.4),
        advantages=normal(0.0, 1.0),
        trained=((rng.random((rows, length)) < 0.7) & (segments > 0)).astype(np.float32),
        segments=segments,
    )


def clip(value, low, high):
    return min(max(value, low), high)


def slow_grpo(x, at, s):
    ratio = math.exp(x.log_probs[at] - x.sampled[at])
    return -min(ratio * x.advantages[at], clip(ratio, 1 - s.clip_low, 1 + s.clip_high) * x.advantages[at])


def slow_decoupled_ppo(x, at, s):
    weight = min(math.exp(x.proximal[at] - x.sampled[at]), s.importance_cap)
    ratio = math.exp(x.log_probs[at] - x.proximal[at])
    return -weight * min(ratio * x.advantages[at], clip(ratio, 1 - s.clip_low, 1 + s.clip_high) * x.advantages[at])


def slow_tis_token(x, at, s):
    weight = min(math.exp(x.log_probs[at]) / math.exp(x.sampled[at]), s.importance_cap)
    return -weight * x.advantages[at] * x.log_probs[at]


def slow_tis_sequence(x, at, s):
    row, _ = at
    product = 1.0
    for column in range(x.segments.shape[1]):
        if x.segments[row, column] == x.segments[at] and x.trained[row, column]:
            product *= math.exp(x.log_probs[row, column]) / math.exp(x.sampled[row, column])
    return -min(product, s.importance_cap) * x.advantages[at] * x.log_probs[at]


SLOW = {
    "grpo": slow_grpo, "decoupled_ppo": slow_decoupled_ppo, "tis_token": slow_tis_token, "tis_sequence": slow_tis_sequence,
}  # fmt: skip


def gradient(loss, inputs, settings):
    """Of the sum over trained tokens, by the log-probability of each token."""

    def total(log_probs):
        return jnp.sum(loss(inputs._replace(log_probs=log_probs), settings).loss * inputs.trained)

    return np.asarray(jax.grad(total)(jnp.asarray(inputs.log_probs)))


def test_every_name_that_a_scenario_may_give_has_a_loss_and_every_loss_is_tested():
    assert set(LOSSES) == set(get_args(LearnerTable.model_fields["loss"].annotation)) == set(SLOW)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("settings", SETTINGS, ids=["usual", "asymmetric", "cap 1"])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_agrees_with_its_formula_in_numpy(name, settings, seed):
    x = draw(seed)
    fast = np.asarray(LOSSES[name](x, settings).loss)
    for at in zip(*np.nonzero(x.trained), strict=True):
        assert fast[at] == pytest.approx(SLOW[name](x, at, settings), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_where_all_policies_are_the_same_the_gradient_is_the_policy_gradient(name):
    x = draw(7)
    x = x._replace(sampled=x.log_probs, proximal=x.log_probs)
    np.testing.assert_allclose(gradient(LOSSES[name], x, LearnerTable()), -x.advantages * x.trained, rtol=1e-5, atol=1e-6)


def one(log_ratio, advantage):
    """One token whose probability was multiplied by e^log_ratio since it was sampled."""
    return LossInputs(*(np.full((1, 1), value, np.float32) for value in (-1.0, -1.0 - log_ratio, -1.0, -1.0, advantage, 1.0)),
                      segments=np.ones((1, 1), np.int32))  # fmt: skip


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "moves"),
    [(0.5, 1.0, False), (-0.5, -1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (0.1, 1.0, True), (-0.1, -1.0, True)],
)
def test_the_clip_stops_only_what_has_already_gone_its_way(log_ratio, advantage, moves):
    x = one(log_ratio, advantage)
    wanted = -advantage * math.exp(log_ratio) if moves else 0.0
    assert gradient(losses.grpo, x, LearnerTable())[0, 0] == pytest.approx(wanted, rel=1e-5)
    assert losses.grpo(x, LearnerTable()).clipped[0, 0] == float(not moves)


def test_the_upper_clip_is_set_apart_from_the_lower():
    wide = LearnerTable(clip_low=0.2, clip_high=1.0)
    assert gradient(losses.grpo, one(0.5, 1.0), wide)[0, 0] != 0.0
    assert gradient(losses.grpo, one(-0.5, -1.0), wide)[0, 0] == 0.0


def test_importance_weights_carry_no_gradient():
    x, settings = draw(3), LearnerTable(importance_cap=1.5)
    weight = np.minimum(np.exp(x.log_probs - x.sampled), 1.5)
    np.testing.assert_allclose(gradient(losses.tis_token, x, settings), -weight * x.advantages * x.trained, rtol=1e-5)
    at_start = x._replace(log_probs=x.proximal)  # the first update of a step: r = 1, and the weight does the correction
    weight = np.minimum(np.exp(x.proximal - x.sampled), 1.5)
    np.testing.assert_allclose(
        gradient(losses.decoupled_ppo, at_start, settings), -weight * x.advantages * x.trained, rtol=1e-5
    )


def test_a_sequence_weight_looks_at_its_own_sequence_only():
    x, settings = draw(5), LearnerTable(importance_cap=1e6)
    other = x.segments == 1
    changed = x._replace(sampled=np.where(other, x.sampled - 3.0, x.sampled))
    before, after = losses.tis_sequence(x, settings).ratio, losses.tis_sequence(changed, settings).ratio
    np.testing.assert_array_equal(np.asarray(before)[~other], np.asarray(after)[~other])
    assert not np.array_equal(np.asarray(before)[other], np.asarray(after)[other])


@pytest.mark.parametrize("name", LOSSES)
def test_a_policy_that_is_far_away_gives_finite_losses_and_gradients(name):
    x = draw(1)
    for shift in (-500.0, 500.0):
        far = x._replace(sampled=x.sampled + shift, proximal=x.proximal - shift)
        assert np.isfinite(LOSSES[name](far, LearnerTable()).loss).all()
        assert np.isfinite(gradient(LOSSES[name], far, LearnerTable())).all()


def test_kl_agrees_with_its_formula_and_is_nought_at_the_reference():
    x = draw(2)
    ratio = np.exp(x.reference.astype(np.float64) - x.log_probs)
    np.testing.assert_allclose(kl_to_reference(x.log_probs, x.reference), ratio - np.log(ratio) - 1, rtol=1e-4, atol=1e-6)
    assert not np.asarray(kl_to_reference(x.log_probs, x.log_probs)).any()
    assert (np.asarray(kl_to_reference(x.log_probs, x.reference)) >= 0).all()


def test_kl_has_the_divergence_as_its_mean():
    rng = np.random.default_rng(0)
    policy, reference = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    estimates = np.asarray(kl_to_reference(np.log(policy), np.log(reference)))
    assert np.sum(policy * estimates) == pytest.approx(np.sum(policy * np.log(policy / reference)), rel=1e-5)


def test_log_probs_and_entropy_are_those_of_the_softmax_at_the_temperature():
    rng = np.random.default_rng(4)
    logits, targets = rng.standard_normal((2, 5, 9)).astype(np.float32), rng.integers(0, 9, (2, 5))
    log_probs, entropy = token_log_probs(jnp.asarray(logits), jnp.asarray(targets), 0.7)
    chances = np.exp(logits.astype(np.float64) / 0.7)
    chances /= chances.sum(-1, keepdims=True)
    for at in np.ndindex(2, 5):
        assert log_probs[at] == pytest.approx(math.log(chances[at][targets[at]]), rel=1e-5)
        assert entropy[at] == pytest.approx(-sum(p * math.log(p) for p in chances[at]), rel=1e-5)


# ── advantages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(-1e6, 1e6), st.integers(0, 20), st.booleans())
def test_equal_rewards_give_exactly_nought(reward, members, normalise):
    assert not group_advantages([reward] * members, normalise_std=normalise).any()


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=2, max_size=16))
def test_advantages_agree_with_their_formula(rewards):
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    plain, normal = (group_advantages(rewards, normalise_std=flag) for flag in (False, True))
    for index, reward in enumerate(rewards):
        assert plain[index] == pytest.approx(reward - mean, rel=1e-5, abs=1e-7)
        assert normal[index] == pytest.approx((reward - mean) / std if std > 1e-9 else 0.0, rel=1e-4, abs=1e-6)


def test_rewards_that_differ_by_rounding_alone_give_next_to_nothing():
    assert abs(group_advantages([0.1 + 0.2, 0.3, 0.3], normalise_std=True)).max() < 1e-6
