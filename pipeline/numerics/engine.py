"""Inference engine: slots with a KV cache, prefill in buckets, decode in chunks.

Theory of operation
-------------------
*Shapes.* A chunk of decoding works on a compact batch of the rows that take part, padded to the next bucket of rows and of
cached positions looked at (the span). Buckets are few; `warm_up` compiles them all, and nothing compiles later.

*Decode.* A chunk copies the cached keys and values of its rows into working arrays of span + chunk positions, once. Step j
of the loop writes the new position of all rows at span + j, whatever their lengths, so that the loop does no scatter; a mask
says which positions of the working arrays are a row's past. Afterwards one scatter per layer brings the new positions to their
places in the cache. The cache is donated to every call and so updated in place. The loop ends early when all rows have ended.

Keys lie with their positions last in the working arrays: both products of the attention then run along contiguous memory.

*Prefill* computes keys and values of a context without its last token; the first decode step takes that one in. Contexts are
packed into rows, several in one, so that ragged lengths waste little; each token says where in the cache it belongs. What a
context has beyond the longest row follows piece by piece.

*Weights* are swapped between two calls. Everything here runs on one thread (`pipeline.numerics.dispatch`) and takes plain data.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness.core.errors import ConfigError
from pipeline.numerics.model import attend, with_parameters
from pipeline.numerics.packing import first_fit_decreasing, split_rows
from pipeline.numerics.sampling import sample, uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pipeline.numerics.model import ModelConfig, Parameters, Transformer
    from pipeline.numerics.weights import WeightStore

_MASKED = -1e30
_LARGEST_PIECE = 512
"""Tokens of one row in one call of prefill, at most."""
_SMALLEST_PIECE = 128
_PIECES = 4
"""Rows of a large call of prefill."""

Layers = list[jax.Array]
"""One array for each layer."""


class Cache(NamedTuple):
    """Keys and values: for each layer (slots, S, K, D)."""

    keys: Layers
    values: Layers


class Rows(NamedTuple):
    """What a chunk of decode steps needs to know of each row, (R,) each; as one int32 array (9, R) on its way to the device.

    Attributes:
        slot: of the cache.
        length: tokens of the row in the cache.
        last: the token behind them, which is not in the cache yet.
        number: of the next token in its answer, from 0.
        remaining: tokens that it may still make.
        key_low: key data, first word.
        key_high: second word.
        temperature: bits of a float32.

    """

    slot: Any
    length: Any
    last: Any
    number: Any
    remaining: Any
    key_low: Any
    key_high: Any
    temperature: Any


class Prompts(NamedTuple):
    """Packed contexts, (B, T) each; as one int32 array (4, B, T) on its way to the device.

    Attributes:
        token: id.
        position: in its own context.
        segment: number of its context in the row, from 1; 0 is padding.
        slot: of the cache; beyond the last one for padding, which writes nothing.

    """

    token: Any
    position: Any
    segment: Any
    slot: Any


class Chunk(NamedTuple):
    """What a chunk made.

    Attributes:
        tokens: (steps, R) int32; of each row the first `made` count.
        log_probs: (steps, R) float32.
        made: (R,) tokens of each row.
        ended: (R,) whether it made its end token.
        steps: that were run.

    """

    tokens: np.ndarray
    log_probs: np.ndarray
    made: np.ndarray
    ended: np.ndarray
    steps: int


class PendingChunk:
    """A chunk that the devices are still at."""

    def __init__(self, arrays: tuple[jax.Array, ...], rows: int) -> None:
        self._arrays = arrays
        self._rows = rows

    def result(self) -> Chunk:
        """Wait for it, on any thread, and bring it to the host in one transfer."""
        tokens, log_probs, made, ended, steps = jax.device_get(self._arrays)
        rows = self._rows
        return Chunk(tokens[:steps, :rows], log_probs[:steps, :rows], made[:rows], ended[:rows], int(steps))


class PendingPrefill:
    """A prefill that the devices are still at."""

    def __init__(self, mark: jax.Array | None) -> None:
        self._mark = mark

    def result(self) -> None:
        """Wait for it, on any thread."""
        if self._mark is not None:
            self._mark.block_until_ready()


@dataclass(frozen=True)
class EngineShardings:
    """Where an engine's arrays lie when it has several devices.

    Attributes:
        weights: puts parameters where the engine wants them.
        cache: of each array of the cache, (slots, S, K, D).
        results: of what goes back to the host.

    """

    weights: Callable[[Parameters], Parameters]
    cache: jax.sharding.Sharding
    results: jax.sharding.Sharding


def buckets(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Sizes from `smallest`, each `factor` times the one before; the last is `largest`."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)


def row_sizes(slots: int) -> tuple[int, ...]:
    """Rows of a decode batch: quarters of the slots, for batches shrink as answers end; and 8, where a quarter is many."""
    if slots < 8:
        return (slots,)
    quarter = -(-slots // 16) * 4
    few = (8,) if quarter > 8 else ()
    return (*few, *range(quarter, slots, quarter), slots)


def _bucket(sizes: Sequence[int], wanted: int) -> int:
    return next(size for size in sizes if size >= wanted)


class InferenceEngine:
    """One replica on the devices.

    Args:
        config: of the network.
        params: its first weights.
        slots: rows of the cache.
        max_context_tokens: of a request, prompt and answer.
        chunk_steps: decode steps of a chunk, at most.
        end_ids: tokens that end an answer.
        version: of the first weights.
        shardings: for several devices; without, all is on the default device.

    Raises:
        ConfigError: the cache does not fit into the devices' memory.

    """

    def __init__(
        self,
        config: ModelConfig,
        params: Parameters,
        *,
        slots: int,
        max_context_tokens: int,
        chunk_steps: int,
        end_ids: Sequence[int],
        version: int = 0,
        shardings: EngineShardings | None = None,
    ) -> None:
        self.slots = slots
        self.max_context_tokens = max_context_tokens
        self.chunk_steps = chunk_steps
        self.row_sizes = row_sizes(slots)
        self.spans = buckets(min(64, max_context_tokens), max_context_tokens, 2)
        self._piece = min(_LARGEST_PIECE, max(max_context_tokens, _SMALLEST_PIECE))
        self._widths = buckets(min(_SMALLEST_PIECE, self._piece), self._piece, 4)
        self._pieces = (1, _PIECES) if slots * max_context_tokens > _PIECES * self._piece else (1,)
        length = max_context_tokens + chunk_steps
        self._shardings = shardings
        self._cache = _empty_cache(config, (slots, length, config.kv_heads, config.head_dim), shardings)
        self._tree: Any = jax.tree.structure(params)
        self._programs = _programs(config, self._tree, chunk_steps, tuple(end_ids), shardings)
        self.install(version, params)

    def install(self, version: int, params: Parameters) -> None:
        """Generate with other weights from now on. What is in the cache stays."""
        if self._shardings is not None:
            params = self._shardings.weights(params)
        leaves, tree = jax.tree.flatten(params)
        if tree != self._tree:
            raise ValueError(f"weights of version {version} are not those of the engine's network")
        self._leaves = leaves
        self.version = version

    def prefill(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> PendingPrefill:
        """Compute keys and values of whole contexts, from their first token; empty ones need nothing."""
        piece = self._piece
        mark = None
        firsts = [(slot, tokens[:piece]) for slot, tokens in zip(slots, contexts, strict=True) if tokens]
        for table in self._packed(firsts):
            self._cache, mark = self._programs.prefill(self._leaves, self._cache, table, 0)
        for start in range(piece, max(map(len, contexts), default=0), piece):
            for slot, tokens in zip(slots, contexts, strict=True):
                if rest := tokens[start : start + piece]:
                    table = self._padding(1, piece)
                    self._fill(table[:, 0], 1, slot, start, rest)
                    self._cache, mark = self._programs.prefill(self._leaves, self._cache, table, start)
        return PendingPrefill(mark)

    def _packed(self, contexts: Sequence[tuple[int, Sequence[int]]]) -> Iterator[np.ndarray]:
        """Tables (4, B, T), see `Prompts`, that hold all these contexts from their first token on."""
        lengths = [len(tokens) for _, tokens in contexts]
        width = _bucket(self._widths, max(lengths, default=0))
        rows = first_fit_decreasing(lengths, width)
        done = 0
        for count in split_rows(len(rows), self._pieces):
            table = self._padding(count, width)
            for row, members in enumerate(rows[done : done + count]):
                begin = 0
                for number, index in enumerate(members, 1):
                    slot, tokens = contexts[index]
                    self._fill(table[:, row, begin:], number, slot, 0, tokens)
                    begin += len(tokens)
            done += count
            yield table

    def _padding(self, count: int, width: int) -> np.ndarray:
        table = np.zeros((len(Prompts._fields), count, width), np.int32)
        table[3] = self.slots
        return table

    @staticmethod
    def _fill(place: np.ndarray, number: int, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Write tokens from position `start` on at the beginning of a place (4, T)."""
        end = len(tokens)
        place[0, :end] = tokens
        place[1, :end] = np.arange(start, start + end)
        place[2, :end] = number
        place[3, :end] = slot

    def decode(self, rows: Rows | np.ndarray, steps: int) -> PendingChunk:
        """Run decode steps until every row has ended, `steps` of them at most.

        Args:
            rows: (8, R) int32, see `Rows`.
            steps: at most `chunk_steps`.

        """
        table = np.asarray(rows, np.int32)
        active = table.shape[1]
        padded = np.zeros((len(table), _bucket(self.row_sizes, active)), np.int32)
        padded[0] = self.slots
        padded[:, :active] = table
        span = _bucket(self.spans, max(1, int(table[1].max(initial=0))))
        self._cache, made = self._programs.decode(self._leaves, self._cache, padded, steps, span)
        return PendingChunk(made, active)

    @property
    def warm_up_programs(self) -> int:
        """Programs that `warm_up` compiles."""
        return len(self._prefills()) + len(self.row_sizes) * len(self.spans)

    def _prefills(self) -> list[tuple[int, int, int]]:
        """(rows, width, start) of every prefill that can occur."""
        later = range(self._piece, self.max_context_tokens, self._piece)
        firsts = [(count, width, 0) for count in self._pieces for width in self._widths]
        return firsts + [(1, self._piece, start) for start in later]

    def warm_up(self, compiling: Callable[[str], object] = lambda what: None) -> None:
        """Compile every shape that can occur. Call it while nothing runs: it writes into no slot.

        Args:
            compiling: told of each program before it is compiled, in words.

        """
        for count, width, start in self._prefills():
            compiling(f"prefill of {count} x {width} tokens")
            self._cache, _ = self._programs.prefill(self._leaves, self._cache, self._padding(count, width), start)
        for count in self.row_sizes:
            padding = np.zeros((len(Rows._fields), count), np.int32)
            padding[0] = self.slots
            for span in self.spans:
                compiling(f"decoding of {count} sequences of up to {span} tokens")
                self._cache, made = self._programs.decode(self._leaves, self._cache, padding, self.chunk_steps, span)
                PendingChunk(made, 0).result()


