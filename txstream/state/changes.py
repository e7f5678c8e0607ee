"""A changed declaration: which differences can be migrated, and how the others are refused.

Value columns may be added, each with a default; every other change is refused. These functions are pure, so
that every backend gives the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstream.api.schema import format_type, parse_schema
from txstream.api.state import REMOVED, SqlState
from txstream.core.errors import SchemaError, StateTableError
from txstream.core.transaction import Txid
from txstream.state.records import TableSpec

CREATING = "creating"
"""In the stored declaration of a table that may not exist yet."""


def added_values(declared: Mapping[str, Any], spec: TableSpec) -> tuple[str, ...]:
    """Return the value columns that `spec` adds to the `declared` table; () when there are none."""
    before = declared_values(declared)
    if before is None:
        return ()
    return tuple(name for name in spec.state.value_names if name not in before.names)


def refused_changes(declared: Mapping[str, Any], spec: TableSpec) -> list[str]:
    """Return one sentence for each difference from the table's declaration that cannot be migrated."""
    now = spec.state.declaration(spec.semantics)
    sentences = []
    for part in (*now, *sorted(declared.keys() - now.keys() - {CREATING})):
        if declared.get(part) != now.get(part):
            reasons = _refused_values(declared, spec.state) if part == "value" else [""]
            said = f"its {part} was declared {declared.get(part)!r} and is now {now.get(part)!r}"
            sentences += [f"{said}{reason}" for reason in reasons]
    return sentences


def committed_in_part(table: str, added: Sequence[str], txid: Txid) -> StateTableError:
    """Return the error for columns added while a transactional txid is committed in part. Its replay skips
    the rows that it has already written, so these would never get their value for the new column."""
    return StateTableError(
        f"state table {table!r}: column {', '.join(map(repr, added))} cannot be added while txid {txid} is "
        f"committed in part; run the topology as it was until that txid is done (`--until-txid {txid}`), "
        f"then as it is now"
    )


def declared_values(declared: Mapping[str, Any]) -> pa.Schema | None:
    """Return the value columns of a stored declaration; None if they cannot be read."""
    try:
        return parse_schema(declared.get("value", ""))
    except (SchemaError, TypeError, AttributeError):
        return None


def _refused_values(declared: Mapping[str, Any], state: SqlState) -> list[str]:
    """Return why the values are not the former ones plus some that have a default; [] when they are."""
    before, now = declared_values(declared), state.value_schema
    if before is None:
        return [""]
    if REMOVED in before.names or REMOVED in now.names:
        return [" (the values of a table with removed_by do not change, nor does it get or lose that)"]
    gone = [name for name in before.names if name not in now.names]
    new = [name for name in now.names if name not in before.names]
    if gone:
        renamed = f", {_listed(new)} added: a column cannot be renamed" if new else ""
        return [f" ({_listed(gone)} removed{renamed})"]
    other = [
        f"{field.name!r} was {format_type(field.type)} and is {format_type(now.field(field.name).type)}"
        for field in before
        if not field.type.equals(now.field(field.name).type)
    ]
    if other:
        return [f" ({', '.join(other)})"]
    if [name for name in now.names if name in before.names] != before.names:
        return [" (their order changed)"]
    without = [name for name in new if name not in state.defaults]
    if without:
        example = ", ".join(f"{name!r}: ..." for name in without)
        return [
            f" ({_listed(without)} added without a default: SqlState(..., defaults={{{example}}}) says what "
            f"the rows that are there get)"
        ]
    return []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
