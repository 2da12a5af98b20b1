"""The simulated world: performers that let modelled time pass, and episodes that follow a drawn plan.

Everything an engine needs to run a pipeline in virtual time. Nothing here knows a pipeline: performers see work records, and
an episode offers what `pipeline.environments.base.EpisodeDriver` asks for.

*Inference.* A replica has one progress counter, in decode steps. A request that is prefilled at progress p and has n tokens to
make ends at p + n, so a chunk costs a look at the top of a heap and not a look at each slot. This breaks where slots advance at
different rates: speculative decoding, and prefill that is interleaved with decode. A chunk ends early only when nothing runs
any more. Its time is the step-time law's, in closed form over the growing context.

*What hangs* waits until it is cancelled; a killed worker is free at once, an abandoned one when its time is up.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from harness.core.perform import Timed
from harness.core.work import (
    Checkpoint,
    Control,
    Decode,
    EnvClose,
    EnvReset,
    Generate,
    LogProbs,
    Outcome,
    Prefill,
    Publish,
    Reward,
    Status,
    ToolCall,
    TrainStep,
    Work,
    WorkKind,
)
from harness.costs.draws import Uniforms
from harness.costs.server import SimulatedServers
from harness.costs.workload import EpisodePlan, WorkloadModel, max_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.perform import Performers
    from harness.core.runtime import Runtime
    from harness.costs.step_time import DecodeLaw, PrefillLaw, TrainLaw
    from harness.scenario.schema import Inference, Scenario

_DONE = Outcome()
_ENDS = [Outcome(status=status) for status in Status]  # a Status is its number


class SimulatedEpisode:
    """Agent and environment of one episode, following its plan."""

    __slots__ = ("_cap", "_max_context", "_reuse", "dispatch", "member", "plan", "task")

    failed = 0

    def __init__(
        self, plan: EpisodePlan, task: int, dispatch: int, member: int, cap: int, max_context: int, reuse: float
    ) -> None:
        self.plan = plan
        self.task = task
        self.dispatch = dispatch
        self.member = member
        self._cap = cap
        self._max_context = max_context
        self._reuse = reuse

    @property
    def first_tokens(self) -> int:
        """Tokens of the first prompt."""
        return self.plan.prompt_tokens

    @property
    def max_turns(self) -> int:
        """Turns of the plan."""
        return self.plan.turns

    @property
    def time_limited(self) -> bool:
        """Whether the run ends at a time limit."""
        return self.plan.time_limited

    def prompt(self, turn: int, context_tokens: int, observed_tokens: int, /) -> tuple[int, int, int, int]:
        """Cached tokens, new tokens, cap, and how many tokens the answer will have."""
        cached = int(context_tokens * self._reuse)
        response = self.plan.response_tokens[turn]
        cap = self._max_context - context_tokens - observed_tokens
        if cap > self._cap:
            cap = self._cap
        elif cap < response:
            cap = response
        return cached, context_tokens - cached + observed_tokens, cap, response

    def sample(self) -> None:
        """There is nothing to train on."""

    def act(self, turn: int, result: Any, /) -> int:
        """The planned tool."""
        return self.plan.tool[turn]

    def observe(self, turn: int, outcome: Outcome, /) -> tuple[int, bool]:
        """The planned observation; the episode is over after the plan's last turn."""
        return self.plan.observation_tokens[turn], turn + 1 >= self.plan.turns


