"""What an event loop is made of: the tier of batches builds it before a run, and hands it over as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from txstream.api.spouts import PartitionCoordinator
from txstream.api.topology import Topology
from txstream.core.coordinator import Coordinator
from txstream.core.fault_points import PointListener, nobody_listens
from txstream.core.waiting import Waiting
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.commit.committer import BatchCommitter
from txstream.engine.letters.retries import Retries
from txstream.engine.letters.rows import LetterReader
from txstream.engine.loop.log_end import LogEnd
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.loop.operator_changes import Steering
from txstream.engine.loop.read_before import ReadBefore
from txstream.engine.loop.workers import Workers
from txstream.zookeeper import ProgressStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """`steering` is what operators may change. `log_end` and `until_txid` say when to end. A run's first
    attempts, and those after a timeout, have `warm_up_seconds` on top of the message timeout. While there is
    little to read, a batch gathers for `gather_seconds` at most."""

    topology: Topology
    coordinator: Coordinator[Any]
    spout: PartitionCoordinator[Any]
    store: ProgressStore
    runner: BatchRunner
    committer: BatchCommitter
    workers: Workers
    waiting: Waiting
    steering: Steering
    log_end: LogEnd
    letters: LetterReader
    retries: Retries
    read_before: ReadBefore
    until_txid: int | None = None
    warm_up_seconds: float = 0.0
    gather_seconds: float = 0.0
    listener: PointListener = nobody_listens
    watcher: Watcher = field(default_factory=Watcher)
