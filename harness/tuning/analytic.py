"""What closed forms can say before anything is simulated: which settings look best, and which cannot win.

A closed form costs a thousandth of a simulation. Its expected throughput ranks settings, so that the search begins where the
best ones are to be found; its firm bounds rule settings out: no run can be above one, so that a setting whose bound lies below
what today's settings reach in simulation cannot be better than they are.
"""

from __future__ import annotations

from dataclasses import dataclass


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
