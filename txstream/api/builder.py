"""`TransactionalTopologyBuilder`, and the base of all builders. A user declares spouts and bolts, and `build`
checks the whole topology before it runs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from txstream.api.bolt_checks import check_bolt, check_methods, check_shipping, warn_of_uncalled
from txstream.api.bolts import BatchBolt, Bolt, Committer, OutputFieldsDeclarer, StateCommitter, TableReader
from txstream.api.declarer import BoltDeclarer, check_number
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.schema import format_schema, format_type
from txstream.api.spouts import PartitionedSpout, SourceSpout
from txstream.api.state import SqlState
from txstream.api.state_checks import check_keep, check_states
from txstream.api.topology import CommitChoice, Component, Topology
from txstream.api.tracked import RichBolt
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.dead_letters import DeadLetters
from txstream.core.errors import TopologyError
from txstream.core.names import validate_topology_id
from txstream.core.semantics import Semantics
from txstream.core.wording import counted

DEFAULT_MAX_SPOUT_PENDING = 2
DEFAULT_MESSAGE_TIMEOUT_SECONDS = 30.0
DEFAULT_MAX_ATTEMPTS = 5


@dataclass
class _Declared:
    bolt: Bolt
    parallelism: int
    declarer: BoltDeclarer
    is_committer: bool


class GraphBuilder:
    """The base of all topology builders: bolts, their inputs, and the order from the spouts down."""

    def __init__(
        self,
        topology_id: str,
        *,
        max_spout_pending: int,
        message_timeout_seconds: float,
        max_attempts: int,
        settings: Mapping[str, Any] | None,
        workers: int | None,
    ) -> None:
        self._id = validate_topology_id(topology_id)
        if settings is not None and not all(isinstance(name, str) for name in settings):
            raise TopologyError(f"settings are values by name; the names must be strings: {settings!r:.200}")
        self._spouts: dict[str, Component] = {}
        self._bolts: dict[str, _Declared] = {}
        self._max_spout_pending = check_number("max_spout_pending", max_spout_pending)
        self._message_timeout_seconds = _positive("message_timeout_seconds", message_timeout_seconds)
        self._max_attempts = check_number("max_attempts", max_attempts)
        self._settings = dict(settings or {})
        self._workers = None if workers is None else check_number("workers", workers)

    def _refuse(self, component: str, bolt: Bolt, *, is_committer: bool) -> None:
        """Raise TopologyError for a bolt that this kind of topology cannot run."""
        raise NotImplementedError

    def _add(
        self, component: str, bolt: Bolt, parallelism: int, *, is_committer: bool = False
    ) -> BoltDeclarer:
        self._check_name(component)
        check_bolt(component, bolt)
        self._refuse(component, bolt, is_committer=is_committer)
        check_number(f"the parallelism of {component!r}", parallelism)
        declarer = BoltDeclarer(component)
        self._bolts[component] = _Declared(copy.copy(bolt), parallelism, declarer, is_committer)
        return declarer

    def _check_name(self, component: str) -> None:
        if component in self._spouts or component in self._bolts:
            raise TopologyError(f"two components are called {component!r}; every component needs its own id")

    def _components(self, stacklevel: int) -> tuple[Component, ...]:
        """Build all components. Warns of methods that are never called."""
        built = dict(self._spouts)
        for name in self._order():
            built[name] = self._build_bolt(name, built)
            warn_of_uncalled(name, self._bolts[name].bolt, stacklevel + 1)
        return tuple(built.values())

    def _order(self) -> list[str]:
        """Return the bolts, each after those that it reads from, otherwise in the order of declaration."""
        known = [*self._spouts, *self._bolts]
        for name, declared in self._bolts.items():
            if not declared.declarer.inputs:
                raise TopologyError(
                    f"component {name!r} has no input; call a grouping on it, for example "
                    f".shuffle_grouping({known[0]!r})"
                )
            for grouping in self._inputs(name):
                if grouping.component not in known:
                    raise TopologyError(
                        f"component {name!r} subscribes to {grouping.component!r}, which does not exist; "
                        f"there are {', '.join(sorted(known))}"
                    )
        order: list[str] = []
        done = set(self._spouts)
        left = dict(self._bolts)
        while left:
            ready = [name for name in left if all(g.component in done for g in self._inputs(name))]
            if not ready:
                raise TopologyError(f"a cycle: {self._cycle(left)}; a batch would never be finished")
            for name in ready:
                del left[name]
            order += ready
            done.update(ready)
        return order

    def _cycle(self, left: Mapping[str, _Declared]) -> str:
        """Return one cycle among components that wait for each other, in the direction of the tuples."""
        path = [next(iter(left))]
        while True:
            above = next(g.component for g in self._inputs(path[-1]) if g.component in left)
            if above in path:
                return " -> ".join(map(repr, reversed([*path[path.index(above) :], above])))
            path.append(above)

    def _inputs(self, name: str) -> Sequence[Grouping]:
        """Return the subscriptions of a bolt, with those by which it follows a table."""
        bolt, own = self._bolts[name].bolt, self._bolts[name].declarer.inputs
        if not isinstance(bolt, TableReader):
            return own
        for one, given in self._bolts.items():
            if isinstance(given.bolt, StateCommitter) and given.bolt.state == bolt.of_state:
                bolt.reads = one
        read = self._bolts.get(bolt.reads)
        if read is None or not isinstance(read.bolt, StateCommitter):
            tables = [one for one, given in self._bolts.items() if isinstance(given.bolt, StateCommitter)]
            raise TopologyError(
                f"component {name!r} reads the table of {bolt.reads!r}, which is no bolt that fills a table; "
                f"those are {', '.join(map(repr, tables)) or 'none'}"
            )
        bolt.table = read.bolt
        return [*own, *bolt.follow(read.declarer.inputs, own)]

    def _build_bolt(self, name: str, built: Mapping[str, Component]) -> Component:
        declared = self._bolts[name]
        inputs = tuple(self._inputs(name))
        schemas = [_input_schema(name, grouping, built[grouping.component]) for grouping in inputs]
        tasks = declared.declarer.tasks
        if tasks is not None and tasks < declared.parallelism:
            raise TopologyError(
                f"component {name!r} has {counted(tasks, 'task')} for "
                f"{counted(declared.parallelism, 'slot')}; tasks must be at least the parallelism"
            )
        check_methods(name, declared.bolt)
        declarer = OutputFieldsDeclarer(name, schemas)
        declared.bolt.declare_output_fields(declarer)
        check_shipping(name, declared.bolt)
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


class TransactionalTopologyBuilder(GraphBuilder):
    """Declares a topology: its id, its spout, and any acyclic graph of bolts below it.

    At most `max_spout_pending` batches are processed at once. An attempt that takes longer than
    `message_timeout_seconds` is replayed. A bug in a bolt stops the topology after `max_attempts` tries.
    `settings` are yours: they are shipped once, by pickle, and every bolt finds them in its context.
    `workers` is the number of executor processes that a cluster is asked for; None leaves it to Spark's own
    settings. `resident_tasks` is how many Spark tasks stay for small batches, which then need no Spark job; 0
    is none. "auto" (the default) is one, unless there are DataFrame bolts, a commit phase of bolts, or only
    one slot.

    `commit` says who writes the deltas of a batch into the states' databases: "driver" writes them in one
    transaction, "executors" in one for each slot. "auto" (the default) takes the faster: the driver up to
    `driver_commit_rows` rows in a database (None stands for a measured figure), executors beyond. Executors
    need SQLAlchemy, the database's driver and a route to the database, but none of these for "driver". What a
    bolt writes through a `MapState` is always written by executors.

    `max_batch_latency_seconds` is how long a batch may take from its plan to its commit. Batches shrink and
    grow, up to the spout's `max_batch_records`, to keep to it. At most `max_records_per_second` records are
    read; the rest waits in the log. Neither applies to a `BatchSpout`, which decides itself what a
    transaction holds.

    With `dead_letters`, a record that fails by itself is kept in the table `txstream_dead_letter`, and the
    batch commits without it; without, it stops the topology.
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
        resident_tasks: int | Literal["auto"] = "auto",
        commit: CommitChoice = "auto",
        driver_commit_rows: int | None = None,
        max_batch_latency_seconds: float | None = None,
        max_records_per_second: float | None = None,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(
            topology_id,
            max_spout_pending=max_spout_pending,
            message_timeout_seconds=message_timeout_seconds,
            max_attempts=max_attempts,
            settings=settings,
            workers=workers,
        )
        if not isinstance(spout, SourceSpout):
            raise TopologyError(
                f"component {spout_id!r}: put a semantics on the source, for example "
                f"OpaqueSpout({type(spout).__name__}(...))"
            )
        slots = check_number(f"the parallelism of {spout_id!r}", parallelism)
        self._spout = spout
        self._spouts[spout_id] = Component(spout_id, spout, slots, slots, {DEFAULT_STREAM: spout.output})
        if commit not in get_args(CommitChoice):
            raise TopologyError(
                f"commit is {commit!r}; it must be one of {', '.join(map(repr, get_args(CommitChoice)))}"
            )
        if driver_commit_rows is not None:
            check_number("driver_commit_rows", driver_commit_rows)
            if commit != "auto":
                raise TopologyError(
                    f"driver_commit_rows is {driver_commit_rows}, but with commit={commit!r} nothing is "
                    f"chosen by size; leave one of the two out"
                )
        self._resident_tasks = None
        if resident_tasks != "auto":
            self._resident_tasks = check_number("resident_tasks", resident_tasks, least=0)
        self._commit: CommitChoice = commit
        self._driver_commit_rows = driver_commit_rows
        self._max_batch_latency_seconds = _if_given("max_batch_latency_seconds", max_batch_latency_seconds)
        self._max_records_per_second = _if_given("max_records_per_second", max_records_per_second)
        self._dead_letters = check_dead_letters(dead_letters, spout.semantics)
        topic = None if self._dead_letters is None else self._dead_letters.topic
        if topic and type(spout.source).letter_topic is PartitionedSpout.letter_topic:
            raise TopologyError(
                f"dead letters go to a topic of the source's cluster, and {type(spout.source).__name__} has "
                f"none; leave topic={topic!r} out"
            )

    def set_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; choose its inputs on what this returns. A `Committer` becomes a committer here too."""
        return self._add(component, bolt, parallelism, is_committer=isinstance(bolt, Committer))

    def set_committer_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt whose `finish_batch` runs in the commit phase, in strict txid order. The bolts below it
        run there too."""
        return self._add(component, bolt, parallelism, is_committer=True)

    def _refuse(self, component: str, bolt: Bolt, *, is_committer: bool) -> None:
        if is_committer and not isinstance(bolt, BatchBolt):
            raise TopologyError(
                f"component {component!r}: {type(bolt).__name__} cannot be a committer, because it has no "
                f"finish_batch to run in the commit phase; derive it from BatchBolt"
            )
        if isinstance(bolt, RichBolt):
            raise TopologyError(
                f"component {component!r}: {type(bolt).__name__} is a RichBolt, which acks single tuples; a "
                f"transactional topology has whole batches; derive it from BasicBolt or BatchBolt, or use "
                f"TopologyBuilder"
            )

    def build(self) -> Topology:
        """Return the checked topology. Raises TopologyError or SchemaError, naming the component and the
        remedy. Warns (TopologyWarning) of a method whose name is almost that of a bolt's method."""
        topology = self._build(stacklevel=3)
        if not any(component.is_committer for component in topology.components):
            raise TopologyError(
                f"topology {self._id!r} has no committer, so its results would be stored nowhere; "
                f"add a SqlStateBolt with set_committer_bolt"
            )
        return topology

    def _leave_out_written(self) -> None:
        """See to it that the source reads no place that the topology writes to. Raises TopologyError."""
        written = [] if self._dead_letters is None else [self._dead_letters.topic]
        for bolt in (one.bolt for one in self._bolts.values()):
            states = getattr(bolt, "states", None)  # whether it is a mapping is asked later
            kept = [getattr(bolt, "state", None), *(states.values() if isinstance(states, Mapping) else ())]
            places = [state.changes_to for state in kept if isinstance(state, SqlState)]
            written += [*bolt.writes_to, *(str(place) for place in places if place is not None)]
        source = self._spout.source
        for place in filter(None, written):
            source = source.leaving_out(place)
        if source is not self._spout.source:
            self._spout = copy.copy(self._spout)
            self._spout.source = source
            for name, one in self._spouts.items():
                self._spouts[name] = replace(one, instance=self._spout)

    def _build(self, stacklevel: int) -> Topology:
        """Do what `build` does, without the check for a committer: a test may do without one."""
        self._leave_out_written()
        components = self._components(stacklevel)
        states, map_states = check_states(self._spout.semantics, components)
        check_keep(components, map_states, sets_aside=self._dead_letters is not None)
        readers = [one.instance for one in components if isinstance(one.instance, TableReader)]
        for reader in readers:
            kept = next(semantics for bolt, semantics in states if bolt is reader.table)
            reader.check_table(kept, sets_aside=self._dead_letters is not None)
        if self._commit == "driver" and readers:
            raise TopologyError(
                f"table {readers[0].table.state.table!r} is read by executors, but commit='driver' says that "
                f"they reach no database; leave commit out"
            )
        if self._commit == "driver" and map_states:
            use = map_states[0]
            raise TopologyError(
                f"component {use.component!r} writes state {use.name!r} from executors, but commit='driver' "
                f"says that executors reach no database; leave commit out"
            )
        return Topology(
            id=self._id,
            components=components,
            max_spout_pending=1 if readers else self._max_spout_pending,
            message_timeout_seconds=self._message_timeout_seconds,
            max_attempts=self._max_attempts,
            settings=self._settings,
            workers=self._workers,
            resident_tasks=self._resident_tasks,
            commit=self._commit,
            driver_commit_rows=self._driver_commit_rows,
            max_batch_latency_seconds=self._max_batch_latency_seconds,
            max_records_per_second=self._max_records_per_second,
            dead_letters=self._dead_letters,
            states=states,
            map_states=map_states,
        )


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise TopologyError(f"{name} is {value!r}; it must be a number above 0")
    return float(value)


def check_dead_letters(given: DeadLetters | None, semantics: Semantics) -> DeadLetters | None:
    """Return the setting. Raises TopologyError where it is none, or where nothing is exactly once."""
    if given is None:
        return None
    if not isinstance(given, DeadLetters):
        raise TopologyError(f"dead_letters is {given!r:.100}; it must be DeadLetters(...) or None")
    if semantics is Semantics.NON_TRANSACTIONAL:
        raise TopologyError(
            "dead letters are exact, which a non-transactional spout is not; use OpaqueSpout or "
            "TransactionalSpout, or leave dead_letters out"
        )
    return given


def _if_given(name: str, value: float | None) -> float | None:
    return None if value is None else _positive(name, value)


def _emits_in_commit(component: Component) -> bool:
    return component.is_committer or component.below_committer


def _input_schema(name: str, grouping: Grouping, upstream: Component) -> pa.Schema:
    """Return the schema of one subscription, checked against its grouping."""
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
