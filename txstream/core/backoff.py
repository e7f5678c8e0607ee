"""How long to wait before the next try."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A pause that begins with `first_seconds`, doubles with each further failure, and ends its growth at
    `longest_seconds`."""

    first_seconds: float
    longest_seconds: float

    def after(self, failures: int) -> float:
        """Return how many seconds to wait after so many failures in a row; 0 without any."""
        if failures < 1:
            return 0.0
        return min(self.first_seconds * 2.0 ** min(failures - 1, 30), self.longest_seconds)
