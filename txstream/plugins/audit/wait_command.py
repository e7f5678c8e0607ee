"""`txstream wait`: until the effect of a record is committed."""

from __future__ import annotations

from typing import Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.options import Id, command
from txstream.cli.tables import escaped


def register(app: typer.Typer) -> None:
    command(app, "wait", state_databases=True)(wait)


def wait(
    cli: Cli,
    topology_id: Id,
    topic: Annotated[str, typer.Option("--topic", metavar="T", help="The record's topic.")],
    partition: Annotated[int, typer.Option("--partition", metavar="P", help="Its partition.", min=0)],
    offset: Annotated[int, typer.Option("--offset", metavar="O", help="Its offset.", min=0)],
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for it.", min=0)
    ] = 60.0,
) -> int:
    """Wait until a record's effect is committed in all databases. Exit status 0: it is; 1: it is dead, late
    or left out; 4: not known within the timeout. Topology, record and databases need not be there yet."""
    from txstream import inspect
    from txstream.inspect.json_documents import document

    found = inspect.wait_for(
        topology_id,
        topic,
        partition,
        offset,
        cli.resolve(),
        timeout_seconds=timeout,
        told=lambda sentence: cli.say(escaped(sentence)),
    )
    if cli.as_json:
        cli.print_json(document(found))
    else:
        because = "" if found.reason is None else f": {found.reason}"
        cli.print(
            f"offset {offset} of {topic}/{partition} is {found.outcome}, txid {found.txid}{escaped(because)}"
        )
    return 0 if found.outcome == "committed" else 1
