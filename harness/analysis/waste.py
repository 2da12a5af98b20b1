"""Waste: what was made and not trained on, by reason and by length.

Drops are not blind to length: what takes long gets stale, what is cut off was long. So the lengths that are trained are not
those that were generated, and a policy that drops more trains on shorter answers. Everything here comes from the books, so it
is known of every run, recorded or not. Of a kept record, `harness.trace.reader` tells episode by episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.accounts import LENGTH_CLASSES, Fate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.accounts import Accounts

IN_FLIGHT = "in_flight"
"""Key of what was still open at the end of the window, beside the fates."""

TRAINED = Fate.TRAINED.name.lower()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Episodes of one fate in one length class.

    Attributes:
        fate: what became of them.
        below: their tokens are fewer than this, and at least half of it (0 tokens: below 1).
        episodes: how many.
        tokens: of all of them, those made before the window too.

    """

    fate: str
    below: int
    episodes: int
    tokens: int


def tokens_by_fate(accounts: Accounts) -> dict[str, int]:
    """Tokens made in the window, by what became of them; `in_flight` for episodes that are open. They add up to all made."""
    made = {fate.name.lower(): accounts.window_tokens[fate] for fate in Fate if accounts.window_tokens[fate]}
    in_flight, _ = accounts.window_in_flight
    return made | ({IN_FLIGHT: in_flight} if in_flight else {})


def episodes_by_fate(accounts: Accounts) -> dict[str, int]:
    """Episodes settled in the window by fate, and `in_flight` those that are open at its end."""
    settled = {fate.name.lower(): accounts.window_settled[fate] for fate in Fate if accounts.window_settled[fate]}
    return settled | ({IN_FLIGHT: len(accounts.open)} if accounts.open else {})


def lengths_by_fate(accounts: Accounts) -> tuple[Lengths, ...]:
    """Settled episodes of the window by fate and length class; only classes with any."""
    return tuple(
        Lengths(fate.name.lower(), 1 << c, accounts.window_lengths[fate][c], accounts.window_length_tokens[fate][c])
        for fate in Fate
        for c in range(LENGTH_CLASSES)
        if accounts.window_lengths[fate][c]
    )


def together(runs: Sequence[Sequence[Lengths]]) -> tuple[Lengths, ...]:
    """The classes of several runs, added up."""
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for run in runs:
        for one in run:
            episodes, tokens = sums.get((one.fate, one.below), (0, 0))
            sums[one.fate, one.below] = (episodes + one.episodes, tokens + one.tokens)
    order = {fate.name.lower(): int(fate) for fate in Fate}
    return tuple(
        Lengths(fate, below, *sums[fate, below]) for fate, below in sorted(sums, key=lambda key: (order[key[0]], key[1]))
    )


def mean_lengths(lengths: Sequence[Lengths]) -> dict[str, float]:
    """Mean tokens of an episode, by fate."""
    fates = dict.fromkeys(one.fate for one in lengths)
    return {
        fate: math.fsum(one.tokens for one in lengths if one.fate == fate)
        / sum(one.episodes for one in lengths if one.fate == fate)
        for fate in fates
    }


def trained_share_by_length(lengths: Sequence[Lengths]) -> dict[int, float]:
    """Share of episodes that were trained, by length class (its upper bound). Evaluation is left out."""
    ours = [one for one in lengths if one.fate != Fate.EVALUATION.name.lower()]
    classes = sorted({one.below for one in ours})
    shares = {}
    for below in classes:
        inside = [one for one in ours if one.below == below]
        trained = sum(one.episodes for one in inside if one.fate == TRAINED)
        shares[below] = trained / sum(one.episodes for one in inside)
    return shares


def trained_share_of_long(lengths: Sequence[Lengths], trained_mean: float) -> tuple[int, float] | None:
    """The length class that begins at the trained mean or above, and the share of episodes in it and above that were trained.

    None where no episode is that long.
    """
    ours = [one for one in lengths if one.fate != Fate.EVALUATION.name.lower() and one.below > 2 * trained_mean]
    if not ours:
        return None
    trained = sum(one.episodes for one in ours if one.fate == TRAINED)
    return min(one.below for one in ours) // 2, trained / sum(one.episodes for one in ours)


def wasted_share(tokens: Mapping[str, float]) -> float:
    """Share of the tokens of settled episodes that were made and not trained on; 0 where none was settled."""
    settled = {fate: n for fate, n in tokens.items() if fate not in (IN_FLIGHT, Fate.EVALUATION.name.lower())}
    made = math.fsum(settled.values())
    return 1.0 - settled.get(TRAINED, 0.0) / made if made else 0.0
