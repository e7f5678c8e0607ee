"""Inspection of topologies from Python, for notebooks: what the command line shows, as frozen dataclasses.

Only `recover`, and `replay` when it is asked for a table, change anything. Functions take `settings`
(addresses; if unset, they are found as commands find them) and open what they need for the time of the call.
Those that only read databases take what `opened` yields instead, which several calls share. Names are loaded
when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.lazy_names import home_of, lazily

if TYPE_CHECKING:
    from txstream.inspect.databases import UnknownTopologyError as UnknownTopologyError, opened as opened
    from txstream.inspect.ledgers import (
        UnknownTxidError as UnknownTxidError,
        batch as batch,
        batches as batches,
    )
    from txstream.inspect.left_out import dead_letters as dead_letters
    from txstream.inspect.overview import (
        status as status,
        topologies as topologies,
    )
    from txstream.inspect.records import (
        Batch as Batch,
        BatchDetails as BatchDetails,
        Batches as Batches,
        FailedAttempt as FailedAttempt,
        Finding as Finding,
        FsckReport as FsckReport,
        LedgerEntry as LedgerEntry,
        MissingDatabase as MissingDatabase,
        PartitionRange as PartitionRange,
        Recovery as Recovery,
        RowChange as RowChange,
        Severity as Severity,
        StateRow as StateRow,
        StateRows as StateRows,
        StateTable as StateTable,
        TableDiff as TableDiff,
        TopologyStatus as TopologyStatus,
        TopologySummary as TopologySummary,
    )
    from txstream.inspect.tables import (
        diff as diff,
        get as get,
        states as states,
        top as top,
    )
    from txstream.plugins.audit.fsck_run import fsck as fsck
    from txstream.plugins.audit.key_differences import KeyDifference as KeyDifference
    from txstream.plugins.audit.provenance import (
        Why as Why,
        WhyPart as WhyPart,
        why as why,
    )
    from txstream.plugins.audit.record_wait import (
        NotKnownError as NotKnownError,
        RecordFate as RecordFate,
        wait_for as wait_for,
    )
    from txstream.plugins.audit.recover_from_ledgers import recover as recover
    from txstream.plugins.audit.replaying import (
        BatchReplay as BatchReplay,
        Replay as Replay,
        ReplayChange as ReplayChange,
        TableReplay as TableReplay,
        replay as replay,
    )

_HOMES = {
    "txstream.inspect.left_out": ("dead_letters",),
    "txstream.plugins.audit.fsck_run": ("fsck",),
    "txstream.inspect.ledgers": ("UnknownTxidError", "batch", "batches"),
    "txstream.inspect.overview": ("status", "topologies"),
    "txstream.plugins.audit.record_wait": ("NotKnownError", "RecordFate", "wait_for"),
    "txstream.plugins.audit.recover_from_ledgers": ("recover",),
    "txstream.inspect.records": (
        "Batch",
        "BatchDetails",
        "Batches",
        "FailedAttempt",
        "Finding",
        "FsckReport",
        "LedgerEntry",
        "MissingDatabase",
        "PartitionRange",
        "Recovery",
        "RowChange",
        "Severity",
        "StateRow",
        "StateRows",
        "StateTable",
        "TableDiff",
        "TopologyStatus",
        "TopologySummary",
    ),
    "txstream.inspect.databases": ("UnknownTopologyError", "opened"),
    "txstream.plugins.audit.key_differences": ("KeyDifference",),
    "txstream.plugins.audit.provenance": ("Why", "WhyPart", "why"),
    "txstream.plugins.audit.replaying": ("BatchReplay", "Replay", "ReplayChange", "TableReplay", "replay"),
    "txstream.inspect.tables": ("diff", "get", "states", "top"),
}
_HOME_OF = home_of(_HOMES)

__all__ = sorted(_HOME_OF)
__getattr__, __dir__ = lazily(__name__, _HOME_OF, __all__)
