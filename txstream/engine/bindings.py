"""What an executor must know of a state table to read and write it: plain values that pickle.

Invariant: nothing here imports a database library before it is asked for a table's `spec`; every executor
of a topology unpickles its bindings, also one that never touches a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txstream.api.reducers import Put, Reducer
from txstream.api.state import SqlState
from txstream.api.topology import StateUse, Topology
from txstream.engine.stores import StorePlace
from txstream.semantics import Semantics

if TYPE_CHECKING:
    from txstream.state import TableSpec


@dataclass(frozen=True)
class StateBinding:
    """One state table of a run, as an executor uses it.

    `semantics` is the topology's, which decides about the fence, `table_semantics` the table's. `reducers`
    by value column say how a write is merged.
    """

    place: StorePlace
    topology: str
    uuid: str
    state: SqlState
    table_semantics: Semantics
    semantics: Semantics
    reducers: Mapping[str, Reducer]

    @property
    def spec(self) -> TableSpec:
        """The table as `StateBackend` knows it."""
        from txstream.state import TableSpec

        return TableSpec(self.state, self.table_semantics, self.reducers)


Bindings = Mapping[str, Mapping[str, StateBinding]]
"""By component, and by the name that the state has there."""


def map_bindings(
    topology: Topology, uuid: str, default_url: str, *, connect_timeout_seconds: float
) -> dict[str, dict[str, StateBinding]]:
    """The bindings of a topology's map states; a state without a url lives in `default_url`. On the driver:
    relative paths are made absolute here."""
    from txstream.state.urls import absolute

    bindings: dict[str, dict[str, StateBinding]] = {}
    for use in topology.map_states:
        place = StorePlace(
            absolute(use.state.url or default_url), connect_timeout_seconds, topology.message_timeout_seconds
        )
        bindings.setdefault(use.component, {})[use.name] = StateBinding(
            place=place,
            topology=topology.id,
            uuid=uuid,
            state=use.state,
            table_semantics=use.semantics,
            semantics=topology.semantics,
            reducers=put_reducers(use.state),
        )
    return bindings


def map_spec(use: StateUse) -> TableSpec:
    """A map state's table as `StateBackend` knows it, on the driver."""
    from txstream.state import TableSpec

    return TableSpec(use.state, use.semantics, put_reducers(use.state))


def put_reducers(state: SqlState) -> dict[str, Reducer]:
    """How a `MapState` writes: what it has computed takes the place of what was there."""
    return {name: Put() for name in state.value_names}
