"""A study kept on disk: every simulation of `tune`, so that it can be interrupted, resumed and extended.

A folder holds `study.json` (what is tuned, and by which code) and `runs.jsonl`, one line for each simulation that ended by
itself, appended and flushed as it ends. Whoever opens the folder again finds all that was finished: a simulation is a function
of settings, seed, length, scenario and code, so one that is known need not be made again. Therefore a study belongs to one
scenario and one version of the code, and anything else is refused. What may differ from session to session is what is wanted
(objective, ceiling, knobs, budget): the simulations are the same.

Settings are kept as what they change in the scenario, so that a session that searches other knobs finds what it can use.

A kill at any byte leaves at most one line torn, at the end: it is cut off when the study is opened. A line that is damaged
elsewhere is no accident of ours and an error. The file is locked while a session is at work. Numbers that are not finite
are written as Python's `json` does (`Infinity`): a summary that is read is the one that was made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.summary import RunSummary
from harness.analysis.waste import Lengths
from harness.core.errors import ConfigError, OutputError
from harness.files import check_folder, write_whole
from harness.tuning.bench import Job
from harness.tuning.worker import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import FileIO
    from types import TracebackType

    from harness.tuning.space import Settings

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STUDY_SCHEMA = 1
"""Version of the files. Another one is refused."""

CODE = ("core", "engines", "costs", "scenario", "analysis")
"""Packages of `harness` that decide what a simulation gives; of `pipeline`, policies, actors and what stands beside them."""

GLUE = ("run.py", "summaries.py", "tuned.py", "notices.py", "checks.py", "own_pipeline.py")
"""Files of `harness` that put settings into a scenario, choose how long it runs, and sum it up."""

OF_PIPELINE = (".", "policies", "actors", "environments")
"""Folders of `pipeline` that do."""

DEPENDENCIES = ("numpy", "simpy")
"""Packages that draw and that keep the time: other versions may give other runs."""

MOST_DIFFERENCES = 3
"""Fields that are named when another scenario is resumed by mistake."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a simulation depends on, beside settings, seed and length.

    Attributes:
        title: of the scenario, for people.
        scenario: fully resolved, as JSON data.
        code: fingerprint of the code.
        versions: of this program and what it stands on, for people.

    """

    title: str
    scenario: Mapping[str, Any]
    code: str
    versions: Mapping[str, str] = field(default_factory=dict)


def code_files(ours: Path) -> list[Path]:
    """Every source file that decides what a simulation gives; the pipeline's lie in `ours`."""
    root = Path(__file__).parents[1]
    files = [path for name in CODE for path in sorted((root / name).rglob("*.py"))]
    files += [root / name for name in GLUE]
    return files + [path for name in OF_PIPELINE for path in sorted((ours / name).glob("*.py"))]


