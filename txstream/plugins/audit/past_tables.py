"""Tables as they were before a batch, for dry runs of it: `SqlState(..., changes_to=Versions())`.

Invariants. A version is what a row was before a batch, written in that batch's commit, and goes with the
batch's row of the ledger. So a row as of the txid before is its first version since then; if it has none, no
batch has changed it since. That holds as far back as every batch has kept versions, which its row of the
ledger says: not to before they were asked for, nor to before a rewind or a swap. Further back, the table is
read as it is today.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from sqlalchemy import func, not_, or_, select

from txstream.api.reducers import Put
from txstream.api.state import BATCH, GONE, REMOVED, SqlState, SqlTable
from txstream.core.batch_metas import to_json
from txstream.core.semantics import Semantics
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.engine.commit.state_targets import StateTarget
from txstream.engine.states.bindings import Bindings, StateBinding
from txstream.engine.states.worker_databases import OpenStores
from txstream.state import StateBackend, StateDatabase, TableSpec
from txstream.state.records import COMMITTED
from txstream.state.sql.database import PreparedStatements
from txstream.state.sql.framework_tables import batch
from txstream.state.sql.sql_reading import SqlStateReading

if TYPE_CHECKING:
    from txstream.state.reading import StateReading


def known_since(database: StateBackend | None, topology: str, state: SqlState) -> Txid | None:
    """Return the first txid of which a table can be read as it was before; None if it keeps no versions."""
    # What is read of windows is those that have closed, and they change no more.
    if not state.keeps_versions or state.marks is not None or not isinstance(database, StateDatabase):
        return None
    assert state.changes is not None
    kept = batch.c.details.contains(to_json(state.changes.table), autoescape=True)
    without = select(func.max(batch.c.txid)).where(
        batch.c.topology == topology,
        batch.c.status == COMMITTED,
        or_(batch.c.details.is_(None), not_(kept)),
    )
    with database.sessions.reading("since when versions are kept") as connection:
        return Txid((connection.execute(without).scalar_one() or 0) + 1)


def as_they_were(
    bindings: Bindings, targets: Sequence[StateTarget]
) -> tuple[Bindings, Mapping[str, Txid | None]]:
    """Return the bindings with which tables are read as they were before a batch, as far as they are known,
    and, by table, from which txid on that is."""
    found: dict[str, dict[str, StateBinding]] = {}
    since: dict[str, Txid | None] = {}
    for component, by_name in bindings.items():
        for name, one in by_name.items():
            if one.is_read:
                home = next(at for at in targets if any(spec.state is one.state for spec in at.tables))
                first = since[one.state.table] = known_since(home.database, one.topology, one.state)
                one = one if first is None else PastBinding(**vars(one), since=first)
            found.setdefault(component, {})[name] = one
    return found, since


@dataclass(frozen=True)
class PastBinding(StateBinding):
    """A table that a dry run reads: as it was before its batch, from txid `since` on."""

    since: Txid = FIRST_TXID

    def opened(self, stores: OpenStores) -> tuple[StateBackend, TableSpec]:
        store, spec = super().opened(stores)
        assert isinstance(store, StateDatabase)
        return cast(StateBackend, _Past(store, self.topology, self.since)), spec


class _Past:
    """What of a store a bolt needs that looks rows up."""

    def __init__(self, store: StateDatabase, topology: str, since: Txid) -> None:
        self._store = store
        self._topology = topology
        self._since = since

    def read_state(self, topology: str) -> AbstractContextManager[StateReading]:
        return self._store.read_state(topology)

    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        """Return the rows of these keys as they were before batch `before`, which is committed."""
        if before < self._since:
            return self._store.read(spec, keys, before=before)
        sessions, statements = self._store.sessions, PreparedStatements(self._store.sessions)
        with sessions.reading("rows as they were", snapshot=True) as connection:
            as_of = SqlStateReading(connection, sessions.dialect, "", self._topology).as_of
            # A batch that is being committed has left no versions yet: its rows tell what they were.
            now = statements.of(spec).read(connection, keys, as_of + 1)
            found = statements.of(_by_key(spec.state)).read(connection, keys, 0)
        return _as_before(spec.state, now, found.to_pylist(), before)


def _by_key(state: SqlState) -> TableSpec:
    """Return the table of versions as one that has several rows of a key."""
    assert state.changes is not None
    values = pa.schema([pa.field(BATCH, pa.int64()), *state.changes.value_schema])
    table = SqlTable(state.changes.table, values, key=state.key_schema)
    put = {name: Put() for name in table.value_names}
    return TableSpec(table, Semantics.NON_TRANSACTIONAL, put)


def _as_before(state: SqlState, now: pa.Table, versions: Sequence[dict[str, Any]], before: Txid) -> pa.Table:
    rows = {tuple(row[name] for name in state.key_names): row for row in now.to_pylist()}
    # The first version that there is from this batch on comes last.
    for one in sorted(versions, key=lambda one: one[BATCH], reverse=True):
        if one[BATCH] < before:
            break
        key = tuple(one[name] for name in state.key_names)
        if one[GONE]:
            rows.pop(key, None)
        else:
            rows[key] = {**one, REMOVED: False}
    columns = [pa.array([row[field.name] for row in rows.values()], field.type) for field in now.schema]
    return pa.Table.from_arrays(columns, schema=now.schema)
