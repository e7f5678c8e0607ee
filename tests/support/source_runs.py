"""Any source under the event loop, with everything else in memory: what is committed, txid by txid.

A `SourceRun` is one driver's turn; a second one over the same `Store` is a restart.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from support.bolts import compiled
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import SourceSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.coordinator import Coordinator
from txstream.engine.batch.plan import ExecutionPlan
from txstream.engine.batch.runner import BatchRunner
from txstream.engine.commit.committer import Committer, ProcessedBatch
from txstream.engine.driver.loop import EventLoop, LoopOptions
from txstream.metas import MetaCodec
from txstream.testing import InProcessRunner
from txstream.transaction import AttemptSequence, Epoch, TransactionAttempt, Txid
from txstream.zookeeper import FORMAT, Identity, MemoryProgress, MemoryTree

DEADLINE_SECONDS = 60.0
UUID = "6fb0f6b4-0c26-4ac1-a9a4-7f8a7a1e4f11"


@dataclass
class Store:
    """What outlives a driver: progress, and the deltas of each committed txid as rows."""

    tree: MemoryTree = field(default_factory=MemoryTree)
    batches: dict[Txid, list[dict[str, Any]]] = field(default_factory=dict)

    def totals(self, key: str, value: str) -> dict[Any, Any]:
        totals: Counter[Any] = Counter()
        for rows in self.batches.values():
            for row in rows:
                totals[row[key]] += row[value]
        return dict(totals)


class StoringCommitter(Committer):
    def __init__(self, topology: Topology, store: Store) -> None:
        super().__init__(topology, UUID, [], wait_for=lambda what, check: check())
        self._store = store

    def commit(
        self,
        attempt: TransactionAttempt,
        metas: Mapping[str, Any],
        batch: ProcessedBatch,
        deltas: Mapping[str, pa.Table],
        reached: Any,
        **_: Any,
    ) -> None:
        (table,) = deltas.values()
        self._store.batches[attempt.txid] = table.to_pylist()


@dataclass
class SourceRun:
    """`until` is "caught-up" or a txid; `make_runner` says what processes the batches."""

    topology: Topology
    store: Store = field(default_factory=Store)
    until: str | int = "caught-up"
    make_runner: Callable[[ExecutionPlan], BatchRunner] = InProcessRunner

    def __post_init__(self) -> None:
        topology = self.topology
        codec: MetaCodec[Any] = MetaCodec(topology.spout.source.meta_type)
        progress = MemoryProgress(self.store.tree, "t", codec, should_stop=lambda: self.loop.aborted)
        progress.create_identity(Identity(UUID, FORMAT, topology.semantics, "spout"))
        epoch = progress.claim_epoch(Epoch(0))
        loaded = progress.load()
        plan = compiled(topology, uuid.uuid4().hex)  # worker processes keep what they opened by the run
        spout = topology.spout.source.coordinator(plan.context)
        self.coordinator: Coordinator[Any] = Coordinator(
            topology.semantics,
            current=loaded.current,
            stored={txid: batch.metas for txid, batch in loaded.batches.items()},
            next_attempt=AttemptSequence(epoch).next,
            max_spout_pending=topology.max_spout_pending,
            last_txid=Txid(self.until) if isinstance(self.until, int) else None,
        )
        self.runner = self.make_runner(plan)
        self.loop = EventLoop(
            self.coordinator,
            spout,
            progress,
            self.runner,
            StoringCommitter(topology, self.store),
            codec,
            LoopOptions(
                max_batch_records=topology.spout.max_batch_records,
                message_timeout_seconds=topology.message_timeout_seconds,
                max_attempts=topology.max_attempts,
                targets=spout.targets() if self.until == "caught-up" else None,
            ),
        )
        self._spout = spout

    def complete(self) -> SourceRun:
        """Run to the end; raises what the run ended with."""
        raised: list[BaseException] = []

        def main() -> None:
            try:
                self.loop.run()
            except BaseException as error:  # noqa: BLE001 - raised below
                raised.append(error)

        thread = threading.Thread(target=main, daemon=True)
        thread.start()
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive(), f"still running: {self.loop.open_batches()}, {self.loop.waiting_for}"
        self.runner.close()
        self._spout.close()
        if raised:
            raise raised[0]
        return self


def counting(spout: SourceSpout[Any], key: str = "value", **options: Any) -> Topology:
    """How often each value of a field came, in `times`."""
    builder = TransactionalTopologyBuilder("counting", "source", spout, 2, **options)
    state = SqlState("counts", key=pa.schema([spout.output.field(key)]), value="times bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, times=Count()), 2).fields_grouping("source", key)
    return builder.build()
