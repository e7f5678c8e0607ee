"""What can be watched of the event loop, attempt by attempt. In ordinary runs nobody watches."""

from __future__ import annotations

from typing import Any

from txstream.coordinator import EmitBatch
from txstream.engine.batch.runner import BatchResult
from txstream.transaction import TransactionAttempt


class Watcher:
    """Called on the loop's thread; what a method raises ends the run."""

    def emitting(self, emit: EmitBatch[Any]) -> None:
        """A new attempt is about to be processed."""

    def processed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        """It was processed, though it may have been dropped meanwhile."""

    def committing(self, attempt: TransactionAttempt) -> None:
        """Its commit is about to be asked for."""

    def bolts_committed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        """The bolts of its commit phase are through."""

    def committed(self, attempt: TransactionAttempt) -> None:
        """Every database has it."""

    def dropped(self, attempt: TransactionAttempt) -> None:
        """It goes again, perhaps because an earlier batch does."""

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """It failed, and nothing has been decided yet."""
