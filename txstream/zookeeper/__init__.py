"""The transaction order, kept in ZooKeeper: progress store, leader election, identity, requests."""

from __future__ import annotations

from txstream.zookeeper.client import ZooKeeper, ZooKeeperProgress
from txstream.zookeeper.documents import StoredBatch
from txstream.zookeeper.failing import read_failing, read_waiting
from txstream.zookeeper.identity import FORMAT, Identity
from txstream.zookeeper.leadership import Leadership
from txstream.zookeeper.memory import MemoryProgress, MemoryTree
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.placement import read_assignment
from txstream.zookeeper.requests import OperatorRequests
from txstream.zookeeper.scale import Scale, ScaleAnswer, ScaleRequest
from txstream.zookeeper.store import Progress, ProgressStore
from txstream.zookeeper.tree import LostAnswerError
from txstream.zookeeper.waiting import WaitStoppedError

__all__ = [
    "FORMAT",
    "ROOT",
    "Identity",
    "Leadership",
    "LostAnswerError",
    "MemoryProgress",
    "MemoryTree",
    "OperatorRequests",
    "Paths",
    "Progress",
    "ProgressStore",
    "Scale",
    "ScaleAnswer",
    "ScaleRequest",
    "StoredBatch",
    "WaitStoppedError",
    "ZooKeeper",
    "ZooKeeperProgress",
    "read_assignment",
    "read_failing",
    "read_waiting",
]
