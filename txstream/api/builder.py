"""`TransactionalTopologyBuilder`: declare a spout and bolts, and have the whole checked before it runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa

from txstream.api.bolts import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Committer,
    DataFrameBolt,
    MergeableBolt,
    OutputFieldsDeclarer,
    StateCommitter,
)
from txstream.api.errors import TopologyError
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.names import validate_topology_id
from txstream.api.schema import format_schema, format_type
from txstream.api.spouts import SourceSpout
from txstream.api.state import SqlState
from txstream.api.topology import CommitChoice, Component, Phase, StateUse, Topology
from txstream.api.tuples import DEFAULT_STREAM
from txstream.semantics import Semantics, legal_state_semantics

DEFAULT_MAX_SPOUT_PENDING = 2
DEFAULT_MESSAGE_TIMEOUT_SECONDS = 30.0
DEFAULT_MAX_ATTEMPTS = 5


class BoltDeclarer:
    """Chooses the inputs of a bolt: call a grouping for each stream that it subscribes to."""

    def __init__(self, component: str) -> None:
        self._component = component
        self.inputs: list[Grouping] = []
        self.tasks: int | None = None

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples are spread evenly over the bolt's tasks."""
        return self._add(Grouping(GroupingKind.SHUFFLE, component, stream))

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples go to a task in the same worker, without crossing the network."""
        return self._add(Grouping(GroupingKind.LOCAL_OR_SHUFFLE, component, stream))

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with the same values in these fields go to the same task."""
        return self._add(Grouping(GroupingKind.FIELDS, component, stream, self._fields("fields", fields)))

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Tuples with the same values in these fields go to one of two tasks, whichever has had less: a
        better balance than `fields_grouping` for skewed keys, for bolts whose results are merged below."""
        chosen = self._fields("partial key", fields)
        return self._add(Grouping(GroupingKind.PARTIAL_KEY, component, stream, chosen))

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Every task gets every tuple."""
        return self._add(Grouping(GroupingKind.ALL, component, stream))

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """All tuples go to task 0."""
        return self._add(Grouping(GroupingKind.GLOBAL, component, stream))

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """The emitter chooses the task, with `collector.emit_direct`; the stream must be declared direct."""
        return self._add(Grouping(GroupingKind.DIRECT, component, stream))

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """You do not care; today the same as `shuffle_grouping`."""
        return self._add(Grouping(GroupingKind.NONE, component, stream))

    def set_num_tasks(self, tasks: int) -> BoltDeclarer:
        """How many instances of the bolt there are; at least its parallelism."""
        self.tasks = _check_number(f"the number of tasks of {self._component!r}", tasks)
        return self

    def _fields(self, kind: str, fields: tuple[str, ...]) -> tuple[str, ...]:
        if not fields:
            raise TopologyError(f"component {self._component!r}: a {kind} grouping needs at least one field")
        return fields

    def _add(self, grouping: Grouping) -> BoltDeclarer:
        for other in self.inputs:
            if (other.component, other.stream) == (grouping.component, grouping.stream):
                raise TopologyError(
                    f"component {self._component!r} subscribes to the same stream twice, by {other} and by "
                    f"{grouping}; choose one grouping"
                )
        self.inputs.append(grouping)
        return self


@dataclass
class _Declared:
    bolt: Bolt
    parallelism: int
    declarer: BoltDeclarer
    is_committer: bool


