"""What a scenario assumes of its world: every law or number that a measurement sets, and the scenario with one of them off.

A prediction is as good as its inputs, and a law fitted to a few hundred calls is off by some percent whatever is done. So an
answer is asked again with each input ten percent up and down. To scale a law is to change its unit: every quantity in seconds
by the factor, the logarithmic mean by its logarithm, caps and atoms too; its shape and its probabilities stay. A rate is
divided, so that a factor above 1 always means slower, longer or more often. Draws are keyed, not sequential: what is not scaled
meets the same luck as before, and comparisons stay paired.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.errors import ConfigError
from harness.costs.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.scenario.schema import Scenario

HIGHEST_PROBABILITY = 0.99
"""A scaled probability of failure is no higher: with certainty nothing would ever be trained."""


@dataclass(frozen=True, slots=True)
class Input:
    """One thing that is assumed.

    Attributes:
        path: of it in the scenario; tools by name (`workload.tools.browse.duration`).
        doc: in words.

    """

    path: str
    doc: str


_TIMES = (
    ("world.environments.reset", "time to start an environment"),
    ("world.environments.close", "time to tear an environment down"),
    ("world.scoring.duration", "time to score an episode"),
    ("workload.agent_run.duration", "time of a whole agent run"),
    ("world.inference.decode", "time of a decode step"),
    ("world.inference.prefill", "time of a prefill"),
    ("world.learner.train", "time of a training pass"),
    ("world.learner.log_probs", "time of a log-probability pass"),
    ("world.weights.transfer", "time to move the weights"),
    ("world.checkpoint.save", "time of a checkpoint"),
)
"""Laws of times that a scenario has once."""

_COUNTS = (
    ("workload.turns", "turns of an episode"),
    ("workload.prompt_tokens", "tokens of a prompt"),
    ("workload.response_tokens", "tokens of a response"),
    ("workload.observation_tokens", "tokens of a tool's answer"),
)

_CHANCES = (
    ("world.environments.reset_infra_failure", "failures of starts"),
    ("world.environments.reset_hang", "hangs of starts"),
    ("world.scoring.failure", "failures of scoring"),
)


def calibrated_inputs(scenario: Scenario[Any]) -> tuple[Input, ...]:
    """Everything in the scenario that a measurement sets and that is not zero, in the order in which people would ask."""
    return tuple(_inputs(scenario))


def _inputs(scenario: Scenario[Any]) -> Iterator[Input]:
    for tool in scenario.workload.tools:
        if _in_units(tool.duration, 2.0) != tool.duration:
            yield Input(f"workload.tools.{tool.name}.duration", f"time of a call of {tool.name}")
    for path, doc in (*_TIMES, *_COUNTS):
        if _has(scenario, path):
            yield Input(path, doc)
    for outage in scenario.world.outages:
        yield Input(f"world.outages.{outage.name}.down", f"length of an outage of {outage.name}")
        yield Input(f"world.outages.{outage.name}.up", f"time between outages of {outage.name}")
    for path, doc in _CHANCES:
        if _has(scenario, path):
            yield Input(path, doc)
    for tool in scenario.workload.tools:
        for name, doc in (("failure", "failures"), ("infra_failure", "infrastructure failures"), ("hang", "hangs")):
            if getattr(tool, name):
                yield Input(f"workload.tools.{tool.name}.{name}", f"{doc} of {tool.name}")


def _has(scenario: Scenario[Any], path: str) -> bool:
    value: Any = scenario
    for part in path.split("."):
        value = getattr(value, part, None)
    return value is not None and value != 0 and not (isinstance(value, Record) and _in_units(value, 2.0) == value)


def scaled(scenario: Scenario[Any], path: str, factor: float) -> Scenario[Any]:
    """The scenario with one input multiplied.

    Args:
        scenario: as it is.
        path: of the input, from `calibrated_inputs`.
        factor: above 1 is slower, longer or more often.

    Raises:
        ConfigError: there is no such input, or the factor is no positive number.

    """
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError("is no factor", field=f"scale:{path}", value=factor, allowed="a number above 0")
    changed: Scenario[Any] = _at(scenario, path.split("."), factor, path)
    return changed


def _at(holder: Any, parts: list[str], factor: float, path: str) -> Any:
    """The holder with what lies at the end of the path scaled."""
    if isinstance(holder, tuple):
        index = next((i for i, item in enumerate(holder) if getattr(item, "name", None) == parts[0]), None)
        if index is None:
            raise ConfigError("is no input of this scenario", field=f"scale:{path}")
        return (*holder[:index], _at(holder[index], parts[1:], factor, path), *holder[index + 1 :])
    there = getattr(holder, parts[0], None)
    if there is None:
        raise ConfigError("is no input of this scenario", field=f"scale:{path}")
    if len(parts) > 1:
        new = _at(there, parts[1:], factor, path)
    elif isinstance(there, Record):
        new = _in_units(there, factor)
    elif isinstance(there, float):
        new = min(there * factor, max(there, HIGHEST_PROBABILITY))
    else:
        raise ConfigError("is no input of this scenario", field=f"scale:{path}")
    return holder.model_copy(update={parts[0]: new})


def _in_units(law: Record, factor: float) -> Record:
    """A law with its unit changed: of seconds, or of a count."""
    if factor == 1:
        return law
    counts = {"mean", "value", "values"} & law.__class__.model_fields.keys()
    changes = _scaled_counts(law, factor) if counts else {}
    for name in law.__class__.model_fields:
        value = getattr(law, name)
        if value is None or name in changes:
            continue
        if name == "bytes_per_s":
            changes[name] = value / factor
        elif name.endswith("_s") and not name.endswith("bytes_per_s"):
            changes[name] = tuple(x * factor for x in value) if isinstance(value, tuple) else value * factor
        elif name == "mu":
            changes[name] = value + math.log(factor)
        elif isinstance(value, Record):
            changes[name] = _in_units(value, factor)
        elif isinstance(value, tuple) and value and isinstance(value[0], Record):
            changes[name] = tuple(_in_units(item, factor) for item in value)
    return law.__class__.model_validate({**dict(law), **changes})


def _scaled_counts(law: Record, factor: float) -> dict[str, Any]:
    """A law of whole numbers: its mean, never below what it allows; its caps stay, for they are limits and not measurements."""
    values = dict(law)
    if "values" in values:
        return {"values": tuple(round(value * factor) for value in values["values"])}
    if "value" in values:
        return {"value": round(values["value"] * factor)}
    mean = values["mean"] * factor
    return {"mean": max(1.0, mean) if values.get("law") == "geometric" else mean}
