"""What a configuration must satisfy as a whole.

Refused is what can never work: a wait that nothing ends, work that is thrown away for ever, an inner deadline that an
outer one always cuts short. With B groups per step, G members, k steps per sync, S staleness bound, D pipeline depth, τ
window fraction:

- D ≤ S: what is made D steps ahead is used D steps late.
- `lead`: k ≤ D + 1. Between two publishes p stays and the learner makes k steps, the last of them at t = p + k - 1, and
  needs credit for it: (D + p + 1)·B ≥ (p + k)·B.
- The other laws give that credit, and under `drop` or `wait` need k ≤ S + 1: at t = p + S + 1 every sample that can be
  made has lag above S, and is thrown away for ever.
- `wait` never drops, so admission must never start more than can be used in time. Samples of version p can be used until
  the learner leaves p + S. `lead` has at most (D + p + 1)·B - t·B of them outstanding: safe because D ≤ S.
  `window` lets the learner use (1 + τ)·k·B groups per publish. With τ = 0 it cannot pass the version that is on its way.
  With τ > 0 it can: when a slow publish arrives the learner may be (2 + τ)·k steps ahead of it, and the groups that
  start then are used up (1 + τ)·k steps later: (3 + 2τ)·k ≤ S + 1. `target_step` and `inflight` start without regard to
  what is published: refused.
  Over-provisioned groups start at p beyond the credit and enter under the credit of the next version: refused.
  And a buffer that blocks must hold all that may be outstanding, or the one group that the learner waits for stands outside.
- A whole batch, or the chunk of a pull, fits into the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import ConfigError
from pipeline.policies.admission import window_quota
from pipeline.policies.kinds import (
    AdmissionKind,
    FilterKind,
    OnFull,
    OrderPolicy,
    StalePolicy,
    StartUnit,
    SyncMode,
    SyncRollout,
)

if TYPE_CHECKING:
    from pipeline.config import PipelineConfig

_BY_STEP = (AdmissionKind.LEAD, AdmissionKind.TARGET_STEP)


def check(config: PipelineConfig) -> None:
    """Refuse what can never work.

    Raises:
        ConfigError: names the constraint, the fields with their values, and what to do.

    """
    _check_batch(config)
    _check_groups(config)
    _check_versions(config)
    _check_wait(config)
    _check_buffer(config)
    _check_cap(config)
    _check_sync(config)
    _check_deadlines(config)


def _refuse(config: PipelineConfig, problem: str, fields: tuple[str, ...], *, allowed: str, remedy: str) -> None:
    """Raise, naming the first field as the place and all of them with their values."""
    values: dict[str, object] = {}
    for field in fields:
        value: object = config
        for part in field.split("."):
            value = getattr(value, part)
        values[field] = str(value) if isinstance(value, str) else value
    shown = ", ".join(f"{field} = {value}" for field, value in values.items())
    raise ConfigError(
        f"{problem} ({shown})", field=f"pipeline.{fields[0]}", value=values[fields[0]], allowed=allowed, remedy=remedy
    )


def _check_batch(config: PipelineConfig) -> None:
    if config.groups_per_step % config.chunk_groups:
        _refuse(
            config,
            "a batch is not a whole number of chunks",
            ("consume_chunk", "groups_per_step"),
            allowed="a divisor of groups_per_step, or 0 for the whole batch",
            remedy="choose a chunk that divides groups_per_step",
        )


def _check_groups(config: PipelineConfig) -> None:
    if config.group_quorum > config.group_size:
        _refuse(
            config,
            "a group can never reach its quorum",
            ("group_quorum", "group_size"),
            allowed="0 (all members) to group_size",
            remedy="lower group_quorum to at most group_size",
        )
    if config.filter is FilterKind.ZERO_VARIANCE and config.members_needed < 2:
        _refuse(
            config,
            "a group of one has no variance: every group would be filtered and no step ever made",
            ("filter", "group_size", "group_quorum"),
            allowed="none, or groups of at least 2 finished members",
            remedy='set filter = "none", or raise group_size (and group_quorum) to 2 or more',
        )


def _check_versions(config: PipelineConfig) -> None:
    depth, bound, sync = config.pipeline_depth, config.max_staleness, config.steps_per_sync
    if depth > bound:
        _refuse(
            config,
            "generation would run further ahead than samples may be late: pipeline_depth > max_staleness",
            ("pipeline_depth", "max_staleness"),
            allowed=f"0 to max_staleness = {bound}",
            remedy=f"lower pipeline_depth to {bound} or raise max_staleness to {depth}",
        )
    if config.admission is AdmissionKind.LEAD and sync > depth + 1:
        _refuse(
            config,
            "the next publish could never be reached: steps_per_sync > pipeline_depth + 1",
            ("steps_per_sync", "pipeline_depth", "admission"),
            allowed=f"1 to pipeline_depth + 1 = {depth + 1}",
            remedy=f"lower steps_per_sync to {depth + 1}, or raise pipeline_depth (and max_staleness) to {sync - 1}",
        )
    if config.admission is not AdmissionKind.LEAD and config.stale_policy is not StalePolicy.TRAIN and sync > bound + 1:
        _refuse(
            config,
            "the next publish could never be reached: before it every sample would be too stale to use, "
            "steps_per_sync > max_staleness + 1",
            ("steps_per_sync", "max_staleness", "admission", "stale_policy"),
            allowed=f"1 to max_staleness + 1 = {bound + 1}",
            remedy=f'lower steps_per_sync to {bound + 1}, raise max_staleness to {sync - 1}, or use stale_policy = "train"',
        )


def _check_wait(config: PipelineConfig) -> None:
    if config.stale_policy is not StalePolicy.WAIT:
        return
    if config.overprovision_groups:
        _refuse(
            config,
            "over-provisioned groups start beyond the credit, so that more samples of one version than can be used within "
            "max_staleness may enter the buffer, and a learner that waits would wait for ever",
            ("overprovision_groups", "stale_policy"),
            allowed='0 with stale_policy = "wait"',
            remedy='set overprovision_groups = 0 (overprovision_members is no trouble), or stale_policy = "drop"',
        )
    if config.admission is AdmissionKind.LEAD:
        return
    if config.admission is not AdmissionKind.WINDOW:
        _refuse(
            config,
            f"{config.admission} starts groups without regard to the published version: more than can be used within "
            "max_staleness, and a learner that waits would wait for ever",
            ("stale_policy", "admission"),
            allowed="wait with admission lead or window; drop or train with any",
            remedy='set admission = "lead", or stale_policy = "drop"',
        )
    batch, sync, bound = config.groups_per_step, config.steps_per_sync, config.max_staleness
    quota = window_quota(batch, sync, config.window_fraction)
    if config.window_fraction > 0 and sync * batch + 2 * quota > (bound + 1) * batch:
        _refuse(
            config,
            "when a slow publish arrives, the window starts more groups than can be used within max_staleness, and a learner "
            "that waits would wait for ever: (3 + 2*tau)*k > S + 1",
            ("window_fraction", "steps_per_sync", "max_staleness", "stale_policy"),
            allowed=f"window_fraction = 0, or (3 + 2 * window_fraction) * steps_per_sync <= {bound + 1}",
            remedy='set window_fraction = 0 or admission = "lead", raise max_staleness, or set stale_policy = "drop"',
        )


def outstanding_groups(config: PipelineConfig) -> int | None:
    """Most groups that can be running and buffered at once, over-provisioned ones included; None where nothing limits it."""
    extra = config.overprovision_groups
    if config.admission in _BY_STEP:
        return config.groups_per_step * (config.pipeline_depth + 1) + extra
    if config.admission is AdmissionKind.WINDOW:
        return window_quota(config.groups_per_step, config.steps_per_sync, config.window_fraction) + extra
    return None


def _check_buffer(config: PipelineConfig) -> None:
    batch, capacity, chunk = config.groups_per_step, config.buffer_capacity, config.chunk_groups
    if chunk == batch and config.admission in _BY_STEP and capacity < batch * (config.pipeline_depth + 1):
        whole = batch * (config.pipeline_depth + 1)
        _refuse(
            config,
            "the buffer cannot hold the whole batches that are made ahead: buffer_capacity < groups_per_step * "
            "(pipeline_depth + 1)",
            ("buffer_capacity", "groups_per_step", "pipeline_depth", "consume_chunk"),
            allowed=f"{whole} or more",
            remedy=f"raise buffer_capacity to {whole}, or let the learner take chunks (consume_chunk)",
        )
    if capacity < chunk:
        _refuse(
            config,
            "the buffer can never hold what the learner takes in one pull",
            ("buffer_capacity", "consume_chunk", "groups_per_step"),
            allowed=f"{chunk} or more",
            remedy=f"raise buffer_capacity to {chunk}, or lower consume_chunk",
        )
    most = outstanding_groups(config)
    waits_outside = config.stale_policy is StalePolicy.WAIT and config.on_full is OnFull.BLOCK
    if waits_outside and most is not None and capacity < most:
        _refuse(
            config,
            "the one group that a waiting learner needs could stand outside a full buffer for ever",
            ("buffer_capacity", "stale_policy", "on_full"),
            allowed=f"{most} or more: all groups that may be outstanding",
            remedy=f'raise buffer_capacity to {most}, or set stale_policy = "drop"',
        )


def _check_cap(config: PipelineConfig) -> None:
    if config.start_unit is not StartUnit.MEMBER and config.max_inflight < config.members_planned:
        _refuse(
            config,
            "the cap can never hold one group that has to start whole",
            ("max_inflight", "start_unit", "group_size", "overprovision_members"),
            allowed=f"{config.members_planned} or more",
            remedy=f'raise max_inflight to {config.members_planned}, or set start_unit = "member"',
        )


def _check_sync(config: PipelineConfig) -> None:
    if config.sync_mode is SyncMode.DRAIN_EPISODES and config.sync_rollout is SyncRollout.ROLLING:
        _refuse(
            config,
            "a sync that waits for every episode leaves no episode for the other replicas to serve",
            ("sync_rollout", "sync_mode"),
            allowed="rolling with sync_mode drain, abort_resume or keep",
            remedy='set sync_rollout = "all_at_once" or another sync_mode',
        )


def _check_deadlines(config: PipelineConfig) -> None:
    pairs = [
        ("tool_s", "step_s"),
        ("build_s", "episode_s"),
        ("reset_s", "episode_s"),
        ("generation_s", "episode_s"),
        ("step_s", "episode_s"),
        ("reward_s", "episode_s"),
    ]
    if config.eval_interval:
        pairs.append(("episode_s", "evaluation_s"))
    if config.sync_mode is SyncMode.DRAIN:
        pairs.append(("generation_s", "sync_s"))
    if config.sync_mode is SyncMode.DRAIN_EPISODES:
        pairs.append(("episode_s", "sync_s"))
    for inner, outer in pairs:
        limit = getattr(config.deadlines, outer)
        if getattr(config.deadlines, inner) > limit:
            _refuse(
                config,
                f"an inner deadline outlasts the outer one: {inner} > {outer}",
                (f"deadlines.{inner}", f"deadlines.{outer}"),
                allowed=f"above 0 and at most {outer} = {limit:g} s",
                remedy=f"lower deadlines.{inner} or raise deadlines.{outer}",
            )
    if config.backoff_s > config.backoff_max_s:
        _refuse(
            config,
            "the first back-off is longer than the longest",
            ("backoff_s", "backoff_max_s"),
            allowed=f"0 to backoff_max_s = {config.backoff_max_s:g} s",
            remedy="lower backoff_s or raise backoff_max_s",
        )


def notices(config: PipelineConfig) -> tuple[str, ...]:
    """Knobs without effect beside the others, and settings that work but are surely a clog."""
    findings = (*_unused_by_law(config), *_unused_by_size(config), *_unused_alone(config), *_clogs(config))
    return tuple(text for says, text in findings if says)


def _most_episodes(config: PipelineConfig) -> int | None:
    """Most episodes that admission lets be outstanding; None where nothing limits them."""
    most = outstanding_groups(config)
    return None if most is None else most * config.members_planned


def _unused_by_law(config: PipelineConfig) -> tuple[tuple[bool, str], ...]:
    """Knobs that the chosen laws do not look at."""
    by_window, by_lead = config.admission is AdmissionKind.WINDOW, config.admission is AdmissionKind.LEAD
    changed = config.model_fields_set
    return (
        (
            config.window_fraction > 0 and not by_window,
            f"window_fraction has no effect with admission = {config.admission}: only window uses it",
        ),
        (
            "pipeline_depth" in changed and config.pipeline_depth > 0 and config.admission not in _BY_STEP,
            f"pipeline_depth has no effect with admission = {config.admission}: only lead and target_step use it",
        ),
        (
            "max_staleness" in changed and by_window and config.stale_policy is StalePolicy.TRAIN,
            "max_staleness has no effect with admission = window and stale_policy = train: nothing is bounded by it",
        ),
        (
            "stale_policy" in changed and by_lead and config.pipeline_depth == 0,
            "stale_policy has no effect: with pipeline_depth = 0 every sample is used at the version that made it",
        ),
    )


def _unused_by_size(config: PipelineConfig) -> tuple[tuple[bool, str], ...]:
    """Knobs that would matter if more could be outstanding."""
    most, episodes = outstanding_groups(config), _most_episodes(config)
    return (
        (
            config.order_policy is not OrderPolicy.OLDEST_VERSION and most is not None and most <= config.groups_per_step,
            f"order_policy has no effect: at most {most} groups are ever outstanding, and one step takes them all",
        ),
        (
            config.start_unit is not StartUnit.MEMBER and episodes is not None and config.max_inflight >= episodes,
            f"start_unit has no effect: the cap of {config.max_inflight} holds all {episodes} episodes that admission allows",
        ),
        (
            config.on_full is OnFull.DROP_OLDEST and most is not None and config.buffer_capacity >= most,
            f"on_full has no effect: at most {most} groups are ever outstanding and the buffer holds {config.buffer_capacity}",
        ),
        (
            episodes is not None and config.max_inflight > episodes,
            f"max_inflight has no effect: admission lets at most {episodes} episodes be outstanding",
        ),
    )


def _unused_alone(config: PipelineConfig) -> tuple[tuple[bool, str], ...]:
    """Knobs whose partner is off, and values that say what the default says."""
    changed = config.model_fields_set
    return (
        (
            config.retry_infra == 0 and config.retry_data == 0 and bool({"backoff_s", "backoff_max_s"} & changed),
            "backoff_s and backoff_max_s have no effect: there are no retries",
        ),
        ("eval_episodes" in changed and not config.eval_interval, "eval_episodes has no effect: eval_interval is 0"),
        (
            0 < config.group_quorum == config.group_size,
            "group_quorum has no effect: it asks for all members, as 0 does",
        ),
        (
            0 < config.consume_chunk == config.groups_per_step,
            "consume_chunk has no effect: it asks for the whole batch, as 0 does",
        ),
    )


def _clogs(config: PipelineConfig) -> tuple[tuple[bool, str], ...]:
    """What works, but surely not as it was meant."""
    inflight = min(config.max_inflight, _most_episodes(config) or config.max_inflight)
    most = outstanding_groups(config) or 0
    return (
        (
            config.admission is AdmissionKind.INFLIGHT and config.overprovision_groups > 0,
            "overprovision_groups merely raises the cap of admission = inflight: no group ever ends as surplus",
        ),
        (
            config.env_workers < inflight,
            f"env_workers = {config.env_workers} is below the episodes that may be in flight "
            f"({inflight}): an environment is held for the whole episode, "
            "so this is the cap",
        ),
        (
            config.stale_policy is StalePolicy.WAIT and config.on_full is OnFull.DROP_OLDEST and config.buffer_capacity < most,
            f"on_full = drop_oldest evicts what stale_policy = wait would wait for: up to {most} groups may be outstanding",
        ),
        (
            config.sync_mode is SyncMode.DRAIN_EPISODES and config.pipeline_depth > 0,
            "sync_mode = drain_episodes stops all episodes at each sync and undoes pipeline_depth: it is meant for the "
            "synchronous baseline; drain waits for requests only",
        ),
    )
