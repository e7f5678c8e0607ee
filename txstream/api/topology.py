"""A built topology: its components, each after those that it reads from.

Invariant: a `Topology` has been checked. Every subscription names a stream that exists, no component reads
its own output, directly or through others, and everything below a committer runs in the commit phase.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal

import pyarrow as pa

from txstream.api.bolts import Bolt, StateCommitter, TableReader
from txstream.api.groupings import Grouping
from txstream.api.spouts import SourceSpout
from txstream.api.state import SqlState
from txstream.api.tracked import Spout
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.dead_letters import DeadLetters
from txstream.core.entry_points import VIEWS, load
from txstream.core.errors import TopologyError
from txstream.core.names import validate_topology_id
from txstream.core.semantics import Semantics
from txstream.core.wording import counted, printable

_REPR_COMPONENTS = 6

CommitChoice = Literal["auto", "driver", "executors"]
"""Who writes a batch's deltas: whichever is faster, always the driver, or always executors."""


class Phase(StrEnum):
    """When a component's `finish_batch` runs: while other batches are processed, or in strict txid order."""

    PROCESS = "process"
    COMMIT = "commit"


@dataclass(frozen=True)
class Component:
    """One spout or bolt of a built topology: `parallelism` counts its slots, `tasks` its instances.

    `inputs` are its subscriptions. `below_committer` says that its tuples come in the commit phase.
    """

    id: str
    instance: SourceSpout[Any] | Spout | Bolt
    parallelism: int
    tasks: int
    streams: Mapping[str, pa.Schema]
    inputs: tuple[Grouping, ...] = ()
    is_committer: bool = False
    below_committer: bool = False
    direct_streams: frozenset[str] = frozenset()

    @property
    def phase(self) -> Phase:
        return Phase.COMMIT if self.is_committer or self.below_committer else Phase.PROCESS

    @property
    def runs_in_commit(self) -> bool:
        """Whether its tuples are processed in the commit phase. A state's are folded where they come from."""
        return self.below_committer or (self.is_committer and not isinstance(self.instance, StateCommitter))


@dataclass(frozen=True)
class StateUse:
    """A state that a user-written committer reads and writes through a `MapState`, under its `name` there."""

    component: str
    name: str
    state: SqlState
    semantics: Semantics


BATCHES: Final = "batches"
"""The tier of topologies that run in batches."""


@dataclass(frozen=True)
class Topology:
    """A built topology: components from the spout down. Build it with `TransactionalTopologyBuilder`."""

    id: str
    components: tuple[Component, ...]
    max_spout_pending: int
    message_timeout_seconds: float
    max_attempts: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = None
    resident_tasks: int | None = None
    commit: CommitChoice = "auto"
    driver_commit_rows: int | None = None
    max_batch_latency_seconds: float | None = None
    max_records_per_second: float | None = None
    dead_letters: DeadLetters | None = None
    states: tuple[tuple[StateCommitter, Semantics], ...] = field(default=(), repr=False)
    map_states: tuple[StateUse, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        names = [printable(component.id) for component in self.components]
        if len(names) > _REPR_COMPONENTS:
            names[_REPR_COMPONENTS:] = [f"and {len(names) - _REPR_COMPONENTS} more"]
        return f"<Topology {self.id} ({self.kind}): {', '.join(names)}>"

    def _repr_html_(self) -> str:
        """Return the graph as HTML, for a notebook."""
        html: str = load(VIEWS, "topology", "view of topologies")(self)
        return html

    @property
    def spout(self) -> SourceSpout[Any]:
        instance = self.components[0].instance
        if not isinstance(instance, SourceSpout):
            raise TopologyError(f"topology {self.id!r} does not begin with a spout")
        return instance

    @property
    def tier(self) -> str:
        """What runs it: BATCHES, or the name of an entry point in the group `txstream.tiers`."""
        return BATCHES

    @property
    def fed(self) -> tuple[Component, ...]:
        """The spouts that are asked for tuples in the plan's own tasks; a batch's spout is none of them."""
        return ()

    @property
    def tracks(self) -> bool:
        """Whether each fed tuple's descendants are tracked, and its spout is told of them."""
        return False

    def source_identity(self) -> tuple[object, Mapping[str, Any]]:
        """Return the source, whose class must stay the same under one id, and what else of it must."""
        source = self.spout.source
        return source, source.identity()

    @property
    def semantics(self) -> Semantics:
        return self.spout.semantics

    @property
    def kind(self) -> str:
        """Its semantics, or "tracked" for tracked tuples."""
        return str(self.semantics)

    @functools.cached_property
    def keeps(self) -> Mapping[str, int]:
        """For how many seconds tables keep rows, by table; those that keep them for ever are not there."""
        states = (bolt.state for bolt, _ in self.states)
        return {state.table: state.keep_seconds for state in states if state.keep_seconds is not None}

    @functools.cached_property
    def table_readers(self) -> Mapping[str, TableReader]:
        """The bolts that read a table of the topology, by component."""
        return {one.id: one.instance for one in self.bolts if isinstance(one.instance, TableReader)}

    @property
    def at_once(self) -> str:
        """How much may be under way at once, in words."""
        return f"{counted(self.max_spout_pending, 'batch', 'batches')} at once"

    @property
    def unit(self) -> str:
        """What the message timeout applies to, in words."""
        return "an attempt"

    @property
    def bolts(self) -> tuple[Component, ...]:
        return self.components[1:]

    def component(self, component_id: str) -> Component:
        """Return the component with this id. Raises TopologyError that lists the existing ones."""
        for component in self.components:
            if component.id == component_id:
                return component
        raise TopologyError(
            f"topology {self.id!r} has no component {component_id!r}; it has "
            f"{', '.join(component.id for component in self.components)}"
        )

    def readers(self, component_id: str, stream: str = DEFAULT_STREAM) -> tuple[Component, ...]:
        """Return the bolts that subscribe to a stream."""
        return tuple(
            bolt
            for bolt in self.bolts
            if any(given.component == component_id and given.stream == stream for given in bolt.inputs)
        )

    def with_id(self, topology_id: str) -> Topology:
        """Return the same topology under another id."""
        other = copy.copy(self)
        object.__setattr__(other, "id", validate_topology_id(topology_id))
        return other

    def with_states(self, changed: Callable[[SqlState], SqlState]) -> Topology:
        """Return the same topology with each of its states replaced: in another table, for example."""
        bolts = {id(bolt): copy.copy(bolt) for bolt, _ in self.states}
        for bolt in bolts.values():
            bolt.state = changed(bolt.state)
        instances: dict[int, Any] = dict(bolts)
        for reader in self.table_readers.values():
            instances[id(reader)] = copy.copy(reader)
            instances[id(reader)].table = bolts[id(reader.table)]
        return replace(
            self,
            components=tuple(
                replace(one, instance=instances.get(id(one.instance), one.instance))
                for one in self.components
            ),
            states=tuple((bolts[id(bolt)], semantics) for bolt, semantics in self.states),
            map_states=tuple(replace(use, state=changed(use.state)) for use in self.map_states),
        )

    def describe(self) -> str:
        """Return a text: components from the spout down, each with its class, slots, tasks and
        phase, its inputs with their groupings, its output streams with their types, and its table."""
        text: str = load(VIEWS, "words", "view of topologies")(self)
        return text

    def to_document(self) -> dict[str, Any]:
        """Return what `describe` says, as JSON values, for `--json` and for scripts."""
        document: dict[str, Any] = load(VIEWS, "document", "view of topologies")(self)
        return document
