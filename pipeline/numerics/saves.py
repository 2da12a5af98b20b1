"""Saves on disk: the learner's arrays and the pipeline's state, committed together.

Theory of operation. A checkpoint is a folder::

    step_00000012/
        learner/        arrays, written by Orbax
        pipeline.json   `pipeline.state`, without the samples
        samples.npz     the samples of the finished groups, one array a field
        manifest.json   schema, step, and of each file above its size and CRC-32; of each array its shape and type

It is written under another name, the manifest last, and everything is forced to the disk before the folder gets its name: one
rename, which happens whole or not at all. So a save that was cut by a kill, a lost machine or a full disk has another name
and is never taken for a good one; and what was changed since is told by the manifest. An old checkpoint goes only when a new
one is there.

Arrays are copied to the host before `Saver.start`; a thread of the saver's own does the rest. One save is written at a time.
"""

from __future__ import annotations

import errno
import importlib
import json
import logging
import os
import re
import shutil
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from harness.core.errors import ConfigError, DataError, HarnessError
from pipeline.state import from_plain, to_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from pipeline.state import PipelineState

SCHEMA = 1
"""Version of the layout above. A checkpoint of a newer one is refused."""

Tree = dict[str, dict[str, "NDArray[Any]"]]
"""Arrays of the learner: two levels of dict, as `Learner.state` gives them."""

_MANIFEST, _PIPELINE, _SAMPLES, _LEARNER = "manifest.json", "pipeline.json", "samples.npz", "learner"
_STEP = re.compile(r"step_(\d{8,})")
_PARTIAL = ".partial"
_TYPES = {"tokens": np.int32, "trained": np.bool_, "log_probs": np.float64, "versions": np.int32,
          "lengths": np.int64, "truncated": np.bool_}  # fmt: skip


def on_host(tree: Mapping[str, Mapping[str, Any]]) -> Tree:
    """Copies of all arrays in the host's memory; blocks until the devices have them.

    Raises:
        ConfigError: an array is spread over several processes, so that no one of them could write it.

    """
    for part, arrays in tree.items():
        for name, array in arrays.items():
            if not (getattr(array, "is_fully_addressable", True) or array.is_fully_replicated):
                raise ConfigError(
                    f"{part}/{name} is spread over several processes and cannot be saved by one of them",
                    field="live.mesh",
                    remedy="give each process all of the learner's parameters",
                )
    return {part: {name: np.array(array) for name, array in arrays.items()} for part, arrays in tree.items()}


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a save.

    Attributes:
        step: the learner's step.
        written_bytes: size of the checkpoint; 0 when it could not be written.
        problem: what went wrong, where, and what to do; empty when it was written.

    """

    step: int
    written_bytes: int
    problem: str = ""


class Saver:
    """Writes checkpoints into a folder, one at a time, on a thread of its own.

    The thread is waited for when the process exits in an orderly way.

    Args:
        folder: made when it is missing. What unfinished saves left there is removed.
        keep: checkpoints that are kept, the newest ones.

    Raises:
        ConfigError: the folder cannot be made.

    """

    def __init__(self, folder: str | Path, *, keep: int) -> None:
        self.folder = Path(folder).absolute()
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Written] | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise ConfigError(
                f"the folder for checkpoints cannot be made: {failure.strerror}", file=str(self.folder),
                remedy="choose another folder",
            ) from failure  # fmt: skip
        for left in self.folder.glob(f"*{_PARTIAL}"):
            shutil.rmtree(left, ignore_errors=True)

    def start(self, arrays: Tree, state: PipelineState) -> None:
        """Begin to write. The save before it must have been waited for. Neither argument may change any more."""
        assert self._writing is None
        self._writing = self._thread.submit(self._write, arrays, state)

    def wait(self) -> Written | None:
        """Block until what was begun is on the disk; what became of it, or None when there was nothing to wait for."""
        writing, self._writing = self._writing, None
        return writing.result() if writing is not None else None

    def close(self) -> None:
        """End the thread, when it is done."""
        self._thread.shutdown()

    def _write(self, arrays: Tree, state: PipelineState) -> Written:
        partial = self.folder / f"{_name(state.t)}{_PARTIAL}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            self._need_room(arrays)
            _write_learner(partial / _LEARNER, arrays)
            _write_pipeline(partial, state)
            written_bytes = _seal(partial, state.t, arrays)
            self._commit(partial, state.t)
        except Exception as failure:  # a disk can refuse in many ways, and Orbax has names of its own for them
            shutil.rmtree(partial, ignore_errors=True)
            return Written(state.t, 0, self._explain(state.t, arrays, failure))
        return Written(state.t, written_bytes)

    def _need_room(self, arrays: Tree) -> None:
        """Say beforehand what Orbax would find out halfway, with less to say."""
        if shutil.disk_usage(self.folder).free < _bytes(arrays):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _commit(self, partial: Path, step: int) -> None:
        """Give the folder its name. Those of the same step or later belong to a past that a resume has left."""
        for other in steps(self.folder):
            if other >= step:
                _set_aside(self.folder / _name(other))
        partial.rename(self.folder / _name(step))
        _sync_folder(self.folder)
        for old in steps(self.folder)[: -self._keep]:
            doomed = self.folder / f"{_name(old)}{_PARTIAL}"
            (self.folder / _name(old)).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _explain(self, step: int, arrays: Tree, failure: Exception) -> str:
        needs = _bytes(arrays)
        free = shutil.disk_usage(self.folder).free if self.folder.is_dir() else 0
        good = steps(self.folder)
        kept = f"the last good one is of step {good[-1]}" if good else "there is no earlier one"
        return (
            f"the checkpoint of step {step} could not be written to {self.folder}: {_cause(failure)} "
            f"(it needs about {_megabytes(needs)}; {_megabytes(free)} are free); {kept}; "
            "free some space, or give another folder for the output"
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 100_000_000 else f"{size / 1e6:.0f} MB"


def _bytes(arrays: Tree) -> int:
    return sum(array.nbytes for part in arrays.values() for array in part.values())


def _cause(failure: Exception) -> str:
    """What the disk said, through Orbax or not."""
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    code = re.search(r"os_error_code='(\d+)'", str(failure))
    return os.strerror(int(code.group(1))) if code else _first_line(failure)


def _first_line(failure: Exception) -> str:
    return f"{type(failure).__name__}: {str(failure).partition(chr(10))[0][:300]}"


def _name(step: int) -> str:
    return f"step_{step:08d}"


def _set_aside(folder: Path) -> None:
    """Give a checkpoint a name that no longer counts, for whoever wants it after all."""
    aside = folder.with_name(f"{folder.name}.abandoned")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def _write_learner(folder: Path, arrays: Tree) -> None:
    ocp = _orbax()
    whole = {part: {name: array for name, array in each.items() if array.size} for part, each in arrays.items()}
    with _checkpointer(ocp) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(whole))


def _orbax() -> Any:
    """Orbax, which has no types and takes half a second to import.

    It logs each failure with a traceback of its threads, and then raises it too. The second is enough.
    """
    orbax = importlib.import_module("orbax.checkpoint")
    logging.getLogger("absl").addFilter(_not_of_its_threads)
    return orbax


def _not_of_its_threads(record: logging.LogRecord) -> bool:
    return "_SignalingThread.run() raised" not in str(record.msg)


def _checkpointer(ocp: Any) -> Any:
    """One that looks at this process alone: the arrays are on its host, and others may be in the middle of something else."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"save_{me}")
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _write_pipeline(folder: Path, state: PipelineState) -> None:
    plain, columns = to_plain(state)
    (folder / _PIPELINE).write_text(json.dumps(plain), encoding="utf-8")
    with (folder / _SAMPLES).open("wb") as file:
        np.savez(file, **{name: np.asarray(column, _TYPES[name]) for name, column in columns.items()})  # type: ignore[arg-type]


