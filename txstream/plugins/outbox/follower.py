"""A thread beside a leader that follows the ledger: what is committed is sent elsewhere, in order.

Invariants. What fails is tried again with backoff, and delays no batch. Another leader's claim ends it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from txstream.core.errors import FencedError
from txstream.core.waiting import BACKOFF

log = logging.getLogger(__name__)


class Follower(ABC):
    """Calls `send_committed` from a thread of its own, from `start` to `stop`. `what` is sent, `where`, in
    messages."""

    def __init__(self, topology: str, what: str, where: str, look_seconds: float) -> None:
        self.what = what
        self._where = where
        self._look_seconds = look_seconds
        self._failures = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._main, name=f"txstream-{what.split()[-1]}-{topology}", daemon=True
        )

    @abstractmethod
    def send_committed(self, *, is_last: bool = False) -> None:
        """Send what is committed and not sent yet; after the last batch for the last time. Raises what a part
        raises."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection, if there is one. Called after each failure, and at the end."""

    def start(self) -> None:
        """Begin now."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Send what is committed, for `timeout_seconds` at most; the next run sends the rest."""
        self._stopped.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() and not self._failures:
            log.warning(
                "%s wait to be sent to %s, which has not answered within %g s: the next run sends them",
                self.what,
                self._where,
                timeout_seconds,
            )

    def _main(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.wait(self._look_seconds + BACKOFF.after(self._failures))
            try:
                self.send_committed(is_last=is_last)
            except FencedError:
                log.info("another driver leads, so it sends the %s", self.what)
                break
            except Exception as error:  # noqa: BLE001 - of the broker or a database: it is tried again
                self._failures += 1
                level = logging.WARNING if self._failures == 1 else logging.INFO
                log.log(level, "%s wait to be sent to %s: %s", self.what, self._where, error)
                self.disconnect()
            else:
                if self._failures:
                    log.warning("%s are sent to %s again", self.what, self._where)
                self._failures = 0
        self.disconnect()
