"""What can be tuned of a scenario, in the pipeline's own terms: where `harness.tuning` meets the pipeline's configuration.

Knobs, deadlines and the split of chips as descriptors; the values that make sense beside this scenario's group and batch size;
and a scenario with some of them changed.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError
from harness.core.knobs import Knob, KnobKind
from harness.expected import expected
from harness.scenario.inputs import scaled
from harness.tuning.analytic import ByHandSaid
from harness.tuning.peers import peers
from harness.tuning.space import CHIP_SPLIT, LINEAR_REACH, SEARCHED, Space, chips_of
from harness.tuning.wishes import chosen_knobs, listing, wanted
from pipeline.config import Deadlines, deadline_knobs, knobs
from pipeline.policies.kinds import Placement, SyncMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from harness.scenario.schema import Scenario, World
    from harness.tuning.result import Objective, TuneResult
    from harness.tuning.space import Settings, Value
    from harness.tuning.study import Study
    from pipeline.config import PipelineConfig

SCALE_PREFIX = "scale:"
"""Before the path of a calibrated input in settings: its value is a factor."""

MOST_SPLITS = 24
"""Splits of the chips that are tried; of more, those nearest to today's."""


SMALLEST_SHARE, LARGEST_SHARE = 0.001, 0.5
"""What is not worth telling apart lies between these, and so does the probability of an error."""

ERROR = 0.05
"""Probability, at most, that the best setting is thrown away for luck."""


# ── what there is ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tunable:
    """All that can be turned in a scenario.

    Attributes:
        scenario: as it stands.
        knobs: descriptors of what can be turned here.
        today: value of each by path.
        values: what makes sense to try of a knob beside the others, by path.
        missing: why a knob cannot be turned here, by name.

    """

    scenario: Scenario[PipelineConfig]
    knobs: tuple[Knob, ...]
    today: Settings
    values: dict[str, tuple[Value, ...]]
    missing: dict[str, ConfigError]

    @property
    def default(self) -> tuple[str, ...]:
        """Names of the knobs that are searched unless others are asked for, without those that have nothing to win here."""
        config, replicas = self.scenario.pipeline, self.scenario.world.inference.replicas
        pointless = {
            "sync_mode": config.sync_mode is SyncMode.KEEP,
            "sync_rollout": replicas == 1 or config.sync_mode is SyncMode.DRAIN_EPISODES,
            "consume_chunk": config.groups_per_step == 1 or config.placement is Placement.COLOCATED,
        }
        return tuple(name for name in SEARCHED if not pointless.get(name, False))

    def space(self, wishes: Sequence[str] = (), *, chips: bool = False, max_lag: int | None = None) -> Space:
        """What is searched, as `--knob` and `--chips` say it.

        Raises:
            ConfigError: there is no such knob, it cannot be turned in this scenario, or its values are none.

        """
        asked = [*wishes, *(["chips"] if chips else [])]
        for wish in asked:
            name = wish.partition("=")[0].strip().rpartition(".")[2]
            if (reason := self.missing.get("chip_split" if name == "chips" else name)) is not None:
                raise reason
        found = wanted(wishes or self.default, self.knobs, self.today) | wanted(asked, self.knobs, self.today)
        reach = max(LINEAR_REACH, max_lag or 0)
        chosen = chosen_knobs(found, self.knobs, self.today, values_of=self.values, reach=reach)
        return Space(chosen, partial(with_settings, self.scenario))

    def listing(self) -> list[dict[str, Any]]:
        """Every knob as plain data, with what would be tried."""
        everything = dict.fromkeys((knob.name for knob in self.knobs), None)
        chosen = chosen_knobs(everything, self.knobs, self.today, values_of=self.values, reach=LINEAR_REACH)
        return listing(self.knobs, chosen, self.default)