def _empty_cache(config: ModelConfig, shape: tuple[int, ...], shardings: EngineShardings | None) -> Cache:
    """Zeros, or a `ConfigError` where the devices have no room for them and for a chunk's working copy of the same size."""
    dtype, sharding = jnp.dtype(config.dtype), shardings.cache if shardings is not None else None
    layer_bytes = math.prod(shape) * dtype.itemsize
    devices = len(sharding.device_set) if sharding is not None else 1
    wanted_bytes, limit_bytes = 4 * config.layers * layer_bytes, devices * device_memory_bytes()
    try:
        if wanted_bytes > limit_bytes:
            raise MemoryError
        layers = [jnp.zeros(shape, dtype, device=sharding) for _ in range(2 * config.layers)]
    except (MemoryError, jax.errors.JaxRuntimeError) as failure:
        raise ConfigError(
            f"the KV cache does not fit: {shape[0]} slots of {shape[1]} tokens want {wanted_bytes:,} bytes, "
            f"working copy included; the devices have {limit_bytes:,}",
            field="pipeline.slots_per_replica",
            value=shape[0],
            remedy="lower pipeline.slots_per_replica or live.sampling.max_context_tokens, or take a smaller model",
        ) from failure
    return Cache(layers[: config.layers], layers[config.layers :])


