"""txstream: exactly-once state in a SQL database from Kafka.

Everything public can be imported from here. A name is loaded when it is first used, so an executor, which
needs only the contracts and Arrow, imports no database, ZooKeeper or Spark library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.lazy_names import home_of, lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from txstream.api.bolt_checks import TopologyWarning as TopologyWarning
    from txstream.api.bolts import (
        BasicBolt as BasicBolt,
        BatchBolt as BatchBolt,
        Committer as Committer,
        DataFrameBolt as DataFrameBolt,
        OutputCollector as OutputCollector,
        OutputFieldsDeclarer as OutputFieldsDeclarer,
        TableReader as TableReader,
        TopologyContext as TopologyContext,
        TransactionalBolt as TransactionalBolt,
        WorkerContext as WorkerContext,
    )
    from txstream.api.builder import TransactionalTopologyBuilder as TransactionalTopologyBuilder
    from txstream.api.map_state import MapState as MapState
    from txstream.api.reducers import (
        Count as Count,
        Last as Last,
        Max as Max,
        Min as Min,
        Reducer as Reducer,
        Sum as Sum,
        custom as custom,
    )
    from txstream.api.spouts import (
        HeldBack as HeldBack,
        NonTransactionalSpout as NonTransactionalSpout,
        OpaqueSpout as OpaqueSpout,
        PartitionCoordinator as PartitionCoordinator,
        PartitionedSpout as PartitionedSpout,
        PartitionEmitter as PartitionEmitter,
        SpoutContext as SpoutContext,
        TransactionalSpout as TransactionalSpout,
        Unavailable as Unavailable,
    )
    from txstream.api.state import (
        SqlState as SqlState,
        SqlTable as SqlTable,
    )
    from txstream.api.topology import Topology as Topology
    from txstream.api.tracked import (
        RichBolt as RichBolt,
        RichCollector as RichCollector,
        Spout as Spout,
        SpoutCollector as SpoutCollector,
    )
    from txstream.api.tuples import (
        Chunk as Chunk,
        Tuple as Tuple,
    )
    from txstream.bolts.aggregate import (
        CountBolt as CountBolt,
        ReduceBolt as ReduceBolt,
    )
    from txstream.bolts.append import SqlAppendBolt as SqlAppendBolt
    from txstream.bolts.deduplicate import DeduplicateBolt as DeduplicateBolt
    from txstream.bolts.functions import bolt as bolt
    from txstream.bolts.lookup import LookupBolt as LookupBolt
    from txstream.bolts.sql import SqlStateBolt as SqlStateBolt
    from txstream.core.dead_letters import DeadLetters as DeadLetters
    from txstream.core.errors import (
        BatchFailedError as BatchFailedError,
        BoltError as BoltError,
        CorruptStateError as CorruptStateError,
        DataLostError as DataLostError,
        DecodeError as DecodeError,
        FailedException as FailedException,
        FencedError as FencedError,
        IdentityMismatchError as IdentityMismatchError,
        InputChangedError as InputChangedError,
        LateRecordError as LateRecordError,
        LeaderExistsError as LeaderExistsError,
        MetaTooLargeError as MetaTooLargeError,
        PartitionUnavailableError as PartitionUnavailableError,
        ProgressMismatchError as ProgressMismatchError,
        SchemaError as SchemaError,
        SchemaRevisionError as SchemaRevisionError,
        ServiceUnavailableError as ServiceUnavailableError,
        ShortBatchError as ShortBatchError,
        ShortReadError as ShortReadError,
        SparkLostError as SparkLostError,
        StaleAttemptError as StaleAttemptError,
        StateTableError as StateTableError,
        StateValueError as StateValueError,
        TopologyError as TopologyError,
        TupleError as TupleError,
        TxidRegressionError as TxidRegressionError,
        TxstreamError as TxstreamError,
        UsageError as UsageError,
    )
    from txstream.core.semantics import Semantics as Semantics
    from txstream.core.transaction import TransactionAttempt as TransactionAttempt
    from txstream.engine.loop.report import (
        RunProgress as RunProgress,
        RunReport as RunReport,
    )
    from txstream.engine.run import (
        RunningTopology as RunningTopology,
        run as run,
        start as start,
    )
    from txstream.plugins.audit.versions import Versions as Versions
    from txstream.plugins.delta.bolt import DeltaTableBolt as DeltaTableBolt
    from txstream.plugins.delta.reading import version_of as version_of
    from txstream.plugins.files import FileSpout as FileSpout
    from txstream.plugins.outbox.changes import ChangeTopic as ChangeTopic
    from txstream.plugins.outbox.sink import KafkaSinkBolt as KafkaSinkBolt
    from txstream.plugins.proof.stores.backend import StoreBackend as StoreBackend
    from txstream.plugins.tracked.builder import (
        TopologyBuilder as TopologyBuilder,
        TrackedTopology as TrackedTopology,
    )
    from txstream.plugins.tracked.kafka_queue import KafkaQueueSpout as KafkaQueueSpout
    from txstream.plugins.windows.bolt import WindowBolt as WindowBolt
    from txstream.plugins.windows.closed import ClosedWindows as ClosedWindows
    from txstream.plugins.windows.emitting import ClosedBolt as ClosedBolt
    from txstream.plugins.windows.state import WindowState as WindowState
    from txstream.plugins.windows.times import Hopping as Hopping, Tumbling as Tumbling
    from txstream.settings import Settings as Settings
    from txstream.spouts.batch_spouts import (
        BatchCollector as BatchCollector,
        BatchSpout as BatchSpout,
    )
    from txstream.spouts.formats.value_encoders import Encode as Encode
    from txstream.spouts.kafka import (
        Decode as Decode,
        KafkaOptions as KafkaOptions,
        KafkaSource as KafkaSource,
    )
    from txstream.spouts.memory import MemorySpout as MemorySpout
    from txstream.spouts.rate import RateSpout as RateSpout
    from txstream.state.backend import StateBackend as StateBackend
    from txstream.state.registry import register_backend as register_backend

_HOMES = {
    "txstream.api.bolt_checks": ("TopologyWarning",),
    "txstream.api.bolts": (
        "BasicBolt",
        "BatchBolt",
        "Committer",
        "DataFrameBolt",
        "OutputCollector",
        "OutputFieldsDeclarer",
        "TopologyContext",
        "TableReader",
        "TransactionalBolt",
        "WorkerContext",
    ),
    "txstream.api.builder": ("TransactionalTopologyBuilder",),
    "txstream.core.errors": (
        "BatchFailedError",
        "BoltError",
        "CorruptStateError",
        "DataLostError",
        "InputChangedError",
        "DecodeError",
        "FailedException",
        "FencedError",
        "IdentityMismatchError",
        "LateRecordError",
        "LeaderExistsError",
        "MetaTooLargeError",
        "PartitionUnavailableError",
        "ProgressMismatchError",
        "SchemaError",
        "SchemaRevisionError",
        "ServiceUnavailableError",
        "ShortBatchError",
        "ShortReadError",
        "SparkLostError",
        "StaleAttemptError",
        "StateTableError",
        "StateValueError",
        "TopologyError",
        "TupleError",
        "TxidRegressionError",
        "TxstreamError",
        "UsageError",
    ),
    "txstream.api.map_state": ("MapState",),
    "txstream.api.reducers": ("Count", "Last", "Max", "Min", "Reducer", "Sum", "custom"),
    "txstream.api.spouts": (
        "HeldBack",
        "NonTransactionalSpout",
        "OpaqueSpout",
        "PartitionCoordinator",
        "PartitionEmitter",
        "PartitionedSpout",
        "SpoutContext",
        "TransactionalSpout",
        "Unavailable",
    ),
    "txstream.api.state": ("SqlState", "SqlTable"),
    "txstream.api.topology": ("Topology",),
    "txstream.api.tracked": ("RichBolt", "RichCollector", "Spout", "SpoutCollector"),
    "txstream.plugins.tracked.builder": ("TopologyBuilder", "TrackedTopology"),
    "txstream.api.tuples": ("Chunk", "Tuple"),
    "txstream.bolts.aggregate": ("CountBolt", "ReduceBolt"),
    "txstream.bolts.append": ("SqlAppendBolt",),
    "txstream.bolts.deduplicate": ("DeduplicateBolt",),
    "txstream.bolts.functions": ("bolt",),
    "txstream.bolts.lookup": ("LookupBolt",),
    "txstream.bolts.sql": ("SqlStateBolt",),
    "txstream.core.dead_letters": ("DeadLetters",),
    "txstream.engine.loop.report": ("RunProgress", "RunReport"),
    "txstream.engine.run": ("RunningTopology", "run", "start"),
    "txstream.core.semantics": ("Semantics",),
    "txstream.settings": ("Settings",),
    "txstream.plugins.audit.versions": ("Versions",),
    "txstream.plugins.delta.bolt": ("DeltaTableBolt",),
    "txstream.plugins.delta.reading": ("version_of",),
    "txstream.plugins.files": ("FileSpout",),
    "txstream.plugins.outbox.changes": ("ChangeTopic",),
    "txstream.plugins.outbox.sink": ("KafkaSinkBolt",),
    "txstream.spouts.batch_spouts": ("BatchCollector", "BatchSpout"),
    "txstream.spouts.formats.value_encoders": ("Encode",),
    "txstream.spouts.kafka": ("Decode", "KafkaOptions", "KafkaSource"),
    "txstream.plugins.tracked.kafka_queue": ("KafkaQueueSpout",),
    "txstream.plugins.windows.bolt": ("WindowBolt",),
    "txstream.plugins.windows.closed": ("ClosedWindows",),
    "txstream.plugins.windows.emitting": ("ClosedBolt",),
    "txstream.plugins.windows.state": ("WindowState",),
    "txstream.plugins.windows.times": ("Hopping", "Tumbling"),
    "txstream.spouts.memory": ("MemorySpout",),
    "txstream.spouts.rate": ("RateSpout",),
    "txstream.state.backend": ("StateBackend",),
    "txstream.state.registry": ("register_backend",),
    "txstream.plugins.proof.stores.backend": ("StoreBackend",),
    "txstream.core.transaction": ("TransactionAttempt",),
}
_HOME_OF = home_of(_HOMES)

__all__ = [
    "__version__",
    *sorted(_HOME_OF),
]
__getattr__, __dir__ = lazily(__name__, _HOME_OF, __all__)
