"""`diff --now`: what a topology has read beyond the place of the other is run again, dry, as `why` does, and
taken out of its rows. Nothing is written.

Sums and counts can be taken out, and rows that are never changed were not there before. All else cannot: of
a maximum nobody knows what it was. Such rows are left out of the comparison, each by the reason of its table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from txstream.api.reducers import Count
from txstream.core.batch_metas import is_empty, is_numbered
from txstream.core.digests import digest_of
from txstream.core.errors import ProgressMismatchError, UsageError
from txstream.inspect.ledgers import standing
from txstream.plugins.audit.dry_runs import DryRuns, ReplayedTable, dry_runs
from txstream.plugins.audit.replaying import combined
from txstream.plugins.change.forks import behind, places_of
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.state import BatchRecord

Key = tuple[Any, ...]
Values = Mapping[str, Any]

_MOST_KEYS: Final = 100_000


class LeftOutError(Exception):
    """What a row held is not known. The message is why."""


@dataclass
class Since:
    """What a topology has added to its tables beyond a place: `deltas` by table and key. `unknown` says of
    which tables, none of whose rows can be told, and why."""

    records: int = 0
    tables: dict[str, ReplayedTable] = field(default_factory=dict)
    deltas: dict[str, dict[Key, Values]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def keys(self, table: str) -> set[Key]:
        """Return the keys of which rows have changed since."""
        return {*self.deltas.get(table, {})}

    def before(self, table: str, key: Key, now: Values | None) -> Values | None:
        """Return what a row held at that place, None if it was not there. Raises LeftOutError."""
        delta = self.deltas.get(table, {}).get(key)
        if delta is None:
            return now
        bolt = self.tables[table].bolt
        state = bolt.state
        if state.sets_aside is not None or state.marks is not None:
            raise LeftOutError("which records came late depends on the batches")
        if state.on_conflict == "fail":
            return None
        if state.on_conflict is not None:
            raise LeftOutError("what a replaced row held is not kept")
        other = [name for name, reducer in bolt.reducers.items() if reducer.merge != "sum"]
        if now is None:
            raise LeftOutError("the row is gone")
        found = {
            name: value if delta[name] is None or value is None else value - delta[name]
            for name, value in now.items()
            if name not in other
        }
        counts = [name for name, reducer in bolt.reducers.items() if isinstance(reducer, Count)]
        if counts and not any(found[name] for name in counts):
            return None
        if other:
            raise LeftOutError(f"of {', '.join(other)} nobody knows what it was")
        if not any(found.values()):
            raise LeftOutError("a sum of 0 does not tell whether the row was there")
        return found


def since(topology: Topology, settings: Settings, newest: BatchRecord, places: Mapping[str, int]) -> Since:
    """Return what the batches up to `newest` have added to the tables of a topology beyond these places.
    Raises UsageError if that cannot be told, and as `why` if records or services are away."""
    found = Since()
    with dry_runs(topology, settings) as runs:
        found.tables = {one.name: one for one in runs.tables()}
        found.unknown = dict.fromkeys(runs.left_out, "it is filled in the commit phase, which is not run dry")
        (database, *_) = runs.databases.opened
        for txid in standing(topology.id, database, newest.txid, 1):
            row = database.batch(topology.id, txid)
            if row is None:
                raise ProgressMismatchError(f"txid {txid} of {topology.id!r} is not in its ledger any more")
            if not behind(places_of(row), places):
                break
            _add(found, runs, txid, places)
    return found


def _add(found: Since, runs: DryRuns, txid: int, places: Mapping[str, int]) -> None:
    batch = runs.batch(txid)
    if batch.metas.retried:
        raise UsageError(f"txid {txid} of {runs.topology.id!r} has retried dead letters, which have no place")
    beyond: dict[str, Any] = {}
    for partition, meta in batch.metas.partitions.items():
        place = places.get(partition, 0)
        if is_empty(meta) or meta.end <= place:
            continue
        if meta.start < place and not is_numbered(meta):
            raise UsageError(
                f"txid {txid} of {runs.topology.id!r} cannot be divided at {place} in {partition}"
            )
        beyond[partition] = meta if meta.start >= place else dataclasses.replace(meta, start=place)
    if not beyond:
        return
    runs.require(batch)
    whole = runs.run(batch)
    part = whole if beyond == dict(batch.metas.partitions) else runs.run(batch, beyond)
    found.records += part.records
    for table in found.tables.values():
        if looked_up := runs.looked_up_today([table.component], txid):
            found.unknown.setdefault(table.name, f"rows are looked up in {', '.join(looked_up)} as of today")
        written = table.written_in(batch)
        if written is None or written.differences(digest_of(table.deltas(whole), table.bolt.state.key_names)):
            told = f"txid {txid} does not add today what it added then (`txstream replay` shows how)"
            found.unknown.setdefault(table.name, told)
        names, reducers = table.bolt.state.key_names, table.bolt.reducers
        deltas = found.deltas.setdefault(table.name, {})
        for delta in table.deltas(part).to_pylist():
            key = tuple(delta[name] for name in names)
            later = deltas.get(key)
            deltas[key] = delta if later is None else {**delta, **combined(reducers, delta, later)}
        if len(deltas) > _MOST_KEYS:
            raise UsageError(
                f"{runs.topology.id!r} has changed more than {_MOST_KEYS:,} rows of {table.name} since; "
                f"leave out --now"
            )
