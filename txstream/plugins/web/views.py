"""What each view shows, as plain values: a page renders it, and the same is its JSON.

Every function reads through a `Site`, and raises what inspection raises. What the rows of states are is in
`state_views`, what passed between components in `graph_views`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from txstream import inspect
from txstream.cli.asking import NotRunningError
from txstream.core.errors import (
    LeaderExistsError,
    ServiceUnavailableError,
    StateTableError,
    TxstreamError,
    UsageError,
)
from txstream.core.transaction import epoch_of, sequence_of
from txstream.core.wording import in_order
from txstream.inspect.health import Word, outages
from txstream.inspect.json_documents import (
    batch_document,
    details_document,
    document,
    failing_document,
)
from txstream.inspect.ledgers import failed_attempts, part_of, throughput
from txstream.inspect.standing import Standing, standing_document
from txstream.plugins.compare import kept
from txstream.plugins.web.added_pages import UnknownPageError

if TYPE_CHECKING:
    from txstream.core.failing_batch import FailingBatch, Wait
    from txstream.inspect.records import Batch, MissingDatabase, TopologySummary
    from txstream.plugins.web.site import Site
    from txstream.zookeeper.notes import Note

T = TypeVar("T")


DEFAULT_BATCHES = 1_000
MOST_BATCHES = 10_000
LOOKED_BACK = 250
"""How many batches the list of failures looks at: the whole ledger would take too long."""

_RECENT = 20
_MOST_ROWS = 50
_MOST_PARTITIONS = 100
_MOST_LETTERS = 20
_ALIKE = 80  # characters; what follows may be the data


# --- the JSON of commands ----------------------------------------------------------------------------------


def topologies(site: Site) -> list[dict[str, Any]]:
    """As `txstream topologies --json`."""
    return [document(one) for one in site.topologies()]


def topology(site: Site, topology_id: str) -> dict[str, Any]:
    """As `txstream status ID --json`."""
    return standing_document(site.standing(topology_id))


def batches(
    site: Site, topology_id: str, before: int | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """As `txstream batches ID --json`, with `limit` as its `--last`; without, the newest thousand."""
    return [batch_document(one) for one in _batches(site, topology_id, before, limit or DEFAULT_BATCHES, [])]


def batch(site: Site, topology_id: str, txid: int) -> dict[str, Any]:
    """As `txstream show ID TXID --json`."""
    return batch_with(site, topology_id, txid)[0]


def batch_with(site: Site, topology_id: str, txid: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return a batch, the tables that it may have changed, and in words what could not be looked at."""
    missing: list[MissingDatabase] = []
    try:
        found = inspect.batch(topology_id, txid, site.settings, missing=missing)
    except inspect.UnknownTxidError as unknown:
        try:
            failing = site.look(topology_id).failing
        except ServiceUnavailableError as error:
            raise ServiceUnavailableError(f"{unknown}; whether it fails is not known: {error}") from error
        if failing is None or failing.txid != txid:
            raise
        return {"topology": topology_id, **failing_document(failing)}, [], [str(one) for one in missing]
    told = [str(one) for one in missing]
    tables = {name for entry in found.batch.entries for name in entry.details.get("digests") or {}}
    try:
        identity = site.look(topology_id).identity
        tables |= set() if identity is None else {*identity.tables}
    except TxstreamError as error:
        told.append(f"what it changed is shown of the tables that its ledger row names: {error}")
    return details_document(found), sorted(tables), told


def _batches(
    site: Site, topology_id: str, before: int | None, limit: int, missing: list[MissingDatabase]
) -> list[Batch]:
    if not 1 <= limit <= MOST_BATCHES:
        raise UsageError(f"limit is {limit}; it must be from 1 to {MOST_BATCHES}")

    def read() -> tuple[list[Batch], list[MissingDatabase]]:
        left_out: list[MissingDatabase] = []
        found = inspect.batches(topology_id, site.settings, last=limit, before=before, missing=left_out)
        return found, left_out

    found, left_out = site.memo(("batches", topology_id, before, limit), read)
    missing += left_out
    return found


# --- topologies --------------------------------------------------------------------------------------------


def overview(site: Site) -> list[dict[str, Any]]:
    """Return a row for each topology, those that need somebody first."""
    listed = site.topologies()
    if not listed:
        return []
    with ThreadPoolExecutor(min(8, len(listed))) as pool:
        rows = list(pool.map(lambda one: site.memo(("row", one.id), lambda: _row(site, one)), listed))
    return sorted(rows, key=lambda row: (_WORST_FIRST.index(row["state"]), row["id"]))


_WORST_FIRST = ("unreadable", *map(str, reversed(Word)), "not running")


