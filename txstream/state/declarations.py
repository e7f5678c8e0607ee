"""What every backend checks about a state table, its declaration and owner, with the same messages."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from txstream.api.reducers import Put
from txstream.api.schema import format_type, parse_schema
from txstream.api.state import REMOVED, SqlState, SqlTable
from txstream.core.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    SchemaError,
    StateTableError,
)
from txstream.core.semantics import Semantics
from txstream.state.changes import refused_changes
from txstream.state.records import TableSpec

TABLE_LENGTH = 255
"""The maximum number of characters in the name of a state table."""


@dataclass(frozen=True)
class Owner:
    """Which topology a state table belongs to, and how it was declared."""

    table: str
    topology: str
    uuid: str
    declaration: dict[str, Any]


def refuse_storage(state: SqlState, label: str) -> NoReturn:
    raise StateTableError(
        f"state table {state.table!r}: storage={dict(state.storage)} is for PostgreSQL alone, and this is "
        f"{label}; leave it out"
    )


def check_length(state: SqlState) -> None:
    """Raise StateTableError for a table name that is too long to be recorded."""
    if len(state.table) > TABLE_LENGTH:
        raise StateTableError(f"state table {state.table!r}: a name has at most {TABLE_LENGTH} characters")


def check_types(state: SqlState) -> None:
    """Raise StateTableError for a type that DDL has no word for.

    The declaration kept beside the table could not be read back. Timestamps of a zone other than UTC
    are such a type. In the hour that is repeated when clocks go back, Python takes two of them for equal.
    """
    for field in (*state.key_schema, *state.value_schema):
        if not _has_word(field.type):
            raise StateTableError(
                f"state table {state.table!r}: column {field.name!r} of type {format_type(field.type)} "
                f"cannot be: a column has one of the types of DDL, such as string, bigint, timestamp (in "
                f"UTC) or timestamp_ntz; declare the nearest one, for the field that fills it too"
            )


@functools.lru_cache(maxsize=1024)
def _has_word(data_type: pa.DataType) -> bool:
    try:
        return bool(parse_schema(f"x {format_type(data_type)}").field(0).type.equals(data_type))
    except SchemaError:
        return False


def check_defaults(state: SqlState, semantics: Semantics) -> None:
    """Raise StateTableError for a default of None in an opaque table, whose value columns are NOT NULL."""
    is_null_refused = semantics is Semantics.OPAQUE and state.on_conflict is None
    if is_null_refused and None in state.defaults.values():
        name = next(name for name, value in state.defaults.items() if value is None)
        raise StateTableError(
            f"state table {state.table!r}: value columns of an opaque table are NOT NULL, so the default of "
            f"{name!r} cannot be None; give what its reducer begins with"
        )


def refuse_other_owner(owner: Owner, topology: str, uuid: str) -> None:
    """Raise IdentityMismatchError for a table that does not belong to this life of this topology."""
    if owner.topology != topology:
        raise IdentityMismatchError(
            f"state table {owner.table!r} belongs to topology {owner.topology!r}; choose another table for "
            f"{topology!r}, or drop that one with `txstream delete {owner.topology} --drop-state`"
        )
    if owner.uuid != uuid:
        raise IdentityMismatchError(
            f"state table {owner.table!r} belongs to an earlier life of topology {topology!r} (uuid "
            f"{owner.uuid}, now {uuid}); choose another table, or drop it with "
            f"`txstream delete {topology} --uuid {owner.uuid} --drop-state`"
        )


def refuse_other_declaration(owner: Owner, spec: TableSpec) -> None:
    """Raise StateTableError with the differences when the table cannot be migrated to this declaration."""
    refuse_differences(owner, refused_changes(owner.declaration, spec))


def refuse_differences(owner: Owner, differences: Sequence[str]) -> None:
    """Raise StateTableError if there are differences between a table and its present declaration."""
    if differences:
        raise StateTableError(
            f"state table {owner.table!r} is not as topology {owner.topology!r} declares it: "
            f"{'; '.join(differences)}. Choose another table under another topology id (--id), or start "
            f"afresh with `txstream delete {owner.topology} --drop-state`"
        )


def not_here(topology: str, table: str) -> ProgressMismatchError:
    """Return the error for a run, not the first, that does not find its state table."""
    return ProgressMismatchError(
        f"topology {topology!r} has committed batches, but its state table {table!r} is not in this "
        f"database; point at the database that it was run with, or start afresh with "
        f"`txstream delete {topology} --drop-state`"
    )


def declared_state(table: str, declaration: Mapping[str, Any]) -> SqlState:
    """Return the state that was declared so. Raises KeyError, ValueError or TypeError for what is none."""
    key, value = declaration["key"], declaration["value"]
    if "on_conflict" not in declaration:
        return SqlState(table, key=key, value=value)
    values = parse_schema(value)
    shown = pa.schema([field for field in values if field.name != REMOVED])
    found = SqlTable(
        table,
        shown,
        key=key,
        on_conflict=declaration["on_conflict"],
        removed_by=REMOVED if REMOVED in values.names else None,
        sequence_by=declaration.get("sequence_by"),
        transient=declaration.get("transient", False),
    )
    object.__setattr__(found, "copies", declaration.get("copies"))
    return found


def declared_spec(owner: Owner) -> TableSpec:
    """Return the table as its owner declared it, for reading: every reducer is Put. Raises CorruptStateError
    for a declaration that cannot be read."""
    try:
        declaration = owner.declaration
        state = declared_state(owner.table, declaration)
        semantics = Semantics(declaration["semantics"])
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptStateError(
            f"the declaration of table {owner.table!r} cannot be read: {owner.declaration!r:.200}"
        ) from error
    return TableSpec(state, semantics, {name: Put() for name in state.value_names})
