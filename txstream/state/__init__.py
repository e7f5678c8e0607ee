"""State in a SQL database or another store: fence, ledger, state tables, and the commit of a batch."""

from __future__ import annotations

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
from txstream.state.store.backend import StoreBackend
from txstream.state.store.layout import Transaction
from txstream.state.store.memory import MemoryBackend

__all__ = [
    "AnswerLostError",
    "BatchRecord",
    "Commit",
    "FenceLockedError",
    "FenceRow",
    "MemoryBackend",
    "StateBackend",
    "StateDatabase",
    "StateTransaction",
    "StoreBackend",
    "TableSpec",
    "TopologyLife",
    "TopologyStates",
    "Transaction",
    "open_database",
    "open_sql_database",
    "place_of",
    "register_backend",
]
