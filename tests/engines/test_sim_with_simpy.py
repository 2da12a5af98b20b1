"""SimPy processes and events beside our coroutines in the engine `sim`: a simulated server may be written either way."""

from __future__ import annotations

import pytest

from harness.engines import sim


def test_a_coroutine_waits_for_a_simpy_process_and_gets_its_value():
    async def main(rt):
        def server():
            yield rt.environment.timeout(30)
            return "served"

        value = await rt.wait_simpy(rt.environment.process(server()))
        again = rt.environment.timeout(5, "five")
        await rt.sleep(10)
        return value, await rt.wait_simpy(again), rt.now()

    assert sim.run(main) == ("served", "five", 40)


def test_a_wait_that_is_cancelled_leaves_the_simpy_event_alone():
    async def main(rt):
        event = rt.environment.timeout(30, "later")
        with rt.move_on_after(10) as scope:
            await rt.wait_simpy(event)
        left = list(event.callbacks)
        return scope.cancelled_caught, rt.now(), left, await rt.wait_simpy(event), rt.now()

    assert sim.run(main) == (True, 10, [], "later", 30)


def test_a_failed_simpy_event_fails_the_wait():
    async def main(rt):
        event = rt.environment.event()
        rt.background(fail, rt, event)
        with pytest.raises(OSError, match="gone"):
            await rt.wait_simpy(event)
        return rt.now()

    async def fail(rt, event):
        await rt.sleep(7)
        event.fail(OSError("gone"))

    assert sim.run(main) == 7
