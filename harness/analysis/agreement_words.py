"""Expected and simulated in words: label and sentence, the same for every front end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.agreement import Agreement

WIDE = 3.0
"""A limit that is so many times wider than the narrowest is not worth a word."""

SHOWN_LIMITS = 3


def agreement_rows(found: Agreement) -> list[tuple[str, str]]:
    """Label and words."""
    expected = found.expected
    near = [limit for limit in expected.limits if limit.groups_per_s < WIDE * expected.bound_groups_per_s]
    limits = ", ".join(f"{limit.name} {per_hour(limit.groups_per_s)}" for limit in near[:SHOWN_LIMITS])
    complete, kept = found.complete_groups_per_s, found.kept_groups_per_s.mean
    dropped = f", {1 - kept / complete:.0%} of them dropped" if complete > kept else ""
    rows = [
        ("at most", f"{limits} groups an hour"),
        ("expected", f"{per_hour(expected.groups_per_s)} complete groups an hour, queues counted"),
        ("simulated", f"{per_hour(complete)} ({found.difference:+.0%}){dropped}".replace("(-0%)", "(+0%)")),
        ("an episode", f"{expected.episode_s:,.4g} s alone, {expected.loaded_episode_s:,.4g} s at full slots, without queues"),
        ("simulated", f"{found.episode_s:,.4g} s: {found.episodes_in_flight:,.4g} in flight on average (Little's law)"),
        ("a group", f"{expected.group_s:,.4g} s until its slowest member, at full slots"),
    ]
    if found.loop_utilisation is not None:
        rows.append(("event loop", f"{expected.loop_utilisation:.1%} in use expected, {found.loop_utilisation:.1%} simulated"))
    if found.reasons:
        rows.append(("left out", ", ".join(found.reasons)))
    return rows


def per_hour(per_s: float) -> str:
    """A rate that a person can hold in mind."""
    hourly = per_s * 3600
    return f"{hourly:,.0f}" if hourly >= 100 else f"{hourly:.3g}"
