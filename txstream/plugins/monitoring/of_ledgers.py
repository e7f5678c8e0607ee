"""The metrics of all topologies that ZooKeeper or a database knows, without asking their drivers.

Invariants. A total counts what was committed since the first call with these `Totals`, so pruning the ledger
never makes it smaller; a call without them gives no totals. What cannot be read has no sample. What only a
driver counts (dropped attempts, fences, rows by table) is left out.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from txstream.core.errors import TxstreamError
from txstream.core.transaction import Txid
from txstream.inspect.databases import open_databases, open_zookeeper
from txstream.inspect.health import health_in
from txstream.inspect.left_out import newest_left_out
from txstream.inspect.overview import look
from txstream.inspect.source import source_now
from txstream.plugins.monitoring.catalog import Families
from txstream.plugins.monitoring.of_run import (
    DEFAULT_MOST_PARTITIONS,
    SOURCE_WAITS,
    Histogram,
    add_health,
    add_watermarks,
)
from txstream.plugins.monitoring.source_lag import ALL_PARTITIONS
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.inspect.snapshot import Snapshot
    from txstream.state import BatchRecord, StateBackend

CONTENT_TYPE = CONTENT_TYPE_LATEST
_MOST_BATCHES = 10_000  # counted between two calls


@dataclass
class Counted:
    """What was counted of one topology in one database, up to txid `last`."""

    last: int
    committed: int = 0
    failed: int = 0
    records: int = 0
    phases: dict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))


Totals = dict[tuple[str, str], Counted]
"""By topology and database. Keep one for as long as you serve; `exposition` adds to it."""


def exposition(settings: Settings | None = None, totals: Totals | None = None) -> bytes:
    """See `txstream.plugins.monitoring.exposition_of_ledgers`."""
    families = Families()
    settings = (settings or Settings()).resolve()
    with open_zookeeper(settings) as zookeeper, open_databases(settings, strict=False) as databases:
        led = set(zookeeper.topologies())
        ids = led.union(fence.topology for one in databases.opened for fence in one.topologies())
        for topology in sorted(ids):
            last = {one: row for one in databases.opened if (row := one.last_batch(topology)) is not None}
            _collect_ledgers(families, topology, last, totals)
            if topology in led:
                with contextlib.suppress(TxstreamError):
                    _collect_progress(families, settings, look(zookeeper, topology), [*last])
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return bytes(generate_latest(registry))


class _Collected:
    """The families, for prometheus-client."""

    def __init__(self, families: Families) -> None:
        self.collect = families.metrics


def _adder(families: Families, topology: str) -> Callable[..., None]:
    def add(name: str, value: float, *labels: str) -> None:
        families.add(topology, f"txstream_{name}", value, *labels)

    return add


def _collect_ledgers(
    families: Families, topology: str, last: dict[StateBackend, BatchRecord], totals: Totals | None
) -> None:
    add = _adder(families, topology)
    times = [row.committed_at.timestamp() for row in last.values() if row.committed_at is not None]
    if times:
        add("last_commit_timestamp_seconds", max(times))
    if totals is None or not last:
        return
    # Every database has a row of every batch, so that one of them is enough.
    database = min(last, key=lambda one: one.display_url)
    counted = _count(totals, topology, database, last[database].txid)
    add("batches_total", counted.committed, "committed")
    add("batches_total", counted.failed, "failed")
    add("records_total", counted.records)
    for phase, histogram in counted.phases.items():
        families.add_histogram(
            topology, "txstream_batch_phase_seconds", histogram.buckets(), histogram.sum, phase
        )


def _count(totals: Totals, topology: str, database: StateBackend, newest: Txid) -> Counted:
    counted = totals.setdefault((topology, database.display_url), Counted(last=newest))
    missing = min(newest - counted.last, _MOST_BATCHES)
    rows = database.batches(topology, limit=missing) if missing > 0 else []
    for row in sorted(rows, key=lambda row: row.txid):
        if row.txid <= counted.last or row.committed_at is None:
            continue
        counted.last = row.txid
        counted.committed += 1
        counted.records += row.tuples
        counted.failed += len(row.details.get("attempts") or ())
        for timings in ("timings", "timings_before"):  # the latter are those of the row before
            for phase, seconds in (row.details.get(timings) or {}).items():
                counted.phases[phase].observe(seconds)
    return counted


def _collect_progress(
    families: Families, settings: Settings, snapshot: Snapshot, databases: Sequence[StateBackend]
) -> None:
    add = _adder(families, snapshot.topology)
    add("leader", 0 if snapshot.leader is None else 1)
    if snapshot.epoch is not None:
        add("epoch", snapshot.epoch)
    waits: list[tuple[str, float]] = []
    if snapshot.leader is not None:
        waits = add_health(
            add, health_in(snapshot, newest_left_out(snapshot.topology, databases)), snapshot.waiting
        )
    if snapshot.trees is not None:
        _collect_trees(snapshot.trees, add)
        return
    progress = snapshot.progress
    if progress is None:
        return
    add("last_committed_txid", progress.current - 1)
    if (committed := progress.batches.get(Txid(progress.current - 1))) is not None:
        add_watermarks(add, committed.metas.horizons, DEFAULT_MOST_PARTITIONS)
    add("open_batches", sum(txid >= progress.current for txid in progress.batches))
    away = [seconds for what, seconds in waits if what.startswith(SOURCE_WAITS)]
    source = source_now(settings, snapshot)
    if source.lag_records is not None:
        add("source_lag_records", source.lag_records, ALL_PARTITIONS, ALL_PARTITIONS)
    if source.held_back:
        held_back = sum(one.records for one in source.held_back.values())
        add("source_held_back_records", held_back, ALL_PARTITIONS, ALL_PARTITIONS)
    is_whole = source.unknown is None and not source.unavailable
    if away or is_whole:  # since when it is unavailable, only a driver knows
        add("source_unavailable_seconds", max(away, default=0))


def _collect_trees(trees: Any, add: Callable[..., None]) -> None:
    for component, ages in (trees.get("pending") or {}).items():
        add("acker_pending", sum(ages.values()), component)
    records = 0
    for component, row in (trees.get("components") or {}).items():
        if row.get("kind") == "spout":
            for name in ("acked", "failed", "timed_out"):
                add(f"acker_{name}_total", row[name], component)
            records += row["messages"]
    add("records_total", records)
