"""`harness.calibrate`: from measurements to a scenario of our pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.calibration.calibrate import Calibration as Calibration
from harness.calibration.calibrate import calibrate as _calibrate
from harness.calibration.columns import StepColumns
from harness.calibration.requests import RequestColumns
from harness.core.errors import ConfigError
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def calibrate(
    file: str | Path,
    *,
    base: str | Path,
    out: str | Path,
    duration: str | None = None,
    by: str | None = None,
    unit: str = "s",
    outcome: str | None = None,
    outcomes: Mapping[str, str] | None = None,
    time: str | None = None,
    runs: str | None = None,
    one_unit: bool = False,
    arrival: str | None = None,
    input_tokens: str | None = None,
    output_tokens: str | None = None,
    html: str | Path | None = None,
    overrides: Sequence[str] = (),
    patch: str | Path | None = None,
) -> Calibration:
    """Fit laws to a file of measurements and write a whole scenario with them.

    Either a file with one row a step of tools (`duration` and `by`, and what else it has), or one with one row a request to an
    inference engine (`arrival`, `input_tokens`, `output_tokens`, at least one of them). For both, call it twice, the second
    time with the first scenario as `base`.

    Args:
        file: CSV with a header line, Parquet, or JSONL, at most 20 million rows.
        base: scenario to take everything else from.
        out: scenario to write. Written whole or not at all; the base and the data are never overwritten.
        duration: column of durations, in `unit`.
        by: column of the kind of step; each gets a tool of its own.
        unit: of durations and of times that count from a start of their own: `s`, `ms`, `us` or `ns`.
        outcome: column that says how a step ended. With it failures, hangs and time limits are measured, else the base's stay.
        outcomes: what values in it mean (`ok`, `failure`, `infra_failure`, `hang`, `time_limit`), where they are not understood
            by themselves.
        time: column that says when a step began. With it and `outcome` outages are looked for.
        runs: column that tells runs apart; by default one that is called like it (`run_id`, `trajectory`, `date`, …).
        one_unit: durations are all in one unit, even where they look like milliseconds among seconds.
        arrival: column that says when a request came: becomes `workload.arrivals`.
        input_tokens: column of its prompt's length: becomes `workload.prompt_tokens`.
        output_tokens: column of its answer's length: becomes `workload.response_tokens`.
        html: page to write as well, with a chart of every fit against its data. It needs no network.
        overrides: `path=value`, put over the base's fields.
        patch: a TOML file that is put over the base before them.

    Returns:
        What was fitted, how wrong each law is on rows that it has not seen, and what a reader should know.

    Raises:
        DataError: the file cannot be read or does not hold what was asked of it; names the file, the column and the lines.
        ConfigError: an option or the base scenario is wrong.
        OutputError: the scenario could not be written.

    """
    steps = {"--duration": duration, "--by": by, "--outcome": outcome, "--time": time, "--runs": runs}
    requests = {"--arrival": arrival, "--input-tokens": input_tokens, "--output-tokens": output_tokens}
    asked = [option for option, value in requests.items() if value is not None]
    given = [option for option, value in steps.items() if value is not None]
    if asked and given:
        raise ConfigError(
            f"does not go with {asked[0]}", field=given[0], value=steps[given[0]],
            allowed="a file of steps, or one of requests",
            remedy="calibrate twice, the second time with --base and what the first has written",
        )  # fmt: skip
    columns: StepColumns | RequestColumns
    if asked:
        columns = RequestColumns(arrival, input_tokens, output_tokens, unit)
    elif duration is None or by is None:
        missing = "--duration" if duration is None else "--by"
        raise ConfigError(
            "is missing", field=missing, allowed="the name of a column",
            remedy="steps need --duration and --by; requests --arrival, --input-tokens or --output-tokens",
        )  # fmt: skip
    else:
        columns = StepColumns(duration, by, unit, outcome, time, runs, outcomes, one_unit)
    page = None
    if html is not None:
        from harness.calibration_page import calibration_page

        page = calibration_page
    return _calibrate(
        file, columns, base=base, out=out, pipeline_type=PipelineConfig, html=html, page=page, overrides=overrides,
        patch=patch,
    )  # fmt: skip
