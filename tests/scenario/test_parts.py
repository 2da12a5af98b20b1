"""A scenario in several files: a world, a workload and a pipeline that stand on their own."""

from __future__ import annotations

import pytest

from harness.core.errors import ConfigError
from harness.scenario.load import dump, load, parse
from pipeline.config import PipelineConfig
from tests.scenario.test_shipped import NAMES, shipped


def split(folder, name, parts):
    """Write a shipped scenario with some of its tables in files of their own."""
    scenario = shipped(name)
    whole = dump(scenario)
    lines = {"": []} | {part: [] for part in parts}
    at = ""
    for line in whole.splitlines():
        if line.startswith("["):
            path = line.strip("[]").split(".")
            at = path[0] if path[0] in parts else ""
            if at:
                rest = ".".join(path[1:])
                line = (
                    "" if not rest else f"[[{rest}]]" if line.startswith("[[") else f"[{rest}]"
                )  # headers lose their first word
        lines[at].append(line)
    for part in parts:
        (folder / f"my_{part}.toml").write_text("\n".join(lines[part]) + "\n")
        lines[""] += [f"[{part}]", f'from = "my_{part}.toml"']
    main = folder / "split.toml"
    main.write_text("\n".join(lines[""]) + "\n")
    return main


@pytest.mark.parametrize("name", NAMES)
def test_a_split_scenario_is_the_same_scenario(name, tmp_path):
    main = split(tmp_path, name, ["world", "workload", "pipeline", "run"])
    assert load(main, PipelineConfig) == parse(dump(shipped(name)), PipelineConfig)


def test_what_stands_beside_from_is_put_over_it(tmp_path):
    main = split(tmp_path, "synchronous", ["world", "pipeline"])
    text = main.read_text().replace('from = "my_world.toml"', 'from = "my_world.toml"\ninference.replicas = 3\n')
    scenario = parse(text, PipelineConfig, file=str(main), overrides=["pipeline.max_inflight=64", "world.learner.chips=2"])
    before = shipped("synchronous")
    assert scenario.world.inference.replicas == 3
    assert scenario.world.learner.chips == 2
    assert scenario.pipeline.max_inflight == 64
    assert scenario.world.inference.decode == before.world.inference.decode
    assert scenario.workload == before.workload


def test_a_law_is_replaced_as_a_whole(tmp_path):
    main = split(tmp_path, "synchronous", ["world"])
    law = 'environments.reset = { law = "constant", value_s = 1.0 }'
    text = main.read_text().replace('from = "my_world.toml"', f'from = "my_world.toml"\n{law}\n')
    assert parse(text, PipelineConfig, file=str(main)).world.environments.reset.value_s == 1.0


def test_what_is_wrong_is_said_of_the_file_that_holds_it(tmp_path):
    main = split(tmp_path, "synchronous", ["world"])
    world = tmp_path / "my_world.toml"
    lines = world.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("replicas"))
    lines[number] = "replicas = 0"
    world.write_text("\n".join(lines))
    with pytest.raises(ConfigError) as caught:
        load(main, PipelineConfig)
    assert caught.value.file == str(world)
    assert caught.value.line == number + 1
    assert caught.value.field == "world.inference.replicas"


@pytest.mark.parametrize(
    ("beside", "inside", "words"),
    [
        ('from = "nowhere.toml"', "", ["there is no such file", "nowhere.toml", "world.from"]),
        ("from = 3", "", ["is not a file", "world.from", "3"]),
        ('from = "my_world.toml"', 'from = "other.toml"\n', ["one level of files"]),
        ('from = "my_world.toml"', "[world]\nfrom = 'other.toml'\n[world.x]\n", ["one level of files"]),
        ('from = "my_world.toml"', "replicas = = 1\n", ["is not valid TOML", "my_world.toml"]),
        ('from = "."', "", ["is a folder"]),
        ('from = "my_world.toml"\nlearner.chps = 3', "", ["learner.chps", "did you mean `chips`", "split.toml"]),
    ],
)
def test_a_part_that_cannot_be_had_is_refused(tmp_path, beside, inside, words):
    main = split(tmp_path, "synchronous", ["world"])
    main.write_text(main.read_text().replace('from = "my_world.toml"', beside))
    world = tmp_path / "my_world.toml"
    world.write_text(inside + world.read_text())
    with pytest.raises(ConfigError) as caught:
        load(main, PipelineConfig)
    for word in words:
        assert word in str(caught.value)


def test_a_table_of_another_scenario(tmp_path):
    (tmp_path / "one.toml").write_text(dump(shipped("synchronous")))
    main = split(tmp_path, "fully_async", ["world", "workload"])
    text = main.read_text().replace('from = "my_world.toml"', 'from = "one.toml"\nlearner.chips = 8')
    scenario = parse(text, PipelineConfig, file=str(main))
    assert scenario.world.learner.chips == 8
    assert scenario.world.inference == shipped("synchronous").world.inference
    assert scenario.pipeline == shipped("fully_async").pipeline
    wrong = (tmp_path / "one.toml").read_text().replace("replicas = 4", "replicas = -4")
    (tmp_path / "one.toml").write_text(wrong)
    with pytest.raises(ConfigError) as caught:
        parse(text, PipelineConfig, file=str(main))
    assert caught.value.file.endswith("one.toml")
    assert wrong.splitlines()[caught.value.line - 1] == "replicas = -4"