def tunable(scenario: Scenario[PipelineConfig]) -> Tunable:
    """All that can be turned in a scenario."""
    missing: dict[str, ConfigError] = {}
    config = scenario.pipeline
    found = [*knobs(of=type(config)), *deadline_knobs()]
    if config.placement is Placement.DISAGGREGATED:
        try:
            scenario.world.check_shared_chips()
        except ConfigError as reason:
            missing["placement"] = reason
            found = [knob for knob in found if knob.name != "placement"]
    today = {knob.path: _value(scenario, knob) for knob in found}
    try:
        splits = chip_splits(scenario)
    except ConfigError as reason:
        missing["chip_split"] = reason
    else:
        now = split_of(scenario.world)
        doc = "How the chips are divided: replicas x chips of each + chips of the learner."
        found.append(Knob(CHIP_SPLIT, KnobKind.CHOICE, now, "world", choices=splits, doc=doc))
        today[CHIP_SPLIT] = now
    return Tunable(scenario, tuple(found), today, _sensible(config), missing)


def _value(scenario: Scenario[PipelineConfig], knob: Knob) -> Value:
    at: Any = scenario
    for part in knob.path.split("."):
        at = getattr(at, part)
    value: Value = at.value if isinstance(at, StrEnum) else at
    return value


def _sensible(config: PipelineConfig) -> dict[str, tuple[Value, ...]]:
    """What to try of knobs that only make sense beside the size of a group, of a batch or what stands today."""
    size, batch = config.group_size, config.groups_per_step
    parts = {batch // 8, batch // 4, batch // 2}
    whole = {
        "consume_chunk": {0, config.consume_chunk} | {part for part in parts if part > 0},
        "group_quorum": {0, config.group_quorum} | set(range(-(-size // 2), size)),
        "overprovision_members": {config.overprovision_members} | set(range(max(2, size // 2) + 1)),
        "overprovision_groups": {0, config.overprovision_groups, batch} | parts,
    }
    # Draining all episodes is the synchronous baseline: never better than draining requests.
    modes = [mode.value for mode in SyncMode if mode is not SyncMode.DRAIN_EPISODES or mode is config.sync_mode]
    sorted_values: dict[str, tuple[Value, ...]] = {f"pipeline.{name}": tuple(sorted(values)) for name, values in whole.items()}
    return sorted_values | {"pipeline.sync_mode": tuple(modes)}


# ── the split of the chips ──────────────────────────────────────────────────────────────────────────────────────────────────


def split_of(world: World) -> str:
    """How a world's chips are divided, as the knob says it."""
    return f"{world.inference.replicas}x{world.inference.chips_per_replica}+{world.learner.chips}"


def chip_splits(scenario: Scenario[PipelineConfig]) -> tuple[str, ...]:
    """Every way to divide the same number of chips whose step times are known, by chips of the learner.

    The learner may have another number of chips, and so may replicas, where what depends on it is worked out from the model.

    Raises:
        ConfigError: there is none but today's, and why.

    """
    world = scenario.world
    given_learner = {"learner.train"} | ({"learner.log_probs"} if world.learner.log_probs is not None else set())
    given_replica = {"inference.decode", "inference.prefill", "inference.kv_capacity_tokens"}
    fixed_learner, fixed_replica = (sorted(names - set(world.derived)) for names in (given_learner, given_replica))
    colocated = scenario.pipeline.placement is Placement.COLOCATED
    now = (world.inference.replicas, world.inference.chips_per_replica, world.learner.chips)
    learners = [now[2]] if fixed_learner or colocated else _sizes(world, world.chips, world.learner.slices)
    found = set()
    for learner in learners:
        left = world.chips - learner
        for each in [now[1]] if fixed_replica else _sizes(world, left):
            if left > 0 and left % each == 0:
                found.add((left // each, each, learner))
    legal = sorted(found | {now}, key=lambda split: (split[2], split[1]))
    if len(legal) > MOST_SPLITS:
        nearest = sorted(legal, key=lambda split: (abs(math.log(split[2] / now[2])) + abs(math.log(split[1] / now[1])), split))
        legal = [split for split in legal if split in nearest[:MOST_SPLITS]]
    splits = tuple(f"{replicas}x{each}+{learner}" for replicas, each, learner in legal)
    splits = tuple(split for split in splits if split == split_of(world) or _admitted(scenario, split))
    if len(splits) == 1:
        fixed = ", ".join(f"world.{name}" for name in [*fixed_learner, *fixed_replica])
        raise ConfigError(
            f"cannot be searched: {fixed} are given, and how they change with the number of chips is not known"
            if fixed
            else "cannot be searched: the chips can be divided in no other way",
            field=CHIP_SPLIT,
            value=split_of(world),
            remedy="leave them out, and name world.chip and [world.model]: step times are then worked out" if fixed else "",
        )
    return splits


def _sizes(world: World, most: int, slices: int = 1) -> list[int]:
    """Numbers of chips that a part can have, in so many slices of one shape."""
    shapes = world.chip.shapes if world.chip is not None else ()
    sold = shapes or tuple(2**i for i in range(most.bit_length()))
    return [slices * shape for shape in sold if slices * shape <= most]


def _admitted(scenario: Scenario[PipelineConfig], split: str) -> bool:
    try:
        with_settings(scenario, {CHIP_SPLIT: split})
    except ConfigError:
        return False
    return True


def _divided(world: World, split: str) -> World:
    """The world with its chips divided so; remembered, because working it out takes a millisecond."""
    if split == split_of(world):
        return world
    try:
        return _remembered(world, split)
    except TypeError:  # a law that holds lists cannot be hashed
        return _work_out(world, split)


def _work_out(world: World, split: str) -> World:
    replicas, each, learner = chips_of(split)
    return world.with_chips(replicas=replicas, chips_per_replica=each, learner_chips=learner)


_remembered = lru_cache(maxsize=2 * MOST_SPLITS)(_work_out)


# ── a scenario with other settings ──────────────────────────────────────────────────────────────────────────────────────────


def with_settings(scenario: Scenario[PipelineConfig], settings: Settings) -> Scenario[PipelineConfig]:
    """The scenario with some knobs changed, and inputs scaled (`scale:PATH`).

    Raises:
        ConfigError: the pipeline refuses the combination, or there is no such knob.

    """
    changes: dict[str, object] = {}
    deadlines: dict[str, Value] = {}
    world = scenario.world
    factors: dict[str, float] = {}
    for path, value in settings.items():
        table, _, name = path.rpartition(".")
        if path == CHIP_SPLIT:
            world = _divided(world, str(value))
        elif path.startswith(SCALE_PREFIX):
            factors[path.removeprefix(SCALE_PREFIX)] = float(value)
        elif table == "pipeline":
            changes[name] = value
        elif table == "pipeline.deadlines":
            deadlines[name] = value
        else:
            raise ConfigError("is no knob", field=path, value=value)
    if deadlines:
        changes["deadlines"] = Deadlines.model_validate({**dict(scenario.pipeline.deadlines), **deadlines})
    changed = scenario.model_copy(update={"pipeline": scenario.pipeline.with_changes(**changes), "world": world})
    if world is not scenario.world:
        changed.check()
    if changed.pipeline.placement is Placement.COLOCATED:
        world.check_shared_chips()
    for path, factor in factors.items():
        changed = scaled(changed, path, factor)
    return changed


def fair_lengths(scenario: Scenario[PipelineConfig], steps: int) -> tuple[int, int]:
    """Warm-up and window of a candidate, in optimizer steps: long enough for its own rhythm.

    D + 1 batches are started at once when a run begins and come out close together; from then on starts follow publishes, every
    k steps. So the warm-up takes at least D + k + 1 steps, and the window whole sync intervals, at least D + 1 steps of them: a
    window that ends between two bursts would count one too many or too few.
    """
    config = scenario.pipeline
    k = config.steps_per_sync
    asked = scenario.run.warmup_steps if steps >= scenario.run.learner_steps else 0  # shorter runs are provisional anyway
    warmup = max(asked, config.pipeline_depth + k + 1)
    window = max(steps, config.pipeline_depth + 1)
    return -(-warmup // k) * k, -(-window // k) * k


def by_hand(
    scenario: Scenario[PipelineConfig], settings: Settings, *, objective: Objective = "kept", ours: bool = True
) -> ByHandSaid:
    """What closed forms say of these settings. Where they leave something out, no bound is taken for firm.

    Args:
        scenario: as it stands.
        settings: what is changed in it.
        objective: for `tokens` a group counts as much as it has members, beside today's.
        ours: whether our own pipeline runs; of another no bound is firm.

    Raises:
        ConfigError: the pipeline refuses the settings.

    """
    changed = with_settings(scenario, settings)
    said, world = expected(changed), changed.world
    chips = world.learner.chips if changed.pipeline.placement is Placement.COLOCATED else world.chips
    of_today = scenario.pipeline.members_needed
    worth = changed.pipeline.members_needed / of_today if objective == "tokens" else 1.0
    firm = [] if said.left_out or not ours else [limit.groups_per_s for limit in said.limits if limit.firm]
    return ByHandSaid(
        rate=worth * said.groups_per_s / chips,
        bound=worth * min(firm, default=math.inf) / chips,
        limits=tuple((limit.name, limit.groups_per_s) for limit in said.limits),
        stored=said.stored_groups,
    )


def check_objective(objective: Objective, names: Iterable[str]) -> None:
    """Whether an objective can compare settings that differ in these knobs.

    Raises:
        ConfigError: it cannot.

    """
    if objective != "tokens" and "group_size" in names:
        raise ConfigError(
            f"cannot be searched for objective {objective!r}: smaller groups are more groups",
            field="--knob",
            value="group_size",
            allowed='with objective "tokens"',
            remedy="add --objective tokens, or leave it out",
        )


def parse_share(text: str | float, field: str) -> float:
    """A share: `2%`, `0.02`.

    Raises:
        ConfigError: it is none, or none that makes sense.

    """
    word = str(text).strip()
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not SMALLEST_SHARE <= share <= LARGEST_SHARE:
        raise ConfigError(
            "is no share that makes sense",
            field=field,
            value=text,
            allowed="0.1% to 50%, or 0.001 to 0.5",
            remedy="for example 2%",
        )
    return share


def study_of(
    scenario: Scenario[PipelineConfig], folder: str | Path | None, *, code: str = ""
) -> AbstractContextManager[Study | None]:
    """The study in a folder, open; nothing without a folder. `code` tells pipelines of a user's own apart.

    Raises:
        ConfigError: it is a study of another scenario or of another version of the code, or in use.

    """
    if folder is None:
        return nullcontext()
    from pathlib import Path

    import pipeline
    from harness.tuning.study import Identity, Study, code_fingerprint, versions

    everything = scenario.model_dump(mode="json", exclude={"title", "question", "answer", "live"})
    if code:
        everything["own_pipeline"] = code
    for unused in ("replications", "seed"):
        everything.get("run", {}).pop(unused, None)
    fingerprint = code_fingerprint(Path(str(pipeline.__file__)).parent)
    return Study.open(folder, Identity(scenario.title, everything, fingerprint, versions()))


def peers_of(scenario: Scenario[PipelineConfig], result: TuneResult) -> dict[str, str]:
    """The patch in the names of other trainers; nothing where nothing is to be changed."""
    if not result.patch or result.settings is None:
        return {}
    config = with_settings(scenario, result.settings).pipeline.model_dump(mode="json", exclude={"deadlines"})
    return peers(result.changed, config)
