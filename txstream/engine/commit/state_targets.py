"""Which databases hold a topology's states, and which of its tables each has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from txstream.api.bolts import StateCommitter
from txstream.api.reducers import Put
from txstream.api.state import SqlState
from txstream.api.topology import BATCHES, Component, StateUse, Topology
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics
from txstream.engine.batch.shares import TableDeltas
from txstream.engine.states.bindings import Bindings, StateBinding
from txstream.engine.states.worker_databases import StorePlace
from txstream.state import StateBackend, TableSpec, TopologyStates, place_of
from txstream.state.stored_letters import refuse_store

DEFAULT_CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class StateTarget:
    """One database and the tables of this topology in it; `components` fill them, in the same order, and
    none ("") fills a table of changes.

    `place` is how executors open it. `written_by_bolts` are the tables that bolts of the commit phase write
    themselves, through a `MapState`; the driver has no deltas for them. `one_writer` says that the database
    admits one writer at a time, so tasks are not faster than the driver, however many rows there are.
    """

    database: StateBackend
    tables: tuple[TableSpec, ...]
    components: tuple[str, ...] = ()
    place: StorePlace | None = None
    written_by_bolts: frozenset[str] = frozenset()
    one_writer: bool = False

    def deltas(self, merged: Mapping[str, pa.Table]) -> list[TableDeltas]:
        """The driver's deltas for this database; `merged` has them by component."""
        return [
            TableDeltas(component, spec, merged[component])
            for spec, component in zip(self.tables, self.components, strict=True)
            if component and spec.state.table not in self.written_by_bolts
        ]

    def of(self, topology: Topology, uuid: str) -> TopologyStates:
        """The topology's states in this database, for the life that has this uuid."""
        return self.database.of(topology.id, uuid, topology.semantics, self.tables)

    def has(self, use: StateUse) -> bool:
        """Whether this state of a bolt is in this database."""
        return any(
            spec.state is use.state and component == use.component
            for spec, component in zip(self.tables, self.components, strict=True)
        )


@dataclass
class _Found:
    tables: list[TableSpec] = field(default_factory=list)
    components: list[str] = field(default_factory=list)
    written_by_bolts: set[str] = field(default_factory=set)


def state_targets(
    topology: Topology,
    default_url: str,
    open_database: Callable[[str], StateBackend],
    *,
    connect_timeout_seconds: float = DEFAULT_CONNECT_TIMEOUT_SECONDS,
    in_this_process: bool = False,
) -> list[StateTarget]:
    """Return the topology's states by database. A state without a URL is in `default_url`.

    A topology without any state has its fence and ledger in `default_url`; one of tracked tuples has neither,
    and the table of a bolt is the bolt's own affair. Each state is written through its
    own URL; whether two URLs are one database shows when they are asked (`take_up`). With `in_this_process`,
    bolts run in this process and can open every database. Raises TopologyError when two states fill one table
    (`build` cannot see it if one has no URL), when executors would write into a database that they cannot
    open, and when the first database cannot keep the dead letters that the topology asks for.
    """
    found: dict[str, _Found] = {}
    spelled: dict[object, str] = {}  # the first spelling of each URL
    owners: dict[tuple[str, str], str] = {}

    def add(spec: TableSpec, component: str, owner: str, *, by_bolts: bool) -> None:
        url = spec.state.url or default_url
        url = spelled.setdefault(_meaning(url), url)
        other = owners.setdefault((url, spec.state.table.lower()), owner)
        if other != owner:
            raise TopologyError(
                f"components {other} and {owner} both write table {spec.state.table!r} of one database, "
                f"which they name differently or which is the run's default; give each a table of its own"
            )
        here = found.setdefault(url, _Found())
        here.tables.append(spec)
        here.components.append(component)
        if by_bolts:
            here.written_by_bolts.add(spec.state.table)
        if (changes := spec.state.changes) is not None:
            put = {name: Put() for name in changes.value_names}
            add(TableSpec(changes, Semantics.OPAQUE, put), "", owner, by_bolts=False)

    components = [c.id for c in topology.bolts if isinstance(c.instance, StateCommitter)]
    for (bolt, semantics), component in zip(topology.states, components, strict=True):
        add(TableSpec(bolt.state, semantics, bolt.reducers), component, repr(component), by_bolts=False)
    for use in topology.map_states:
        put = {name: Put() for name in use.state.value_names}
        owner = f"{use.component!r} (state {use.name!r})"
        add(TableSpec(use.state, use.semantics, put), use.component, owner, by_bolts=True)
    if not found and topology.tier == BATCHES:
        found[default_url] = _Found()

    def target(url: str, here: _Found) -> StateTarget:
        database = open_database(url)
        if not database.on_executors:
            read = {one.table.state for one in topology.table_readers.values()}
            by_bolts = {*here.written_by_bolts, *(t.state.table for t in here.tables if t.state in read)}
            _refuse_executors(topology, database, () if in_this_process else by_bolts)
        return StateTarget(
            database,
            tuple(here.tables),
            tuple(here.components),
            StorePlace(_absolute(url), connect_timeout_seconds, topology.message_timeout_seconds),
            frozenset(here.written_by_bolts),
            one_writer=_is_sqlite(url),
        )

    targets = [target(url, here) for url, here in found.items()]
    if topology.dead_letters is not None and not (first := targets[0].database).keeps_dead_letters:
        raise refuse_store(topology.id, first.display_url, type(first).__name__)
    shown: set[str] = set()
    for one in targets:
        for spec in one.tables:
            if spec.state.removed_by is not None and not one.database.hides_removed:
                raise TopologyError(
                    f"topology {topology.id!r}: table {spec.state.table!r} has removed_by, and "
                    f"{one.database.display_url} ({type(one.database).__name__}) cannot hide removed rows; "
                    f"keep it in a SQL database"
                )
            if spec.state.marks is not None and not one.database.marks_rows:
                raise TopologyError(
                    f"topology {topology.id!r}: {one.database.display_url} ({type(one.database).__name__}) "
                    f"cannot mark rows of table {spec.state.table!r}; keep it in a SQL database"
                )
            if spec.state.changes is not None and not one.database.keeps_changes:
                raise TopologyError(
                    f"topology {topology.id!r}: table {spec.state.table!r} has changes_to, and "
                    f"{one.database.display_url} ({type(one.database).__name__}) cannot keep its changes; "
                    f"keep it in a SQL database"
                )
            if spec.state.keep is not None and not one.database.removes_expired:
                raise TopologyError(
                    f"topology {topology.id!r}: table {spec.state.table!r} has keep={spec.state.keep!r}, and "
                    f"{one.database.display_url} ({type(one.database).__name__}) cannot remove rows by their "
                    f"age; keep it in a SQL database, or leave keep out"
                )
        if (url := one.database.display_url) in shown:
            raise TopologyError(
                f"topology {topology.id!r}: two URLs of its states differ only in what is hidden of {url}, "
                f"so they could not be told apart; give these states the same URL"
            )
        shown.add(url)
    return targets


