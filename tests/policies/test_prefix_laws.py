"""Prefix cache and compilation, as pure policies: against slow obvious ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from pipeline.policies.compiles import START, Buckets, Compiles
from pipeline.policies.kv_prefix import PrefixCache, PrefixRules

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 5), st.integers(1, 60)),
        st.tuples(st.just("shrink"), st.integers(0, 200), st.just(0)),
        st.tuples(st.just("swap"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Obvious:
    """A list of (key, tokens), least recently used first, token by token."""

    def __init__(self, rules):
        self.rules, self.kept = rules, []

    def pop(self, key):
        found = [tokens for k, tokens in self.kept if k == key]
        self.kept = [entry for entry in self.kept if entry[0] != key]
        return found[0] if found else 0

    def take(self, episode, group, prompt, context):
        found = self.pop(("episode", episode))
        if self.rules.shared_prompts:
            there = self.pop(("group", group))
            self.kept.append((("group", group), max(there, prompt)))
            found = max(found, min(there, prompt))
        return min(found, context - 1)

    def shrink(self, room):
        while sum(tokens for _, tokens in self.kept) > room:
            key, tokens = self.kept[0]
            self.kept[0] = (key, tokens - 1)
            self.kept = [entry for entry in self.kept if entry[1]]


@settings(max_examples=200)
@given(acts=ACTS, keep=st.booleans(), shared=st.booleans())
def test_it_finds_what_the_obvious_cache_finds(acts, keep, shared):
    rules = PrefixRules(keep_on_swap=keep, shared_prompts=shared)
    cache, obvious = PrefixCache(rules), Obvious(rules)
    contexts = dict.fromkeys(range(6), 0)
    hits = asked = 0
    for what, value, tokens in acts:
        if what == "turn":
            prompt = 5 + value
            context = contexts[value] + (prompt if not contexts[value] else 0) + tokens
            hit = cache.take(value, value // 3, prompt, context)
            assert hit == obvious.take(value, value // 3, prompt, context)
            assert 0 <= hit <= max(contexts[value], prompt), "no more than was computed"
            hits, asked = hits + hit, asked + context
            contexts[value] = context + 3
            cache.store(value, context + 3)
            obvious.pop(("episode", value))
            obvious.kept.append((("episode", value), context + 3))
        elif what == "shrink":
            cache.shrink(value)
            obvious.shrink(value)
            assert cache.cached <= value
        else:
            cache.swapped()
            if not keep:
                obvious.kept = []
        assert cache.cached == sum(tokens for _, tokens in obvious.kept)
    assert (cache.hit_tokens, cache.asked_tokens) == (hits, asked)


def test_one_context_too_many_makes_everybody_miss():
    """LRU and episodes that take turns: ten contexts of 100 in 1,000 are all found, eleven are all lost."""
    for episodes, found in ((10, 100), (11, 0)):
        cache = PrefixCache(PrefixRules())
        hits = set()
        for turn in range(5):
            for episode in range(episodes):
                hit = cache.take(episode, -1, 0, 101)
                cache.shrink(1000 - 100)
                cache.store(episode, 100)
                if turn:
                    hits.add(hit)
        assert hits == {found}


def test_the_first_member_stores_the_prompt_and_the_others_find_it():
    cache = PrefixCache(PrefixRules())
    assert [cache.take(member, 7, 50, 50) for member in range(3)] == [0, 49, 49], "one token at least is computed"
    assert [cache.take(10 + member, -1, 50, 50) for member in range(2)] == [0, 0], "no group, no prompt"


def test_a_context_of_less_than_nothing_is_none():
    with pytest.raises(LawError, match="context of -1"):
        PrefixCache(PrefixRules()).store(0, -1)


@given(
    batch=st.lists(st.integers(1, 50), max_size=4, unique=True).map(sorted),
    prefill=st.lists(st.integers(1, 50), max_size=4, unique=True).map(sorted),
    shapes=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=30),
)
def test_each_bucket_is_compiled_once_when_it_is_first_needed(batch, prefill, shapes):
    compiles = Compiles(Buckets(tuple(batch), tuple(prefill)))
    for _ in range(2):  # the second time after a loss
        assert compiles.start() == START
        seen = set()
        for decodes, size in shapes:
            sizes = batch if decodes else prefill
            bucket = (compiles.decode if decodes else compiles.prefill)(size)
            fits = [s for s in sizes if s >= size] or sizes[-1:]
            shape = (decodes, fits[0]) if fits else None
            if shape is None or shape in seen:
                assert bucket is None
            else:
                assert bucket == 1 + (0 if decodes else len(batch)) + sizes.index(fits[0])
                seen.add(shape)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1), (0,), (-1, 2)])
def test_buckets_ascend(sizes):
    with pytest.raises(LawError, match="ascend"):
        Buckets(batch=sizes)
    with pytest.raises(LawError, match="ascend"):
        Buckets(prefill_tokens=sizes)
