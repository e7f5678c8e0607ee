"""The fence: one row per topology and database, whose attempt only grows.

Invariant: a transaction that raised the fence to its attempt holds the row's lock until it ends, so no
older attempt can commit after it and no newer one before it. Raising is its first statement: what it reads
afterwards, it reads as the transaction that it may have waited for left it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, select, update

from txstream.api.errors import CorruptStateError, ProgressMismatchError, StaleAttemptError
from txstream.metas import to_json
from txstream.state.dialect import StateDialect
from txstream.state.framework import fence
from txstream.state.records import FenceRow
from txstream.transaction import AttemptId, epoch_of, sequence_of


def raise_to(
    connection: Connection,
    database: str,
    topology: str,
    uuid: str,
    attempt: AttemptId,
    *,
    may_be_equal: bool,
) -> None:
    """Raise the fence to `attempt`; with `may_be_equal` also when it is there already, because a leader
    whose answer was lost asks again.

    Raises StaleAttemptError when it is not lower, CorruptStateError when there is none, and
    ProgressMismatchError when it is another life's.
    """
    raised = connection.execute(
        update(fence)
        .where(fence.c.topology == topology, fence.c.uuid == uuid, fence.c.attempt < attempt)
        .values(attempt=attempt)
    ).rowcount
    if raised == 1:
        return
    found = _read_own(connection, database, topology, uuid)
    if found.attempt == attempt and may_be_equal:
        return
    if found.attempt == attempt:
        raise StaleAttemptError(
            f"topology {topology!r}: attempt {_shown(attempt)} has already been used for a commit; nothing "
            f"was written again"
        )
    raise _superseded(topology, attempt, found)


def require(
    connection: Connection,
    dialect: StateDialect,
    database: str,
    topology: str,
    uuid: str,
    attempt: AttemptId,
) -> None:
    """Demand that the fence is at `attempt`, and keep it there until the transaction ends: tasks of one
    attempt hold it together, and nobody can raise it meanwhile.

    Raises StaleAttemptError when it is not, CorruptStateError and ProgressMismatchError as `raise_to`.
    """
    if dialect.hold_fence(connection, topology, uuid, attempt):
        return
    found = _read_own(connection, database, topology, uuid)
    if found.attempt < attempt:
        raise CorruptStateError(
            f"topology {topology!r}: the fence of database {database} is at attempt {_shown(found.attempt)}, "
            f"but {_shown(attempt)} was begun; the database was restored from an older copy while the "
            f"topology ran: start it again"
        )
    raise _superseded(topology, attempt, found)


def _superseded(topology: str, attempt: AttemptId, found: FenceRow) -> StaleAttemptError:
    return StaleAttemptError(
        f"topology {topology!r}: the fence is at attempt {_shown(found.attempt)}, newer than "
        f"{_shown(attempt)}; another driver has taken over and nothing was written"
        if epoch_of(found.attempt) > epoch_of(attempt)
        else f"topology {topology!r}: attempt {_shown(attempt)} has been superseded by this driver's own "
        f"{_shown(found.attempt)}; nothing was written"
    )


def _read_own(connection: Connection, database: str, topology: str, uuid: str) -> FenceRow:
    found = read(connection, topology)
    if found is None:
        raise CorruptStateError(
            f"database {database}: txstream_fence has no row for topology {topology!r}, which has been run "
            f"on it; it was deleted, or the database restored from an older copy: restore it, or start "
            f"afresh with `txstream delete {topology} --drop-state`"
        )
    if found.uuid != uuid:
        raise other_life(found, uuid, database)
    return found


def read(connection: Connection, topology: str) -> FenceRow | None:
    """The fence of a topology."""
    row = connection.execute(select(fence).where(fence.c.topology == topology)).one_or_none()
    return None if row is None else _record(row)


def read_all(connection: Connection) -> list[FenceRow]:
    """The fences of all topologies, by id."""
    return [_record(row) for row in connection.execute(select(fence).order_by(fence.c.topology))]


def join(
    connection: Connection,
    database: str,
    topology: str,
    uuid: str,
    *,
    first_run: bool,
    identity: Mapping[str, Any] | None,
) -> None:
    """Create the fence of a topology that runs for the first time; check it otherwise. Keep its identity."""
    found = read(connection, topology)
    kept = None if identity is None else to_json(identity)
    if found is not None:
        if found.uuid != uuid:
            raise other_life(found, uuid, database)
        if identity is not None and found.identity != identity:
            connection.execute(update(fence).where(fence.c.topology == topology).values(identity=kept))
        return
    if not first_run:
        raise ProgressMismatchError(
            f"topology {topology!r} has committed batches according to ZooKeeper, but database {database} "
            f"knows nothing of it; point at the database that it was run with (--database / "
            f"TXSTREAM_DATABASE), or start afresh with `txstream delete {topology} --drop-state`"
        )
    connection.execute(fence.insert().values(topology=topology, uuid=uuid, attempt=0, identity=kept))


def other_life(found: FenceRow, uuid: str, database: str) -> ProgressMismatchError:
    """The same id, but not the same topology."""
    return ProgressMismatchError(
        f"topology {found.topology!r} has uuid {uuid} in ZooKeeper and uuid {found.uuid} in database "
        f"{database}; one of the two was deleted or lost: point at the right one, run it under another id "
        f"(--id), or start afresh with `txstream delete {found.topology} --drop-state`"
    )


def _record(row: Row[Any]) -> FenceRow:
    identity: Any = None
    if row.identity is not None:
        try:
            identity = json.loads(row.identity)
        except ValueError:
            identity = row.identity
        if not isinstance(identity, dict):
            raise CorruptStateError(
                f"txstream_fence: the identity of topology {row.topology!r} must be a JSON object, found "
                f"{row.identity!r:.200}"
            )
    return FenceRow(row.topology, row.uuid, AttemptId(row.attempt), identity)


def _shown(attempt: int) -> str:
    return f"{epoch_of(attempt)}.{sequence_of(attempt)}"
