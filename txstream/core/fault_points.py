"""The named points between a batch's external writes, where a fault can be injected.

A crash is only interesting between two writes, so these are the places where tests and the demo stop a
driver. In ordinary runs nothing listens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from txstream.core.coordinator import BatchPhase
from txstream.core.transaction import Txid


class CrashError(BaseException):
    """Stands for the death of the process where a crash is simulated. Everything else that user code raises
    is a failure of that code, even SystemExit: any library may call `sys.exit`."""


class Point(StrEnum):
    """The points, in the order in which a batch passes them.

    A batch passes INSIDE_BEGIN to AFTER_WRITE only when executors write. With several databases it passes
    INSIDE_BEGIN, AFTER_BEGIN and INSIDE_COMMIT once in each, and BETWEEN_COMMITS after each but the last.
    """

    BEFORE_PERSIST = "before-persist"
    AFTER_PERSIST = "after-persist"
    BEFORE_COMMIT = "before-commit"
    INSIDE_BEGIN = "inside-begin"
    AFTER_BEGIN = "after-begin"
    BEFORE_WRITE = "before-write"
    AFTER_WRITE = "after-write"
    INSIDE_COMMIT = "inside-commit"
    BETWEEN_COMMITS = "between-commits"
    AFTER_COMMIT = "after-commit"
    BEFORE_ADVANCE = "before-advance"
    AFTER_ADVANCE = "after-advance"


WRITE_POINTS = (Point.INSIDE_BEGIN, Point.AFTER_BEGIN, Point.BEFORE_WRITE, Point.AFTER_WRITE)
"""The points that a batch passes only when executors write."""


@dataclass(frozen=True)
class At:
    """Where a fault happens: a point of a txid, or a phase of its attempts, written `after-commit:3`."""

    point: Point | BatchPhase
    txid: int

    def __str__(self) -> str:
        return f"{self.point}:{self.txid}"

    @property
    def shown(self) -> str:
        """The place as part of a sentence."""
        return f"{self.point.replace('-', ' ')} of txid {self.txid}"

    @classmethod
    def parse(cls, text: str) -> At:
        """Return the point of a txid that `text` names. Raises ValueError."""
        point, _, txid = text.partition(":")
        if not re.fullmatch(r"\d+", txid):
            raise ValueError(f"{text!r} is not POINT:TXID")
        return cls(Point(point), int(txid))


Reached = Callable[[Point], None]
"""Called by a write that gets to a point, on the thread that does the write."""


class PointListener(Protocol):
    """Called on the thread that does the write. `open_batches` has the phase of each active txid."""

    def __call__(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None: ...


def nobody_listens(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
    """The listener of ordinary runs."""
