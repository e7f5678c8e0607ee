"""Rows of a state that a task keeps in its worker process from one batch to the next.

Invariant: a cache is used only by the batch after the one that left it, and only if that very attempt was
committed. Anything else between them (an attempt that failed, a batch that the task spent in another process,
another leader) makes it worthless, and it is emptied. An attempt takes the cache out of the process, and puts
it back when all of its writes have been made, so an attempt that fails half-way leaves none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from txstream.core.transaction import TransactionAttempt


class StateCache:
    """The rows that were used last, at most `rows` of them: value by key, None for a key without a row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._left_by: TransactionAttempt | None = None
        self._entries: OrderedDict[Any, Any] = OrderedDict()

    def begin(self, committed: TransactionAttempt | None) -> None:
        """Begin an attempt. `committed` is the attempt committed before it, None if that is not known."""
        if committed is None or committed != self._left_by:
            self._entries.clear()
        self._left_by = None

    def __contains__(self, key: Any) -> bool:
        return key in self._entries

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def leave(self, attempt: TransactionAttempt, rows: Iterable[tuple[Any, Any]]) -> None:
        """End an attempt that has written. `rows` is what it knows of the keys that its task owns."""
        for key, value in rows:
            self._entries[key] = value
            self._entries.move_to_end(key)
        while len(self._entries) > self._rows:
            self._entries.popitem(last=False)
        self._left_by = attempt
