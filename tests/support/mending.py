"""Breaks a database for some commits and mends it, and records what each failure leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from txstream.core.errors import TxstreamError
from txstream.state import TopologyStates

WRITES = ("commit", "begin_commit", "write", "end_commit")


@dataclass
class Mending:
    """Calls `fail` before the writes of txid `txid`. After `times` failures of them it calls `mend`, and
    after each failure `look`, whose answers are in `seen`."""

    txid: int
    fail: Callable[[], None]
    mend: Callable[[], None]
    look: Callable[[], Any]
    times: int = 2
    errors: list[TxstreamError] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    failing: bool = False

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Mending:
        for name in WRITES:
            monkeypatch.setattr(TopologyStates, name, self._watched(getattr(TopologyStates, name)))
        return self

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(database: TopologyStates, *arguments: Any, **options: Any) -> Any:
            found = next(a for a in arguments if hasattr(a, "attempt"))
            txid = found.txid if hasattr(found, "txid") else found.attempt.txid
            if txid == self.txid and not self.failing and not self.errors:
                self.failing = True
                self.fail()
            try:
                return write(database, *arguments, **options)
            except TxstreamError as error:
                self.errors.append(error)
                if self.failing and len(self.errors) == self.times:
                    self.failing = False
                    self.mend()
                self.seen.append(self.look())
                raise

        return watched
