"""Promises about the ledger: what each batch held, and which attempt committed it."""

from __future__ import annotations

from datetime import UTC, datetime

from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, attempt_id
from txstream.plugins.proof.promises import Promises
from txstream.plugins.proof.state_suite.life import PLANNED, PROCESSED, Life
from txstream.plugins.proof.state_suite.trial import FENCED, StateCheck, StateTrial, each
from txstream.state import BatchRecord
from txstream.state.records import COMMITTED, COMMITTING

CHECKS = Promises(StateCheck)


@CHECKS.promise(
    "ledger-keeps-everything",
    "A ledger row is read back as it was written, to the microsecond and with any Unicode.",
    "metas and details are JSON; times are timezone-aware",
)
@each(*Semantics)
def ledger_keeps_everything(life: Life) -> None:
    trial = life.trial
    metas = {"partitions": {"größe/0": {"start": 0, "end": 2**53}}, "carried": {"x": [None, True, "🦀\0"]}}
    details = {"path": "driver", "timings": {"commit": 0.25}, "attempts": []}
    start = datetime.now(UTC)
    error = "it was \U0001f980, \0 and \ud800"
    attempt = life.commit(1, {"a": 1, "b": 1}, metas=metas, details=details, error=error)
    row = life.batch(1)
    if row.committed_at is None or row.committed_at.tzinfo is None:
        trial.fail("a timezone-aware time in committed_at", f"{row.committed_at!r}")
    if abs((row.committed_at - start).total_seconds()) > trial.deadline_seconds:
        trial.fail(f"a committed_at near {start}", f"{row.committed_at}")
    expected = BatchRecord(
        topology=life.topology,
        uuid=life.uuid,
        txid=attempt.txid,
        attempt=attempt.attempt,
        semantics=life.semantics,
        status=COMMITTED,
        metas=metas,
        tuples=7,
        keys=2,
        planned_at=PLANNED,
        processed_at=PROCESSED,
        committed_at=row.committed_at,
        error="it was \U0001f980, \\x00 and \\ud800",
        details=details,
    )
    trial.require("the row of the ledger", expected, row)
    last = trial.ask("the last batch is looked up", life.store.last_batch, life.topology)
    trial.require("the last batch", row, last)


@CHECKS.promise(
    "ledger-says-committing",
    "`begin_commit` writes `committing`, even over an earlier attempt's row; `end_commit` writes `committed` "
    "and the number of keys written, by tasks and by itself.",
    "keep one row for each txid",
)
@each(*FENCED)
def ledger_says_committing(life: Life) -> None:
    trial = life.trial
    for _ in range(2):
        under = life.begin(1)
        row = life.batch(1)
        found = (row.status, row.attempt, row.committed_at, row.uuid)
        trial.require("the row after a beginning", (COMMITTING, under.attempt, None, life.uuid), found)
        life.write(under, {"a": 1})
        trial.require("the row after a write", row, life.batch(1))
        life.end(under, {"b": 1, "c": 1}, keys=1)
        row = life.batch(1)
        found_now = (row.status, row.attempt, row.keys, row.committed_at is not None)
        trial.require("the row after an end", (COMMITTED, under.attempt, 3, True), found_now)
    trial.require("the rows of one txid", 1, len(life.ledger()))


@CHECKS.promise(
    "ledger-is-in-order",
    "`batches` returns the rows in order of txid, with `before` those of smaller ones, with `limit` only the "
    "last ones; a replay replaces its txid's row.",
    "sort by number, not by text",
)
def ledger_is_in_order(trial: StateTrial) -> None:
    life = trial.life()
    for txid in range(1, 12):
        life.commit(txid, {"a": 1})
    again = life.commit(11, {"a": 1})
    for limit, expected in ((None, [*range(1, 12)]), (3, [9, 10, 11]), (1, [11]), (20, [*range(1, 12)])):
        rows = life.ledger(limit=limit)
        trial.require(f"the txids with limit {limit}", expected, [row.txid for row in rows])
    rows = trial.ask("batches are read", trial.store.batches, life.topology, limit=2, before=11)
    trial.require("the last two txids before 11", [9, 10], [row.txid for row in rows])
    trial.require("the attempt in the replaced row", again.attempt, life.batch(11).attempt)
    found = trial.ask("a batch is looked up", trial.store.batch, life.topology, 12)
    trial.require("a txid without a row", None, found)


@CHECKS.promise(
    "outcome-is-of-one-attempt",
    "`outcome` is true only for the attempt that committed its batch: not while that attempt is committing, "
    "not for another attempt of the batch, not once a later one has begun.",
    "compare txid, attempt and status in the ledger",
)
@each(*FENCED)
def outcome_is_of_one_attempt(life: Life) -> None:
    trial = life.trial

    def require(expected: bool, attempt: TransactionAttempt, when: str) -> None:
        found = trial.ask("outcome() is called", life.states.outcome, attempt)
        trial.require(f"the outcome {when}", expected, found)

    lost = life.next(1)
    require(False, lost, "before the commit")
    trial.ask("the attempt commits", life.committing, lost, {"a": 1})
    require(True, lost, "after a commit")
    require(False, TransactionAttempt(lost.txid, attempt_id(1, 99)), "of another attempt")
    again = life.begin(1)
    require(False, lost, "when a later one has begun")
    require(False, again, "after a beginning")
    life.end(again)
    require(True, again, "after an end")
