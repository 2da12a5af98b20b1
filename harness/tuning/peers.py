"""The patch in the names of other trainers: what one would write there to get the same.

Only knobs with a true counterpart are translated; of every other change it is said that none is known. Units are converted
where they differ, and where a trainer means something a little else, the line says so. Names, units and laws are those of the
projects' sources and documentation as they stood from August to November 2026:

========  ==================================================  =============================================================
trainer   its law of running ahead                            so
========  ==================================================  =============================================================
Tunix     off_policy_steps + 1 batches of prompts at the      `off_policy_steps` is our `pipeline_depth`; its lag cannot
          start, then one for every step                      exceed it, so that it bounds staleness as well
verl      fully async: (1 + tau) x k x B samples started      tau = (D + 1) / k - 1; the documentation advises tau < 1
          from one weight sync to the next
verl V1   dropped (or waited for) when trained after more     threshold = (S + 1) / k, rounded down and at least 1: it counts
          than `max_off_policy_threshold` model versions,     versions of k steps, and a sample of the current one as 1
          the current one counted
AReaL     accepted + running < (eta + v + 1) x B, and         our `lead` with D = eta; both are counted in groups, since a
          running < max_concurrent_rollouts                   workflow gathers its whole group
prime-rl  a lead of one step, fixed; rollouts older than      only the bound can be set; the number in flight follows the
          max_off_policy_steps are dropped                    pressure on the KV cache by itself
========  ==================================================  =============================================================

D is `pipeline_depth`, S `max_staleness`, k `steps_per_sync`, B `groups_per_step`, v the published version. Where the names are
from: Tunix, the configuration of its agentic learners; verl, its documents on the fully asynchronous trainer (`async_training`)
and on the asynchronous V1 trainer (`trainer.v1.sampler`); AReaL, the configuration of its inference engine (`rollout`) and of
generation (`gconfig`); prime-rl, the configuration of its orchestrator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tuning.space import CHIP_SPLIT, chips_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.tuning.space import Settings, Value

Lines = list[str]

SPLIT = CHIP_SPLIT.rpartition(".")[2]

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
    head = [f"# {trainer}: what comes nearest to", *(f"#   {name} = {value}" for name, value in changed.items())]
    if _wants(changed, done, SPLIT):
        replicas, each, learner = chips_of(str(changed[SPLIT]))
        lines.append("# chips are divided where it is launched:")
        lines.append(f"#   {replicas} replicas of {each}, and {learner} that train")
    left = [f"# no counterpart known of {name} = {value}" for name, value in changed.items() if name not in done]
    return "\n".join([*head, *lines, *left]) + "\n"


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
        depth, bound = config["pipeline_depth"], config.get("max_staleness")
        lines.append(f"off_policy_steps: {depth}")
        if bound != depth:
            lines.append(f"# it bounds the lag as well: max_staleness = {bound} cannot be given")
        if depth:
            lines.append("# v0.1.7 can lock up above 0, when an episode starts during a sync")
    if _wants(changed, done, "max_inflight"):
        lines.append(f"max_concurrency: {config['max_inflight']}    # episodes")
    if _wants(changed, done, "group_size"):
        lines.append(f"num_generations: {config['group_size']}")
    if _wants(changed, done, "sync_mode"):
        mode = config["sync_mode"]
        lines.append("# a sync waits for all episodes in flight, always: drain_episodes")
        lines += [f"# sync_mode = {mode} cannot be given"] if mode != "drain_episodes" else []
    return lines


def _verl(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines, v1 = [], []
    depth, k = _number(config, "pipeline_depth", 0), max(1, _number(config, "steps_per_sync", 1))
    window = config.get("admission") == "window"
    if _wants(changed, done, "steps_per_sync"):
        lines.append(f"  trigger_parameter_sync_step: {k}")
    if _wants(changed, done, *(("window_fraction", "admission") if window else ("pipeline_depth", "steps_per_sync"))):
        threshold = float(config.get("window_fraction", 0.0)) if window else (depth + 1) / k - 1
        said = "window_fraction" if window else "(pipeline_depth + 1) / steps_per_sync - 1"
        lines.append(f"  staleness_threshold: {threshold:g}    # {said}")
        lines += ["  # its documentation advises below 1"] if threshold >= 1 else []
    if _wants(changed, done, "sync_mode"):
        mode = config["sync_mode"]
        lines.append(f"  partial_rollout: {'true' if mode in ('keep', 'abort_resume') else 'false'}")
        lines += ["  # it aborts and resumes: abort_resume, with the prefill that keep spares"] if mode == "keep" else []
    if _wants(changed, done, "max_staleness"):
        versions = max(1, (_number(config, "max_staleness", 0) + 1) // k)
        v1.append(f"# V1 trainer: trainer.v1.sampler.max_off_policy_threshold={versions}")
        v1.append("#   in model versions, the current one counted; fully async has no bound")
    if _wants(changed, done, "stale_policy"):
        policy = config["stale_policy"]
        v1.append(f"# V1 trainer: trainer.v1.sampler.max_off_policy_strategy={policy}")
        v1 += ["#   its documentation knows drop and wait only"] if policy not in ("drop", "wait") else []
    if _wants(changed, done, "consume_chunk"):
        chunk = _number(config, "consume_chunk", 0) or _number(config, "groups_per_step", 1)
        lines.append("  # require_batches is in mini-batches:")
        lines.append(f"  #   {chunk} prompts over your ppo_mini_batch_size, rounded up")
    if _wants(changed, done, "group_size"):
        v1.append(f"# on the command line: actor_rollout_ref.rollout.n={config['group_size']}")
    if SPLIT in changed:
        v1.append("# trainer.nnodes x trainer.n_gpus_per_node train, rollout.nnodes x")
        v1.append("#   rollout.n_gpus_per_node generate")
    return [*(["async_training:", *lines] if lines else []), *v1]


def _areal(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines, rest = [], []
    if _wants(changed, done, "pipeline_depth", "max_staleness"):
        depth, bound = config["pipeline_depth"], config.get("max_staleness")
        lines.append(f"  max_head_offpolicyness: {depth}    # how far generation may lead, in steps")
        lines.append("  # it holds over a batch: single samples may be older")
        lines += [f"  # max_staleness = {bound} cannot be given apart from it"] if bound != depth else []
    if _wants(changed, done, "max_inflight"):
        members = _number(config, "group_size", 1) + _number(config, "overprovision_members", 0)
        groups = -(-_number(config, "max_inflight", 1) // members)
        lines.append(f"  max_concurrent_rollouts: {groups}    # groups of {members}")
    if _wants(changed, done, "group_size"):
        rest += ["gconfig:", f"  n_samples: {config['group_size']}"]
    if _wants(changed, done, "sync_mode"):
        mode = config["sync_mode"]
        rest.append("# a sync aborts requests and resumes them on the new weights: abort_resume")
        rest += [f"# sync_mode = {mode} cannot be given"] if mode != "abort_resume" else []
    return [*(["rollout:", *lines] if lines else []), *rest]


def _prime_rl(changed: Mapping[str, Value], config: Mapping[str, Value], done: set[str]) -> Lines:
    lines = []
    if _wants(changed, done, "max_staleness"):
        lines.append(f"max_off_policy_steps = {config['max_staleness']}")
    if _wants(changed, done, "group_size"):
        lines.append(f"# rollouts_per_example, or as your version names it: {config['group_size']}")
    if _wants(changed, done, "pipeline_depth"):
        depth = config["pipeline_depth"]
        lines.append("# it leads by one step, always")
        lines += [f"# pipeline_depth = {depth} cannot be given"] if depth != 1 else []
    if _wants(changed, done, "max_inflight"):
        lines.append("# episodes in flight follow the pressure on the KV cache, up to a cap of its own")
    if _wants(changed, done, "stale_policy"):
        policy = config["stale_policy"]
        lines.append("# what is older is dropped, always" + ("" if policy == "drop" else f": it cannot {policy}"))
    if _wants(changed, done, "sync_mode"):
        mode = config["sync_mode"]
        lines.append("# engines pause for a sync and go on with what they had: keep")
        lines += [f"# sync_mode = {mode} cannot be given"] if mode != "keep" else []
    return ["[orchestrator]", *lines] if lines else []


_TRANSLATIONS: dict[str, Callable[[Mapping[str, Value], Mapping[str, Value], set[str]], Lines]] = {
    "tunix": _tunix,
    "verl": _verl,
    "areal": _areal,
    "prime-rl": _prime_rl,
}
