"""A tracked spout that a test holds, without a topology or an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId, Spout


class Emitted:
    """What a spout has emitted: pairs of message id and values, in order."""

    def __init__(self) -> None:
        self.tuples: list[tuple[Any, tuple[Any, ...]]] = []

    def emit(
        self, values: Sequence[object], message_id: MessageId | None = None, stream: str = "default"
    ) -> Sequence[int]:
        self.tuples.append((message_id, tuple(values)))
        return []

    def emit_direct(
        self,
        task: int,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = "default",
    ) -> Sequence[int]:
        raise AssertionError("no spout of ours emits directly")


class OpenSpout:
    """An open task of a spout; `take` calls `next_tuple` until it emits nothing more."""

    def __init__(self, spout: Spout, *, task: int = 0, addresses: dict[str, str] | None = None) -> None:
        self.spout = spout
        self._emitted = Emitted()
        context = SpoutContext("topology", "source", addresses or {}, 5.0, 5.0, task_index=task)
        spout.open(context, self._emitted)
        spout.activate()

    def take(self, most: int = 1000) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return what it emits now, at most so many tuples; after a call that emits nothing, the next may."""
        found: list[tuple[Any, tuple[Any, ...]]] = []
        idle = 0
        while len(found) < most and idle < 3:
            self.spout.next_tuple()
            idle = 0 if self._emitted.tuples else idle + 1
            found += self._emitted.tuples
            self._emitted.tuples = []
        return found

    def close(self) -> None:
        self.spout.deactivate()
        self.spout.close()
