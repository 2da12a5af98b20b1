"""The dispatcher: one order for everybody, answers to those who asked, and an end that leaves nobody waiting."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from harness.core.errors import LawError
from pipeline.numerics.dispatch import Decision, Dispatcher


def test_decisions_of_many_threads_are_told_and_run_in_one_order():
    told, ran = [], []
    dispatcher = Dispatcher({"note": lambda who, number: ran.append((who, number)) or (who, number)}, tell=told.append)
    dispatcher.start()
    answers = {}

    def ask(who):
        answers[who] = [dispatcher.run(Decision("note", {"who": who, "number": number})) for number in range(200)]

    threads = [threading.Thread(target=ask, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dispatcher.stop()
    assert [tuple(decision.arguments.values()) for decision in told] == ran
    assert answers == {who: [(who, number) for number in range(200)] for who in range(8)}
    assert [[number for one, number in ran if one == who] for who in range(8)] == [list(range(200))] * 8


def test_a_failure_goes_to_who_asked_and_the_next_decision_is_run():
    def fail():
        raise ZeroDivisionError("of this one alone")

    def refuse(decision):
        if decision.arguments.get("untold"):
            raise ConnectionError("nobody listens")

    dispatcher = Dispatcher({"fail": fail, "double": lambda x, **_: 2 * x}, tell=refuse)
    dispatcher.start()
    with pytest.raises(ZeroDivisionError, match="of this one alone"):
        dispatcher.run(Decision("fail"))
    with pytest.raises(KeyError, match="unknown"):
        dispatcher.run(Decision("unknown"))
    with pytest.raises(ConnectionError):
        dispatcher.run(Decision("double", {"x": 1, "untold": True}))
    assert dispatcher.run(Decision("double", {"x": 21})) == 42
    dispatcher.stop()


def test_what_was_not_told_is_not_run():
    ran = []

    def refuse(decision):
        raise ConnectionError

    dispatcher = Dispatcher({"note": lambda: ran.append(1)}, tell=refuse)
    dispatcher.start()
    with pytest.raises(ConnectionError):
        dispatcher.run(Decision("note"))
    dispatcher.stop()
    assert ran == []


def test_an_asker_that_cannot_be_told_does_not_end_the_thread(caplog):
    def gone(answer, failure):
        raise RuntimeError("the event loop is over")

    dispatcher = Dispatcher({"one": lambda: 1})
    dispatcher.start()
    dispatcher.submit(Decision("one"), gone)
    assert dispatcher.run(Decision("one")) == 1
    dispatcher.stop()
    assert "too late" in caplog.text


def test_a_stop_finishes_what_was_handed_over_and_refuses_what_comes_later():
    release, done = threading.Event(), []
    dispatcher = Dispatcher({"wait": release.wait, "note": lambda number: done.append(number)})
    dispatcher.start()
    dispatcher.submit(Decision("wait"), lambda *_: None)
    for number in range(50):
        dispatcher.submit(Decision("note", {"number": number}), lambda *_: None)
    stopper = threading.Thread(target=dispatcher.stop)
    stopper.start()
    release.set()
    stopper.join(10)
    assert not stopper.is_alive()
    assert done == list(range(50))
    with pytest.raises(LawError, match="note was asked for after"):
        dispatcher.run(Decision("note", {"number": 50}))


INTERRUPTED = """
import signal, threading, time
from pipeline.numerics.dispatch import Decision, Dispatcher
began = threading.Event()
dispatcher = Dispatcher({"long": lambda: (began.set(), time.sleep(1.0))})
dispatcher.start()
threading.Thread(target=lambda: (began.wait(), signal.raise_signal(signal.SIGINT)), daemon=True).start()
try:
    dispatcher.run(Decision("long"))
except KeyboardInterrupt:
    at = time.monotonic()
    dispatcher.stop()
    print("interrupted, stopped")
"""


@pytest.mark.real_clock
def test_ctrl_c_interrupts_who_waits_and_the_work_runs_out():
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted, stopped"), done.stderr
    assert time.monotonic() - began_s < 30
