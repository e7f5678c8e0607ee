"""The transaction order, kept in ZooKeeper: progress store, leader election, identity, requests."""

from __future__ import annotations

from txstream.zookeeper.client import ZooKeeper, ZooKeeperProgress
from txstream.zookeeper.failing_note import read_failing, read_waiting
from txstream.zookeeper.identity import FORMAT, Identity
from txstream.zookeeper.leadership import Leadership
from txstream.zookeeper.memory import MemoryProgress, MemoryTree
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.placement_note import read_assignment
from txstream.zookeeper.progress_contract import Progress, ProgressStore
from txstream.zookeeper.request_queue import OperatorRequests
from txstream.zookeeper.requests import Answer, InForce, Kind, Request, Requests
from txstream.zookeeper.tree import LostAnswerError
from txstream.zookeeper.znode_values import StoredBatch

__all__ = [
    "FORMAT",
    "ROOT",
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
    "read_assignment",
    "read_failing",
    "read_waiting",
]
