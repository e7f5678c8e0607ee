"""What each database of a topology holds, as `recover` weighs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from txstream.api.errors import StateTableError, UsageError
from txstream.state import BatchRecord, FenceRow, StateBackend
from txstream.state.records import AccessDeniedError
from txstream.zookeeper import Identity


@dataclass(frozen=True)
class Own:
    """What one database holds of a topology. `before` is the ledger's row of the txid before the last;
    `newest` the table whose rows carry the greatest txid, and that txid."""

    database: StateBackend
    fence: FenceRow | None
    last: BatchRecord | None
    before: BatchRecord | None
    tables: tuple[str, ...] | None  # None: its store cannot tell
    newest: tuple[str, int] | None = None  # None: no table remembers txids

    @property
    def uuid(self) -> str | None:
        known = self.fence or self.last
        return None if known is None else known.uuid

    @property
    def kept(self) -> Identity | None:
        """The identity beside its fence."""
        return kept_identity(self.fence, self.database.url_for_people)


def own_of(topology_id: str, databases: Sequence[StateBackend]) -> list[Own]:
    """What each database holds now."""
    found = []
    for database in databases:
        last = database.last_batch(topology_id)
        before = None if last is None else database.batch(topology_id, last.txid - 1)
        tables, newest = _tables(database, topology_id)
        found.append(Own(database, database.read_fence(topology_id), last, before, tables, newest))
    return found


def _tables(
    database: StateBackend, topology_id: str
) -> tuple[tuple[str, ...] | None, tuple[str, int] | None]:
    try:
        with database.read_state(topology_id) as reading:
            tables = reading.tables()
            # A table that is gone or altered is for fsck to tell, and stops the next run.
            remembering = [one.name for one in tables if one.has_txid and reading.differences(one.name) == []]
            txids = {name: reading.newest_row(name)[0] for name in remembering}
    except AccessDeniedError:
        raise
    except StateTableError:
        return (), None
    except UsageError:
        return None, None
    greatest = max(txids.items(), key=lambda one: one[1], default=None)
    return tuple(table.name for table in tables), greatest


def kept_identity(fence: FenceRow | None, url: str) -> Identity | None:
    """The identity beside the fence of the database `url`. Raises CorruptStateError."""
    document = None if fence is None else (fence.identity or {}).get("identity")
    if not document:
        return None
    return Identity.decode(json.dumps(document).encode(), f"txstream_fence of {url}")


def is_newcomer(one: Own) -> bool:
    """Does it only hold states that were joining when their driver died? Then it has no ledger yet, and the
    next run lets them join."""
    if one.last is not None or not one.tables or one.kept is None:
        return False
    return not {*one.tables} & {*one.kept.tables}
