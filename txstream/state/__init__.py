"""State in a SQL database or another store: fence, ledger, state tables, and the commit of a batch.

Stores of get and put are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from txstream.state.store.backend import StoreBackend
    from txstream.state.store.layout import Transaction
    from txstream.state.store.memory import MemoryBackend

_STORES = {"StoreBackend": "backend", "Transaction": "layout", "MemoryBackend": "memory"}

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


def __getattr__(name: str) -> Any:
    if name not in _STORES:
        raise AttributeError(f"module 'txstream.state' has no attribute {name!r}")
    return getattr(importlib.import_module(f"txstream.state.store.{_STORES[name]}"), name)
