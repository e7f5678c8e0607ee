"""What drivers write to, as models: a log that loses partitions, and databases with fence, ledger and rows.

Invariants. A database's transaction is atomic: a commit is applied whole or not at all, but perhaps late and
perhaps with its answer lost. The value rules are the real ones, of `txstream.semantics`; guards that a mutant
takes away are switches of `Guards`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import add
from typing import Any

from support.inmemory import Range

from txstream.api.errors import StaleAttemptError
from txstream.metas import BatchMetas, to_json
from txstream.semantics import OpaqueValue, Semantics, TransactionalValue
from txstream.state import BatchRecord, Commit
from txstream.transaction import AttemptId, TransactionAttempt, Txid

NOW = datetime(2024, 5, 1, tzinfo=UTC)
UUID = "6fb0f6b4-0c26-4ac1-a9a4-7f8a7a1e4f11"

Row = OpaqueValue[int] | TransactionalValue[int] | int
Deltas = Mapping[str, int]


@dataclass(frozen=True)
class Guards:
    """What keeps results exact inside a database; a mutant switches one off."""

    restores: bool = True
    refuses_older_attempts: bool = True
    writes_a_ledger_row_without_deltas: bool = True
    skips_what_a_row_has: bool = True


class Log:
    """Partitions of keys. Readers see those that are not lost."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[str]] = {}
        self.lost: set[str] = set()

    def count(self) -> Counter[str]:
        """The oracle: every record once."""
        return Counter(key for keys in self.partitions.values() for key in keys)

    def fold(self, metas: BatchMetas[Range]) -> dict[str, int]:
        """What a batch holds, counted."""
        counts: Counter[str] = Counter()
        for partition, taken in metas.partitions.items():
            counts.update(self.partitions[partition][taken.start : taken.end])
        return dict(counts)

    def reached(self, places: Mapping[str, Range]) -> bool:
        return all(
            not keys or (name in places and places[name].end == len(keys))
            for name, keys in self.partitions.items()
        )


@dataclass
class Database:
    """One database. Everything here is what its server does; what may go wrong on the way is the driver's
    view of it."""

    name: str
    semantics: Semantics
    guards: Guards = field(default_factory=Guards)
    fence: AttemptId = field(default=AttemptId(0))
    rows: dict[str, Row] = field(default_factory=dict)
    ledger: dict[Txid, BatchRecord] = field(default_factory=dict)

    def raise_fence(self, attempt: AttemptId) -> None:
        if self.fence > attempt:
            raise StaleAttemptError(f"{self.name}: the fence is at {self.fence}, newer than {attempt}")
        self.fence = attempt

    def commit(self, commit: Commit) -> None:
        """One transaction: fence, restore, upserts, ledger."""
        attempt = commit.attempt
        deltas: Deltas = commit.deltas["words"]
        if not deltas and not self.guards.writes_a_ledger_row_without_deltas:
            return
        if self.semantics is not Semantics.NON_TRANSACTIONAL:
            if self.fence >= attempt.attempt and self.guards.refuses_older_attempts:
                raise StaleAttemptError(f"{self.name}: the fence is at {self.fence}, not before {attempt}")
            self.fence = max(self.fence, attempt.attempt)
            if attempt.txid in self.ledger and self.guards.restores:
                self._restore(attempt.txid)
        for key, delta in deltas.items():
            self.rows[key] = self._updated(self.rows.get(key), delta, attempt.txid)
        self._write_ledger(commit)

    def _restore(self, txid: Txid) -> None:
        for key, row in list(self.rows.items()):
            if not isinstance(row, OpaqueValue):
                continue
            before = row.restore(txid)
            if before is None:
                del self.rows[key]
            else:
                self.rows[key] = before

    def _updated(self, row: Row | None, delta: int, txid: Txid) -> Row:
        match self.semantics:
            case Semantics.OPAQUE:
                assert row is None or isinstance(row, OpaqueValue)
                return OpaqueValue.create(delta, txid) if row is None else row.update(delta, txid, add)
            case Semantics.TRANSACTIONAL:
                assert row is None or isinstance(row, TransactionalValue)
                if row is None:
                    return TransactionalValue.create(delta, txid)
                if not self.guards.skips_what_a_row_has:
                    return TransactionalValue(row.value + delta, txid)
                return row.update(delta, txid, add)
            case Semantics.NON_TRANSACTIONAL:
                assert row is None or isinstance(row, int)
                return (row or 0) + delta

    def _write_ledger(self, commit: Commit) -> None:
        attempt = commit.attempt
        metas: dict[str, Any] = json.loads(to_json(commit.metas))
        self.ledger[attempt.txid] = BatchRecord(
            topology="t",
            uuid=UUID,
            txid=attempt.txid,
            attempt=attempt.attempt,
            semantics=self.semantics,
            status="committed",
            metas=metas,
            tuples=commit.tuples,
            keys=len(commit.deltas["words"]),
            planned_at=NOW,
            processed_at=NOW,
            committed_at=NOW,
            error=commit.error,
        )

    def last_batch(self) -> BatchRecord | None:
        return self.ledger[max(self.ledger)] if self.ledger else None

    def has_committed(self, attempt: TransactionAttempt) -> bool:
        row = self.ledger.get(attempt.txid)
        return row is not None and row.attempt == attempt.attempt

    def totals(self) -> dict[str, int]:
        """As a person who queries the table sees it."""
        return {key: row if isinstance(row, int) else row.value for key, row in self.rows.items()}
