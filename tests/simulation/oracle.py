"""What must come out of a topology that changes: the oracle of `changes`.

It sees what ZooKeeper stores, and when a table's declaration changes. It knows nothing of rows, fences or
ledgers. It records each committed batch once, with its ranges; a record that changes later is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.releases import DEFAULT, ROWS
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.transaction import FIRST_TXID, AttemptId, Txid
from txstream.plugins.proof.simulation.world import Tree, WrongResultError
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Overlay
from txstream.state.declarations import Owner, declared_spec
from txstream.zookeeper import Identity
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.znode_values import StoredBatch, StoredCurrent


def hold(metas: BatchMetas[Any]) -> Mapping[str, tuple[int, int]]:
    """Return what a batch holds by key: how many rows, and the sum of their numbers."""
    held: dict[str, tuple[int, int]] = {}
    for partition, taken in metas.partitions.items():
        for key, number in ROWS[partition][taken.start : taken.end]:
            n, total = held.get(key, (0, 0))
            held[key] = n + 1, total + number
    return held


@dataclass
class Oracle:
    """Committed `batches` by txid; `since`, each state's first txid; `declared`, whether it has `total`."""

    codec: MetaCodec[Any]
    current: Txid = FIRST_TXID
    batches: dict[Txid, tuple[AttemptId | None, BatchMetas[Any]]] = field(default_factory=dict)
    since: dict[str, Txid] = field(default_factory=dict)
    declared: dict[str, bool] = field(default_factory=dict)
    _grown: dict[str, tuple[Txid, AttemptId]] = field(default_factory=dict)

    def look(self, tree: Tree, paths: Paths) -> None:
        """Look at ZooKeeper, which has changed. When something in it was lost, nothing is learned."""
        nodes = tree.copy()
        if paths.current not in nodes or paths.identity not in nodes:
            return
        position = StoredCurrent.decode(nodes[paths.current].data, paths.current)
        self.current = position.txid
        last = paths.meta(Txid(position.txid - 1))
        if last in nodes:
            self._record(position, StoredBatch.decode(nodes[last].data, last, self.codec))
        self._join(Identity.decode(nodes[paths.identity].data, paths.identity))

    def _record(self, position: StoredCurrent, batch: StoredBatch) -> None:
        txid, found = Txid(position.txid - 1), (position.attempt, batch.metas)
        if self.batches.setdefault(txid, found) != found:
            raise WrongResultError(f"txid {txid} was {self.batches[txid]} and is {found} now")

    def _join(self, identity: Identity) -> None:
        for table in set(identity.tables) - set(self.since):
            self.since[table] = self.current
        for table in set(self.since) - set(identity.tables):
            # ZooKeeper was rebuilt from what databases knew: only what has counted nothing may be gone.
            if self.since[table] != self.current:
                raise WrongResultError(f"state {table} has left at txid {self.current}")
            del self.since[table]

    def applied(self, changes: Overlay) -> None:
        """Look at the transaction that a database is about to apply."""
        for space, key, value in changes.changes():
            if space == "table":
                (name,) = key
                wide = value is not None and "total" in declared_spec(Owner(*value)).state.value_names
                if name in self.declared and wide and not self.declared[name]:
                    fence = layout.read_fence(changes.get("fence", ("t",)))
                    self._grown[name] = self.current, fence.attempt
                if value is None:
                    self.declared.pop(name, None)
                else:
                    self.declared[name] = wide

    def in_effect(self) -> dict[str, bool]:
        """Return the states that count, and whether they are wide."""
        return {table: self.declared[table] for table in self.since}

    def rows(self, table: str) -> Mapping[str, tuple[int, ...]]:
        """Return a state's rows: the values by key."""
        start = self.since[table]
        wide_from = self._wide_from(table, start)
        found: dict[str, tuple[int, int]] = {}
        for txid in sorted(txid for txid in self.batches if txid >= start):
            for key, (n, total) in hold(self.batches[txid][1]).items():
                known = found.get(key)
                if known is None:
                    # A row that exists when the column comes has the default; a later row does not.
                    found[key] = n, total if txid >= wide_from else DEFAULT
                else:
                    found[key] = known[0] + n, known[1] + (total if txid >= wide_from else 0)
        if self.declared[table]:
            return found
        return {key: (n,) for key, (n, _) in found.items()}

    def _wide_from(self, table: str, start: Txid) -> Txid:
        """Return the first batch that `total` counts: the one that was current when the column came, or the
        next one if that batch was committed by an earlier leader's attempt."""
        if table not in self._grown:
            return start
        txid, leader = self._grown[table]
        committed_by = self.batches[txid][0] if txid in self.batches else None
        was_before = committed_by is not None and committed_by < leader
        return max(start, Txid(txid + 1) if was_before else txid)
