"""Episodes of the simulated world: everything about one is drawn at once, keyed by what it is.

The plan of an episode belongs to (seed, task, dispatch, member). Nothing that a pipeline decides enters the key, so common
random numbers hold between any two configurations: switching over-provisioning, quorum or retries on leaves every shared
draw bit-equal. The plan holds durations of first attempts only; a retry draws anew with a key of its own.

**One vector.** Draw i of an episode has a fixed meaning: a head of `HEAD` numbers, then `PER_TURN` numbers a turn, so that an
episode with one turn more sees the same numbers before it.

**Tasks.** Episodes of one task are alike. With z the task's own standard normal number and e the episode's, the turn count
is the law's quantile at F(√r z + √(1-r) e): a Gaussian copula, which leaves the law of the turn count as calibrated and gives
two episodes of a task the correlation r (`task_correlation`) in normal scores. The tokens of every answer can be correlated in
the same way, with the same z (`response_correlation`). The same z lowers the task's
probability of success, so hard tasks are long. Source: Nelsen, "An Introduction to Copulas", 2006, section 2.3.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.units import NS_PER_S
from harness.core.work import Status, WorkKind
from harness.costs.draws import HANG_NS, Uniforms, duration_ns
from harness.costs.laws import SMALLEST_UNIFORM, Mixture, Sampler, normal_cdf, sampler

if TYPE_CHECKING:
    from harness.costs.laws import Floats
    from harness.scenario.environments import Environments, Tool
    from harness.scenario.schema import Scenario, World
    from harness.scenario.workload import AgentRun
    from harness.scenario.workload import Workload as WorkloadSchema

HEAD = 12
"""Numbers at the start of an episode's vector: turns, prompt, run, success, reset, its fate, close, reward, its fate, spare."""

PER_TURN = 5
"""Numbers for each turn: response, observation, tool, its duration, its fate."""

MOST_PLANS = 20_000
"""Plans that a model remembers, about 3 kB each."""

_OK = int(Status.OK)
_FAILED = int(Status.FAILED)
_INFRA = int(Status.INFRA)
_TIME_LIMIT = int(Status.TIME_LIMIT)

_NORMAL = NormalDist()
CountSampler = Callable[[float], int]


@dataclass(slots=True)
class EpisodePlan:
    """What will happen in an episode if nobody interferes. First attempts only.

    Attributes:
        turns: turns of generation; each is followed by a tool call.
        prompt_tokens: tokens of the first prompt.
        response_tokens: tokens generated in each turn.
        observation_tokens: tokens of the tool's answer after each turn.
        tool: index in the workload's table of tools, for each turn.
        tool_ns: duration of each call; `HANG_NS` for one that never returns.
        tool_status: how each call ends (`Status`).
        reset_ns: duration of the environment's start.
        reset_status: how it ends.
        close_ns: duration of its teardown.
        reward_ns: duration of scoring.
        reward_status: how it ends.
        success: whether the episode solves its task.
        reward: 1.0 for success, else 0.0.
        time_limited: the run as a whole ends at a time limit.

    """

    turns: int
    prompt_tokens: int
    response_tokens: list[int]
    observation_tokens: list[int]
    tool: list[int]
    tool_ns: list[int]
    tool_status: list[int]
    reset_ns: int
    reset_status: int
    close_ns: int
    reward_ns: int
    reward_status: int
    success: bool
    reward: float
    time_limited: bool


