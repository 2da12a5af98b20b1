"""The live world: everything outside the pipeline, for one run. The counterpart of a simulated world.

It builds tokenizer, policy network, engines, learner, environments and the performers that use them, from a scenario's `[live]`
table. The pipeline itself is built by `pipeline.build`, as in a simulated run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from harness.core.errors import ConfigError
from pipeline.build import Hardware
from pipeline.environments.agents import PlainAgent, QwenAgent
from pipeline.environments.registry import resolve
from pipeline.environments.source import LiveSource
from pipeline.numerics.checkpoints import save_checkpoint
from pipeline.numerics.dispatch import Decision, Dispatcher
from pipeline.numerics.engine import InferenceEngine, programs
from pipeline.numerics.learner import Learner, needs_log_probs
from pipeline.numerics.policy import open_policy
from pipeline.numerics.tokenizers import CharTokenizer, HfTokenizer
from pipeline.numerics.weights import WeightStore
from pipeline.performers.host import host_performers
from pipeline.performers.inference import InferencePerformer
from pipeline.performers.learner import LearnerPerformer
from pipeline.performers.threads import Threads

if TYPE_CHECKING:
    from pathlib import Path

    from harness.core.perform import Performers
    from pipeline.config import PipelineConfig
    from pipeline.environments.environment import BaseTaskEnv
    from pipeline.live_config import LiveConfig


class LiveWorld:
    """Tokenizer, network, engines, learner, environments, and what performs work on them.

    Args:
        live: the scenario's `[live]` table.
        config: the pipeline's knobs.
        replicas: inference replicas.
        chips_per_replica: for the books.
        learner_chips: for the books.
        seed: of weights, sampling and tasks.
        version: of the weights that the engines begin with.

    Attributes:
        source: tasks, agents and environments.
        hardware: what the pipeline runs on.
        learner: performs training, takes snapshots.
        dispatcher: does all device work.

    Raises:
        ConfigError: something in the table cannot be.

    """

    def __init__(
        self,
        live: LiveConfig,
        config: PipelineConfig,
        *,
        replicas: int,
        chips_per_replica: int,
        learner_chips: int,
        seed: int,
        version: int = 0,
    ) -> None:
        self._live, self._seed = live, seed
        environment = resolve(live.environment.name, live.environment.options, seed=seed)
        self.tokenizer = _tokenizer(live, environment)
        self.model, params = open_policy(live.model, self.tokenizer, seed)
        agent = QwenAgent(self.tokenizer) if isinstance(self.tokenizer, HfTokenizer) else PlainAgent(self.tokenizer)
        self.source = LiveSource(environment, live, agent, seed=seed)
        slots, longest = config.slots_per_replica, live.sampling.max_context_tokens
        self._store = WeightStore(replicas)
        self._engines = [
            InferenceEngine(
                self.model, params, slots=slots, max_context_tokens=longest, chunk_steps=config.decode_chunk_steps,
                end_ids=[self.tokenizer.end_id], version=version,
            )
            for _ in range(replicas)
        ]  # fmt: skip
        self._learner = Learner(
            self.model, params, live.learner, max_tokens=longest, temperature=live.sampling.temperature, store=self._store
        )
        self.dispatcher = Dispatcher({**programs(self._engines, self._store), **self._learner.programs()})
        self.dispatcher.register("warm_up", self._warm_up)
        self.dispatcher.register("export", self._export)
        self._threads = Threads(live.environment.threads)
        self.faults, host = host_performers(self._threads)
        self.learner = LearnerPerformer(self.dispatcher, live.learner)
        inference = InferencePerformer(
            self.dispatcher, replicas=replicas, slots=slots, max_context_tokens=longest, seed=seed, version=version
        )
        self.performers: Performers = {**host, **inference.performers(), **self.learner.performers()}
        self.hardware = Hardware(
            replicas=replicas,
            chips_per_replica=chips_per_replica,
            slots=slots,
            kv_tokens=slots * longest,
            learner_chips=learner_chips,
            weights_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
            log_probs=needs_log_probs(live.learner),
        )

    def start(self) -> None:
        """Start the dispatcher and compile everything that can occur."""
        self.dispatcher.start()
        self.dispatcher.run(Decision("warm_up"))

    def stop(self) -> None:
        """End the threads."""
        self.dispatcher.stop()
        self._threads.close()

    async def warm_start(self, report: Any = None) -> dict[str, float]:
        """Supervised steps on solved tasks, where the scenario wants them; the engines then begin with these weights."""
        settings = self._live.learner
        if not settings.warm_start_steps:
            return {}
        demonstrations = self.source.demonstrations(settings.warm_start_examples)
        metrics = await self.learner.warm_start(demonstrations, seed=self._seed, report=report)
        return metrics

    def install(self, version: int) -> None:
        """Put the learner's weights on every engine, before the run begins."""
        self.dispatcher.run(Decision("learner.snapshot", {"version": version}))
        for replica in range(len(self._engines)):
            self.dispatcher.run(Decision("engine.install", {"replica": replica, "version": version}))

    def export(self, folder: Path) -> None:
        """Write the learner's weights as a Hugging Face checkpoint."""
        self.dispatcher.run(Decision("export", {"folder": str(folder)}))

    def _warm_up(self) -> None:
        for engine in self._engines:
            engine.warm_up()
        self._learner.warm_up()

    def _export(self, folder: str) -> None:
        save_checkpoint(folder, self.model, self._learner.weights())


def _tokenizer(live: LiveConfig, environment: type[BaseTaskEnv]) -> CharTokenizer | HfTokenizer:
    if live.model.checkpoint:
        return HfTokenizer(live.model.checkpoint)
    if not environment.alphabet:
        raise ConfigError(
            f"{environment.__name__} says no alphabet, so a new character-level model cannot be sized", field="live.model",
            allowed="an environment with an attribute alphabet, or a checkpoint", remedy="name one in live.model.checkpoint",
        )  # fmt: skip
    return CharTokenizer(environment.alphabet)
