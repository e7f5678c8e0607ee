"""The clocks of all services against this machine's. Nothing that is counted depends on them. What they show
does: the times in the ledger, ages such as `--since 24h`, and how long the ledger is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from txstream.plugins.doctor.checks import Check

MOST_SECONDS = 2.0


@dataclass
class Clocks:
    """Collects by how many seconds each clock is ahead of ours, at least."""

    ahead: dict[str, float] = field(default_factory=dict)
    now: Callable[[], float] = time.time

    def compare(self, name: str, theirs: float, before: float) -> None:
        """Note a clock that was read somewhere between `before`, by our clock, and now. All are in seconds
        since 1970. Within that time it may be right, so only what is outside counts."""
        after = self.now()
        self.ahead[name] = theirs - after if theirs > after else min(0.0, theirs - before)

    def judge(self) -> list[Check]:
        """Return one check about all clocks; none if no clock was read."""
        if not self.ahead:
            return []
        clocks = {"this machine": 0.0, **self.ahead}
        first = min(clocks, key=lambda name: clocks[name])
        last = max(clocks, key=lambda name: clocks[name])
        apart = clocks[last] - clocks[first]
        if apart > MOST_SECONDS:
            return [
                Check(
                    "clocks",
                    False,
                    f"the clock of {last} is {apart:.1f} s ahead of that of {first}",
                    "set both by NTP: timedatectl set-ntp true",
                )
            ]
        named = ", ".join(clocks)
        return [Check("clocks", True, f"less than {MOST_SECONDS:g} s apart: {named}")]
