"""Where arrays live: meshes of the learner and of each replica, and the way of weights between them.

Colocated (the default): learner and replicas share all devices, each with a mesh of its own over them. Disaggregated
(`live.mesh` names both counts): the first devices belong to the replicas, in equal parts, the next ones to the learner; a
weight version crosses from one set to the other when a replica installs it.

Several processes: every mesh has the same number of devices in each of them, for a process can neither start work on devices
that are all elsewhere nor read what they answer. So weights that cross are gathered on the learner's mesh, parameter by
parameter, and each process puts its own parts from there: nothing but collectives goes from process to process.

- Learner: parameters, gradients and optimizer are sharded over all its devices along each array's longest axis that divides
  (fully sharded data parallel, arXiv 1910.02054, stage 3); rows of a micro-batch are spread over the same devices.
- Replica: heads and the feed-forward's inner axis are spread over its devices (tensor parallel, arXiv 1909.08053), as far as
  they divide; so is the KV cache. XLA inserts the collectives.

One device needs none of this: then there is no layout, and arrays lie where JAX puts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.core.errors import ConfigError
from pipeline.numerics.engine import EngineShardings
from pipeline.numerics.learner import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.live_config import MeshTable
    from pipeline.numerics.model import ModelConfig

Tree = Any


def _spec(*axes: str | None) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


_TENSOR_AXIS = {"query": 1, "key": 1, "value": 1, "out": 0, "gate": 1, "up": 1, "down": 0}
"""Axis of each projection that tensor parallelism divides: heads, or the inner width."""


@dataclass(frozen=True)
class Layout:
    """Where everything lives.

    Attributes:
        learner: placement of the learner's arrays.
        engines: shardings of each replica.

    """

    learner: Placement
    engines: tuple[EngineShardings, ...]


def make_layout(
    table: MeshTable, model: ModelConfig, replicas: int, devices: Sequence[jax.Device] | None = None
) -> Layout | None:
    """The layout that a scenario asks for; none where one device does everything.

    Args:
        table: `live.mesh`.
        model: shape of the network.
        replicas: inference replicas.
        devices: all there are, of every process; JAX's by default.

    Raises:
        ConfigError: there are not so many devices, or they cannot be divided so.

    """
    found = list(devices if devices is not None else jax.devices())
    if not table.rollout_devices and not table.learner_devices:
        return None if len(found) == 1 else Layout(_learner(found), (_engine(tuple(found), model),) * replicas)
    homes = [
        [device for device in found if device.process_index == index] for index in sorted({d.process_index for d in found})
    ]
    _check_counts(table, replicas, homes)
    rollout, learner = table.rollout_devices // len(homes), table.learner_devices // len(homes)
    each = rollout // replicas
    engines = tuple(
        _engine(tuple(device for home in homes for device in home[number * each : (number + 1) * each]), model)
        for number in range(replicas)
    )
    return Layout(_learner([device for home in homes for device in home[rollout : rollout + learner]]), engines)


def _check_counts(table: MeshTable, replicas: int, homes: Sequence[Sequence[jax.Device]]) -> None:
    """Both kinds of devices, no more than there are, the same number in each process."""
    count = sum(map(len, homes))
    wanted = table.rollout_devices + table.learner_devices
    if not table.rollout_devices or not table.learner_devices or wanted > count:
        raise ConfigError(
            f"there are {count} devices ({homes[0][0].platform})", field="live.mesh",
            value=f"rollout_devices = {table.rollout_devices}, learner_devices = {table.learner_devices}",
            allowed="both 0 (shared), or both above 0 and together at most the devices that there are",
            remedy="lower them, or run where there are more devices",
        )  # fmt: skip
    within = f" in each of {len(homes)} processes" if len(homes) > 1 else ""
    if table.rollout_devices % (replicas * len(homes)):
        raise ConfigError(
            f"cannot be divided among the replicas{within}", field="live.mesh.rollout_devices", value=table.rollout_devices,
            allowed=f"a multiple of {replicas * len(homes)} (world.inference.replicas = {replicas})",
            remedy="every replica has the same number of devices in every process",
        )  # fmt: skip
    if table.learner_devices % len(homes) or wanted // len(homes) > min(map(len, homes)):
        raise ConfigError(
            f"cannot be divided among {len(homes)} processes", field="live.mesh.learner_devices", value=table.learner_devices,
            allowed=f"a multiple of {len(homes)}; with rollout_devices at most {min(map(len, homes))} in each process",
            remedy="every process learns and generates; or leave both at 0, and they share all devices",
        )  # fmt: skip


def _learner(devices: Sequence[jax.Device]) -> Placement:
    mesh = Mesh(np.array(devices), ("data",))
    return Placement(
        params=lambda tree: jax.tree.map(lambda leaf: _longest(mesh, np.shape(leaf)), tree),
        batch=NamedSharding(mesh, _spec("data")),
        replicated=NamedSharding(mesh, _spec()),
        rows_multiple=len(devices),
    )


@lru_cache(maxsize=1024)
def _longest(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    """Along the longest axis that divides."""
    count = mesh.devices.size
    axes = [axis for axis, length in enumerate(shape) if length % count == 0 and length]
    if not axes:
        return NamedSharding(mesh, _spec())
    chosen = max(axes, key=lambda axis: shape[axis])
    return NamedSharding(mesh, _spec(*[None] * chosen, "data"))


@lru_cache(maxsize=64)
def _engine(devices: tuple[jax.Device, ...], model: ModelConfig) -> EngineShardings:
    """One object for the same devices, so that engines on them share what is compiled."""
    mesh = Mesh(np.array(devices), ("model",))
    count = len(devices)

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [str(getattr(part, "key", "")) for part in path[:-1]]  # the last names the array in its variable
        axis = next((_TENSOR_AXIS[name] for name in names if name in _TENSOR_AXIS), None)
        if axis is None or np.ndim(leaf) <= axis or np.shape(leaf)[axis] % count:
            return NamedSharding(mesh, _spec())
        return NamedSharding(mesh, _spec(*[None] * axis, "model"))

    def weights(params: Tree) -> Tree:
        return jax.tree.map(_moved, params, jax.tree_util.tree_map_with_path(sharding, params))

    heads = None if model.kv_heads % count else "model"
    return EngineShardings(
        weights=weights,
        cache=NamedSharding(mesh, _spec(None, None, heads)),
        results=NamedSharding(mesh, _spec()),
    )


def _moved(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    """An array where a sharding wants it, whatever mesh it comes from."""
    if sharding.is_fully_addressable and leaf.is_fully_addressable:
        moved: jax.Array = jax.device_put(leaf, sharding)
        return moved
    if leaf.sharding.device_set == sharding.device_set:
        return _identity(sharding)(leaf)
    whole = leaf if leaf.is_fully_addressable else _gathered(leaf)
    places = sharding.addressable_devices_indices_map(leaf.shape)
    parts = [jax.device_put(whole[index or ...], device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)


def _gathered(leaf: jax.Array) -> jax.Array:
    """The whole array, as it lies on one of this process's devices."""
    assert isinstance(leaf.sharding, NamedSharding)
    whole: jax.Array = _identity(NamedSharding(leaf.sharding.mesh, _spec()))(leaf).addressable_data(0)
    return whole


@lru_cache(maxsize=1024)
def _identity(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    same: Callable[[jax.Array], jax.Array] = jax.jit(lambda leaf: leaf, out_shardings=sharding)
    return same
