"""`txstream delete`, `txstream db upgrade` and `txstream package`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.api.errors import (
    CorruptStateError,
    LeaderExistsError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.cli.context import Cli
from txstream.cli.options import Id, command
from txstream.cli.stores import UnknownTopologyError, open_zookeeper, warn_of_missing
from txstream.inspect.stores import is_missing_file, open_databases
from txstream.words import counted

if TYPE_CHECKING:
    from txstream.inspect.records import MissingDatabase
    from txstream.inspect.stores import Databases
    from txstream.state import StateDatabase
    from txstream.zookeeper import ZooKeeper

db = typer.Typer(help="The framework's own tables.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    command(app, "delete", state_databases=True)(delete)
    app.add_typer(db, name="db")
    command(db, "upgrade", state_databases=True)(upgrade)
    command(app, "package", addresses=False, data_dir=False)(package)


def delete(
    cli: Cli,
    topology_id: Id,
    drop_state: Annotated[
        bool, typer.Option("--drop-state", help="Drop its state tables too: the results themselves.")
    ] = False,
    ignore_missing: Annotated[
        bool,
        typer.Option("--ignore-missing", help="Leave alone what is in databases that cannot be opened."),
    ] = False,
    uuid: Annotated[
        str | None,
        typer.Option(
            "--uuid",
            metavar="UUID",
            help="Only what belongs to this life of it, where one id stands for two.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a topology: its progress in ZooKeeper, and its ledger and fence in each of its databases."""
    settings = cli.resolve()
    settings.require_zookeeper()
    with (
        open_zookeeper(settings) as zookeeper,
        open_databases(settings, topology_id, all_given=True) as found,
    ):
        # Its tables may have stayed when it was deleted before: asked to drop them, look for those alone.
        known = any(found.fences.values()) or topology_id in zookeeper.topologies()
        if not known and not drop_state:
            raise UnknownTopologyError(topology_id)
        _refuse_missing(found.missing, ignored=ignore_missing)
        lives = _lives(zookeeper, topology_id, found)
        _refuse_two_lives(topology_id, lives, uuid)
        dead = _refuse_live_leader(zookeeper, topology_id)
        _ask(topology_id, drop_state=drop_state, yes=yes)
        # ZooKeeper first: what a crash leaves then is refused by the next run, and this command removes it.
        in_zookeeper = lives.get(_ZOOKEEPER, uuid) in (uuid, None) if uuid is not None else True
        if in_zookeeper:
            zookeeper.delete_topology(topology_id, force=dead)
        dropped = [
            table
            for database in found.opened
            for table in database.delete(topology_id, drop_state=drop_state, uuid=uuid)
        ]
        places = [
            url
            for url in (database.url_for_people for database in found.opened)
            if uuid is None or lives.get(url, uuid) == uuid
        ]
    if not known and not dropped:
        raise UnknownTopologyError(topology_id)
    if cli.as_json:
        cli.print_json(
            {
                "topology": topology_id,
                "zookeeper": zookeeper.hosts if in_zookeeper else None,
                "database": places[0] if places else None,
                "databases": places,
                "dropped_tables": dropped,
            }
        )
        return
    gone = [f"ZooKeeper at {zookeeper.hosts}"] if in_zookeeper else []
    cli.print(f"deleted {topology_id} from {' and from '.join([*gone, *places])}")
    if dropped:
        cli.print(f"dropped {', '.join(dropped)}")
    elif not drop_state:
        cli.say("its state tables stay; `--drop-state` would drop them, and works after this, too")


_ZOOKEEPER = "ZooKeeper"


def _lives(zookeeper: ZooKeeper, topology_id: str, found: Databases) -> dict[str, str]:
    """The uuids that this id stands for, by place; what cannot be read has none."""
    lives: dict[str, str] = {}
    with contextlib.suppress(CorruptStateError):
        identity = zookeeper.identity(topology_id)
        if identity is not None:
            lives[_ZOOKEEPER] = identity.uuid
    for place, fence in found.fences.items():
        if fence is not None:
            lives[place] = fence.uuid
    return lives


def _refuse_two_lives(topology_id: str, lives: Mapping[str, str], uuid: str | None) -> None:
    """Raises UsageError when one would be deleted with the other."""
    listed = ", ".join(f"{one} in {place}" for place, one in lives.items())
    if uuid is None and len({*lives.values()}) > 1:
        raise UsageError(
            f"topology id {topology_id!r} stands for different topologies here: uuid {listed}; say by --uuid "
            f"which of them is deleted"
        )
    if uuid is not None and lives and uuid not in lives.values():
        raise UsageError(f"topology {topology_id!r} has no uuid {uuid}; there is {listed}")


def _refuse_live_leader(zookeeper: ZooKeeper, topology_id: str) -> bool:
    """Is there a leader that is known to be dead? Raises LeaderExistsError for one that may live."""
    from txstream.cli.stores import is_dead

    leader = zookeeper.leader(topology_id)
    if leader is None:
        return False
    if is_dead(leader):
        return True
    raise LeaderExistsError(
        f"topology {topology_id!r} is run by {leader}; stop that driver, then delete it again"
    )


def _refuse_missing(missing: Sequence[MissingDatabase], *, ignored: bool) -> None:
    """Raises ServiceUnavailableError: what is left in a database would be refused by the next run."""
    if ignored:
        warn_of_missing(missing)
    elif missing:
        raise ServiceUnavailableError(
            f"{'; '.join(map(str, missing))}. If it is gone for good, `--ignore-missing` deletes the rest"
        )


def _ask(topology_id: str, *, drop_state: bool, yes: bool) -> None:
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    what = "its progress and its state tables" if drop_state else "its progress (its state tables stay)"
    typer.confirm(f"Delete {topology_id}: {what}?", abort=True, err=True)


def upgrade(
    cli: Cli,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print the SQL statements that would do it.")
    ] = False,
) -> None:
    """Bring the framework's tables in the database, or in several, to this version of txstream.

    What runs on them goes on. The first database that fails ends the command; those before it are upgraded,
    and the command can be typed again.
    """
    from txstream.state import open_sql_database

    settings = cli.resolve()
    if settings.uses_default_database and not dry_run:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    one_database = _print_upgrade if dry_run else _upgrade
    done = []
    for url in (settings.database_url(), *settings.state_databases):
        if dry_run and is_missing_file(url):
            raise ServiceUnavailableError(f"{url}: there is no such file; `txstream run` makes it")
        database = open_sql_database(url, connect_timeout_seconds=settings.connect_timeout_seconds)
        try:
            database.check()
            done.append({"database": database.url_for_people, **one_database(cli, database)})
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
            cli.print(f"{database.url_for_people} is at revision {after} already")
        else:
            cli.print(f"{database.url_for_people}: upgraded from {before or 'nothing'} to revision {after}")
    return {"from": before, "to": after}


def _print_upgrade(cli: Cli, database: StateDatabase) -> dict[str, str | None]:
    before, after, statements = database.upgrade_sql()
    if not cli.as_json:
        # A comment to SQL, so that what is printed can be given to the database's own shell.
        if before == after:
            cli.print(f"-- {database.url_for_people} is at revision {after} already")
        else:
            was = "nothing" if before is None else f"revision {before}"
            cli.print(f"-- {database.url_for_people}: from {was} to {after}\n{statements}")
    return {"from": before, "to": after, "sql": statements}


def package(
    cli: Cli,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.zip", help="Where to write the zip.")],
) -> None:
    """Write the framework as a zip, for executors that do not have it: `run --py-files FILE.zip`."""
    from txstream.packaging import write_package

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
