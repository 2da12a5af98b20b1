"""Code in the sandbox is stopped at each limit, leaves no process behind, and sees no network."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc

import pytest

from harness.core.errors import ConfigError
from pipeline.environments import sandbox
from pipeline.environments.sandbox import Limits, PythonSandbox, can_isolate

NETWORK = "none" if can_isolate() else "host"
QUICK = Limits(wall_s=20.0, memory_bytes=1 << 28)

pytestmark = pytest.mark.real_clock


def run(code, limits=QUICK):
    return PythonSandbox(limits, network=NETWORK).run(code)


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print(6 * 7)", "42\n"),
        ("import sys; print('e', file=sys.stderr)", "e\n"),
        ("def f(): return g()\ndef g(): return 5\nprint(f(), __name__)", "5 __main__\n"),
        ("import sys; sys.exit(3)", "[exit status 3]"),
        ("import os; os.kill(os.getpid(), 11)", "[ended by SIGSEGV]"),
        ("print(input())", "EOFError"),
        ("1 +", "SyntaxError"),
        ("x = bytearray(1 << 30)", "MemoryError"),
        ("open('f', 'wb').write(bytes(1 << 25))", "File too large"),
    ],
)
def test_it_shows_what_a_program_prints_and_how_it_ends(code, output):
    assert output in run(code)


def test_a_program_that_prints_without_end_is_cut_off_without_holding_it():
    tracemalloc.start()
    try:
        output = run("import os\nwhile True: os.write(1, bytes(65536))")
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "printed more than 8,192 bytes" in output
    assert len(output) < 9000
    assert held < 4 << 20


def test_it_is_stopped_on_the_clock_and_on_the_processor():
    assert "longer than 0.5 s" in run("import time; time.sleep(60)", Limits(wall_s=0.5))
    assert "longer than 0.5 s" in run("import os, time; os.close(1); os.close(2); time.sleep(60)", Limits(wall_s=0.5))
    assert "[ended by SIGKILL]" in run("while True: pass", Limits(wall_s=30.0, cpu_s=1))


@pytest.mark.skipif(NETWORK == "host", reason="user namespaces are not allowed here")
def test_it_has_no_network_and_nothing_outlives_it(tmp_path):
    assert "unreachable" in run("import socket; socket.create_connection(('127.0.0.1', 9), timeout=5)")
    mark = tmp_path / "mark"
    code = (
        f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(0.5)\n    open({str(mark)!r}, 'w')\nprint('bye')"
    )
    assert run(code) == "bye\n"
    time.sleep(0.8)
    assert not mark.exists()


def test_a_call_that_is_given_up_ends_at_once():
    box = PythonSandbox(Limits(wall_s=60.0), network=NETWORK)
    outputs = []
    thread = threading.Thread(target=lambda: outputs.append(box.run("import time; print('on', flush=True); time.sleep(60)")))
    thread.start()
    began_s = time.monotonic()
    while not box._running and time.monotonic() - began_s < 20:
        time.sleep(0.01)
    box.tool.kill()
    thread.join(20)
    assert not thread.is_alive()
    assert "[ended by SIGKILL]" in outputs[0]
    assert box.run("print(1)") == "1\n"  # it is as good as new


def test_it_has_nothing_of_our_environment():
    os.environ["SECRET_OF_THE_TEST"] = "seen"
    try:
        assert "None" in run("import os; print(os.environ.get('SECRET_OF_THE_TEST'))")
    finally:
        del os.environ["SECRET_OF_THE_TEST"]


def test_a_machine_that_cannot_isolate_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(sandbox, "can_isolate", lambda: False)
    with pytest.raises(ConfigError, match="user namespaces") as refused:
        PythonSandbox()
    assert "network='host'" in str(refused.value)
    with pytest.raises(ConfigError):
        PythonSandbox(network="some")
