"""The pipeline's configuration: at most 40 knobs and one table of deadlines, checked as a whole on construction.

Types are strict: `"32"` and `32.5` are no group sizes, NaN and infinities no numbers, an unknown field is refused. What
cannot work is refused with the reason (see `pipeline.constraints`); a knob that has no effect beside the others is said by
`notices()`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.core.knobs import Knob, KnobKind, Scale
from pipeline import constraints
from pipeline.policies.kinds import (
    AdmissionKind,
    FilterKind,
    KvPolicy,
    OnFull,
    OrderPolicy,
    Placement,
    RouterPolicy,
    StalePolicy,
    StartUnit,
    Stepping,
    SyncMode,
    SyncRollout,
)

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


def number(default: float, low: float, high: float, unit: str, owner: str, doc: str, scale: Scale = Scale.LINEAR) -> Any:
    """A knob that is a number; a configuration of a user's own makes its knobs so too. Editors show unit and range."""
    return Field(
        default=default,
        ge=low,
        le=high,
        description=f"{doc} Unit: {unit}. From {low:g} to {high:g}.",
        json_schema_extra={"unit": unit, "owner": owner, "scale": scale.value},
    )


def choice(default: StrEnum, owner: str, doc: str) -> Any:
    """A knob that is a named choice. Not strict, because a file holds its value as text."""
    allowed = ", ".join(type(default))
    return Field(
        default=default, strict=False, description=f"{doc} One of: {allowed}.", json_schema_extra={"owner": owner, "unit": ""}
    )


def _deadline(default_s: float, doc: str) -> Any:
    return Field(default=default_s, gt=0, le=MAX_DEADLINE_S, description=f"{doc} Unit: seconds, above 0, at most a week.")


SHORTEST_DEADLINE_S = 0.001
"""The shortest that a search tries; a file may hold any above 0."""

MAX_DEADLINE_S = 7 * 86_400.0
"""A longer wait is a hang with a number on it. Peers' default of seven days is the longest seen."""


class Deadlines(BaseModel):
    """How long each wait on something outside may take, in seconds."""

    model_config = _STRICT

    build_s: float = _deadline(600.0, "Build or start an environment's sandbox.")
    reset_s: float = _deadline(600.0, "Reset an environment to a task.")
    step_s: float = _deadline(900.0, "One environment step, tool calls and their retries included.")
    tool_s: float = _deadline(600.0, "One tool call.")
    generation_s: float = _deadline(600.0, "One turn's generation, queueing included.")
    reward_s: float = _deadline(600.0, "Score one episode.")
    close_s: float = _deadline(60.0, "Tear an environment down; beyond it the sandbox is abandoned.")
    sync_s: float = _deadline(1800.0, "One weight sync, from its start until every replica has the version.")
    checkpoint_s: float = _deadline(1800.0, "One checkpoint.")
    evaluation_s: float = _deadline(14_400.0, "One evaluation round.")
    episode_s: float = _deadline(7200.0, "One attempt at an episode, from building its environment to its score.")


