"""Real processes."""

from __future__ import annotations

import math
import os
import pickle
import time

import pytest
from standin import TODAY, Pipeline, problem

from harness.core.errors import ConfigError, DeadlockError
from harness.tuning.crew import Processes
from harness.tuning.result import Verdict
from harness.tuning.search import Promise, tune
from harness.tuning.worker import Failure

LATER_S = 30.0


def behave(how: str) -> object:
    """Called in the worker."""
    if how == "speak":
        os.write(1, b"to standard output")
        print("and again")
    elif how == "die":
        os.write(2, b"last words\n")
        os._exit(3)
    elif how == "sleep":
        time.sleep(600)
    elif how == "refuse":
        raise ConfigError("is wrong", field="x.y", value=3)
    elif how == "deadlock":
        raise DeadlockError(("a", "b"), 5)
    elif how == "unpicklable":
        return lambda: None
    return how.upper()


@pytest.fixture(scope="module")
def crew():
    with Processes(behave, 2) as crew:
        yield crew


def answer(crew: Processes, how: str) -> object:
    ticket = crew.submit(how)
    done = crew.wait(crew.now() + LATER_S)
    assert done is not None
    assert done.ticket == ticket
    assert crew.busy == 0
    return done.result


def test_results_come_back_and_printing_does_not_disturb_them(crew: Processes) -> None:
    assert answer(crew, "work") == "WORK"
    assert answer(crew, "speak") == "SPEAK"


def test_failures_come_back_as_data_whether_or_not_they_could_be_pickled(crew: Processes) -> None:
    refused, stuck = answer(crew, "refuse"), answer(crew, "deadlock")
    assert isinstance(refused, Failure)
    assert isinstance(stuck, Failure)
    assert (refused.kind, refused.exit_code) == ("ConfigError", 2)
    assert "x.y: is wrong" in refused.message
    assert (stuck.kind, stuck.exit_code) == ("DeadlockError", 3)


@pytest.mark.parametrize(("how", "words"), [("die", "last words"), ("unpicklable", "local object")])
def test_the_death_of_a_worker_is_a_failure_and_another_takes_its_place(crew: Processes, how: str, words: str) -> None:
    died = answer(crew, how)
    assert isinstance(died, Failure)
    assert died.kind == "WorkerDied"
    assert words in died.message
    assert answer(crew, "work") == "WORK"


def test_a_call_that_is_cut_is_not_reported_and_frees_its_place(crew: Processes) -> None:
    stuck = crew.submit("sleep")
    assert crew.wait(crew.now()) is None
    crew.cut(stuck)
    assert crew.idle == 2
    assert answer(crew, "work") == "WORK"


def test_calls_run_side_by_side(crew: Processes) -> None:
    stuck, quick = crew.submit("sleep"), crew.submit("work")
    assert crew.idle == 0
    done = crew.wait(crew.now() + LATER_S)
    assert done is not None
    assert done.ticket == quick
    crew.cut(stuck)


def test_what_cannot_be_pickled_is_refused_before_a_process_starts() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        Processes(lambda: None, 1)


def test_a_search_on_real_processes_keeps_its_promise_and_pairs_as_in_virtual_time() -> None:
    pipeline = Pipeline()
    case = problem(pipeline)
    began = time.monotonic()
    result = tune(case, promise=Promise(budget_s=4.0, reserve_s=0.2), workers=2)
    assert time.monotonic() - began < 4.0
    assert result.verdict is Verdict.BETTER
    assert result.settings is not None
    assert result.best is not None
    runs = [pipeline(result.settings, seed, result.effort.final_steps) for seed in result.effort.final_seeds]
    assert math.isclose(sum(run.window_s for run in runs), result.best.window_s)
    assert result.today == TODAY
