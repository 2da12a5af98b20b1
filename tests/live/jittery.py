"""An environment whose answers take a while that differs each time, and whose rewards are never all the same."""

from __future__ import annotations

import random

from pipeline.environments.environment import BaseTaskEnv, Step

_chance = random.Random()


class Jittery(BaseTaskEnv):
    """Two turns; the reward is the share of the letter a."""

    alphabet = "abcdefgh-"
    inline = True

    @classmethod
    def make_task(cls, rng):
        """Some letters."""
        return "".join(rng.choices("bcdefgh", k=rng.randint(2, 9)))

    async def reset(self):
        """The letters."""
        self._said = []
        await self.host.sleep(_chance.uniform(0.0, 0.01))
        return self.task

    async def step(self, action):
        """Some of what was said."""
        self._said.append(action)
        await self.host.sleep(_chance.uniform(0.0, 0.02))
        return Step(action[:3] + "-", done=len(self._said) == 2)

    async def score(self):
        """How much of it is an a."""
        said = "".join(self._said)
        return said.count("a") / max(1, len(said))
