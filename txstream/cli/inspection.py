"""`txstream topologies`, `batches` and `show`: what the ledgers have, rendered.

`show --tree` and `--story` ask the driver that runs the topology: which components and tasks of a batch have
finished, which are missing; what its coordinator got and answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.context import Cli
from txstream.cli.databases import warn_of_missing
from txstream.cli.options import Id, command
from txstream.cli.tables import escaped
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.transaction import epoch_of, sequence_of
from txstream.core.wording import counted, in_order, shown
from txstream.inspect.databases import is_tracked, tracks_tuples
from txstream.inspect.json_documents import places_of, plain_partitions, plain_value

if TYPE_CHECKING:
    from txstream.inspect.records import (
        Batch,
        BatchDetails,
        FailedAttempt,
        MissingDatabase,
        PartitionRange,
        TopologySummary,
    )
    from txstream.state import BatchRecord

__all__ = ["batch_document", "plain_value", "shown_attempt", "shown_ranges", "shown_time"]

_LONGEST_RANGE_LIST = 4

_ANSWER_SECONDS = 30.0


def register(app: typer.Typer) -> None:
    from txstream.cli import state
    from txstream.cli.status import status

    command(app, "status", state_databases=True)(status)
    command(app, "topologies", state_databases=True)(topologies)
    command(app, "batches", state_databases=True)(batches)
    command(app, "show", state_databases=True)(show)
    state.register(app)


# --- topologies --------------------------------------------------------------------------------------------


def topologies(cli: Cli) -> None:
    """List the topologies that ZooKeeper or a database knows."""
    from txstream import inspect

    listed = inspect.topologies(cli.resolve())
    if cli.as_json:
        cli.print_json([topology_document(one) for one in listed])
        return
    if not listed:
        cli.say("there are no topologies yet; `txstream run MODULE:FACTORY` makes one")
        return
    print_topologies(cli, listed)
    warn_of_missing(list(dict.fromkeys(missing for one in listed for missing in one.missing)))


def print_topologies(cli: Cli, listed: Sequence[TopologySummary]) -> None:
    cli.print_table(
        ["id", ">committed txid", "?leader", "?semantics", "?tables", "note"],
        [[one.id, one.txid, one.leader, one.kind, ", ".join(one.tables), one.note] for one in listed],
    )


def topology_document(summary: TopologySummary) -> dict[str, Any]:
    """Return a topology as JSON values: id, uuid, semantics, last committed txid (0: none), leader, tables,
    note, databases, missing, kind."""
    from txstream.inspect.json_documents import document

    found: dict[str, Any] = document(summary)
    return found


# --- batches -----------------------------------------------------------------------------------------------


def batches(
    cli: Cli,
    topology_id: Id,
    last: Annotated[
        int | None, typer.Option("--last", "-n", metavar="N", help="Only the newest N.", min=1)
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="TXID", help="Only those before this txid.", min=1)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Committed in the last 36h (or s, m, d), or since a time."
        ),
    ] = None,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Only those with an attempt that failed, or not committed everywhere."),
    ] = False,
    left_out: Annotated[
        bool,
        typer.Option("--left-out", help="Only those that went without a partition, with the partitions."),
    ] = False,
) -> None:
    """List a topology's batches, oldest first. `show ID TXID` has all of one."""
    from txstream import inspect
    from txstream.cli.failures_shown import say_reasons
    from txstream.inspect.json_documents import batch_document

    moment = None if since is None else moment_of(since)
    missing: list[MissingDatabase] = []
    found = inspect.batches(
        topology_id,
        cli.resolve(),
        last=last,
        before=before,
        since=moment,
        failed=failed,
        left_out=left_out,
        missing=missing,
    )
    warn_of_missing(missing)
    if cli.as_json:
        cli.print_json([batch_document(one) for one in found])
        return
    if not found:
        is_part = before is not None or since is not None or failed or left_out
        cli.say(f"{topology_id} has {'no such batch' if is_part else 'committed no batch yet'}")
        if failed:
            say_reasons(cli, topology_id, found)
        return
    # These columns are there only if there is something to show in them.
    gaps = ["left out"] if left_out or any(one.first.metas.get("unavailable") for one in found) else []
    dead = [">dead letters"] if any(one.dead_letters for one in found) else []
    cli.print_table(
        [">txid", "status", ">tuples", *dead, *gaps, "?>keys", "?committed at", "?attempt", "?ranges"],
        [
            [
                one.txid,
                _shown_status(one),
                one.first.tuples,
                *[one.dead_letters for _ in dead],
                *[shown_left_out(one.first.metas, names=left_out) for _ in gaps],
                one.keys,
                shown_time(one.first.committed_at),
                shown_attempt(one.first.attempt),
                shown_ranges(one.first.metas),
            ]
            for one in found
        ],
        whole=left_out,
    )
    if failed:
        say_reasons(cli, topology_id, found)


