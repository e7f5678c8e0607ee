"""Which topology owns the tables that a swap moves, and whose txids their rows carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import (
    Connection,
    Table,
    and_,
    delete,
    false,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from txstream.api.state import BATCH, GONE, TXID_COLUMN
from txstream.core.batch_metas import to_json
from txstream.core.transaction import Txid
from txstream.plugins.change import kept
from txstream.plugins.change.kept import NEW, OLD, Kept
from txstream.plugins.change.renaming import Pair
from txstream.plugins.change.swap_plan import Swap
from txstream.plugins.change.told import leaves
from txstream.state import TopologyLife
from txstream.state.declarations import Owner, declared_spec
from txstream.state.sql import tables as state_tables
from txstream.state.sql.dialect import StateDialect
from txstream.state.sql.framework_tables import batch, dead_letter, fence as fence_table, owned_table


def renumber(connection: Connection, table: Table, txid: Txid) -> int:
    """Let a fork's rows be rows that this txid has created. Returns how many there are."""
    made = {one: None for one in table.columns if {"prev", "prev_txid", "kept"} & one.info.keys()}
    return connection.execute(update(table).values({table.c[TXID_COLUMN]: txid, **made})).rowcount


def tell_changes(
    connection: Connection,
    dialect: StateDialect,
    pairs: Sequence[Pair],
    owners: Mapping[str, Owner],
    txid: Txid,
) -> None:
    """Let the topics that follow a table (`changes_to`) hear which rows a swap will have changed or removed.
    The names have not changed places yet."""
    outboxes = {one.declaration["copies"]: one for one in owners.values() if leaves(one)}
    for pair in pairs:
        if pair.name not in outboxes or pair.kept is None or pair.incoming is None:
            continue
        box = state_tables.declared_table(outboxes[pair.name], dialect)
        declared = owners[pair.name].declaration
        state = declared_spec(owners[pair.name]).state
        now, then = (
            state_tables.rows_there(
                state_tables.declared_table(Owner(one, "", "", declared), dialect)
            ).subquery(side)
            for one, side in ((pair.incoming, "now_rows"), (pair.name, "then_rows"))
        )
        same_key = and_(*(now.c[name] == then.c[name] for name in state.key_names))
        others = [now.c[name].is_distinct_from(then.c[name]) for name in state.shown_names]
        first, names = state.key_names[0], (*state.key_names, *state.shown_names)
        for mine, other, differs, gone in (
            (now, then, or_(then.c[first].is_(None), *others), false()),
            (then, now, now.c[first].is_(None), true()),
        ):
            rows = select(literal(txid), literal(txid), *(mine.c[name] for name in names), gone)
            rows = rows.select_from(mine.outerjoin(other, same_key)).where(differs)
            connection.execute(insert(box).from_select([TXID_COLUMN, BATCH, *names, GONE], rows))


def own(
    connection: Connection,
    life: TopologyLife,
    planned: Swap,
    pairs: Sequence[Pair],
    owners: Mapping[str, Owner],
    before: Kept | None,
) -> None:
    """Write which topology owns what, and what is kept."""
    declared = {pair.name: owners[pair.name].declaration for pair in pairs if pair.kept is not None}
    for pair in pairs:
        gone = [one for one in (pair.name, pair.incoming) if one in owners]
        connection.execute(delete(owned_table).where(owned_table.c.table_name.in_(gone)))
        if pair.incoming is None:
            continue
        declaration = (
            before.tables[pair.name][1]
            if planned.back and before is not None
            else owners[pair.incoming].declaration
        )
        connection.execute(
            owned_table.insert().values(
                table_name=pair.name,
                topology=life.topology,
                uuid=life.uuid,
                declaration=to_json(declaration),
                created_at=datetime.now(UTC),
            )
        )
    tables = {pair.name: (pair.kept, declared[pair.name]) for pair in pairs if pair.kept is not None}
    which = NEW if planned.back else OLD
    kept.write(
        connection,
        Kept(
            life.topology,
            planned.fork,
            life.uuid,
            which,
            planned.last,
            planned.old_metas,
            tables,
            planned.old,
        ),
    )


def forget_fork(connection: Connection, fork: str, planned: Swap) -> None:
    for table in () if planned.back else (fence_table, batch, dead_letter):
        mine = table.c.topology == fork, table.c.uuid == planned.fork_uuid
        connection.execute(delete(table).where(*mine))
