"""An environment and a metrics logger as a user has them in the current folder; they signal their own process when armed.

Instants: `compilation`, `warm start`, `first evaluation`, `training`, `checkpoint`, `export`.
"""

from __future__ import annotations

import os
import signal
import sys

import jax

from pipeline.environments.environment import BaseTaskEnv, Step, held_out

_armed = []


def arm(instant, name):
    """Have a signal come at an instant, once."""
    _armed[:] = [(instant, getattr(signal, name))]


def now(instant):
    """Signal this process if it is time."""
    if _armed and _armed[0][0] == instant:
        os.kill(os.getpid(), _armed.pop()[1])


class Letters(BaseTaskEnv):
    """Two turns; the reward is the share of the letter a."""

    alphabet = "abcdefgh-"
    inline = True

    @classmethod
    def make_task(cls, rng):
        """Some letters."""
        return "".join(rng.choices("bcdefgh", k=rng.randint(2, 9)))

    @classmethod
    def demonstration(cls, task):
        """The letter a is said."""
        return [(task, False), ("a", True), ("a-", False), ("aa", True)]

    async def reset(self):
        """The letters."""
        self._said = []
        return self.task

    async def step(self, action):
        """Some of what was said."""
        self._said.append(action)
        if held_out(self.task):
            now("first evaluation")
        return Step(action[:3] + "-", done=len(self._said) == 2)

    async def score(self):
        """How much of it is an a."""
        said = "".join(self._said)
        return said.count("a") / max(1, len(said))


class Logger:
    """Listens."""

    def __init__(self, folder):
        """The folder is not needed."""

    def log_scalar(self, event, value, *, step):
        """Warm start and training are heard of here."""
        if event.startswith("warm_start/"):
            now("warm start")
        if event.startswith("train/") and step == 2:
            now("training")

    def close(self):
        """Nothing is open."""


def _compiled(event, duration_s, **_):
    if "backend_compile" in event:
        now("compilation")


def _audit(event, arguments):
    if event == "open" and _armed:
        path = str(arguments[0])
        if "/.policy." in path:
            now("export")
        if "/step_0000" in path and ".partial" in path:
            now("checkpoint")


jax.monitoring.register_event_duration_secs_listener(_compiled)
sys.addaudithook(_audit)
