"""What a fresh process runs to say the hash of a canonical log. Needs no test framework, and any supported Python.

    python fresh.py MODULE:FUNCTION SALT

FUNCTION takes nothing and returns a list of canonical events. SALT disturbs the heap first, so that addresses, and with them
the order of sets, differ between processes.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from harness.core.events import Event, MemoryRecorder, log_hash
from harness.core.seeds import Stream, derive_key

PROGRAMS = 80


def disturbed_heap(salt: int) -> list[object]:
    """Objects of many sizes, a random half of which was freed again."""
    stream = Stream(derive_key(salt, "heap"))
    made: list[object] = [bytearray(1 + stream.below(900)) for _ in range(20_000)]
    made.extend({index: str(index)} for index in range(stream.below(4_000)))
    kept = [thing for thing in made if stream.below(2)]
    del made
    gc.collect()
    gc.set_threshold(100 + stream.below(2_000))
    return kept


def small_programs_on_sim() -> list[Event]:
    """Some random programs on `sim`, one after the other."""
    from harness.engines import sim

    return _logs(sim.run)


def small_programs_on_virtual() -> list[Event]:
    """The same on real trio."""
    from harness.engines import virtual

    return _logs(virtual.run)


def _logs(run: object) -> list[Event]:
    from tests.differential.programs import observe, random_program

    events: list[Event] = []
    for seed in range(PROGRAMS):
        events.extend(observe(run, random_program(seed), tied=seed % 3 > 0).log)
    return events


def many_tasks() -> list[Event]:
    """A thousand tasks that are woken, cancelled and timed out together: where an order of addresses would show."""
    from harness.engines import sim

    recorder = MemoryRecorder()

    async def worker(rt, number, event, channel):
        with rt.move_on_after(7) as scope:
            await event.wait()
            rt.emit(99, number)
            await channel[0].send(number)
            rt.emit(99, number, await channel[1].receive())
            await rt.sleep(number % 5)
            await rt.event().wait()
        rt.emit(99, number, -1, scope.cancelled_caught)

    async def main(rt):
        event, channel = rt.event(), rt.channel(3)
        async with rt.nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(worker, rt, number, event, channel)
            await rt.sleep(5)
            event.set()
        rt.emit(99, -1)

    sim.run(main, recorder=recorder)
    return recorder.events


def main() -> None:
    """Print the Python version and the hash."""
    where, salt = sys.argv[1:]
    kept = disturbed_heap(int(salt))
    module, function = where.split(":")
    events = getattr(import_module(module), function)()
    print(f"{sys.version_info[0]}.{sys.version_info[1]} {len(events)} {log_hash(events)} {len(kept) > 0}")


if __name__ == "__main__":
    main()