def _seal(folder: Path, step: int, arrays: Tree) -> int:
    """Write the manifest and force everything to the disk; returns the bytes of all files."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = _size_and_sum(path, sync=True)
    shapes = {
        part: {name: [list(array.shape), str(array.dtype)] for name, array in each.items()} for part, each in arrays.items()
    }
    manifest = {"schema": SCHEMA, "step": step, "files": files, "learner": shapes}
    with (folder / _MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            _sync_folder(path)
    return sum([size for size, _ in files.values()])


def _size_and_sum(path: Path, *, sync: bool = False) -> tuple[int, int]:
    """Bytes and CRC-32 of a file."""
    size = total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            total = zlib.crc32(block, total)
        if sync:
            os.fsync(file.fileno())
    return size, total


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint.

    Attributes:
        folder: where it was.
        arrays: the learner's, in the host's memory.
        state: the pipeline's.
        skipped: newer checkpoints that were passed over, each with the reason.

    """

    folder: Path
    arrays: Tree
    state: PipelineState
    skipped: tuple[str, ...] = ()


def steps(folder: str | Path) -> list[int]:
    """Steps of the checkpoints in a folder, growing. Whether they are whole is known when they are loaded."""
    found = [_STEP.fullmatch(path.name) for path in Path(folder).glob("step_*") if path.is_dir()]
    return sorted(int(match.group(1)) for match in found if match is not None)


def latest(folder: str | Path) -> int:
    """Step of the newest checkpoint.

    Raises:
        ConfigError: there is none.

    """
    found = steps(folder)
    if not found:
        path = Path(folder)
        partial = sorted(left.name for left in path.glob(f"*{_PARTIAL}"))
        state = f"only unfinished saves: {', '.join(partial)}" if partial else "none" if path.is_dir() else "no such folder"
        raise ConfigError(
            f"there is no checkpoint to resume from ({state})", file=str(folder), allowed="a folder with step_… in it",
            remedy="give the folder of a run that has saved (pipeline.checkpoint_interval above 0), or start a new run",
        )  # fmt: skip
    return found[-1]


