"""`TransactionalTopologyBuilder`: declare a spout and bolts, and have the whole checked before it runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, Committer, OutputFieldsDeclarer, StateCommitter
from txstream.api.errors import TopologyError
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.names import validate_topology_id
from txstream.api.schema import format_schema, format_type
from txstream.api.spouts import SourceSpout
from txstream.api.state import SqlState
from txstream.api.tuples import DEFAULT_STREAM
from txstream.semantics import Semantics, legal_state_semantics

DEFAULT_MAX_SPOUT_PENDING = 2
DEFAULT_MESSAGE_TIMEOUT_SECONDS = 30.0
DEFAULT_MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Component:
    """One spout or bolt of a built topology. `parallelism` is its number of slots, `tasks` of instances."""

    id: str
    instance: SourceSpout[Any] | Bolt
    parallelism: int
    tasks: int
    streams: Mapping[str, pa.Schema]
    grouping: Grouping | None = None
    is_committer: bool = False


@dataclass(frozen=True)
class Topology:
    """A built topology: components from the spout down. Build it with `TransactionalTopologyBuilder`."""

    id: str
    components: tuple[Component, ...]
    max_spout_pending: int
    message_timeout_seconds: float
    max_attempts: int
    states: tuple[tuple[StateCommitter, Semantics], ...] = field(default=(), repr=False)

    @property
    def spout(self) -> SourceSpout[Any]:
        instance = self.components[0].instance
        if not isinstance(instance, SourceSpout):
            raise TopologyError(f"topology {self.id!r} does not begin with a spout")
        return instance

    @property
    def semantics(self) -> Semantics:
        return self.spout.semantics

    @property
    def bolts(self) -> tuple[Component, ...]:
        return self.components[1:]

    def with_id(self, topology_id: str) -> Topology:
        """The same topology under another id."""
        other = copy.copy(self)
        object.__setattr__(other, "id", validate_topology_id(topology_id))
        return other

    def describe(self) -> str:
        """Components, streams with types, groupings, slots, tasks and phase, one line each."""
        lines = [f"topology {self.id} ({self.semantics}, up to {self.max_spout_pending} batches at once)"]
        for component in self.components:
            phase = "commit" if component.is_committer else "process"
            streams = "; ".join(
                format_schema(schema) if name == DEFAULT_STREAM else f"{name}: {format_schema(schema)}"
                for name, schema in component.streams.items()
            )
            lines.append(
                f"  {component.id}: {type(component.instance).__name__}"
                f"{f' <- {component.grouping}' if component.grouping else ''}"
                f", {component.parallelism} slots, {component.tasks} tasks, {phase}"
                f"{f' -> {streams}' if streams else ''}"
            )
        return "\n".join(lines)


class BoltDeclarer:
    """Chooses the input of a bolt: call exactly one grouping."""

    def __init__(self, component: str) -> None:
        self._component = component
        self.grouping: Grouping | None = None
        self.tasks: int | None = None

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples are spread evenly over the bolt's tasks."""
        return self._set(Grouping(GroupingKind.SHUFFLE, component, stream))

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples go to a task in the same worker, without crossing the network."""
        return self._set(Grouping(GroupingKind.LOCAL_OR_SHUFFLE, component, stream))

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with the same values in these fields go to the same task."""
        if not fields:
            raise TopologyError(f"component {self._component!r}: a fields grouping needs at least one field")
        return self._set(Grouping(GroupingKind.FIELDS, component, stream, fields))

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """All tuples go to task 0."""
        return self._set(Grouping(GroupingKind.GLOBAL, component, stream))

    def set_num_tasks(self, tasks: int) -> BoltDeclarer:
        """How many instances of the bolt there are; at least its parallelism."""
        self.tasks = _check_number(f"the number of tasks of {self._component!r}", tasks)
        return self

    def _set(self, grouping: Grouping) -> BoltDeclarer:
        if self.grouping is not None:
            raise TopologyError(
                f"component {self._component!r} subscribes to {self.grouping} and to {grouping}; "
                f"a bolt has one input for now"
            )
        self.grouping = grouping
        return self


@dataclass
class _Declared:
    bolt: Bolt
    parallelism: int
    declarer: BoltDeclarer
    is_committer: bool


