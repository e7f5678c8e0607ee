"""`wait`: until the effect of one record of the source is committed, or it is known that it never will be.

Invariants. `committed` is said only once every database of the topology has committed the batch that holds
the record. Nothing but ledgers and dead letters is read, so a wait needs no driver, and outlives one. Every
look opens the databases again: one that was away is back, one that joined is among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from txstream.core.backoff import Backoff
from txstream.core.dead_letters import LetterKey
from txstream.core.errors import ServiceUnavailableError, TxstreamError, UsageError
from txstream.core.transaction import Txid
from txstream.inspect.databases import Databases, UnknownTopologyError, topology_databases
from txstream.inspect.ledgers import COMMITTED, part_of, range_of, rewound_to
from txstream.settings import Settings
from txstream.state.stored_letters import DEAD, place_of, retried_in

if TYPE_CHECKING:
    from txstream.state import BatchRecord, StateBackend

BACKOFF = Backoff(first_seconds=0.05, longest_seconds=1.0)
"""What a wait leaves between two looks; it begins anew when something has changed."""
_CHUNK = 500


class NotKnownError(TxstreamError):
    """What becomes of the record was not known within the time, or cannot be known any more."""

    exit_status: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class RecordFate:
    """What became of a record. `txid` is the batch that committed it or left it out, `reason` why it did.

    `outcome` is "committed"; "dead" or "late" for one that has a dead letter, which a retry may still commit
    if it is dead; or "left out" for one that no batch reads: it lies before the topology's beginning, was
    skipped, or its dead letter was dropped.
    """

    topology: str
    topic: str
    partition: int
    offset: int
    outcome: Literal["committed", "dead", "late", "left out"]
    txid: Txid | None
    reason: str | None = None


def wait_for(
    topology_id: str,
    topic: str,
    partition: int,
    offset: int,
    settings: Settings | None = None,
    *,
    timeout_seconds: float = 60.0,
    told: Callable[[str], None] = lambda _: None,
    pause: Callable[[float], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RecordFate:
    """Return once the effect of a record is committed in all databases of the topology, or once it is known
    that the batch that holds it has left it out.

    The record need not be there yet, nor the topology, nor a database: `told` is given a sentence whenever
    what is waited for changes. Raises NotKnownError after `timeout_seconds`, and at once for a record whose
    batch was pruned from the ledger; UsageError for tracked tuples and for a source whose places are no
    offsets.
    """
    if offset < 0 or partition < 0:
        raise UsageError(f"partition {partition}, offset {offset}: both must be at least 0")
    sought = _Sought(topology_id, topic, partition, offset)
    settings = (settings or Settings()).resolve()
    pause = pause or threading.Event().wait
    deadline = clock() + timeout_seconds
    waits_for, looks = "", 0
    while True:
        left = deadline - clock()
        connect = min(settings.connect_timeout_seconds, max(left, 0.1))
        try:
            with topology_databases(replace(settings, connect_timeout_seconds=connect), topology_id) as found:
                answer = sought.look(found)
        except UnknownTopologyError:
            answer = f"topology {topology_id!r} to be run"
        except ServiceUnavailableError as error:
            answer = f"what is away: {error}"
        if isinstance(answer, RecordFate):
            return answer
        if answer != waits_for:
            waits_for, looks = answer, 0
            told(f"{sought} waits for {waits_for}")
        looks += 1
        if (left := deadline - clock()) <= 0:
            raise NotKnownError(
                f"{sought} was not committed within {timeout_seconds:g} s: it still waits for {waits_for}; "
                f"`txstream status {topology_id}` shows whether anything runs it, and what that waits for"
            )
        pause(min(BACKOFF.after(looks), left))


@dataclass(frozen=True)
class _Sought:
    topology: str
    topic: str
    partition: int
    offset: int

    @property
    def name(self) -> str:
        """The partition as metas name it."""
        return f"{self.topic}/{self.partition}"

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.name}"

    def look(self, databases: Databases) -> RecordFate | str:
        """Return what became of the record, or what is waited for."""
        done = {one: _committed(one.batches(self.topology, limit=2)) for one in databases.opened}
        slowest = min(done, key=lambda one: done[one])
        txid = done[slowest]
        row = slowest.batch(self.topology, txid) if txid else None
        if row is None:
            return f"the first batch of topology {self.topology!r}, in {slowest.display_url}"
        place = self._place(row)
        if place is None or place <= self.offset:
            where = "has no place there yet" if place is None else f"is at offset {place} there"
            return f"topology {self.topology!r}, which {where} as of txid {txid} in {slowest.display_url}"
        # A database that joined late has only the newer rows.
        oldest = {one: one.oldest_txid(self.topology) or txid for one in databases.opened}
        return self._found(min(oldest, key=lambda one: oldest[one]), databases.opened, txid)

    def _place(self, row: BatchRecord) -> int | None:
        """Return the offset from which the batch after this one reads; None if the partition has no place."""
        for part in ("partitions", "carried"):
            metas = part_of(row.metas, part)
            if self.name in metas:
                end = range_of(self.name, metas[self.name]).end
                if end is None:
                    raise UsageError(
                        f"the places of {self.name} are no offsets, so there is nothing to wait for by one"
                    )
                return end
        return None

    def _found(self, ledger: StateBackend, databases: Sequence[StateBackend], done: Txid) -> RecordFate | str:
        """Search back from `done` for the batch at which the place went past the record."""
        newer: BatchRecord | None = None
        before, standing = done + 1, done
        while rows := ledger.batches(self.topology, limit=_CHUNK, before=before):
            for row in reversed(rows):
                if row.txid > standing:
                    continue  # a rewind has undone it
                to = rewound_to(row)
                standing = standing if to is None else to
                read = part_of(row.metas, "partitions").get(self.name)
                start = None if read is None else range_of(self.name, read).start
                if start is not None and start <= self.offset < (self._place(row) or 0):
                    return self._held(row, databases, done)
                place = self._place(row)
                if newer is not None and (place is None or place <= self.offset):
                    return self._passed(newer)
                newer = row
            before = rows[0].txid
        if newer is not None and rewound_to(newer) == 0:
            raise NotKnownError(
                f"what became of {self} cannot be told: what the topology had read until then came with the "
                f"rows of a fork by txid {newer.txid}, if that read them (`txstream swap`)"
            )
        if newer is None or newer.txid > 1:
            since = "" if newer is None else f" begins at txid {newer.txid} and"
            raise NotKnownError(
                f"what became of {self} cannot be told: the ledger of topology "
                f"{self.topology!r}{since} no longer has the batch that held it or left it out "
                f"(`--keep-ledger`)"
            )
        return self._passed(newer)

    def _passed(self, row: BatchRecord) -> RecordFate:
        """Return the fate of a record that this batch's place went past, though it does not hold it."""
        for part in ("partitions", "carried"):
            meta = part_of(row.metas, part).get(self.name)
            if meta is not None and range_of(self.name, meta).skipped_from is not None:
                return self._fate("left out", row.txid, "it was gone before it could be read, and skipped")
        return self._fate("left out", row.txid, "the topology began to read behind it")

    def _held(self, row: BatchRecord, databases: Sequence[StateBackend], done: Txid) -> RecordFate | str:
        """Return the fate of a record in a batch that is committed everywhere."""
        out = next(
            (one for one in row.metas.get("excluded", ()) if one[:2] == [self.name, self.offset]), None
        )
        if out is None:
            return self._fate("committed", row.txid)
        key = LetterKey(row.txid, place_of(f"{self.name}@{self.offset}"))
        letters = (db.dead_letters(self.topology, whole=False, key=key) for db in databases)
        letter = next((one for found in letters for one in found), None)
        if letter is None:
            return self._fate("left out", row.txid, "its dead letter was dropped")
        if letter.status == DEAD:
            reason = f"{letter.letter.component}: {letter.letter.exception}: {letter.letter.message}"
            return self._fate("late" if letter.letter.is_late else "dead", row.txid, reason)
        for txid in range(done, row.txid, -1):
            if letter.status == retried_in(Txid(txid)):
                return self._fate("committed", Txid(txid), f"its dead letter of txid {row.txid} was retried")
        return f"all databases to commit what has {letter.status}"

    def _fate(
        self,
        outcome: Literal["committed", "dead", "late", "left out"],
        txid: Txid,
        reason: str | None = None,
    ) -> RecordFate:
        return RecordFate(self.topology, self.topic, self.partition, self.offset, outcome, txid, reason)


def _committed(newest: Sequence[BatchRecord]) -> Txid:
    """Return the last committed txid of a ledger, from its two newest rows; 0 for none."""
    return max((row.txid for row in newest if row.status == COMMITTED), default=Txid(0))
