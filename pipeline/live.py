"""The live world: everything outside the pipeline, for one run. The counterpart of a simulated world.

It builds tokenizer, policy network, engines, learner, environments and the performers that use them, from a scenario's `[live]`
table. The pipeline itself is built by `pipeline.build`, as in a simulated run.
"""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from harness.core.errors import ConfigError
from harness.core.work import Publish
from pipeline.build import Hardware
from pipeline.environments.agents import PlainAgent, QwenAgent
from pipeline.environments.registry import resolve
from pipeline.environments.source import LiveSource
from pipeline.numerics.checkpoints import save_checkpoint
from pipeline.numerics.dispatch import Decision, Dispatcher
from pipeline.numerics.engine import InferenceEngine, programs
from pipeline.numerics.learner import Learner, needs_log_probs
from pipeline.numerics.mesh import make_layout
from pipeline.numerics.policy import open_policy
from pipeline.numerics.saves import Saver
from pipeline.numerics.tokenizers import CharTokenizer, HfTokenizer
from pipeline.numerics.weights import WeightStore
from pipeline.performers.device import on_device
from pipeline.performers.host import host_performers
from pipeline.performers.inference import InferencePerformer
from pipeline.performers.learner import LearnerPerformer
from pipeline.performers.openai import external_performers
from pipeline.performers.outside import OutsideWeights
from pipeline.performers.saves import SavePerformer
from pipeline.performers.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.core.perform import Performers
    from pipeline.config import PipelineConfig
    from pipeline.environments.environment import BaseTaskEnv
    from pipeline.live_config import LiveConfig
    from pipeline.numerics.mesh import Layout
    from pipeline.numerics.model import Parameters
    from pipeline.numerics.processes import Joined


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
        joined: the processes, where the run has several.
        weights_folder: where servers outside find new weights; needed with `live.server` alone.

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
        joined: Joined | None = None,
        weights_folder: Path | None = None,
    ) -> None:
        _check_devices()
        self._live, self._seed, self._version = live, seed, version
        self._compiling: Callable[[str, int, int], object] = lambda what, done, of: None
        self._stopping = False
        self.last_digest = ""
        environment = resolve(live.environment.name, live.environment.options, seed=seed)
        self.tokenizer = _tokenizer(live, environment)
        self.model, params = open_policy(live.model, self.tokenizer, seed)
        agent = QwenAgent(self.tokenizer) if isinstance(self.tokenizer, HfTokenizer) else PlainAgent(self.tokenizer)
        self.source = LiveSource(environment, live, agent, seed=seed)
        if live.learner.warm_start_steps:
            self.source.demonstrations(1)  # what is wrong with them is said before anything is compiled
        self._outside = bool(live.server.urls)
        layout = make_layout(live.mesh, self.model, replicas)
        self._store = WeightStore(1 if self._outside else replicas)
        self._engines = [] if self._outside else self._make_engines(config, params, replicas, layout)
        self._learner = Learner(
            self.model, params, live.learner, max_tokens=live.sampling.max_context_tokens,
            temperature=live.sampling.temperature, store=self._store, placement=layout.learner if layout else None,
        )  # fmt: skip
        self._joined = joined
        self.dispatcher = self._make_dispatcher(joined)
        self.learner = LearnerPerformer(self.dispatcher, live.learner)
        self._threads = Threads(live.environment.threads, live.environment.spare_threads)
        self._host, host = host_performers(self._threads)
        self.performers: Performers = {
            **host, **self.learner.performers(), **self._make_inference(config, replicas, weights_folder)
        }  # fmt: skip
        slots, longest = config.slots_per_replica, live.sampling.max_context_tokens
        self.hardware = Hardware(
            replicas=replicas,
            chips_per_replica=chips_per_replica,
            slots=slots,
            kv_tokens=slots * longest,
            learner_chips=learner_chips,
            weights_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
            log_probs=needs_log_probs(live.learner),
            external=self._outside,
        )

    def _make_engines(
        self, config: PipelineConfig, params: Parameters, replicas: int, layout: Layout | None
    ) -> list[InferenceEngine]:
        return [
            InferenceEngine(
                self.model, params, slots=config.slots_per_replica, max_context_tokens=self._live.sampling.max_context_tokens,
                chunk_steps=config.decode_chunk_steps, end_ids=[self.tokenizer.end_id], version=self._version,
                shardings=layout.engines[number] if layout else None,
            )
            for number in range(replicas)
        ]  # fmt: skip

    def _make_dispatcher(self, joined: Joined | None) -> Dispatcher:
        own: dict[str, Callable[..., Any]] = {
            "warm_up": self._warm_up, "export": self._export, "export_version": self._export_version, "digest": self._digest,
        }  # fmt: skip
        everything = {**programs(self._engines, self._store), **self._learner.programs(), **own}
        if joined is None:
            return Dispatcher(everything)
        everything["learner.state"] = self._whole_state
        return Dispatcher(everything, joined.leader.tell) if joined.leader is not None else Dispatcher(everything)

    def _make_inference(self, config: PipelineConfig, replicas: int, weights_folder: Path | None) -> Performers:
        if not self._outside:
            return InferencePerformer(
                self.dispatcher, replicas=replicas, slots=config.slots_per_replica,
                max_context_tokens=self._live.sampling.max_context_tokens, seed=self._seed, version=self._version,
            ).performers()  # fmt: skip
        if weights_folder is None:
            raise ConfigError(
                "servers outside read new weights from a folder", field="--out", allowed="a folder that they see as well",
                remedy="name one with --out",
            )  # fmt: skip
        outside = external_performers(
            self._live.server, replicas=replicas, seed=self._seed, stop_tokens=(self.tokenizer.end_id,),
            vocab_size=self.model.vocab_size,
        )  # fmt: skip
        return outside | {Publish: OutsideWeights(self.dispatcher, weights_folder, outside[Publish])}

    def start(self, compiling: Callable[[str, int, int], object] = lambda what, done, of: None) -> None:
        """Start the dispatcher and compile everything that can occur.

        `compiling` is told what is compiled next, and how many programs are done of how many; on the dispatcher's thread.
        """
        self._compiling = compiling
        self.dispatcher.start()
        self.dispatcher.run(Decision("warm_up"))

    def stop(self) -> None:
        """End the threads. What is being compiled is finished, and nothing more after it."""
        self._stopping = True
        self.dispatcher.stop()
        self._threads.close()

    def follow(self) -> str:
        """In a process that does not lead: do what the leader decides, to the end. Returns the digest of the weights."""
        assert self._joined is not None
        assert self._joined.follower is not None
        try:
            self._joined.follower.run(self.dispatcher.programs)
        finally:
            self._threads.close()
        return self.last_digest

    def digest(self) -> str:
        """A hash of the learner's weights, computed by every process."""
        answer: str = self.dispatcher.run(Decision("digest"))
        return answer

    async def warm_start(self, report: Any = None) -> dict[str, float]:
        """Supervised steps on solved tasks, where the scenario wants them; the engines then begin with these weights."""
        settings = self._live.learner
        if not settings.warm_start_steps:
            return {}
        demonstrations = self.source.demonstrations(settings.warm_start_examples)
        metrics = await self.learner.warm_start(demonstrations, seed=self._seed, report=report)
        return metrics

    async def install(self, version: int) -> None:
        """Put the learner's weights on every engine, before the run begins. Servers outside keep what they have."""
        if self._outside:
            return
        await on_device(self.dispatcher, Decision("learner.snapshot", {"version": version}))
        for replica in range(len(self._engines)):
            await on_device(self.dispatcher, Decision("engine.install", {"replica": replica, "version": version}))

    def restore(self, arrays: Any) -> None:
        """Give the learner the arrays of a checkpoint. Raises `DataError` where they are of another model."""
        self.dispatcher.run(Decision("learner.restore", {"state": arrays}))

    def saves(self, folder: Path, say: Callable[[str], object]) -> SavePerformer:
        """What saves checkpoints into a folder."""
        return SavePerformer(self.dispatcher, Saver(folder, keep=self._live.checkpoint.keep), say)

    @property
    def faults(self) -> Mapping[str, int]:
        """What went wrong outside so far, by kind."""
        return self._host.faults

    @property
    def warm_start_steps(self) -> int:
        """Supervised steps before the run."""
        return self._live.learner.warm_start_steps

    def export(self, folder: Path) -> None:
        """Write the learner's weights as a Hugging Face checkpoint."""
        self.dispatcher.run(Decision("export", {"folder": str(folder)}))

    def _warm_up(self) -> None:
        parts: list[InferenceEngine | Learner] = [*self._engines, self._learner]
        of, done = sum(part.warm_up_programs for part in parts), 0

        def compiling(what: str) -> None:
            nonlocal done
            if self._stopping:
                raise InterruptedError("the run was interrupted while it compiled")
            self._compiling(what, done, of)
            done += 1

        for part in parts:
            part.warm_up(compiling)
        for engine in self._engines:  # the way of weights from the learner's devices is compiled as well
            engine.install(engine.version, self._learner.weights())

    def _export(self, folder: str) -> None:
        params = process_allgather(self._learner.weights(), tiled=True)
        if jax.process_index() == 0:
            _replace(Path(folder), lambda new: save_checkpoint(new, self.model, params))

    def _export_version(self, version: int, folder: str) -> None:
        params = process_allgather(self._store.get(version), tiled=True)
        if jax.process_index() == 0:
            save_checkpoint(folder, self.model, params)

    def _whole_state(self) -> Any:
        """The learner's state on the host: each process holds only its part of the arrays."""
        return process_allgather(self._learner.state(), tiled=True)

    def _digest(self) -> str:
        digest = blake2b(digest_size=16)
        for leaf in jax.tree.leaves(process_allgather(self._learner.weights(), tiled=True)):
            digest.update(np.asarray(leaf).tobytes())
        self.last_digest = digest.hexdigest()
        return self.last_digest


