"""`txstream state list | get | top | diff`: state tables, rendered."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.databases import warn_of_missing
from txstream.cli.options import Id, command
from txstream.cli.tables import quoted
from txstream.core.wording import counted
from txstream.inspect.json_documents import document, flat_row, plain_value

if TYPE_CHECKING:
    from txstream.core.semantics import Semantics
    from txstream.inspect.records import MissingDatabase, RowChange, StateRow, TableDiff

state = typer.Typer(help="Look at state tables.", no_args_is_help=True)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="One of its state tables.")]
Key = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY", help="One per key column; dates and times in ISO 8601, binary as hexadecimal."
    ),
]
In = Annotated[
    str | None,
    typer.Option(
        "--in", metavar="DATABASE", help="Part of a database's URL, where two have a table of this name."
    ),
]


def register(app: typer.Typer) -> None:
    app.add_typer(state, name="state")
    for function, name in ((list_tables, "list"), (get, "get"), (top, "top"), (diff, "diff")):
        command(state, name, state_databases=True)(function)


def list_tables(cli: Cli, topology_id: Id) -> None:
    """List a topology's state tables. Says where they are, how declared, and how many rows they have."""
    from txstream import inspect

    missing: list[MissingDatabase] = []
    tables = inspect.states(topology_id, cli.resolve(), missing=missing)
    warn_of_missing(missing)
    if cli.as_json:
        cli.print_json(document(tables))
        return
    if not tables:
        cli.say(f"{topology_id} has no state tables")
        return
    cli.print_table(
        ["table", "key", "value", "?semantics", ">rows", ">as of txid", "?database"],
        [[t.table, t.key, t.value, t.semantics, t.rows, t.as_of, t.database] for t in tables],
    )
    _say_notes(cli, [note for table in tables for note in table.notes])


def get(
    cli: Cli,
    topology_id: Id,
    table: Table,
    key: Key,
    place: In = None,
) -> int:
    """Show one row of a state table. With its txid, and the value that it had before."""
    from txstream import inspect

    found = inspect.get(topology_id, table, key, cli.resolve(), database=place, parse=True)
    if cli.as_json:
        cli.print_json(
            {
                "database": found.database,
                "table": found.table,
                "as_of": found.as_of,
                "row": document(found.rows[0]) if found.rows else None,
                "notes": list(found.notes),
            }
        )
        return 0 if found.rows else 1
    _say_notes(cli, found.notes)
    if not found.rows:
        wanted = ", ".join(str(quoted(one)) for one in key)
        cli.say(f"table {table} has no row of key {wanted} as of txid {found.as_of}")
        return 1
    _print_rows(cli, found.rows, found.semantics, has_prev=found.has_prev)
    cli.say(f"as of txid {found.as_of}, in {found.database}")
    return 0


def top(
    cli: Cli,
    topology_id: Id,
    table: Table,
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", help="How many rows.", min=1)] = 10,
    place: In = None,
) -> None:
    """Show the rows of a state table with the greatest values."""
    from txstream import inspect

    found = inspect.top(topology_id, table, rows, cli.resolve(), database=place)
    if cli.as_json:
        cli.print_json([flat_row(row, found.semantics, has_prev=found.has_prev) for row in found.rows])
        return
    _say_notes(cli, found.notes)
    if not found.rows:
        cli.say(f"table {table} has no rows yet")
        return
    _print_rows(cli, found.rows, found.semantics, has_prev=found.has_prev)


def diff(
    cli: Cli,
    topology_id: Id,
    table: Table,
    txid: Annotated[int, typer.Option("--txid", metavar="N", help="A txid that the ledger has.")],
    rows: Annotated[
        int | None,
        typer.Option("--rows", "-n", metavar="N", help="At most so many rows; unset: all.", min=1),
    ] = None,
    place: In = None,
) -> None:
    """Show what one batch changed in a table. Only the last change of a row is known."""
    from txstream import inspect

    found = inspect.diff(topology_id, table, txid, cli.resolve(), database=place, limit=rows)
    if cli.as_json:
        cli.print_json(document(found))
        return
    _print_diff(cli, found)
    _say_notes(cli, found.notes)


# --- rendering ---------------------------------------------------------------------------------------------


def _print_rows(cli: Cli, rows: Sequence[StateRow], semantics: Semantics, *, has_prev: bool = False) -> None:
    flat = [flat_row(row, semantics, _cell, has_prev=has_prev) for row in rows]
    _print_cells(cli, list(flat[0]), [list(row.values()) for row in flat])


def _print_cells(cli: Cli, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    numbers = [any(_is_number(row[at]) for row in rows) for at in range(len(names))]
    cli.print_table([f">{name}" if n else name for name, n in zip(names, numbers, strict=True)], rows)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _cell(value: object) -> object:
    """Return a column's value as a table shows it."""
    return value if isinstance(value, Decimal) else quoted(plain_value(value))


def _print_diff(cli: Cli, found: TableDiff) -> None:
    changes = [*found.created, *found.changed, *found.removed]
    if changes:
        keys, values = list(changes[0].key), list(changes[0].after or changes[0].before or ())
        _print_cells(
            cli,
            ["change", *keys, *(title for name in values for title in (f"{name} before", name))],
            [[_verb(change), *_cells(change, keys, values)] for change in changes],
        )
    if found.carrying:
        _print_rows(cli, found.carrying, found.semantics)
    cli.print(f"txid {found.txid} is {found.status}; {_counted(found)}")


def _verb(change: RowChange) -> str:
    return "removed" if change.after is None else "created" if change.before is None else "changed"


def _counted(found: TableDiff) -> str:
    shown = len(found.created) + len(found.changed) + found.unchanged
    if found.carrying and not shown:
        return f"{counted(found.carrying_count, 'row')} of {found.table} were last changed by it"
    words = [
        f"created {counted(len(found.created), 'row')} of {found.table}",
        f"changed {len(found.changed):,}",
    ]
    if found.removed:
        words.append(f"removed {len(found.removed):,}")
    if found.unchanged:
        words.append(f"touched {found.unchanged:,} without a change")
    if found.carrying:
        words.append(f"{len(found.carrying):,} of which nobody knows what they were before")
    shown += len(found.removed) + len(found.carrying)
    part = "" if shown == found.carrying_count else f"of the {counted(shown, 'row')} that are shown it "
    return part + ", ".join(words)


def _cells(change: RowChange, keys: Sequence[str], values: Sequence[str]) -> list[object]:
    cells = [_cell(change.key[name]) for name in keys]
    for name in values:
        cells += [None if one is None else _cell(one[name]) for one in (change.before, change.after)]
    return cells


def _say_notes(cli: Cli, notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        cli.say(f"note: {note}")
