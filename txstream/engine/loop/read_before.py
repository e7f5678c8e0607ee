"""What batches have read before. A replay of what may be committed must read the same, and the id of a schema
must mean the same schema as ever.

Invariant: what is compared is known before anything of a batch is committed, and is in the first ledger row
that any database gets of it. So a database that has a part of a batch also has what that was made from.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from txstream.core.errors import InputChangedError
from txstream.core.readings import Reading, refuse_changes
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.state import TopologyStates

log = logging.getLogger(__name__)

_MOST_FETCHED = 200  # names in a ledger row
_SHOWN = 3


class ReadBefore:
    """The readings of one topology, as far as its databases and this driver know them. Made once the fences
    are raised. Several threads check at once, each an attempt of its own."""

    def __init__(self, states: Sequence[TopologyStates]) -> None:
        self._states = states
        self._of_txid: dict[Txid, Reading] = {}
        self.fetched: dict[str, str] = {}  # the latest last
        for row in (one.last_batch() for one in states):
            if row is not None and "read" in row.details:
                reading = self._of_txid[row.txid] = Reading.from_document(row.details["read"])
                self.fetched |= reading.fetched

    def check(
        self, attempt: TransactionAttempt, reading: Reading, *, may_be_committed: bool, planned: int | None
    ) -> Reading:
        """Return what the ledger is to keep of what an attempt has read. `may_be_committed`: perhaps a
        database has committed another attempt. `planned`: how many records a plan that an earlier driver has
        stored may have. Raises InputChangedError."""
        txid, known = attempt.txid, self._of_txid.get(attempt.txid)
        fetched = Reading({}, self.fetched)
        refuse_changes(fetched.changed(reading), f"{attempt} would be read by another schema")
        gone = [] if known is None else known.differences(reading)
        there = sum(records for records, _ in reading.partitions.values())
        if gone and may_be_committed and self._is_anywhere(txid):
            more = ", ..." if len(gone) > _SHOWN else ""
            raise InputChangedError(
                f"txid {txid} may be committed in a database already, and its replay reads something else: "
                f"{'; '.join(gone[:_SHOWN])}{more}. Records are gone from the log (compacted, deleted), or "
                f"others are in their places. Nothing was written, since the databases would come to differ. "
                f"Put the records back; or restore ZooKeeper and all databases to a moment before this txid, "
                f"or start afresh with `txstream delete`"
            )
        if gone:
            log.warning(
                "%s: records of it are gone since it was read before: %s; no database has committed it, so "
                "those that are there count", attempt, "; ".join(gone[:_SHOWN]), extra={"about": attempt},
            )  # fmt: skip
        elif known is None and planned is not None and reading.partitions and there < planned:
            log.warning(
                "%s, which an earlier driver planned: of its %s, %s have a record; the others are markers of "
                "transactions, or records that are gone; no database has committed it, so those that are "
                "there count", attempt, counted(planned, "offset"), f"{there:,}", extra={"about": attempt},
            )  # fmt: skip
        self._of_txid[txid] = reading
        if reading.fetched:
            older = [one for one in self.fetched.items() if one[0] not in reading.fetched]
            self.fetched = dict([*older, *reading.fetched.items()][-_MOST_FETCHED:])
        return Reading(reading.partitions, self.fetched)

    def committed(self, txid: Txid) -> None:
        """Forget a txid: nothing of it will be asked for again."""
        self._of_txid.pop(txid, None)

    def _is_anywhere(self, txid: Txid) -> bool:
        """With one database, its ledger tells whether anything of the batch was committed."""
        return len(self._states) > 1 or any(one.batch(txid) is not None for one in self._states)
