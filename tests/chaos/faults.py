"""The faults of a round, drawn from a seed so that a round can be played again."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, FREEZE = "kill", "freeze"
WINDOW_SECONDS = 6.0
"""Faults begin, and records come, within this time."""
SESSION_SECONDS = 3.0
SERVERS = ("Spark worker", "Spark master", "broker", "ZooKeeper", "PostgreSQL")
TARGETS = ("driver", "driver's JVM", "standby", "executor", *SERVERS)


@dataclass(frozen=True, order=True)
class Fault:
    """`at` is in seconds after the round began; after `seconds` the target is started again or woken.
    `number` says which one where there are several."""

    at: float
    target: str
    how: str
    seconds: float
    number: int

    def __str__(self) -> str:
        return f"{self.how} {self.target} at {self.at:g} for {self.seconds:g} s"


def draw(seed: int, number: int) -> list[Fault]:
    """Return the faults of one round, by time: two to four, each with another target."""
    rng = random.Random(f"{seed} {number}")
    targets = rng.sample(TARGETS, rng.randint(2, 4))
    return sorted(_fault(rng, target) for target in targets)


def _fault(rng: random.Random, target: str) -> Fault:
    # A blink, a pause, or longer than a session lasts.
    longest = rng.choice((0.5, SESSION_SECONDS, 2 * SESSION_SECONDS))
    at, seconds = rng.uniform(0.2, WINDOW_SECONDS), rng.uniform(0.1, longest)
    return Fault(round(at, 2), target, rng.choice((KILL, FREEZE)), round(seconds, 2), rng.randrange(2))
