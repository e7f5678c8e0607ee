"""The end of the log that a run reads up to: `until="caught-up"`.

Invariants. The source is asked for it before the first batch, and again until it has told it; from then on it
is fixed. A run does not wait for it to begin, only to end: meanwhile it reads what can be read. While it is
not known, nothing is caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstream.api.spouts import PartitionCoordinator
from txstream.core.errors import BatchFailedError, ServiceUnavailableError
from txstream.core.waiting import BACKOFF, Waiting
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.workers import Lane

_WHAT = "the end of the log"


class LogEnd:
    """`targets` is where the log ends; None while that is not known, and in a run that does not ask."""

    def __init__(self, spout: PartitionCoordinator[Any], waiting: Waiting) -> None:
        self.targets: Mapping[str, Any] | None = None
        self._spout = spout
        self._waiting = waiting
        self._is_wanted = False

    def is_reached(self, last: Mapping[str, Any]) -> bool:
        """Return whether these places have reached the end."""
        return self.targets is not None and self._spout.reached(last, self.targets)

    def ask(self) -> None:
        """Ask for the first time. Raises what the source raises, unless it is an outage."""
        self._is_wanted = True
        try:
            self.targets = self._spout.targets()
        except (ServiceUnavailableError, BatchFailedError) as error:
            self._waiting.begin(_WHAT, _WHAT, error)

    def go_on(self, batches: Batches, tries: int = 1) -> None:
        """Ask again, less and less often, until it is known. Called on the loop's thread."""
        if not self._is_wanted or self.targets is not None:
            return

        def done(targets: Mapping[str, Any]) -> None:
            self.targets = targets
            self._waiting.end(_WHAT)

        def failed(error: BaseException) -> None:
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                self.go_on(batches, tries + 1)
            else:
                batches.fail_run(error)

        batches.workers.after(
            BACKOFF.after(tries),
            lambda: batches.workers.submit(Lane.PLAN, self._spout.targets, done, failed),
        )
