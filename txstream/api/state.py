"""`SqlState`: the declaration of a typed table that holds exactly-once results and that a person can query.

A declaration only: it names no connection and imports no database library, so that it can be built
anywhere and shipped to executors. `txstream.state` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstream.api.errors import TopologyError
from txstream.api.schema import format_schema, parse_schema
from txstream.semantics import Semantics

TXID_COLUMN = "txid"
PREV_PREFIX = "prev_"


@dataclass(frozen=True)
class SqlState:
    """One table: key columns, value columns, and by semantics `txid` and `prev_<value>`.

    `key` and `value` are DDL ("word string", "n bigint") or Arrow schemas. `url` is a SQLAlchemy URL;
    without one the run's database is used. `semantics` is the spout's unless given: a transactional
    spout may also fill an opaque table. `index_txid` adds an index that makes undoing a batch cheap and
    every update dearer. Raises TopologyError or SchemaError for a declaration that cannot be.
    """

    table: str
    key: str | pa.Schema
    value: str | pa.Schema
    url: str | None = field(default=None, repr=False)
    semantics: Semantics | None = None
    index_txid: bool = False
    key_schema: pa.Schema = field(init=False, repr=False, compare=False)
    value_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.table or not isinstance(self.table, str):
            raise TopologyError(f"a state table needs a name, not {self.table!r}")
        if self.table.startswith("txstream_"):
            raise TopologyError(
                f"state table {self.table!r}: names that begin with txstream_ are the framework's own"
            )
        if self.semantics is not None:
            object.__setattr__(self, "semantics", Semantics(self.semantics))
        object.__setattr__(self, "key_schema", parse_schema(self.key))
        object.__setattr__(self, "value_schema", parse_schema(self.value))
        self._check_names()

    def _check_names(self) -> None:
        taken: dict[str, str] = {TXID_COLUMN: "the framework's column"}
        for name in self.value_schema.names:
            taken[f"{PREV_PREFIX}{name}".lower()] = f"the framework's column beside value {name!r}"
        for kind, schema in (("key", self.key_schema), ("value", self.value_schema)):
            for name in schema.names:
                if name.lower() in taken:
                    raise TopologyError(
                        f"state table {self.table!r}: {kind} column {name!r} clashes with "
                        f"{taken[name.lower()]}; choose another name"
                    )
                taken[name.lower()] = f"{kind} column {name!r}"

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.key_schema.names)

    @property
    def value_names(self) -> tuple[str, ...]:
        return tuple(self.value_schema.names)

    def declaration(self, semantics: Semantics) -> dict[str, Any]:
        """What is remembered of this table beside it, as JSON values, to notice a changed declaration."""
        return {
            "key": format_schema(self.key_schema),
            "value": format_schema(self.value_schema),
            "semantics": str(semantics),
        }
