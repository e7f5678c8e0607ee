"""Spouts and bolts of tracked tuples, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstream import (
    BasicBolt,
    OutputCollector,
    RichBolt,
    Spout,
    SpoutCollector,
    SpoutContext,
    TopologyBuilder,
    Tuple,
)
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.messages import Element, Message
from txstream.testing import InProcessRunner


class Lines(Spout):
    """Emits lines, each with its place as message id. A line that fails comes again, as in a queue."""

    output = "line string"

    def __init__(self, lines: Sequence[str] = (), *, tracked: bool = True) -> None:
        self.waiting: list[tuple[Hashable, str]] = list(enumerate(lines))
        self.in_flight: dict[Hashable, str] = {}
        self.acked: list[Any] = []
        self.failed: list[Any] = []
        self.calls: list[str] = []
        self.sent_to: list[Sequence[int]] = []
        self.tracked = tracked

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        self.context, self.collector = context, collector
        self.calls.append("open")

    def next_tuple(self) -> None:
        if self.waiting:
            number, line = self.waiting.pop(0)
            self.in_flight[number] = line
            self.sent_to.append(self.collector.emit([line], number if self.tracked else None))

    def ack(self, message_id: Hashable) -> None:
        self.acked.append(message_id)
        self.in_flight.pop(message_id)

    def fail(self, message_id: Hashable) -> None:
        self.failed.append(message_id)
        self.waiting.append((message_id, self.in_flight.pop(message_id)))

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def close(self) -> None:
        self.calls.append("close")


class Split(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        for word in tup["line"].split():
            collector.emit([word])


class RichSplit(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        for word in tup["line"].split():
            self.collector.emit(tup, [word])
        self.collector.ack(tup)


class Upper(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit([tup["word"].upper()])


class Dies(Upper):
    """Ends its worker process once."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().execute(tup, collector)


def words(
    lines: Sequence[str] | Lines, split: Any = None, last: Any = None, **options: Any
) -> TopologyBuilder:
    """Split lines into words in two tasks, and send the words by fields to two tasks of another bolt."""
    builder = TopologyBuilder("words", **options)
    builder.set_spout("lines", lines if isinstance(lines, Lines) else Lines(lines))
    builder.set_bolt("split", split or Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("upper", last or Upper(), 2).fields_grouping("split", "word")
    return builder


class LosingRunner(InProcessRunner):
    """Loses the tuples that `is_lost` names, once each, between two Spark tasks; no count shows it."""

    def __init__(self, plan: ExecutionPlan, is_lost: Callable[[str, dict[str, Any]], bool]) -> None:
        super().__init__(plan)
        self._is_lost = is_lost
        self.lost: list[dict[str, Any]] = []

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        return [[self._thinned(message) for message in inbox] for inbox in super().exchange(elements, width)]

    def _thinned(self, encoded: bytes) -> bytes:
        message = Message.decode(encoded)
        parcels = {}
        for parcel, table in message.parcels.items():
            kept = []
            for place, row in enumerate(table.to_pylist()):
                shown = {name: value for name, value in row.items() if name.isprintable()}
                if shown not in self.lost and self._is_lost(parcel.component, shown):
                    self.lost.append(shown)
                else:
                    kept.append(place)
            parcels[parcel] = table.take(pa.array(kept, pa.int32()))
        return Message(message.origin, message.sender, parcels, message.failure).encode()
