"""Supervisor: the root actor. It opens the nursery in which everything runs, and says who failed, or who waits on what.

A failed episode never comes here: it is a recorded outcome. An actor that fails ends the run, as an `ActorError` with the
actor's name and the time; so does one that is cancelled alone, because nothing goes on without it. A run past its limit is a
stall, and names who waits on what and for how long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import ActorCancelled, ActorError, HarnessError
from harness.core.lanes import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from harness.core.lanes import Lane
    from harness.core.runtime import CancelScope, Runtime


async def supervise(
    rt: Runtime, name: str, actor: Callable[..., Awaitable[Any]], *args: Any, scopes: dict[str, CancelScope] | None = None
) -> None:
    """Run an actor; its failure carries its name.

    Args:
        rt: the runtime.
        name: of the actor, for people.
        actor: what runs.
        args: of the actor.
        scopes: where the actor's own cancel scope stands under its name while it runs.

    Raises:
        ActorError: it failed, or was cancelled by its own scope.

    """
    with rt.cancel_scope() as scope:
        if scopes is not None:
            scopes[name] = scope
        try:
            await actor(*args)
        except HarnessError:
            raise
        except Exception as failure:
            cause = alone(failure)
            if isinstance(cause, HarnessError):
                raise cause from failure
            raise ActorError(name, rt.now(), cause) from cause
        finally:
            if scopes is not None and scopes.get(name) is scope:
                del scopes[name]
    if scope.cancelled_caught:
        raise ActorError(name, rt.now(), ActorCancelled("it was cancelled alone, and nothing goes on without it"))


def alone(failure: Exception) -> Exception:
    """What a group of failures is about: its only one, or the first of several that say the same; else the group."""
    while isinstance(failure, ExceptionGroup):
        if len({(type(one), str(one)) for one in failure.exceptions}) > 1:
            break
        failure = failure.exceptions[0]
    return failure


_NEEDS_TASKS = "rollout"
"""The role whose lanes in `NO_WORK` wait for a task that the source does not have; of other roles they are merely unused."""


def stall_report(rt: Runtime, most: int = 8) -> str:
    """Who waits on what, and for how long: the longest waits by role and state."""
    now = rt.now()
    waits: dict[tuple[str, State], list[Lane]] = {}
    for lane in rt.lanes.lanes:
        if lane.state is not State.NO_WORK or lane.role == _NEEDS_TASKS:
            waits.setdefault((lane.role, lane.state), []).append(lane)
    oldest = {key: min(lanes, key=lambda lane: lane.since_ns) for key, lanes in waits.items()}
    lines = []
    for (role, state), lane in sorted(oldest.items(), key=lambda item: item[1].since_ns)[:most]:
        count = len(waits[role, state])
        lines.append(f"{count} {role} lane(s) in {state.name.lower()}, {lane.name} for {(now - lane.since_ns) / 1e9:.1f} s")
    return "; ".join(lines)
