"""txstream: exactly-once state in a SQL database from Kafka.

Everything public is importable from here. Names are loaded when first used, so that an executor, which
needs only contracts and Arrow, imports no database, ZooKeeper or Spark library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from txstream.api.bolts import (
        BasicBolt,
        BatchBolt,
        Committer,
        OutputCollector,
        OutputFieldsDeclarer,
        TopologyContext,
        TransactionalBolt,
    )
    from txstream.api.errors import (
        BatchFailedError,
        CorruptStateError,
        DataLostError,
        FailedException,
        FencedError,
        IdentityMismatchError,
        PartitionUnavailableError,
        ProgressMismatchError,
        ServiceUnavailableError,
        ShortReadError,
        StateValueError,
        TopologyError,
        TxstreamError,
        UsageError,
    )
    from txstream.api.reducers import Count, Max, Min, Reducer, Sum
    from txstream.api.spouts import (
        NonTransactionalSpout,
        OpaqueSpout,
        PartitionCoordinator,
        PartitionedSpout,
        PartitionEmitter,
        SpoutContext,
        TransactionalSpout,
        Unavailable,
    )
    from txstream.api.state import SqlState
    from txstream.api.topology import Topology, TransactionalTopologyBuilder
    from txstream.api.tuples import Chunk, Tuple
    from txstream.bolts.aggregate import CountBolt, ReduceBolt
    from txstream.bolts.sql import SqlStateBolt
    from txstream.engine.report import RunProgress, RunReport
    from txstream.engine.run import RunningTopology, run, start
    from txstream.semantics import Semantics
    from txstream.settings import Settings
    from txstream.spouts.kafka import KafkaSource
    from txstream.transaction import TransactionAttempt

_HOMES = {
    "txstream.api.bolts": (
        "BasicBolt",
        "BatchBolt",
        "Committer",
        "OutputCollector",
        "OutputFieldsDeclarer",
        "TopologyContext",
        "TransactionalBolt",
    ),
    "txstream.api.errors": (
        "BatchFailedError",
        "CorruptStateError",
        "DataLostError",
        "FailedException",
        "FencedError",
        "IdentityMismatchError",
        "PartitionUnavailableError",
        "ProgressMismatchError",
        "ServiceUnavailableError",
        "ShortReadError",
        "StateValueError",
        "TopologyError",
        "TxstreamError",
        "UsageError",
    ),
    "txstream.api.reducers": ("Count", "Max", "Min", "Reducer", "Sum"),
    "txstream.api.spouts": (
        "NonTransactionalSpout",
        "OpaqueSpout",
        "PartitionCoordinator",
        "PartitionEmitter",
        "PartitionedSpout",
        "SpoutContext",
        "TransactionalSpout",
        "Unavailable",
    ),
    "txstream.api.state": ("SqlState",),
    "txstream.api.topology": ("Topology", "TransactionalTopologyBuilder"),
    "txstream.api.tuples": ("Chunk", "Tuple"),
    "txstream.bolts.aggregate": ("CountBolt", "ReduceBolt"),
    "txstream.bolts.sql": ("SqlStateBolt",),
    "txstream.engine.report": ("RunProgress", "RunReport"),
    "txstream.engine.run": ("RunningTopology", "run", "start"),
    "txstream.semantics": ("Semantics",),
    "txstream.settings": ("Settings",),
    "txstream.spouts.kafka": ("KafkaSource",),
    "txstream.transaction": ("TransactionAttempt",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "__version__",
    *sorted(_HOME_OF),
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'txstream' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return list(__all__)
