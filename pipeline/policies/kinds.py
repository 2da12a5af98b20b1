"""The named choices of the pipeline. Values are what a scenario file says."""

from __future__ import annotations

from enum import StrEnum


class StalePolicy(StrEnum):
    """What happens to a sample that is, or would become, older than `max_staleness` at consumption."""

    DROP = "drop"
    WAIT = "wait"
    TRAIN = "train"


class OrderPolicy(StrEnum):
    """Which buffered group is consumed first. Ties go to the smaller group id."""

    OLDEST_VERSION = "oldest_version"
    FIFO = "fifo"
    FRESHEST = "freshest"


class AdmissionKind(StrEnum):
    """Which law says when a group may start."""

    LEAD = "lead"
    WINDOW = "window"
    TARGET_STEP = "target_step"
    INFLIGHT = "inflight"


class StartUnit(StrEnum):
    """Whether a group starts whole or member by member under the episode cap, and when it gives its places back."""

    GROUP = "group"
    MEMBER = "member"
    HELD_GROUP = "held_group"


class Stepping(StrEnum):
    """What an episode waits for between two turns."""

    TRAJECTORY = "trajectory"
    BATCH = "batch"


class OnFull(StrEnum):
    """What a full buffer does with one group more."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


class SyncMode(StrEnum):
    """What a replica does with running work before it takes new weights."""

    DRAIN = "drain"
    DRAIN_EPISODES = "drain_episodes"
    ABORT_RESUME = "abort_resume"
    KEEP = "keep"


class SyncRollout(StrEnum):
    """Whether all replicas take new weights together or one after the other."""

    ALL_AT_ONCE = "all_at_once"
    ROLLING = "rolling"


class Placement(StrEnum):
    """Whether learner and replicas have chips of their own, or take turns on the same."""

    DISAGGREGATED = "disaggregated"
    COLOCATED = "colocated"


class FilterKind(StrEnum):
    """Which finished groups are not worth training on."""

    NONE = "none"
    ZERO_VARIANCE = "zero_variance"


class RouterPolicy(StrEnum):
    """Which replica serves a request."""

    ROUND_ROBIN = "round_robin"
    STICKY = "sticky"
    LEAST_LOADED = "least_loaded"


class KvPolicy(StrEnum):
    """What a request must find free in a replica's KV cache to be let in."""

    RESERVE = "reserve"
    GROW = "grow"
