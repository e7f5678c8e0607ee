"""`txstream fork`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from txstream.cli.code import noted_code, remember_code
from txstream.cli.context import Cli
from txstream.cli.options import FactoryArguments, Id, command
from txstream.core.errors import UsageError


def register(app: typer.Typer) -> None:
    command(app, "fork", state_databases=True)(fork)


def fork(
    cli: Cli,
    topology_id: Id,
    name: Annotated[str, typer.Argument(metavar="NEW", help="The fork's id.")],
    savepoint: Annotated[
        str | None,
        typer.Option("--at", metavar="SAVEPOINT", help="Begin with the rows and places of a savepoint."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|TIME|TXID",
            help="Begin with no rows, at the first record there is, at the first of a time, or where a txid "
            "began.  [default: earliest]",
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            "--code", metavar="MODULE:FACTORY", help="What it is to run; unset: what ID last ran here."
        ),
    ] = None,
    parameter: FactoryArguments = None,
) -> None:
    """Make a topology beside another one, over tables TABLE__NEW. `txstream run MODULE:FACTORY --as NEW` runs
    it, while the original goes on."""
    from txstream.cli.factory import load_topology
    from txstream.inspect.json_documents import document
    from txstream.plugins.change.forking import EARLIEST, make_fork

    if savepoint is not None and start is not None:
        raise UsageError("a fork begins at a savepoint (--at) or in the log (--from), not at both")
    if code is None and parameter:
        raise UsageError("-p is for the factory of --code MODULE:FACTORY; give that, too")
    settings = cli.resolve()
    known = noted_code(cli.settings, topology_id) if code is None else (code, list(parameter or []))
    topology = None if known is None else load_topology(*known).with_id(topology_id)
    made = make_fork(topology_id, name, settings, savepoint=savepoint, start=start or EARLIEST, code=topology)
    if known is not None:
        settings.make_data_dir()
        remember_code(settings, name, *known, is_beside=True)
    if cli.as_json:
        cli.print_json(document(made))
        return
    cli.print(f"{name} is a fork of {topology_id}: it begins at {made.began}")
    target, parameters = known or ("MODULE:FACTORY", [])
    given = shlex.join([target, *(word for one in parameters for word in ("-p", one))])
    cli.print(f"run it beside {topology_id}: txstream run {given} --as {name}")
