"""What an executor must know of a state table to read and write it: plain values that pickle.

Invariant: nothing here imports a database library before it is asked for a table's `spec`; every executor
of a topology unpickles its bindings, also one that never touches a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txstream.api.reducers import Put, Reducer
from txstream.api.state import SqlState
from txstream.api.topology import StateUse, Topology
from txstream.semantics import Semantics

if TYPE_CHECKING:
    from txstream.state import TableSpec

DEFAULT_CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class StateBinding:
    """One state table of a run, as an executor uses it.

    `url` may hold a password: it is never shown. `semantics` is the topology's, which decides about the
    fence, `table_semantics` the table's. `reducers` by value column say how a write is merged.
    """

    url: str = field(repr=False)
    topology: str
    uuid: str
    state: SqlState
    table_semantics: Semantics
    semantics: Semantics
    reducers: Mapping[str, Reducer]
    message_timeout_seconds: float
    connect_timeout_seconds: float = DEFAULT_CONNECT_TIMEOUT_SECONDS

    @property
    def spec(self) -> TableSpec:
        """The table as `StateBackend` knows it."""
        from txstream.state import TableSpec

        return TableSpec(self.state, self.table_semantics, self.reducers)


Bindings = Mapping[str, Mapping[str, StateBinding]]
"""By component, and by the name that the state has there."""


def put_reducers(state: SqlState) -> dict[str, Reducer]:
    """How a `MapState` writes: what it has computed takes the place of what was there."""
    return {name: Put() for name in state.value_names}


def map_bindings(
    topology: Topology,
    uuid: str,
    default_url: str,
    *,
    connect_timeout_seconds: float = DEFAULT_CONNECT_TIMEOUT_SECONDS,
) -> dict[str, dict[str, StateBinding]]:
    """The bindings of a topology's map states; a state without a url lives in `default_url`. On the driver:
    relative paths are made absolute here."""
    from txstream.state.urls import absolute

    bindings: dict[str, dict[str, StateBinding]] = {}
    for use in topology.map_states:
        bindings.setdefault(use.component, {})[use.name] = StateBinding(
            url=absolute(use.state.url or default_url),
            topology=topology.id,
            uuid=uuid,
            state=use.state,
            table_semantics=use.semantics,
            semantics=topology.semantics,
            reducers=put_reducers(use.state),
            message_timeout_seconds=topology.message_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
        )
    return bindings


def map_spec(use: StateUse) -> TableSpec:
    """A map state's table as `StateBackend` knows it."""
    from txstream.state import TableSpec

    return TableSpec(use.state, use.semantics, put_reducers(use.state))
