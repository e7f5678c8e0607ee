"""Drops the versions of batches that the ledger has forgotten, beside a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from txstream.core.transaction import Txid
from txstream.engine.start.companions import Leading
from txstream.state import StateBackend

log = logging.getLogger(__name__)

ROUND_SECONDS = 60.0
_TXIDS_AT_ONCE = 100
_PAUSE_SECONDS = 0.2


def version_pruner(leading: Leading) -> VersionPruner | None:
    """Return what drops the versions of batches that the ledger has forgotten, if a table keeps any."""
    states = [bolt.state for bolt, _ in leading.topology.states]
    tables = [one.changes.table for one in states if one.keeps_versions and one.changes is not None]
    return VersionPruner(leading.topology.id, tables, leading.databases) if tables else None


class VersionPruner:
    """Drops versions from a thread of its own, from `start` to `stop`. What fails is tried again."""

    def __init__(self, topology: str, tables: Sequence[str], databases: Sequence[StateBackend]) -> None:
        self._topology = topology
        self._tables = tables
        self._databases = databases
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"txstream-versions-{topology}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._stopped.set()
        self._thread.join(timeout_seconds)

    def prune(self) -> int:
        """Drop what may go now, some batches at a time, so that a commit gets its turn. Return how many rows
        that were."""
        gone = 0
        for database in self._databases:
            oldest = database.oldest_txid(self._topology)
            with database.read_state(self._topology) as reading:
                mine = {one.name for one in reading.tables()}.intersection(self._tables)
                first = {table: next(iter(reading.written_since(table, 1)), None) for table in sorted(mine)}
            for table, row in first.items():
                before = oldest if row is None else row.txid
                while oldest is not None and before is not None and before < oldest:
                    before = Txid(min(before + _TXIDS_AT_ONCE, oldest))
                    gone += database.drop_used(self._topology, table, before)
                    if self._stopped.wait(_PAUSE_SECONDS):
                        return gone
        return gone

    def _main(self) -> None:
        while not self._stopped.wait(ROUND_SECONDS):
            try:
                self.prune()
            except Exception as error:  # noqa: BLE001 - of a database: it is tried again
                log.warning("versions that the ledger has forgotten stay for now: %s", error)
