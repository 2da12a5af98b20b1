"""Advantages from the rewards of a group.

Samples of one task are compared with each other, so that no value network is needed (GRPO, arXiv 2402.03300, section 4.1.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

STD_FLOOR = 1e-6
"""Added to the standard deviation, so that rewards that differ by rounding alone give advantages near zero."""


def group_advantages(rewards: Sequence[float], *, normalise_std: bool) -> NDArray[np.float32]:
    """Reward less the group's mean, divided by the group's (population) standard deviation if asked for.

    Without the division: Dr. GRPO (arXiv 2503.20783), which does not weigh tasks by how nearly all their samples agree.

    Args:
        rewards: (G,) of one group's members, however many it has.
        normalise_std: whether to divide.

    Returns:
        (G,) advantages. Equal rewards give exactly 0: rounding in the mean is not divided by itself.

    """
    values = np.asarray(rewards, np.float64)
    if values.size == 0 or values.min() == values.max():
        return np.zeros(values.shape, np.float32)
    centred = values - values.mean()
    if normalise_std:
        centred = centred / (values.std() + STD_FLOOR)
    advantages: NDArray[np.float32] = centred.astype(np.float32)
    return advantages
