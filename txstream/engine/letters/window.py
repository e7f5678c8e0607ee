"""How many of a topology's latest records became dead letters: a bug that makes many fail, a few in each
batch, ends the run like one that makes a whole batch fail.

Invariants. What is counted is in the ledger, so a driver counts on where the one before has ended: it reads
what was committed before its own first batch, once a batch leaves something out, and remembers its own.
Neither late records are counted, nor letters that a later batch has retried.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from txstream.core.batch_metas import BatchMetas
from txstream.core.dead_letters import DeadLetters, Excluded
from txstream.core.errors import TooManyDeadLettersError
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.state import BatchRecord, StateBackend
from txstream.state.records import COMMITTED
from txstream.state.stored_letters import place_of

RECORDS: Final = 10_000
AGE: Final = timedelta(minutes=10)
_PAGE = 200
_MOST_BATCHES = 10_000  # that are read of the ledger


class _Batch(NamedTuple):
    txid: Txid
    at: datetime
    records: int
    dead: set[str]
    retried: Sequence[tuple[Txid, str]]

    @classmethod
    def of(
        cls, txid: Txid, at: datetime, emitted: int, excluded: Collection[Excluded], retried: Any
    ) -> _Batch:
        dead = {place_of(f"{one.partition}@{one.offset}") for one in excluded if not one.is_late}
        return cls(txid, at, emitted + len(excluded), dead, [(Txid(old), place) for old, place in retried])


class LetterWindow:
    """The last 10,000 records, and all of the last ten minutes, in the ledger of one store."""

    def __init__(self, topology: str, limits: DeadLetters, store: StateBackend) -> None:
        self._topology = topology
        self._limits = limits
        self._store = store
        self._lock = threading.Lock()  # batches are processed by several threads
        self._open: dict[Txid, _Batch] = {}
        self._committed: deque[_Batch] = deque()
        self._records = self._dead = 0  # of those: thousands of batches are not added up for each
        self._first: Txid | None = None  # of this driver's own batches
        self._has_read = False

    def processed(self, attempt: TransactionAttempt, metas: BatchMetas[Any], emitted: int) -> None:
        """Learn what an attempt would commit. A later batch may come before this one."""
        txid, retried = attempt.txid, [(one.txid, one.place) for one in metas.retried]
        with self._lock:
            self._open[txid] = _Batch.of(txid, datetime.now(UTC), emitted, metas.excluded, retried)
            self._first = txid if self._first is None else min(self._first, txid)

    def committed(self, txid: Txid) -> None:
        """Learn that a batch is committed."""
        with self._lock:
            if (batch := self._open.pop(txid, None)) is not None:
                self._committed.append(batch)
                self._count([batch])
                self._take_back(batch)
            while len(self._committed) > _MOST_BATCHES:
                self._count([self._committed.popleft()], -1)

    def require_few(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> None:
        """Raise TooManyDeadLettersError if with what this batch leaves out too many have become letters."""
        before = [] if self._has_read else self._read(self._first or attempt.txid)
        with self._lock:
            if not self._has_read:
                self._has_read = True
                self._committed.extendleft(reversed(before))
                self._count(before)
                for batch in self._committed:
                    self._take_back(batch)
            self._forget_old()
            window, this = [*self._committed, *self._open.values()], self._open[attempt.txid]
            records = self._records + sum(one.records for one in self._open.values())
            dead = self._dead + sum(len(one.dead) for one in self._open.values())
        most = max(self._limits.max_per_batch, math.floor(self._limits.max_share * records))
        if dead > most:
            since = next(one.at for one in window if one.dead)
            reasons = sorted({f"{one.exception} in component {one.component!r}" for one in metas.excluded})
            raise TooManyDeadLettersError(
                f"{attempt}: with {counted(len(this.dead), 'record')} of this batch, {dead:,} of the last "
                f"{counted(records, 'record')} would be dead letters, since {since:%Y-%m-%d %H:%M:%S} UTC; "
                f"at most {most:,} may. That is taken for a bug, so the batch is not committed "
                f"({', '.join(reasons[:3])}). Repair the code and start again, then `txstream dead-letters "
                f"retry {self._topology}`: what was retried is not counted. Or allow more: max_share and "
                f"max_per_batch of DeadLetters, --dead-letters N"
            )

    def _count(self, batches: Sequence[_Batch], sign: int = 1) -> None:
        self._records += sign * sum(one.records for one in batches)
        self._dead += sign * sum(len(one.dead) for one in batches)

    def _take_back(self, batch: _Batch) -> None:
        for txid, place in batch.retried:
            for one in self._committed:
                if one.txid == txid and place in one.dead:
                    one.dead.remove(place)
                    self._dead -= 1

    def _forget_old(self) -> None:
        window, old = self._committed, datetime.now(UTC) - AGE
        while window and window[0].at < old and self._records - window[0].records >= RECORDS:
            self._count([window.popleft()], -1)

    def _read(self, before: Txid) -> list[_Batch]:
        """Return what the ledger has of the window before a txid, the oldest first."""
        new, records, is_old, now = list[BatchRecord](), 0, False, datetime.now(UTC)
        while not is_old and len(new) < _MOST_BATCHES:
            behind = new[-1].txid if new else before
            page = self._store.batches(self._topology, limit=_PAGE, before=behind)
            new += reversed(page)
            records += sum(one.tuples for one in page)
            is_old = len(page) < _PAGE
            is_old = is_old or (records >= RECORDS and (page[0].committed_at or now) < now - AGE)
        found = []
        for one in reversed(new):
            if one.status == COMMITTED:
                excluded = [Excluded(*record) for record in one.metas.get("excluded", ())]
                retried = one.metas.get("retried", ())
                found.append(_Batch.of(one.txid, one.committed_at or now, one.tuples, excluded, retried))
        return found