class SimulatedSource:
    """Gives out tasks in order, and after the last one the first again as a new dispatch."""

    def __init__(self, model: WorkloadModel, make_task: Any, response_cap: int, max_context: int, prefix_reuse: float) -> None:
        self._model = model
        self._make_task = make_task
        self._cap = response_cap
        self._max_context = max_context
        self._reuse = prefix_reuse
        self._given = 0
        self._again: list[Any] = []  # tasks to be issued again, the first one last

    def next_task(self) -> Any:
        """The next task."""
        if self._again:
            return self._again.pop()
        dispatch, index = divmod(self._given, self._model.tasks)
        self._given += 1
        return self._make_task(index, dispatch)

    def state(self) -> dict[str, Any]:
        """How many tasks were given out, and which of them are to be issued again."""
        return {"given": self._given, "again": [[task.index, task.dispatch] for task in reversed(self._again)]}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Go on where `state` was taken."""
        self._given = state["given"]
        self._again = [self._make_task(index, dispatch) for index, dispatch in reversed(state["again"])]

    def issue_again(self, tasks: Sequence[Any], /) -> None:
        """Give these out first, in this order."""
        self._again.extend(reversed(tasks))

    def driver(self, task: Any, member: int, /) -> SimulatedEpisode:
        """An episode with its plan drawn."""
        plan = self._model.plan(task.index, task.dispatch, member)
        return SimulatedEpisode(plan, task.index, task.dispatch, member, self._cap, self._max_context, self._reuse)


class _ReplicaState:
    __slots__ = ("heap", "progress")

    def __init__(self) -> None:
        self.progress = 0
        self.heap: list[tuple[int, int]] = []  # (progress at which it ends, ticket)


class SimulatedInference:
    """Prefill and decode of all replicas."""

    def __init__(self, decode: DecodeLaw, prefill: PrefillLaw, replicas: int) -> None:
        self._decode = decode
        self._prefill = prefill
        self._replicas = [_ReplicaState() for _ in range(replicas)]

    def prefill(self, work: Prefill) -> tuple[int, Outcome]:
        """Let requests in: their ends become known to the counter."""
        state = self._replicas[work.entity]
        for request in work.payload[0]:
            heappush(state.heap, (state.progress + request.payload - request.tokens, request.ticket))
        return self._prefill.prefill_ns(work.tokens), _DONE

    def decode(self, work: Decode) -> tuple[int, Outcome]:
        """Run a chunk; say who ended in it. Tickets that are no longer in the batch were aborted."""
        state = self._replicas[work.entity]
        heap, progress, batch = state.heap, state.progress, work.payload
        steps = work.steps
        completed = []
        while heap and heap[0][0] <= progress + steps:
            end, ticket = heappop(heap)
            if ticket in batch:
                completed.append((ticket, end - progress))
        if len(completed) == work.batch:
            steps = completed[-1][1]
        state.progress = progress + steps
        outcome = Outcome(completed=tuple(completed), amount=steps)
        return self._decode.chunk_ns(steps, work.batch, work.kv_tokens), outcome


class SimulatedTools:
    """Tool calls, and starts of environments. A killed worker is free at once."""

    def __init__(self, model: WorkloadModel) -> None:
        self._model = model

    def call(self, work: ToolCall) -> tuple[int, Outcome]:
        """Take the planned time; a retry draws anew."""
        episode: SimulatedEpisode = work.payload
        turn, plan = work.turn, episode.plan
        if work.attempt == 0:
            return plan.tool_ns[turn], _ENDS[plan.tool_status[turn]]
        ns, status = self._model.retry(
            WorkKind.TOOL_CALL, episode.task, episode.dispatch, episode.member, turn, work.attempt, work.tool
        )
        return ns, _ENDS[status]

    def reset(self, work: EnvReset) -> tuple[int, Outcome]:
        """Take the planned time; a retry draws anew."""
        episode: SimulatedEpisode = work.payload
        if work.attempt == 0:
            return episode.plan.reset_ns, _ENDS[episode.plan.reset_status]
        ns, status = self._model.retry(WorkKind.ENV_RESET, episode.task, episode.dispatch, episode.member, 0, work.attempt)
        return ns, _ENDS[status]


class _Lingering:
    """A performer whose abandoned worker goes on until its time is up."""

    def __init__(self, model: WorkloadModel) -> None:
        self._model = model
        self._until: dict[tuple[int, int], int] = {}

    async def _spend(self, rt: Runtime, key: tuple[int, int], ns: int) -> None:
        until = rt.now() + ns
        try:
            await rt.sleep(ns)
        except rt.cancelled:
            self._until[key] = until
            raise

    async def _linger(self, rt: Runtime, key: tuple[int, int]) -> None:
        await rt.sleep(self._until.pop(key) - rt.now())


class SimulatedClose(_Lingering):
    """Teardown of environments."""

    async def __call__(self, rt: Runtime, work: EnvClose, /) -> Outcome:
        """Take the planned time."""
        await self._spend(rt, (work.entity, 0), work.payload.plan.close_ns)
        return _DONE

    async def gone(self, rt: Runtime, work: EnvClose, /) -> None:
        """Wait until the sandbox is really gone."""
        await self._linger(rt, (work.entity, 0))


class SimulatedReward(_Lingering):
    """Scores, on threads that cannot be killed."""

    async def __call__(self, rt: Runtime, work: Reward, /) -> Outcome:
        """Take the planned time; a retry draws anew."""
        episode: SimulatedEpisode = work.payload
        if work.attempt == 0:
            ns, status = episode.plan.reward_ns, episode.plan.reward_status
        else:
            ns, status = self._model.retry(WorkKind.REWARD, episode.task, episode.dispatch, episode.member, 0, work.attempt)
        await self._spend(rt, (work.entity, work.attempt), ns)
        return Outcome(status=Status(status), result=episode.plan.reward)

    async def gone(self, rt: Runtime, work: Reward, /) -> None:
        """Wait until the thread has ended."""
        await self._linger(rt, (work.entity, work.attempt))


class SimulatedLearner:
    """Passes of the learner, saves, and weights on their way."""

    def __init__(self, scenario: Scenario[Any], seed: int) -> None:
        world = scenario.world
        self._train = world.learner.train
        self._log_probs = world.learner.log_probs
        self._transfer = world.weights.transfer
        self._save = world.checkpoint.save if world.checkpoint is not None else None
        self._uniforms = Uniforms(seed)

    def _pass_ns(self, law: TrainLaw, purpose: str, work: TrainStep | LogProbs, *, last: bool) -> int:
        factor = law.factor(self._uniforms, purpose, work.entity)
        return law.pass_ns(work.samples, work.tokens, factor, last=last)

    def train(self, work: TrainStep) -> tuple[int, Outcome]:
        """Forward and backward, and the optimizer step with the last chunk."""
        return self._pass_ns(self._train, "train", work, last=bool(work.last)), _DONE

    def log_probs(self, work: LogProbs) -> tuple[int, Outcome]:
        """A forward pass."""
        assert self._log_probs is not None
        return self._pass_ns(self._log_probs, "log_probs", work, last=True), _DONE

    def publish(self, work: Publish) -> tuple[int, Outcome]:
        """Move and install a version."""
        return self._transfer.transfer_ns(work.weights_bytes), Outcome(amount=work.weights_bytes)

    def checkpoint(self, work: Checkpoint) -> tuple[int, Outcome]:
        """Save; free where the scenario says nothing of it."""
        duration_ns = self._save.transfer_ns(work.state_bytes) if self._save is not None else 0
        return duration_ns, Outcome(amount=work.state_bytes)


def _engines(inference: Inference) -> dict[type[Work], Any]:
    """The performers of what generates: the pipeline's own engine, or servers that schedule themselves."""
    if inference.server is not None:
        servers = SimulatedServers(
            inference.decode,
            inference.prefill,
            slots=inference.server.slots,
            kv_tokens=inference.kv_capacity_tokens,
            replicas=inference.replicas,
        )
        return {Generate: servers.generate, Control: servers.control}
    engines = SimulatedInference(inference.decode, inference.prefill, inference.replicas)
    return {Prefill: Timed(engines.prefill), Decode: Timed(engines.decode)}


class SimulatedWorld:
    """Everything outside the pipeline, for one replication.

    Args:
        scenario: world and workload.
        seed: of the replication.
        make_task: the pipeline's own task type, called with (index, dispatch).

    """

    def __init__(self, scenario: Scenario[Any], seed: int, make_task: Any) -> None:
        self.model = WorkloadModel.of(scenario, seed)
        inference = scenario.world.inference
        self.source = SimulatedSource(
            self.model,
            make_task,
            max_count(scenario.workload.response_tokens),
            scenario.workload.max_context_tokens,
            inference.prefix_reuse,
        )
        learner = SimulatedLearner(scenario, seed)
        tools = SimulatedTools(self.model)
        self.performers: Performers = {
            **_engines(inference),
            ToolCall: Timed(tools.call),
            EnvReset: Timed(tools.reset),
            EnvClose: SimulatedClose(self.model),
            Reward: SimulatedReward(self.model),
            TrainStep: Timed(learner.train),
            LogProbs: Timed(learner.log_probs),
            Publish: Timed(learner.publish),
            Checkpoint: Timed(learner.checkpoint),
        }
