"""The stores of states that a worker process has open.

Invariant: one `StateBackend` per URL in a process, opened when it is first needed and closed with the run.
The database libraries are imported then, so that an executor without states needs none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from txstream.engine.bindings import StateBinding

if TYPE_CHECKING:
    from txstream.state import StateBackend

log = logging.getLogger(__name__)


class StateAccess:
    """The open stores of one worker process, by URL. Not thread-safe: a process serves one task at a time."""

    def __init__(self) -> None:
        self._open: dict[str, StateBackend] = {}

    def store(self, binding: StateBinding) -> StateBackend:
        """The store of a state. Connects to nothing yet. Raises UsageError, ServiceUnavailableError."""
        store = self._open.get(binding.url)
        if store is None:
            from txstream.state import open_database

            store = self._open[binding.url] = open_database(
                binding.url,
                connect_timeout_seconds=binding.connect_timeout_seconds,
                message_timeout_seconds=binding.message_timeout_seconds,
            )
        return store

    def close(self) -> None:
        """Close all stores. What fails to close is logged, so that the rest is closed all the same."""
        stores, self._open = self._open, {}
        for store in stores.values():
            try:
                store.close()
            except Exception:
                log.warning("%s failed to close", store.url_for_people, exc_info=True)
