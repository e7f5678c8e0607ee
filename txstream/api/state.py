"""`SqlState` and `SqlTable`: declarations of typed tables that hold exactly-once results, to be queried.

They are only declarations. They open no connection and import no database library, so they can be built
anywhere and shipped to executors. `txstream.state` carries them out.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import pyarrow as pa

from txstream.api.retention import keep_seconds, time_column
from txstream.api.schema import format_schema, format_type, parse_schema
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics

if TYPE_CHECKING:
    from txstream.api.retention import HorizonKeeper

_PARAMETER = re.compile(r"(toast\.)?[a-z][a-z0-9_]*", re.ASCII)
TXID_COLUMN = "txid"
PREV_PREFIX = "prev_"
PREV_TXID_COLUMN = f"{PREV_PREFIX}{TXID_COLUMN}"
REMOVED = "txstream_removed"
"""The hidden value column of a `SqlTable` with `removed_by`: false in a row that is there, true in one that
a batch has just removed, null in one of which only the key and the place in the sequence are remembered."""
BATCH, GONE = "txstream_batch", "txstream_gone"
"""In a table of changes: the first column of its key, and the value that says that the row was removed."""
KEPT_PREFIX = "txstream_kept_"
"""Of the columns that keep the `prev_` columns of a row that is removed, until nothing can bring it back."""
ROWS_SUFFIX = "__rows"
CHANGES_SUFFIX, VERSIONS_SUFFIX = "_changes", "_versions"

OnConflict = Literal["fail", "ignore", "replace"]
RECORD_KEY = "topic string, partition int, offset bigint"
"""The default key of a `SqlTable`, with the types of Kafka's columns."""


