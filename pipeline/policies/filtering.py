"""Which complete groups are worth training on.

`zero_variance`: advantages within a group are differences from its mean reward; when all rewards are equal every
advantage is zero and the group teaches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import LawError
from pipeline.policies.kinds import FilterKind

if TYPE_CHECKING:
    from collections.abc import Sequence


def keeps(rule: FilterKind, rewards: Sequence[float]) -> bool:
    """Whether a group with these member rewards is trained on.

    Raises:
        LawError: no rewards, or one that is not a number (a failed member has no reward and is not passed at all).

    """
    if not rewards:
        raise LawError("a group without rewards cannot be filtered")
    if any(reward != reward for reward in rewards):
        raise LawError(f"a reward is not a number: {list(rewards)}")
    return rule is FilterKind.NONE or min(rewards) != max(rewards)
