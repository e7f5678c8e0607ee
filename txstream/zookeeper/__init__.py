"""The transaction order, kept in ZooKeeper: progress store, leader election, identity, requests."""

from __future__ import annotations

from txstream.zookeeper.client import ZooKeeper, ZooKeeperProgress
from txstream.zookeeper.identity import FORMAT, Identity
from txstream.zookeeper.leadership import Leadership
from txstream.zookeeper.memory import MemoryProgress, MemoryTree
from txstream.zookeeper.notes import (
    ASSIGNMENT,
    AWAY,
    EDGES,
    ENDED,
    FAILING,
    FAILING_ATTEMPTS,
    LETTERS_SENT,
    TREES,
    WAITING,
)
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.progress import ProgressStore
from txstream.zookeeper.request_queue import OperatorRequests
from txstream.zookeeper.requests import Answer, InForce, Kind, Request, Requests
from txstream.zookeeper.tree import LostAnswerError
from txstream.zookeeper.znode_values import Progress, StoredBatch

__all__ = [
    "ASSIGNMENT",
    "AWAY",
    "EDGES",
    "ENDED",
    "FAILING",
    "FAILING_ATTEMPTS",
    "FORMAT",
    "LETTERS_SENT",
    "ROOT",
    "TREES",
    "WAITING",
    "Answer",
    "Identity",
    "InForce",
    "Kind",
    "Leadership",
    "LostAnswerError",
    "MemoryProgress",
    "MemoryTree",
    "OperatorRequests",
    "Paths",
    "Progress",
    "ProgressStore",
    "Request",
    "Requests",
    "StoredBatch",
    "ZooKeeper",
    "ZooKeeperProgress",
]
