"""Appends the files of committed batches to their Delta tables while a topology runs.

Invariants. Files of a txid are appended once every database has committed it, after those of all earlier
txids; rows that name them are deleted after that, and how far it has come is noted. A driver that dies in
between finds in the Delta table's own log what is there. A table that is away delays its files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from txstream.core.errors import ServiceUnavailableError
from txstream.core.transaction import AttemptId, Txid
from txstream.core.wording import counted
from txstream.engine.start.companions import Leading
from txstream.plugins.delta.bolt import PARTITION, PATH, ROWS, SIZE, DeltaTableBolt
from txstream.plugins.delta.files import WrittenFile
from txstream.plugins.outbox.sending import Outbox, OutboxFollower, note, noted
from txstream.state import StateBackend
from txstream.state.reading import StoredRow

if TYPE_CHECKING:
    from txstream.plugins.delta.lake import Lake

log = logging.getLogger(__name__)


class DeltaFollower(OutboxFollower):
    """Appends what the outboxes name. Of the `pending` txids from the one that commits next at the start, and
    of those that are behind then, a driver that died may have left files; of others, only an attempt that
    failed, which the ledger tells."""

    what_leaves = "files"
    goes_to = ""

    def __init__(
        self,
        topology: str,
        outboxes: Sequence[Outbox],
        databases: Sequence[StateBackend],
        current: Callable[[], Txid],
        read_sent: Callable[[], Mapping[str, Txid]],
        note_sent: Callable[[Mapping[str, Txid]], None],
        pending: int,
    ) -> None:
        super().__init__(topology, outboxes, databases, current, read_sent, note_sent)
        self._doubtful_before = current() + pending
        self._appended: set[Txid] = set()

    def _send(self, outbox: Outbox, sent: dict[str, Txid], current: Txid) -> None:
        before = sent[outbox.table]
        super()._send(outbox, sent, current)
        for txid in range(before + 1, min(current, self._doubtful_before)):
            if txid not in self._appended:
                self._remove_undone(outbox, Txid(txid), ())
        self._appended.clear()

    def _send_rows(
        self,
        outbox: Outbox,
        database: StateBackend,
        txid: Txid,
        rows: Sequence[StoredRow],
        _attempt: AttemptId | None,
    ) -> None:
        files = [_file(row) for row in rows]
        self._sender(outbox).append(txid, files)
        self._appended.add(txid)
        batch = database.batch(self._topology, txid)
        if txid < self._doubtful_before or batch is None or batch.details.get("attempts"):
            self._remove_undone(outbox, txid, files)

    def _remove_undone(self, outbox: Outbox, txid: Txid, files: Sequence[WrittenFile]) -> None:
        """What cannot be removed now is left to a vacuum: nothing refers to it."""
        try:
            if removed := self._sender(outbox).remove_undone(txid, files):
                log.info("%s of undone attempts of txid %d removed", counted(removed, "file"), txid)
        except ServiceUnavailableError as error:
            log.info("files of undone attempts of txid %d stay: %s", txid, error)


def _file(row: StoredRow) -> WrittenFile:
    value = row.value
    return WrittenFile(value[PATH], value[SIZE], value[ROWS], json.loads(value[PARTITION]))


def delta_tables(leading: Leading) -> DeltaFollower | None:
    """Return what appends to the topology's Delta tables, if it has any. Raises what is wrong with a table
    that can be reached."""
    topology, store = leading.topology, leading.store
    bolts = [one.instance for one in topology.components if isinstance(one.instance, DeltaTableBolt)]
    identity = store.read_identity() if bolts else None
    if identity is None:
        return None
    read = partial(noted, store)

    from txstream.plugins.delta.lake import Lake

    led = set()

    def connect(bolt: DeltaTableBolt) -> Lake:
        table = bolt.state.table
        lake = Lake(bolt.place, topology.id, identity.uuid, table)
        # Once: a driver that was frozen would fence its successor.
        lake.take_over(bolt.columns, bolt.partition_by, read().get(table), fence=table not in led)
        led.add(table)
        return lake

    for bolt in bolts:
        try:
            connect(bolt)
        except ServiceUnavailableError as error:
            log.warning("%s", error)
    return DeltaFollower(
        topology.id,
        [Outbox(bolt.state.table, str(bolt.place), partial(connect, bolt)) for bolt in bolts],
        leading.databases,
        leading.current,
        read,
        partial(note, store, topology),
        topology.max_spout_pending,
    )
