"""Runs any source under a driver with everything else in memory, and records what is committed, txid by txid.

A `SourceRun` is one driver's turn; a second one over the same `Store` is a restart.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from support.loops import DriverRun, Place
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import SourceSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.transaction import Txid
from txstream.engine.start.driver import RunnerFactory
from txstream.testing import InProcessRunner


class Store(Place):
    """What outlives a driver."""

    @property
    def batches(self) -> dict[Txid, list[dict[str, Any]]]:
        """Return the deltas of each committed txid as rows."""
        return {txid: rows for txid, (_, rows) in self.table.batches.items()}

    def totals(self, key: str, value: str) -> dict[Any, Any]:
        totals: Counter[Any] = Counter()
        for rows in self.batches.values():
            for row in rows:
                totals[row[key]] += row[value]
        return dict(totals)


class SourceRun(DriverRun):
    """`until` is "caught-up" or a txid; `make_runner` says what processes the batches."""

    def __init__(
        self,
        topology: Topology,
        store: Store | None = None,
        until: str | int = "caught-up",
        make_runner: RunnerFactory = InProcessRunner,
    ) -> None:
        self.store_of_states = store or Store()
        super().__init__(topology, self.store_of_states, until, make_runner=make_runner)


def counting(spout: SourceSpout[Any], key: str = "value", **options: Any) -> Topology:
    """Return a topology that counts how often each value of a field comes, in `times`."""
    builder = TransactionalTopologyBuilder("counting", "source", spout, 2, **options)
    state = SqlState("counts", key=pa.schema([spout.output.field(key)]), value="times bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, times=Count()), 2).fields_grouping("source", key)
    return builder.build()
