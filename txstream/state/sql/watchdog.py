"""A deadline for a server that stopped answering without closing its connection.

A frozen server still acknowledges packets, so TCP's own timeouts never end the wait, and its statement
timeout is asleep with it. Shutting the socket down from another thread does end it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Watchdog:
    """Shuts a socket down unless `touch` is called at least every `seconds`; a context manager.

    `bitten` tells afterwards whether it did.
    """

    def __init__(self, fileno: int, seconds: float) -> None:
        # A descriptor of its own: the driver may close its one, and the number may be another file's then.
        self._descriptor = os.dup(fileno)
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="txstream-database-deadline", daemon=True)
        self.bitten = False

    def touch(self) -> None:
        """The server has answered."""
        self._deadline = time.monotonic() + self._seconds

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        os.close(self._descriptor)

    def _watch(self) -> None:
        while not self._done.wait(max(0.0, self._deadline - time.monotonic())):
            if time.monotonic() >= self._deadline:
                self.bitten = True
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as line:
                    line.shutdown(socket.SHUT_RDWR)
                return
