"""The states of a bolt that `run_bolt` runs: dicts in place of databases.

They have no semantics, no replays and no fence. Test those with `TopologyTest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.bolts import BatchBolt, Bolt
from txstream.api.errors import StateValueError, TopologyError, UsageError
from txstream.api.reducers import Put
from txstream.api.state import SqlState
from txstream.engine.states.bindings import StateBinding
from txstream.engine.states.state_cells import Cells, UnfitCellError
from txstream.engine.states.worker_databases import OpenStores, StorePlace
from txstream.semantics import Semantics
from txstream.transaction import TransactionAttempt, Txid

if TYPE_CHECKING:
    from txstream.state import StateBackend, TableSpec

_TIMEOUT_SECONDS = 1.0


class BoltStates(OpenStores):
    """The states that a bolt declares, each a store of its own. The state's name serves as the store's URL.

    Raises TopologyError when `states` is not a mapping of names to SqlState, UsageError for rows of a state
    that is not declared, StateValueError for rows that a table cannot hold.
    """

    def __init__(self, bolt: Bolt, component: str, rows: Mapping[str, Mapping[Any, Any]]) -> None:
        super().__init__()
        declared = bolt.states if isinstance(bolt, BatchBolt) else {}
        if not isinstance(declared, Mapping) or not all(isinstance(s, SqlState) for s in declared.values()):
            raise TopologyError(
                f"component {component!r}: its attribute states is {declared!r:.200}; it must be a mapping "
                f"of names to SqlState"
            )
        unknown = sorted(set(rows) - set(declared))
        if unknown:
            raise UsageError(
                f"component {component!r} declares no state {unknown[0]!r}; it declares "
                f"{', '.join(map(repr, declared)) or 'none'}"
            )
        self._stores = {name: _DictStore(name, state, rows.get(name, {})) for name, state in declared.items()}
        self.bindings = {name: _binding(name, state) for name, state in declared.items()}

    @property
    def rows(self) -> dict[str, dict[Any, Any]]:
        """What each state holds: value by key."""
        return {name: dict(store.rows) for name, store in self._stores.items()}

    @property
    def written(self) -> dict[str, dict[Any, Any]]:
        """What was written to each state: value by key."""
        return {name: dict(store.written) for name, store in self._stores.items()}

    def get(self, place: StorePlace, topology: str) -> StateBackend:
        return self._stores[place.url]  # type: ignore[return-value]  # a task reads and writes, no more


class _DictStore:
    """The parts of a `StateBackend`, and of the topology bound to it, that a task needs."""

    def __init__(self, name: str, state: SqlState, rows: Mapping[Any, Any]) -> None:
        self._keys = Cells(state.key_schema, are_keys=True)
        self._values = Cells(state.value_schema, are_keys=False)
        self._schema = pa.schema([*state.key_schema, *state.value_schema]).remove_metadata()
        self.written: dict[Any, Any] = {}
        try:
            self.rows = {self._keys.fit(key): self._values.fit(value) for key, value in rows.items()}
        except UnfitCellError as error:
            raise StateValueError(f"the rows of state {name!r} (table {state.table!r}): {error}") from error

    def of(self, topology: str, uuid: str, semantics: Semantics) -> _DictStore:
        return self

    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        found = [key for key in self._keys.read(keys) if key in self.rows]
        columns = [*self._keys.columns(found), *self._values.columns([self.rows[key] for key in found])]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def write(self, attempt: TransactionAttempt, writes: Sequence[tuple[TableSpec, pa.Table]]) -> int:
        for _, deltas in writes:
            self.written.update(zip(self._keys.read(deltas), self._values.read(deltas), strict=True))
        self.rows.update(self.written)
        return sum(deltas.num_rows for _, deltas in writes)


def _binding(name: str, state: SqlState) -> StateBinding:
    return StateBinding(
        place=StorePlace(name, _TIMEOUT_SECONDS, _TIMEOUT_SECONDS),
        topology="test",
        uuid="test",
        state=state,
        table_semantics=Semantics.OPAQUE,
        semantics=Semantics.OPAQUE,
        reducers={column: Put() for column in state.value_names},
    )
