"""The named points between a batch's external writes, where a fault can be injected.

A crash is only interesting between two writes, so these are the places where tests and the demo stop a
driver. In ordinary runs nothing listens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from txstream.transaction import Txid


class Point(StrEnum):
    """Where a batch is, in the order in which it gets there."""

    BEFORE_PERSIST = "before-persist"
    AFTER_PERSIST = "after-persist"
    BEFORE_COMMIT = "before-commit"
    INSIDE_COMMIT = "inside-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_ADVANCE = "before-advance"
    AFTER_ADVANCE = "after-advance"


class PointListener(Protocol):
    """Called on the thread that does the write. `open_batches` are the active txids and their phases."""

    def __call__(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None: ...


def nobody_listens(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
    """The listener of ordinary runs."""