class WorkloadModel:
    """Draws plans for one seed.

    Args:
        workload: the scenario's `[workload]`.
        world: the scenario's `[world]`, for environments and scoring.
        seed: of the replication.

    Attributes:
        tasks: distinct tasks.
        max_turns: most turns of an episode.
        response_cap: most tokens of an answer.
        max_context: most tokens of an episode.

    """

    def __init__(self, workload: WorkloadSchema, world: World, seed: int) -> None:
        self.seed = seed
        self.tasks = workload.tasks
        self.max_turns = max_count(workload.turns)
        self._uniforms = Uniforms(seed)
        self._turns = count_sampler(workload.turns)
        self._prompt = count_sampler(workload.prompt_tokens)
        self._response = vector_sampler(workload.response_tokens)
        self._observation = vector_sampler(workload.observation_tokens)
        self._tools = [_ToolModel(tool) for tool in workload.tools]
        self._choose = np.array([*accumulate(tool.share for tool in workload.tools)][:-1])
        self._run = _RunModel(workload.agent_run) if workload.agent_run is not None else None
        self._environments = _EnvironmentModel(world.environments)
        self._reward = sampler(world.scoring.duration)
        self._reward_failure = world.scoring.failure
        self._reward_limit_ns = limit_ns(world.scoring.time_limit_s)
        self.response_cap = max_count(workload.response_tokens)
        self.max_context = workload.max_context_tokens
        self._alike = _alike(workload.task_correlation)
        self._responses_alike = _alike(workload.response_correlation)
        success = workload.success
        self._log_odds = math.log(success.median / (1 - success.median))
        self._spread = success.spread
        self._task_z: dict[int, float] = {}
        self._plans: dict[tuple[int, int, int], EpisodePlan] = {}

    @classmethod
    def of(cls, scenario: Scenario[Any], seed: int) -> WorkloadModel:
        """The model of a scenario. The last few are kept: a search runs many settings on the same seeds."""
        try:
            return _recent(scenario.workload, scenario.world, seed)
        except TypeError:  # a law that holds lists cannot be hashed
            return cls(scenario.workload, scenario.world, seed)

    def plan(self, task: int, dispatch: int, member: int) -> EpisodePlan:
        """The plan of one episode, which nobody changes: drawn when it is first asked for, and then remembered.

        Args:
            task: which task, from 0.
            dispatch: how often the task was given out before.
            member: which episode of the group.

        """
        key = (task, dispatch, member)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._draw(task, dispatch, member)
        return plan

    def _draw(self, task: int, dispatch: int, member: int) -> EpisodePlan:
        vector = self._uniforms.draw(HEAD + PER_TURN * self.max_turns, "episode", task, dispatch, member)
        u = vector[:HEAD].tolist()
        z = self._difficulty(task)
        turns = self._turns(_correlated(u[0], z, *self._alike) if self._alike else u[0])
        body = vector[HEAD : HEAD + PER_TURN * turns].reshape(turns, PER_TURN)
        prompt_tokens = min(self._prompt(u[1]), self.max_context - 1)
        response = self._response(self._correlated(body[:, 0], z))
        observation = self._observation(body[:, 1])
        turns = self._fit_context(prompt_tokens, response, observation)
        tool, tool_ns, tool_status = self._calls(body[:turns])
        time_limited = self._split_run(u[2], tool_ns, tool_status)
        success = not time_limited and u[3] < 1 / (1 + math.exp(self._spread * z - self._log_odds))
        reset_ns, reset_status = self._environments.reset(u[4], u[5])
        reward_ns, reward_status = self._score(u[7], u[8])
        return EpisodePlan(
            turns=turns,
            prompt_tokens=prompt_tokens,
            response_tokens=response,
            observation_tokens=observation,
            tool=tool,
            tool_ns=tool_ns,
            tool_status=tool_status,
            reset_ns=reset_ns,
            reset_status=reset_status,
            close_ns=duration_ns(self._environments.close, u[6]),
            reward_ns=reward_ns,
            reward_status=reward_status,
            success=success,
            reward=1.0 if success else 0.0,
            time_limited=time_limited,
        )

    def retry(
        self, kind: WorkKind, task: int, dispatch: int, member: int, turn: int, attempt: int, tool: int = 0
    ) -> tuple[int, int]:
        """Duration in nanoseconds and status of a later attempt (`attempt` ≥ 1) at a reset, a tool call or a reward."""
        u = self._uniforms.draw(2, f"retry {kind.name}", task, dispatch, member, turn, attempt).tolist()
        if kind is WorkKind.ENV_RESET:
            return self._environments.reset(u[0], u[1])
        if kind is WorkKind.TOOL_CALL:
            model = self._tools[tool]
            return model.end(int(model.sample(u[0]) * 1e9 + 0.5), u[1])
        if kind is WorkKind.REWARD:
            return self._score(u[0], u[1])
        raise ValueError(f"{kind.name} is not retried")

    def _calls(self, body: Floats) -> tuple[list[int], list[int], list[int]]:
        """Tool, nanoseconds and status of each turn's call. Only the few that do not simply end are looked at one by one."""
        tool: list[int] = self._choose.searchsorted(body[:, 2], "right").tolist()
        models = self._tools
        ns = [int(models[k].sample(v) * 1e9 + 0.5) for k, v in zip(tool, body[:, 3].tolist(), strict=True)]
        status = [_OK] * len(tool)
        for i, (k, fate) in enumerate(zip(tool, body[:, 4].tolist(), strict=True)):
            model = models[k]
            if fate < model.bad or ns[i] >= model.limit_ns:
                ns[i], status[i] = model.end(ns[i], fate)
        return tool, ns, status

    def _fit_context(self, prompt: int, response: list[int], observation: list[int]) -> int:
        """Turns that fit into the longest context. The last answer is cut at the limit, and so is the episode."""
        room = self.max_context - prompt
        for turn, (made, seen) in enumerate(zip(response, observation, strict=True)):
            if made >= room:
                response[turn] = room
                del response[turn + 1 :], observation[turn + 1 :]
                observation[turn] = 0
                return turn + 1
            room -= made + seen
            if room <= 0:
                observation[turn] = room + seen
                del response[turn + 1 :], observation[turn + 1 :]
                return turn + 1
        return len(response)

    def _score(self, duration: float, fate: float) -> tuple[int, int]:
        """Nanoseconds and status of scoring."""
        ns = duration_ns(self._reward, duration)
        if ns >= self._reward_limit_ns:
            return self._reward_limit_ns, _TIME_LIMIT
        return ns, _FAILED if fate < self._reward_failure else _OK

    def _difficulty(self, task: int) -> float:
        z = self._task_z.get(task)
        if z is None:
            u = float(self._uniforms.draw(1, "task", task)[0])
            z = self._task_z[task] = _NORMAL.inv_cdf(u or SMALLEST_UNIFORM)
        return z

    def _correlated(self, u: Floats, z: float) -> Floats:
        """Uniforms of an episode's answers, made alike within the task."""
        alike = self._responses_alike
        return np.array([_correlated(own, z, *alike) for own in u.tolist()]) if alike else u

    def _split_run(self, u: float, tool_ns: list[int], tool_status: list[int]) -> bool:
        """With `agent_run`, replace the calls' own durations by their parts of a whole run. Whether it was cut at a limit."""
        if self._run is None:
            return False
        total_ns, time_limited = self._run.draw(u)
        weights = [0 if ns == HANG_NS else ns for ns in tool_ns]
        whole = sum(weights)
        if whole:
            scale = total_ns / whole
            tool_ns[:] = [HANG_NS if ns == HANG_NS else int(ns * scale) for ns in tool_ns]
        if time_limited and tool_status[-1] == _OK:
            tool_status[-1] = _TIME_LIMIT
        return time_limited


