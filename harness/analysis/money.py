"""What a window cost, in US dollars, at the user's own prices.

- **Chips** are paid all the time, whatever they do: chip-seconds of each class of the chip-second split x price. So the dollars
  of all classes add up to the chips' bill.
- **Sandboxes** are paid while an episode holds one: from its start to its teardown, also while the model generates.
- **Tool calls** are paid by call, each attempt, whether it succeeds or not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.analysis.summary import RunSummary
    from harness.scenario.prices import Prices

NS_PER_HOUR = 3_600 * 10**9
CHIPS = "chips:"
"""Keys of the bill are this and a class of chip time, or one of the two below."""
SANDBOXES = "sandboxes"
TOOL_CALLS = "tool_calls"


def bill(
    prices: Prices, chip_ns: Mapping[str, int], sandbox_ns: int, calls: Mapping[int, int], call_usd: Sequence[float]
) -> dict[str, float]:
    """Dollars by what they were paid for; what costs nothing is left out.

    Args:
        prices: the user's.
        chip_ns: chip-nanoseconds by class and cause.
        sandbox_ns: sandbox-nanoseconds held.
        calls: tool calls by index of the tool.
        call_usd: dollars for a call of each tool; one beyond them (of a live run's environment) has the general price.

    """
    by_class: dict[str, int] = {}
    for key, ns in chip_ns.items():
        klass = CHIPS + key.partition(":")[0]
        by_class[klass] = by_class.get(klass, 0) + ns
    usd = {klass: ns / NS_PER_HOUR * prices.chip_hour_usd for klass, ns in sorted(by_class.items())}
    usd[SANDBOXES] = sandbox_ns / NS_PER_HOUR * prices.sandbox_hour_usd
    each = [call_usd[tool] if tool < len(call_usd) else prices.tool_call_usd for tool in sorted(calls)]
    usd[TOOL_CALLS] = math.fsum(calls[tool] * paid for tool, paid in zip(sorted(calls), each, strict=True))
    return {what: paid for what, paid in usd.items() if paid}


def total(usd: Mapping[str, float]) -> float:
    """Everything together."""
    return math.fsum(usd.values())


def mean_bill(runs: Sequence[RunSummary]) -> dict[str, float]:
    """Of one replication, the mean."""
    keys = dict.fromkeys(key for run in runs for key in run.usd)
    return {key: math.fsum(run.usd.get(key, 0.0) for run in runs) / len(runs) for key in keys}


def per_thousand(runs: Sequence[RunSummary], counts: Sequence[int]) -> float:
    """Dollars for a thousand of what is counted, over all replications (a ratio of sums); 0 where there is none."""
    number = sum(counts)
    paid = math.fsum(total(run.usd) for run in runs)
    return 1000 * paid / number if number else 0.0
