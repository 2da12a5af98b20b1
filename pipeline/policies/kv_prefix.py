"""Prefix cache of one replica: contexts that stay after a request has ended, in case they are wanted again.

When an episode's turn ends, the keys and values of its context stay where they are. If its next request comes to the same
replica, what is still there does not have to be prefilled. A context that nobody uses takes only room that nobody needs: when
room is wanted, the context that was used longest ago goes first, from its end (vLLM, "Automatic Prefix Caching": blocks of a
request that ended are freed from the last to the first, and the block that was freed first is taken first; SGLang evicts the
leaves of a radix tree by the same order). So a cache helps when the contexts between turns fit beside those that run, and it
stops helping rather suddenly: with LRU and episodes that take turns, one context too many makes every one of them miss.

- Only this replica has it: a router that sends an episode elsewhere pays the whole context (`sticky` against `round_robin`).
- New weights make old keys and values wrong: they are dropped, unless the rules say that they are kept.
- Members of a group begin with the same prompt. The first to come stores it, the others find it. It stands in the cache as a
  context of its own; that running requests could share its memory as well is not modelled.
- An episode that has ended is not known here to have ended, as in the engines: its context ages out.

Tokens are counted one by one, where engines keep whole blocks of 16 or so, and at least one token is always computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import LawError


@dataclass(frozen=True, slots=True)
class PrefixRules:
    """How a replica's prefix cache behaves.

    Attributes:
        keep_on_swap: contexts survive the installation of new weights.
        shared_prompts: members of a group find each other's prompt.

    """

    keep_on_swap: bool = False
    shared_prompts: bool = True


class PrefixCache:
    """What one replica still has of contexts that do not run.

    Attributes:
        cached: tokens in it.
        asked_tokens: tokens of contexts that were looked up.
        hit_tokens: tokens of them that were there.

    """

    __slots__ = ("_contexts", "_rules", "asked_tokens", "cached", "hit_tokens")

    def __init__(self, rules: PrefixRules) -> None:
        self._rules = rules
        self._contexts: dict[int, int] = {}  # episode, or -1 - group for a prompt, to tokens; least recently used first
        self.cached = 0
        self.asked_tokens = 0
        self.hit_tokens = 0

    def take(self, episode: int, group: int, prompt_tokens: int, context_tokens: int) -> int:
        """Tokens of an episode's context that need no prefill; they are the request's now, and no longer in here.

        Args:
            episode: who asks.
            group: of the episode, -1 for none.
            prompt_tokens: of its first prompt, which the group has in common.
            context_tokens: of all that has to be there before it can go on.

        """
        found = self._contexts.pop(episode, 0)
        self.cached -= found
        if self._rules.shared_prompts and group >= 0:
            found = max(found, self._prompt(-1 - group, prompt_tokens))
        hit = max(min(found, context_tokens - 1), 0)
        self.asked_tokens += context_tokens
        self.hit_tokens += hit
        return hit

    def _prompt(self, key: int, prompt_tokens: int) -> int:
        """What is there of a group's prompt. It is in use now, and whole from now on."""
        there = self._contexts.pop(key, 0)
        self._contexts[key] = longest = max(there, prompt_tokens)
        self.cached += longest - there
        return min(there, prompt_tokens)

    def store(self, episode: int, tokens: int) -> None:
        """A request has ended: its context stays."""
        if tokens < 0:
            raise LawError(f"a context of {tokens} tokens")
        self.cached += tokens - self._contexts.pop(episode, 0)
        self._contexts[episode] = tokens

    def shrink(self, room: int) -> None:
        """Give up what does not fit into `room` tokens, least recently used first."""
        over = self.cached - room
        if over <= 0:
            return
        contexts = self._contexts
        for key in list(contexts):
            if over <= 0:
                break
            given = min(contexts[key], over)
            over -= given
            self.cached -= given
            if given == contexts[key]:
                del contexts[key]
            else:
                contexts[key] -= given

    def swapped(self) -> None:
        """New weights were installed."""
        if not self._rules.keep_on_swap:
            self.clear()

    def clear(self) -> None:
        """Nothing is left."""
        self._contexts.clear()
        self.cached = 0
