"""The transaction order, kept in ZooKeeper: progress store, leader election, identity."""

from __future__ import annotations

from txstream.zookeeper.client import ZooKeeper, ZooKeeperProgress
from txstream.zookeeper.documents import StoredBatch
from txstream.zookeeper.identity import FORMAT, Identity
from txstream.zookeeper.leadership import Leadership
from txstream.zookeeper.memory import MemoryProgress, MemoryTree
from txstream.zookeeper.paths import ROOT
from txstream.zookeeper.patience import WaitStoppedError
from txstream.zookeeper.store import Progress, ProgressStore
from txstream.zookeeper.tree import LostAnswerError

__all__ = [
    "FORMAT",
    "ROOT",
    "Identity",
    "Leadership",
    "LostAnswerError",
    "MemoryProgress",
    "MemoryTree",
    "Progress",
    "ProgressStore",
    "StoredBatch",
    "WaitStoppedError",
    "ZooKeeper",
    "ZooKeeperProgress",
]