def _alike(correlation: float) -> tuple[float, float] | None:
    """Weights of the task's number and of the episode's own; None where they have nothing in common."""
    return (math.sqrt(correlation), math.sqrt(1 - correlation)) if correlation else None


def _correlated(u: float, z: float, shared: float, own: float) -> float:
    """A uniform that goes with the task's number z: F(shared z + own F⁻¹(u))."""
    return min(normal_cdf(shared * z + own * _NORMAL.inv_cdf(u or SMALLEST_UNIFORM)), 1 - 2.0**-53)


def forget_plans() -> None:
    """Forget all models, so that the next simulation draws its plans anew: for measurements of speed."""
    _recent.cache_clear()


@lru_cache(maxsize=4)
def _recent(workload: WorkloadSchema, world: World, seed: int) -> WorkloadModel:
    return WorkloadModel(workload, world, seed)


class _ToolModel:
    """Durations and fates of one kind of call."""

    __slots__ = ("_failed", "_infra", "bad", "limit_ns", "sample")

    def __init__(self, tool: Tool) -> None:
        self.sample = sampler(tool.duration)
        self.limit_ns = limit_ns(tool.time_limit_s)
        self._failed = tool.failure
        self._infra = tool.failure + tool.infra_failure
        self.bad = self._infra + tool.hang

    def end(self, ns: int, fate: float) -> tuple[int, int]:
        """Nanoseconds and status of a call that was drawn `ns` long. A failed call takes the time of a good one."""
        if ns >= self.limit_ns:
            return self.limit_ns, _TIME_LIMIT
        if fate >= self.bad:
            return ns, _OK
        if fate < self._failed:
            return ns, _FAILED
        if fate < self._infra:
            return ns, _INFRA
        return HANG_NS, _OK


