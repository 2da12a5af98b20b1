"""What became of tokens and episodes, by length too; and what full slots would have saved."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import waste
from harness.analysis.underfill import fill
from harness.core.accounts import Accounts, Decoding, Fate
from harness.core.errors import TraceError
from harness.costs.step_time import DecodeLaw
from harness.run import simulate_once
from harness.tuning.measured import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))

from tiny_world import scenario

LAW = DecodeLaw(base_s=0.01, weights_s=0.02, per_sequence_s=0.001, per_kv_token_s=1e-5)


# ── waste ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(list(Fate)), st.booleans(), st.booleans()), max_size=40))
def test_books_by_length_are_the_books(history):
    """Episodes made before and after the mark, settled or open: nothing is counted twice, nothing is missing."""
    accounts = Accounts()
    for episode, (tokens, _, early, _) in enumerate(history):
        account = accounts.admit(episode)
        if early:
            account.tokens += tokens
            accounts.made_tokens += tokens
    accounts.mark()
    for episode, (tokens, fate, early, settled) in enumerate(history):
        if not early:
            accounts.open[episode].tokens += tokens
            accounts.made_tokens += tokens
        if settled:
            accounts.settle(episode, fate)
    accounts.check(dict.fromkeys(accounts.open, "somebody"))
    lengths = waste.lengths_by_fate(accounts)
    over = [(tokens, fate) for tokens, fate, _, settled in history if settled]
    assert sum(one.episodes for one in lengths) == len(over)
    assert sum(one.tokens for one in lengths) == sum(tokens for tokens, _ in over)
    for one in lengths:
        inside = [tokens for tokens, fate in over if fate.name.lower() == one.fate and one.below // 2 <= tokens < one.below]
        assert (len(inside), sum(inside)) == (one.episodes, one.tokens)
    made = sum(tokens for tokens, _, early, _ in history if not early)
    assert sum(waste.tokens_by_fate(accounts).values()) == made
    assert sum(waste.episodes_by_fate(accounts).values()) == len(history)
    assert waste.together([lengths, ()]) == lengths
    assert all(0 <= share <= 1 for share in waste.trained_share_by_length(lengths).values())


def test_lengths_that_do_not_add_up_are_named():
    accounts = Accounts()
    accounts.admit(1).tokens = 5
    accounts.made_tokens = 5
    accounts.settle(1, Fate.STALE)
    accounts.check({})
    accounts.window_lengths[Fate.STALE][3] += 1
    with pytest.raises(TraceError, match="episodes by length = episodes settled"):
        accounts.check({})


def test_shares_by_length():
    made = [("trained", 64, 6, 300), ("stale", 64, 2, 120), ("trained", 1024, 1, 900), ("stale", 1024, 3, 2700)]
    lengths = tuple(waste.Lengths(*one) for one in made)
    assert waste.trained_share_by_length(lengths) == {64: 0.75, 1024: 0.25}
    assert waste.mean_lengths(lengths) == {"trained": 1200 / 7, "stale": 2820 / 5}
    assert waste.trained_share_of_long(lengths, 1200 / 7) == (512, 0.25)
    assert waste.trained_share_of_long(lengths, 4000.0) is None
    assert waste.wasted_share({"trained": 60.0, "stale": 30.0, "failed": 10.0, "in_flight": 99.0, "evaluation": 5.0}) == 0.4
    assert waste.wasted_share({"in_flight": 3.0}) == 0.0


def test_a_summary_has_all_of_it():
    what = scenario(
        {"max_inflight": 24, "env_workers": 24, "tool_workers": 24, "buffer_capacity": 8, "order_policy": "freshest"},
        random=True, tool={"duration": {"law": "lognormal", "mu": 0.0, "sigma": 1.6}}, steps=8,
    )  # fmt: skip
    run = simulate_once(what, 1, warmup_steps=2)
    assert sum(run.tokens_by_fate.values()) == run.tokens_made
    assert run.tokens_by_fate["trained"] == run.tokens_trained
    assert run.tokens_by_fate["stale"] > 0
    assert run.episodes_by_fate["trained"] == run.trained_episodes
    both = measure([run, simulate_once(what, 2, warmup_steps=2)])
    assert both.mean_lengths["trained"] > 0
    assert 0 < both.underfill_share < both.share("kept")


# ── underfill ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def decoded(batch, context, steps=1000):
    """A replica that has made so many steps with a batch of that size and that context a sequence."""
    one = Decoding()
    one.spent_ns = round(steps * LAW.step_s(batch, batch * context) * 1e9)
    one.tokens = one.slot_steps = batch * steps
    one.context_steps = batch * context * steps
    return one


def test_full_slots_have_no_underfill():
    full = fill([decoded(16, 500)], 1e12, LAW, slots=16, kv_tokens=10**6)
    assert full.underfill_ns == pytest.approx(0, abs=1e4)
    assert full.rate_share == pytest.approx(1.0)
    assert full.mean_context == 500


@given(batch=st.integers(1, 31), context=st.integers(1, 4000))
def test_underfill_is_the_time_that_full_slots_would_do_without(batch, context):
    """The same tokens at the full rate take the kept time less the underfill."""
    one = decoded(batch, context)
    seen = fill([one], one.spent_ns, LAW, slots=32, kv_tokens=10**9)
    at_full_ns = one.tokens / 32 * LAW.step_s(32, 32 * context) * 1e9
    assert one.spent_ns - seen.underfill_ns == pytest.approx(at_full_ns, rel=1e-6)
    assert 0 <= seen.underfill_ns < one.spent_ns


def test_what_was_not_kept_or_not_decoded_has_none():
    one = decoded(4, 100)
    whole = fill([one], 1000.0, LAW, slots=32, kv_tokens=10**6)
    half = fill([one], 1000.0, LAW, slots=32, kv_tokens=10**6, decode_share=0.5)
    assert half.underfill_ns == pytest.approx(whole.underfill_ns / 2, abs=1)
    assert fill([one], 0.0, LAW, slots=32, kv_tokens=10**6).underfill_ns == 0
    assert fill([], 1000.0, LAW, slots=32, kv_tokens=10**6).underfill_ns == 0


def test_a_small_cache_says_how_many_slots_it_can_fill():
    assert fill([decoded(4, 1000)], 1.0, LAW, slots=32, kv_tokens=10_500).reachable_slots == 10


def test_more_requests_have_less_underfill_through_the_actors():
    few, many = (simulate_once(scenario({"max_inflight": n, "slots_per_replica": 8}, steps=4), 0) for n in (2, 8))
    assert few.underfill_ns / few.chip_ns["kept"] > many.underfill_ns / many.chip_ns["kept"]
