"""The horizons of a topology's batches: those of tables with `keep`, and those that states decide themselves.

Invariant: keepers know what is committed and will not run again, and nothing else. A leader learns from the
ledger what the last batch had told when another one committed it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txstream.api.retention import Horizons, next_horizons
from txstream.api.topology import Topology
from txstream.core.transaction import Txid
from txstream.state import TopologyStates

Told = Mapping[str, Sequence[Mapping[bytes, bytes]]]
"""By table: what each task has told with its deltas."""


class HorizonKeepers:
    """The `HorizonKeeper`s of one leader, by table. `last` is the txid that was committed last."""

    def __init__(self, topology: Topology, states: Sequence[TopologyStates] = (), last: int = 0) -> None:
        made = {bolt.state.table: bolt.state.horizon_keeper() for bolt, _ in topology.states}
        self._keeps = topology.keeps
        self._keepers = {table: keeper for table, keeper in made.items() if keeper is not None}
        self._learned: dict[str, Any] = {}
        for row in (one.batch(last) for one in states if self._keepers):
            self._learned |= {} if row is None else row.details.get("learned", {})
        self.committed(Txid(last))

    def next(
        self, before: Horizons, taken: Collection[str], waiting: Collection[str], now: float
    ) -> Horizons:
        """Return the horizons of a batch; see `HorizonKeeper.next`."""
        own = {
            table: keeper.next(before.get(table), taken, waiting, now)
            for table, keeper in self._keepers.items()
        }
        return {**next_horizons(before, self._keeps, now), **own}

    def learned(self, horizons: Horizons, told: Told) -> Mapping[str, Any]:
        """Return what the ledger is to keep of a batch that is about to be committed."""
        self._learned = {
            table: keeper.learned(horizons[table], told.get(table, ()))
            for table, keeper in self._keepers.items()
            if table in horizons
        }
        return self._learned

    def committed(self, txid: Txid) -> None:
        """The batch of which was learned last is committed."""
        for table in self._keepers.keys() & self._learned.keys():
            self._keepers[table].committed(txid, self._learned[table])
