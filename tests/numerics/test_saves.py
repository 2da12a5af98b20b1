"""Saves on disk: what was saved comes back bit for bit; what is not whole is never taken for a good one, and is told apart."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import trio
import trio.testing

from harness.core.errors import ConfigError, DataError, OutputError
from harness.core.work import Checkpoint
from harness.engines import live
from pipeline.data import Ended, EpisodeResult, Group, Sample, Task
from pipeline.numerics import saves
from pipeline.numerics.dispatch import Dispatcher
from pipeline.performers.saves import SavePerformer
from pipeline.state import PipelineState


def arrays(step, width=6):
    rng = np.random.default_rng(step)
    return {
        "params": {
            "blocks/0/w": jnp.asarray(rng.normal(size=(width, 4)), jnp.float32),
            "half": jnp.asarray(rng.normal(size=3), jnp.bfloat16),
        },
        "optimizer": {"count": jnp.int32(step), "none": jnp.zeros((0, 3), jnp.float32)},
    }


def state(step):
    sample = Sample([5, 6, 7], [False, True, True], [0.0, -0.1 - step, -1e-300], [-1, 0, step], truncated=True)
    results = (
        EpisodeResult(65536, Ended.DONE, 1, 2, 3, 0, step, 0.5, sample),
        EpisodeResult(65537, Ended.TURN_LIMIT, 1, 2, 3, 0, 1),
    )
    group = Group(1, Task(4, 0), results, 0, step, 4, 6, step)
    return PipelineState(step, step, 9, {"given": 12, "again": []}, (Task(5, 0),), ((group, step),), (group,))


def saver(folder, keep=3):
    return saves.Saver(folder, keep=keep)


def save(writer, step, **shape):
    writer.start(saves.on_host(arrays(step, **shape)), state(step))
    return writer.wait()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A folder with the steps 1, 2 and 3. Not to be changed."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    writer = saver(folder)
    for step in (1, 2, 3):
        assert save(writer, step).problem == ""
    writer.close()
    return folder


@pytest.fixture
def copied(three, tmp_path):
    """One of its own."""
    return Path(shutil.copytree(three, tmp_path / "copied"))


def same(one, other):
    assert {part: list(each) for part, each in one.items()} == {part: list(each) for part, each in other.items()}
    for part, each in one.items():
        for name, array in each.items():
            assert array.dtype == other[part][name].dtype
            assert np.asarray(array).tobytes() == np.asarray(other[part][name]).tobytes()
            assert array.shape == other[part][name].shape


@pytest.mark.parametrize("step", [None, 1, 2, 3])
def test_what_was_saved_comes_back_bit_for_bit(three, step):
    loaded = saves.load(three, step, like=arrays(1))
    same(loaded.arrays, arrays(step or 3))
    assert loaded.state == state(step or 3)
    assert loaded.skipped == ()


def test_the_newest_ones_are_kept(tmp_path):
    writer = saver(tmp_path / "made" / "here", keep=2)
    for step in (1, 5, 9):
        assert save(writer, step).written_bytes > 0
    assert saves.steps(writer.folder) == [5, 9]
    assert saves.latest(writer.folder) == 9
    assert sorted(path.name for path in writer.folder.iterdir()) == ["step_00000005", "step_00000009"]


def test_a_past_that_was_left_by_a_resume_is_set_aside_not_taken_up_again(copied):
    writer = saver(copied)
    save(writer, 2)
    assert saves.steps(copied) == [1, 2]
    assert sorted(path.name for path in copied.glob("*.abandoned")) == ["step_00000002.abandoned", "step_00000003.abandoned"]


def test_an_unfinished_save_does_not_count_and_is_cleared_away(copied):
    (copied / "step_00000003").rename(copied / "step_00000003.partial")
    assert saves.load(copied).state == state(2)
    saver(copied)
    assert not (copied / "step_00000003.partial").exists()


FILES = ("manifest.json", "pipeline.json", "samples.npz", "learner")


def one_file(folder, part):
    """A file of the newest checkpoint; of the arrays, the largest."""
    path = folder / "step_00000003" / part
    return path if path.is_file() else max((f for f in path.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("part", FILES)
def test_damage_anywhere_is_refused_with_the_file_and_the_last_good_one_is_used_on_request(copied, part, harm):
    harmed = one_file(copied, part)
    harm(harmed)
    with pytest.raises(DataError) as refusal:
        saves.load(copied)
    said = str(refusal.value)
    assert said.startswith(str(copied / "step_00000003"))
    assert part == "manifest.json" or harmed.name in said
    assert "do:" in said
    assert refusal.value.exit_code == 2
    loaded = saves.load(copied, fall_back=True)
    assert loaded.state == state(2)
    assert len(loaded.skipped) == 1
    same(loaded.arrays, arrays(2))


def test_a_flip_that_leaves_the_manifest_readable_is_seen_too(copied):
    path = one_file(copied, "manifest.json")
    manifest = json.loads(path.read_text())
    manifest["files"]["pipeline.json"][0] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"pipeline.json: the checkpoint is damaged: the file has \d+ bytes instead of"):
        saves.load(copied)


def test_nothing_good_at_all_says_why_of_each(copied):
    for step in (1, 2, 3):
        (copied / f"step_0000000{step}" / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="no checkpoint in the folder is good") as refusal:
        saves.load(copied, fall_back=True)
    assert str(refusal.value).count("the file holds no table") == 3


def test_a_newer_schema_is_refused_and_passed_over_on_request(copied):
    path = one_file(copied, "manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": saves.SCHEMA + 1}))
    with pytest.raises(DataError, match="newer version") as refusal:
        saves.load(copied)
    assert (refusal.value.field, refusal.value.value, refusal.value.file) == ("schema", saves.SCHEMA + 1, str(path))
    assert saves.load(copied, fall_back=True).state.t == 2


@pytest.mark.parametrize(
    ("change", "field", "value", "allowed"),
    [
        (lambda a: a["params"].update({"blocks/0/w": jnp.zeros((7, 4))}), "params/blocks/0/w", "shape (6, 4)", "shape (7, 4)"),
        (lambda a: a["params"].update({"more": jnp.zeros(2)}), "params/more", "not in the checkpoint", "shape (2,)"),
        (lambda a: a["optimizer"].pop("count"), "optimizer/count", "shape ()", "not in this run's learner"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_the_first_array_that_differs(three, change, field, value, allowed):
    like = arrays(1)
    change(like)
    with pytest.raises(DataError, match="another model") as refusal:
        saves.load(three, like=like, fall_back=True)
    assert (refusal.value.field, refusal.value.value, refusal.value.allowed) == (field, value, allowed)


def test_where_there_is_none_it_says_what_there_is(tmp_path, three):
    with pytest.raises(ConfigError, match="no such folder"):
        saves.load(tmp_path / "nowhere")
    (tmp_path / "step_00000001.partial").mkdir()
    with pytest.raises(ConfigError, match=r"only unfinished saves: step_00000001\.partial"):
        saves.load(tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint of step 7") as refusal:
        saves.load(three, 7)
    assert refusal.value.allowed == "1, 2, 3"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        saver(tmp_path / "file" / "checkpoints")


FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[2])
import test_saves as t
writer = t.saver(sys.argv[1])
for limit in (50, 3000, 200_000):  # the manifest, the samples, the arrays: each fails at another file
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    written = t.save(writer, 4, width=30_000)
    print(written.written_bytes, written.problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(t.save(writer, 4, width=30_000).problem or "written")
"""


