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
from harness.costs.workload import cumulative_counts
from harness.scenario.counts import MAX_COUNT, ConstantCount, EmpiricalCount, GeometricCount, LognormalCount
from harness.scenario.schedules import Keys, Schedule, resolve, with_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.scenario.schema import Scenario

HIGHEST_PROBABILITY = 0.99
"""A scaled probability of failure is no higher: with certainty nothing would ever be trained."""

COUNTED_EXACTLY = 256
"""Measured counts up to this are spread over the whole numbers round their multiples; larger ones are rounded."""

TINY = 1e-9
"""Probability over which a law of counts steps from one number to the next."""

COUNTS = (ConstantCount, EmpiricalCount, GeometricCount, LognormalCount)


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
    ("world.checkpoint.restore", "time to load a checkpoint"),
    ("world.switch", "time to change roles on shared chips"),
    ("world.inference.compile", "time to compile"),
    ("world.preemption.replicas", "time between losses of a replica"),
    ("world.preemption.learner", "time between losses of the learner"),
    ("world.preemption.provision", "time until lost chips are replaced"),
    ("workload.arrivals.gap", "time between tasks from outside"),
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
    ("workload.success.median", "success on the median task"),
)


_TOGETHER = (("failure", "infra_failure", "hang"), ("reset_infra_failure", "reset_hang"))
"""Probabilities of one record that add up to 1 at most."""


def calibrated_inputs(scenario: Scenario[Any]) -> tuple[Input, ...]:
    """Everything in the scenario that a measurement sets and that is not zero, in the order in which people would ask."""
    return tuple(_inputs(scenario))


def _inputs(scenario: Scenario[Any]) -> Iterator[Input]:
    for tool in scenario.workload.tools:
        if _matters(tool.duration):
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
    return _matters(value) if isinstance(value, Record) else bool(value)


def _matters(law: Record) -> bool:
    return _in_units(law, 2.0) != law


def scaled(scenario: Scenario[Any], path: str, factor: float) -> Scenario[Any]:
    """The scenario with one input multiplied, and with it what schedules make of that input later.

    What was worked out from chip and model and is scaled counts as given from then on: divide chips before, not after.

    Args:
        scenario: as it is.
        path: of the input, from `calibrated_inputs`.
        factor: above 1 is slower, longer or more often.

    Raises:
        ConfigError: there is no such input, or the factor is no positive number.

    """
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError("is no factor", field=f"scale:{path}", value=factor, allowed="a number above 0")
    keys = _keys(scenario, path)
    followed = [resolve(scenario, schedule.path)[: len(keys)] == keys for schedule in scenario.schedules]
    changed: Scenario[Any] = _at(scenario, keys, factor, path, same_kind=any(followed))
    if factor == 1:
        return scenario
    world = changed.world
    given = tuple(name for name in world.derived if not f"world.{name}.".startswith(f"{path}."))
    if given != world.derived:
        changed = changed.model_copy(update={"world": world.model_copy(update={"derived": given})})
    schedules = [
        _scheduled(scenario, one, keys, factor, path) if follows else one
        for one, follows in zip(scenario.schedules, followed, strict=True)
    ]
    return changed.model_copy(update={"schedules": tuple(schedules)}) if any(followed) else changed


def _scheduled(scenario: Scenario[Any], schedule: Schedule, keys: Keys, factor: float, path: str) -> Schedule:
    """The schedule of a number of a scaled input: each of its points scaled as the number itself would be."""
    points = []
    for step, value in schedule.points:
        values = [value if one is schedule else None for one in scenario.schedules]
        node: Any = _at(with_values(scenario, values), keys, factor, path, same_kind=True)
        for key in resolve(scenario, schedule.path):
            node = node[key] if isinstance(key, int) else getattr(node, key)
        points.append((step, float(node)))
    return schedule.model_copy(update={"points": tuple(points)})


