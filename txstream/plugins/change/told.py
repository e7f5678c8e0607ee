"""What a rewind tells those who follow a table's changes: each row that is another one afterwards.

A table with `changes_to` has one of copies, which wait to be sent. The rewind drops those of the batches that
it undoes, and leaves there, under its own txid, the rows that it has put back, and of those that are gone
their keys. `batch`, which is part of the key there and is not sent, tells the rows apart meanwhile: below 0
it is the txid that a row had before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import (
    Connection,
    Table,
    and_,
    delete,
    exists,
    false,
    func,
    insert,
    literal,
    not_,
    select,
    true,
)

from txstream.api.state import BATCH, GONE, REMOVED, TXID_COLUMN, SqlState
from txstream.core.transaction import Txid
from txstream.state.declarations import Owner, declared_spec


def leaves(owner: Owner) -> bool:
    """Whether a table has changes that somebody follows. Nobody follows versions: of what was before a rewind
    or a swap they tell no more, since its ledger row does not name them."""
    return "copies" in owner.declaration and declared_spec(owner).state.key_names[0] == BATCH


@contextlib.contextmanager
def telling(
    connection: Connection, state: SqlState, live: Table, changes: Table | None, since: Txid, txid: Txid
) -> Iterator[None]:
    """Leave in `changes`, if there is such a table, what is done to the rows meanwhile: to those that batches
    from `since` on have written, or, if that is 0, to any."""
    if changes is None:
        yield
        return
    names = [TXID_COLUMN, BATCH, *state.key_names, *state.shown_names, GONE]
    columns = [live.c[name] for name in (*state.key_names, *state.shown_names)]
    before = select(literal(txid), -live.c[TXID_COLUMN], *columns, true())
    before = before.where(live.c[TXID_COLUMN] >= since)
    connection.execute(insert(changes).from_select(names, before))
    yield
    former = and_(
        changes.c[TXID_COLUMN] == txid,
        changes.c[BATCH] < 0,
        *(changes.c[name] == live.c[name] for name in state.key_names),
    )
    gone = func.coalesce(live.c[REMOVED], true()) if REMOVED in live.c else false()
    same = changes.c[BATCH] == -live.c[TXID_COLUMN]
    changed = exists().where(former) if since else not_(exists().where(former, same))
    after = select(literal(txid), literal(txid), *columns, gone).where(changed)
    connection.execute(insert(changes).from_select(names, after))
    # What is left of the former rows are those whose keys are gone.
    connection.execute(delete(changes).where(exists(select(live.c[TXID_COLUMN]).where(former))))