def map_bindings(topology: Topology, uuid: str, targets: Sequence[StateTarget]) -> Bindings:
    """Return the bindings of the states that a topology's bolts read and write themselves, on the driver.
    `targets` are its databases. Raises ValueError when a table is in none of them, or in one that executors
    cannot open."""
    bindings: dict[str, dict[str, StateBinding]] = {}

    def add(component: str, name: str, filled_by: str, state: SqlState, **options: Any) -> None:
        target, spec = _home(filled_by, state, targets)
        if target.place is None:
            raise ValueError(f"the database of table {state.table!r} has no place that executors can open")
        bindings.setdefault(component, {})[name] = StateBinding(
            place=target.place,
            topology=topology.id,
            uuid=uuid,
            state=spec.state,
            table_semantics=spec.semantics,
            semantics=topology.semantics,
            reducers=spec.reducers,
            **options,
        )

    for use in topology.map_states:
        grouped_by = _grouped_by(topology.component(use.component))
        add(use.component, use.name, use.component, use.state, grouped_by=grouped_by)
    for component, bolt in topology.table_readers.items():
        add(component, bolt.reads, bolt.reads, bolt.table.state, is_read=True)
    return bindings


def _grouped_by(component: Component) -> tuple[str, ...] | None:
    """`build` requires that inputs of several tasks are grouped alike: by fields of the key, or globally."""
    return None if component.tasks == 1 else component.inputs[0].fields


def _home(filled_by: str, state: SqlState, targets: Sequence[StateTarget]) -> tuple[StateTarget, TableSpec]:
    for target in targets:
        for spec, component in zip(target.tables, target.components, strict=True):
            if component == filled_by and spec.state is state:
                return target, spec
    raise ValueError(f"none of the databases has table {state.table!r} of component {filled_by!r}")


def _meaning(url: str) -> object:
    """Return a value that is equal for two spellings of one URL: the same place, and the same of all else. A
    URL that differs in its user or in an option is another one and never stands in for the first."""
    rest = url.partition("://")[2]
    options = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    return place_of(url), rest.rpartition("@")[0], tuple(sorted(options))


def _refuse_executors(topology: Topology, database: StateBackend, by_bolts: Collection[str]) -> None:
    """Raise TopologyError when executors are to use a database that they cannot open."""
    where = f"{database.display_url} cannot be opened by another process"
    if by_bolts:
        raise TopologyError(
            f"topology {topology.id!r}: bolts use table {min(by_bolts)!r} from executors, but {where}; give "
            f"that state the URL of another database"
        )
    if topology.commit == "executors":
        raise TopologyError(
            f"topology {topology.id!r} is built with commit='executors', but {where}; leave commit out, "
            f"or use another database"
        )


def _absolute(url: str) -> str:
    """A URL that means the same from every working directory of this machine: SQLite's is a path."""
    if not _is_sqlite(url):
        return url
    parsed = make_url(url)
    path = str(Path(parsed.database or "").absolute())
    return parsed.set(database=path).render_as_string(hide_password=False)


def _is_sqlite(url: str) -> bool:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    return parsed.get_backend_name() == "sqlite" and bool(parsed.database)
