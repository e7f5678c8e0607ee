"""`txstream status [ID]`: what can be reached, who leads, how far a topology is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.api.errors import TxstreamError, UsageError
from txstream.cli.context import Cli
from txstream.cli.databases import (
    existing_database,
    open_zookeeper,
    warn_of_missing,
)
from txstream.cli.failing import failing_document, failing_text
from txstream.cli.inspection import (
    batch_document,
    print_topologies,
    shown_attempt,
    shown_ranges,
    shown_time,
    topology_document,
)
from txstream.cli.options import check_id
from txstream.cli.tables import escaped
from txstream.cli.tasks import show_tasks
from txstream.transaction import Txid
from txstream.words import counted

if TYPE_CHECKING:
    from txstream.inspect.records import TopologySummary
    from txstream.settings import Settings
    from txstream.zookeeper import Identity, Progress

# A service's address, and a remark; raises when it cannot be reached.
Check = Callable[["Settings"], tuple[str, str | None]]

_KAFKA_SOURCE = "txstream.spouts.kafka.KafkaSource"
_LAG_SECONDS = 3.0


def status(
    cli: Cli,
    topology_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A topology's id.", callback=check_id)
    ] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="With ID: where the tasks of a recent batch ran.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the topologies that have committed nothing and do not run.")
    ] = False,
) -> int:
    """Show which services answer, and how far topologies are."""
    if tasks and topology_id is None:
        raise UsageError("--tasks shows the tasks of one topology; give its ID, too")
    settings = cli.resolve()
    if tasks and topology_id is not None:
        return show_tasks(cli, settings, topology_id)
    if topology_id is not None:
        return _topology(cli, settings, topology_id)
    return _services(cli, settings, everything=everything)


# --- services ----------------------------------------------------------------------------------------------


def _services(cli: Cli, settings: Settings, *, everything: bool) -> int:
    checks: dict[str, tuple[str | None, Check]] = {
        "zookeeper": (settings.zookeeper, _check_zookeeper),
        "kafka": (settings.kafka, _check_kafka),
        "database": (None, _check_database),
    }
    # Side by side: three services that do not answer cost one deadline, not three.
    with ThreadPoolExecutor(len(checks)) as pool:
        found = pool.map(lambda given: _ask(given[0], given[1], settings), checks.values())
        answers = dict(zip(checks, found, strict=True))
    listed: list[TopologySummary] = []
    if answers["zookeeper"]["reachable"] and answers["database"]["reachable"]:
        from txstream.inspect.overview import topologies

        listed = topologies(settings)
    if cli.as_json:
        cli.print_json({"services": answers, "topologies": [topology_document(one) for one in listed]})
    else:
        for name, answer in answers.items():
            word = "ok" if answer["reachable"] else "NOT REACHABLE"
            detail = answer["error"] or answer["note"]
            cli.print(f"{name:<10} {word:<14} {answer['address'] or ''}{f'  {detail}' if detail else ''}")
        begun = [one for one in listed if everything or one.txid or one.leader or one.note]
        if begun:
            print_topologies(cli, begun)
        if len(begun) < len(listed):
            more = counted(len(listed) - len(begun), "topology", "topologies")
            cli.say(f"{more} without a committed batch left out; --all shows all")
    return 0 if all(answer["reachable"] for answer in answers.values()) else 1


def _ask(address: str | None, check: Check, settings: Settings) -> dict[str, Any]:
    try:
        address, note = check(settings)
    except TxstreamError as error:
        return {"address": address, "reachable": False, "note": None, "error": str(error)}
    return {"address": address, "reachable": True, "note": note, "error": None}


def _check_zookeeper(settings: Settings) -> tuple[str, str | None]:
    with open_zookeeper(settings):
        return settings.require_zookeeper(), None


def _check_kafka(settings: Settings) -> tuple[str, str | None]:
    from txstream.spouts.kafka_client import KafkaClient

    client = KafkaClient(settings.require_kafka(), {}, client_id="txstream-status")
    try:
        client.connect(settings.connect_timeout_seconds)
    finally:
        client.close()
    return settings.require_kafka(), None


def _check_database(settings: Settings) -> tuple[str, str | None]:
    with existing_database(settings) as database:
        if database is None:
            return str(settings.database_url().partition(":///")[2]), "no file yet; a run makes it"
        return database.url_for_people, None


# --- one topology ------------------------------------------------------------------------------------------


def _topology(cli: Cli, settings: Settings, topology_id: str) -> int:
    from txstream.inspect.databases import not_in_zookeeper, open_databases
    from txstream.inspect.documents import document as document_of
    from txstream.inspect.overview import failing_of, waiting_of
    from txstream.inspect.plain import positions, read_progress

    with (
        open_zookeeper(settings) as zookeeper,
        open_databases(settings, topology_id) as databases,
    ):
        identity, progress = read_progress(zookeeper, topology_id)
        if identity is None or progress is None:
            raise not_in_zookeeper(settings, topology_id)
        leader = zookeeper.leader(topology_id)
        failing = failing_of(zookeeper, topology_id, progress.current)
        waiting = waiting_of(zookeeper, topology_id, leader)
        rows = [row for db in databases.opened if (row := db.last_batch(topology_id)) is not None]
        last = max(rows, key=lambda row: row.txid, default=None)
        places = [database.url_for_people for database in databases.opened]
    warn_of_missing(databases.missing)
    committed = progress.batches.get(Txid(progress.current - 1))
    open_plans = [txid for txid in sorted(progress.batches) if txid >= progress.current]
    document: dict[str, Any] = {
        "topology": topology_id,
        "uuid": identity.uuid,
        "semantics": str(identity.semantics),
        "spout": identity.spout,
        "source": dict(identity.source),
        "tables": list(identity.tables),
        "database": places[0] if places else None,
        "databases": places,
        "leader": leader,
        "current_txid": progress.current,
        "stored_plans": open_plans,
        "last_batch": None if last is None else batch_document(last),
        "positions": {} if committed is None else positions(committed.metas),
        "lag_records": _lag(settings, identity, progress),
        "failing": None if failing is None else failing_document(failing),
        "waiting": document_of(waiting),
    }
    if cli.as_json:
        cli.print_json(document)
        return 0
    lines = {
        "topology": f"{topology_id} ({identity.semantics})",
        "source": f"{identity.spout} {dict(identity.source)}",
        "tables": f"{', '.join(identity.tables)} in {', '.join(places) or 'no database yet'}",
        "leader": leader or "none, it is not running",
        "next txid": f"{progress.current}{f', plans stored for {open_plans}' if open_plans else ''}",
        "lag": "not known" if document["lag_records"] is None else counted(document["lag_records"], "record"),
    }
    if last is not None:
        lines["last batch"] = (
            f"txid {last.txid} attempt {shown_attempt(last.attempt)}, {last.status} "
            f"{shown_time(last.committed_at) or ''}, {counted(last.tuples, 'tuple')}, "
            f"{shown_ranges(last.metas)}"
        )
        if last.error:
            lines["last error"] = escaped(last.error)
    if failing is not None:
        lines["failing"] = failing_text(failing)
    if waiting:
        lines["now"] = f"waiting for {escaped('; '.join(map(str, waiting)))}"
    cli.print_pairs(lines)
    return 0


def _lag(settings: Settings, identity: Identity, progress: Progress) -> int | None:
    """Records between the last committed batch and Kafka's end; None where that cannot be told quickly (no
    Kafka, another source, a cluster that wants credentials that only the topology's code has)."""
    if identity.spout != _KAFKA_SOURCE or not settings.kafka:
        return None
    topics, pattern = identity.source.get("topics"), identity.source.get("topic_pattern")
    from txstream.api.spouts import SpoutContext
    from txstream.metas import MetaCodec
    from txstream.spouts.kafka import KafkaRange, KafkaSource

    codec = MetaCodec(KafkaRange)
    committed = progress.batches.get(Txid(progress.current - 1))
    seconds = min(_LAG_SECONDS, settings.connect_timeout_seconds)
    context = SpoutContext("status", "status", settings.addresses(), seconds, seconds)
    try:
        metas = {} if committed is None else committed.metas.positions()
        places = {name: codec.decode_meta(meta, name) for name, meta in metas.items()}
        coordinator = KafkaSource(topics, topic_pattern=pattern).coordinator(context)
        try:
            return coordinator.lag_records(places, coordinator.targets())
        finally:
            coordinator.close()
    except TxstreamError:
        return None
