"""`txstream status [ID]`: which services answer, who leads, how far a topology is.

With `--tasks`, where the tasks of a recent batch ran. Of a topology of tracked tuples, how its trees do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.context import Cli
from txstream.cli.databases import (
    UnknownTopologyError,
    existing_database,
    open_zookeeper,
    warn_of_missing,
)
from txstream.cli.failures_shown import failing_text
from txstream.cli.inspection import (
    print_topologies,
    shown_attempt,
    shown_ranges,
    shown_time,
    topology_document,
)
from txstream.cli.options import check_id
from txstream.cli.tables import escaped
from txstream.core.errors import CorruptStateError, TxstreamError, UsageError
from txstream.core.placement import own_seconds
from txstream.core.transaction import epoch_of
from txstream.core.wording import counted, in_order
from txstream.inspect.databases import is_tracked, tracks_tuples

if TYPE_CHECKING:
    from txstream.core.placement import Assignment
    from txstream.inspect.records import TopologyStatus, TopologySummary
    from txstream.inspect.snapshot import Snapshot
    from txstream.inspect.source import SourceNow
    from txstream.inspect.standing import Standing
    from txstream.settings import Settings

# Returns a service's address and a remark. Raises when the service cannot be reached.
Check = Callable[["Settings"], tuple[str, str | None]]

_WATCH_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J"


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
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")
    ] = False,
) -> int:
    """Show which services answer, and how far topologies are."""
    if tasks and topology_id is None:
        raise UsageError("--tasks shows the tasks of one topology; give its ID, too")
    if watch and cli.as_json:
        raise UsageError("--watch shows it to a person; leave out --json, or ask again yourself")
    settings = cli.resolve()

    def show() -> int:
        return _show(cli, settings, topology_id, tasks=tasks, everything=everything)

    return _watch(cli, show) if watch else show()


def _watch(cli: Cli, show: Callable[[], int], pause: Callable[[float], object] = time.sleep) -> int:
    """Show again and again. What cannot be shown now is said, and may be back the next time."""
    try:
        while True:
            if sys.stdout.isatty():
                cli.print(_CLEAR)
            cli.print(f"{datetime.now().astimezone():%H:%M:%S}")
            try:
                show()
            except TxstreamError as error:
                cli.print(str(error))
            pause(_WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0


def _show(cli: Cli, settings: Settings, topology_id: str | None, *, tasks: bool, everything: bool) -> int:
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
    # In parallel: three services that do not answer cost one deadline, not three.
    with ThreadPoolExecutor(len(checks)) as pool:
        found = pool.map(lambda given: _ask(given[0], given[1], settings), checks.values())
        answers = dict(zip(checks, found, strict=True))
    listed: list[TopologySummary] = []
    if answers["zookeeper"]["reachable"]:
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
    from txstream.spouts.kafka.client import KafkaClient

    client = KafkaClient(settings.require_kafka(), {}, client_id="txstream-status")
    try:
        client.connect(settings.connect_timeout_seconds)
    finally:
        client.close()
    return settings.require_kafka(), None


def _check_database(settings: Settings) -> tuple[str, str | None]:
    from txstream.inspect.databases import without_password

    with existing_database(settings) as database:
        if database is None:
            _, _, path = without_password(settings.database_url()).partition(":///")
            return path, "no file yet; a run makes it"
        return database.display_url, None


# --- one topology ------------------------------------------------------------------------------------------


def _topology(cli: Cli, settings: Settings, topology_id: str) -> int:
    with open_zookeeper(settings) as zookeeper:
        from txstream.inspect.standing import standing_document, standing_of

        stands = standing_of(settings, topology_id, zookeeper)
    warn_of_missing(stands.missing)
    found, snapshot, source, last = stands.status, stands.snapshot, stands.source, stands.last
    if cli.as_json:
        cli.print_json(standing_document(stands))
        return 0
    paused = _paused_line(snapshot)
    plans = f", plans stored for {list(found.stored_plans)}" if found.stored_plans else ""
    if "tracked" in found.source:
        return _tracked(cli, stands, paused)
    lines = {
        "topology": f"{topology_id} ({found.semantics})",
        "source": f"{found.spout} {found.source}",
        "tables": f"{', '.join(found.tables)} in {stands.shown_places}",
        **_drivers(found),
        **_health(stands),
        **paused,
        **{one.name: escaped(one.told) for one in stands.remarks},
        "next txid": f"{found.current_txid}{plans}",
        "lag": _lag(source),
    }
    if source.unavailable:
        lines["away"] = "; ".join(
            f"{escaped(name)} cannot be read: {escaped(source.unavailable[name])}"
            for name in sorted(source.unavailable, key=in_order)
        )
    if source.held_back:
        lines["held back"] = "; ".join(
            f"{counted(one.records, 'record')} of {escaped(name)} behind {escaped(one.behind)}"
            for name, one in sorted(source.held_back.items(), key=lambda item: in_order(item[0]))
        )
    if found.behind:
        lines["leaving"] = "; ".join(
            f"{escaped(name)} is {counted(txids, 'txid')} behind"
            for name, txids in sorted(found.behind.items())
        )
    if last is not None:
        lines["last batch"] = (
            f"txid {last.txid} attempt {shown_attempt(last.attempt)}, {last.status} "
            f"{shown_time(last.committed_at) or ''}, {counted(last.tuples, 'tuple')}, "
            f"{shown_ranges(last.metas)}"
        )
        failed = stands.last_error
        if failed is not None:
            at = "" if failed.failed_at is None else f" at {shown_time(failed.failed_at)}"
            lines["last error"] = f"before txid {last.txid} was committed{at}: {escaped(failed.error)}"
    if stands.dead_letters:
        late = f", {stands.late_records:,} of them late" if stands.late_records else ""
        lines["dead"] = (
            f"{counted(stands.dead_letters, 'record')} left out{late}; "
            f"`txstream dead-letters list {topology_id}` says why"
        )
    watermark = stands.watermark
    if watermark.at is not None or watermark.held_by:
        at = "none yet" if watermark.at is None else shown_time(watermark.at) or ""
        held = f", held back by {', '.join(map(escaped, watermark.held_by))}" if watermark.held_by else ""
        lines["watermark"] = f"{at}{held}"
    if found.failing is not None:
        lines["retrying" if found.failing.may_pass else "failing"] = failing_text(found.failing)
    cli.print_pairs(lines)
    return 0


def _health(stands: Standing) -> dict[str, str]:
    return {} if stands.health is None else {"health": escaped(str(stands.health))}


def _tracked(cli: Cli, stands: Standing, paused: dict[str, str]) -> int:
    found = stands.status
    lines = {
        "topology": f"{found.id} (tracked)",
        "spouts": ", ".join(f"{name} ({spout})" for name, spout in found.source["tracked"].items()),
        **_drivers(found),
        **_health(stands),
        **paused,
    }
    if found.trees is not None:
        lines |= {
            "as of": shown_time(datetime.fromisoformat(found.trees["at"])) or "",
            **tree_lines(found.trees),
        }
    cli.print_pairs(lines)
    if found.trees is not None:
        print_tree_counts(cli, found.trees)
    return 0


def _paused_line(snapshot: Snapshot) -> dict[str, str]:
    """Return a line that says whether the topology is paused, or is to be."""
    now, following = snapshot.in_force.paused, snapshot.paused_next
    if now is None and following is None:
        return {}
    driver = "the driver that runs it, now or next, carries it out"
    if now is None:
        told = f"not yet, asked for {escaped(following.shown if following else '')}; {driver}"
    elif following is None:
        told = f"{escaped(now.shown)}; it is to go on, and {driver}"
    else:
        told = f"{escaped(now.shown)}; `txstream resume {snapshot.topology}` goes on"
    return {"paused": told}


def _lag(source: SourceNow) -> str:
    if source.lag_records is not None:
        return counted(source.lag_records, "record")
    away = counted(len(source.unavailable), "partition")
    return f"not known: {escaped(source.unknown) if source.unknown else f'{away} cannot be read'}"


def _drivers(found: TopologyStatus) -> dict[str, str]:
    """Return lines about the leader and, if there are any, the standbys."""
    lines = {"leader": found.leader or "none, it is not running"}
    shown = [
        f"{one.standby or 'standing by'}, {one.driver} since {shown_time(one.since) or 'a time not told'}"
        for one in found.standbys
    ]
    return lines | {"standbys": f"{len(shown)}: {'; '.join(map(escaped, shown))}"} if shown else lines


def show_tasks(cli: Cli, settings: Settings, topology_id: str) -> int:
    """Print the stored assignment of tasks. Raises UnknownTopologyError, CorruptStateError."""
    with open_zookeeper(settings) as zookeeper:
        from txstream.core.batch_metas import MetaCodec
        from txstream.zookeeper import ASSIGNMENT, EDGES, Paths
        from txstream.zookeeper.paths import with_remedy

        if topology_id not in zookeeper.topologies():
            raise UnknownTopologyError(topology_id)
        if is_tracked(zookeeper, topology_id):
            raise tracks_tuples(topology_id)
        try:
            notes = zookeeper.progress(topology_id, MetaCodec(Paths)).notes
            assignment, passed = notes.get(ASSIGNMENT), notes.get(EDGES)
        except CorruptStateError as error:
            raise with_remedy(error, topology_id) from error
        leader = zookeeper.leader(topology_id)
    if assignment and passed and assignment.attempt == passed.attempt:
        assignment = replace(assignment, edges=passed.edges)
    if cli.as_json:
        document = None if assignment is None else _document(assignment)
        cli.print_json({"topology": topology_id, "leader": leader, "assignment": document})
    elif assignment is None:
        cli.say(f"{topology_id} has no tasks to show yet; its driver stores them with its first batch")
    else:
        _print(cli, topology_id, leader, assignment)
    return 0


def _document(assignment: Assignment) -> dict[str, Any]:
    return {
        "txid": assignment.txid,
        "attempt": assignment.attempt,
        "epoch": epoch_of(assignment.attempt),
        "at": assignment.at.isoformat(),
        "left_out": assignment.left_out,
        "by_residents": assignment.by_residents,
        "tasks": [
            {
                "component": place.component,
                "task": place.task,
                "slot": place.slot,
                "worker": place.worker,
                "host": place.host,
                "seconds": place.seconds,
                "tuples": place.tuples,
            }
            for place in assignment.in_order()
        ],
        "edges": [edge._asdict() for edge in assignment.edges],
    }


def _print(cli: Cli, topology_id: str, leader: str | None, assignment: Assignment) -> None:
    attempt, time = shown_attempt(assignment.attempt), shown_time(assignment.at)
    how = ", by Spark tasks that stay" if assignment.by_residents else ""
    cli.print(f"{topology_id}: txid {assignment.txid} attempt {attempt}, {time}{how}")
    cli.print_table(
        ["component", ">task", "?>slot", "?worker", "?host", ">seconds", ">tuples"],
        [
            [
                place.component,
                place.task,
                place.slot,
                place.worker,
                place.host,
                f"{place.seconds:.3f}",
                place.tuples,
            ]
            for place in assignment.in_order()
        ],
    )
    if assignment.edges:
        cli.print_table(
            ["from", "stream", "to", ">tuples", ">seconds to send", ">to take in"],
            [[*one[:4], *own_seconds(one.send_seconds, one.take_seconds)] for one in assignment.edges],
        )
    if assignment.left_out:
        cli.say(f"{counted(assignment.left_out, 'more task')} left out; those shown took the longest")
    if leader is None:
        cli.say(f"{topology_id} is not running now")


def tree_lines(trees: Mapping[str, Any]) -> dict[str, str]:
    """Return lines about pending trees by age, and about a pending window that stays full."""
    lines = {"micro-batches": f"{trees['micro_batches']:,}, {trees['failed_micro_batches']:,} failed"}
    for spout, ages in trees["pending"].items():
        open_trees = sum(ages.values())
        shown = [
            f"{found:,} {'older' if age == 'older' else f'up to {age} s old'}"
            for age, found in ages.items()
            if found
        ]
        lines[f"pending {spout}"] = counted(open_trees, "tree") + (f": {', '.join(shown)}" if shown else "")
    if trees["stuck"]:
        lines["stuck"] = trees["stuck"]
    return lines


def print_tree_counts(cli: Cli, trees: Mapping[str, Any]) -> None:
    """Print what each component did: a spout's trees, a bolt's tuples."""
    columns = ("component", "slots", "messages", "per second", "acked", "failed", "timed out")
    rows = [
        (
            name,
            str(row.get("slots", "")),  # notes of an earlier txstream have none
            f"{row['messages']:,}",
            f"{row['messages_per_second']:,.0f}",
            f"{row['acked']:,}",
            f"{row['failed']:,}",
            f"{row['timed_out']:,}",
        )
        for name, row in trees["components"].items()
    ]
    cli.print_table(columns, rows)