@dataclass(frozen=True)
class SqlState:
    """One table: key columns, value columns, and, depending on the semantics, `txid` and `prev_<value>`.

    `table` is a plain name without a schema: the table is in the schema that its database's URL leads to.
    `key` and `value` are DDL ("word string", "n bigint") or Arrow schemas. `url` is a SQLAlchemy URL; without
    one the run's database is used. `semantics` is the spout's unless given: a transactional spout may also
    fill an opaque table. `index_txid` adds an index that makes undoing a batch cheap and every update dearer.
    `cache_rows` is for opaque tables that a committer reads through a `MapState`: each of its tasks keeps
    that many rows, the last used, in its worker process from batch to batch. `defaults` are for value columns
    that are added to an existing table: they map a column to the value that existing rows get (what its
    reducer begins with: 0 for a count or a sum; None if the column may be NULL). `storage` holds the storage
    parameters with which PostgreSQL creates the table, numbers or booleans by name (`{"fillfactor": 70}`; 50
    unless given). `keep` ("90d", "12h"; units s, m, h, d) removes rows once the date or timestamp in the key
    column `keep_on`, by default the only one of such a type, is older; a record for such a row is late and
    becomes a dead letter. `changes_to` says where the rows go that each batch has changed; as text it is the
    name of that place, which the topology may not read. The commit of a batch copies them to a table
    `<name>_changes`, where they wait for who takes them there; for a place that `keeps_versions`, what they
    were before. Raises TopologyError or SchemaError for an impossible declaration.
    """

    table: str
    key: str | pa.Schema
    value: str | pa.Schema
    url: str | None = field(default=None, repr=False)
    semantics: Semantics | None = None
    index_txid: bool = False
    cache_rows: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    storage: Mapping[str, int | float | bool] = field(default_factory=dict, hash=False)
    keep: str | None = None
    keep_on: str | None = None
    changes_to: Any = None
    on_conflict: OnConflict | None = field(default=None, init=False)
    """None: rows of one key are merged by reducers. Otherwise this is a `SqlTable`."""
    removed_by: str | None = field(default=None, init=False)
    sequence_by: str | None = field(default=None, init=False)
    transient: bool = field(default=False, init=False)
    copies: str | None = field(default=None, init=False)
    """The table of which this one holds the changes."""
    key_schema: pa.Schema = field(init=False, repr=False, compare=False)
    value_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.table or not isinstance(self.table, str):
            raise TopologyError(f"a state table needs a name, not {self.table!r}")
        self._check_name("", self.table)
        if self.table.startswith("txstream_"):
            raise TopologyError(
                f"state table {self.table!r}: names that begin with txstream_ are the framework's own"
            )
        if "." in self.table:
            schema, _, name = self.table.rpartition(".")
            raise TopologyError(
                f"state table {self.table!r} has a dot in its name, which would not choose a schema. Name it "
                f"{name!r}; to keep it in schema {schema!r}, say so in its url: "
                f"postgresql://host/database?options=-csearch_path%3D{schema}, or mysql://host/{schema}"
            )
        if self.semantics is not None:
            object.__setattr__(self, "semantics", Semantics(self.semantics))
        if not isinstance(self.cache_rows, int) or isinstance(self.cache_rows, bool) or self.cache_rows < 0:
            raise TopologyError(
                f"state table {self.table!r}: cache_rows is {self.cache_rows!r}; it must be a whole number, "
                f"0 for no cache"
            )
        object.__setattr__(self, "key_schema", self._keys())
        object.__setattr__(self, "value_schema", self._values())
        object.__setattr__(self, "defaults", dict(self.defaults))
        object.__setattr__(self, "storage", dict(self.storage))
        self._check_names()
        self._check_defaults()
        self._check_storage()
        self._check_keep()

    def _keys(self) -> pa.Schema:
        for column in self.key if isinstance(self.key, (list, tuple)) else ():
            if (of := getattr(column, "column_of", None)) is not None:
                raise TopologyError(f"state table {self.table!r}: {column!r} is for the key of a {of}")
        return parse_schema(self.key)

    def _values(self) -> pa.Schema:
        return parse_schema(self.value)

    # --- what a state of your own may decide with each batch ----------------------------------------

    marks: ClassVar[tuple[str, str] | None] = None
    """A boolean value column, and a value column of time. Each commit sets the first in the rows whose time
    is not after `marks_until`, in its own transaction, behind all that the batch writes."""

    def horizon_keeper(self) -> HorizonKeeper | None:
        """Return what decides the table's horizon in each batch; None: `keep` and the clock do."""
        return None

    def marks_until(self, horizon: Any) -> datetime | None:
        """Return up to which time a batch with this horizon marks rows; None: it marks none."""
        return None

    def keeps_from(self, horizon: Any) -> int | None:
        """Return the time, in seconds since 1970, before which a batch with this horizon takes no row of
        `keep_on` any more; None if it takes all."""
        return None if self.keep is None else horizon

    @property
    def sets_aside(self) -> str | None:
        """Which argument makes dead letters of records that come late; None if none does."""
        return None if self.keep is None else f"keep={self.keep!r}"

    # --- checks -------------------------------------------------------------------------------------

    def _check_keep(self) -> None:
        if self.keep is not None:
            keep_seconds(self.table, self.keep)
            object.__setattr__(self, "keep_on", time_column(self.table, self.keep_on, *self._times()))
        elif self.keep_on is not None:
            raise TopologyError(
                f"state table {self.table!r}: keep_on is {self.keep_on!r}, but nothing says how long rows "
                f"are kept; add keep='90d', for example, or leave it out"
            )

    def _times(self) -> tuple[pa.Schema, str]:
        """Return the columns whose time may decide how long a row is kept, and why no others may."""
        return self.key_schema, (
            "It must be a key column: a row whose time changes would be kept, or late, by chance"
        )

    @functools.cached_property
    def keep_seconds(self) -> int | None:
        """How long rows are kept; None for ever."""
        return None if self.keep is None else keep_seconds(self.table, self.keep)

    def _check_storage(self) -> None:
        """Only a plain name with a number or a boolean passes, because they become part of a statement."""
        for name, value in self.storage.items():
            if not isinstance(name, str) or not _PARAMETER.fullmatch(name):
                raise TopologyError(
                    f"state table {self.table!r}: storage names {name!r}; a storage parameter is a name such "
                    f"as fillfactor or autovacuum_vacuum_scale_factor"
                )
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise TopologyError(
                    f"state table {self.table!r}: storage parameter {name!r} is {value!r}; it must be a "
                    f"number or a boolean"
                )

    def _check_defaults(self) -> None:
        for name, value in self.defaults.items():
            if name not in self.value_schema.names:
                raise TopologyError(
                    f"state table {self.table!r}: defaults name {name!r}, which is not one of its value "
                    f"columns {', '.join(map(repr, self.value_names))}"
                )
            data_type = self.value_schema.field(name).type
            try:
                if pa.types.is_integer(data_type) and isinstance(value, float):
                    raise TypeError("it is no whole number")
                pa.scalar(value, data_type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise TopologyError(
                    f"state table {self.table!r}: the default {value!r} does not fit value column {name!r} "
                    f"of type {format_type(data_type)}: {error}"
                ) from error

    def _check_name(self, what: str, name: str) -> None:
        """Refuse a name that some store cannot have, quoted or not."""
        wrong = ""
        if not name:
            wrong = "an empty name"
        elif "\0" in name:
            wrong = "the character NUL in its name"
        elif any("\ud800" <= character <= "\udfff" for character in name):
            wrong = "half of a character (a surrogate) in its name"
        if wrong:
            raise TopologyError(f"state table {self.table!r}{what} has {wrong}; choose another name")

    def _check_names(self) -> None:
        taken: dict[str, str] = {TXID_COLUMN: "the framework's column"}
        if self.on_conflict is not None:
            taken[PREV_TXID_COLUMN] = "the framework's column"
        for name in self.value_schema.names:
            taken[f"{PREV_PREFIX}{name}".lower()] = f"the framework's column beside value {name!r}"
            if self.removed_by is not None:
                taken[f"{KEPT_PREFIX}{name}".lower()] = taken[f"{PREV_PREFIX}{name}".lower()]
        for kind, schema in (("key", self.key_schema), ("value", self.value_schema)):
            for name in schema.names:
                self._check_name(f": {kind} column {name!r}", name)
                if name.lower() in taken:
                    raise TopologyError(
                        f"state table {self.table!r}: {kind} column {name!r} clashes with "
                        f"{taken[name.lower()]}; choose another name"
                    )
                taken[name.lower()] = f"{kind} column {name!r}"

    @functools.cached_property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.key_schema.names)

    @functools.cached_property
    def value_names(self) -> tuple[str, ...]:
        return tuple(self.value_schema.names)

    @functools.cached_property
    def shown_names(self) -> tuple[str, ...]:
        """The value columns that people see."""
        return tuple(self.shown_schema.names)

    @functools.cached_property
    def shown_schema(self) -> pa.Schema:
        return pa.schema([field for field in self.value_schema if field.name != REMOVED])

    @property
    def keeps_versions(self) -> bool:
        """Whether `changes`, found by key then, has what rows were before their batch."""
        return bool(getattr(self.changes_to, "keeps_versions", False))

    @functools.cached_property
    def changes(self) -> SqlTable | None:
        """The table to which each commit copies the rows that it has changed; None without `changes_to`."""
        if self.changes_to is None:
            return None
        batch = [pa.field(BATCH, pa.int64())]
        keys = [*self.key_schema, *batch] if self.keeps_versions else [*batch, *self.key_schema]
        found = SqlTable(
            f"{self.table}{VERSIONS_SUFFIX if self.keeps_versions else CHANGES_SUFFIX}",
            self.shown_schema.append(pa.field(GONE, pa.bool_())),
            key=pa.schema(keys),
            url=self.url,
            semantics=Semantics.OPAQUE,
            index_txid=True,
            transient=True,
        )
        object.__setattr__(found, "copies", self.table)
        return found

    @functools.cached_property
    def stored_table(self) -> str:
        """The table that rows are written to: `table`, or what is behind the view of that name."""
        return self.table if self.removed_by is None else f"{self.table}{ROWS_SUFFIX}"

    @functools.cached_property
    def _ddl(self) -> tuple[str, str]:
        return format_schema(self.key_schema), format_schema(self.value_schema)

    def declaration(self, semantics: Semantics) -> dict[str, Any]:
        """Return what is stored about this table, as JSON values, to notice a changed declaration."""
        declared = {"key": self._ddl[0], "value": self._ddl[1], "semantics": str(semantics)}
        rules = {
            "on_conflict": self.on_conflict,
            "sequence_by": self.sequence_by,
            "transient": self.transient or None,
            "copies": self.copies,
        }
        return declared | {name: rule for name, rule in rules.items() if rule is not None}


