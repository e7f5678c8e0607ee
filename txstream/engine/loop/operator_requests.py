"""What operators ask of a running topology, and what they are shown: where its tasks ran, why a batch fails,
what it waits for.

Invariants.
- Requests are judged on the loop's thread, the oldest first, and answered once they are in force. An answer
  that could not be stored is given again.
- The store is read and written only on the lane of ZooKeeper's writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from txstream.api.errors import CorruptStateError, ServiceUnavailableError
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.batch.task_tree import TellsTasks
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.operator_changes import Steering
from txstream.engine.loop.workers import Lane
from txstream.failing_batch import FailingBatch, Wait
from txstream.placement import Assignment
from txstream.story import LONGEST_STORY
from txstream.transaction import Txid
from txstream.waiting import Waiting
from txstream.zookeeper import ASSIGNMENT, FAILING, WAITING, Kind, ProgressStore, Request, Requests

log = logging.getLogger(__name__)

ASSIGNMENT_SECONDS = 10.0
_RETRY_SECONDS = 1.0
# Everything is committed by then; an outage of ZooKeeper must not keep a run from ending.
_END_SECONDS = 5.0
_PAUSE = "pause"
# Forty answers share a znode; so many lines of a story take 4 kB.
_LONGEST_ANSWER = 50


class Operators:
    """The operators' side of the event loop; its methods are called on the loop's thread."""

    def __init__(
        self,
        batches: Batches,
        store: ProgressStore,
        runner: BatchRunner,
        waiting: Waiting,
        steering: Steering,
    ) -> None:
        self.has_finished = False
        self._batches = batches
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
        self._waiting.changed = lambda: self._batches.workers.post(lambda: self._write(self._tell_waits))
        self._follow()
        self._stop_watch = self._store.watch_requests(lambda: self._batches.workers.post(self._look))

    def advanced(self, assignment: Assignment | None) -> None:
        """Note where the tasks of a batch ran, once it is committed and stored."""
        self._newest = assignment
        if not self._pauses:
            self._write_newest()

    def failed(self, batch: FailingBatch) -> None:
        """Store an attempt's failure. Each is stored: they are few, since attempts wait ever longer."""
        self._write(lambda: self._store.notes.put(FAILING, batch))

    def finish(self) -> None:
        """Answer the waiting requests, store where the last tasks ran, then set `has_finished`. Called when
        the run ends well; a FencedError still fails it."""

        def finished(_: object = None) -> None:
            self.has_finished = True

        def failed(error: BaseException) -> None:
            if not isinstance(error, ServiceUnavailableError):
                self._batches.fail_run(error)
            else:
                log.warning("`txstream status --tasks` will not show the last batch: %s", error)
                finished()

        def give_up() -> None:
            if not self.has_finished:
                log.warning("ZooKeeper is away; `txstream status --tasks` will not show the last batch")
                finished()

        def answered(requests: Requests) -> None:
            self._judge(requests)
            self._batches.workers.submit(Lane.WRITE, self._write_last, finished, failed)

        def unread(error: BaseException) -> None:
            if isinstance(error, CorruptStateError):
                self._not_carried_out(error)
                answered(Requests())
            else:
                failed(error)

        self._batches.workers.after(_END_SECONDS, give_up, is_deadline=True)
        self._batches.workers.submit(Lane.WRITE, self._store.read_requests, answered, unread)

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
        self._batches.workers.submit(
            Lane.WRITE, self._store.read_requests, self._judge, self._not_carried_out
        )

    def _judge(self, requests: Requests) -> None:
        for request in requests.waiting:
            self._answer(request)
        if requests.waiting:
            self._follow()
            self._batches.carry_out(self._batches.coordinator.sync())

    def _answer(self, request: Request) -> None:
        if request.kind == Kind.TREE:
            self._tell_tree(request)
            return
        if request.kind == Kind.STORY:
            self._tell_story(request)
            return
        judgement = self._steering.judge(request)
        self._batches.workers.submit(
            Lane.WRITE,
            lambda: self._store.answer_request(request, judgement.refused, judgement.told),
            lambda _: self._steering.answered(request),
            self._not_carried_out,
        )

    def _tell_tree(self, request: Request) -> None:
        """Answer how far an open txid's tasks are, off the loop's thread: asking Spark may take a moment."""
        coordinator, runner, txid = self._batches.coordinator, self._runner, request.body.get("txid")
        batch = coordinator.active.get(Txid(txid)) if type(txid) is int else None
        done = type(txid) is int and txid < coordinator.current
        why = "is committed, so all of its tasks have finished" if done else "is not open"

        def work() -> None:
            if batch is None:
                self._store.answer_request(request, f"txid {txid} {why}", {})
                return
            components = runner.task_tree(batch.attempt) if isinstance(runner, TellsTasks) else None
            told = {"attempt": batch.attempt.attempt, "state": str(batch.phase), "components": components}
            self._store.answer_request(request, None, told)

        self._batches.workers.submit(Lane.WRITE, work, None, self._not_carried_out)

    def _tell_story(self, request: Request) -> None:
        """Answer what the coordinator saw of a txid."""
        txid = request.body.get("txid")
        lines = self._batches.coordinator.story.lines(txid)
        refused = None if lines else f"this run's last {LONGEST_STORY} events have nothing of txid {txid}"
        told = {"story": lines[-_LONGEST_ANSWER:]}
        self._batches.workers.submit(
            Lane.WRITE,
            lambda: self._store.answer_request(request, refused, told),
            failed=self._not_carried_out,
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
            self._batches.workers.after(_RETRY_SECONDS, self._look)
        else:
            self._batches.fail_run(error)

    # --- where tasks ran ------------------------------------------------------------------------------

    def _write_newest(self) -> None:
        """Store the newest assignment, unless it is stored already, then none for a while; one that comes
        meanwhile waits."""
        assignment = self._newest
        if assignment is None or assignment is self._written:
            return
        self._written = assignment
        self._pauses = True
        self._batches.workers.after(ASSIGNMENT_SECONDS, self._pause_is_over)
        self._write(lambda: self._store.notes.put(ASSIGNMENT, assignment))

    def _pause_is_over(self) -> None:
        self._pauses = False
        self._write_newest()

    def _write(self, work: Callable[[], None]) -> None:
        self._batches.workers.submit(Lane.WRITE, work, None, self._not_written)

    def _not_written(self, error: BaseException) -> None:
        if isinstance(error, ServiceUnavailableError):
            log.info("what `txstream status` shows was not stored: %s", error)
        else:
            self._batches.fail_run(error)

    def _write_last(self) -> None:
        if self._newest is not None and self._newest is not self._written:
            self._store.notes.put(ASSIGNMENT, self._newest)
