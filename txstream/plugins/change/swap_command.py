"""`txstream swap`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.context import Cli, ask
from txstream.cli.options import Id, command
from txstream.core.errors import UsageError

if TYPE_CHECKING:
    from txstream.engine.start.takeover import Unsettled
    from txstream.plugins.change.swapping import Swapped


def register(app: typer.Typer) -> None:
    command(app, "swap", state_databases=True)(swap)


def settle(unsettled: Unsettled) -> None:
    """Finish a swap that a crash has broken off, and clear what is left of one that has not begun."""
    from txstream.state import StateDatabase

    rows = [one.last_batch() for one in unsettled.states]
    if any(row is not None and "swap" in row.details for row in rows):
        from txstream.plugins.change.swapping import settle as finish

        finish(unsettled)
    for one in unsettled.states:
        if isinstance(one.store, StateDatabase) and one.store.sessions.dialect.name == "mysql":
            from txstream.plugins.change.renaming_later import clear

            clear(one.store, one.life)


def swap(
    cli: Cli,
    topology_id: Id,
    fork: Annotated[str, typer.Argument(metavar="NEW", help="The fork.")],
    back: Annotated[bool, typer.Option("--back", help="Put back the tables of before the swap.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be, or why not.")] = False,
    drop: Annotated[
        bool, typer.Option("--drop-kept", help="Drop the tables that the swap has kept, and do nothing else.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Let a fork's tables take the names of a topology's. It goes on with the fork's code and places.
    Nothing may run either. Exit status 0 only when all of it is done."""
    from txstream.inspect.json_documents import document
    from txstream.plugins.change import swapping

    if drop:
        if back or dry_run:
            raise UsageError("--drop-kept is given alone")
        ask(f"Drop what {topology_id} has kept of the swap with {fork}?", yes=yes)
        dropped = swapping.drop_kept(topology_id, fork, cli.resolve())
        if cli.as_json:
            cli.print_json({"topology": topology_id, "fork": fork, "dropped_tables": dropped})
        else:
            cli.print(f"dropped {', '.join(dropped)}")
        return
    done = swapping.swap(
        topology_id, fork, cli.resolve(), back=back, dry_run=dry_run, confirm=partial(ask, yes=yes)
    )
    if cli.as_json:
        cli.print_json(document(done))
    else:
        cli.print(in_words(done))


def in_words(done: Swapped) -> str:
    """Return what a swap has done, or would do."""
    would = "" if done.is_done else "would be: "
    what = f"what was before the swap with {done.fork}" if done.back else f"those of {done.fork}"
    kept = f"; what was there is kept as {', '.join(done.kept.values())}" if done.kept else ""
    return f"{would}{', '.join(done.tables)} of {done.topology} are {what}, by txid {done.txid}{kept}"
