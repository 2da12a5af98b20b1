"""What is checked of one run, live or simulated: always at its end, and at every event where that is asked for.

At the instant of the end: episodes and tokens (`harness.core.accounts`), lanes and roles (`harness.core.lanes`), pools, buffer
and versions (`harness.trace.ending`). When everything was cancelled and has ended: the books again, and every permit is back.
At every event: `harness.trace.online`, which names the first one that breaks a law.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from harness.core.errors import ConfigError, TraceError
from harness.core.events import NullRecorder
from harness.core.lanes import State, check_lanes
from harness.trace.ending import Ending, check_pools, check_returned
from harness.trace.online import Limits, OnlineChecks
from pipeline.build import Pipeline

if TYPE_CHECKING:
    from harness.core.events import Recorder
    from harness.scenario.schema import Scenario
    from pipeline.build import Report
    from pipeline.config import PipelineConfig

VARIABLE = "HARNESS_DEBUG_INVARIANTS"
"""Environment variable: `1` checks the laws at every event of every simulated run. A run then takes about twice as long."""


def wanted() -> bool:
    """Whether the environment asks for checks at every event.

    Raises:
        ConfigError: it says neither yes nor no.

    """
    said = os.environ.get(VARIABLE, "")
    if said not in ("", "0", "1"):
        raise ConfigError("is neither yes nor no", field=VARIABLE, value=said, allowed="0 or 1", remedy="unset it, or say 1")
    return said == "1"


def limits_of(scenario: Scenario[PipelineConfig], initial_version: int = 0) -> Limits:
    """What there is room for in a scenario."""
    config, inference = scenario.pipeline, scenario.world.inference
    external = inference.server is not None
    return Limits(
        buffer_groups=config.buffer_capacity,
        max_lag=_max_lag(config),
        episodes=config.max_inflight,
        environments=config.env_workers,
        tools=config.tool_workers,
        scoring=config.reward_workers,
        batch=None if external else config.slots_per_replica,
        kv_tokens=None if external else inference.kv_capacity_tokens,
        initial_version=initial_version,
    )


def _max_lag(config: PipelineConfig) -> int | None:
    return config.max_staleness if config.stale_policy.value != "train" else None


class RunChecks:
    """Follows one run.

    Args:
        scenario: of the run.
        recorder: that keeps its events; None where none are kept.
        at_every_event: whether to look at each of them.
        initial_version: of the weights at the start.

    Attributes:
        recorder: for the engine.

    """

    def __init__(
        self, scenario: Scenario[PipelineConfig], recorder: Recorder | None, *, at_every_event: bool, initial_version: int = 0
    ) -> None:
        self._config = scenario.pipeline
        self._pipeline: Pipeline | None = None
        self._foreign = False
        self._online: OnlineChecks | None = None
        self.recorder: Recorder = recorder or NullRecorder()
        if at_every_event:
            self._online = OnlineChecks(limits_of(scenario, initial_version), recorder, (self._instant_over,))
            self.recorder = self._online

    def built(self, pipeline: Any) -> None:
        """The pipeline that runs. One that is no `Pipeline` keeps books of its own, which are not checked."""
        self._pipeline = pipeline
        self._foreign = not isinstance(pipeline, Pipeline)

    def ended(self, report: Report) -> None:
        """The instant of the end, before anything is cancelled. Raises `TraceError`."""
        if self._foreign:
            return
        pipeline, config = self._built(), self._config
        check_lanes(pipeline.rt.lanes, 0, report.end_ns)
        t, p = report.versions
        Ending(
            pools=pipeline.pools.values(),
            buffered=len(pipeline.buffer),
            buffer_capacity=config.buffer_capacity,
            learner_version=t,
            published_version=p,
            replica_versions=[replica.version for replica in pipeline.replicas],
            lags=report.tally.lags,
            max_lag=_max_lag(config),
        ).check()
        if self._online is not None:
            self._online.finish(report.end_ns)

    def over(self) -> None:
        """Everything was cancelled and has ended: nothing was lost on the way. Raises `TraceError`."""
        if self._foreign:
            return
        pipeline = self._built()
        check_returned(pipeline.pools.values())
        pipeline.engines.balance()
        pipeline.accounts.check(pipeline.holders())
        if self._online is not None:
            self._online.left()

    def _instant_over(self) -> None:
        """Nothing stands still that could go on."""
        pipeline = self._pipeline
        if pipeline is None or self._foreign:
            return
        check_pools(pipeline.pools.values())
        roles: Any = pipeline.rt.lanes.role
        idle = roles("inference").count(State.WAIT_TASK) == len(pipeline.replicas)
        if idle and roles("rollout").count(State.GEN_QUEUE):
            raise TraceError("no request waits while every engine is idle", ("inference",))

    def _built(self) -> Pipeline:
        if self._pipeline is None:
            raise TraceError("a run that ends has been built")
        return self._pipeline
