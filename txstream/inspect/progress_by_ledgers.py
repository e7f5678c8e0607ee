"""The progress that follows from the ledgers, by the protocol's rules for a new leader. Pure.

Invariant: nothing is guessed. What the rules do not explain is refused, with the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txstream.api.errors import ProgressMismatchError
from txstream.batch_metas import BatchMetas, MetaCodec
from txstream.inspect.snapshot import DatabasePart, Snapshot
from txstream.semantics import Semantics
from txstream.state import BatchRecord
from txstream.state.fence_rules import shown_attempt
from txstream.state.records import COMMITTED
from txstream.transaction import FIRST_TXID, AttemptId, Txid
from txstream.zookeeper import Progress, StoredBatch


@dataclass(frozen=True)
class Rebuilt:
    """Progress as the ledgers have it. `again` says that `progress.current` was committed in part."""

    progress: Progress
    again: bool


def rebuilt_from(snapshot: Snapshot, semantics: Semantics, codec: MetaCodec[Any]) -> Rebuilt:
    """Return the progress that follows from the ledgers, by the rules for a new leader.

    If all are at one txid, committed by one attempt, the next txid is current. If some are at C, committing
    or committed, and the others at C - 1, then C runs again everywhere, a transactional C with the plan that
    the ledgers have. Raises ProgressMismatchError for anything else.
    """
    rebuilt = _by_the_rules(snapshot, semantics, codec)
    _refuse_older_ledgers(snapshot)
    return rebuilt


def _refuse_older_ledgers(snapshot: Snapshot) -> None:
    """Refuse a ledger that is older than its tables. Rows of a txid that the ledger lacks would not be undone
    before that txid runs again."""
    for one in snapshot.databases:
        ends = 0 if one.last is None else int(one.last.txid)
        newest = max(one.tables or (), key=lambda table: table.newest_txid, default=None)
        if newest is not None and newest.newest_txid > ends:
            raise ProgressMismatchError(
                f"topology {snapshot.topology!r}: state table {newest.table.name!r} in {one.url} has a row "
                f"that carries txid {newest.newest_txid}, and its ledger ends with txid {ends}: it is older "
                f"than its tables, so it is not built upon; restore both of one moment"
            )


def _by_the_rules(snapshot: Snapshot, semantics: Semantics, codec: MetaCodec[Any]) -> Rebuilt:
    topology_id = snapshot.topology
    rows = {one.url: one for one in snapshot.databases if not one.is_joining}
    txids = {url: 0 if one.last is None else int(one.last.txid) for url, one in rows.items()}
    newest, oldest = max(txids.values()), min(txids.values())
    if semantics is Semantics.NON_TRANSACTIONAL:
        return _at_least_once(rows, oldest, codec)
    if newest - oldest > 1:
        listed = ", ".join(f"{url} is at txid {txid}" for url, txid in txids.items())
        raise ProgressMismatchError(
            f"the databases of topology {topology_id!r} are more than one batch apart: {listed}. One of them "
            f"was restored from an older copy: bring it up to date; no command can do that without its data"
        )
    at_newest = {url: one.last for url, one in rows.items() if one.last and one.last.txid == newest}
    everywhere = len(at_newest) == len(rows) and all(r.status == COMMITTED for r in at_newest.values())
    if newest == 0:
        return Rebuilt(Progress(FIRST_TXID, None, {}), again=False)
    if everywhere and len({row.attempt for row in at_newest.values()}) == 1:
        batch = _agreed(topology_id, at_newest, codec)
        return _after(newest, batch, semantics, snapshot.progress, codec)
    before: dict[str, BatchRecord] = {}
    for url, one in rows.items():
        row = one.before if one.last and one.last.txid == newest else one.last
        if row is not None:
            before[url] = row
    batches: dict[Txid, StoredBatch] = {}
    committed_by: AttemptId | None = None
    if newest > FIRST_TXID:
        previous = _agreed(topology_id, before, codec, txid=newest - 1)
        batches[Txid(newest - 1)], committed_by = previous, previous.attempt
    if semantics is Semantics.TRANSACTIONAL:
        batches[Txid(newest)] = StoredBatch(_same_metas(topology_id, at_newest, codec), None)
    return Rebuilt(Progress(Txid(newest), committed_by, batches), again=True)


def _after(
    txid: int, batch: StoredBatch, semantics: Semantics, stored: Progress | None, codec: MetaCodec[Any]
) -> Rebuilt:
    """Return the progress after `txid`, which is committed everywhere. The plans that ZooKeeper still has for
    later txids are kept: transactional ones may have had effects outside the databases already."""
    batches = {Txid(txid): batch}
    if semantics is Semantics.TRANSACTIONAL and stored is not None:
        known = stored.batches.get(Txid(txid))
        follows = known is not None and codec.encode(known.metas) == codec.encode(batch.metas)
        following = txid + 1
        while follows and (plan := stored.batches.get(Txid(following))) is not None:
            batches[Txid(following)] = StoredBatch(plan.metas, None)
            following += 1
    return Rebuilt(Progress(Txid(txid + 1), batch.attempt, batches), again=False)


def _agreed(
    topology_id: str,
    rows: Mapping[str, BatchRecord],
    codec: MetaCodec[Any],
    *,
    txid: int | None = None,
) -> StoredBatch:
    """Return the one batch that all these ledgers have committed."""
    committed = {url: row for url, row in rows.items() if row.status == COMMITTED}
    attempts = {row.attempt for row in committed.values()}
    if len(committed) != len(rows) or len(attempts) != 1:
        listed = ", ".join(
            f"{url} says {row.status} by attempt {shown_attempt(row.attempt)}" for url, row in rows.items()
        )
        number = txid if txid is not None else next(iter(rows.values())).txid
        raise ProgressMismatchError(
            f"the ledgers of topology {topology_id!r} do not agree who committed txid {number}: "
            f"{listed or 'none of them has it any more'}; restore the database that is wrong"
        )
    (attempt,) = attempts
    return StoredBatch(_same_metas(topology_id, committed, codec), attempt)


def _same_metas(topology_id: str, rows: Mapping[str, BatchRecord], codec: MetaCodec[Any]) -> BatchMetas[Any]:
    decoded = {url: codec.decode(row.metas, f"ledger of {url}, txid {row.txid}") for url, row in rows.items()}
    metas = next(iter(decoded.values()))
    if any(codec.encode(other) != codec.encode(metas) for other in decoded.values()):
        raise ProgressMismatchError(
            f"the ledgers of topology {topology_id!r} hold different ranges for one batch, in "
            f"{' and '.join(decoded)}; restore the database that is wrong"
        )
    return metas


def _at_least_once(rows: Mapping[str, DatabasePart], oldest: int, codec: MetaCodec[Any]) -> Rebuilt:
    """Return non-transactional progress: that of the database furthest behind, so that nothing is lost. What
    the others have beyond it is counted again."""
    if oldest == 0:
        return Rebuilt(Progress(FIRST_TXID, None, {}), again=False)
    url, row = next((u, one.last) for u, one in rows.items() if one.last and one.last.txid == oldest)
    metas = codec.decode(row.metas, f"ledger of {url}, txid {oldest}")
    batch = StoredBatch(metas, row.attempt)
    return Rebuilt(Progress(Txid(oldest + 1), row.attempt, {Txid(oldest): batch}), again=False)
