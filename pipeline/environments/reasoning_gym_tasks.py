"""Verifiable tasks of reasoning-gym, one turn each. Needs the extra `tasks`.

A problem is made by its number. Each task has numbers of its own to choose from; the first whose question belongs to the split
(`held_out`) is taken, so that no question is in both.
"""

from __future__ import annotations

import functools
import importlib
import json
import string
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from harness.core.errors import ConfigError
from pipeline.environments.environment import HELD_OUT, TaskEnvironment, held_out

if TYPE_CHECKING:
    from random import Random

_FIELD = "live.environment.options"
_TRIES = 64 * HELD_OUT
_STRIDE = 1 << 20
_PROMPT = "\nGive the answer alone between <answer> and </answer>."


class ReasoningGym(TaskEnvironment):
    """See the module.

    Options:
        dataset: name of a reasoning-gym dataset, such as `leg_counting`.
        tagged: whether the answer stands between `<answer>` and `</answer>`; else the whole text is the answer.
        Any other option is one of that dataset.

    """

    alphabet: ClassVar[str] = "\n" + string.printable[:95]

    @classmethod
    def make_task(cls, rng: Random, *args: Any, dataset: str = "", tagged: bool = True, **config: Any) -> dict[str, Any]:
        """A problem by a random number; `tasks` goes by its own numbers."""
        entry: dict[str, Any] = _dataset(dataset, 0, json.dumps(config))[rng.randrange(_STRIDE)]
        return entry

    @classmethod
    def tasks(
        cls, split: str, index: int, seed: int, *, dataset: str = "", tagged: bool = True, **config: Any
    ) -> dict[str, Any]:
        """The problem with this number: question, answer, and what the scorer needs."""
        return _entry(split, index, seed, dataset, json.dumps(config, sort_keys=True))

    def prompt(self) -> str:
        """The question."""
        question: str = self.task["question"]
        return question + _PROMPT if self.options.get("tagged", True) else question

    def verify(self, answer: str) -> float:
        """The dataset's own score of the answer, 0 to 1."""
        config = {name: value for name, value in self.options.items() if name not in ("dataset", "tagged")}
        dataset = _dataset(self.options["dataset"], 0, json.dumps(config, sort_keys=True))
        found: str | None = answer.strip()
        if self.options.get("tagged", True):
            _, opened, rest = answer.rpartition("<answer>")
            found = rest.partition("</answer>")[0].strip() if opened and "</answer>" in rest else None
        return float(dataset.score_answer(answer=found, entry=self.task))


@functools.lru_cache(maxsize=256)
def _entry(split: str, index: int, seed: int, name: str, config: str) -> dict[str, Any]:
    """Members of a group ask for the same problem, and some take long to make."""
    dataset = _dataset(name, seed, config)
    start = (2 * index + (split == "eval")) * _TRIES
    for number in range(start, start + _TRIES):
        entry: dict[str, Any] = dataset[number]
        if held_out(entry["question"]) == (split == "eval"):
            return entry
    raise ConfigError(
        f"dataset {name!r} makes too few different problems to hold some out for {split}", field=_FIELD, value=config,
        remedy="widen its options",
    )  # fmt: skip


@functools.lru_cache(maxsize=32)
def _dataset(name: str, seed: int, config: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of modules that it imports
            factory = importlib.import_module("reasoning_gym.factory")  # it has no types
    except ImportError as missing:
        raise ConfigError(
            "reasoning-gym is not installed", field="live.environment.name", value="reasoning_gym",
            remedy="install the extra: uv sync --extra tasks, or pip install 'rollout-harness[tasks]'",
        ) from missing  # fmt: skip
    if name not in factory.DATASETS:
        raise ConfigError(
            "reasoning-gym has no such dataset",
            field=f"{_FIELD}.dataset",
            value=name,
            allowed=", ".join(sorted(factory.DATASETS)),
        )
    options = json.loads(config)
    try:
        return factory.create_dataset(name, seed=seed * _STRIDE, size=1 << 40, **options)
    except (TypeError, AssertionError, ValueError) as wrong:
        raise ConfigError(
            f"dataset {name!r} refuses these options: {wrong}", field=_FIELD, value=options, remedy="see its documentation"
        ) from wrong
