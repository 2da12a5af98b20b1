"""Learner: parameters, optimizer and the compiled steps. Lives on the dispatcher's thread alone.

A step comes as one or more chunks of sequences. Each chunk is packed into micro-batches, and each of those adds to two sums:
that of the gradients of weight times loss, and that of the weights. The last chunk divides one by the other, so that the split
into chunks and micro-batches changes nothing but the order of the additions:

    g = Σ_batches ∇ Σ_tokens w · loss  ÷  Σ_batches Σ_tokens w

The compiled functions name no device: they follow their arguments, which `Placement` puts where they belong. All shapes are
known beforehand (`packing.bucket_shapes`), and `warm_up` runs each of them once.

Sums, master weights and optimizer are float32 whatever the model computes in: bfloat16's rounding would swallow a small step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]  # it ships no types
from flax import nnx

from harness.core.errors import ConfigError, DataError, LawError
from pipeline.numerics.losses import LOSSES, NEEDS_PROXIMAL, Loss, cross_entropy
from pipeline.numerics.model import abstract_model
from pipeline.numerics.packing import Arrays, Packed, bucket_shapes, empty, pack
from pipeline.numerics.train_step import (
    Counters,
    Sums,
    Trained,
    Tree,
    apply_sums,
    make_optimizer,
    make_schedule,
    micro_sums,
    token_log_probs,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jax.sharding import Sharding
    from numpy.typing import NDArray

    from pipeline.live_config import LearnerTable
    from pipeline.numerics.model import ModelConfig, Parameters


class Store(Protocol):
    """Where snapshots go."""

    def put(self, version: int, params: Tree, /) -> None:
        """Keep the weights of a version."""


@dataclass(frozen=True)
class Placement:
    """Where arrays live on a mesh.

    Attributes:
        params: from a tree that is shaped like the parameters to its shardings.
        batch: of (rows, row length) arrays.
        replicated: of scalars.
        rows_multiple: micro-batches have a multiple of so many rows.

    """

    params: Callable[[Tree], Tree]
    batch: Sharding
    replicated: Sharding
    rows_multiple: int = 1


@dataclass(frozen=True, slots=True)
class Pending:
    """An answer that the devices may still be working on.

    Attributes:
        step: optimizer step it belongs to.
        values: numbers, on devices or on the host.
        waits: arrays that are to be ready beside them.
        max_skipped: steps that may be skipped in a row.
        learning_rate: the setting, for the message.

    """

    step: int
    values: Mapping[str, Any]
    waits: Sequence[jax.Array]
    max_skipped: int
    learning_rate: float

    def result(self) -> dict[str, float]:
        """Wait, off the event loop, and read the numbers.

        Raises:
            ConfigError: too many steps in a row had a loss or gradients that were not finite.

        """
        jax.block_until_ready(self.waits)  # type: ignore[no-untyped-call]
        numbers = {name: float(value) for name, value in jax.device_get(dict(self.values)).items()}
        if numbers.get("skipped_in_a_row", 0) >= self.max_skipped:
            raise ConfigError(
                f"loss or gradients were not finite in {self.max_skipped} steps in a row, up to step {self.step}",
                field="live.learner.learning_rate",
                value=self.learning_rate,
                allowed="a rate at which training does not diverge",
                remedy="lower it or max_grad_norm, or use a loss with a clip; go on from the last checkpoint",
            )
        return numbers


def needs_log_probs(settings: LearnerTable) -> bool:
    """Whether a step needs a pass of its own over its sequences, for the proximal policy or the reference."""
    return settings.loss in NEEDS_PROXIMAL or settings.kl_coefficient > 0.0


class _Phase:
    """A loss and an optimizer, compiled: supervised warm start and policy training are one of these each."""

    def __init__(self, learner: Learner, loss: Loss, optimizer: optax.GradientTransformation, schedule: optax.Schedule,
                 kl_coefficient: float) -> None:  # fmt: skip
        self.optimizer = optimizer
        micro = jax.value_and_grad(partial(micro_sums, learner.forward, loss, learner.settings, kl_coefficient), has_aux=True)

        def accumulate(
            params: Tree, sums: Sums, arrays: Arrays[jax.Array], proximal: jax.Array | None, reference: jax.Array | None
        ) -> tuple[Sums, jax.Array]:
            (objective, own), gradients = micro(params, arrays, proximal, reference)
            new = jax.tree.map(jnp.add, sums, own._replace(gradients=gradients))
            return learner.pin_sums(new), objective

        def apply(trained: Trained, sums: Sums) -> tuple[Trained, Sums, dict[str, jax.Array]]:
            changed, zeros, metrics = apply_sums(optimizer, schedule, trained, sums)
            return learner.pin_trained(changed, optimizer), learner.pin_sums(zeros), metrics

        self.accumulate = jax.jit(accumulate, donate_argnums=(1,))
        self.apply = jax.jit(apply, donate_argnums=(0, 1))


class Learner:
    """Parameters, optimizer and what trains them. All methods are called on the dispatcher's thread, with plain data.

    Args:
        config: shape of the network, and what it computes in.
        params: the starting weights; they are copied.
        settings: `live.learner`.
        max_tokens: tokens of the longest sequence (`live.sampling.max_context_tokens`).
        temperature: of the sampling; log-probabilities are taken at it, as the engine's are. 0 (greedy) counts as 1.
        store: where snapshots go.
        placement: where arrays live; none: wherever JAX puts them.

    """

    def __init__(
        self, config: ModelConfig, params: Parameters, settings: LearnerTable, *, max_tokens: int, temperature: float = 1.0,
        store: Store | None = None, placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.store = store
        self._placement = placement
        self._temperature = temperature or 1.0
        self._dtype = config.dtype
        self.shapes = bucket_shapes(
            max_tokens, settings.micro_batch_tokens, rows_multiple=1 if placement is None else placement.rows_multiple
        )
        self._graph = nnx.graphdef(abstract_model(config))
        self._copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        self._cast = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.astype(x, self._dtype, copy=True), tree))
        self._score = jax.jit(lambda params, arrays: self.forward(params, arrays)[0])
        schedule = make_schedule(settings)
        self._phase = _Phase(self, LOSSES[settings.loss], make_optimizer(settings, schedule), schedule, settings.kl_coefficient)
        master = self._placed(jax.tree.map(lambda x: np.asarray(x, np.float32), params))
        self._trained = self._fresh(master, self._phase)
        self._reference = self._copy(master) if settings.kl_coefficient > 0.0 else None
        self._start = jax.jit(self._zeros)
        self._sums: Sums = self._start(master)
        self._warm: _Phase | None = None
        self._open_step: int | None = None  # step whose chunks are in the sums
        self._scored: dict[tuple[int, ...], _Scored] = {}
        self._tokens = self._slots = 0  # of those chunks, packed

    # ── compiled ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, params: Tree, arrays: Arrays[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Log-probabilities and entropies (R, T) of a micro-batch's targets."""
        model = nnx.merge(self._graph, jax.tree.map(lambda x: x.astype(self._dtype), params))
        logits = model(arrays.tokens, arrays.positions, arrays.segments)
        return token_log_probs(logits, arrays.targets, self._temperature)

    def pin_sums(self, sums: Sums) -> Sums:
        """Sums where they belong."""
        if self._placement is None:
            return sums
        gradients = self._placement.params(sums.gradients)
        return Sums(*_pin(sums, Sums(gradients, *[self._placement.replicated] * (len(Sums._fields) - 1))))

    def pin_trained(self, trained: Trained, optimizer: optax.GradientTransformation) -> Trained:
        """Parameters and optimizer where they belong."""
        if self._placement is None:
            return trained
        return Trained(*_pin(trained, self._shardings(trained, optimizer)))

    def _shardings(self, trained: Trained, optimizer: optax.GradientTransformation) -> Trained:
        assert self._placement is not None
        replicated = self._placement.replicated
        params = self._placement.params(trained.params)
        states = optax.tree_map_params(
            optimizer, lambda _, sharding: sharding, trained.optimizer, params, transform_non_params=lambda _: replicated
        )
        return Trained(params, states, Counters(replicated, replicated, replicated))

    # ── placing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _placed(self, params: Tree) -> Tree:
        """Parameters on the host, to where they belong."""
        if self._placement is None:
            return jax.tree.map(jnp.array, params)
        return jax.tree.map(_put, params, self._placement.params(params))

    def _fresh(self, params: Tree, phase: _Phase) -> Trained:
        def start(params: Tree) -> Trained:
            zero = jnp.zeros((), jnp.int32)
            trained = Trained(params, phase.optimizer.init(params), Counters(zero, zero, zero))
            return self.pin_trained(trained, phase.optimizer)

        fresh: Trained = jax.jit(start)(params)
        return fresh

    def _zeros(self, params: Tree) -> Sums:
        return self.pin_sums(Sums(jax.tree.map(jnp.zeros_like, params), *(jnp.zeros(()) for _ in Sums._fields[1:])))

    def _batch(self, arrays: Arrays[NDArray[Any]]) -> Arrays[jax.Array]:
        if self._placement is None:
            return Arrays(*(jnp.asarray(array) for array in arrays))
        sharding = self._placement.batch
        return Arrays(*(_put(array, sharding) for array in arrays))

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def log_probs(self, *, step: int, sequences: Sequence[Mapping[str, Any]]) -> Pending:
        """Score a chunk under the weights at the step's start, and the reference; kept until the chunk is trained on."""
        scored = self._scored[_key(sequences)] = self._scores(sequences)
        return self._pending(step, {}, scored.leaves())

    def _pending(self, step: int, values: Mapping[str, Any], waits: Sequence[jax.Array] = ()) -> Pending:
        return Pending(step, values, waits, self.settings.max_skipped_steps, self.settings.learning_rate)

    def _scores(self, sequences: Sequence[Mapping[str, Any]]) -> _Scored:
        packed = pack(sequences, self.shapes, mean=self.settings.loss_mean)
        batches = [self._batch(batch.arrays) for batch in packed.batches]
        proximal: list[jax.Array | None] = [None] * len(batches)
        reference: list[jax.Array | None] = [None] * len(batches)
        if self.settings.loss in NEEDS_PROXIMAL:
            proximal = [self._score(self._trained.params, arrays) for arrays in batches]
        if self._reference is not None:
            reference = [self._score(self._reference, arrays) for arrays in batches]
        return _Scored(packed, batches, proximal, reference)

    def train(self, *, step: int, sequences: Sequence[Mapping[str, Any]], last: bool) -> Pending:
        """Forward and backward over a chunk; with `last` the optimizer step.

        Args:
            step: number of the optimizer step, for checks and messages.
            sequences: as `packing.pack` takes them, each with an `id` of its own.
            last: whether the batch is whole with this chunk.

        Returns:
            metrics of the step when `last`, else what there is to wait for.

        """
        if self._open_step not in (None, step):
            raise LawError(f"a chunk of step {step} came while step {self._open_step} has not been applied")
        self._open_step = step
        scored = self._scored.pop(_key(sequences), None) or self._scores(sequences)
        self._tokens += scored.packed.tokens
        self._slots += scored.packed.slots
        waits: list[jax.Array] = []
        for arrays, proximal, reference in zip(scored.batches, scored.proximal, scored.reference, strict=True):
            self._sums, done = self._phase.accumulate(self._trained.params, self._sums, arrays, proximal, reference)
            waits = [done]  # behind the ones before it
        if not last:
            return self._pending(step, {}, waits)
        self._trained, self._sums, metrics = self._phase.apply(self._trained, self._sums)
        packed = {"packed_tokens": self._tokens, "utilisation": self._tokens / max(self._slots, 1)}
        self._between_steps()
        return self._pending(step, metrics | packed)

    def _between_steps(self) -> None:
        """No chunk is held."""
        self._open_step = None
        self._scored.clear()
        self._tokens = self._slots = 0

    def snapshot(self, *, version: int) -> None:
        """Put a copy of the weights, in the model's own precision, into the store."""
        assert self.store is not None, "a learner that publishes has a store"
        self.store.put(version, self.weights())

    def weights(self) -> Tree:
        """A copy of the weights in the model's own precision: an `nnx.State`, as `nnx.split` gives it."""
        return self._cast(self._trained.params)

    def mean_gradients(self) -> dict[str, jax.Array]:
        """Mean gradient of the chunks so far, by path: to look at, never needed by a run."""
        scale = 1.0 / jnp.maximum(self._sums.weight, 1.0)
        return {path: gradient * scale for path, gradient in _flat(self._sums.gradients).items()}

    @property
    def warm_up_programs(self) -> int:
        """Parts of `warm_up`."""
        return len(self.shapes) + 1

    def warm_up(self, compiling: Callable[[str], object] = lambda what: None) -> None:
        """Compile everything, by running every shape once on padding. Nothing changes: an empty step is no step.

        Args:
            compiling: told of each part before it is compiled, in words.

        """
        for shape in self.shapes:
            compiling("gradients of {} x {} tokens".format(*shape))
            arrays = self._batch(empty(shape))
            proximal = self._score(self._trained.params, arrays) if self.settings.loss in NEEDS_PROXIMAL else None
            reference = None if self._reference is None else self._score(self._reference, arrays)
            self._sums, _ = self._phase.accumulate(self._trained.params, self._sums, arrays, proximal, reference)
        compiling("optimizer step")
        self._trained, self._sums, metrics = self._phase.apply(self._trained, self._sums)
        jax.block_until_ready((metrics, self.weights(), self.state()))  # type: ignore[no-untyped-call]

    # ── supervised warm start ───────────────────────────────────────────────────────────────────────────────────────────

    def warm_step(self, *, step: int, sequences: Sequence[Mapping[str, Any]]) -> Pending:
        """One supervised step on demonstrations, with an optimizer of its own; their advantages play no part."""
        settings = self.settings
        if self._warm is None:
            schedule = optax.cosine_decay_schedule(
                settings.warm_start_learning_rate, max(settings.warm_start_steps, 1), settings.final_fraction
            )
            self._warm = _Phase(self, cross_entropy, make_optimizer(settings, schedule), schedule, 0.0)
            self._trained = self._fresh(self._trained.params, self._warm)
        for batch in pack(sequences, self.shapes).batches:
            self._sums, _ = self._warm.accumulate(self._trained.params, self._sums, self._batch(batch.arrays), None, None)
        self._trained, self._sums, metrics = self._warm.apply(self._trained, self._sums)
        return Pending(step, metrics, (), settings.max_skipped_steps, settings.warm_start_learning_rate)

    def warm_end(self) -> None:
        """The supervised steps are over: a fresh optimizer, and these weights are the reference."""
        self._warm = None
        self._trained = self._fresh(self._trained.params, self._phase)
        if self._reference is not None:
            self._reference = self._copy(self._trained.params)

    # ── saves ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, dict[str, jax.Array]]:
        """Copies of everything that a resumed run needs, as of the last completed step: two levels of dict, arrays by path.

        Copies, because the originals are donated to the next step while a save may still be reading. Chunks of a step that is
        not completed are not in it: parameters and optimizer change with the last chunk, and the chunks before are kept as
        samples by whoever saves.
        """
        return {name: _flat(self._copy(tree)) for name, tree in self._parts().items()}

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from a state that `state` gave, as arrays of any kind.

        Raises:
            DataError: it is of another model, optimizer or setting.

        """
        parts = {name: self._unflat(name, tree, state.get(name, {})) for name, tree in self._parts().items()}
        self._trained = Trained(parts["params"], parts["optimizer"], parts["counters"])
        self._reference = parts.get("reference")
        self._sums = self._start(self._trained.params)
        self._between_steps()

    def _parts(self) -> dict[str, Tree]:
        parts = {"params": self._trained.params, "optimizer": self._trained.optimizer, "counters": self._trained.counters}
        return parts if self._reference is None else parts | {"reference": self._reference}

    def _unflat(self, name: str, like: Tree, given: Mapping[str, Any]) -> Tree:
        """`given` in the structure and on the devices of `like`."""
        wanted = _flat(like)
        if missing := sorted(wanted.keys() ^ given.keys()):
            side = "lacks" if missing[0] in wanted else "has, and this run has not,"
            raise DataError(
                f"the saved learner {side} {name}/{missing[0]} ({len(missing)} such entries)",
                remedy="resume with the model, loss and optimizer settings that it was saved with",
            )
        leaves = []
        for path, leaf in wanted.items():
            if tuple(np.shape(given[path])) != leaf.shape:
                raise DataError(
                    f"the saved learner's {name}/{path} has another shape",
                    value=tuple(np.shape(given[path])),
                    allowed=str(leaf.shape),
                    remedy="resume with the model that it was saved with",
                )
            leaves.append(self._like(leaf, np.asarray(given[path], leaf.dtype)))
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _like(self, leaf: jax.Array, array: NDArray[Any]) -> jax.Array:
        """`array` where `leaf` is. Committed to a device only on a mesh: a compiled function tells the two apart."""
        return jnp.array(array) if self._placement is None else _put(array, leaf.sharding)

    def programs(self) -> dict[str, Callable[..., Any]]:
        """For the dispatcher, by name."""
        each = (
            self.log_probs,
            self.train,
            self.snapshot,
            self.warm_up,
            self.warm_step,
            self.warm_end,
            self.state,
            self.restore,
        )
        return {f"learner.{program.__name__}": program for program in each}


@dataclass(slots=True)
class _Scored:
    """A packed chunk on the devices, with what was computed of it, one entry a micro-batch."""

    packed: Packed
    batches: list[Arrays[jax.Array]]
    proximal: list[jax.Array | None]
    reference: list[jax.Array | None]

    def leaves(self) -> list[jax.Array]:
        return [scores for scores in (*self.proximal, *self.reference) if scores is not None]


def _key(sequences: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(sequence["id"] for sequence in sequences)


def _put(array: Any, sharding: Sharding) -> jax.Array:
    """A host array on a mesh that other processes may share: each places its own part."""
    return jax.make_array_from_callback(np.shape(array), sharding, lambda where: array[where])


def _pin(tree: Any, shardings: Any) -> Any:
    return jax.lax.with_sharding_constraint(tree, shardings)  # type: ignore[no-untyped-call]


def _flat(tree: Tree) -> dict[str, jax.Array]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
