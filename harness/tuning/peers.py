"""The patch in the names of other trainers: what one would write there to get the same.

Only knobs with a true counterpart are translated; of every other change it is said that there is none. Units are converted
where they differ, and where a trainer means something a little else, the line says so. Names, units and laws are those of the
projects' sources as they stood in the autumn of 2026:

========  ==================================================  =============================================================
trainer   its law of running ahead                            so
========  ==================================================  =============================================================
Tunix     off_policy_steps + 1 batches of prompts at the      `off_policy_steps` is our `pipeline_depth`; its lag cannot
          start, then one for every step                      exceed it, so that it bounds staleness as well
verl      fully async: (1 + tau) x k x B samples started      tau = (D + 1) / k - 1; the documentation advises tau < 1
          from one weight sync to the next
AReaL     accepted + running < (eta + v + 1) x B, and         our `lead` with D = eta; both are counted in groups, since a
          running < max_concurrent_rollouts                   workflow gathers its whole group
prime-rl  a lead of one step, fixed; rollouts older than      only the bound can be set; the number in flight follows the
          max_off_policy_steps are dropped                    pressure on the KV cache by itself
========  ==================================================  =============================================================

D is `pipeline_depth`, k `steps_per_sync`, B `groups_per_step`, v the published version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.tuning.space import Settings, Value

Lines = list[str]

FORMATS = {"tunix": "yaml", "verl": "yaml", "areal": "yaml", "prime-rl": "toml"}
"""Trainer, and the format of its configuration."""


def peers(changed: Settings, config: Mapping[str, Value]) -> dict[str, str]:
    """The patch for each trainer, as the text of a file in its own format; nothing where nothing changes.

    Args:
        changed: what differs from today, by dotted path.
        config: the whole configuration with these changes, by name of the knob: `group_size`, `groups_per_step` and so on.

    """
    if not changed:
        return {}
    names = {path.rpartition(".")[2]: value for path, value in changed.items()}
    return {trainer: _file(trainer, names, config, translate) for trainer, translate in _TRANSLATIONS.items()}


def _file(
    trainer: str,
    changed: Mapping[str, Value],
    config: Mapping[str, Value],
    translate: Callable[[Mapping[str, Value], Mapping[str, Value], set[str]], Lines],
) -> str:
    done: set[str] = set()
    lines = translate(changed, config, done)
    left = [f"# no counterpart of {name} = {value}" for name, value in changed.items() if name not in done]
    head = f"# {trainer}: what comes nearest to {', '.join(f'{name} = {value}' for name, value in changed.items())}"
    return "\n".join([head, *lines, *left]) + "\n"


def _number(config: Mapping[str, Value], name: str, default: int) -> int:
    value = config.get(name, default)
    return value if isinstance(value, int) else default


def _wants(changed: Mapping[str, Value], done: set[str], *names: str) -> bool:
    """Whether one of these knobs is changed; they are done with then."""
    hit = [name for name in names if name in changed]
    done.update(hit)
    return bool(hit)


def _tunix(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines = []
    if _wants(changed, done, "pipeline_depth", "max_staleness"):
        lines.append(f"off_policy_steps: {config['pipeline_depth']}")
        bound = config.get("max_staleness")
        if bound != config["pipeline_depth"]:
            lines.append(f"# it bounds the lag as well; max_staleness = {bound} cannot be given apart from it")
    if _wants(changed, done, "max_inflight"):
        lines.append(f"max_concurrency: {config['max_inflight']}    # episodes")
    if _wants(changed, done, "episode_s"):
        lines.append(f"episode_timeout: {changed['episode_s']}    # seconds")
    if "sync_mode" in changed:
        lines.append("# a sync holds all rollouts up there: what sync_mode says cannot be chosen")
        done.add("sync_mode")
    return lines


def _verl(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines = []
    depth, k = _number(config, "pipeline_depth", 0), max(1, _number(config, "steps_per_sync", 1))
    if _wants(changed, done, "steps_per_sync"):
        lines.append(f"  trigger_parameter_sync_step: {k}")
    if _wants(changed, done, "pipeline_depth", "steps_per_sync"):
        threshold = (depth + 1) / k - 1
        advised = "" if threshold < 1 else ": above 1, which its documentation advises against"
        lines.append(f"  staleness_threshold: {threshold:g}    # (pipeline_depth + 1) / steps_per_sync - 1{advised}")
    if _wants(changed, done, "sync_mode"):
        partial = config.get("sync_mode") in ("keep", "abort_resume")
        lines.append(f"  partial_rollout: {'true' if partial else 'false'}")
    if _wants(changed, done, "max_staleness"):
        lines.append(f"  # trainer v1 instead: max_off_policy_threshold: {config['max_staleness']}")
    if _wants(changed, done, "stale_policy"):
        lines.append(f"  # trainer v1 instead: strategy: {config['stale_policy']} (it knows drop and wait)")
    if _wants(changed, done, "consume_chunk"):
        chunk = _number(config, "consume_chunk", 0) or _number(config, "groups_per_step", 1)
        lines.append(f"  # require_batches: mini-batches a pull; {chunk} prompts over your ppo_mini_batch_size, rounded up")
    return ["async_training:", *lines] if lines else []


def _areal(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines = []
    if _wants(changed, done, "pipeline_depth", "max_staleness"):
        lines.append(f"  max_head_offpolicyness: {config['pipeline_depth']}    # how far generation may lead, in steps")
        lines.append("  # the bound holds on average over a batch there: single samples may be older")
    if _wants(changed, done, "max_inflight"):
        members = _number(config, "group_size", 1) + _number(config, "overprovision_members", 0)
        groups = -(-_number(config, "max_inflight", 1) // members)
        lines.append(f"  max_concurrent_rollouts: {groups}    # groups of {members}")
    return ["rollout:", *lines] if lines else []


def _prime_rl(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines = []
    if _wants(changed, done, "max_staleness"):
        lines.append(f"max_off_policy_steps = {config['max_staleness']}")
    if _wants(changed, done, "pipeline_depth"):
        lines.append(f"# it leads by one step, always: pipeline_depth = {config['pipeline_depth']} cannot be given")
    if _wants(changed, done, "max_inflight"):
        lines.append("# episodes in flight follow the pressure on the KV cache there, up to a cap of its own")
    return ["[orchestrator]", *lines] if lines else []


_TRANSLATIONS: dict[str, Callable[[Mapping[str, Value], Mapping[str, Value], set[str]], Lines]] = {
    "tunix": _tunix,
    "verl": _verl,
    "areal": _areal,
    "prime-rl": _prime_rl,
}