def device_memory_bytes() -> int:
    """Memory of the first device; of the machine, where the device is its processor."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _Programs(NamedTuple):
    prefill: Callable[..., tuple[Cache, jax.Array]]
    decode: Callable[..., tuple[Cache, tuple[jax.Array, ...]]]


@lru_cache(maxsize=8)
def _programs(
    config: ModelConfig, tree: Any, chunk_steps: int, end_ids: tuple[int, ...], shardings: EngineShardings | None
) -> _Programs:
    """Compiled functions of a network; engines of one process share them."""

    def network(leaves: Layers) -> Transformer:
        return with_parameters(config, jax.tree.unflatten(tree, leaves))

    def prefill(leaves: Layers, cache: Cache, table: jax.Array, start: int) -> tuple[Cache, jax.Array]:
        cache = _prefill(network(leaves), cache, Prompts(*table), start)
        return cache, cache.keys[-1][0, 0, 0, 0]  # something to wait for that is not donated to the next call

    def decode(leaves: Layers, cache: Cache, rows: jax.Array, steps: jax.Array, span: int) -> tuple[Cache, tuple[Any, ...]]:
        cache, *made = _decode(network(leaves), cache, Rows(*rows), steps, span, chunk_steps, end_ids)
        return cache, tuple(made)

    where = {} if shardings is None else {"out_shardings": (shardings.cache, shardings.results)}
    compiled = partial(jax.jit, donate_argnums=1, **where)
    return _Programs(compiled(prefill, static_argnums=3), compiled(decode, static_argnums=4))


def _take(layer: jax.Array, slots: jax.Array, span: int) -> jax.Array:
    """The first `span` positions of some slots: (R, span, K, D)."""
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=(1, 2, 3), collapsed_slice_dims=(0,), start_index_map=(0,))
    sizes = (1, span, *layer.shape[2:])
    return jax.lax.gather(layer, slots[:, None], numbers, sizes, mode=jax.lax.GatherScatterMode.CLIP)


def _put(layer: jax.Array, slots: jax.Array, starts: jax.Array, new: jax.Array) -> jax.Array:
    """Write (R, T, K, D) into slots (R,) from positions (R,) on; rows of padding are beyond the last slot and dropped."""
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2, 3), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1)
    )
    where = jnp.stack([slots, starts], axis=1)
    return jax.lax.scatter(layer, where, new, numbers, mode=jax.lax.GatherScatterMode.FILL_OR_DROP)


def _put_each(layer: jax.Array, slots: jax.Array, positions: jax.Array, new: jax.Array) -> jax.Array:
    """Write tokens (B, T, K, D) each into its own slot and position (B, T); padding is beyond the last slot and dropped."""
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(2, 3), inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1)
    )
    where = jnp.stack([slots, positions], axis=2)
    return jax.lax.scatter(layer, where, new, numbers, mode=jax.lax.GatherScatterMode.FILL_OR_DROP)


def _prefill(model: Transformer, cache: Cache, prompts: Prompts, start: int) -> Cache:
    """Keys and values of packed contexts, written into the cache. With `start` each row goes on with one context from there."""
    count, length = prompts.token.shape
    order = jnp.arange(length)
    mask = (prompts.segment[:, :, None] == prompts.segment[:, None, :]) & (order[:, None] >= order[None, :])
    mask = jnp.concatenate([jnp.ones((count, length, start), bool), mask], axis=2)
    all_keys, all_values = list(cache.keys), list(cache.values)

    def attention(number: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        seen_keys, seen_values = keys, values
        if start:
            slots = prompts.slot[:, 0]
            seen_keys = jnp.concatenate([_take(all_keys[number], slots, start), keys], axis=1)
            seen_values = jnp.concatenate([_take(all_values[number], slots, start), values], axis=1)
        all_keys[number] = _put_each(all_keys[number], prompts.slot, prompts.position, keys)
        all_values[number] = _put_each(all_values[number], prompts.slot, prompts.position, values)
        return attend(queries, seen_keys, seen_values, mask)

    model.hidden(prompts.token, prompts.position, attention)
    return Cache(all_keys, all_values)


class _State(NamedTuple):
    """Carry of the decode loop. Working keys (R, K, D, S), values (R, K, S, D), S = span + chunk."""

    step: jax.Array
    last: jax.Array
    left: jax.Array
    ended: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    keys: Layers
    values: Layers


def _decode(
    model: Transformer, cache: Cache, rows: Rows, steps: jax.Array, span: int, chunk: int, end_ids: tuple[int, ...]
) -> tuple[Cache, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """A chunk: the cache, tokens and log-probs (chunk, R), tokens made (R,), ended (R,), and steps that were run."""
    count = rows.slot.shape[0]
    keys_of_rows = jax.lax.bitcast_convert_type(jnp.stack([rows.key_low, rows.key_high], axis=1), jnp.uint32)
    draws = uniforms(keys_of_rows, rows.number[:, None] + jnp.arange(chunk))
    temperature = jax.lax.bitcast_convert_type(rows.temperature, jnp.float32)
    ends = jnp.asarray(end_ids, jnp.int32)
    order = jnp.arange(span + chunk)
    past = order[None, :] < jnp.where(order < span, rows.length[:, None], 0)

    def go_on(state: _State) -> jax.Array:
        return (state.step < steps) & jnp.any(state.left > 0)

    def advance(state: _State) -> _State:
        step = state.step
        all_keys, all_values = list(state.keys), list(state.values)
        mask = (past | ((order >= span) & (order <= span + step)))[:, None, None, :]

        def attention(number: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            at = span + step
            new_keys = jnp.swapaxes(keys, 1, 2)[..., 0, :, None]
            all_keys[number] = jax.lax.dynamic_update_slice_in_dim(all_keys[number], new_keys, at, axis=3)
            new_values = jnp.swapaxes(values, 1, 2)
            all_values[number] = jax.lax.dynamic_update_slice_in_dim(all_values[number], new_values, at, axis=2)
            return _attend_one(queries, all_keys[number], all_values[number], mask)

        x = model.hidden(state.last[:, None], (rows.length + step)[:, None], attention)
        made, log_probs = sample(model.logits(x[:, 0]), draws[:, step], temperature)
        alive = state.left > 0
        end = alive & jnp.any(made[:, None] == ends, axis=1)
        return _State(
            step + 1,
            made,
            jnp.where(end, 0, jnp.maximum(state.left - 1, 0)),
            state.ended | end,
            state.tokens.at[step].set(made),
            state.log_probs.at[step].set(log_probs),
            all_keys,
            all_values,
        )

    room = ((0, 0), (0, chunk), (0, 0), (0, 0))
    first = _State(
        jnp.int32(0),
        rows.last,
        rows.remaining,
        jnp.zeros(count, bool),
        jnp.zeros((chunk, count), jnp.int32),
        jnp.zeros((chunk, count), jnp.float32),
        [jnp.transpose(jnp.pad(_take(layer, rows.slot, span), room), (0, 2, 3, 1)) for layer in cache.keys],
        [jnp.transpose(jnp.pad(_take(layer, rows.slot, span), room), (0, 2, 1, 3)) for layer in cache.values],
    )
    state = jax.lax.while_loop(go_on, advance, first)
    made_keys = [jnp.transpose(layer[..., span:], (0, 3, 1, 2)) for layer in state.keys]
    made_values = [jnp.transpose(layer[:, :, span:], (0, 2, 1, 3)) for layer in state.values]
    cache = Cache(
        [_put(layer, rows.slot, rows.length, new) for layer, new in zip(cache.keys, made_keys, strict=True)],
        [_put(layer, rows.slot, rows.length, new) for layer, new in zip(cache.values, made_values, strict=True)],
    )
    own = jnp.where(state.ended, _first_end(state.tokens, ends), jnp.minimum(rows.remaining, state.step))
    return cache, state.tokens, state.log_probs, own, state.ended, state.step


def _first_end(tokens: jax.Array, ends: jax.Array) -> jax.Array:
    """How many tokens of (chunk, R) come up to the first end token, it included."""
    return jnp.argmax(jnp.any(tokens[..., None] == ends, axis=-1), axis=0) + 1


def _attend_one(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention of one new position. queries: (R, 1, H, D); keys: (R, K, D, S); values: (R, K, S, D); mask: (R, 1, 1, S)."""
    rows, _, heads, width = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(rows, groups, heads // groups, width)
    scores = jnp.einsum("rkgd,rkds->rkgs", grouped, keys, preferred_element_type=jnp.float32) * width**-0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, _MASKED), axis=-1).astype(values.dtype)
    return jnp.einsum("rkgs,rksd->rkgd", weights, values).reshape(rows, 1, heads, width)


