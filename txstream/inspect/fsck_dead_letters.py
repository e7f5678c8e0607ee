"""The check of `fsck` on dead letters: each record of a range is counted or dead, and not both. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from txstream.inspect.records import Finding, Severity
from txstream.inspect.snapshot import Snapshot
from txstream.transaction import Txid
from txstream.wording import counted


def dead_letters(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare what the ledgers say that batches left out with the dead letters that are there. Batches whose
    rows were pruned cannot be compared."""
    there: Counter[Txid] = Counter()
    left_out: dict[Txid, int] = {}
    for database in snapshot.databases:
        for (txid, _), number in database.dead_letters.items():
            there[txid] += number
        left_out |= {row.txid: len(row.metas.get("excluded", ())) for row in database.rows}
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
