"""The commands: each is a thin shell round a public function.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError

from harness.__main__ import COMMANDS, EXIT_CODES, INTERRUPTED, started_at
from harness.core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from harness.run import PipelineConfig
    from harness.scenario.schema import Scenario
    from pipeline.processes import Processes

app = App(
    name="harness", help_epilogue=EXIT_CODES, help_format="plaintext", version_flags=[], suppress_keyboard_interrupt=False
)


def _about(command: str) -> str:
    line, example = COMMANDS[command]
    return f"{line}\n\nExample: {example}"


ScenarioFile = Annotated[Path, Parameter(help="A scenario, as TOML.")]
Overrides = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Override one field, as path=value; may be given again for another."),
]
Patch = Annotated[Path | None, Parameter(help="TOML that is put over the scenario: patch.toml of tune, for example.")]
OwnPipeline = Annotated[
    str | None, Parameter(help="module:build of a pipeline of your own, in place of ours; the module may lie in this folder.")
]
Seed = Annotated[int | None, Parameter(help="Of the first replication. Default: the scenario's.")]
Out = Annotated[Path | None, Parameter(help="Folder for the results. Default: a dated one under runs/.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object on standard output, nothing else.")]
Html = Annotated[Path | None, Parameter(help="Also write a page that needs no network.")]
Workers = Annotated[int | None, Parameter(help="Processes. Default: one a core.")]


@app.command(help=_about("simulate"))
def simulate(
    scenario: ScenarioFile,
    /,
    *,
    overrides: Overrides = None,
    patch: Patch = None,
    pipeline: OwnPipeline = None,
    seed: Seed = None,
    replications: Annotated[int | None, Parameter(help="Independent runs. Default: the scenario's.")] = None,
    precision: Annotated[
        float | None,
        Parameter(help="Go on until kept groups per chip-hour are known to this part of themselves: 0.02 is 2 %."),
    ] = None,
    max_replications: Annotated[int, Parameter(help="But make no more runs than these.")] = 200,
    record: Annotated[bool, Parameter(negative="", help="Also keep every interval, as Parquet, in the folder.")] = False,
    check: Annotated[
        bool, Parameter(negative="", help="Hold the laws of a run at every event; names the first breach.")
    ] = False,
    out: Out = None,
    as_json: Json = False,
    html: Html = None,
    workers: Workers = None,
) -> int:
    """Predict how a scenario spends its chips."""
    import harness
    from harness.files import write_whole
    from harness.terminal import ProgressLine, console, print_simulation
    from harness.tuning.measured import measure
    from harness.tuning.result import plain, simulation_json
    from harness.tuning.wording import limits_in_words

    _at_least_one("--replications", replications)
    _at_least_one("--workers", workers)
    loaded, folder = _prepared(scenario, overrides, patch, pipeline, out, html)
    progress = ProgressLine(wanted=not as_json)
    with progress.context():
        run = harness.simulate(
            loaded,
            replications=replications,
            seed=seed,
            record=record,
            out=folder,
            workers=workers,
            progress=progress.count("simulating"),
            precision=precision,
            max_replications=max_replications,
            check=check,
            pipeline=pipeline,
        )
    warmup_steps = loaded.run.warmup_steps
    measured = measure(run.summaries)
    data = simulation_json(scenario.stem, measured, run.summaries, warmup_steps) | {
        "question": loaded.question,
        "in_words": list(limits_in_words(measured, run.agreement)),
        "expected": plain(run.agreement),
        "notes": list(run.notes),
        "precision": plain(run.precision),
        "adjusted_for_outages": plain(run.adjusted),
        "out": str(folder),
    }
    gone = _said(
        lambda: (
            _print_json(data)
            if as_json
            else print_simulation(
                console(),
                scenario.stem,
                measured,
                warmup_steps,
                run.notes,
                run.agreement,
                run.precision,
                run.adjusted,
                loaded.question,
            )
        )
    )
    write_whole(folder / "simulate.json", _dumped(data))
    if html is not None:
        from harness.report import simulation_page

        write_whole(html, simulation_page(scenario.stem, measured, warmup_steps, run.agreement, loaded.question))
    if gone is not None:
        raise gone
    if run.agreement is not None and run.agreement.error:
        return TraceError.exit_code
    return INTERRUPTED if run.interrupted else 0


@app.command(help=_about("run"))
def run(
    scenario: ScenarioFile,
    /,
    *,
    overrides: Overrides = None,
    patch: Patch = None,
    steps: Annotated[
        int | None, Parameter(help="Optimizer steps, those before a resume included. Default: the scenario's.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Of weights, tasks and sampling. Default: the scenario's.")] = None,
    out: Out = None,
    resume: Annotated[Path | None, Parameter(help="Folder of a run to go on from; results go there as well.")] = None,
    fall_back: Annotated[
        bool, Parameter(negative="", help="Resume from an older checkpoint where the newest is damaged.")
    ] = False,
    record: Annotated[bool, Parameter(help="Keep every event and interval, as Parquet, in the folder.")] = True,
    logger: Annotated[
        list[str] | None,
        Parameter(negative="", help="module:factory of a metrics logger (log_scalar, close); may be given again."),
    ] = None,
    coordinator: Annotated[str | None, Parameter(help="HOST:PORT of the first of several processes.")] = None,
    processes: Annotated[int, Parameter(help="How many processes there are.")] = 1,
    process: Annotated[int, Parameter(help="Which of them this is, from 0; 0 leads.")] = 0,
    as_json: Json = False,
) -> int:
    """Train for real."""
    import harness
    from harness.files import check_folder, write_whole
    from harness.live_display import LiveDisplay, live_json, print_live
    from harness.loggers import make_loggers
    from harness.terminal import console

    _at_least_one("--steps", steps)
    together = _together(coordinator, processes, process)
    loaded = harness.load(scenario, overrides=tuple(overrides or ()), patch=patch)
    if together is not None and together.index:
        from harness.live_run import follow_live

        with _stdout_kept(together):
            digest = follow_live(loaded, together)
        _print_json({"process": together.index, "weights": digest})
        return 0
    folder = out or resume or _dated(scenario)
    check_folder(folder)
    display = LiveDisplay(wanted=not as_json)
    with _named(scenario), _stdout_kept(together), display.context():
        done = harness.run_live(
            loaded, steps=steps, seed=seed, out=folder, resume=resume, fall_back=fall_back, record=record,
            loggers=make_loggers(logger or [], folder), heard=display.hear, processes=together,
        )  # fmt: skip
    data = live_json(scenario.stem, done)
    gone = _said(lambda: _print_json(data) if as_json else print_live(console(), scenario.stem, done))
    write_whole(folder / "run.json", _dumped(data))
    if gone is not None:
        raise gone
    return INTERRUPTED if done.stopped == "SIGINT" else 0


def _stdout_kept(together: Processes | None) -> AbstractContextManager[None]:
    if together is None:
        return nullcontext()
    from pipeline.processes import stdout_kept

    return stdout_kept()


@contextmanager
def _named(scenario: Path) -> Iterator[None]:
    """What is wrong with the table of a live run is wrong in this file."""
    try:
        yield
    except ConfigError as wrong:
        if wrong.field.startswith("live") and not wrong.file:
            wrong.file = str(scenario)
        raise


def _together(coordinator: str | None, processes: int, process: int) -> Processes | None:
    """The processes of a run that has several."""
    if coordinator is None and processes == 1 and process == 0:
        return None
    from pipeline.processes import Processes

    if coordinator is None:
        raise ConfigError("is missing", field="--coordinator", allowed="HOST:PORT of the first process")
    return Processes(coordinator, processes, process)


@app.command(help=_about("calibrate"))
def calibrate(
    file: Annotated[Path, Parameter(help="Measurements: CSV with a header line, Parquet, or JSONL.")],
    /,
    *,
    base: Annotated[Path, Parameter(help="Scenario to take everything else from.")],
    out: Annotated[Path, Parameter(help="Scenario to write.")],
    duration: Annotated[str | None, Parameter(help="Of steps: column of durations.")] = None,
    by: Annotated[str | None, Parameter(help="Of steps: column of the kind of step.")] = None,
    unit: Annotated[Literal["s", "ms", "us", "ns"], Parameter(help="Unit of the durations.")] = "s",
    outcome: Annotated[str | None, Parameter(help="Of steps: column that says how a step ended.")] = None,
    outcome_is: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="What a value in it means, as value=ok, failure, infra_failure, hang or time_limit; may be given again.",
        ),
    ] = None,
    time: Annotated[str | None, Parameter(help="Of steps: column that says when a step began.")] = None,
    runs: Annotated[str | None, Parameter(help="Column that tells runs apart. Default: one that is called like it.")] = None,
    one_unit: Annotated[bool, Parameter(negative="", help="Durations are in one unit, even where they look like two.")] = False,
    arrival: Annotated[str | None, Parameter(help="Of requests: column that says when one came.")] = None,
    input_tokens: Annotated[str | None, Parameter(help="Of requests: column of the prompt's length.")] = None,
    output_tokens: Annotated[str | None, Parameter(help="Of requests: column of the answer's length.")] = None,
    overrides: Overrides = None,
    patch: Patch = None,
    as_json: Json = False,
    html: Html = None,
) -> int:
    """Fit laws to measurements."""
    import harness
    from harness.calibration.terminal import calibration_json, print_calibration
    from harness.terminal import console

    done = harness.calibrate(
        file, base=base, out=out, duration=duration, by=by, unit=unit, outcome=outcome, outcomes=_meanings(outcome_is or []),
        time=time, runs=runs, one_unit=one_unit, arrival=arrival, input_tokens=input_tokens, output_tokens=output_tokens,
        html=html, overrides=overrides or (), patch=patch,
    )  # fmt: skip
    if as_json:
        _print_json(calibration_json(done))
    else:
        print_calibration(console(), done)
    return 0


def _meanings(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        value, equals, meaning = word.rpartition("=")
        if not equals:
            raise ConfigError(
                "is not value=outcome", field="--outcome-is", value=word, remedy="for example --outcome-is 3=failure"
            )
        found[value] = meaning
    return found


@app.command(help=_about("schema"))
def schema(
    path: Annotated[str, Parameter(help="Only this field or table, as --set names it. Default: all.")] = "",
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="Print the JSON Schema, for editors.")] = False,
) -> int:
    """List every field of a scenario with its unit and meaning."""
    from harness import run

    if as_json and path:
        raise ConfigError("does not go with --json", field="PATH", value=path, remedy="the JSON Schema is one whole")
    if as_json:
        _print_json(run.schema())
    else:
        sys.stdout.write(run.reference(path))
    return 0


@app.command(help=_about("tune"))
def tune(
    scenario: ScenarioFile,
    /,
    *,
    budget: Annotated[str, Parameter(help="Wall time until the answer, a promise: 30s, 5m, 1h.")] = "60s",
    objective: Annotated[
        Literal["kept", "idle", "tokens"],
        Parameter(help="What is wanted: more kept groups per chip-second, less idle time, or more trained tokens."),
    ] = "kept",
    max_lag: Annotated[
        int | None,
        Parameter(help="Largest lag allowed, in optimizer steps. It depends on your loss; throughput cannot tell."),
    ] = None,
    knob: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="What to search: a knob, NAME=v1,v2 or NAME=low..high, or a group; may be given again. Default: schedule.",
        ),
    ] = None,
    knobs: Annotated[
        bool, Parameter(negative="", help="List all knobs and groups, and what would be tried; search nothing.")
    ] = False,
    chips: Annotated[
        bool, Parameter(negative="", help="Also search how the chips are split, replicas against learner.")
    ] = False,
    indifference: Annotated[str, Parameter(help="A gain below this is not worth a change: 1%, 0.02.")] = "1%",
    error: Annotated[str, Parameter(help="Probability, at most, that the best is thrown away for luck.")] = "5%",
    sensitivity: Annotated[
        bool | None, Parameter(help="What the answer becomes when inputs are off. Default: where time is left.")
    ] = None,
    study: Annotated[Path | None, Parameter(help="Folder that keeps every simulation: resume or extend it.")] = None,
    overrides: Overrides = None,
    patch: Patch = None,
    pipeline: OwnPipeline = None,
    seed: Seed = None,
    out: Out = None,
    as_json: Json = False,
    html: Html = None,
    workers: Workers = None,
) -> int:
    """Find the settings that keep the chips busiest, and say how sure that is."""
    import harness
    from harness.core.units import parse_duration_s
    from harness.files import write_whole
    from harness.terminal import ProgressLine, console, print_files, print_tuning
    from harness.tuning.peers import FORMATS

    if knobs:
        loaded = harness.load(scenario, overrides=tuple(overrides or ()), patch=patch, pipeline=pipeline)
        return _list_knobs(loaded, as_json=as_json)
    from harness.tuned import parse_share

    budget_s = parse_duration_s(budget, field="--budget")
    _at_least_one("--workers", workers)
    shares = parse_share(indifference, "--indifference"), parse_share(error, "--error")
    loaded, folder = _prepared(scenario, overrides, patch, pipeline, out, html)
    progress = ProgressLine(wanted=not as_json)
    with progress.context():
        result = harness.tune(
            loaded,
            budget_s=budget_s,
            objective=objective,
            max_lag=max_lag,
            knobs=knob or (),
            chips=chips,
            indifference=shares[0],
            error=shares[1],
            sensitivity=sensitivity,
            study=study,
            pipeline=pipeline,
            seed=seed,
            workers=workers,
            source=_source(scenario, overrides or [], patch, pipeline),
            started_at=started_at(),
            reserve_s=_reserve_s(budget_s, html=html is not None),
            heard=progress.hear,
        )
    data = result.to_json() | {"out": str(folder)}
    # The answer first: it is seen even if the disk is full.
    gone = _said(lambda: _print_json(data) if as_json else print_tuning(console(), result))
    write_whole(folder / "tune.json", _dumped(data))
    if result.patch:
        write_whole(folder / "patch.toml", result.patch + "\n")
    for trainer, text in result.peers.items():
        write_whole(folder / "peers" / f"{trainer}.{FORMATS[trainer]}", text)
    if result.patch and not as_json:
        gone = gone or _said(lambda: print_files(console(), folder, result))
    if html is not None:
        from harness.timelines import before_and_after
        from harness.tuning_page import DRAWING_S, tuning_page

        timelines = before_and_after(
            loaded, result.changed, result.effort, started_at() + budget_s - DRAWING_S, pipeline=pipeline
        )
        write_whole(html, tuning_page(result, timelines))
    if gone is not None:
        raise gone
    return INTERRUPTED if result.interrupted else 0


def _list_knobs(scenario: Scenario[PipelineConfig], *, as_json: bool) -> int:
    from harness.tuned import tunable
    from harness.tuning.wishes import listing_in_words

    there = tunable(scenario)
    missing = {name: f"{reason.field} {reason.problem}" for name, reason in there.missing.items()}
    if as_json:
        _print_json({"schema": 1, "kind": "knobs", "knobs": there.listing(), "missing": missing})
    else:
        sys.stdout.write(listing_in_words(there.listing(), missing))
    return 0


def _reserve_s(budget_s: float, *, html: bool) -> float:
    """Seconds kept back for saying the answer: a page records two short runs where there is time, and draws charts."""
    return min(7.0 + min(10.0, 0.1 * budget_s), 0.4 * budget_s) if html else 1.5


def _prepared(
    scenario: Path,
    overrides: Sequence[str] | None,
    patch: Path | None,
    pipeline: str | None,
    out: Path | None,
    html: Path | None,
) -> tuple[Scenario[PipelineConfig], Path]:
    """The scenario, and the folder for the results: that they could be written is seen before the work that makes them."""
    import harness
    from harness.files import check_folder

    loaded = harness.load(scenario, overrides=tuple(overrides or ()), patch=patch, pipeline=pipeline)
    folder = out or _dated(scenario)
    check_folder(folder)
    if html is not None:
        if html.is_dir():
            raise ConfigError(
                "is a folder", field="--html", value=str(html), allowed="a file", remedy=f"name {html / 'page.html'}"
            )
        check_folder(html.parent)
    return loaded, folder


def _at_least_one(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError("is too small", field=option, value=value, allowed="1 or more")


def _dated(scenario: Path) -> Path:
    from datetime import datetime

    from harness.files import dated_folder

    return dated_folder(scenario.stem, datetime.now().astimezone())


def _source(scenario: Path, overrides: Sequence[str], patch: Path | None, pipeline: str | None) -> str:
    """How a shell names the scenario with what was put over it, and the pipeline."""
    import shlex

    options = [("--patch", patch), ("--pipeline", pipeline), *(("--set", text) for text in overrides)]
    said = [f"{option} {shlex.quote(str(value))}" for option, value in options if value is not None]
    return " ".join([shlex.quote(str(scenario)), *said])


def _dumped(data: dict[str, Any]) -> str:
    import json

    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _said(say: Callable[[], None]) -> BrokenPipeError | None:
    """Print; if whoever reads has gone away, say so only after the files are written."""
    try:
        say()
        sys.stdout.flush()
    except BrokenPipeError as error:
        return error
    return None


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(_dumped(data))


def call(words: Sequence[str]) -> int:
    """Run the command that these words name; its exit code.

    Raises:
        ConfigError: there is no such command or option, or its value is not one.

    """
    try:
        outcome = app(list(words), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        error.verbose = False
        raise ConfigError(str(error).strip(), remedy=f"see {_help_for(words)}") from None
    return outcome if isinstance(outcome, int) else 0


def _help_for(words: Sequence[str]) -> str:
    return f"harness {words[0]} --help" if words and words[0] in COMMANDS else "harness --help"