def _row(site: Site, summary: TopologySummary) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": summary.id,
        "kind": summary.kind,
        "committed_txid": summary.txid or None,
        "leader": summary.leader,
        "note": summary.note,
        "state": "not running" if summary.leader is None else "unreadable",
    }
    try:
        found = site.standing(summary.id)
    except TxstreamError as error:
        # One that ZooKeeper does not know is at rest; of any other, something cannot be read.
        state = "not running" if isinstance(error, inspect.UnknownTopologyError) else "unreadable"
        return row | {"state": state, "note": row["note"] or str(error)}
    return row | standing_row(site, found)


def standing_row(site: Site, found: Standing) -> dict[str, Any]:
    """Return what a topology's line shows."""
    status, last = found.status, found.last
    paused = found.snapshot.in_force.paused
    recent: Sequence[Batch] = []
    if last is not None and not found.missing:
        recent = _batches(site, status.id, None, _RECENT, [])
    per_second = throughput([one.first for one in recent]) if status.leader else 0.0
    lag = found.source.lag_records
    age = None
    if last is not None and last.committed_at is not None:
        age = max(0.0, (datetime.now(UTC) - last.committed_at).total_seconds())
    return {
        "state": "not running" if found.health is None else str(found.health.word),
        "health": None if found.health is None else str(found.health),
        "kind": "tracked" if "tracked" in status.source else str(status.semantics),
        "committed_txid": status.current_txid - 1,
        "committed_at": None if last is None else document(last.committed_at),
        "age_seconds": age,
        "records_per_second": round(per_second, 1),
        "lag_records": lag,
        "lag_seconds": round(lag / per_second, 1) if lag and per_second else 0.0 if lag == 0 else None,
        "lag_unknown": found.source.unknown,
        "unavailable": dict(found.source.unavailable),
        "stored_plans": list(status.stored_plans),
        "dead_letters": found.dead_letters,
        "watermark": document(found.watermark.at),
        "watermark_held_by": list(found.watermark.held_by),
        "leader": status.leader,
        "standbys": [one.driver for one in status.standbys],
        "waiting": [str(one) for one in outages(status.waiting)],
        "paused": None if paused is None else paused.shown,
        "failing": None if status.failing is None else failing_document(status.failing),
        "missing": [str(one) for one in found.missing],
        "remarks": {one.name: one.told for one in found.remarks},
        "tuples": [one.first.tuples for one in recent],
    }


# --- one topology ------------------------------------------------------------------------------------------


def timeline(
    site: Site, topology_id: str, before: int | None, limit: int
) -> tuple[list[Batch], dict[str, Any]]:
    """Return consecutive batches, the `earlier` one before them, for the newest the one after them that is
    `failing`, what is waited for and which driver `ended_before`, and where the pages around them begin."""
    from txstream.zookeeper import ENDED

    missing: list[MissingDatabase] = []
    read = _batches(site, topology_id, before, limit + 1, missing)
    found, earlier = read[-limit:], read[0] if len(read) > limit else None
    newest = before is None
    told = [str(one) for one in missing]
    failing: FailingBatch | None = None
    waiting: Sequence[Wait] = ()
    ended_before: int | None = None
    if newest:
        try:
            seen = site.look(topology_id)
            failing, waiting = seen.failing, seen.waiting
            if failing is not None and found and failing.txid <= found[-1].txid:
                failing = None  # the ledger has it by now
            if failing is not None:
                ended_before = _noted(site, topology_id, ENDED)
        except TxstreamError as error:
            told.append(f"whether a batch fails, or the run waits, is not known: {error}")
    return found, {
        "earlier": earlier,
        "failing": failing,
        "waiting": waiting,
        "ended_before": ended_before,
        "older": None if earlier is None else found[0].txid,
        "newer": None if newest or not found else found[-1].txid + 1 + limit,
        "missing": told,
    }


