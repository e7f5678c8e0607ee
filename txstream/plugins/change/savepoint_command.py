"""`txstream savepoint create`, `list` and `drop`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txstream.cli.context import Cli, ask
from txstream.cli.inspection import shown_time
from txstream.cli.options import Id, command

Name = Annotated[str, typer.Argument(metavar="NAME", help="The savepoint's name.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Keep a topology's states as of one txid, to go back to.", no_args_is_help=True)
    for name, function in (("create", create), ("list", list_), ("drop", drop)):
        command(group, name, state_databases=True)(function)
    app.add_typer(group, name="savepoint")


def create(
    cli: Cli,
    topology_id: Id,
    name: Name,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Parquet files in a new folder, instead of tables."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="How long to wait for a common txid.", min=0),
    ] = 60.0,
) -> None:
    """Copy all states as of the last committed batch, while the topology goes on."""
    from txstream.plugins.change.savepoints import create_savepoint

    made = create_savepoint(topology_id, name, cli.resolve(), to=to, timeout_seconds=timeout)
    if cli.as_json:
        cli.print_json({"topology": topology_id, **made.to_document()})
        return
    tables = [one.copy for part in made.parts.values() for one in part.tables]
    cli.print(f"savepoint {name} of {topology_id} is as of txid {made.txid}: {', '.join(tables)}")


def list_(cli: Cli, topology_id: Id) -> None:
    """List a topology's savepoints."""
    from txstream.plugins.change.savepoints import savepoints

    found = savepoints(topology_id, cli.resolve())
    whole, half = ([one for one in found if one.is_whole is wanted] for wanted in (True, False))
    if cli.as_json:
        document: dict[str, object] = {"savepoints": [one.to_document() for one in whole]}
        if half:
            document["half_made"] = [one.to_document() for one in half]
        cli.print_json(document)
        return
    cli.print_table(
        ["name", ">txid", "made", ">bytes", "where"],
        [
            (
                one.name,
                one.txid,
                shown_time(one.at),
                one.bytes,
                next(iter(one.parts.values())).folder or "tables",
            )
            for one in whole
        ],
    )
    for one in half:
        cli.say(f"{one.name} is half made; `txstream savepoint drop {topology_id} {one.name}` removes it")


def drop(
    cli: Cli,
    topology_id: Id,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a savepoint, whole or half made."""
    from txstream.plugins.change.savepoints import drop_savepoint

    ask(f"Drop savepoint {name} of {topology_id}?", yes=yes)
    gone = drop_savepoint(topology_id, name, cli.resolve())
    if cli.as_json:
        cli.print_json({"topology": topology_id, **gone.to_document()})
        return
    cli.print(f"dropped savepoint {name} of {topology_id}")
