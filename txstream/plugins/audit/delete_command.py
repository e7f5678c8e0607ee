"""`txstream delete`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.context import Cli, ask
from txstream.cli.databases import UnknownTopologyError, open_zookeeper, warn_of_missing
from txstream.cli.options import Id, command
from txstream.core.entry_points import BELONGINGS, every
from txstream.core.errors import (
    CorruptStateError,
    LeaderExistsError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.inspect.databases import (
    databases_of,
    display_place,
    living_driver,
    open_databases,
)

if TYPE_CHECKING:
    from txstream.inspect.databases import Databases
    from txstream.inspect.records import MissingDatabase
    from txstream.settings import Settings
    from txstream.zookeeper import ZooKeeper


def register(app: typer.Typer) -> None:
    command(app, "delete", state_databases=True)(delete)


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
            help="Only what has this uuid, where ZooKeeper and databases do not agree.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a topology, in ZooKeeper and in its databases. Progress, ledger and fence go."""
    settings = cli.resolve()
    settings.require_zookeeper()
    with (
        open_zookeeper(settings) as zookeeper,
        open_databases(settings, topology_id, all_given=True) as found,
    ):
        here = topology_id in zookeeper.topologies()
        lives, others = _lives(settings, zookeeper, topology_id, found)
        # Its tables may have stayed when it was deleted before: with --drop-state, look for those alone.
        if not here and not lives and not drop_state:
            raise UnknownTopologyError(topology_id)
        _refuse_missing(found.missing, ignored=ignore_missing)
        life = _one_life(topology_id, lives, others, uuid)
        _refuse_living_driver(cli, zookeeper, topology_id)
        what = "its progress and its state tables" if drop_state else "its progress (its state tables stay)"
        where = " and ".join(place for place, one in lives.items() if one == life)
        ask(f"Delete {topology_id}{where and f' from {where}'}: {what}?", yes=yes)
        # ZooKeeper first: if we crash after this, the next run refuses what is left, and --uuid removes it.
        in_zookeeper = here and lives.get(_place(settings), life) == life and life in (None, *lives.values())
        if in_zookeeper:
            zookeeper.delete_topology(topology_id)
        # The main database (--database or the default) comes last: until then its fence names the others.
        dropped, others_stay = {}, list[str]()
        belongings = every(BELONGINGS, "belongings")
        for database in reversed(found.opened):
            url = database.display_url
            # What belongs to another life stays.
            looks = belongings if lives.get(url, life if uuid is None else None) == life else []
            theirs = [name for look in looks for name in look(database, topology_id, drop=drop_state)]
            others_stay += [] if drop_state else theirs
            tables = database.delete(topology_id, drop_state=drop_state, uuid=life)
            dropped[url] = tables + (theirs if drop_state else [])
    places = [url for url in reversed(dropped) if dropped[url] or lives.get(url, "") == life]
    tables = [table for url in places for table in dropped[url]]
    if not in_zookeeper and not places:
        nothing = f"topology {topology_id!r} has no uuid {uuid} here; there is {_listed(lives, others)}"
        raise UnknownTopologyError(topology_id) if uuid is None else UsageError(nothing)
    if cli.as_json:
        cli.print_json(
            {
                "topology": topology_id,
                "zookeeper": zookeeper.hosts if in_zookeeper else None,
                "database": places[0] if places else None,
                "databases": places,
                "dropped_tables": tables,
                **({"kept_tables": others_stay} if others_stay else {}),
            }
        )
        return
    gone = [_place(settings)] if in_zookeeper else []
    cli.print(f"deleted {topology_id} from {' and from '.join([*gone, *places])}")
    if tables:
        cli.print(f"dropped {', '.join(tables)}")
    elif not drop_state:
        also = f", and so do {', '.join(others_stay)}" if others_stay else ""
        cli.say(f"its state tables stay{also}; `--drop-state` would drop them, and works after this, too")


def _place(settings: Settings) -> str:
    return f"ZooKeeper at {settings.require_zookeeper()}"


def _lives(
    settings: Settings, zookeeper: ZooKeeper, topology_id: str, found: Databases
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the uuid that each place has for this id, and what the places have that should have one but do
    not."""
    from txstream.state import place_of

    lives: dict[str, str] = {}
    others: dict[str, str] = {}
    try:
        identity = zookeeper.identity(topology_id)
    except CorruptStateError as error:
        others[_place(settings)] = f"what cannot be read ({error})"
    else:
        if identity is None:
            others[_place(settings)] = "nothing"
        else:
            lives[_place(settings)] = identity.uuid
    named = {place_of(url) for fence in found.fences.values() if fence for url in databases_of(fence)}
    known = {
        database.display_url: found.fences[database.display_url] or database.last_batch(topology_id)
        for database in found.opened
    }
    lives |= {url: row.uuid for url, row in known.items() if row is not None}
    others |= {url: "nothing" for url, row in known.items() if row is None and place_of(url) in named}
    if not any(known.values()):
        others[display_place(settings)] = "nothing"
    return lives, others


def _one_life(
    topology_id: str, lives: Mapping[str, str], others: Mapping[str, str], uuid: str | None
) -> str | None:
    """Return the uuid to delete, wherever it is; None if there is none. Raises UsageError if it is not the
    same everywhere and was not asked for."""
    known = [*dict.fromkeys(lives.values())]
    if uuid is None and known and (others or len(known) > 1):
        raise UsageError(
            f"topology {topology_id!r} is not one and the same everywhere, so nothing was deleted: there is "
            f"{_listed(lives, others)}. Give the right addresses (--zookeeper, --database, "
            f"--state-database); if these are right, {' or '.join(f'`--uuid {one}`' for one in known)} "
            f"deletes what that one has here"
        )
    return uuid or next(iter(known), None)


def _listed(lives: Mapping[str, str], others: Mapping[str, str]) -> str:
    found = {**{place: f"uuid {one}" for place, one in lives.items()}, **others}
    return ", ".join(f"{what} in {place}" for place, what in found.items())


def _refuse_living_driver(cli: Cli, zookeeper: ZooKeeper, topology_id: str) -> None:
    living = living_driver(zookeeper, topology_id, cli.say)
    if living is not None:
        raise LeaderExistsError(
            f"topology {topology_id!r} is run by {living.driver}; stop that driver, then delete it again"
        )


def _refuse_missing(missing: Sequence[MissingDatabase], *, ignored: bool) -> None:
    """Raise ServiceUnavailableError for missing databases: the next run would refuse what is left in them."""
    if ignored:
        warn_of_missing(missing)
    elif missing:
        raise ServiceUnavailableError(
            f"{'; '.join(map(str, missing))}. If it is gone for good, `--ignore-missing` deletes the rest"
        )
