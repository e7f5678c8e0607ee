"""`txstream status`, `topologies`, `batches` and `state top`: what is stored, read without touching it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.context import Cli
from txstream.cli.options import command
from txstream.cli.stores import (
    UnknownTopologyError,
    existing_database,
    missing_database,
    open_zookeeper,
    plain_partitions,
)
from txstream.transaction import epoch_of, sequence_of

if TYPE_CHECKING:
    from txstream.settings import Settings
    from txstream.state import BatchRecord, StateDatabase
    from txstream.zookeeper import Identity, Progress, ZooKeeper

state = typer.Typer(help="State tables.", no_args_is_help=True)

_LONGEST_RANGE_LIST = 4


def register(app: typer.Typer) -> None:
    from txstream.cli.status import status

    command(app, "status")(status)
    command(app, "topologies")(topologies)
    command(app, "batches")(batches)
    app.add_typer(state, name="state")
    command(state, "top")(top)


# --- topologies --------------------------------------------------------------------------------------------


def topologies(cli: Cli) -> None:
    """List the topologies that ZooKeeper or the database know."""
    settings = cli.resolve()
    with open_zookeeper(settings) as zookeeper, existing_database(settings) as database:
        listed = list_topologies(zookeeper, database)
    if cli.as_json:
        cli.print_json(listed)
        return
    if not listed:
        cli.say("there are no topologies yet; `txstream run MODULE:FACTORY` makes one")
        return
    cli.print_table(
        ["id", "semantics", ">committed txid", "leader", "tables", "note"],
        [
            [one["id"], one["semantics"], one["txid"], one["leader"], ", ".join(one["tables"]), one["note"]]
            for one in listed
        ],
    )


def list_topologies(zookeeper: ZooKeeper, database: StateDatabase | None) -> list[dict[str, Any]]:
    """One object per topology: id, uuid, semantics, last committed txid (0: none), leader, tables, note."""
    from txstream.cli.stored import read_progress

    stored = set(zookeeper.topologies())
    registered = {} if database is None else {row.topology: row for row in database.topologies()}
    return [
        {
            "id": topology_id,
            **(
                _from_zookeeper(zookeeper, topology_id, *read_progress(zookeeper, topology_id))
                if topology_id in stored
                else _from_database(database, topology_id)
            ),
        }
        for topology_id in sorted(stored | registered.keys())
    ]


def _from_zookeeper(
    zookeeper: ZooKeeper, topology_id: str, identity: Identity | None, progress: Progress | None
) -> dict[str, Any]:
    return {
        "uuid": identity.uuid if identity else None,
        "semantics": str(identity.semantics) if identity else None,
        "txid": progress.current - 1 if progress else 0,
        "leader": zookeeper.leader(topology_id),
        "tables": list(identity.tables) if identity else [],
        "note": None,
    }


def _from_database(database: StateDatabase | None, topology_id: str) -> dict[str, Any]:
    last = None if database is None else database.last_batch(topology_id)
    return {
        "uuid": last.uuid if last else None,
        "semantics": str(last.semantics) if last else None,
        "txid": last.txid if last else 0,
        "leader": None,
        "tables": [],
        "note": "not in this ZooKeeper",
    }


# --- batches -----------------------------------------------------------------------------------------------


def batches(
    cli: Cli,
    topology_id: Annotated[str, typer.Argument(metavar="ID", help="The topology's id.")],
    last: Annotated[
        int | None, typer.Option("--last", "-n", metavar="N", help="Only the newest N.", min=1)
    ] = None,
) -> None:
    """List a topology's batches, as its database's ledger has them, oldest first."""
    settings = cli.resolve()
    with existing_database(settings) as database:
        database = _having(settings, database, topology_id)
        records = database.batches(topology_id, limit=last)
    if cli.as_json:
        cli.print_json([batch_document(record) for record in records])
        return
    if not records:
        cli.say(f"{topology_id} has committed no batch yet")
        return
    cli.print_table(
        [">txid", "attempt", "status", ">tuples", ">keys", "committed at", "ranges"],
        [
            [
                record.txid,
                shown_attempt(record.attempt),
                record.status,
                record.tuples,
                record.keys,
                shown_time(record.committed_at),
                shown_ranges(record.metas),
            ]
            for record in records
        ],
    )


def _having(settings: Settings, database: StateDatabase | None, topology_id: str) -> StateDatabase:
    """The database if it knows the topology. Raises UnknownTopologyError; when ZooKeeper has the topology, it
    was run with another database, and the message says so."""
    if database is not None and database.read_fence(topology_id) is not None:
        return database
    if settings.zookeeper:
        with open_zookeeper(settings) as zookeeper:
            if topology_id in zookeeper.topologies():
                place = missing_database(settings) if database is None else database.url_for_people
                raise UnknownTopologyError(
                    topology_id,
                    f"topology {topology_id!r} is in ZooKeeper, but {place} has nothing of it; give the "
                    "database that it was run with by --database or TXSTREAM_DATABASE",
                )
    raise UnknownTopologyError(topology_id)


def batch_document(record: BatchRecord) -> dict[str, Any]:
    """A ledger row for scripts. `partitions` has what the batch read, with start and end alone."""
    document: dict[str, Any] = {
        "txid": record.txid,
        "attempt": record.attempt,
        "epoch": epoch_of(record.attempt),
        "status": record.status,
        "semantics": str(record.semantics),
        "tuples": record.tuples,
        "keys": record.keys,
        "partitions": plain_partitions(record.metas),
        "unavailable": record.metas.get("unavailable", {}),
        "planned_at": _iso(record.planned_at),
        "processed_at": _iso(record.processed_at),
        "committed_at": _iso(record.committed_at),
        "error": record.error,
    }
    skipped = {
        partition: {"from": meta["skipped_from"], "to": meta.get("start")}
        for partition, meta in {
            **record.metas.get("carried", {}),
            **record.metas.get("partitions", {}),
        }.items()
        if isinstance(meta, dict) and meta.get("skipped_from") is not None
    }
    if skipped:
        document["skipped"] = skipped
    return document


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def shown_attempt(attempt: int) -> str:
    """Epoch and sequence, as error messages write them."""
    return f"{epoch_of(attempt)}.{sequence_of(attempt)}"


def shown_time(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def shown_ranges(metas: dict[str, Any]) -> str:
    """A batch's ranges in a line; what it had to leave out, too."""
    parts = [
        f"{partition} {found['start']}-{found['end']}"
        if isinstance(found, dict) and "end" in found
        else partition
        for partition, found in sorted(plain_partitions(metas).items())
    ]
    if len(parts) > _LONGEST_RANGE_LIST:
        parts = [*parts[:_LONGEST_RANGE_LIST], f"and {len(parts) - _LONGEST_RANGE_LIST} more"]
    parts += [f"{partition} unavailable" for partition in sorted(metas.get("unavailable", {}))]
    return ", ".join(parts)


# --- state -------------------------------------------------------------------------------------------------


def top(
    cli: Cli,
    topology_id: Annotated[str, typer.Argument(metavar="ID", help="The topology's id.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="One of its state tables.")],
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", help="How many rows.", min=1)] = 10,
) -> None:
    """Show the rows of a state table with the greatest values."""
    settings = cli.resolve()
    with existing_database(settings) as database:
        database = _having(settings, database, topology_id)
        found = database.top(table, topology=topology_id, n=rows)
    if cli.as_json:
        cli.print_json([{name: plain_value(value) for name, value in row.items()} for row in found])
        return
    if not found:
        cli.say(f"table {table} has no rows yet")
        return
    numbers = {name for name, value in found[0].items() if isinstance(value, (int, float))}
    cli.print_table(
        [f">{name}" if name in numbers else name for name in found[0]], [list(row.values()) for row in found]
    )


def plain_value(value: Any) -> Any:
    """A column's value as JSON has it: times in ISO 8601, bytes in hexadecimal, decimals as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