def code_fingerprint(ours: Path) -> str:
    """A hash of those files, and of the versions of what they stand on."""
    found = hashlib.blake2b(digest_size=12)
    for name in DEPENDENCIES:
        found.update(f"{name} {metadata.version(name)}\0".encode())
    for path in code_files(ours):
        data = path.read_bytes()
        found.update(f"{path.parent.name}/{path.name} {len(data)}\0".encode() + data)
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Of this program and what decides with it what a simulation gives."""
    found = {}
    for name in ("rollout-harness", *DEPENDENCIES):
        with contextlib.suppress(metadata.PackageNotFoundError):  # run from its sources
            found[name] = metadata.version(name)
    return found


@dataclass(slots=True)
class Study:
    """An open study.

    Attributes:
        folder: where it is.
        runs: simulations that are known, by job.
        failures: jobs that failed by themselves.
        seconds: what each took.
        hints: numbers that an earlier session chose (`screen_steps`, `final_steps`); later ones choose alike where they can.
        known: simulations that were there when it was opened.
        torn: whether the log ended in a line that a kill had torn; it was cut off.
        today: what a job's settings are without any change; jobs are kept by what they change in that.

    """

    folder: Path
    runs: dict[Job, RunSummary] = field(default_factory=dict)
    failures: dict[Job, Failure] = field(default_factory=dict)
    seconds: dict[Job, float] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    known: int = 0
    torn: bool = False
    today: Settings = field(default_factory=dict)
    _head: dict[str, Any] = field(default_factory=dict)
    _log: FileIO | None = None
    _lock_file: Path | None = None

    @classmethod
    def open(cls, folder: str | Path, identity: Identity) -> Study:
        """Begin a study, or go on with one.

        Raises:
            ConfigError: the folder holds a study of another scenario, of other code or another schema, or is in use.
            OutputError: it cannot be written.

        """
        study = cls(Path(folder))
        check_folder(study.folder)
        head = study.folder / "study.json"
        if head.exists():  # before anything is put beside it
            _checked_head(head, identity)
        try:
            study._lock()
            study._begin(head, identity)
            study._load()
        except BaseException:
            study.close()
            raise
        return study

    def __enter__(self) -> Study:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def file(self, job: Job, result: RunSummary | Failure, seconds: float) -> None:
        """Keep what came of a job. What was cut off for want of time is not kept: more time may finish it.

        Raises:
            OutputError: it cannot be written.

        """
        job = self._changes(job)
        if self._log is None or job in self.runs or (isinstance(result, Failure) and result.kind in NOT_KEPT):
            return
        what = {"run" if isinstance(result, RunSummary) else "failure": dataclasses.asdict(result)}
        line = {"settings": job.settings, "seed": job.seed, "steps": job.steps, "seconds": seconds} | what
        before = self._log.seek(0, os.SEEK_END)
        try:
            _write_all(self._log, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except BaseException as error:
            with contextlib.suppress(OSError):  # what is there of it is cut off when the study is opened
                self._log.truncate(before)
            if not isinstance(error, OSError):
                raise
            raise OutputError(
                f"{self.folder / 'runs.jsonl'}: cannot be written: {error.strerror or error}; what was finished is kept\n"
                "  do:      free some space and resume with the same --study"
            ) from error
        self._remember(job, result, seconds)

    def recalled(self) -> dict[Job, RunSummary | Failure]:
        """All that is known, by jobs that say every setting of `today`."""
        everything: dict[Job, RunSummary | Failure] = {**self.failures, **self.runs}
        return {Job.of(self.today | job.settings, job.seed, job.steps): result for job, result in everything.items()}

    def hint(self, **numbers: int) -> None:
        """Keep numbers for later sessions.

        Raises:
            OutputError: they cannot be written.

        """
        if self._log is None or numbers.items() <= self.hints.items():
            return
        self.hints |= numbers
        self._head["hints"] = self.hints
        write_whole(self.folder / "study.json", json.dumps(self._head, indent=1) + "\n")

    def said(self) -> tuple[str, ...]:
        """What a reader must know of what was there when it was opened."""
        known = f"Continues a study of {self.known:,} simulation{'s' if self.known != 1 else ''}."
        torn = "The study ended in a line torn by a kill: that simulation is left out."
        return (*([known] if self.known else []), *([torn] if self.torn else []))

    def close(self) -> None:
        """Give the folder back."""
        if self._log is not None:
            if self._lock_file is not None:
                with contextlib.suppress(OSError):
                    self._lock_file.unlink()
                _HELD.discard(self._lock_file)
                self._lock_file = None
            self._log.close()
            self._log = None

    def _remember(self, job: Job, result: RunSummary | Failure, seconds: float) -> None:
        self.seconds[job] = seconds
        if isinstance(result, Failure):
            self.failures[job] = result
        else:
            self.runs[job] = result

    def _changes(self, job: Job) -> Job:
        changes = {path: value for path, value in job.settings.items() if path not in self.today or value != self.today[path]}
        return Job.of(changes, job.seed, job.steps)

    def _lock(self) -> None:
        """The file of simulations, open to append and locked, so that nobody else writes here."""
        path = self.folder / "runs.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._log = path.open("ab+", buffering=0)
        except OSError as error:
            raise OutputError(
                f"{path}: cannot be written: {error.strerror or error}\n  do:      name another folder"
            ) from error
        if not self._flocked():
            self._lock_by_number()

    def _flocked(self) -> bool:
        """Whether the system holds the lock: it lets go of it when the process ends, however that ends."""
        if fcntl is None or self._log is None:
            return False
        lock = self.folder / LOCK
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use(_holder(lock)) from None
        except OSError:  # a file system without locks
            return False
        with contextlib.suppress(OSError):  # so that others can say whose it is
            lock.write_text(_me(), encoding="utf-8")
            self._lock_file = lock
        return True

    def _lock_by_number(self) -> None:
        """A file that names the process, where the system has no locks; that of a process that has died is taken over."""
        lock = self.folder / LOCK
        for _ in range(2):
            try:
                with lock.open("x", encoding="utf-8") as stream:
                    stream.write(_me())
            except FileExistsError:
                holder = _holder(lock)
                if _lives(lock, holder):
                    raise self._in_use(holder, f"; if there is no such process, delete {lock}") from None
                lock.unlink(missing_ok=True)
            else:
                self._lock_file = lock
                _HELD.add(lock)
                return
        raise self._in_use(_holder(lock))

    def _in_use(self, holder: tuple[int, str], more: str = "") -> ConfigError:
        number, host = holder
        whose = (f" {number}" + (f" on {host}" if host != platform.node() else "")) if number else ""
        return ConfigError(
            f"is in use by another process{whose}", field="--study", value=str(self.folder),
            remedy=f"wait for it, or name another folder{more}",
        )  # fmt: skip

    def _begin(self, head: Path, identity: Identity) -> None:
        """Read what the study is of, or write it. Under the lock: another may have begun it in the meantime."""
        if head.exists():
            self._head = _checked_head(head, identity)
            self.hints = dict(self._head["hints"])
            return
        if (self.folder / "runs.jsonl").stat().st_size:
            raise ConfigError(
                "has simulations but no study.json that says of what", field="--study", value=str(self.folder),
                remedy="name another folder",
            )  # fmt: skip
        scenario = dict(identity.scenario)
        self._head = {"schema": STUDY_SCHEMA, "kind": "study", "title": identity.title, "code": identity.code}
        self._head |= {"versions": dict(identity.versions), "scenario_hash": _hash(scenario), "hints": {}, "scenario": scenario}
        write_whole(head, json.dumps(self._head, indent=1) + "\n")

    def _load(self) -> None:
        path = self.folder / "runs.jsonl"
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        lines = data[:whole].split(b"\n")[:-1]
        while len(lines) > 1 and not _is_json(lines[-1]):  # a disk that lost power may leave anything at the end
            whole -= len(lines.pop()) + 1
        if whole < len(data) and self._log is not None:  # what a kill has torn
            self._log.truncate(whole)
            self.torn = True
        for number, line in enumerate(lines, 1):
            job, result, seconds = _read_line(path, number, line)
            self._remember(job, result, seconds)
        self.known = len(self.runs) + len(self.failures)


NOT_KEPT = ("CutOff", "WorkerDied", "MemoryError")
"""Failures that another session may not meet."""


LOCK = "lock"
"""File that names the process that is at work, while it is."""

_HELD: set[Path] = set()
"""Locks of this process that the system does not keep: a restarted container may give a new process the old number."""


def _me() -> str:
    return f"{os.getpid()} {platform.node()}\n"


def _holder(lock: Path) -> tuple[int, str]:
    """Number and host of the process that a lock names; 0 when it names none."""
    try:
        number, _, host = lock.read_text(encoding="utf-8").strip().partition(" ")
        return int(number), host
    except (OSError, ValueError):
        return 0, ""


def _lives(lock: Path, holder: tuple[int, str]) -> bool:
    """Whether the process may still be at work; of one elsewhere nobody can tell."""
    number, host = holder
    if number <= 0:
        return False
    if host != platform.node() or os.name == "nt":  # where asking a process for a sign of life would end it
        return True
    if number == os.getpid():
        return lock in _HELD
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _write_all(stream: FileIO, data: bytes) -> None:
    while data:
        data = data[stream.write(data) or 0 :]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _read_line(path: Path, number: int, line: bytes) -> tuple[Job, RunSummary | Failure, float]:
    try:
        data = json.loads(line)
        seed, steps, seconds = int(data["seed"]), int(data["steps"]), float(data["seconds"])
        job = Job.of(data["settings"], seed, steps)
        if not all(isinstance(value, int | float | str) for _, value in job.key):
            raise TypeError("settings that are no plain values")
        if "run" in data:
            return job, run_from_json(data["run"]), seconds
        _check_types(Failure, data["failure"])
        return job, Failure(**data["failure"]), seconds
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"is damaged ({type(error).__name__}: {error})", field=f"line {number}", file=str(path), line=number,
            remedy="delete that line: its simulation is made again",
        ) from None  # fmt: skip


def run_from_json(data: Mapping[str, Any]) -> RunSummary:
    """A run's summary from `dataclasses.asdict(summary)` as JSON: every field as it was.

    Raises:
        TypeError: a field is missing, unknown or of another type.

    """
    missing = {one.name for one in dataclasses.fields(RunSummary)} - data.keys()
    if missing:
        raise TypeError(f"without {', '.join(sorted(missing))}")
    _check_types(RunSummary, data)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    values["lengths"] = tuple(Lengths(**one) for one in values["lengths"])
    return RunSummary(**values)


def _check_types(record: type[Any], data: Mapping[str, Any]) -> None:
    """Whether what was read has the types of the record, before a search calculates with it."""
    for one in dataclasses.fields(record):
        if one.name in data and not _fits(data[one.name], str(one.type)):
            raise TypeError(f"{one.name} is no {one.type}")


_SCALARS: dict[str, Any] = {"int": int, "float": int | float, "str": str, "int | None": int | None, "Lengths": dict}
"""What JSON has for the types of fields."""


def _fits(value: Any, hint: str) -> bool:
    if hint.startswith("dict[str, "):
        return isinstance(value, dict) and all(_fits(item, hint[len("dict[str, ") : -1]) for item in value.values())
    if hint.startswith("tuple["):
        return isinstance(value, list) and all(_fits(item, hint[len("tuple[") : -len(", ...]")]) for item in value)
    return isinstance(value, _SCALARS[hint]) and not isinstance(value, bool)


def _hash(scenario: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(scenario, sort_keys=True).encode(), digest_size=16).hexdigest()


def _checked_head(path: Path, identity: Identity) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}", field="--study", value=str(path), remedy="name another folder"
        ) from None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("kind") != "study":
        raise ConfigError("is no study", field="--study", value=str(path), remedy="name another folder")
    if data.get("schema") != STUDY_SCHEMA:
        raise ConfigError(
            "is a study of another schema", field="--study", value=str(data.get("schema")), allowed=str(STUDY_SCHEMA),
            remedy="name another folder, or use the version that made it",
        )  # fmt: skip
    hints = data.get("hints")
    if not isinstance(data.get("scenario"), dict) or not isinstance(hints, dict) or set(map(type, hints.values())) - {int}:
        raise ConfigError("is damaged", field="--study", value=str(path), remedy="name another folder")
    apart = list(_differences(data["scenario"], json.loads(json.dumps(identity.scenario))))
    if apart:
        shown = [f"{name} is {_short(there)} in the study and {_short(here)} here" for name, there, here in apart]
        more = f", and {len(apart) - MOST_DIFFERENCES} fields more" if len(apart) > MOST_DIFFERENCES else ""
        raise ConfigError(
            f"is a study of another scenario ({data.get('title')}): {'; '.join(shown[:MOST_DIFFERENCES])}{more}",
            field="--study", value=str(path.parent), remedy="name another folder, or give the scenario that it began with",
        )  # fmt: skip
    if data.get("code") != identity.code:
        raise ConfigError(
            f"was made by another version of this program, whose simulations may differ: {_versions_apart(data, identity)}",
            field="--study", value=str(path.parent), remedy="name another folder, or go on with the version that made it",
        )  # fmt: skip
    return data


def _versions_apart(head: Mapping[str, Any], identity: Identity) -> str:
    kept, here = head.get("versions"), identity.versions
    there = kept if isinstance(kept, dict) else {}
    apart = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    said = [f"{name} {there.get(name, 'absent')} in the study and {here.get(name, 'absent')} here" for name in apart]
    return "; ".join(said) or "the version has the same number, but its source files have changed"


def _short(value: object) -> str:
    text = _ABSENT if value is _ABSENT else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


_ABSENT = "absent"


def _differences(there: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted(there.keys() | here.keys()):
            yield from _differences(there.get(name, _ABSENT), here.get(name, _ABSENT), f"{path}.{name}" if path else name)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for index, (a, b) in enumerate(zip(there, here, strict=True)):
            yield from _differences(a, b, f"{path}.{index}")
    elif there != here:
        yield path, there, here