def load(
    folder: str | Path, step: int | None = None, *, like: Mapping[str, Mapping[str, Any]] | None = None, fall_back: bool = False
) -> Loaded:
    """Read a checkpoint.

    Args:
        folder: that a `Saver` wrote to.
        step: which one; the newest by default.
        like: the learner's arrays, or anything with their shapes: a checkpoint of another model is refused before it is read.
        fall_back: go on to the next older one where a checkpoint is damaged or too new, until one is good.

    Raises:
        ConfigError: there is no such checkpoint.
        DataError: it is damaged, newer than this program or of another model; with the file, what is wrong, what to do.

    """
    newest = latest(folder)
    found = steps(folder)
    if step is not None and step not in found:
        raise ConfigError(
            f"there is no checkpoint of step {step}", file=str(folder), value=step, allowed=", ".join(map(str, found)),
            remedy="choose one of these, or leave the step out for the newest",
        )  # fmt: skip
    last = newest if step is None else step
    skipped: list[str] = []
    for candidate in reversed([number for number in found if number <= last]):
        path = Path(folder).absolute() / _name(candidate)
        try:
            manifest = _checked_manifest(path)
        except DataError as refusal:
            if not fall_back:
                raise
            skipped.append(str(refusal))
            continue
        if like is not None:
            _check_model(path, manifest["learner"], like)
        try:
            return Loaded(path, _read_learner(path, manifest["learner"]), _read_pipeline(path), tuple(skipped))
        except DataError as refusal:
            if not fall_back:
                raise
            skipped.append(str(refusal))
    raise DataError("no checkpoint in the folder is good:\n" + "\n".join(skipped), file=str(folder), remedy="start a new run")


def _damaged(file: Path, problem: str) -> DataError:
    return DataError(
        f"the checkpoint is damaged: {problem}", file=str(file),
        remedy="resume from the last good one with --fall-back",
    )  # fmt: skip


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(path, "the file is missing") from None
    except (OSError, ValueError) as failure:
        raise _damaged(path, f"the file cannot be read: {_first_line(failure)}") from failure
    if not isinstance(content, dict):
        raise _damaged(path, "the file holds no table")
    return content


def _checked_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, after every file was found to be as it says."""
    path = folder / _MANIFEST
    manifest = _read_json(path)
    schema = manifest.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(
            "the checkpoint was written by a newer version of this program", file=str(path), field="schema", value=schema,
            allowed=f"1 to {SCHEMA}", remedy="resume with the version that wrote it, or from an earlier one with --fall-back",
        )  # fmt: skip
    files = manifest.get("files")
    if schema != SCHEMA or not isinstance(files, dict) or not isinstance(manifest.get("learner"), dict):
        raise _damaged(path, "it is no manifest")
    for name, wanted in files.items():
        file = folder / name
        if not file.is_file():
            raise _damaged(file, "the file is missing")
        size = file.stat().st_size
        if size != wanted[0]:
            raise _damaged(file, f"the file has {size} bytes instead of {wanted[0]}")
        if _size_and_sum(file)[1] != wanted[1]:
            raise _damaged(file, "the file's content was changed (its CRC-32 is another)")
    return manifest


def _check_model(folder: Path, saved: Mapping[str, Mapping[str, Any]], like: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a checkpoint of another model, naming the first array that differs."""
    has = {f"{part}/{name}": tuple(shape) for part, each in saved.items() for name, (shape, _) in each.items()}
    wants = {f"{part}/{name}": tuple(np.shape(array)) for part, each in like.items() for name, array in each.items()}
    for name in _in_order(wants, has):
        if has.get(name) != wants.get(name):
            raise DataError(
                "the checkpoint is of another model or optimizer", file=str(folder), field=name,
                value=f"shape {has[name]}" if name in has else "not in the checkpoint",
                allowed=f"shape {wants[name]}" if name in wants else "not in this run's learner",
                remedy="resume with the tables [live.model] and [live.learner] of the run that was saved",
            )  # fmt: skip


def _in_order(*names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for each in names for name in each))


def _read_learner(folder: Path, shapes: Mapping[str, Mapping[str, Any]]) -> Tree:
    ocp = _orbax()
    kept = {part: [name for name, (shape, _) in each.items() if 0 not in shape] for part, each in shapes.items()}
    as_numpy = {part: {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names} for part, names in kept.items()}
    try:
        with _checkpointer(ocp) as checkpointer:
            read = checkpointer.restore(folder / _LEARNER, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    except HarnessError:
        raise
    except Exception as failure:
        raise _damaged(folder / _LEARNER, f"the arrays cannot be read: {_first_line(failure)}") from failure
    return {
        part: {
            name: read[part][name] if name in kept[part] else np.zeros(shape, dtype) for name, (shape, dtype) in each.items()
        }
        for part, each in shapes.items()
    }


def _read_pipeline(folder: Path) -> PipelineState:
    plain = _read_json(folder / _PIPELINE)
    path = folder / _SAMPLES
    try:
        with np.load(path) as file:
            columns = {name: file[name].tolist() for name in file.files}
    except (OSError, ValueError) as failure:
        raise _damaged(path, f"the file cannot be read: {_first_line(failure)}") from failure
    return from_plain(plain, columns, file=str(folder / _PIPELINE))
