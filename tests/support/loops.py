"""The event loop with everything in memory: a log, a progress store, batches without Spark, a table.

A `Run` is one driver's turn; a second one over the same `World` is a restart.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from support.bolts import compiled, merged, word_count
from support.inmemory import MemoryLog, Range
from txstream.api.spouts import OpaqueSpout, SourceSpout
from txstream.api.topology import Topology
from txstream.coordinator import Coordinator
from txstream.engine.batch.runner import BatchResult
from txstream.engine.commit.committer import Committer, ProcessedBatch
from txstream.engine.driver.loop import EventLoop, LoopOptions
from txstream.engine.driver.operators import Slots
from txstream.engine.fault_points import Point, PointListener, nobody_listens
from txstream.metas import BatchMetas, MetaCodec
from txstream.testing import InProcessRunner
from txstream.transaction import AttemptSequence, Epoch, TransactionAttempt, Txid
from txstream.zookeeper import FORMAT, Identity, MemoryProgress, MemoryTree

DEADLINE_SECONDS = 60.0
UUID = "6fb0f6b4-0c26-4ac1-a9a4-7f8a7a1e4f11"


def wait(event: threading.Event, what: str) -> None:
    assert event.wait(DEADLINE_SECONDS), f"not within {DEADLINE_SECONDS:g} s: {what}"


class Table:
    """What is committed: per txid the last attempt that did, and its deltas."""

    def __init__(self) -> None:
        self.batches: dict[Txid, tuple[TransactionAttempt, dict[str, int]]] = {}

    def totals(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for _, deltas in self.batches.values():
            for word, n in deltas.items():
                totals[word] = totals.get(word, 0) + n
        return totals


class RecordingCommitter(Committer):
    """Commits into a `Table`. `before` is called first, on the commit thread, and may raise or block."""

    def __init__(self, topology: Topology, table: Table) -> None:
        super().__init__(topology, UUID, [], wait_for=lambda what, check: check())
        self.topology = topology
        self.table = table
        self.before: Callable[[TransactionAttempt], None] = lambda attempt: None
        self.attempts: list[TransactionAttempt] = []
        self.errors: list[str | None] = []

    def commit(
        self,
        attempt: TransactionAttempt,
        metas: Mapping[str, Any],
        batch: ProcessedBatch,
        deltas: Mapping[str, pa.Table],
        reached: Callable[[str], None],
        **_: Any,
    ) -> None:
        self.attempts.append(attempt)
        self.errors.append(batch.error)
        self.before(attempt)
        assert all(txid <= attempt.txid for txid in self.table.batches), "out of order"
        reached("inside-commit")
        self.table.batches[attempt.txid] = (attempt, merged(self.topology, batch.result))


class CountingRunner(InProcessRunner):
    """Writes down every attempt that it is given, and keeps what it left."""

    def __init__(self, topology: Topology, *, width: int | None = None, capture: bool = False) -> None:
        super().__init__(compiled(topology, capture=capture), width=width)
        self.attempts: list[TransactionAttempt] = []
        self.results: dict[TransactionAttempt, BatchResult] = {}

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        self.attempts.append(attempt)
        result = self.results[attempt] = super().run(attempt, metas)
        return result


@dataclass
class World:
    """What outlives a driver."""

    log: MemoryLog
    spout: type[SourceSpout[Any]] = OpaqueSpout
    tree: MemoryTree = field(default_factory=MemoryTree)
    table: Table = field(default_factory=Table)


@dataclass
class Run:
    """One driver's turn. `until` is "caught-up", a txid or None; `options` go to the topology, `runner_type`
    makes the runner."""

    world: World
    until: str | int | None = "caught-up"
    max_batch_records: int = 2
    listener: PointListener = nobody_listens
    committer: Any = None
    runner_type: Callable[[Topology], CountingRunner] = CountingRunner
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.world
        self.topology = word_count(world.log, spout=world.spout, parallelism=2, **self.options)
        codec: MetaCodec[Any] = MetaCodec(Range)
        self.store = MemoryProgress(world.tree, "t", codec, hook=self._hook, should_stop=self._aborted)
        self.hook: Callable[[str, str], None] = lambda when, write: None
        self.store.create_identity(Identity(UUID, FORMAT, self.topology.semantics, "spout"))
        epoch = self.store.claim_epoch(Epoch(0))
        progress = self.store.load()
        slots = Slots(self.topology)
        slots.restore(self.store.read_scale())
        self.coordinator: Coordinator[Any] = Coordinator(
            self.topology.semantics,
            current=progress.current,
            stored={txid: batch.metas for txid, batch in progress.batches.items()},
            next_attempt=AttemptSequence(epoch).next,
            max_spout_pending=self.topology.max_spout_pending,
            last_txid=Txid(self.until) if isinstance(self.until, int) else None,
        )
        self.spout = self.topology.spout.source.coordinator(compiled(self.topology).context)
        self.runner = self.runner_type(self.topology)
        self.committer = self.committer or RecordingCommitter(self.topology, world.table)
        self.loop = EventLoop(
            self.coordinator,
            self.spout,
            self.store,
            self.runner,
            self.committer,
            codec,
            LoopOptions(
                max_batch_records=self.max_batch_records,
                message_timeout_seconds=self.topology.message_timeout_seconds,
                max_attempts=self.topology.max_attempts,
                targets=self.spout.targets() if self.until == "caught-up" else None,
                listener=self.listener,
            ),
            slots=slots,
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> Run:
        self._thread.start()
        return self

    def finish(self) -> Run:
        """Wait for the end; raises what the run ended with."""
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), f"still running: {self.loop.open_batches()}"
        if self.error is not None:
            raise self.error
        return self

    def complete(self) -> Run:
        return self.start().finish()

    def _main(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - raised in finish
            self.error = error

    def _hook(self, when: str, write: str) -> None:
        if hasattr(self, "hook"):
            self.hook(when, write)

    def _aborted(self) -> bool:
        return hasattr(self, "loop") and self.loop.aborted


def words(log: MemoryLog) -> dict[str, int]:
    return dict(Counter(w for rows in log.partitions.values() for line in rows for w in (line or "").split()))


def failing_once(error: Exception, txid: int) -> Callable[[TransactionAttempt, str], None]:
    """Raises at the first read of a txid."""
    failed: set[int] = set()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == txid and not failed:
            failed.add(attempt.txid)
            raise error

    return on_emit


def stop_when(run: Run, condition: Callable[[], bool]) -> None:
    """Stop the run once a batch was advanced and the condition holds."""

    def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is Point.AFTER_ADVANCE and condition():
            run.loop.stop()

    run.loop.options.listener = listener
    if condition():
        run.loop.stop()
