"""What an executor must know of a state table to read and write it: plain values that can be pickled.

Invariant: nothing here imports a database library before it is asked for a table's `spec`. Every executor of
a topology unpickles its bindings, even one that never touches a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txstream.api.reducers import Reducer
from txstream.api.state import SqlState
from txstream.core.semantics import Semantics
from txstream.engine.states.worker_databases import OpenStores, StorePlace

if TYPE_CHECKING:
    from txstream.state import StateBackend, TableSpec


@dataclass(frozen=True)
class StateBinding:
    """One state table of a run, as an executor uses it.

    `semantics` is the topology's and decides about the fence; `table_semantics` is the table's. `reducers`
    say, by value column, how a write is merged. `grouped_by` are the key columns that decide which task of
    the component owns a key. If it is empty, that is task 0; if it is None, there is only one task.
    `is_read`: the component is a `TableReader`, and another one fills the table.
    """

    place: StorePlace
    topology: str
    uuid: str
    state: SqlState
    table_semantics: Semantics
    semantics: Semantics
    reducers: Mapping[str, Reducer]
    grouped_by: tuple[str, ...] | None = None
    is_read: bool = False

    @property
    def spec(self) -> TableSpec:
        """The table as `StateBackend` knows it."""
        from txstream.state import TableSpec

        return TableSpec(self.state, self.table_semantics, self.reducers)

    def opened(self, stores: OpenStores) -> tuple[StateBackend, TableSpec]:
        """Return the table's store, of those that a process has open, and the table."""
        return stores.get(self.place, self.topology), self.spec


Bindings = Mapping[str, Mapping[str, StateBinding]]
"""By component, then by the state's name in that component."""
