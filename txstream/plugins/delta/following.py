"""Appends the files of committed batches to their Delta tables while a topology runs.

Invariants. Files of a txid are appended once every database has committed it, after those of all earlier
txids; rows that name them are deleted after that, and how far it has come is noted. A driver that dies in
between finds in the Delta table's own log what is there. A rewind restores the table in its turn. A table
that is away delays its files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from txstream.core.errors import ServiceUnavailableError
from txstream.core.transaction import Txid
from txstream.core.wording import counted
from txstream.engine.start.companions import Leading
from txstream.plugins.delta.bolt import PARTITION, PATH, ROWS, SIZE, DeltaTableBolt
from txstream.plugins.delta.files import WrittenFile
from txstream.plugins.outbox.sending import (
    OutboxFollower,
    TableOutbox,
    Waiting,
    note,
    noted,
    rewound_to,
)
from txstream.state import StateBackend
from txstream.state.reading import StoredRow

if TYPE_CHECKING:
    from txstream.plugins.delta.lake import Lake

log = logging.getLogger(__name__)


class DeltaOutbox(TableOutbox):
    """Names of files that wait to be appended. Of txids before `doubtful_before`, a driver that died may have
    left files; of others, only an attempt that failed, which the ledger tells."""

    def __init__(
        self,
        topology: str,
        table: str,
        where: str,
        databases: Sequence[StateBackend],
        connect: Callable[[], Lake],
        doubtful_before: int,
    ) -> None:
        super().__init__(topology, table, where, databases, connect)
        self._doubtful_before = doubtful_before

    def waiting(self, after: Txid, before: Txid) -> tuple[list[tuple[Txid, Waiting]], Txid]:
        found, last = super().waiting(after, before)
        doubtful = range(after + 1, min(last + 1, self._doubtful_before))
        nothing = {Txid(txid): Waiting((), None) for txid in doubtful}
        return sorted({**nothing, **dict(found)}.items()), last

    def send(self, sender: Lake, txid: Txid, what: Waiting) -> None:
        files, to = [_file(row) for row in what.rows], rewound_to(what.batch)
        if to is not None:
            sender.restore(txid, to)
        elif files:
            sender.append(txid, files)
        if txid < self._doubtful_before or what.batch is None or what.batch.details.get("attempts"):
            _remove_undone(sender, txid, files)


def _remove_undone(lake: Lake, txid: Txid, files: Sequence[WrittenFile]) -> None:
    """What cannot be removed now is left to a vacuum: nothing refers to it."""
    try:
        if removed := lake.remove_undone(txid, files):
            log.info("%s of undone attempts of txid %d removed", counted(removed, "file"), txid)
    except ServiceUnavailableError as error:
        log.info("files of undone attempts of txid %d stay: %s", txid, error)


def _file(row: StoredRow) -> WrittenFile:
    value = row.value
    return WrittenFile(value[PATH], value[SIZE], value[ROWS], json.loads(value[PARTITION]))


def delta_tables(leading: Leading) -> OutboxFollower | None:
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
    doubtful_before = leading.current() + topology.max_spout_pending
    return OutboxFollower(
        topology.id,
        [
            DeltaOutbox(
                topology.id,
                bolt.state.table,
                str(bolt.place),
                leading.databases,
                partial(connect, bolt),
                doubtful_before,
            )
            for bolt in bolts
        ],
        leading.current,
        read,
        partial(note, store, topology),
        what="files",
    )
