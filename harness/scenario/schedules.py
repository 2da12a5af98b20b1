"""Numbers of a scenario that change while the learner learns: answers that grow longer, tasks that become easy.

A schedule names one number by its path and says what it is from which learner step on. Before the first point the scenario's
own value holds, after the last one that point's. An episode meets the values of the version that is published when it starts,
a pass of the learner, a save or a publish those of its own step. Draws are keyed as ever, so two schedules are compared on the
same luck.

Whatever can be said of a number is checked at load for every point: the scenario with the value put in is a scenario.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from harness.core.errors import ConfigError
from harness.costs.laws import Record
from harness.scenario.explain import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo

    from harness.scenario.schema import Scenario

Keys = tuple[str | int, ...]
RecordT = TypeVar("RecordT", bound=BaseModel)

DRIFTS = (
    "workload",
    "world.environments",
    "world.scoring",
    "world.learner.train",
    "world.learner.log_probs",
    "world.weights.transfer",
    "world.checkpoint.save",
)
"""Tables whose numbers may change during a run: what episodes, passes, saves and publishes are like."""

FIXED = (
    "workload.tasks",
    "workload.arrivals",
    "workload.max_context_tokens",
    "world.environments.starts_at_once",
    "world.environments.start_queue",
    "world.environments.refuse_s",
    "world.environments.slowdown_per_start",
    "world.weights.transfer.sender_bytes_per_s",
)
"""Numbers in them that may not: a provider has one queue, whatever the learner's step."""

FIXED_OF_TOOLS = ("rate_per_s", "burst", "refuse_s", "price_usd")
"""The same, of a tool."""