def _keys(scenario: Scenario[Any], path: str) -> Keys:
    """The keys of an input's path: names of fields, and numbers of entries where a table has several."""
    keys: list[str | int] = []
    node: Any = scenario
    for part in path.split("."):
        if isinstance(node, tuple):
            index = next((i for i, item in enumerate(node) if getattr(item, "name", None) == part), None)
            there = None if index is None else node[index]
            keys.append(-1 if index is None else index)
        else:
            there = getattr(node, part, None)
            keys.append(part)
        if there is None:
            raise ConfigError("is no input of this scenario", field=f"scale:{path}")
        node = there
    return tuple(keys)


def _at(holder: Any, keys: Keys, factor: float, path: str, *, same_kind: bool) -> Any:
    """The holder with what lies at the end of the path scaled."""
    key = keys[0]
    if isinstance(key, int):
        return (*holder[:key], _at(holder[key], keys[1:], factor, path, same_kind=same_kind), *holder[key + 1 :])
    there = getattr(holder, key)
    if len(keys) > 1:
        new = _at(there, keys[1:], factor, path, same_kind=same_kind)
    elif isinstance(there, Record):
        new = _in_units(there, factor, same_kind=same_kind)
    elif isinstance(there, float):
        new = min(there * factor, max(there, min(HIGHEST_PROBABILITY, _room(holder, key))))
    else:
        raise ConfigError("is no input of this scenario", field=f"scale:{path}")
    return holder.model_copy(update={key: new})


def _room(holder: Any, name: str) -> float:
    """Highest that a probability can be beside those with which it adds up to 1 at most."""
    others = next((set(names) - {name} for names in _TOGETHER if name in names), set())
    return 1.0 - math.fsum(getattr(holder, other, 0.0) for other in others)


def _in_units(law: Record, factor: float, *, same_kind: bool = False) -> Record:
    """A law with its unit changed: of seconds, or of a count. A law of counts may become one of another kind."""
    if factor == 1:
        return law
    if isinstance(law, ConstantCount | EmpiricalCount) and not same_kind and _largest(law) <= COUNTED_EXACTLY:
        return _spread(law, factor)
    changes = _scaled_counts(law, factor) if isinstance(law, COUNTS) else {}
    for name in law.__class__.model_fields:
        value = getattr(law, name)
        if value is None or name in changes:
            continue
        if name.endswith("bytes_per_s"):
            changes[name] = value / factor
        elif name.endswith("_s"):
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
        return {"values": tuple(min(round(value * factor), MAX_COUNT) for value in values["values"])}
    if "value" in values:
        return {"value": round(values["value"] * factor)}
    mean = values["mean"] * factor
    return {"mean": max(1.0, mean) if values.get("law") == "geometric" else mean}


def _largest(law: ConstantCount | EmpiricalCount) -> int:
    return law.value if isinstance(law, ConstantCount) else law.max


def _spread(law: ConstantCount | EmpiricalCount, factor: float) -> ConstantCount | EmpiricalCount:
    """Small whole numbers times a factor: 2 becomes 2 four times in five and 3 else for a factor of 1.1.

    Rounding would leave them as they are, and call an input harmless that was never changed. Nothing falls below 1 that was
    not.
    """
    lowest, table = (law.value, []) if isinstance(law, ConstantCount) else cumulative_counts(law)
    levels, values, passed = [0.0], [], 0.0
    for count, level in enumerate([*table, 1.0], lowest):
        target = count * factor if count < 1 else max(count * factor, 1.0)
        low = math.floor(target + TINY)
        split = level - (level - passed) * max(target - low, 0.0)
        for value, end in ((low, split), (low + 1, level)):
            if end - levels[-1] > 2 * TINY:
                values.append(value)
                levels.append(end)
        passed = level
    if set(values) == {_largest(law)}:
        return law
    pairs = [
        pair
        for value, start, end in zip(values, levels, levels[1:], strict=False)
        for pair in ((start + TINY if start else 0.0, value), (end - TINY, value))
    ]
    pairs[-1] = (1.0, values[-1])
    return EmpiricalCount(probabilities=tuple(level for level, _ in pairs), values=tuple(value for _, value in pairs))
