"""The checks of `fsck` on dead letters: what batches left out, and what they retried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from txstream.core.transaction import Txid
from txstream.core.wording import counted
from txstream.inspect.ledgers import standing_rows
from txstream.inspect.records import Finding, Severity
from txstream.inspect.snapshot import Snapshot
from txstream.state.stored_letters import retried_in


def done_in(snapshot: Snapshot) -> int:
    """Return the last txid that all databases had committed before they were read."""
    lasts = [int(db.last.txid) if db.last else 0 for db in snapshot.databases if not db.is_joining]
    return min(lasts if snapshot.progress is None else [*lasts, snapshot.progress.current - 1], default=0)


def dead_letters(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare what the ledgers say that batches left out with the dead letters that are there. Batches whose
    rows were pruned cannot be compared."""
    there: Counter[Txid] = Counter()
    left_out: dict[Txid, int] = {}
    for database in snapshot.databases:
        for (txid, _), number in database.dead_letters.items():
            there[txid] += number
        left_out |= {row.txid: len(row.metas.get("excluded", ())) for row in standing_rows(database.rows)}
    newest = max(left_out, default=0)
    for txid in sorted({*there, *left_out}):
        if txid > newest:
            yield Finding(
                "dead-letter-too-new", Severity.ERROR, f"txid {txid}",
                f"there is {counted(there[txid], 'dead letter')} of it, and no ledger knows it",
                "the ledger was restored from an older copy than they: restore both of one moment",
            )  # fmt: skip
        elif txid in left_out and there[txid] > left_out[txid]:
            yield Finding(
                "dead-letter-extra", Severity.ERROR, f"txid {txid}",
                f"it left out {counted(left_out[txid], 'record')}, and there are {there[txid]:,} dead "
                f"letters of it: a record that was counted would count again in a retry",
                "ledger and dead letters are of different moments, or changed by hand: restore both of one "
                "moment",
            )  # fmt: skip
        elif there[txid] < left_out.get(txid, 0):
            yield Finding(
                "dead-letter-gone", Severity.NOTE, f"txid {txid}",
                f"it left out {counted(left_out[txid], 'record')}, and {there[txid]:,} dead letters of it "
                f"are there",
                "nothing, if `txstream dead-letters drop` deleted the others; else a backup",
            )  # fmt: skip


def retried_letters(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare what each ledger says that batches retried with what they held there, and with the dead
    letters. Letters that were dropped before their batch was processed are in no database."""
    done = done_in(snapshot)
    ledgers = [standing_rows(database.rows) for database in snapshot.databases]
    rows = {row.txid: row for ledger in ledgers for row in ledger if row.txid <= done}
    marked: Counter[tuple[Txid, str]] = Counter()
    held: dict[Txid, int] = {}
    for database in snapshot.databases:
        marked.update(database.dead_letters)
        for row in database.rows:
            held[row.txid] = max(held.get(row.txid, 0), row.tuples)
    for database in snapshot.databases:
        for row in database.rows:
            if row.metas.get("retried") and row.txid <= done and row.tuples < held[row.txid]:
                yield Finding(
                    "retried-missing", Severity.ERROR, f"txid {row.txid} in {database.url}",
                    f"it retries dead letters, and held {counted(row.tuples, 'record')} of "
                    f"{held[row.txid]:,}: the others are in no table of this database",
                    "restore all databases of one moment",
                )  # fmt: skip
    for row in rows.values():
        for txid, number in Counter(Txid(txid) for txid, _ in row.metas.get("retried", ())).items():
            if txid not in rows:
                continue
            there = sum(count for (of, _), count in marked.items() if of == txid)
            dropped = max(len(rows[txid].metas.get("excluded", ())) - there, 0)
            again = number - marked[txid, retried_in(row.txid)] - dropped
            if again > 0:
                yield Finding(
                    "retried-and-dead", Severity.ERROR, f"txid {txid}",
                    f"txid {row.txid} has retried {counted(number, 'dead letter')} of it, of which {again:,} "
                    f"are not marked so: their records would count again in a retry",
                    "ledger and dead letters are of different moments, or changed by hand: restore both of "
                    "one moment",
                )  # fmt: skip
