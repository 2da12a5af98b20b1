"""Whether a simulated result and what was expected by hand agree, and if not, why.

Two questions are asked.

**Above a bound?** No run can complete more than a firm fluid bound allows, but for two things: luck, which the 99.9 % interval
over the replications covers, and work that was done before the window for groups that were kept in it, at most all groups that
can be under way. What is above both is a bug, in the simulator or in the bound, and is said as an error.

**Far from the expectation?** Complete groups (kept and dropped) are compared with the closed network. Over the shipped
scenarios it is off by 8 % at most (`reports/theory.md`); `BAND` is three times that. Beyond it a reason is looked for: what the
closed forms leave out, evaluation, chips that were down or starting, too short a run. Without one, a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.analysis.by_hand import ROUNDING
from harness.analysis.statistics import ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.by_hand import Expectation, Limit
    from harness.analysis.statistics import Interval
    from harness.analysis.summary import RunSummary

BAND = 0.25
"""Relative difference from the expectation that needs no reason."""

SURE = 0.999
"""Confidence of the interval that must lie above a bound before it is called broken."""

SETTLED_STEPS = 20
"""Optimizer steps below which a difference may be the start-up's."""

NOTABLE = 0.03
"""Share of chip time from which a loss that the closed forms do not know is a reason."""

_UNKNOWN_LOSSES = {
    "overhead:evaluation": "evaluation",
    "overhead:compile": "compilation",
    "overhead:restore": "recovery from losses",
    "overhead:switch": "switches of shared chips",
    "overhead:re_prefill": "repeated prefills",
    "idle:down": "chips that were down",
    "idle:absent": "chips that were not there",
    "idle:host": "the host's event loop",
    "idle:backoff": "back-off after failures",
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Simulated beside expected.

    Attributes:
        expected: by hand.
        kept_groups_per_s: simulated, with the interval at `SURE`.
        complete_groups_per_s: simulated: kept and dropped.
        difference: of the complete groups from the expectation, relative.
        episodes_in_flight: simulated, the mean.
        episode_s: seconds that an episode was in flight, by Little's law: in flight over ended a second.
        loop_utilisation: simulated share of the event loop's time in use; None where it was not looked at.
        reasons: why it may differ.
        warning: far off without a reason; empty otherwise.
        error: above a firm bound; empty otherwise.

    """

    expected: Expectation
    kept_groups_per_s: Interval
    complete_groups_per_s: float
    difference: float
    episodes_in_flight: float
    episode_s: float
    loop_utilisation: float | None = None
    reasons: tuple[str, ...] = ()
    warning: str = ""
    error: str = ""


def agree(expected: Expectation, runs: Sequence[RunSummary]) -> Agreement:
    """Put replications beside the expectation. At least one."""
    seconds = sum(run.window_s for run in runs)
    kept = ratio_interval([run.groups for run in runs], [run.window_s for run in runs], SURE)
    complete = (sum(run.groups for run in runs) + sum(sum(run.dropped_groups.values()) for run in runs)) / seconds
    difference = complete / expected.groups_per_s - 1 if expected.groups_per_s else 0.0
    busy = sum(run.utilisation.get("slots", 0.0) * run.window_s for run in runs) / seconds
    in_flight = busy * expected.episodes_in_flight
    ended = sum(run.episodes for run in runs) / seconds
    reasons = _reasons(expected, runs)
    off = abs(difference) > BAND and not reasons
    return Agreement(
        expected=expected,
        kept_groups_per_s=kept,
        complete_groups_per_s=complete,
        difference=difference,
        episodes_in_flight=in_flight,
        episode_s=in_flight / ended if ended else 0.0,
        loop_utilisation=_loop(runs, seconds),
        reasons=reasons,
        warning=_warning(difference) if off else "",
        error=_broken(expected, kept, sum(run.groups for run in runs) / len(runs)),
    )


def _loop(runs: Sequence[RunSummary], seconds: float) -> float | None:
    if not all("host loop" in run.utilisation for run in runs):
        return None
    return sum(run.utilisation["host loop"] * run.window_s for run in runs) / seconds


def _reasons(expected: Expectation, runs: Sequence[RunSummary]) -> tuple[str, ...]:
    found = list(expected.left_out)
    chips = sum(run.chip_total_ns for run in runs)
    for key, words in _UNKNOWN_LOSSES.items():
        if sum(run.chip_ns.get(key, 0) for run in runs) >= NOTABLE * chips:
            found.append(words)
    steps = min(run.learner_steps for run in runs)
    if steps < SETTLED_STEPS:
        found.append(f"a window of only {steps} learner steps")
    return tuple(dict.fromkeys(found))


def _warning(difference: float) -> str:
    side = "fewer" if difference < 0 else "more"
    return (
        f"{abs(difference):.0%} {side} groups were completed than expected by hand, beyond the {BAND:.0%} that need no reason, "
        "and none is known: look at the limits and at where chip time goes, and take the result with care"
    )


def _broken(expected: Expectation, kept: Interval, groups: float) -> str:
    for limit in expected.limits:
        most = allowed(limit, expected.stored_groups, groups)
        if limit.firm and kept.low > most:
            return (
                f"{kept.low * 3600:.4g} kept groups an hour or more, above the firm bound of {most * 3600:.4g} "
                f"({limit.name}): this is a bug, in the simulator or in the bound"
            )
    return ""


def allowed(limit: Limit, stored_groups: int, groups: float) -> float:
    """Kept groups a second that a limit allows in a window of `groups` groups, with what was stored before it."""
    ahead = stored_groups / groups if limit.stored and groups else 0.0
    return limit.groups_per_s * (1 + ROUNDING) * (1 + ahead)
