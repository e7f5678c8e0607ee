"""A topology that may be upgraded: eight rows, and states of two kinds."""

from __future__ import annotations

from typing import Any

import pytest

from support.bolts import CountByHand
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Reducer, Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.spouts.memory import MemorySpout

# Two rows make a batch, so these make four.
ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6), ("d", 7), ("a", 8)]
COUNTS = {"a": 4, "b": 2, "c": 1, "d": 1}
SPOUTS = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])

Store = tuple[SqlState, dict[str, Reducer]]


def counts(table: str = "counts", url: str | None = None) -> Store:
    """Return a state of how often each word came."""
    return SqlState(table, key="word string", value="n bigint", url=url), {"n": Count()}


def totals(table: str = "totals", url: str | None = None) -> Store:
    """Return a state of the sum of each word's numbers."""
    return SqlState(table, key="word string", value="total bigint", url=url), {"total": Sum("x")}


def storing(
    source: MemorySpout, spout: Any, *stores: Store, batch: int = 2, commit: Any = "auto"
) -> Topology:
    """Return a topology of the source's rows, these states, and a committer without any state."""
    rows = spout(source, max_batch_records=batch)
    builder = TransactionalTopologyBuilder("words", "rows", rows, 2, commit=commit)
    for number, (state, reducers) in enumerate(stores):
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, **reducers), 2)
        store.fields_grouping("rows", "word")
    builder.set_committer_bolt("stateless", CountByHand()).fields_grouping("rows", "word")
    return builder.build()
