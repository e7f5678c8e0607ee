"""What drivers write to, as models: a log that loses partitions, and databases with fence, ledger and rows.

Invariants. A database's transaction is atomic: it is applied whole or not at all, but perhaps late and
perhaps with its answer lost; as a task's transaction is one step, no fence is raised while it runs. The value
rules are the real ones, of `txstream.semantics`; guards that a mutant takes away are switches of `Guards`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import add
from typing import Any, Literal

from support.inmemory import Range

from txstream.api.errors import CorruptStateError, StaleAttemptError
from txstream.metas import BatchMetas, to_json
from txstream.semantics import OpaqueValue, Semantics, TransactionalValue
from txstream.state import BatchRecord, Commit
from txstream.state.records import COMMITTED, COMMITTING, BatchStatus
from txstream.transaction import AttemptId, TransactionAttempt, Txid

NOW = datetime(2024, 5, 1, tzinfo=UTC)
UUID = "6fb0f6b4-0c26-4ac1-a9a4-7f8a7a1e4f11"

Row = OpaqueValue[int] | TransactionalValue[int] | int
Deltas = Mapping[str, int]
Step = Literal["raise", "ledger", "restore"]


@dataclass(frozen=True)
class Guards:
    """What keeps results exact inside a database; a mutant switches one off."""

    restores: bool = True
    refuses_older_attempts: bool = True
    writes_a_ledger_row_without_deltas: bool = True
    skips_what_a_row_has: bool = True
    begins_by: tuple[Step, ...] = ("raise", "ledger", "restore")
    steps_demand_the_fence: bool = True
    asks_before_the_ledger_row: bool = True
    tasks_demand: Literal["equal", "not above", "nothing"] = "equal"
    the_end_demands_the_fence: bool = True


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
    on_executors: bool = True
    written_by_bolts: bool = False
    fence: AttemptId = field(default=AttemptId(0))
    rows: dict[str, Row] = field(default_factory=dict)
    ledger: dict[Txid, BatchRecord] = field(default_factory=dict)

    def raise_fence(self, attempt: AttemptId) -> None:
        if self.fence > attempt:
            raise StaleAttemptError(f"{self.name}: the fence is at {self.fence}, newer than {attempt}")
        self.fence = attempt

    def commit(self, commit: Commit) -> None:
        """Driver path. One transaction: fence, restore, upserts, ledger."""
        attempt = commit.attempt
        deltas = commit.deltas.get("words", {})
        if not deltas and not self.guards.writes_a_ledger_row_without_deltas:
            return
        if self._is_fenced:
            self._raise_to(attempt)
            if attempt.txid in self.ledger and self.guards.restores:
                self._restore(attempt.txid)
        self.merge(attempt, deltas)
        self._write_ledger(commit, COMMITTED)

    def begin_commit(self, commit: Commit) -> Iterator[Step]:
        """Executor path, first, in three transactions; `begin_commit_at_once` makes one of them."""
        attempt, guards = commit.attempt, self.guards
        was_there: bool | None = None
        is_raised = False
        for step in guards.begins_by if self._is_fenced else ():
            # The fence is what each transaction begins with: the next one may be long after this one.
            if is_raised and guards.steps_demand_the_fence:
                self._demand_equal(attempt)
            match step:
                case "raise":
                    self._raise_to(attempt)
                    is_raised = True
                case "ledger":
                    was_there = self._may_have_written(attempt)
                    self._write_ledger(commit, COMMITTING)
                    if not guards.asks_before_the_ledger_row:
                        was_there = self._may_have_written(attempt)
                case "restore":
                    if self._may_have_written(attempt) if was_there is None else was_there:
                        self._restore(attempt.txid)
            yield step

    def begin_commit_at_once(self, commit: Commit) -> None:
        before = self.fence, dict(self.rows), dict(self.ledger)
        try:
            for _ in self.begin_commit(commit):
                pass
        except Exception:
            self.fence, self.rows, self.ledger = before
            raise

    def write(self, attempt: TransactionAttempt, deltas: Deltas) -> None:
        """Executor path, a task's share: fence, upserts."""
        if self._is_fenced:
            self.demand_for_task(attempt)
        self.merge(attempt, deltas)

    def end_commit(self, commit: Commit) -> None:
        """Executor path, last: fence, upserts of what no task has, ledger."""
        if self._is_fenced and self.guards.the_end_demands_the_fence:
            self._demand_equal(commit.attempt)
        self.merge(commit.attempt, commit.deltas.get("words", {}))
        self._write_ledger(commit, COMMITTED)

    def demand_for_task(self, attempt: TransactionAttempt) -> None:
        """What a task's transaction begins with."""
        match self.guards.tasks_demand:
            case "equal":
                self._demand_equal(attempt)
            case "not above":
                if self.fence > attempt.attempt:
                    raise StaleAttemptError(f"{self.name}: the fence is at {self.fence}, above {attempt}")
            case "nothing":
                pass

    @property
    def _is_fenced(self) -> bool:
        return self.semantics is not Semantics.NON_TRANSACTIONAL

    def _raise_to(self, attempt: TransactionAttempt) -> None:
        if self.fence >= attempt.attempt and self.guards.refuses_older_attempts:
            raise StaleAttemptError(f"{self.name}: the fence is at {self.fence}, not before {attempt}")
        self.fence = max(self.fence, attempt.attempt)

    def _demand_equal(self, attempt: TransactionAttempt) -> None:
        if self.fence > attempt.attempt:
            raise StaleAttemptError(f"{self.name}: the fence is at {self.fence}, above {attempt}")
        if self.fence < attempt.attempt:
            raise CorruptStateError(f"{self.name}: the fence is at {self.fence}, below {attempt}")

    def _may_have_written(self, attempt: TransactionAttempt) -> bool:
        """Has another attempt of this txid left a row? A begin that looks after it has written its own row
        finds no other."""
        row = self.ledger.get(attempt.txid)
        return row is not None and row.attempt != attempt.attempt

    def merge(self, attempt: TransactionAttempt, deltas: Deltas) -> None:
        for key, delta in deltas.items():
            self.rows[key] = self._updated(self.rows.get(key), delta, attempt.txid)

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

    def _write_ledger(self, commit: Commit, status: BatchStatus) -> None:
        attempt = commit.attempt
        metas: dict[str, Any] = json.loads(to_json(commit.metas))
        self.ledger[attempt.txid] = BatchRecord(
            topology="t",
            uuid=UUID,
            txid=attempt.txid,
            attempt=attempt.attempt,
            semantics=self.semantics,
            status=status,
            metas=metas,
            tuples=commit.tuples,
            keys=0,
            planned_at=NOW,
            processed_at=NOW,
            committed_at=NOW if status == COMMITTED else None,
            error=commit.error,
        )

    def last_batch(self) -> BatchRecord | None:
        return self.ledger[max(self.ledger)] if self.ledger else None

    def has_committed(self, attempt: TransactionAttempt) -> bool:
        row = self.ledger.get(attempt.txid)
        return row is not None and row.status == COMMITTED and row.attempt == attempt.attempt

    def totals(self) -> dict[str, int]:
        """As a person who queries the table sees it."""
        return {key: row if isinstance(row, int) else row.value for key, row in self.rows.items()}