def _replace(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder anew: a run that goes on had a policy before. The old one goes when the new one is whole."""
    new, old = (folder.with_name(f".{folder.name}.{which}") for which in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    write(new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _check_devices() -> None:
    """See that JAX finds its devices, before anything else is built.

    Raises:
        ConfigError: it does not.

    """
    try:
        jax.devices()
    except RuntimeError as failure:
        raise ConfigError(
            f"JAX finds no such device: {failure}", field="JAX_PLATFORMS", value=os.environ.get("JAX_PLATFORMS"),
            allowed="a platform whose JAX plugin is installed and whose devices are there: cpu, cuda, tpu",
            remedy="unset it to take what there is, or install the plugin for the device",
        ) from failure  # fmt: skip


def _tokenizer(live: LiveConfig, environment: type[BaseTaskEnv]) -> CharTokenizer | HfTokenizer:
    if live.model.checkpoint:
        return HfTokenizer(live.model.checkpoint)
    if not environment.alphabet:
        raise ConfigError(
            f"{environment.__name__} says no alphabet, so a new character-level model cannot be sized", field="live.model",
            allowed="an environment with an attribute alphabet, or a checkpoint", remedy="name one in live.model.checkpoint",
        )  # fmt: skip
    return CharTokenizer(environment.alphabet)
