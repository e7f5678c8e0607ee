"""The transaction order, kept in ZooKeeper: progress store, leader election, identity, requests.

The names are loaded when they are first used: a command that asks nothing needs no kazoo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.lazy_names import home_of, lazily

if TYPE_CHECKING:
    from txstream.zookeeper.client import ZooKeeper, ZooKeeperProgress
    from txstream.zookeeper.identity import FORMAT, Identity
    from txstream.zookeeper.leadership import Leadership
    from txstream.zookeeper.notes import (
        ASSIGNMENT,
        AWAY,
        EDGES,
        ENDED,
        FAILING,
        FAILING_ATTEMPTS,
        SENT,
        TREES,
        WAITING,
    )
    from txstream.zookeeper.paths import ROOT, Paths
    from txstream.zookeeper.progress import ProgressStore
    from txstream.zookeeper.request_queue import OperatorRequests
    from txstream.zookeeper.requests import Answer, InForce, Kind, Request, Requests
    from txstream.zookeeper.tree import LostAnswerError
    from txstream.zookeeper.znode_values import Progress, StoredBatch

_HOME_OF = home_of(
    {
        "txstream.zookeeper.client": ("ZooKeeper", "ZooKeeperProgress"),
        "txstream.zookeeper.identity": ("FORMAT", "Identity"),
        "txstream.zookeeper.leadership": ("Leadership",),
        "txstream.zookeeper.notes": (
            "ASSIGNMENT",
            "AWAY",
            "EDGES",
            "ENDED",
            "FAILING",
            "FAILING_ATTEMPTS",
            "SENT",
            "TREES",
            "WAITING",
        ),
        "txstream.zookeeper.paths": ("ROOT", "Paths"),
        "txstream.zookeeper.progress": ("ProgressStore",),
        "txstream.zookeeper.request_queue": ("OperatorRequests",),
        "txstream.zookeeper.requests": ("Answer", "InForce", "Kind", "Request", "Requests"),
        "txstream.zookeeper.tree": ("LostAnswerError",),
        "txstream.zookeeper.znode_values": ("Progress", "StoredBatch"),
    }
)

__all__ = [
    "ASSIGNMENT",
    "AWAY",
    "EDGES",
    "ENDED",
    "FAILING",
    "FAILING_ATTEMPTS",
    "FORMAT",
    "ROOT",
    "SENT",
    "TREES",
    "WAITING",
    "Answer",
    "Identity",
    "InForce",
    "Kind",
    "Leadership",
    "LostAnswerError",
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
__getattr__, __dir__ = lazily(__name__, _HOME_OF, __all__)