class _RunModel:
    """Time of whole agent runs."""

    __slots__ = ("_limits", "_sample", "_share")

    def __init__(self, run: AgentRun) -> None:
        self._sample = sampler(run.duration)
        self._limits = {atom.at_s for atom in run.duration.atoms} if isinstance(run.duration, Mixture) else set()
        self._share = run.tool_share

    def draw(self, u: float) -> tuple[int, bool]:
        """Nanoseconds outside the model, and whether the run ends at a time limit."""
        seconds = self._sample(u)
        return int(seconds * self._share * 1e9 + 0.5), seconds in self._limits


class _EnvironmentModel:
    """Start and stop of environments."""

    __slots__ = ("_bad", "_infra", "_reset", "close")

    def __init__(self, environments: Environments) -> None:
        self._reset = sampler(environments.reset)
        self._infra = environments.reset_infra_failure
        self._bad = environments.reset_infra_failure + environments.reset_hang
        self.close: Sampler = sampler(environments.close)

    def reset(self, duration: float, fate: float) -> tuple[int, int]:
        """Nanoseconds and status of a start."""
        ns = duration_ns(self._reset, duration)
        if fate >= self._bad:
            return ns, _OK
        return (ns, _INFRA) if fate < self._infra else (HANG_NS, _OK)


def limit_ns(limit_s: float | None) -> int:
    """A time limit in nanoseconds; none is beyond any duration but a hang's."""
    return HANG_NS if limit_s is None else min(round(limit_s * NS_PER_S), HANG_NS)


def max_count(law: Any) -> int:
    """Largest number that a law of counts can give."""
    return int(law.value if law.law == "constant" else law.max)


def count_sampler(law: Any) -> CountSampler:
    """Inverse distribution function of a law of counts: [0, 1) to an integer, increasing.

    A count is found by bisection in the table of its cumulative probabilities, which is exact, and three times as fast as
    inverting the continuous law and rounding.
    """
    if law.law == "constant":
        value: int = law.value
        return lambda _u: value
    lowest, table = cumulative_counts(law)
    return lambda u: lowest + bisect_right(table, u)


def vector_sampler(law: Any) -> Callable[[Floats], list[int]]:
    """`count_sampler` of many numbers at once."""
    if law.law == "constant":
        value: int = law.value
        return lambda u: [value] * len(u)
    lowest, table = cumulative_counts(law)
    levels = np.array(table)

    def sample(u: Floats) -> list[int]:
        found: list[int] = (levels.searchsorted(u, "right") + lowest).tolist()
        return found

    return sample


@lru_cache(maxsize=64)
def cumulative_counts(law: Any) -> tuple[int, list[float]]:
    """Smallest count, and P(N <= n) for every n from it to one below the largest."""
    if law.law == "geometric":
        stay = 1 - 1 / law.mean
        return 1, [1 - stay**n for n in range(1, law.max)]
    if law.law == "empirical":
        levels, values = np.array(law.probabilities), np.array(law.values, float)
        below_half = np.interp(np.arange(law.values[0], law.max) + 0.5, values, levels)  # halves: never on a flat stretch
        return law.values[0], below_half.tolist()
    variance = math.log1p(law.cv**2)
    normal = NormalDist(math.log(law.mean) - variance / 2, math.sqrt(variance))
    below = [normal.cdf(math.log(n + 0.5)) for n in range(law.min, law.max)]
    return law.min, list(accumulate(below, max))  # never falling, whatever the last bit of erfc does
