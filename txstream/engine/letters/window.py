"""How many of a topology's latest records became dead letters: a bug that makes many fail, a few in each
batch, ends the run like one that makes a whole batch fail.

Invariants. What is counted is in the ledger, so a driver counts on where the one before has ended; only open
batches are remembered. A batch that leaves nothing out costs nothing. Neither late records are counted, nor
letters that a later batch has retried.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from txstream.core.batch_metas import BatchMetas
from txstream.core.dead_letters import DeadLetters, Excluded
from txstream.core.errors import TooManyDeadLettersError
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.state import BatchRecord, StateBackend
from txstream.state.dead_letters import place_of
from txstream.state.records import COMMITTED

RECORDS: Final = 10_000
AGE: Final = timedelta(minutes=10)
_PAGE = 200
_MOST_BATCHES = 10_000  # that are read of the ledger


class _Batch(NamedTuple):
    txid: Txid
    at: datetime
    records: int
    dead: set[str]

    @classmethod
    def of(cls, txid: Txid, at: datetime, emitted: int, excluded: Collection[Excluded]) -> _Batch:
        dead = {place_of(f"{one.partition}@{one.offset}") for one in excluded if not one.is_late}
        return cls(txid, at, emitted + len(excluded), dead)


class LetterWindow:
    """The last 10,000 records, and all of the last ten minutes, in the ledger of one store."""

    def __init__(self, topology: str, limits: DeadLetters, store: StateBackend) -> None:
        self._topology = topology
        self._limits = limits
        self._store = store
        self._lock = threading.Lock()  # batches are processed by several threads
        self._committed: list[_Batch] = []
        self._open: dict[Txid, _Batch] = {}

    def require_few(self, attempt: TransactionAttempt, metas: BatchMetas[Any], emitted: int) -> None:
        """Raise TooManyDeadLettersError if with what this batch leaves out too many have become letters."""
        now, txid = datetime.now(UTC), attempt.txid
        this = _Batch.of(txid, now, emitted, metas.excluded)
        with self._lock:
            known = self._read(txid, now)
            # A later batch may have been asked about before this one.
            self._open = {one: batch for one, batch in self._open.items() if one > known} | {txid: this}
            window = [*self._committed, *self._open.values()]
        records, dead = sum(one.records for one in window), sum(len(one.dead) for one in window)
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

    def _read(self, before: Txid, now: datetime) -> int:
        """Add what was committed since the last time, and drop what is too old. Returns the last txid."""
        window, new = self._committed, list[BatchRecord]()
        known, records, is_old = window[-1].txid if window else 0, 0, False
        while not is_old and len(new) < _MOST_BATCHES:
            behind = new[-1].txid if new else before
            wanted = min(_PAGE, behind - known - 1)  # what is known is not read again
            page = self._store.batches(self._topology, limit=wanted, before=behind) if wanted > 0 else []
            new += reversed(page)
            records += sum(one.tuples for one in page)
            is_old = len(page) < _PAGE or page[0].txid <= known
            is_old = is_old or (records >= RECORDS and (page[0].committed_at or now) < now - AGE)
        for one in reversed(new):
            if one.txid > known and one.status == COMMITTED:
                excluded = [Excluded(*record) for record in one.metas.get("excluded", ())]
                window.append(_Batch.of(one.txid, one.committed_at or now, one.tuples, excluded))
                for txid, place in one.metas.get("retried", ()):
                    for batch in window:
                        batch.dead.difference_update([place] if batch.txid == txid else ())
        records = sum(one.records for one in window)
        while window and window[0].at < now - AGE and records - window[0].records >= RECORDS:
            records -= window.pop(0).records
        return window[-1].txid if window else 0