@dataclass(frozen=True, init=False)
class SqlTable(SqlState):
    """One table of rows as they come: key columns, value columns, and, depending on the semantics, `txid`.

    `value` and `key` are DDL or Arrow schemas; the default key is a record's place in Kafka. Value columns
    may be NULL. `on_conflict` says what happens to a row whose key an earlier batch has written: "fail" ends
    the run, "ignore" keeps the older row, "replace" puts the new one in its place, for which an opaque table
    also has `prev_<value>` and `prev_txid`. The other arguments are those of `SqlState`; with the default
    key, `keep_on` may also be a value column, and a row without a time is kept. A non-transactional table
    with "fail" has no primary key, because a replayed row comes twice. With "replace", `removed_by` says
    which tuples remove the row of their key: "op = 'd'", "value is null", or the name of a boolean field. The
    rows are then in a table `<name>__rows`, and `<name>` is a view of those that are there. `sequence_by`
    names the value column that orders the rows of one key: one that is older than what is there, or than its
    removal, changes nothing. Rows of a `transient` table are deleted, the oldest batch first, by who has
    used them (`StateBackend.drop_used`). Raises TopologyError or SchemaError for an impossible declaration.
    """

    on_conflict: OnConflict = "fail"
    cache_rows: int = field(default=0, init=False)
    removed_by: str | None = None
    sequence_by: str | None = None
    transient: bool = False

    def __init__(
        self,
        table: str,
        value: str | pa.Schema,
        *,
        key: str | pa.Schema = RECORD_KEY,
        on_conflict: OnConflict = "fail",
        removed_by: str | None = None,
        sequence_by: str | None = None,
        url: str | None = None,
        semantics: Semantics | None = None,
        index_txid: bool = False,
        defaults: Mapping[str, Any] | None = None,
        storage: Mapping[str, int | float | bool] | None = None,
        keep: str | None = None,
        keep_on: str | None = None,
        changes_to: Any = None,
        transient: bool = False,
    ) -> None:
        if on_conflict not in get_args(OnConflict):
            raise TopologyError(
                f"table {table!r}: on_conflict is {on_conflict!r}; it must be one of "
                f"{', '.join(map(repr, get_args(OnConflict)))}"
            )
        own = {"on_conflict": on_conflict, "removed_by": removed_by, "sequence_by": sequence_by}
        for name, given in (*own.items(), ("transient", transient)):
            object.__setattr__(self, name, given)
        more = defaults or {}, storage or {}, keep, keep_on, changes_to
        super().__init__(table, key, value, url, semantics, index_txid, 0, *more)
        for what in ("removed_by", "sequence_by"):
            has_own_key = not self.key_schema.equals(parse_schema(RECORD_KEY))
            if getattr(self, what) is not None and not (on_conflict == "replace" and has_own_key):
                raise TopologyError(
                    f"table {table!r}: {what} is for a table of the last row of each key; give it a key of "
                    f"its own (key=) and on_conflict='replace'"
                )
        if sequence_by is not None and sequence_by not in self.shown_names:
            raise TopologyError(
                f"table {table!r}: sequence_by is {sequence_by!r}; it must be one of the value columns "
                f"{', '.join(map(repr, self.shown_names))}"
            )

    def _values(self) -> pa.Schema:
        values = super()._values()
        if REMOVED in values.names:
            raise TopologyError(f"table {self.table!r}: the framework's own column is named {REMOVED!r}")
        return values if self.removed_by is None else values.append(pa.field(REMOVED, pa.bool_()))

    def _times(self) -> tuple[pa.Schema, str]:
        if self.key_schema.equals(parse_schema(RECORD_KEY)):
            return pa.schema([*self.key_schema, *self.value_schema]), "Declare one among its columns"
        return self.key_schema, (
            "With a key of its own it must be a key column: otherwise it would depend on chance whether a "
            "key that comes again finds the older row or not"
        )
