"""`txstream db upgrade` and `package`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.options import command
from txstream.core.errors import (
    ServiceUnavailableError,
    UsageError,
)
from txstream.core.wording import counted
from txstream.inspect.databases import (
    is_missing_file,
    without_password,
)

if TYPE_CHECKING:
    from txstream.state import StateDatabase

db = typer.Typer(help="The framework's own tables.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(db, name="db")
    command(db, "upgrade", state_databases=True)(upgrade)
    command(app, "package", addresses=False, data_dir=False)(package)


def upgrade(
    cli: Cli,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print the SQL statements that would do it.")
    ] = False,
) -> None:
    """Bring the framework's tables to this version of txstream.

    What runs on them goes on. The first database that fails ends the command; those before it are upgraded,
    and the command can be typed again.
    """
    from txstream.state import open_sql_database

    settings = cli.resolve()
    if settings.uses_default_database and not dry_run:
        settings.make_data_dir()
    one_database = _print_upgrade if dry_run else _upgrade
    done = []
    for url in (settings.database_url(), *settings.state_databases):
        if dry_run and is_missing_file(url):
            raise ServiceUnavailableError(
                f"{without_password(url)}: there is no such file; `txstream run` makes it"
            )
        database = open_sql_database(url, connect_timeout_seconds=settings.connect_timeout_seconds)
        try:
            database.check()
            done.append({"database": database.display_url, **one_database(cli, database)})
        finally:
            database.close()
    if cli.as_json:
        cli.print_json({**done[0], "state_databases": done[1:]} if done[1:] else done[0])
    elif dry_run:
        cli.say("nothing was changed (--dry-run)")


def _upgrade(cli: Cli, database: StateDatabase) -> dict[str, str | None]:
    before, after = database.upgrade()
    if not cli.as_json:
        if before == after:
            cli.print(f"{database.display_url} is at revision {after} already")
        else:
            cli.print(f"{database.display_url}: upgraded from {before or 'nothing'} to revision {after}")
    return {"from": before, "to": after}


def _print_upgrade(cli: Cli, database: StateDatabase) -> dict[str, str | None]:
    before, after, statements = database.upgrade_sql()
    if not cli.as_json:
        # An SQL comment, so that the output can be fed to the database's own shell.
        if before == after:
            cli.print(f"-- {database.display_url} is at revision {after} already")
        else:
            was = "nothing" if before is None else f"revision {before}"
            cli.print(f"-- {database.display_url}: from {was} to {after}\n{statements}")
    return {"from": before, "to": after, "sql": statements}


def package(
    cli: Cli,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.zip", help="Where to write the zip.")],
) -> None:
    """Write the framework as a zip, for executors without it. `run --py-files FILE.zip` takes it along."""
    from txstream.cli.packaging import write_package

    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; name a file in it, for example {out / 'txstream.zip'}")
    written = write_package(out)
    if cli.as_json:
        cli.print_json({"path": str(written.path), "files": written.files, "bytes": written.size_bytes})
    else:
        cli.print(
            f"wrote {written.path} ({counted(written.files, 'file')}, {written.size_bytes // 1024} KiB)"
        )
        cli.say(f"pass it to a run on a cluster: txstream run --py-files {written.path} ...")
