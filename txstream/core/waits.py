"""Waiting for a condition of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Whether `condition` became true within the time. It is checked every 50 ms."""
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(_POLL_SECONDS)
    return True
