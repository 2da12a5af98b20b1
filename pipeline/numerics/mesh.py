"""Where arrays live: meshes of the learner and of each replica, and the way of weights between them.

Colocated (the default): learner and replicas share all devices, each with a mesh of its own over them. Disaggregated
(`live.mesh` names both counts): the first devices belong to the replicas, in equal parts, the next ones to the learner; a
weight version crosses from one set to the other when a replica installs it.

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
    from collections.abc import Sequence

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
        if len(found) == 1:
            return None
        return Layout(_learner(found), tuple(_engine(found, model) for _ in range(replicas)))
    wanted = table.rollout_devices + table.learner_devices
    if not table.rollout_devices or not table.learner_devices or wanted > len(found):
        raise ConfigError(
            f"there are {len(found)} devices ({found[0].platform})", field="live.mesh",
            value=f"rollout_devices = {table.rollout_devices}, learner_devices = {table.learner_devices}",
            allowed="both 0 (shared), or both above 0 and together at most the devices that there are",
            remedy="lower them, or run where there are more devices",
        )  # fmt: skip
    if table.rollout_devices % replicas:
        raise ConfigError(
            "cannot be divided among the replicas", field="live.mesh.rollout_devices", value=table.rollout_devices,
            allowed=f"a multiple of world.inference.replicas = {replicas}",
        )  # fmt: skip
    each = table.rollout_devices // replicas
    engines = tuple(_engine(found[number * each : (number + 1) * each], model) for number in range(replicas))
    return Layout(_learner(found[table.rollout_devices : wanted]), engines)


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


def _engine(devices: Sequence[jax.Device], model: ModelConfig) -> EngineShardings:
    mesh = Mesh(np.array(devices), ("model",))
    count = len(devices)

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [str(getattr(part, "key", getattr(part, "name", ""))) for part in path]
        axis = next((_TENSOR_AXIS[name] for name in names if name in _TENSOR_AXIS), None)
        if axis is None or np.ndim(leaf) <= axis or np.shape(leaf)[axis] % count:
            return NamedSharding(mesh, _spec())
        return NamedSharding(mesh, _spec(*[None] * axis, "model"))

    def weights(params: Tree) -> Tree:
        return jax.device_put(params, jax.tree_util.tree_map_with_path(sharding, params))

    heads = None if model.kv_heads % count else "model"
    return EngineShardings(
        weights=weights,
        cache=NamedSharding(mesh, _spec(None, None, heads)),
        results=NamedSharding(mesh, _spec()),
    )
