"""The event loop of a test: the same loop, which stands still between two steps and is watched.

Invariant: the loop's thread handles nothing while its queue is held, so between two steps nothing of the
coordinator changes, and other threads may read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txstream.coordinator import Advance, Cancel, Command, EmitBatch, EmitCommit, Phase
from txstream.engine.driver.events import Clock, EventQueue
from txstream.engine.driver.loop import EventLoop
from txstream.spouts.markers import CrashError
from txstream.testing.attempts import AttemptState
from txstream.testing.gate import GatedRunner
from txstream.transaction import TransactionAttempt, Txid


@dataclass(kw_only=True)
class SteppedLoop(EventLoop):
    """`emitting` is called before each new attempt, `moved` when one got somewhere, `failed` before one is
    failed: all on the loop's thread. It never ends by itself."""

    gate: GatedRunner
    clock: Clock
    emitting: Callable[[EmitBatch[Any]], None]
    moved: Callable[[TransactionAttempt, AttemptState], None]
    failed: Callable[[TransactionAttempt, BaseException], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._events.clock = self.clock
        self._events.hold()
        self.gate.attach(self._events)

    # --- for the test's thread ----------------------------------------------------------------------

    @property
    def events(self) -> EventQueue:
        return self._events

    def open_up_to(self, txid: int | None) -> None:
        """No txid after this one is opened; None for no bound. Call it while the queue is held."""
        self.coordinator.last_txid = None if txid is None else Txid(txid)
        self._events.post(lambda: self._do_all(self.coordinator.sync()))

    def fail(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Fail an attempt where it is: at the gate, or processed and waiting for its turn to commit."""
        if not self.gate.fail(attempt, error):
            self._events.post(lambda: self._attempt_failed(attempt, error))

    def wait_until_quiet(self, ended: Callable[[], bool], deadline: float) -> bool:
        """Let the loop go on until it has nothing more to do, or has ended; False when the deadline, by
        `time.monotonic`, is first."""

        def still() -> bool:
            return ended() or self._events.is_quiet(len(self.gate.held_back()))

        self._events.release()
        try:
            with self._events.changed:
                return self._events.changed.wait_for(still, max(0.0, deadline - time.monotonic()))
        finally:
            self._events.hold()

    def where(self) -> tuple[Txid, tuple[tuple[TransactionAttempt, Phase], ...]]:
        """What changes when the topology gets on: current, and the active attempts with their phases."""
        active = self.coordinator.active.values()
        return self.coordinator.current, tuple((batch.attempt, batch.phase) for batch in active)

    def doomed(self, txid: Txid) -> BaseException | None:
        """The error that will end the run once the txids before this one are committed."""
        batch = self.coordinator.active.get(txid)
        return None if batch is None else self._doomed.get(batch.attempt)

    @property
    def obstacles(self) -> tuple[list[str], Mapping[str, str]]:
        """What is waited for, with reasons, and the partitions that the last plan could not read."""
        return self._waiting.reasons, self._planning.left_out

    # --- on the loop's thread -----------------------------------------------------------------------

    def _finished(self) -> bool:
        return self._failure is not None

    def _do_all(self, commands: list[Command[Any]]) -> None:
        for command in commands:
            match command:
                case EmitBatch():
                    self.emitting(command)
                case EmitCommit(attempt):
                    self.moved(attempt, AttemptState.COMMITTING)
                case Advance(txid):
                    self.moved(self.coordinator.active[txid].attempt, AttemptState.COMMITTED)
                case Cancel(attempt):
                    self.moved(attempt, AttemptState.DROPPED)
        super()._do_all(commands)

    def _enter_commit(self, attempt: TransactionAttempt) -> None:
        self.gate.enter_commit(attempt)

    def _attempt_failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if isinstance(error, CrashError):
            self._fail_run(error)  # it stands for the driver's death: nothing is judged any more
            return
        if self._is_active(attempt):
            self.failed(attempt, error)
        super()._attempt_failed(attempt, error)

    def _set_deadline(self, seconds: float, overdue: Callable[[], None]) -> None:
        with self._events.adding_deadlines():
            super()._set_deadline(seconds, overdue)
