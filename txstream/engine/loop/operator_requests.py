"""What operators ask of a running topology, and what they are shown: where its tasks ran, why a batch fails,
what it waits for.

Invariants.
- Requests are judged on the loop's thread, the oldest first, and answered once they are in force. An answer
  that could not be stored is given again.
- The store is read and written only on the lane of ZooKeeper's writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

from txstream.core.coordinator import Coordinator
from txstream.core.errors import CorruptStateError, ServiceUnavailableError
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.placement import Assignment
from txstream.core.story import LONGEST_STORY
from txstream.core.transaction import Txid
from txstream.core.waiting import Waiting
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.batch.task_tree import TellsTasks
from txstream.engine.loop.operator_changes import Judgement, Steering
from txstream.engine.loop.workers import Lane, Workers
from txstream.zookeeper import (
    ASSIGNMENT,
    AWAY,
    EDGES,
    ENDED,
    FAILING,
    FAILING_ATTEMPTS,
    WAITING,
    Kind,
    ProgressStore,
    Request,
    Requests,
)

log = logging.getLogger(__name__)

ASSIGNMENT_SECONDS = 10.0
_RETRY_SECONDS = 1.0
# Everything is committed by then; an outage of ZooKeeper must not keep a run from ending.
_END_SECONDS = 5.0
_PAUSE = "pause"
# Forty answers share a znode; so many lines of a story take 5 kB.
_LONGEST_ANSWER = 50


class SteeredLoop(Protocol):
    """A loop that operators steer. Its methods are called on its own thread."""

    workers: Workers

    def fail_run(self, error: BaseException) -> None:
        """End the run with this error."""

    def steered(self) -> None:
        """Obey what has changed."""

    def question(self, request: Request) -> Callable[[], Judgement] | None:
        """Return what answers a request that only asks, off the loop's thread; None for other requests."""