def source(site: Site, topology_id: str) -> dict[str, Any]:
    """Return the partitions: where the last committed batch ended, who is away and since which txid, what the
    leader waits for, gaps."""
    from txstream.zookeeper import AWAY

    found = site.standing(topology_id)
    recent = _batches(site, topology_id, None, _RECENT * 2, []) if found.last is not None else []
    since: dict[str, dict[str, Any]] = {}
    for one in recent:
        away = part_of(one.first.metas, "unavailable")
        for name in [name for name in since if name not in away]:
            del since[name]
        for name, why in away.items():
            moment = one.first.committed_at or one.first.planned_at
            before = one is recent[0] and one.txid > 1
            known = {"txid": one.txid, "since": document(moment), "or_before": before, "reason": str(why)}
            since.setdefault(name, known)
    idle = found.source.unavailable.keys() - since.keys()  # no ledger row tells before something is planned
    noted = (_noted(site, topology_id, AWAY) if idle else None) or {}
    for name in sorted(idle):
        known = {"txid": None, "since": document(noted.get(name)), "or_before": name not in noted}
        since[name] = {**known, "reason": str(found.source.unavailable[name])}
    gaps = [
        {"txid": one.txid, "partition": name, "from": meta["skipped_from"], "to": meta.get("start")}
        for one in recent
        for part in ("partitions", "carried")
        for name, meta in part_of(one.first.metas, part).items()
        if isinstance(meta, Mapping) and meta.get("skipped_from") is not None
    ]
    read: Counter[str] = Counter()
    for one in recent:
        for name, meta in part_of(one.first.metas, "partitions").items():
            if isinstance(meta, Mapping) and isinstance(meta.get("end"), int):
                read[name] += meta["end"] - int(meta.get("start") or 0)
    names = {*found.status.positions, *since, *found.source.lags}
    lags, held = found.source.lags, found.source.held_back
    shown = sorted(
        names, key=lambda name: (name not in since, -lags.get(name, 0), -read[name], in_order(name))
    )
    return {
        "topology": topology_id,
        "spout": found.status.spout,
        "source": document(found.status.source),
        "lag_records": found.source.lag_records,
        "lag_unknown": found.source.unknown,
        "waiting": document(outages(found.status.waiting)),
        "looked_back": len(recent),
        "partitions": [
            {
                "partition": name,
                "next": document(found.status.positions.get(name)),
                "lag_records": lags.get(name),
                "held_back": None if name not in held else held[name].records,
                "records_recently": read[name],
                "away": since.get(name),
            }
            for name in shown[:_MOST_PARTITIONS]
        ],
        "more_partitions": max(0, len(shown) - _MOST_PARTITIONS),
        "away": len(since),
        "gaps": gaps[-_MOST_ROWS:],
        "missing": [str(one) for one in found.missing],
    }


def _noted(site: Site, topology_id: str, note: Note[T]) -> T | None:
    from txstream.core.batch_metas import MetaCodec
    from txstream.zookeeper import Paths

    with site.zookeeper() as zookeeper:
        return zookeeper.progress(topology_id, MetaCodec(Paths)).notes.get(note)


def failures(site: Site, topology_id: str, before: int | None = None) -> dict[str, Any]:
    """Return why attempts failed, in some of the ledger's batches, and the dead letters by component and
    exception."""
    from txstream.engine.letters.retry_policy import reason_of

    missing: list[MissingDatabase] = []
    looked = _batches(site, topology_id, before, LOOKED_BACK, missing)
    reasons: dict[str, dict[str, Any]] = {}
    for one in looked:
        for failed in max((failed_attempts(entry) for entry in one.entries), key=len):
            reason = reason_of(failed.error)
            component, exception = _raised(reason)
            # What differs in numbers alone, as the offset of a record, is one reason.
            alike = f"{component}: {exception}" if exception else re.sub(r"\d+", "N", reason)[:_ALIKE]
            group = reasons.setdefault(
                alike, {"component": component, "exception": exception, "attempts": 0, "txids": []}
            )
            group["attempts"] += 1
            group |= {"last": document(failed.failed_at), "error": failed.error, "reason": reason}
            if group["txids"][-1:] != [one.txid]:
                group["txids"].append(one.txid)
    letters = site.memo(
        ("letters", topology_id),
        lambda: inspect.dead_letters(topology_id, site.settings, whole=False, missing=[]).to_pylist(),
        2.0,
    )
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in letters:
        groups.setdefault((row["component"], row["exception"]), []).append(row)
    return {
        "topology": topology_id,
        "looked_at": [looked[0].txid, looked[-1].txid] if looked else None,
        "older": looked[0].txid if looked and looked[0].txid > 1 and len(looked) == LOOKED_BACK else None,
        "reasons": sorted(
            (
                {**group, "batches": len(group["txids"]), "txids": group["txids"][-12:]}
                for group in reasons.values()
            ),
            key=lambda group: (group["component"] or "", group["exception"] or "", -group["attempts"]),
        ),
        "dead_letters": [
            {
                "component": component,
                "exception": exception,
                "dead": sum(row["status"] == "dead" for row in rows),
                "retried": sum(row["status"] != "dead" for row in rows),
                "newest": [
                    {name: document(row[name]) for name in ("txid", "place", "message", "status", "when")}
                    for row in rows[-_MOST_LETTERS:][::-1]
                ],
            }
            for (component, exception), rows in sorted(groups.items())
        ],
        "missing": [str(one) for one in missing],
    }


