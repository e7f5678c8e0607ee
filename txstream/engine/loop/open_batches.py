"""The open batches: what the event loop's parts may ask of it and tell it, and what can be watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from txstream.coordinator import Command, Coordinator, EmitBatch
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.fault_points import Point
from txstream.engine.loop.workers import Workers
from txstream.engine.report import BatchTiming
from txstream.transaction import TransactionAttempt, Txid

if TYPE_CHECKING:
    from txstream.engine.loop.failed_attempts import FailedAttempts


class Batches(Protocol):
    """The open batches. Everything here is for the loop's thread, but for `reach` and `workers.post`."""

    workers: Workers
    coordinator: Coordinator[Any]
    failures: FailedAttempts

    def is_active(self, attempt: TransactionAttempt) -> bool:
        """Does this attempt still count?"""

    def carry_out(self, commands: list[Command[Any]]) -> None:
        """Do what the coordinator has answered."""

    def fail_run(self, error: BaseException) -> None:
        """End the run with this error."""

    def timing(self, txid: Txid) -> BatchTiming:
        """The times of a txid, to be written to."""

    def reach(self, point: Point, txid: Txid) -> None:
        """A batch got to a point. From any thread; what listens may raise."""


class Watcher:
    """Called on the loop's thread; what a method raises ends the run."""

    def emitting(self, emit: EmitBatch[Any]) -> None:
        """A new attempt is about to be processed."""

    def processed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        """It was processed, though it may have been dropped meanwhile."""

    def committing(self, attempt: TransactionAttempt) -> None:
        """Its commit is about to be asked for."""

    def bolts_committed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        """The bolts of its commit phase have finished."""

    def committed(self, attempt: TransactionAttempt) -> None:
        """Every database has it."""

    def dropped(self, attempt: TransactionAttempt) -> None:
        """It is replayed, perhaps because an earlier batch is."""

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """It failed, and nothing has been decided yet."""