def _shown_status(batch: Batch) -> str:
    from txstream.inspect.ledgers import failed_attempts

    failed = max(len(failed_attempts(entry)) for entry in batch.entries)
    return f"{batch.status}, {failed} failed" if failed else batch.status


def moment_of(text: str) -> datetime:
    """Parse a time as a person types it: an age such as 36h, or ISO 8601 (without an offset, in the local
    zone). Raises UsageError."""
    from txstream.core.ledger_retention import seconds_of

    seconds = seconds_of(text)
    try:
        if seconds is not None:
            return datetime.now(UTC) - timedelta(seconds=seconds)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {text!r} is no time; write for example 36h (units: s, m, h, d) or 2026-01-31T12:00:00"
        ) from None


def batch_document(record: BatchRecord) -> dict[str, Any]:
    """Return a ledger row as JSON values. `partitions` has what the batch read, only with start and end."""
    from txstream.inspect.json_documents import entry_document
    from txstream.inspect.ledgers import entry

    return entry_document(record.txid, entry("", record))


def shown_attempt(attempt: int) -> str:
    """An attempt as epoch and sequence, the form of error messages."""
    return f"{epoch_of(attempt)}.{sequence_of(attempt)}"


def shown_time(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def shown_ranges(metas: Mapping[str, Any]) -> str:
    """A batch's ranges in one line, and the partitions that it had to leave out."""
    parts = [
        f"{partition} {found['start']}-{found['end']}"
        if isinstance(found, dict) and "end" in found
        else partition
        for partition, found in sorted(plain_partitions(metas).items(), key=lambda item: in_order(item[0]))
    ]
    if metas.get("retried"):
        parts = [f"retry of {counted(len(metas['retried']), 'dead letter')}"]
    if not parts:
        places = sorted(places_of(metas).items(), key=lambda item: in_order(item[0]))
        parts = [f"{partition} begins at {place}" for partition, place in places]
    if len(parts) > _LONGEST_RANGE_LIST:
        parts = [*parts[:_LONGEST_RANGE_LIST], f"and {len(parts) - _LONGEST_RANGE_LIST} more"]
    parts += [f"{partition} unavailable" for partition in sorted(metas.get("unavailable", {}), key=in_order)]
    return ", ".join(parts)


def shown_left_out(metas: Mapping[str, Any], *, names: bool = False) -> str:
    """How many of its partitions a batch left out, or their names; empty if it had all."""
    away = sorted(metas.get("unavailable", {}), key=in_order)
    known = {*metas.get("partitions", {}), *metas.get("carried", {}), *away}
    return ", ".join(away) if names else f"{len(away):,} of {len(known):,}" if away else ""


# --- one batch ---------------------------------------------------------------------------------------------


def show(
    cli: Cli,
    topology_id: Id,
    txid: Annotated[int, typer.Argument(metavar="TXID", help="A txid that the ledger has.")],
    tree: Annotated[
        bool, typer.Option("--tree", help="Of an open txid: which tasks have finished, which are missing.")
    ] = False,
    story: Annotated[
        bool,
        typer.Option("--story", help="Of a running topology: the events and commands of this txid."),
    ] = False,
) -> None:
    """Show one batch in full. That is its ranges, counts and timings, and the attempts that failed."""
    if story:
        show_story(cli, topology_id, txid)
        return
    if tree:
        show_tree(cli, topology_id, txid)
        return
    from txstream import inspect
    from txstream.cli.failures_shown import show_failing
    from txstream.inspect.json_documents import details_document

    missing: list[MissingDatabase] = []
    try:
        found = inspect.batch(topology_id, txid, cli.resolve(), missing=missing)
    except inspect.UnknownTxidError:
        if show_failing(cli, topology_id, txid):
            return
        raise
    warn_of_missing(missing)
    if cli.as_json:
        cli.print_json(details_document(found))
        return
    _print_batch(cli, topology_id, found)


def _print_batch(cli: Cli, topology_id: str, found: BatchDetails) -> None:
    from txstream.inspect.phases import phases

    batch, first = found.batch, found.batch.first
    lines = {
        "batch": f"{topology_id} txid {batch.txid}, {batch.status} ({first.semantics})",
        "attempt": shown_attempt(first.attempt),
        "tuples": shown(first.tuples),
        "keys": shown(batch.keys),
        "path": found.path or "not recorded",
        "planned": shown_time(first.planned_at),
        "processed": shown_time(first.processed_at),
        "committed": shown_time(first.committed_at) or "not yet",
    }
    if batch.dead_letters:
        left_out = f"{counted(batch.dead_letters, 'record')} left out"
        lines["dead"] = f"{left_out}; `txstream dead-letters list {topology_id}` says why"
    if len(batch.entries) > 1:
        for number, entry in enumerate(batch.entries, 1):
            lines[f"database {number}"] = (
                f"{entry.database}: {entry.status} by attempt {shown_attempt(entry.attempt)}, "
                f"{counted(entry.keys, 'key')}, {shown_time(entry.committed_at) or 'not yet'}"
            )
    spent = phases(batch)
    if spent:
        told = ", ".join(f"{step} {seconds:.3f} s" for step, seconds in spent.items())
        lines["seconds"] = f"{sum(spent.values()):.3f} s: {told}"
    parts = {step: found.timings[step] for step in ("read", "process") if step in found.timings}
    if parts:
        told = ", ".join(f"{step} {seconds:.3f} s" for step, seconds in parts.items())
        lines["in the job"] = f"{told}, all Spark tasks together"
    cli.print_pairs(lines)
    if any(one.end is None for one in found.ranges):
        cli.print_table(
            ["partition", "meta"], [[one.partition, str(one.meta)] for one in found.ranges], whole=True
        )
    elif not found.ranges:
        what = "" if first.metas.get("retried") else "no records; "
        cli.print(f"{what}{shown_ranges(first.metas) or 'no partition'}")
    else:
        cli.print_table(
            ["partition", ">start", ">end", ">records"],
            [[one.partition, one.start, one.end, one.records] for one in found.ranges],
            whole=True,
        )
    for one in (*(one for one in found.ranges if one.skipped_from is not None), *found.skipped):
        cli.print(f"{one.partition} {_shown_gap(one)}")
    for reason in sorted(set(found.unavailable.values())):
        away = sorted((name for name, why in found.unavailable.items() if why == reason), key=in_order)
        cli.print(f"{', '.join(away)} {'were' if len(away) > 1 else 'was'} unavailable: {escaped(reason)}")
    for txids in sorted(set(found.taken_up.values())):
        names = sorted((name for name, taken in found.taken_up.items() if taken == txids), key=in_order)
        by = (
            f"taken up by txid {', '.join(map(str, txids))}"
            if txids
            else "no later batch has taken it up yet"
        )
        cli.print(f"  {', '.join(names)}: {by}")
    for failed in found.failed_attempts:
        attempt = "an attempt" if failed.attempt is None else f"attempt {shown_attempt(failed.attempt)}"
        when = "" if failed.failed_at is None else f" at {shown_time(failed.failed_at)}"
        cli.print(f"{attempt} failed{when}: {escaped(failed.error)}")
        if failed.ranges is not None:
            cli.print(f"  it held {_shown_held(failed, found)}")


def _shown_held(failed: FailedAttempt, committed: BatchDetails) -> str:
    """What a failed attempt held, compared with what was committed."""
    same = failed.ranges == committed.ranges and set(failed.left_out) == committed.unavailable.keys()
    if same:
        return "the same ranges"
    held = [
        one.partition if one.end is None else f"{one.partition} {one.start}-{one.end}"
        for one in failed.ranges or ()
    ]
    without = f", without {', '.join(failed.left_out)}" if failed.left_out else ""
    more = f" ({failed.more:,} more are not recorded)" if failed.more else ""
    return f"{', '.join(held) or 'nothing'}{without}{more}"


def _shown_gap(one: PartitionRange) -> str:
    if one.start is not None and one.skipped_from is not None and one.start <= one.skipped_from:
        return f"skipped from {one.skipped_from}, went on at {one.start}: cut back, or created again"
    return f"skipped {one.skipped_from} to {one.start}: lost"


def _show_committed(cli: Cli, topology_id: str, txid: int) -> bool:
    from txstream import inspect
    from txstream.state.records import COMMITTED

    try:
        batch = inspect.batch(topology_id, txid, cli.resolve()).batch
    except TxstreamError:
        return False  # the leader's answer is reported instead
    if batch.status != COMMITTED:
        return False
    entry = batch.first
    if cli.as_json:
        told = {"attempt": entry.attempt, "state": COMMITTED, "components": None}
        counts = {"tuples": entry.tuples, "keys": batch.keys}
        cli.print_json({"topology": topology_id, "txid": txid, **told, **counts})
    else:
        counts_shown = f"{counted(entry.tuples, 'tuple')}, {counted(batch.keys, 'key')} written"
        cli.print(f"{topology_id} txid {txid} attempt {shown_attempt(entry.attempt)}, {COMMITTED}")
        cli.print(f"all of its tasks have finished: {counts_shown}")
    return True


def _ask(cli: Cli, topology_id: str, kind: str, txid: int) -> Mapping[str, Any]:
    from txstream.cli.operate import ask, opened  # which shows times as this module does

    with opened(cli, topology_id) as zookeeper:
        if is_tracked(zookeeper, topology_id):
            raise tracks_tuples(topology_id)
        _, told = ask(zookeeper, topology_id, kind, {"txid": txid}, _ANSWER_SECONDS)
    assert told is not None  # None is only for requests with `later`
    return told


def show_tree(cli: Cli, topology_id: str, txid: int) -> None:
    """Ask the leader and print its answer; for a committed txid, print what the ledger has. Raises
    NotRunningError or UsageError for a txid that is neither open nor committed."""
    from txstream.cli.operate import NotRunningError

    try:
        told = _ask(cli, topology_id, "tree", txid)
    except (NotRunningError, UsageError):
        if not _show_committed(cli, topology_id, txid):
            raise
        return
    if cli.as_json:
        cli.print_json({"topology": topology_id, "txid": txid, **told})
        return
    cli.print(f"{topology_id} txid {txid} attempt {shown_attempt(told['attempt'])}, {told['state']}")
    components: Mapping[str, Any] = told["components"] or {}
    if not components:
        cli.print("which of its tasks have finished is not known")
        return
    rows = [
        [name, row["phase"], f"{row['finished']} of {row['tasks']}", ", ".join(map(str, row["missing"]))]
        for name, row in components.items()
    ]
    cli.print_table(["component", "phase", "finished", "missing tasks"], rows)


def show_story(cli: Cli, topology_id: str, txid: int) -> None:
    """Ask the leader for the events and commands of a txid, and print them, the oldest first. Raises
    NotRunningError, and UsageError if its story does not reach back so far."""
    told = _ask(cli, topology_id, "story", txid)
    if cli.as_json:
        cli.print_json({"topology": topology_id, "txid": txid, **told})
        return
    for line in told["story"]:
        cli.print(line)
