"""Guessing game: find a number in few guesses; after each the environment says `higher` or `lower`.

::

    prompt       1-100
    agent        50
    observation  lower
    agent        25
    …

The reward is 1 for a number that was found, else 0. Halving finds any number of 1 to n in `n.bit_length()` guesses, which is
how many there are by default. A guess that is no number, or out of range, is used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from harness.core.errors import ConfigError
from pipeline.environments.environment import BaseTaskEnv, Step

if TYPE_CHECKING:
    from random import Random


class GuessingGame(BaseTaskEnv):
    """See the module.

    Options:
        largest: numbers are 1 to it. Small ranges have few tasks: one in 8 numbers is held out.
        guesses: as many as halving needs by default.

    """

    alphabet: ClassVar[str] = "0123456789-higerlow?"
    inline: ClassVar[bool] = True

    def __init__(self, task: Any, **options: Any) -> None:
        super().__init__(task, **options)
        self._left: int = task["guesses"]
        self._found = False

    @classmethod
    def make_task(cls, rng: Random, *, largest: int = 1000, guesses: int = 0) -> dict[str, int]:
        """A number to find."""
        if not isinstance(largest, int) or not 16 <= largest <= 10**9:
            raise ConfigError(
                "largest is out of range", field="live.environment.options.largest", value=largest, allowed="16 to 10^9"
            )
        return {"secret": rng.randint(1, largest), "largest": largest, "guesses": guesses or largest.bit_length()}

    @classmethod
    def demonstration(cls, task: Any, **options: Any) -> list[tuple[str, bool]]:
        """Halving."""
        low, high, secret = 1, task["largest"], task["secret"]
        said = [(f"1-{high}", False)]
        while True:
            guess = (low + high) // 2
            said.append((str(guess), True))
            if guess == secret:
                return said
            said.append(("higher" if secret > guess else "lower", False))
            low, high = (guess + 1, high) if secret > guess else (low, guess - 1)

    async def reset(self) -> str:
        """The range."""
        return f"1-{self.task['largest']}"

    async def step(self, action: str) -> Step:
        """One guess."""
        self._left -= 1
        secret: int = self.task["secret"]
        text = action.strip()
        guess = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
        self._found = guess == secret
        if self._found or not self._left:
            return Step("", done=True)
        if not 1 <= guess <= self.task["largest"]:
            return Step("?")
        return Step("higher" if secret > guess else "lower")

    async def score(self) -> float:
        """Whether it was found."""
        return float(self._found)

    async def close(self) -> None:
        """There is nothing to tear down."""
