"""Deletes the ledger's old rows while a topology runs, beside its commits.

Invariants. Only a leader prunes, and only what is older than the last two committed batches of that database.
Each chunk is a transaction of its own, and no lock is held between two chunks, so that a commit gets its
turn. A failure is logged and tried again in the next round; it never ends a run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from txstream.core.errors import TxstreamError
from txstream.core.ledger_retention import Keep
from txstream.state import StateBackend

log = logging.getLogger(__name__)

FIRST_ROUND_SECONDS = 5.0
ROUND_SECONDS = 300.0
CHUNK_ROWS = 1000
# SQLite's writers ask for the lock again after up to 0.1 s; during a longer pause they find it free.
_PAUSE_SECONDS = 0.2


class LedgerPruner:
    """Prunes the ledgers of `databases` from a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        topology: str,
        databases: Sequence[StateBackend],
        keep: Keep,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._topology = topology
        self._databases = databases
        self._keep = keep
        self._now = now
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"txstream-prune-{topology}", daemon=True)

    def start(self) -> None:
        """Begin soon, unless everything is kept."""
        if not self._keep.everything:
            self._thread.start()

    def stop(self, timeout_seconds: float | None = None) -> None:
        """End between two chunks. Waits `timeout_seconds` at most for a database that does not answer: what
        is under way there is one transaction, which closing the database ends."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def prune(self) -> int:
        """Prune all databases once. Return how many rows were deleted. Failures are logged."""
        return sum(self._prune(database) for database in self._databases)

    def _prune(self, database: StateBackend) -> int:
        keep = self._keep
        before = None if keep.seconds is None else self._now() - timedelta(seconds=keep.seconds)
        gone = 0
        try:
            while not self._stopped.is_set():
                rows = database.prune(
                    self._topology, committed_before=before, newest=keep.batches, rows=CHUNK_ROWS
                )
                gone += rows
                if rows < CHUNK_ROWS or self._stopped.wait(self._pause_seconds):
                    break
        except TxstreamError as error:
            log.warning("old rows of the ledger stay for now: %s", error)
        except Exception:
            log.exception("old rows of the ledger in %s stay for now", database.display_url)
        if gone:
            log.info("%d old rows of the ledger in %s are gone", gone, database.display_url)
        return gone

    def _main(self) -> None:
        wait_seconds = FIRST_ROUND_SECONDS
        while not self._stopped.wait(wait_seconds):
            self.prune()
            wait_seconds = ROUND_SECONDS