class Schedule(Record):
    """One number as a function of the learner's step."""

    path: str = Field(
        min_length=1, description="The number, as --set names it: workload.response_tokens.mean, workload.tools.search.failure."
    )
    points: tuple[Annotated[tuple[int, float], Field(strict=False)], ...] = Field(
        strict=False, min_length=1, description="[learner step, value] pairs, steps rising from 0 or later."
    )
    between: Literal["step", "linear"] = Field(
        default="step", description="Between two points: the earlier one's value, or a straight line."
    )
    note: str = Field(default="", description="What a reader should know: source, assumption.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        steps = [step for step, _ in self.points]
        if steps[0] < 0 or any(a >= b for a, b in pairwise(steps)):
            raise ValueError("the steps of the points must rise, from 0 or later")
        return self

    def value(self, step: int) -> float | None:
        """The number at a step; None before the first point, where the scenario's own holds."""
        i = bisect_right(self.points, step, key=lambda point: point[0]) - 1
        if i < 0:
            return None
        if self.between == "step" or i == len(self.points) - 1:
            return self.points[i][1]
        (s0, v0), (s1, v1) = self.points[i], self.points[i + 1]
        return v0 + (v1 - v0) * (step - s0) / (s1 - s0)


def at(scenario: Scenario[Any], step: int) -> Scenario[Any]:
    """The scenario as it is at a learner step, without schedules."""
    return with_values(scenario, values_at(scenario, step))


def values_at(scenario: Scenario[Any], step: int) -> tuple[float | None, ...]:
    """The value of each schedule at a step."""
    return tuple(schedule.value(step) for schedule in scenario.schedules)


def with_values(scenario: Scenario[Any], values: Sequence[float | None]) -> Scenario[Any]:
    """The scenario with these values in the place of its schedules. Raises what its records raise."""
    parts: dict[str, Any] = {"world": scenario.world, "workload": scenario.workload, "schedules": ()}
    for schedule, value in zip(scenario.schedules, values, strict=True):
        if value is not None:
            table, *keys = resolve(scenario, schedule.path)
            parts[str(table)] = _put(parts[str(table)], tuple(keys), value)
    changed = scenario.model_copy(update=parts)
    changed.check()
    return changed


def check_schedules(scenario: Scenario[Any]) -> None:
    """Try every point of every schedule, alone and then together with the others.

    Raises:
        ConfigError: names the schedule's path, the point, and what is wrong with the scenario there.

    """
    schedules = scenario.schedules
    paths = [schedule.path for schedule in schedules]
    for i, schedule in enumerate(schedules):
        field = f"schedules.{i}"
        keys = resolve(scenario, schedule.path, f"{field}.path")
        if any(resolve(scenario, other) == keys for other in paths[:i]):
            raise ConfigError(
                "has a schedule already", field=f"{field}.path", value=schedule.path, remedy="put its points into one schedule"
            )
        for j, (step, value) in enumerate(schedule.points):
            if value != round(value) and _is_whole(scenario, keys):
                raise ConfigError(
                    "is not a whole number", field=f"{field}.points.{j}", value=f"{schedule.path} = {value:g} at step {step}",
                    allowed="a whole number at each point; a line between them is rounded", remedy="round it",
                )  # fmt: skip
            alone: list[float | None] = [None] * len(schedules)
            alone[i] = value
            _try(scenario, alone, f"{field}.points.{j}", f"{schedule.path} = {value:g} at step {step}")
    for step in sorted({step for schedule in schedules for step, _ in schedule.points}) if len(schedules) > 1 else ():
        values = values_at(scenario, step)
        said = ", ".join(f"{path} = {value:g}" for path, value in zip(paths, values, strict=True) if value is not None)
        _try(scenario, values, "schedules", f"{said} at step {step}")


def _try(scenario: Scenario[Any], values: Sequence[float | None], field: str, said: str) -> None:
    try:
        with_values(scenario, values)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        context = detail.get("ctx", {})
        limits = " and ".join(f"{word} {context[key]:g}" for key, word in LIMITS.items() if key in context)
        problem = detail["msg"].removeprefix("Value error, ")
        raise ConfigError(
            "is out of range" if limits else f"makes a scenario that is refused: {problem[0].lower()}{problem[1:]}",
            field=field, value=said, allowed=limits or "values that the field itself takes", remedy="change this point",
        ) from None  # fmt: skip
    except ConfigError as error:
        raise ConfigError(
            f"makes a scenario that is refused: {error.field} {error.problem}", field=field, value=said,
            allowed=error.allowed, remedy=error.remedy,
        ) from None  # fmt: skip


def resolve(scenario: Scenario[Any], path: str, field: str = "schedules") -> Keys:
    """The keys of a path: names of fields, and numbers of entries where a table has several.

    Raises:
        ConfigError: there is no such number, or it cannot change during a run.

    """
    keys: list[str | int] = []
    node: Any = scenario
    for part in path.split("."):
        choices = dict(_children(node))
        key: str | int = int(part) if part.isdigit() else part
        if isinstance(node, tuple) and not part.isdigit():
            key = next((i for i, one in enumerate(node) if getattr(one, "name", None) == part), part)
        if key not in choices:
            names = [str(getattr(one, "name", i)) if isinstance(node, tuple) else str(i) for i, one in choices.items()]
            raise ConfigError(
                f"names no number: there is no {part!r} in {'.'.join(map(str, keys)) or 'a scenario'}", field=field, value=path,
                allowed=", ".join(names) or "a path that ends there", remedy="name a number of the world or the workload",
            )  # fmt: skip
        keys.append(key)
        node = choices[key]
    number = isinstance(node, int | float) and not isinstance(node, bool)
    if not number and not (node is None and _takes_number(scenario, keys)):
        raise ConfigError(
            "is no number", field=field, value=path, allowed="a number of the world or the workload",
            remedy="name one number: a field of a law, not the law",
        )  # fmt: skip
    _check_drifts(tuple(keys), path, field)
    return tuple(keys)


def _children(node: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, BaseModel):
        for name in type(node).model_fields:
            yield name, getattr(node, name)
    elif isinstance(node, tuple):
        yield from enumerate(node)


def _field(scenario: Scenario[Any], keys: Sequence[str | int]) -> FieldInfo | None:
    """The field of a record at the end of a path; None for an entry of a list."""
    owner: Any = scenario
    for key in keys[:-1]:
        owner = owner[key] if isinstance(key, int) else getattr(owner, key)
    return type(owner).model_fields[str(keys[-1])] if isinstance(owner, BaseModel) else None


def _takes_number(scenario: Scenario[Any], keys: Sequence[str | int]) -> bool:
    """Whether an absent field would be a number."""
    field = _field(scenario, keys)
    return field is not None and field.annotation in (float | None, int | None)


def _is_whole(scenario: Scenario[Any], keys: Sequence[str | int]) -> bool:
    """Whether a field takes whole numbers only."""
    field = _field(scenario, keys)
    return field is not None and field.annotation is int


def _check_drifts(keys: Keys, path: str, field: str) -> None:
    dotted = ".".join(map(str, keys)) + "."
    tool = keys[:2] == ("workload", "tools") and keys[-1] in FIXED_OF_TOOLS
    within = any(dotted.startswith(f"{table}.") for table in DRIFTS)
    if tool or not within or any(dotted.startswith(f"{fixed}.") for fixed in FIXED):
        raise ConfigError(
            "stays as it is for a whole run", field=field, value=path,
            allowed=f"a number of {', '.join(DRIFTS)}, but for {', '.join((*FIXED, *FIXED_OF_TOOLS))}",
            remedy="compare two scenarios instead",
        )  # fmt: skip


def _put(node: Any, keys: Keys, value: float) -> Any:
    """The record with one number changed, checked anew at every level: what it adds up to may be refused."""
    key = keys[0]
    if isinstance(key, int):
        return (*node[:key], _put(node[key], keys[1:], value), *node[key + 1 :])
    old = getattr(node, key)
    if len(keys) > 1:
        new: Any = _put(old, keys[1:], value)
    else:
        new = round(value) if type(node).model_fields[key].annotation is int else value
    return _checked(node, {key: new})


def _checked(node: RecordT, changes: Mapping[str, Any]) -> RecordT:
    """A record of the same type with some fields changed, validated. A world is not: it may have worked things out at load."""
    if type(node).__name__ == "World":
        return node.model_copy(update=dict(changes))
    return type(node).model_validate({name: getattr(node, name) for name in type(node).model_fields} | dict(changes))
