"""What an executor must know of a state table to read and write it: plain values that can be pickled.

Invariant: nothing here imports a database library before it is asked for a table's `spec`. Every executor of
a topology unpickles its bindings, even one that never touches a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txstream.api.reducers import Reducer
from txstream.api.state import SqlState
from txstream.api.topology import Component, StateUse, Topology
from txstream.engine.commit.worker_databases import StorePlace
from txstream.semantics import Semantics

if TYPE_CHECKING:
    from txstream.engine.commit.state_targets import StateTarget
    from txstream.state import TableSpec


@dataclass(frozen=True)
class StateBinding:
    """One state table of a run, as an executor uses it.

    `semantics` is the topology's and decides about the fence; `table_semantics` is the table's. `reducers`
    say, by value column, how a write is merged. `grouped_by` are the key columns that decide which task of
    the component owns a key. If it is empty, that is task 0; if it is None, there is only one task.
    """

    place: StorePlace
    topology: str
    uuid: str
    state: SqlState
    table_semantics: Semantics
    semantics: Semantics
    reducers: Mapping[str, Reducer]
    grouped_by: tuple[str, ...] | None = None

    @property
    def spec(self) -> TableSpec:
        """The table as `StateBackend` knows it."""
        from txstream.state import TableSpec

        return TableSpec(self.state, self.table_semantics, self.reducers)


Bindings = Mapping[str, Mapping[str, StateBinding]]
"""By component, then by the state's name in that component."""


def map_bindings(topology: Topology, uuid: str, targets: Sequence[StateTarget]) -> Bindings:
    """Return the bindings of a topology's map states, on the driver. `targets` are its databases. Raises
    ValueError when a table is in none of them, or in one that executors cannot open."""
    bindings: dict[str, dict[str, StateBinding]] = {}
    for use in topology.map_states:
        target, spec = _home(use, targets)
        if target.place is None:
            raise ValueError(
                f"the database of table {use.state.table!r} has no place that executors can open"
            )
        bindings.setdefault(use.component, {})[use.name] = StateBinding(
            place=target.place,
            topology=topology.id,
            uuid=uuid,
            state=spec.state,
            table_semantics=spec.semantics,
            semantics=topology.semantics,
            reducers=spec.reducers,
            grouped_by=_grouped_by(topology.component(use.component)),
        )
    return bindings


def _grouped_by(component: Component) -> tuple[str, ...] | None:
    """`build` requires that inputs of several tasks are grouped alike: by fields of the key, or globally."""
    return None if component.tasks == 1 else component.inputs[0].fields


def _home(use: StateUse, targets: Sequence[StateTarget]) -> tuple[StateTarget, TableSpec]:
    for target in targets:
        for spec, component in zip(target.tables, target.components, strict=True):
            if component == use.component and spec.state is use.state:
                return target, spec
    raise ValueError(f"none of the databases has table {use.state.table!r} of component {use.component!r}")
