"""State in a SQL database: the fence, the ledger, the state tables, and the one-transaction commit."""

from __future__ import annotations

from txstream.state.backend import StateBackend
from txstream.state.database import StateDatabase, open_database
from txstream.state.records import (
    AnswerLostError,
    BatchRecord,
    Commit,
    FenceLockedError,
    FenceRow,
    TableSpec,
)
from txstream.state.urls import place_of

__all__ = [
    "AnswerLostError",
    "BatchRecord",
    "Commit",
    "FenceLockedError",
    "FenceRow",
    "StateBackend",
    "StateDatabase",
    "TableSpec",
    "open_database",
    "place_of",
]
