"""The chips of a world: named in the catalogue or described, and what follows from them and a model.

Where a scenario names a chip and gives `[world.model]`, the step-time laws, the KV capacity and the bytes of the weights need
not be given: `work_out` fills in what is absent, from the chips of a replica and of the learner, before anything is checked. A
table or number that is given stands as it is, whole. What was filled in is listed in `world.derived`, so that a scenario that
was written out and read again (or one whose chips a search changed) is worked out anew.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, ValidationError, model_validator

from harness.core.errors import ConfigError
from harness.costs import roofline
from harness.costs.catalogue import CATALOGUE, FIGURES
from harness.costs.laws import Record
from harness.costs.roofline import Efficiencies, Model, Peaks

if TYPE_CHECKING:
    from collections.abc import Callable

Derivable = Literal[
    "inference.decode",
    "inference.prefill",
    "inference.kv_capacity_tokens",
    "learner.train",
    "learner.log_probs",
    "weights.weights_bytes",
    "weights.transfer.bytes_per_s",
    "weights.transfer.sender_bytes_per_s",
]
"""What can be worked out, by its path within the world."""

FROM_CHIP = "worked out from world.chip and [world.model]"
"""How descriptions say that a field may be left out."""

ROOFLINE = "roofline"
"""Said in place of `[world.learner.log_probs]`: there is such a pass, and its time is worked out."""


def not_required(*fields: str) -> ConfigDict:
    """Configuration of a record in whose JSON Schema these fields may be absent, because they can be worked out."""

    def leave_out(schema: dict[str, Any]) -> None:
        schema["required"] = [name for name in schema.get("required", ()) if name not in fields]

    return ConfigDict(json_schema_extra=leave_out)


def or_text(*choices: str) -> Callable[[dict[str, Any]], None]:
    """For the JSON Schema of a field that takes one of these words in place of a table."""

    def add(schema: dict[str, Any]) -> None:
        schema["anyOf"] = [*schema.get("anyOf", ()), {"type": "string", "enum": list(choices)}]

    return add


_FIELD_OF = {"bf16_flop_per_s": "bf16 operations a second", "hbm_bytes": "memory", "hbm_bytes_per_s": "memory bandwidth"}


class Chip(Record):
    """One generation of accelerators: by name, with figures of one's own in place of the catalogue's, or all one's own."""

    name: str = Field(default="", description=f"Name in the catalogue ({', '.join(CATALOGUE)}), or any other with all figures.")
    bf16_flop_per_s: float | None = Field(default=None, gt=0, description="Dense bf16 operations a second.")
    hbm_bytes: float | None = Field(default=None, gt=0, description="Bytes of memory.")
    hbm_bytes_per_s: float | None = Field(default=None, gt=0, description="Bytes a second to memory.")
    ici_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Bytes a second to chips of the same slice (ICI, NVLink), all links, both ways."
    )
    dcn_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Bytes a second of one host over the data-centre network, one way."
    )
    chips_per_host: int | None = Field(default=None, gt=0, description="Chips of one host.")
    slice_shapes: tuple[int, ...] | None = Field(
        default=None, strict=False, description="Numbers of chips in which slices are sold; absent: the catalogue's, or any."
    )
    source: str = Field(default="", description="Where one's own figures come from, and when.")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name not in CATALOGUE and all(getattr(self, name) is None for name in FIGURES):
            close = difflib.get_close_matches(self.name, CATALOGUE, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "give its figures, or name one of these"
            raise ValueError(f"there is no chip {self.name!r} in the catalogue ({', '.join(CATALOGUE)}): {hint}")
        if self.slice_shapes is not None and (not self.slice_shapes or min(self.slice_shapes) < 1):
            raise ValueError("slice_shapes are numbers of chips, at least one of them")
        return self

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.name or "chip"

    def figure(self, name: str) -> float | None:
        """One figure: the user's, else the catalogue's, else None."""
        own: float | None = getattr(self, name)
        if own is not None or self.name not in CATALOGUE:
            return own
        known = CATALOGUE[self.name].figures.get(name)
        return None if known is None else known.value

    def needed(self, name: str, why: str) -> float:
        """One figure that something rests on.

        Raises:
            ConfigError: nobody says it.

        """
        value = self.figure(name)
        if value is None:
            known = ", ".join(key for key, chip in CATALOGUE.items() if name in chip.figures)
            raise ConfigError(
                f"is not known of {self.label!r}, and {why} needs it",
                field=f"world.chip.{name}",
                allowed=f"a number; the catalogue knows it of {known}",
                remedy=f"give it: chip = {{ name = {self.label!r}, {name} = … }}, or name another chip",
            )
        return value

    @property
    def shapes(self) -> tuple[int, ...]:
        """Slices that can be bought; empty: any."""
        if self.slice_shapes is not None:
            return tuple(sorted(self.slice_shapes))
        return CATALOGUE[self.name].slice_shapes if self.name in CATALOGUE else ()

    def check_slice(self, chips: int, field: str) -> None:
        """Refuse a slice that nobody sells.

        Raises:
            ConfigError: naming those that are sold.

        """
        shapes = self.shapes
        if shapes and chips not in shapes:
            nearest = min((shape for shape in shapes if shape >= chips), default=shapes[-1])
            raise ConfigError(
                f"is no slice of {self.label}: slices are bought whole",
                field=field,
                value=chips,
                allowed=", ".join(map(str, shapes)),
                remedy=f"take {nearest}, or give other shapes in world.chip.slice_shapes",
            )

    def ici_one_way(self) -> float:
        """Bytes a second that one chip sends to others of its slice."""
        return self.needed("ici_bytes_per_s", 'path = "ici"') / 2

    def dcn_of(self, chips: int) -> float:
        """Bytes a second that a slice of `chips` chips sends over the data-centre network; a part of a host has that part."""
        hosts = chips / self.needed("chips_per_host", 'path = "dcn"')
        return hosts * self.needed("dcn_bytes_per_s", 'path = "dcn"')


def peaks(chip: Chip, chips_of_replica: int) -> Peaks:
    """The figures that the roofline rests on.

    Raises:
        ConfigError: one of them is not known.

    """
    said = {name: chip.needed(name, "the roofline") for name in _FIELD_OF}
    ici = chip.needed("ici_bytes_per_s", "a replica of several chips") if chips_of_replica > 1 else 0.0
    return Peaks(chip.label, said["bf16_flop_per_s"], said["hbm_bytes"], said["hbm_bytes_per_s"], ici)


# ── filling in what is absent ───────────────────────────────────────────────────────────────────────────────────────────────


def work_out(world: Any) -> Any:
    """The data of a world with everything filled in that follows from chip and model; what else is wrong stays as it is.

    Raises:
        ConfigError: a chip without a model or the other way round, a figure that nobody knows, weights that leave no room.

    """
    if not isinstance(world, dict):
        return world
    data = _forgotten(world)
    if "derived" in data:
        return data
    try:
        chip = None if data.get("chip") is None else Chip.model_validate(data["chip"])
        model = None if data.get("model") is None else Model.model_validate(data["model"])
        efficiencies = Efficiencies() if data.get("roofline") is None else Efficiencies.model_validate(data["roofline"])
    except ValidationError:
        return data  # said with its place when the world itself is checked
    sizes = _sizes(data)
    if sizes is None:
        return data
    derived = [*_laws(data, chip, model, efficiencies, sizes), *_links(data, chip, efficiencies, sizes)]
    return {**data, "derived": derived} if derived else data


def _forgotten(world: dict[str, Any]) -> dict[str, Any]:
    """A copy, two tables deep, without what an earlier load worked out."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in world.items() if key != "derived"}
    if isinstance(data.get("weights"), dict) and isinstance(data["weights"].get("transfer"), dict):
        data["weights"]["transfer"] = dict(data["weights"]["transfer"])
    gone = world.get("derived", ())
    known = [path for path in gone if path in get_args(Derivable)] if isinstance(gone, list | tuple) else []
    if len(known) < len(gone if isinstance(gone, list | tuple) else [gone]):
        return data | {"derived": gone}  # said when the world itself is checked
    for path in known:
        *tables, last = path.split(".")
        at: Any = data
        for table in tables:
            at = at.get(table, {}) if isinstance(at, dict) else {}
        if isinstance(at, dict):
            at.pop(last, None)
            if path == "learner.log_probs":
                at[last] = ROOFLINE
    return data


def _sizes(data: dict[str, Any]) -> tuple[int, int] | None:
    """Chips of a replica and of the learner, where both are numbers."""
    found = []
    for table, key in (("inference", "chips_per_replica"), ("learner", "chips")):
        at = data.get(table)
        chips = at.get(key) if isinstance(at, dict) else None
        if not isinstance(chips, int) or isinstance(chips, bool) or chips < 1:
            return None
        found.append(chips)
    return found[0], found[1]


def _laws(
    data: dict[str, Any], chip: Chip | None, model: Model | None, efficiencies: Efficiencies, sizes: tuple[int, int]
) -> list[str]:
    """Fill in laws, capacity and bytes of weights; returns the paths of what was filled in."""
    wanted = [path for path, table, key in _PLACES if isinstance(data.get(table), dict) and key not in data[table]]
    if isinstance(data.get("learner"), dict) and data["learner"].get("log_probs") == ROOFLINE:
        wanted.append("learner.log_probs")
    if not wanted or (chip is None and model is None and wanted != ["learner.log_probs"]):
        return []  # what is missing is said with its place when the world itself is checked
    if chip is None or model is None:
        raise ConfigError(
            "is missing",
            field="world.chip" if chip is None else "world.model",
            allowed=f"one of {', '.join(CATALOGUE)}, or a table" if chip is None else "a table of the model's sizes",
            remedy=f"world.{', world.'.join(wanted)} can be worked out where both are given; else give them",
        )
    replica, learner = sizes
    if replica > 1 and model.hidden_size is None:
        raise ConfigError(
            "is missing",
            field="world.model.hidden_size",
            remedy=f"add it: the {replica} chips of a replica exchange vectors of this width",
        )
    top = peaks(chip, replica)
    kv_tokens = roofline.kv_capacity_tokens(top, model, efficiencies, replica)
    makers: dict[str, Callable[[], Any]] = {
        "inference.decode": lambda: roofline.decode_law(top, model, efficiencies, replica).model_dump(),
        "inference.prefill": lambda: roofline.prefill_law(top, model, efficiencies, replica).model_dump(),
        "inference.kv_capacity_tokens": lambda: _room(kv_tokens, top, model, efficiencies, replica),
        "learner.train": lambda: roofline.train_law(top, model, efficiencies, learner).model_dump(),
        "learner.log_probs": lambda: roofline.log_probs_law(top, model, efficiencies, learner).model_dump(),
        "weights.weights_bytes": lambda: model.weights_bytes,
    }
    for path in wanted:
        table, _, key = path.partition(".")
        data[table][key] = makers[path]()
    return wanted


def _room(tokens: int, top: Peaks, model: Model, efficiencies: Efficiencies, chips: int) -> int:
    if tokens >= 1:
        return tokens
    usable = top.hbm_bytes * efficiencies.usable_hbm - efficiencies.buffers_bytes
    least = f"more than {model.weights_bytes / usable:.3g} chips of {top.name}" if usable > 0 else "smaller buffers"
    raise ConfigError(
        f"have no room for {model.weights_bytes:.4g} bytes of weights and a KV cache",
        field="world.inference.chips_per_replica",
        value=chips,
        allowed=least,
        remedy="give a replica more chips, or lower world.model.bytes_per_parameter or world.roofline.buffers_bytes",
    )


def _links(data: dict[str, Any], chip: Chip | None, efficiencies: Efficiencies, sizes: tuple[int, int]) -> list[str]:
    """Fill in the rates of a transfer that names its path; returns the paths of what was filled in."""
    weights = data.get("weights")
    transfer = weights.get("transfer") if isinstance(weights, dict) else None
    if not isinstance(transfer, dict) or transfer.get("path") not in ("ici", "dcn"):
        return []
    if chip is None:
        raise ConfigError(
            "is missing",
            field="world.chip",
            allowed=f"one of {', '.join(CATALOGUE)}, or a table",
            remedy="name the chip whose network world.weights.transfer.path goes over",
        )
    replica, learner = sizes
    if transfer["path"] == "ici":
        each = chip.ici_one_way() * efficiencies.ici_share
        receives, sends = each * replica, each * learner
    else:
        hosts: Any = transfer.get("hosts_per_replica")
        given = isinstance(hosts, int) and hosts > 0
        receives = hosts * chip.needed("dcn_bytes_per_s", 'path = "dcn"') if given else chip.dcn_of(replica)
        receives, sends = receives * efficiencies.dcn_share, chip.dcn_of(learner) * efficiencies.dcn_share
    derived = []
    if "bytes_per_s" not in transfer:
        transfer["bytes_per_s"] = min(receives, sends)
        derived.append("weights.transfer.bytes_per_s")
    if transfer.get("shares_sender_link") is True and "sender_bytes_per_s" not in transfer:
        transfer["sender_bytes_per_s"] = sends
        derived.append("weights.transfer.sender_bytes_per_s")
    return derived


_PLACES = (
    ("inference.decode", "inference", "decode"),
    ("inference.prefill", "inference", "prefill"),
    ("inference.kv_capacity_tokens", "inference", "kv_capacity_tokens"),
    ("learner.train", "learner", "train"),
    ("weights.weights_bytes", "weights", "weights_bytes"),
)

assert set(FIGURES) <= set(Chip.model_fields)
