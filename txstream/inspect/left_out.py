"""The dead letters of a topology, over all its databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from txstream.core.dead_letters import LetterKey
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.failing_batch import LeftOut
from txstream.core.transaction import Txid
from txstream.inspect.databases import Where, topology_databases
from txstream.inspect.records import MissingDatabase

if TYPE_CHECKING:
    from txstream.inspect.snapshot import Snapshot
    from txstream.state import StateBackend
    from txstream.state.stored_letters import StoredDeadLetter

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("topology", pa.string()),
        ("uuid", pa.string()),
        ("txid", pa.int64()),
        ("attempt", pa.int64()),
        ("status", pa.string()),
        ("when", _TIME),
        ("place", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("headers", pa.large_binary()),
        ("component", pa.string()),
        ("exception", pa.string()),
        ("message", pa.string()),
        ("traceback", pa.string()),
        ("database", pa.string()),
    ]
)
"""The columns of `dead_letters`. `timestamp` is in milliseconds since 1970, as Kafka has it; `headers` is
JSON, an array of [name, value in base64 or null]; `database` is a URL without its password."""

_LIGHT: Final = pa.schema(
    field for field in SCHEMA if field.name not in ("key", "value", "headers", "traceback")
)


def dead_letters(
    topology_id: str,
    settings: Where = None,
    *,
    component: str | Collection[str] | None = None,
    since: datetime | None = None,
    whole: bool = True,
    missing: list[MissingDatabase] | None = None,
) -> pa.Table:
    """Return the records that a topology's batches left out, with what became of them (`status`): the columns
    of `SCHEMA`, the oldest batch first.

    `component` takes those that failed in one component or in several, `since` those of batches that were
    committed at a time (with a time zone) or later. Without `whole`, the columns key, value, headers and
    traceback, which may be large, are left out. Raises UnknownTopologyError, and UsageError for a time
    without a zone. Databases that cannot be opened are added to the list `missing`; without the list
    ServiceUnavailableError is raised.
    """
    if since is not None and since.tzinfo is None:
        raise UsageError(
            f"since is {since.isoformat()}, without a time zone; give one, for example datetime.UTC"
        )
    with topology_databases(settings, topology_id, missing) as databases:
        found = [
            _row(one, database.display_url, whole=whole)
            for database in databases.opened
            for one in database.dead_letters(topology_id, whole=whole)
            if is_asked_for(one, component, since)
        ]
    found.sort(key=lambda row: (row["txid"], row["place"]))
    return pa.Table.from_pylist(found, SCHEMA if whole else _LIGHT)


def is_asked_for(
    one: StoredDeadLetter, component: str | Collection[str] | None, since: datetime | None
) -> bool:
    """Whether it failed in this component, or one of these, in a batch that was committed then or later."""
    components = [component] if isinstance(component, str) else component
    return (components is None or one.letter.component in components) and (since is None or one.when >= since)


class LetterNeededError(TxstreamError):
    """A dead letter cannot be dropped yet: a batch that is not committed in all databases needs it."""


def refuse_needed(letters: Iterable[StoredDeadLetter], snapshot: Snapshot) -> None:
    """Raise LetterNeededError if the plan of a batch that is not advanced names one of these, or if the batch
    is not that left it out, or has retried it. What cannot be read is raised."""
    for error in (*snapshot.errors, *(error for one in snapshot.databases for error in one.errors)):
        raise error
    from txstream.state.records import COMMITTED

    planned: dict[LetterKey, Txid] = {}
    if snapshot.progress is not None:
        current = snapshot.progress.current
        for txid, batch in snapshot.progress.batches.items():
            if txid >= current:
                planned |= dict.fromkeys(batch.metas.retried, txid)
    else:  # ZooKeeper has lost it, and `recover` goes by the ledgers
        done = [[row.txid for row in one.rows if row.status == COMMITTED] for one in snapshot.databases]
        current = Txid(min((max(txids, default=0) for txids in done), default=0) + 1)
    for database in snapshot.databases:
        for row in (row for row in database.rows if row.txid >= current):
            keys = [LetterKey(Txid(txid), place) for txid, place in row.metas.get("retried", ())]
            planned |= dict.fromkeys(keys, row.txid)
    for one in letters:
        by = planned.get(LetterKey(one.txid, one.place), one.txid)
        if by >= current:
            raise LetterNeededError(
                f"the dead letter {one.place} of txid {one.txid} is needed by txid {by}, which is planned "
                f"and not committed in all databases: some of them might never get its record. Nothing was "
                f"deleted; let `txstream run` commit txid {by}, then drop it"
            )


def left_out(topology_id: str, databases: Iterable[StateBackend]) -> Counter[Txid]:
    """Return how many records each batch left out, whatever has become of them since."""
    found: Counter[Txid] = Counter()
    for (txid, _), number in _counts(topology_id, databases):
        found[txid] += number
    return found


def newest_left_out(topology_id: str, databases: Sequence[StateBackend]) -> LeftOut | None:
    """Return the newest batch that left out records; None if there is none, or it has been pruned."""
    counts = left_out(topology_id, databases)
    newest = max(counts, default=None)
    if newest is None:
        return None
    rows = [row for one in databases if (row := one.batch(topology_id, newest)) is not None]
    return LeftOut(newest, counts[newest], rows[0].committed_at) if rows else None


def number_dead(topology_id: str, databases: Iterable[StateBackend]) -> int:
    """Return how many records were left out and not retried since."""
    from txstream.state.stored_letters import DEAD

    return sum(number for (_, status), number in _counts(topology_id, databases) if status == DEAD)


def number_late(topology_id: str, databases: Iterable[StateBackend]) -> int:
    """Return how many of these are late records, for a row older than its table keeps rows."""
    return sum(database.late_letters(topology_id) for database in databases)


def _counts(topology_id: str, databases: Iterable[StateBackend]) -> Sequence[tuple[tuple[Txid, str], int]]:
    return [item for database in databases for item in database.dead_letter_counts(topology_id).items()]


def _row(one: StoredDeadLetter, database: str, *, whole: bool) -> dict[str, Any]:
    letter = one.letter
    row = {
        "topology": one.topology,
        "uuid": one.uuid,
        "txid": one.txid,
        "attempt": one.attempt,
        "status": one.status,
        "when": one.when,
        "place": one.place,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "component": letter.component,
        "exception": letter.exception,
        "message": letter.message,
        "database": database,
    }
    if whole:
        row |= {"key": letter.key, "value": letter.value, "headers": letter.headers}
        row["traceback"] = letter.traceback
    return row
