"""Where the command line begins: help and version at once, everything else through `harness.cli`, every error in one place.

`harness --help` is what a new user types first, and a library that parses options takes most of half a second to import. So
the table of commands stands here, and the commands take their first line from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from typing import TYPE_CHECKING

from harness.core.errors import HarnessError, OutputError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130

COMMANDS = {
    "run": (
        "Train for real: the same pipeline, on JAX.",
        "harness run scenarios/cpu_live.toml --out runs/first",
    ),
    "simulate": (
        "Predict how a scenario spends its chips.",
        "harness simulate scenarios/fully_async.toml --replications 10",
    ),
    "calibrate": (
        "Make a scenario from your own tool times or requests.",
        "harness calibrate tools.csv --duration seconds --by tool --base scenarios/coding_agent.toml --out mine.toml",
    ),
    "tune": (
        "Find the settings that keep chips busiest, and say how sure that is.",
        "harness tune scenarios/coding_agent.toml --budget 5m --max-lag 2",
    ),
    "schema": (
        "List every field of a scenario with its unit and meaning.",
        "harness schema world.inference",
    ),
}
"""What each command does, and an example. The test of the command line holds it against the commands that exist."""

EXIT_CODES = """\
Exit codes: 0 done, 1 a bug of ours, 2 your input, 3 a broken law or invariant,
4 output could not be written, 130 interrupted (what was finished is kept).
HARNESS_DEBUG=1 shows the traceback of any error.
"""

HELP = """\
Usage: harness COMMAND [OPTIONS]

Where do the accelerators of an asynchronous RL run stand idle, and which
settings change that?

Commands (harness COMMAND --help for its options):
{commands}

Start with:
  harness tune scenarios/coding_agent.toml

Options:
  --help, -h  this text
  --version   the version

{exit_codes}"""


def started_at() -> float:
    """When this process began, on the monotonic clock, near enough. Promises of wall time count from there."""
    return _IMPORTED_AT


# Start-up is all computing, so the time on the processor so far is the time since the process began.
_IMPORTED_AT = time.monotonic() - time.process_time()


def help_text() -> str:
    """What `harness --help` says."""
    commands = "\n".join(f"  {name:<10}{line}" for name, (line, _) in COMMANDS.items())
    return HELP.format(commands=commands, exit_codes=EXIT_CODES)


def version_text() -> str:
    """What `harness --version` says."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rollout-harness")
    except PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        return _failed(error, _os_exit_code(error), f"output could not be written: {error.strerror or error}")
    return code


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("--help", "-h"):
        sys.stdout.write(help_text())
        return 0
    if words[0] == "--version":
        sys.stdout.write(version_text() + "\n")
        return 0
    as_json = "--json" in words
    try:
        from harness.cli import call

        return call(words)
    except HarnessError as error:
        return _failed(error, error.exit_code, str(error), as_json=as_json)
    except KeyboardInterrupt as error:
        return _failed(error, INTERRUPTED, str(error) or "interrupted before anything was finished", as_json=as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(error, _os_exit_code(error), f"{where}{error.strerror or error}", as_json=as_json)
    except Exception as error:  # our own bug: say so shortly
        hint = "this is a bug of ours; HARNESS_DEBUG=1 shows where"
        return _failed(error, 1, f"{type(error).__name__}: {error}\n  do:      {hint}", as_json=as_json)


def _os_exit_code(error: OSError) -> int:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        return OutputError.exit_code
    return 2 if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError) else 1


def _failed(error: BaseException, code: int, message: str, *, as_json: bool = False) -> int:
    if os.environ.get("HARNESS_DEBUG"):
        import traceback

        traceback.print_exception(error)
    with contextlib.suppress(OSError):
        sys.stderr.write(f"harness: {message}\n")
    if as_json:
        import json

        sys.stdout.write(json.dumps({"error": {"exit_code": code, "kind": type(error).__name__, "message": message}}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
