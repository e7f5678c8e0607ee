"""`txstream why`: which records made a value, found by running committed batches again, dry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.code import Parameters, Target, find_code, running
from txstream.cli.context import Cli
from txstream.cli.options import Id, command
from txstream.cli.state import Key, Table
from txstream.cli.tables import escaped, quoted
from txstream.core.wording import counted
from txstream.inspect.json_documents import document, plain_value

if TYPE_CHECKING:
    from txstream.plugins.audit.provenance import Why, WhyPart


def register(app: typer.Typer) -> None:
    command(app, "why", state_databases=True)(why)


def why(
    cli: Cli,
    topology_id: Id,
    table: Table,
    key: Key,
    target: Target = None,
    parameter: Parameters = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many parts.", min=1)] = 20,
    within: Annotated[
        int, typer.Option("--within", metavar="N", help="Look at most so many batches back.", min=1)
    ] = 1000,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Ranges of partitions instead of offsets, which is sooner done.")
    ] = False,
) -> int:
    """Show which records made a value. Their txid, partition and offset, the newest first; for that, batches
    are run again, dry, in this process or, with --master, on Spark."""
    from txstream import inspect

    made, code = find_code(cli, topology_id, target, parameter)
    with running(cli, code) as (settings, on_spark):
        found = inspect.why(
            made,
            table,
            key,
            settings,
            limit=limit,
            within=within,
            exact=not ranges,
            parse=True,
            on_spark=on_spark,
        )
    if cli.as_json:
        cli.print_json(_why_document(found))
    elif found.value is not None:
        print_why(cli, found)
    if found.value is None:
        wanted = ", ".join(str(quoted(one)) for one in key)
        cli.say(f"table {table} has no row of key {wanted} as of txid {found.as_of}")
        return 1
    return 0


def _why_document(found: Why) -> dict[str, Any]:
    """Return `found` as JSON values. `delta` and `value` of a part are by column; for a table with one value
    column they are that column's."""
    only = found.value is not None and len(found.value) == 1

    def flat(values: Any) -> Any:
        plain = document(values)
        return next(iter(plain.values()), None) if only else plain

    return {
        **document(replace(found, parts=())),
        "parts": [
            {**document(part), "delta": flat(part.delta), "value": flat(part.value)} for part in found.parts
        ],
    }


def print_why(cli: Cli, found: Why) -> None:
    value = found.value or {}
    only = len(value) == 1
    names = [f">{kind}" if only else f">{kind} {name}" for name in value for kind in ("delta", "value")]
    # The column is there only if there is something to show in it.
    made = ["made"] if any(part.made for part in found.parts) and not only else []
    if found.parts:
        cli.print_table(
            [">txid", "partition", ">offset", *names, *made],
            [
                [
                    part.txid,
                    part.partition or "all of them",
                    _place(part),
                    *(plain_value(values.get(name)) for name in value for values in (part.delta, part.value)),
                    *(", ".join(part.made) for _ in made),
                ]
                for part in found.parts
            ],
        )
    shown = ", ".join(f"{name} {plain_value(one)}" for name, one in value.items())
    whole = "all of it" if found.is_complete else "a part of it"
    cli.say(f"{escaped(shown)} as of txid {found.as_of}: {counted(len(found.parts), 'part')}, {whole}")
    for note in found.notes:
        cli.say(f"note: {escaped(note)}")


def _place(part: WhyPart) -> str | None:
    if part.offset is not None:
        return f"{part.offset:,}"
    return None if part.start is None or part.end is None else f"{part.start:,} to {part.end - 1:,}"
