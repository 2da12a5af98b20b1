"""Rates under outages, adjusted for how much of them a run happened to meet.

Whether a run meets three outages or six decides its throughput more than anything that is to be compared. But the share of the
time that is down is known in closed form, so the time that was really down is a control variate: replications are put on the
line of throughput against down time, and read off at the known mean.

Source: Law, "Simulation Modeling and Analysis", 5th ed. 2015, section 11.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.analysis.statistics import Controlled, Interval, controlled_ratio, ratio_interval
from harness.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.analysis.summary import RunSummary

LEAST = 5
"""Replications from which a slope is worth fitting: three degrees of freedom are left."""


def adjusted_kept(runs: Sequence[RunSummary], down_shares: Mapping[str, float]) -> Controlled | None:
    """Kept groups per chip-second, adjusted; None without outages, with too few replications or where none met an outage.

    Args:
        runs: replications of one configuration.
        down_shares: known share of the time that is down, of each outage.

    """
    if not down_shares or len(runs) < LEAST:
        return None
    chip_s = [run.chip_total_ns / NS_PER_S for run in runs]
    controls = [
        sum(run.outage_ns.get(name, 0) / NS_PER_S - share * run.window_s for name, share in down_shares.items()) for run in runs
    ]
    if len(set(controls)) < LEAST:
        return None
    return controlled_ratio([run.groups for run in runs], chip_s, controls)


def headline(runs: Sequence[RunSummary], down_shares: Mapping[str, float]) -> Interval:
    """Kept groups per chip-second, adjusted where that can be done."""
    adjusted = adjusted_kept(runs, down_shares)
    if adjusted is not None:
        return adjusted.interval
    return ratio_interval([run.groups for run in runs], [run.chip_total_ns / NS_PER_S for run in runs])
