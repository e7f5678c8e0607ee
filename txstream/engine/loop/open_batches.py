"""The open batches: what the event loop's parts may ask it and tell it, and what can be watched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from txstream.core.coordinator import Command, Coordinator, EmitBatch
from txstream.core.dead_letters import DeadLetter
from txstream.core.fault_points import Point
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.commit.committer import Prepared
from txstream.engine.loop.report import BatchTiming
from txstream.engine.loop.workers import Workers

if TYPE_CHECKING:
    from txstream.engine.loop.failed_attempts import FailedAttempts


class Batches(Protocol):
    """The open batches. Only `reach` and `workers.post` may be called outside the loop's thread."""

    workers: Workers
    coordinator: Coordinator[Any]
    failures: FailedAttempts

    def is_active(self, attempt: TransactionAttempt) -> bool:
        """Return whether this attempt still counts."""

    def carry_out(self, commands: list[Command[Any]]) -> None:
        """Carry out the commands that the coordinator answered."""

    def fail_run(self, error: BaseException) -> None:
        """End the run with this error."""

    def timing(self, txid: Txid) -> BatchTiming:
        """Return the times of a txid, to be filled in."""

    def reach(self, point: Point, txid: Txid) -> None:
        """Tell the listener that a batch got to a point. From any thread; the listener may raise."""


class Watcher:
    """Is told what becomes of attempts, on the loop's thread. What a method raises ends the run."""

    def attached(self, driver: Any) -> None:
        """The run begins, by this `Driver`, which may be asked at any time. Not on the loop's thread."""

    def emitting(self, emit: EmitBatch[Any]) -> None:
        """A new attempt is about to be processed."""

    def processed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        """The attempt was processed; it may have been dropped meanwhile."""

    def committing(self, attempt: TransactionAttempt) -> None:
        """The attempt's commit is about to be asked for."""

    def bolts_committed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        """The bolts of the attempt's commit phase have finished."""

    def wrote(self, attempt: TransactionAttempt, deltas: Prepared, letters: Sequence[DeadLetter]) -> None:
        """Every database has committed the attempt: these deltas, and without these records."""

    def committed(self, attempt: TransactionAttempt) -> None:
        """Every database has committed the attempt."""

    def advanced(self, timing: BatchTiming) -> None:
        """The batch is committed and its progress stored; these are its times."""

    def dropped(self, attempt: TransactionAttempt) -> None:
        """The attempt's batch is replayed, perhaps because an earlier batch is."""

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """The attempt failed, and nothing has been decided yet."""

    def fenced(self, attempt: TransactionAttempt) -> None:
        """A fence refused a write of the attempt: a newer one has been let in."""


class Watchers(Watcher):
    """Tells several watchers, in their order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        for name in vars(Watcher):
            if not name.startswith("_"):
                setattr(self, name, partial(_tell, [getattr(watcher, name) for watcher in watchers]))


def _tell(methods: Sequence[Any], *told: Any) -> None:
    for method in methods:
        method(*told)