class CompileCounter:
    """Counts XLA compilations of this process while it is entered.

    JAX announces each with an event of its monitoring; there is one registration a process, for JAX lets nobody unregister.
    """

    _EVENT = "/jax/core/compile/backend_compile_duration"
    _total = 0
    _listening = False

    def __init__(self) -> None:
        self._start = 0
        self._stop: int | None = None

    @property
    def count(self) -> int:
        """Compilations since it was entered, and until it was left."""
        return (CompileCounter._total if self._stop is None else self._stop) - self._start

    def __enter__(self) -> CompileCounter:
        if not CompileCounter._listening:
            CompileCounter._listening = True
            jax.monitoring.register_event_duration_secs_listener(CompileCounter._heard)
        self._start, self._stop = CompileCounter._total, None
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = CompileCounter._total

    @staticmethod
    def _heard(event: str, duration_secs: float, **_: str | int) -> None:
        if event == CompileCounter._EVENT:
            CompileCounter._total += 1


def programs(engines: Sequence[InferenceEngine], store: WeightStore) -> Mapping[str, Callable[..., Any]]:
    """What the dispatcher runs for the inference performer, by name."""

    def prefill(replica: int, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> PendingPrefill:
        return engines[replica].prefill(slots, contexts)

    def decode(replica: int, rows: np.ndarray, steps: int) -> PendingChunk:
        return engines[replica].decode(rows, steps)

    def install(replica: int, version: int) -> None:
        engines[replica].install(version, store.get(version))

    return {"engine.prefill": prefill, "engine.decode": decode, "engine.install": install}