class PipelineConfig(BaseModel):
    """Every knob of the pipeline. Names are the field's own; counts of groups, episodes and steps say which they are."""

    model_config = _STRICT

    group_size: int = number(8, 1, 256, "episodes per group", "grouping", "G: responses to one task.", Scale.LOG)
    groups_per_step: int = number(
        32, 1, 4096, "groups per step", "learner", "B: groups consumed by one optimizer step.", Scale.LOG
    )
    consume_chunk: int = number(
        0, 0, 4096, "groups", "learner", "Groups per pull of the learner; 0 is the whole batch.", Scale.LOG
    )
    steps_per_sync: int = number(1, 1, 64, "optimizer steps", "cadence", "k: learner steps between two weight syncs.")
    max_staleness: int = number(1, 0, 64, "optimizer steps", "staleness", "S: bound on a sample's lag when it is consumed.")
    pipeline_depth: int = number(
        1, 0, 64, "optimizer steps", "admission", "D: how far generation may run ahead of the published version; at most S."
    )
    stale_policy: StalePolicy = choice(StalePolicy.DROP, "staleness", "What happens to samples beyond the bound.")
    order_policy: OrderPolicy = choice(OrderPolicy.OLDEST_VERSION, "buffer", "Which buffered group the learner takes first.")
    admission: AdmissionKind = choice(AdmissionKind.LEAD, "admission", "The law that lets groups start.")
    window_fraction: float = number(
        0.0, 0.0, 16.0, "fraction of a window", "admission", "Tau: groups beyond k*B per sync window (admission: window)."
    )
    max_inflight: int = number(512, 1, 1_000_000, "episodes", "capacity", "Episodes in flight at most.", Scale.LOG)
    start_unit: StartUnit = choice(
        StartUnit.MEMBER,
        "capacity",
        "Whether a group starts whole or member by member; a held group also keeps its places until its last member has ended.",
    )
    stepping: Stepping = choice(
        Stepping.TRAJECTORY,
        "rollout",
        "Whether an episode goes from turn to turn by itself, or all in flight wait for the slowest each turn (a baseline).",
    )
    buffer_capacity: int = number(
        64, 1, 1_000_000, "groups", "buffer", "Complete groups that wait for the learner; B*(D+1) is recommended.", Scale.LOG
    )
    on_full: OnFull = choice(OnFull.BLOCK, "buffer", "What a full buffer does with one group more.")
    sync_mode: SyncMode = choice(SyncMode.KEEP, "sync", "What a replica does with running work before it takes weights.")
    sync_rollout: SyncRollout = choice(SyncRollout.ALL_AT_ONCE, "sync", "Whether replicas take weights together or in turn.")
    placement: Placement = choice(
        Placement.DISAGGREGATED, "placement", "Whether learner and replicas have chips of their own or take turns on the same."
    )
    overprovision_members: int = number(0, 0, 256, "episodes per group", "grouping", "Members started beyond G.")
    overprovision_groups: int = number(0, 0, 4096, "groups", "admission", "Groups started beyond the credit.")
    group_quorum: int = number(
        0, 0, 256, "episodes per group", "grouping", "Finished members that release a group; 0 is all G."
    )
    filter: FilterKind = choice(FilterKind.NONE, "filtering", "Which complete groups are not worth training on.")
    env_workers: int = number(
        512, 1, 1_000_000, "environments", "environments", "Environments at once; each is held for a whole episode.", Scale.LOG
    )
    tool_workers: int = number(256, 1, 1_000_000, "calls", "tools", "Tool calls at once; each is held for one call.", Scale.LOG)
    reward_workers: int = number(64, 1, 1_000_000, "episodes", "scoring", "Episodes scored at once.", Scale.LOG)
    router_policy: RouterPolicy = choice(RouterPolicy.STICKY, "router", "Which replica serves a request.")
    slots_per_replica: int = number(
        64, 1, 65_536, "requests", "inference", "Requests that one replica decodes at once.", Scale.LOG
    )
    decode_chunk_steps: int = number(
        32, 1, 65_536, "decode steps", "inference", "Decode steps between two decisions of the scheduler.", Scale.LOG
    )
    kv_policy: KvPolicy = choice(
        KvPolicy.RESERVE, "inference", "Whether a request reserves KV for its whole cap, or grows and may be preempted."
    )
    retry_infra: int = number(2, 0, 100, "retries per episode", "retries", "Retries after infrastructure failures.")
    retry_data: int = number(0, 0, 100, "retries per episode", "retries", "Retries after data failures.")
    backoff_s: float = number(1.0, 0.0, 3600.0, "seconds", "retries", "Wait before the first retry; doubles with each.")
    backoff_max_s: float = number(60.0, 0.0, 86_400.0, "seconds", "retries", "Longest wait before a retry.")
    checkpoint_interval: int = number(
        0, 0, 1_000_000, "optimizer steps", "checkpointer", "Steps between checkpoints; 0 is never."
    )
    eval_interval: int = number(0, 0, 1_000_000, "optimizer steps", "evaluation", "Steps between evaluations; 0 is never.")
    eval_episodes: int = number(64, 1, 1_000_000, "episodes", "evaluation", "Episodes of one evaluation.", Scale.LOG)
    deadlines: Annotated[Deadlines, Field(description="How long each wait on something outside may take.")] = Deadlines()

    @property
    def chunk_groups(self) -> int:
        """Groups per pull of the learner, with 0 resolved."""
        return self.consume_chunk or self.groups_per_step

    @property
    def members_needed(self) -> int:
        """Finished members that release a group, with 0 resolved."""
        return self.group_quorum or self.group_size

    @property
    def members_planned(self) -> int:
        """Members started per group, over-provisioned ones included."""
        return self.group_size + self.overprovision_members

    def with_changes(self, **changes: object) -> Self:
        """A copy with other values, checked as a whole again."""
        return type(self).model_validate({**dict(self), **changes})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        constraints.check(self)
        return self

    def notices(self) -> tuple[str, ...]:
        """What works but does nothing, or surely not what was meant; one sentence each."""
        return constraints.notices(self)


def knobs(prefix: str = "pipeline", of: type[PipelineConfig] = PipelineConfig) -> tuple[Knob, ...]:
    """Descriptors of every knob, in the order of the configuration; the deadlines are no knobs.

    Args:
        prefix: table in which they stand.
        of: the configuration; one of a user's own has more fields, of which those made by `number` and `choice` are knobs.

    """
    return tuple(_knob(f"{prefix}.{name}", info) for name, info in of.model_fields.items() if _owned(info))


def _owned(info: FieldInfo) -> bool:
    extra = info.json_schema_extra
    return isinstance(extra, dict) and "owner" in extra


def deadline_knobs(prefix: str = "pipeline.deadlines") -> tuple[Knob, ...]:
    """Descriptors of the deadlines, for whoever searches them like knobs."""
    return tuple(
        Knob(
            f"{prefix}.{name}",
            KnobKind.FLOAT,
            info.default,
            "deadlines",
            unit="seconds",
            low=SHORTEST_DEADLINE_S,
            high=MAX_DEADLINE_S,
            scale=Scale.LOG,
            doc=(info.description or "").partition(" Unit:")[0],
        )
        for name, info in Deadlines.model_fields.items()
    )


def _knob(path: str, info: FieldInfo) -> Knob:
    extra = info.json_schema_extra
    assert isinstance(extra, dict)
    doc = (info.description or "").partition(" Unit:")[0].partition(" One of:")[0]
    default = info.default
    if isinstance(default, StrEnum):
        choices = tuple(type(default))
        return Knob(path, KnobKind.CHOICE, default.value, str(extra["owner"]), choices=tuple(c.value for c in choices), doc=doc)
    bounds = {type(item).__name__: item for item in info.metadata}
    return Knob(
        path,
        KnobKind.INT if isinstance(default, int) else KnobKind.FLOAT,
        default,
        str(extra["owner"]),
        unit=str(extra["unit"]),
        low=float(bounds["Ge"].ge),
        high=float(bounds["Le"].le),
        scale=Scale(str(extra["scale"])),
        doc=doc,
    )
