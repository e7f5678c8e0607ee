"""The fence: one row per topology and database, whose attempt only grows.

Invariant: a transaction that raised the fence to its attempt holds the row's lock until it ends, so no older
attempt can commit after it and no newer one before it. Raising the fence is its first statement. So if it
waited for another transaction, it sees what that one committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, Update, bindparam, select, update

from txstream.core.batch_metas import to_json
from txstream.core.errors import CorruptStateError
from txstream.core.transaction import AttemptId
from txstream.state import fence_rules as rules
from txstream.state.records import FenceRow, TopologyLife
from txstream.state.sql.framework_tables import fence
from txstream.state.sql.sessions import Sessions

# Built once, because building it takes as long as executing it.
_RAISE = (
    update(fence)
    .where(
        fence.c.topology == bindparam("id"),
        fence.c.uuid == bindparam("life"),
        fence.c.attempt < bindparam("mine"),
    )
    .values(attempt=bindparam("mine"))
)


def raise_to(
    connection: Connection, database: str, life: TopologyLife, attempt: AttemptId, *, may_be_equal: bool
) -> None:
    """Raise the fence to `attempt`. See `StateTransaction.raise_fence`.

    Raises StaleAttemptError when it is not lower, CorruptStateError when there is none, and
    ProgressMismatchError when it is another life's.
    """
    if connection.execute(*raising(life, attempt)).rowcount != 1:
        refuse(connection, database, life, attempt, may_be_equal=may_be_equal)


def raising(life: TopologyLife, attempt: AttemptId) -> tuple[Update, dict[str, Any]]:
    """Return the statement that raises the fence, and its parameters. It changes one row."""
    return _RAISE, {"id": life.topology, "life": life.uuid, "mine": attempt}


def refuse(
    connection: Connection, database: str, life: TopologyLife, attempt: AttemptId, *, may_be_equal: bool
) -> None:
    """Raise the error for a fence that was not raised, unless it `may_be_equal` and is."""
    found = rules.own_fence(read(connection, life.topology), database, life)
    if rules.must_rise(found, life.topology, attempt, may_be_equal=may_be_equal):
        raise CorruptStateError(
            f"database {database}: the fence of topology {life.topology!r} is at attempt "
            f"{rules.shown_attempt(found.attempt)} and was not raised to {rules.shown_attempt(attempt)}; is "
            f"there a trigger or a rule on txstream_fence?"
        )


def require(connection: Connection, sessions: Sessions, life: TopologyLife, attempt: AttemptId) -> None:
    """Require the fence to be at `attempt` and keep it there until the transaction ends. Tasks of one attempt
    hold it together, and nobody can raise it meanwhile.

    Raises StaleAttemptError when it is above, CorruptStateError when it is below or there is none, and
    ProgressMismatchError when it is another life's.
    """
    if sessions.dialect.hold_fence(connection, life.topology, life.uuid, attempt):
        return
    found = rules.own_fence(read(connection, life.topology), sessions.display_url, life)
    rules.must_be_equal(found, sessions.display_url, life.topology, attempt)
    # It is equal now, but it was not when this transaction tried to hold it.
    raise rules.superseded(life.topology, attempt, found)


def keep(
    connection: Connection, database: str, life: TopologyLife, attempt: AttemptId, identity: Mapping[str, Any]
) -> None:
    """Keep an identity beside the fence, which must be at `attempt`. One statement checks and writes, so that
    no other leader comes in between. Raises what `require` raises.
    """
    mine = fence.c.topology == life.topology, fence.c.uuid == life.uuid, fence.c.attempt == attempt
    if connection.execute(update(fence).where(*mine).values(identity=to_json(identity))).rowcount == 0:
        found = rules.own_fence(read(connection, life.topology), database, life)
        rules.must_be_equal(found, database, life.topology, attempt)


def keep_below(connection: Connection, topology: str, attempt: AttemptId) -> None:
    """Require that the fence is not above this attempt; let no newer one in until the transaction ends.

    A missing fence is accepted. Raises StaleAttemptError when the fence is above.
    """
    mine = update(fence).where(fence.c.topology == topology, fence.c.attempt <= attempt)
    if connection.execute(mine.values(attempt=attempt)).rowcount == 0:
        found = read(connection, topology)
        if found is not None:
            rules.must_rise(found, topology, attempt, may_be_equal=True)


def read(connection: Connection, topology: str) -> FenceRow | None:
    """Return the fence of a topology; None when there is none."""
    row = connection.execute(select(fence).where(fence.c.topology == topology)).one_or_none()
    return None if row is None else _record(row)


def read_all(connection: Connection) -> list[FenceRow]:
    """Return the fences of all topologies, sorted by id."""
    return [_record(row) for row in connection.execute(select(fence).order_by(fence.c.topology))]


def check_join(
    connection: Connection, database: str, life: TopologyLife, *, first_run: bool
) -> FenceRow | None:
    """Return the fence, None if this run is to create it. Raises for one of another life, or a lost one."""
    found = read(connection, life.topology)
    if found is not None and found.uuid != life.uuid:
        raise rules.other_life(found, life.uuid, database)
    if found is None and not first_run:
        raise rules.unknown_here(life, database)
    return found


def join(
    connection: Connection,
    database: str,
    life: TopologyLife,
    *,
    first_run: bool,
    identity: Mapping[str, Any] | None,
) -> None:
    """Create the fence on a topology's first run; check it on later ones. Keep the identity beside it, unless
    a leader has kept one."""
    topology, uuid = life.topology, life.uuid
    found = check_join(connection, database, life, first_run=first_run)
    kept = None if identity is None else to_json(identity)
    if found is not None:
        if identity is not None and found.identity != identity and rules.joining_keeps(found):
            connection.execute(update(fence).where(fence.c.topology == topology).values(identity=kept))
        return
    connection.execute(fence.insert().values(topology=topology, uuid=uuid, attempt=0, identity=kept))


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
                f"{row.identity!r:.200}; set it to NULL, and the next `txstream run` writes it again"
            )
    return FenceRow(row.topology, row.uuid, AttemptId(row.attempt), identity)