class TransactionalTopologyBuilder:
    """Declares a topology: its id, its spout, and any acyclic graph of bolts below it.

    `max_spout_pending` batches are processed at once; an attempt that takes longer than
    `message_timeout_seconds` is replayed; a bug in a bolt stops the topology after `max_attempts` tries.
    `settings` are yours: every bolt finds them in its context. They are shipped once, by pickle. `workers` is
    how many executor processes a cluster is asked for; None leaves it to Spark's own settings.

    `commit` says who writes the deltas of a batch into the states' databases: "driver" in one transaction,
    "executors" in one for each slot, "auto" (the default) whoever is faster: the driver up to
    `driver_commit_rows` rows in a database (None is a measured figure), executors beyond. Executors need
    SQLAlchemy, the database's driver and a way to it, for "driver" they need none. What a bolt writes
    through a `MapState` is always written by executors.
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
        settings: Mapping[str, Any] | None = None,
        workers: int | None = None,
        commit: CommitChoice = "auto",
        driver_commit_rows: int | None = None,
    ) -> None:
        self._id = validate_topology_id(topology_id)
        if not isinstance(spout, SourceSpout):
            raise TopologyError(
                f"component {spout_id!r}: put a semantics on the source, for example "
                f"OpaqueSpout({type(spout).__name__}(...))"
            )
        if message_timeout_seconds <= 0:
            raise TopologyError(f"message_timeout_seconds is {message_timeout_seconds}; it must be positive")
        if settings is not None and not all(isinstance(name, str) for name in settings):
            raise TopologyError(f"settings are values by name; the names must be strings: {settings!r:.200}")
        self._spout = (spout_id, spout, _check_number(f"the parallelism of {spout_id!r}", parallelism))
        self._bolts: dict[str, _Declared] = {}
        self._max_spout_pending = _check_number("max_spout_pending", max_spout_pending)
        self._message_timeout_seconds = float(message_timeout_seconds)
        self._max_attempts = _check_number("max_attempts", max_attempts)
        self._settings = dict(settings or {})
        self._workers = None if workers is None else _check_number("workers", workers)
        if commit not in get_args(CommitChoice):
            raise TopologyError(
                f"commit is {commit!r}; it must be one of {', '.join(map(repr, get_args(CommitChoice)))}"
            )
        if driver_commit_rows is not None:
            _check_number("driver_commit_rows", driver_commit_rows)
            if commit != "auto":
                raise TopologyError(
                    f"driver_commit_rows is {driver_commit_rows}, but with commit={commit!r} nothing is "
                    f"chosen by size; leave one of the two out"
                )
        self._commit: CommitChoice = commit
        self._driver_commit_rows = driver_commit_rows

    def set_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; choose its inputs on what this returns. A `Committer` commits without further ado."""
        return self._add(component, bolt, parallelism, is_committer=isinstance(bolt, Committer))

    def set_committer_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt whose `finish_batch` runs in the commit phase, in strict txid order; so do the bolts
        below it."""
        return self._add(component, bolt, parallelism, is_committer=True)

    def _add(self, component: str, bolt: Bolt, parallelism: int, *, is_committer: bool) -> BoltDeclarer:
        if component == self._spout[0] or component in self._bolts:
            raise TopologyError(f"two components are called {component!r}; every component needs its own id")
        if not isinstance(bolt, (BasicBolt, BatchBolt, DataFrameBolt)):
            hint = " (pass an instance, not the class)" if isinstance(bolt, type) else ""
            raise TopologyError(
                f"component {component!r}: {bolt!r} is not a BasicBolt, BatchBolt or DataFrameBolt{hint}"
            )
        if is_committer and not isinstance(bolt, BatchBolt):
            raise TopologyError(
                f"component {component!r}: {type(bolt).__name__} cannot be a committer, because it has no "
                f"finish_batch to run in the commit phase; derive it from BatchBolt"
            )
        _check_number(f"the parallelism of {component!r}", parallelism)
        declarer = BoltDeclarer(component)
        self._bolts[component] = _Declared(copy.copy(bolt), parallelism, declarer, is_committer)
        return declarer

    def build(self) -> Topology:
        """The checked topology. Raises TopologyError or SchemaError, naming the component and the remedy."""
        spout_id, spout, parallelism = self._spout
        built = {
            spout_id: Component(spout_id, spout, parallelism, parallelism, {DEFAULT_STREAM: spout.output})
        }
        for name in self._order():
            built[name] = self._build_bolt(name, built)
        components = tuple(built.values())
        states, map_states = self._check_states(spout.semantics, components)
        if self._commit == "driver" and map_states:
            use = map_states[0]
            raise TopologyError(
                f"component {use.component!r} writes state {use.name!r} from executors, but commit='driver' "
                f"says that executors reach no database; leave commit out"
            )
        return Topology(
            id=self._id,
            components=components,
            max_spout_pending=self._max_spout_pending,
            message_timeout_seconds=self._message_timeout_seconds,
            max_attempts=self._max_attempts,
            settings=self._settings,
            workers=self._workers,
            commit=self._commit,
            driver_commit_rows=self._driver_commit_rows,
            states=states,
            map_states=map_states,
        )

    def _order(self) -> list[str]:
        """The bolts, each after those that it reads from, otherwise as they were declared."""
        spout_id = self._spout[0]
        known = {spout_id, *self._bolts}
        for name, declared in self._bolts.items():
            if not declared.declarer.inputs:
                raise TopologyError(
                    f"component {name!r} has no input; call a grouping on it, for example "
                    f".shuffle_grouping({spout_id!r})"
                )
            for grouping in declared.declarer.inputs:
                if grouping.component not in known:
                    raise TopologyError(
                        f"component {name!r} subscribes to {grouping.component!r}, which does not exist; "
                        f"there are {', '.join(sorted(known))}"
                    )
        order: list[str] = []
        done = {spout_id}
        left = dict(self._bolts)
        while left:
            ready = [
                name for name, bolt in left.items() if all(g.component in done for g in bolt.declarer.inputs)
            ]
            if not ready:
                raise TopologyError(f"a cycle: {self._cycle(left)}; a batch would never be finished")
            for name in ready:
                del left[name]
            order += ready
            done.update(ready)
        return order

    def _cycle(self, left: Mapping[str, _Declared]) -> str:
        """One cycle among components that wait for each other, in the direction of the tuples."""
        path = [next(iter(left))]
        while True:
            above = next(g.component for g in left[path[-1]].declarer.inputs if g.component in left)
            if above in path:
                return " -> ".join(map(repr, reversed([*path[path.index(above) :], above])))
            path.append(above)

    def _build_bolt(self, name: str, built: Mapping[str, Component]) -> Component:
        declared = self._bolts[name]
        inputs = tuple(declared.declarer.inputs)
        schemas = [_input_schema(name, grouping, built[grouping.component]) for grouping in inputs]
        tasks = declared.declarer.tasks
        if tasks is not None and tasks < declared.parallelism:
            raise TopologyError(
                f"component {name!r} has {tasks} tasks for {declared.parallelism} slots; "
                f"tasks must be at least the parallelism"
            )
        declarer = OutputFieldsDeclarer(name, schemas)
        declared.bolt.declare_output_fields(declarer)
        return Component(
            id=name,
            instance=declared.bolt,
            parallelism=declared.parallelism,
            tasks=tasks or declared.parallelism,
            streams=declarer.streams,
            inputs=inputs,
            is_committer=declared.is_committer,
            below_committer=any(_emits_in_commit(built[grouping.component]) for grouping in inputs),
            direct_streams=frozenset(declarer.direct_streams),
        )

    def _check_states(
        self, semantics: Semantics, components: Sequence[Component]
    ) -> tuple[tuple[tuple[StateCommitter, Semantics], ...], tuple[StateUse, ...]]:
        states: list[tuple[StateCommitter, Semantics]] = []
        uses: list[StateUse] = []
        tables: dict[tuple[str | None, str], str] = {}

        def claim(component: Component, state: SqlState, as_what: str = "") -> None:
            writer = f"{component.id!r}{as_what}"
            place = (state.url, state.table.lower())
            if place in tables:
                raise TopologyError(
                    f"components {tables[place]} and {writer} both write table {state.table!r}; "
                    f"give each a table of its own"
                )
            tables[place] = writer

        by_id = {component.id: component for component in components}
        for component in components:
            for name, state in _declared_states(component).items():
                _check_map_state(component, name, state, by_id)
                claim(component, state, f" (state {name!r})")
                uses.append(StateUse(component.id, name, state, _map_state_semantics(state, semantics)))
                _check_cache(component, uses[-1])
            bolt = component.instance
            if isinstance(bolt, StateCommitter):
                if bolt.state.cache_rows:
                    raise TopologyError(
                        f"component {component.id!r}: table {bolt.state.table!r} has cache_rows, but a "
                        f"{type(bolt).__name__} reads nothing that could be kept; leave it out"
                    )
                _check_state_inputs(component, bolt.state)
                claim(component, bolt.state)
                states.append((bolt, _state_semantics(bolt.state, semantics)))
        if not any(component.is_committer for component in components):
            raise TopologyError(
                f"topology {self._id!r} has no committer, so its results would be stored nowhere; "
                f"add a SqlStateBolt with set_committer_bolt"
            )
        return tuple(states), tuple(uses)


def _emits_in_commit(component: Component) -> bool:
    return component.is_committer or component.below_committer


def _input_schema(name: str, grouping: Grouping, upstream: Component) -> pa.Schema:
    """The schema of one subscription, checked against its grouping."""
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
    is_direct = grouping.stream in upstream.direct_streams
    if is_direct and grouping.kind is not GroupingKind.DIRECT:
        raise TopologyError(
            f"component {name!r} subscribes to the direct stream {grouping.stream!r} of {upstream.id!r} by "
            f"{grouping}; use direct_grouping, or declare the stream without direct=True"
        )
    if grouping.kind is GroupingKind.DIRECT and not is_direct:
        raise TopologyError(
            f"component {name!r} subscribes to stream {grouping.stream!r} of {upstream.id!r} by {grouping}, "
            f"but that stream is not direct; declare it with direct=True and emit with emit_direct"
        )
    return schema


def _check_state_inputs(component: Component, state: SqlState) -> None:
    if component.tasks == 1:
        return
    for grouping in component.inputs:
        if grouping.kind is GroupingKind.GLOBAL:
            continue
        if grouping.kind is not GroupingKind.FIELDS or not set(grouping.fields) <= set(state.key_names):
            raise TopologyError(
                f"component {component.id!r}: group its input by the key of table {state.table!r} "
                f"({', '.join(state.key_names)}) or a part of it, not by {grouping}; two tasks with the same "
                f"key would lose updates"
            )
    if len({_spread(grouping) for grouping in component.inputs}) > 1:
        raise TopologyError(
            f"component {component.id!r}: group all its inputs alike, by the same fields in the same order; "
            f"it has {' and '.join(map(str, component.inputs))}, which can send one key to two tasks"
        )


def _declared_states(component: Component) -> Mapping[str, SqlState]:
    """The states that a bolt declares for itself. Raises TopologyError for what is no such declaration."""
    declared = getattr(component.instance, "states", None)
    if not isinstance(component.instance, BatchBolt):
        mine = declared.values() if isinstance(declared, Mapping) else ()
        if any(isinstance(state, SqlState) for state in mine):
            raise TopologyError(
                f"component {component.id!r} declares states, but {type(component.instance).__name__} is no "
                f"BatchBolt; only a committer, or a BatchBolt below one, has states"
            )
        return {}
    if not isinstance(declared, Mapping) or not all(
        isinstance(name, str) and isinstance(state, SqlState) for name, state in declared.items()
    ):
        raise TopologyError(
            f"component {component.id!r}: its attribute states is {declared!r:.200}; it must be a mapping of "
            f"names to SqlState"
        )
    return declared


def _check_map_state(
    component: Component, name: str, state: SqlState, components: Mapping[str, Component]
) -> None:
    """A state that the component reads and writes itself: does it run in the commit phase, and does one task
    get all tuples of a key?"""
    if isinstance(component.instance, (StateCommitter, MergeableBolt)):
        raise TopologyError(
            f"component {component.id!r} declares state {name!r}, but a {type(component.instance).__name__} "
            f"runs wherever its tuples are, also several times for one key; use a BatchBolt and Committer"
        )
    if component.phase is not Phase.COMMIT:
        raise TopologyError(
            f"component {component.id!r} declares state {name!r}, but it runs before its batch commits; add "
            f"it with set_committer_bolt, or below a committer"
        )
    _check_state_inputs(component, state)
    if component.tasks == 1:
        return
    for grouping in component.inputs:
        schema = components[grouping.component].streams[grouping.stream]
        for field_name in grouping.fields:
            given = schema.field(field_name).type
            column = state.key_schema.field(field_name).type
            if not given.equals(column):
                raise TopologyError(
                    f"component {component.id!r}: it is grouped by field {field_name!r} "
                    f"({format_type(given)}), but that key column of table {state.table!r} is "
                    f"{format_type(column)}; equal keys could be in two tasks: declare one type"
                )


def _check_cache(component: Component, use: StateUse) -> None:
    if use.state.cache_rows and use.semantics is not Semantics.OPAQUE:
        raise TopologyError(
            f"component {component.id!r}: table {use.state.table!r} is {use.semantics} and cannot have "
            f"cache_rows; only an opaque row tells what it held before a batch that is written again. "
            f"Declare it semantics='opaque', or without a cache"
        )


def _spread(grouping: Grouping) -> Sequence[object]:
    return (grouping.kind, grouping.fields)


def _state_semantics(state: SqlState, spout: Semantics) -> Semantics:
    legal = legal_state_semantics(spout)
    chosen = state.semantics or legal[0]
    if chosen not in legal:
        raise TopologyError(
            f"table {state.table!r}: the spout is {spout} and cannot fill {chosen} state, "
            f"because {_why_illegal(spout, chosen)}; "
            f"use semantics {' or '.join(repr(str(s)) for s in legal)}"
        )
    return chosen


def _map_state_semantics(state: SqlState, spout: Semantics) -> Semantics:
    """Opaque also below a transactional spout, unless declared otherwise: what a bolt reads and works with
    must be from before the batch in a replay too, and only an opaque row keeps that."""
    if state.semantics is None and Semantics.OPAQUE in legal_state_semantics(spout):
        return Semantics.OPAQUE
    return _state_semantics(state, spout)


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
