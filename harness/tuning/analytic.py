"""What closed forms can say before anything is simulated: which settings look best, and which cannot win.

A closed form costs a thousandth of a simulation. Its expected throughput ranks settings, so that the search begins where the
best ones are to be found; its firm bounds rule settings out: no run can be above one, so that a setting whose bound lies below
what today's settings reach in simulation cannot be better than they are.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError
from harness.tuning.result import ByHand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.tuning.space import Settings, Space, Value

NEIGHBOURS_SHARE = 0.5
"""Share of the looks at a space that is too large to be looked at whole which go to neighbours of the best so far."""

LEADERS = 12
"""The best this many have neighbours looked at."""

LUCK = 0.1
"""One or two short runs of today's settings may be this fraction above what they reach in the long run."""

GRAIN = 0.02
"""Expectations that differ by less than this fraction are alike: the closed forms are not that good."""


@dataclass(frozen=True, slots=True)
class ByHandSaid:
    """What closed forms say of one setting.

    Attributes:
        rate: kept groups per chip-second that are expected, with queueing.
        bound: kept groups per chip-second that no run exceeds; infinite where no bound is firm.
        limits: name and groups a second of the bounds, the narrowest first.
        stored: groups that may be finished in a window though most of their work was done before it.

    """

    rate: float
    bound: float
    limits: tuple[tuple[str, float], ...] = ()
    stored: int = 0


def screen_by_hand(
    space: Space,
    said_of: Callable[[Settings], ByHandSaid],
    today_rate: float,
    *,
    most: int = 4000,
    seconds: float = 2.0,
    rng_seed: int = 0,
) -> tuple[ByHand, list[Settings], Callable[[Settings], bool]]:
    """Ask the closed forms about the whole space, or about the likeliest part of a large one.

    Args:
        space: what is searched.
        said_of: what closed forms say of settings; raises `ConfigError` for those that the pipeline refuses.
        today_rate: kept groups per chip-second that today's settings reach in simulation, more or less; 0 rules nothing out.
        most: settings that are looked at.
        seconds: and how long.
        rng_seed: of the part of a large space that is looked at.

    Returns:
        What was done; settings other than today's, the best expected first, without those of which the closed forms say the
        same in every respect (of these the one with the fewest changes); and whether settings cannot win.

    """
    looking = _Looking(replace(space, knobs=tuple(sorted(space.knobs, key=lambda knob: knob.path))), said_of)
    started = time.perf_counter()
    today = looking.ask(space.today)
    for settings in looking.candidates(most, random.Random(rng_seed)):
        if time.perf_counter() - started >= seconds or len(looking.said) >= most:
            break
        looking.ask(settings)
    reached = (1 - LUCK) * (min(today_rate, today.bound) if today is not None else today_rate)

    def rules_out(settings: Settings) -> bool:
        said = looking.ask(settings)
        return said is not None and said.bound < reached

    looked_at = sum(said is not None for said in looking.said.values())
    ruled_out = sum(said is not None and said.bound < reached for said in looking.said.values())
    by_hand = ByHand(
        combinations=space.size,
        looked_at=looked_at,
        ruled_out=ruled_out,
        seconds=time.perf_counter() - started,
        limits=today.limits if today is not None else (),
    )
    return by_hand, looking.ranked(), rules_out


class _Looking:
    """What was asked, and what was said. Knobs are in the order of their paths, so that nothing depends on another order."""

    def __init__(self, space: Space, said_of: Callable[[Settings], ByHandSaid]) -> None:
        self.space = space
        self.said_of = said_of
        self.said: dict[tuple[tuple[str, Value], ...], ByHandSaid | None] = {}

    def ask(self, settings: Settings) -> ByHandSaid | None:
        """What is said of settings; None where the pipeline refuses them."""
        key = tuple(sorted(settings.items()))
        if key not in self.said:
            try:
                self.said[key] = self.said_of(settings)
            except ConfigError:
                self.said[key] = None
        return self.said[key]

    def candidates(self, most: int, rng: random.Random) -> Iterator[Settings]:
        """All settings, in an order that tells most early; of a large space corners, random ones and neighbours of the best."""
        yield from self.space.corners()
        if self.space.size <= most:
            everything = list(itertools.product(*(knob.values for knob in self.space.knobs)))
            rng.shuffle(everything)
            paths = [knob.path for knob in self.space.knobs]
            yield from (dict(zip(paths, values, strict=True)) for values in everything)
            return
        for _ in range(round(most * (1 - NEIGHBOURS_SHARE))):
            yield self.space.draw(rng)
        while True:  # whoever asks for them stops
            for settings in self._leaders() or [self.space.today]:
                yield from (self.space.near(settings, rng) for _ in range(LEADERS))
            yield from (self.space.draw(rng) for _ in range(LEADERS))

    def _leaders(self) -> list[Settings]:
        usable = [(said.rate, key) for key, said in self.said.items() if said is not None]
        return [dict(key) for _, key in heapq.nlargest(LEADERS, usable, key=lambda pair: pair[0])]

    def ranked(self) -> list[Settings]:
        """Accepted settings, the best expected first, each that is as good as an earlier one a little later.

        Where the closed forms say the same in every respect, only the settings that change least are kept.
        """
        today = self.space.today
        alike: dict[tuple[object, ...], tuple[ByHandSaid, Settings]] = {}
        usable = [(said, dict(key)) for key, said in self.said.items() if said is not None]
        for said, settings in sorted(usable, key=lambda pair: self._effort(*pair)):
            alike.setdefault((said.rate, said.bound, said.limits), (said, settings))
        before: Counter[int] = Counter()
        scores: list[tuple[float, int, Settings]] = []
        for said, settings in alike.values():
            level = round(math.log(said.rate) / GRAIN) if 0 < said.rate < math.inf else 0
            scores.append((-said.rate * (1 - GRAIN) ** before[level], len(scores), settings))
            before[level] += 1
        return [
            {path: settings[path] for path in today}
            for *_, settings in sorted(scores, key=itemgetter(0, 1))
            if settings != today
        ]

    def _effort(self, said: ByHandSaid, settings: Settings) -> tuple[object, ...]:
        """What settings change: the fewest knobs, the least far, and the more room under each limit the better."""
        moved = sum(abs(knob.position(settings[knob.path]) - knob.start) for knob in self.space.knobs if not knob.choice)
        room = tuple(-rate for _, rate in said.limits)
        return len(self.space.changed(settings)), moved, room, sorted(map(str, settings.items()))
