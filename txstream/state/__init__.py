"""State in a SQL database or another store: fence, ledger, state tables, and the commit of a batch.

The names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.lazy_names import home_of, lazily

if TYPE_CHECKING:
    from txstream.state.backend import StateBackend
    from txstream.state.commit_protocol import StateTransaction, TopologyStates
    from txstream.state.records import (
        AnswerLostError,
        BatchRecord,
        Commit,
        FenceLockedError,
        FenceRow,
        TableSpec,
        TopologyLife,
    )
    from txstream.state.registry import open_database, open_sql_database, place_of, register_backend
    from txstream.state.sql.database import StateDatabase

_HOME_OF = home_of(
    {
        "txstream.state.backend": ("StateBackend",),
        "txstream.state.commit_protocol": ("StateTransaction", "TopologyStates"),
        "txstream.state.records": (
            "AnswerLostError",
            "BatchRecord",
            "Commit",
            "FenceLockedError",
            "FenceRow",
            "TableSpec",
            "TopologyLife",
        ),
        "txstream.state.registry": ("open_database", "open_sql_database", "place_of", "register_backend"),
        "txstream.state.sql.database": ("StateDatabase",),
    }
)

__all__ = [
    "AnswerLostError",
    "BatchRecord",
    "Commit",
    "FenceLockedError",
    "FenceRow",
    "StateBackend",
    "StateDatabase",
    "StateTransaction",
    "TableSpec",
    "TopologyLife",
    "TopologyStates",
    "open_database",
    "open_sql_database",
    "place_of",
    "register_backend",
]
__getattr__, __dir__ = lazily(__name__, _HOME_OF, __all__)
