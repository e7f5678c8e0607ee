"""`txstream rewind`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.code import find_code, is_code_known
from txstream.cli.context import Cli, ask
from txstream.cli.options import Id, command
from txstream.core.errors import TxstreamError

if TYPE_CHECKING:
    from txstream.engine.start.takeover import Unsettled


def register(app: typer.Typer) -> None:
    command(app, "rewind", state_databases=True)(rewind)


def settle(unsettled: Unsettled) -> None:
    """Finish a rewind that a crash has broken off."""
    rows = [one.last_batch() for one in unsettled.states]
    if any(row is not None and "rewind" in row.details for row in rows):
        from txstream.plugins.change.rewinding import settle as finish

        finish(unsettled)


def rewind(
    cli: Cli,
    topology_id: Id,
    to: Annotated[str, typer.Argument(metavar="NAME|TXID", help="A savepoint, or a txid.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Put all states back to a savepoint or a txid. Nothing may run the topology; its next run goes on from
    the places of that txid. Exit status 0 only when all of it is done."""
    from txstream.inspect.json_documents import document
    from txstream.plugins.change.rewinding import rewind as go_back

    def confirm(question: str) -> None:
        for words in _followers(cli, topology_id):
            cli.say(words)
        ask(question, yes=yes)

    done = go_back(topology_id, to, cli.resolve(), confirm=confirm)
    if cli.as_json:
        cli.print_json(document(done))
        return
    by = f"savepoint {done.savepoint}, " if done.savepoint else ""
    cli.print(
        f"{topology_id} is as of {by}txid {done.to} again, by txid {done.txid}; "
        f"txid {done.undone[0]} to {done.undone[1]} are undone"
    )


def _followers(cli: Cli, topology_id: str) -> list[str]:
    """Return who follows the topology, in words; a rewind does not need to know."""
    from txstream.plugins.change.followers import Followers

    why = "its code is known only in the folder from which it was last run"
    if is_code_known(cli.settings, topology_id):
        try:
            made, _ = find_code(Cli(cli.settings, quiet=True), topology_id, None, None)
            return Followers.of(made).in_words()
        except TxstreamError as error:
            why = str(error)
    return [f"who follows {topology_id} is not known here: {why}"]