class Operators:
    """The operators' side of a loop; its methods are called on the loop's thread."""

    def __init__(
        self,
        loop: SteeredLoop,
        store: ProgressStore,
        runner: BatchRunner,
        waiting: Waiting,
        steering: Steering,
    ) -> None:
        self.has_finished = False
        self._loop = loop
        self._store = store
        self._runner = runner
        self._waiting = waiting
        self._steering = steering
        self._told_waits: tuple[Wait, ...] = ()
        self._stop_watch: Callable[[], None] | None = None
        self._newest: Assignment | None = None
        self._written: Assignment | None = None
        self._pauses = False

    def begin(self) -> None:
        """Apply what is in force, and listen for requests and waits. Called before the first batch."""
        self._waiting.changed = lambda: self._loop.workers.post(lambda: self._write(self._tell_waits))
        self._follow()
        self._stop_watch = self._store.watch_requests(lambda: self._loop.workers.post(self._look))

    def advanced(self, assignment: Assignment | None) -> None:
        """Note where the tasks of a batch ran, once it is committed and stored."""
        self._newest = assignment
        if not self._pauses:
            self._write_newest()

    def failed(self, batch: FailingBatch) -> None:
        """Store an attempt's failure. Each is stored: they are few, since attempts wait ever longer."""

        def write() -> None:
            self._store.notes.put(FAILING_ATTEMPTS, batch)
            self._store.notes.put(FAILING, batch)

        self._write(write)

    def left_out(self, since: Mapping[str, datetime]) -> None:
        """Store since when plans go without partitions. Called on any thread."""
        self._loop.workers.post(lambda: self._write(lambda: self._store.notes.put(AWAY, since)))

    def note(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Have a note stored, and call `then`, whether or not that was possible."""

        def failed(error: BaseException) -> None:
            self._not_written(error)
            then()

        self._loop.workers.submit(Lane.WRITE, write, lambda _: then(), failed)

    def finish(self, write_last: Callable[[], None] | None = None) -> None:
        """Answer the waiting requests, store the last notes (without `write_last`, that the run ended well
        and where the last tasks ran), then set `has_finished`. Called when the run ends well; a FencedError
        still fails it."""

        def finished(_: object = None) -> None:
            self.has_finished = True

        def failed(error: BaseException) -> None:
            if not isinstance(error, ServiceUnavailableError):
                self._loop.fail_run(error)
            else:
                log.warning("`txstream status` will not show how the run ended: %s", error)
                finished()

        def give_up() -> None:
            if not self.has_finished:
                log.warning("ZooKeeper is away; `txstream status` will not show how the run ended")
                finished()

        def answered(requests: Requests) -> None:
            self._judge(requests)
            self._loop.workers.submit(Lane.WRITE, write_last or self._write_last, finished, failed)

        def unread(error: BaseException) -> None:
            if isinstance(error, CorruptStateError):
                self._not_carried_out(error)
                answered(Requests())
            else:
                failed(error)

        self._loop.workers.after(_END_SECONDS, give_up, is_deadline=True)
        self._loop.workers.submit(Lane.WRITE, self._store.read_requests, answered, unread)

    def shut_down(self) -> None:
        """Stop listening. Unanswered requests stay for the next leader."""
        if self._stop_watch is not None:
            self._stop_watch()

    def _tell_waits(self) -> None:
        """Store the present waits; a short wait is often over by then."""
        waits = self._waiting.waits
        if waits != self._told_waits:
            self._told_waits = waits
            self._store.notes.put(WAITING, waits)

    # --- requests -------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._loop.workers.submit(Lane.WRITE, self._store.read_requests, self._judge, self._not_carried_out)

    def _judge(self, requests: Requests) -> None:
        for request in requests.waiting:
            self._answer(request)
        if requests.waiting:
            self._follow()
            self._loop.steered()

    def _answer(self, request: Request) -> None:
        look = self._loop.question(request)
        if look is None:
            judged = self._steering.judge(request)
            look = lambda: judged  # noqa: E731 - one answer, whoever gives it

        def work() -> None:
            judgement = look()
            self._store.answer_request(request, judgement.refused, judgement.told)

        self._loop.workers.submit(
            Lane.WRITE, work, lambda _: self._steering.answered(request), self._not_carried_out
        )

    def _follow(self) -> None:
        """Tell the runner, and whoever watches the run, what is in force."""
        self._runner.slots = self._steering.slots.changed
        paused = self._steering.paused
        if paused is None:
            self._waiting.end(_PAUSE)
        else:
            resume = f"`txstream resume {self._store.topology_id}`"
            self._waiting.begin(_PAUSE, resume, paused.shown, because=f"paused by {paused.asked_by}")

    def _not_carried_out(self, error: BaseException) -> None:
        if isinstance(error, CorruptStateError):
            # This is no reason to stop the batches, though the next start would fail because of it.
            log.error("what operators ask cannot be read now: %s", error)
        elif isinstance(error, ServiceUnavailableError):
            log.warning("a request is not answered yet: %s", error)
            self._loop.workers.after(_RETRY_SECONDS, self._look)
        else:
            self._loop.fail_run(error)

    # --- where tasks ran ------------------------------------------------------------------------------

    def _write_newest(self) -> None:
        """Store the newest assignment, unless it is stored already, then none for a while; one that comes
        meanwhile waits."""
        assignment = self._newest
        if assignment is None or assignment is self._written:
            return
        self._written = assignment
        self._pauses = True
        self._loop.workers.after(ASSIGNMENT_SECONDS, self._pause_is_over)
        self._write(lambda: self._put(assignment))

    def _pause_is_over(self) -> None:
        self._pauses = False
        self._write_newest()

    def _write(self, work: Callable[[], None]) -> None:
        self._loop.workers.submit(Lane.WRITE, work, None, self._not_written)

    def _not_written(self, error: BaseException) -> None:
        if isinstance(error, ServiceUnavailableError):
            log.info("what `txstream status` shows was not stored: %s", error)
        else:
            self._loop.fail_run(error)

    def _write_last(self) -> None:
        self._store.notes.put(ENDED, None)
        if self._newest is not None and self._newest is not self._written:
            self._put(self._newest)

    def _put(self, assignment: Assignment) -> None:
        self._store.notes.put(ASSIGNMENT, assignment)
        self._store.notes.put(EDGES, assignment)


def question(
    request: Request, coordinator: Coordinator[Any], runner: BatchRunner
) -> Callable[[], Judgement] | None:
    """See `SteeredLoop.question`: how far an open txid's tasks are, and what the coordinator saw of one."""
    txid = request.body.get("txid")
    if request.kind == Kind.STORY:
        lines = coordinator.story.lines(txid)
        refused = None if lines else f"this run's last {LONGEST_STORY} events have nothing of txid {txid}"
        return lambda: Judgement(refused, {"story": lines[-_LONGEST_ANSWER:]})
    if request.kind != Kind.TREE:
        return None
    batch = coordinator.active.get(Txid(txid)) if type(txid) is int else None
    if batch is None:
        done = type(txid) is int and txid < coordinator.current
        why = "is committed, so all of its tasks have finished" if done else "is not open"
        return lambda: Judgement(f"txid {txid} {why}", {})
    attempt, state = batch.attempt, str(batch.phase)

    def look() -> Judgement:  # asking Spark may take a moment
        components = runner.task_tree(attempt) if isinstance(runner, TellsTasks) else None
        return Judgement(None, {"attempt": attempt.attempt, "state": state, "components": components})

    return look