def _raised(reason: str) -> tuple[str | None, str | None]:
    """Return the component and the exception's class that a reason names, as executors report it."""
    found = re.match(r"component '([^']*)': (?:(\w+(?:\.\w+)*):)?", reason)
    return (None, None) if found is None else (found[1], found[2])


def trust(site: Site, topology_id: str) -> dict[str, Any]:
    """Return who leads, what each database's fence and ledger say, and the last fsck made from this page."""
    found = site.standing(topology_id)
    snapshot, checked = found.snapshot, site.checked.get(topology_id)
    return {
        "topology": topology_id,
        "uuid": found.status.uuid,
        "leader": snapshot.leader,
        "standbys": [document(replace(one, process=None)) for one in found.status.standbys],
        "epoch": snapshot.epoch,
        "current_txid": found.status.current_txid,
        "databases": [
            {
                "database": one.url,
                "fence_epoch": None if one.fence is None else epoch_of(one.fence.attempt),
                "fence": None if one.fence is None else shown_attempt(one.fence.attempt),
                "uuid": one.uuid,
                "last_txid": None if one.last is None else one.last.txid,
                "last_attempt": None if one.last is None else shown_attempt(one.last.attempt),
                "last_status": None if one.last is None else one.last.status,
                "digests": {} if one.last is None else document(one.last.details.get("digests") or {}),
            }
            for one in snapshot.databases
        ],
        "missing": [str(one) for one in found.missing],
        "fsck": None
        if checked is None
        else {
            "at": document(datetime.fromtimestamp(checked[0], UTC)),
            "clean": checked[1].is_clean,
            **document(checked[1]),
        },
    }


def check(site: Site, topology_id: str) -> None:
    """Run `fsck`, and keep its answer for `trust`."""
    report = site.memo(("fsck", topology_id), lambda: inspect.fsck(topology_id, site.settings))
    site.checked[topology_id] = (time.time(), report)


def comparisons(site: Site) -> dict[str, Any]:
    """Return the comparisons that are kept, the newest first, and the one that was started from this page."""
    one = site.comparing.started
    folder = site.settings.data_dir
    return {
        "kept": [
            site.memo(("compared", name), partial(_in_short, folder, name), 3600.0)
            for name in kept.kept(folder)
        ],
        "started": None
        if one is None
        else {
            "command": one.command,
            "since": document(one.since),
            "status": one.status,
            "lines": list(one.lines),
        },
    }


def _in_short(folder: Path, name: str) -> dict[str, Any]:
    found = kept.read(folder, name)
    fields = ("topology", "date", "command", "told")
    exact = {semantics: bool(one["exact"]) for semantics, one in found["semantics"].items()}
    return {"name": name, "exact": exact, **{field: found[field] for field in fields}}


def comparison(site: Site, name: str) -> dict[str, Any]:
    """Return a comparison that is kept: what `txstream compare --json` printed, and its charts as SVG."""
    return kept.read(site.settings.data_dir, name)


def shown_attempt(attempt: int) -> str:
    return f"{epoch_of(attempt)}.{sequence_of(attempt)}"


def act(site: Site, topology_id: str, kind: str, by: str, components: Sequence[str] = ()) -> str:
    """Ask the driver for `by`, and return what it did in a sentence."""
    told = site.ask(topology_id, kind, {"components": list(components)} if components else {}, by)
    if kind == "pause":
        after = (told or {}).get("after")
        return f"{topology_id} is paused" + (
            "" if after is None else f"; nothing is opened after txid {after}"
        )
    if kind == "resume":
        return f"{topology_id} goes on"
    if kind == "retry":
        return f"{topology_id} retries its dead letters"
    return f"{topology_id} ends once what is open is committed"


ACTIONS = {
    "pause": "Pause {id}? Open batches finish; no further one is opened until it is resumed.",
    "resume": "Resume {id}? It opens batches again.",
    "retry": "Retry the dead letters of {id}? They are processed again, with the code that runs now.",
    "stop": "Stop {id}? Its run ends between two batches, and its standbys end with it.",
}
"""What can be asked of a driver from the page, and the question before it."""

STATUS_OF = (
    (inspect.UnknownTopologyError, 404),
    (inspect.UnknownTxidError, 404),
    (StateTableError, 404),
    (kept.UnknownComparisonError, 404),
    (UnknownPageError, 404),
    (LeaderExistsError, 409),
    (NotRunningError, 409),
    (UsageError, 400),
    (ServiceUnavailableError, 503),
)
"""The HTTP status of an error; any other is a 500."""