class TransactionalTopologyBuilder:
    """Declares a topology: its id, its spout, and bolts from there down.

    `max_spout_pending` batches are processed at once; an attempt that takes longer than
    `message_timeout_seconds` is replayed; a bug in a bolt stops the topology after `max_attempts` tries.
    """

    def __init__(
        self,
        topology_id: str,
        spout_id: str,
        spout: SourceSpout[Any],
        parallelism: int = 1,
        *,
        max_spout_pending: int = DEFAULT_MAX_SPOUT_PENDING,
        message_timeout_seconds: float = DEFAULT_MESSAGE_TIMEOUT_SECONDS,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> None:
        self._id = validate_topology_id(topology_id)
        if not isinstance(spout, SourceSpout):
            raise TopologyError(
                f"component {spout_id!r}: put a semantics on the source, for example "
                f"OpaqueSpout({type(spout).__name__}(...))"
            )
        _check_number("max_spout_pending", max_spout_pending)
        _check_number("max_attempts", max_attempts)
        if message_timeout_seconds <= 0:
            raise TopologyError(f"message_timeout_seconds is {message_timeout_seconds}; it must be positive")
        self._spout = (spout_id, spout, _check_number(f"the parallelism of {spout_id!r}", parallelism))
        self._bolts: dict[str, _Declared] = {}
        self._options = {
            "max_spout_pending": max_spout_pending,
            "message_timeout_seconds": message_timeout_seconds,
            "max_attempts": max_attempts,
        }

    def set_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; choose its input on what this returns. A `Committer` commits without further ado."""
        return self._add(component, bolt, parallelism, is_committer=isinstance(bolt, Committer))

    def set_committer_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt whose `finish_batch` runs in the commit phase, in strict txid order."""
        return self._add(component, bolt, parallelism, is_committer=True)

    def _add(self, component: str, bolt: Bolt, parallelism: int, *, is_committer: bool) -> BoltDeclarer:
        if component == self._spout[0] or component in self._bolts:
            raise TopologyError(f"two components are called {component!r}; every component needs its own id")
        if not isinstance(bolt, (BasicBolt, BatchBolt)):
            hint = " (pass an instance, not the class)" if isinstance(bolt, type) else ""
            raise TopologyError(f"component {component!r}: {bolt!r} is not a BasicBolt or BatchBolt{hint}")
        if is_committer and not isinstance(bolt, StateCommitter):
            raise TopologyError(
                f"component {component!r}: {type(bolt).__name__} cannot be a committer yet; "
                f"the committer that keeps exactly-once state is SqlStateBolt"
            )
        _check_number(f"the parallelism of {component!r}", parallelism)
        declarer = BoltDeclarer(component)
        self._bolts[component] = _Declared(copy.copy(bolt), parallelism, declarer, is_committer)
        return declarer

    def build(self) -> Topology:
        """The checked topology. Raises TopologyError or SchemaError, naming the component and the remedy."""
        spout_id, spout, parallelism = self._spout
        order = self._chain()
        components = [Component(spout_id, spout, parallelism, parallelism, {DEFAULT_STREAM: spout.output})]
        for name in order:
            components.append(self._build_bolt(name, components[-1]))
        states = self._check_states(spout.semantics, components)
        return Topology(
            id=self._id,
            components=tuple(components),
            max_spout_pending=int(self._options["max_spout_pending"]),
            message_timeout_seconds=float(self._options["message_timeout_seconds"]),
            max_attempts=int(self._options["max_attempts"]),
            states=states,
        )

    def _chain(self) -> list[str]:
        known = {self._spout[0], *self._bolts}
        readers: dict[str, str] = {}
        for name, declared in self._bolts.items():
            grouping = declared.declarer.grouping
            if grouping is None:
                raise TopologyError(
                    f"component {name!r} has no input; call a grouping on it, for example "
                    f".shuffle_grouping({self._spout[0]!r})"
                )
            if grouping.component not in known:
                raise TopologyError(
                    f"component {name!r} subscribes to {grouping.component!r}, which does not exist; "
                    f"there are {', '.join(sorted(known))}"
                )
            if grouping.component in readers:
                raise TopologyError(
                    f"components {readers[grouping.component]!r} and {name!r} both subscribe to "
                    f"{grouping.component!r}; a topology is a chain for now"
                )
            readers[grouping.component] = name
        order: list[str] = []
        at = self._spout[0]
        while at in readers:
            at = readers[at]
            order.append(at)
        left = sorted(set(self._bolts) - set(order))
        if left:
            raise TopologyError(
                f"a cycle: {', '.join(map(repr, left))} cannot be reached from {self._spout[0]!r}"
            )
        return order

    def _build_bolt(self, name: str, upstream: Component) -> Component:
        declared = self._bolts[name]
        grouping = declared.declarer.grouping
        if grouping is None:  # _chain has refused it already
            raise TopologyError(f"component {name!r} has no input")
        if grouping.stream not in upstream.streams:
            raise TopologyError(
                f"component {name!r} subscribes to stream {grouping.stream!r} of {upstream.id!r}, which "
                f"declares {', '.join(map(repr, upstream.streams)) or 'no output'}"
            )
        schema = upstream.streams[grouping.stream]
        for field_name in grouping.fields:
            if field_name not in schema.names:
                raise TopologyError(
                    f"component {name!r} groups by field {field_name!r}, but {upstream.id!r} emits only "
                    f"{format_schema(schema)}"
                )
            if pa.types.is_nested(schema.field(field_name).type):
                raise TopologyError(
                    f"component {name!r} groups by field {field_name!r}, which is "
                    f"{format_type(schema.field(field_name).type)}; group by fields with a single value"
                )
        tasks = declared.declarer.tasks
        if tasks is not None and tasks < declared.parallelism:
            raise TopologyError(
                f"component {name!r} has {tasks} tasks for {declared.parallelism} slots; "
                f"tasks must be at least the parallelism"
            )
        declarer = OutputFieldsDeclarer(name, [schema])
        declared.bolt.declare_output_fields(declarer)
        return Component(
            id=name,
            instance=declared.bolt,
            parallelism=declared.parallelism,
            tasks=tasks or declared.parallelism,
            streams=declarer.streams,
            grouping=grouping,
            is_committer=declared.is_committer,
        )

    def _check_states(
        self, semantics: Semantics, components: list[Component]
    ) -> tuple[tuple[StateCommitter, Semantics], ...]:
        states: list[tuple[StateCommitter, Semantics]] = []
        tables: dict[tuple[str | None, str], str] = {}
        for component in components:
            bolt = component.instance
            if not isinstance(bolt, StateCommitter):
                continue
            state = bolt.state
            _check_state_grouping(component, state)
            place = (state.url, state.table.lower())
            if place in tables:
                raise TopologyError(
                    f"components {tables[place]!r} and {component.id!r} both write table {state.table!r}; "
                    f"give each a table of its own"
                )
            tables[place] = component.id
            legal = legal_state_semantics(semantics)
            chosen = state.semantics or legal[0]
            if chosen not in legal:
                raise TopologyError(
                    f"table {state.table!r}: the spout is {semantics} and cannot fill {chosen} state, "
                    f"because {_why_illegal(semantics, chosen)}; "
                    f"use semantics {' or '.join(repr(str(s)) for s in legal)}"
                )
            states.append((bolt, chosen))
        if not states:
            raise TopologyError(
                f"topology {self._id!r} has no committer, so its results would be stored nowhere; "
                f"add a SqlStateBolt with set_committer_bolt"
            )
        return tuple(states)


def _check_state_grouping(component: Component, state: SqlState) -> None:
    grouping = component.grouping
    if grouping is None or grouping.kind is GroupingKind.GLOBAL or component.tasks == 1:
        return
    if grouping.kind is not GroupingKind.FIELDS or not set(grouping.fields) <= set(state.key_names):
        raise TopologyError(
            f"component {component.id!r}: group its input by the key of table {state.table!r} "
            f"({', '.join(state.key_names)}) or a part of it, not by {grouping}; two tasks with the same key "
            f"would lose updates"
        )


def _why_illegal(spout: Semantics, state: Semantics) -> str:
    if state is Semantics.NON_TRANSACTIONAL:
        return "a replay would be counted twice"
    if spout is Semantics.NON_TRANSACTIONAL:
        return "its batches have no fixed order to compare with"
    return "its replays may hold other tuples, which a row with only a txid cannot undo"


def _check_number(what: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TopologyError(f"{what} is {value!r}; it must be a whole number of at least 1")
    return value
