"""Faults on demand: stop or kill this driver at a named point of a batch.

Set `TXSTREAM_FAULT` for a run, for example `kill@after-commit:3`: SIGKILL between the SQL commit of txid 3
and its Advance. `stop@...` freezes the process with SIGSTOP instead. `kill@after-advance:1+open` fires at
the first txid from 1 on when another batch is open. `TXSTREAM_FAULT_LOG` names a file. Before the signal, one
JSON object that says where the batch was is written to it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txstream.core.errors import UsageError
from txstream.core.fault_points import At, Point, PointListener, nobody_listens
from txstream.core.transaction import Txid

FAULT_VARIABLE = "TXSTREAM_FAULT"
FAULT_LOG_VARIABLE = "TXSTREAM_FAULT_LOG"

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_OPEN = "+open"


@dataclass
class Fault:
    """One fault, which fires once. With `only_open` it fires only while another txid is active."""

    action: str
    at: At
    only_open: bool = False
    log: Path | None = None
    fired: bool = False

    def __str__(self) -> str:
        return f"{self.action}@{self.at}{_OPEN if self.only_open else ''}"

    def __call__(self, point: Point, txid: Txid, open_batches: Mapping[Txid, str]) -> None:
        others = {other: phase for other, phase in open_batches.items() if other != txid}
        due = txid >= self.at.txid if self.only_open else txid == self.at.txid
        if self.fired or point is not self.at.point or not due or (self.only_open and not others):
            return
        self.fired = True
        if self.log is not None:
            self._tell(txid, others)
        # Signal this thread: another one may take a signal to the process, while this one runs past the
        # point.
        signal.pthread_kill(threading.get_ident(), _SIGNALS[self.action])

    def _tell(self, txid: Txid, others: Mapping[Txid, str]) -> None:
        document = {"pid": os.getpid(), "action": self.action, "point": str(self.at.point), "txid": txid}
        document["open"] = {str(other): phase for other, phase in others.items()}
        if self.log is not None:
            partial = self.log.with_suffix(".partial")
            partial.write_text(json.dumps(document), encoding="utf-8")
            partial.replace(self.log)


def parse_fault(text: str, log: Path | None = None) -> Fault:
    """Return the fault that `text` describes. Raises UsageError for anything else."""
    action, _, at = text.partition("@")
    try:
        if action not in _SIGNALS:
            raise ValueError(f"there is no {action!r}")
        return Fault(action, At.parse(at.removesuffix(_OPEN)), at.endswith(_OPEN), log)
    except ValueError:
        raise UsageError(
            f"{FAULT_VARIABLE}={text!r}: write kill@POINT:TXID or stop@POINT:TXID, with a POINT of "
            f"{', '.join(Point)}"
        ) from None


def from_environment() -> PointListener:
    """Return the listener that the environment asks for. Ordinary runs have none."""
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return nobody_listens
    log = os.environ.get(FAULT_LOG_VARIABLE)
    return parse_fault(text, Path(log) if log else None)