def test_a_full_disk_leaves_the_last_good_one_and_says_so(copied):
    """Files that may not grow stand for a disk with no room. The next save, which finds room, is a good one again."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, copied, Path(__file__).parent], capture_output=True, text=True, check=True, timeout=60
    )
    *failed, last = ran.stdout.splitlines()
    assert len(failed) == 3
    for line in failed:
        assert line.startswith(
            f"0 the checkpoint of step 4 could not be written to {copied}: File too large (it needs about 0.5 MB"
        )
        assert "the last good one is of step 3; free some space" in line
    assert last == "written"
    assert "ERROR" not in ran.stderr
    assert saves.steps(copied) == [2, 3, 4]


class StuckSaver(saves.Saver):
    """On a disk that does not answer until it is told to."""

    def __init__(self, folder):
        super().__init__(folder, keep=1)
        self.answers = threading.Event()

    def wait(self):
        self.answers.wait()
        return super().wait()


def test_a_disk_that_hangs_ends_the_wait_for_it(tmp_path):
    stuck = StuckSaver(tmp_path)
    performer = SavePerformer(Dispatcher(), stuck, limit_s=60.0)
    try:
        with pytest.raises(OutputError, match=r"on its way to .* for 60 s: the disk hangs"):
            trio.run(performer.finish, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        stuck.answers.set()


class Learner:
    """Stands where the learner is: on the dispatcher's thread."""

    step = 0

    def state(self):
        return arrays(self.step)


def test_the_performer_tells_what_became_of_each_save_with_the_one_after_it(tmp_path):
    learner, said = Learner(), []
    dispatcher = Dispatcher({"learner.state": learner.state})
    dispatcher.start()
    writer = saver(tmp_path / "here")
    performer = SavePerformer(dispatcher, writer, said.append)

    async def main(rt):
        outcomes = []
        for learner.step in (1, 2, 3):
            outcomes.append(await rt.perform(Checkpoint(learner.step, 0, state(learner.step))))
            if learner.step == 2:
                writer.wait()
                shutil.rmtree(writer.folder)
                writer.folder.write_text("in the way")
                outcomes.append(await rt.perform(Checkpoint(4, 0, state(4))))
        with pytest.raises(OutputError, match="step 3 could not be written"):
            await performer.finish()
        return outcomes

    first, second, fourth, third = live.run(main, performers=performer.performers())
    dispatcher.stop()
    assert first.completed == ()
    assert first.amount == sum(array.nbytes for part in arrays(1).values() for array in part.values())
    assert [pair[0] for pair in second.completed] == [1]
    assert second.completed[0][1] > 0
    assert fourth.completed == ()
    assert third.completed == ((4, 0),)
    assert "step 4 could not be written" in third.result
    assert said == [third.result]
