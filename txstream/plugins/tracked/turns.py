"""The turns of a run of tracked tuples: ask the spouts, run what they emitted, end trees, until a stop.

Invariants. Only the thread that calls `run` calls the spouts and changes the ledger. Micro-batches run in
another thread, and come back as events. What operators have asked is obeyed before the first tuple is asked
for. A run has caught up only if nothing is under way, no spout task waits for anything, the topology is not
paused, and all that has been so for a while. Spout tasks are closed and opened in another number only once
the open trees have ended, or had the time for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from txstream.core.backoff import Backoff
from txstream.core.transaction import TransactionAttempt
from txstream.core.waiting import RunAbortedError
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.letters.retry_policy import shortened
from txstream.engine.loop.operator_changes import Judgement
from txstream.engine.loop.operator_requests import Operators
from txstream.engine.loop.workers import Lane
from txstream.engine.start.driver import Ready
from txstream.plugins.tracked.loop import Cut, TrackedLoop
from txstream.plugins.tracked.report import Meter
from txstream.zookeeper import TREES, Kind, Request

log = logging.getLogger(__name__)

_IDLE = Backoff(first_seconds=0.001, longest_seconds=0.05)
_NOTE_SECONDS = 2.0
# A source without an end has caught up once it has had nothing for this long.
_QUIET_SECONDS = 1.0
# A spout that waits for less is busy.
_WAIT_SECONDS = 1.0
_SCALE = "scale"


class Turns:
    """See the module. `loop` does what a turn consists of. `until_caught_up` ends the run once the spouts
    have nothing more."""

    def __init__(self, loop: TrackedLoop, ready: Ready, *, until_caught_up: bool = False) -> None:
        self.workers = ready.workers
        self.loop = loop
        self.caught_up = False
        self.failure: BaseException | None = None
        self._store = ready.store
        self._waiting = ready.waiting
        self._steering = ready.taken.steering
        self._operators = Operators(self, ready.store, ready.runner, ready.waiting, self._steering)
        self._meter = Meter(loop, self.workers.now())
        self._until_caught_up = until_caught_up
        self._is_stopped = False
        self._ends = False
        self._is_active = False
        self._drained_by: float | None = None
        self._idle_turns = 0
        self._not_before = 0.0
        self._quiet_since: float | None = None
        # By spout that waits: when to show its words next.
        self._waits: dict[str, float] = {}

    # --- for other threads --------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for no more tuples, let what is open end, and close the spouts."""

        def stop() -> None:
            self._is_stopped = True
            self._look_round()

        self.workers.post(stop)

    def abort(self, error: BaseException | None = None) -> None:
        """End at once, as a crash would: what is open comes again from its source."""
        self.workers.post(lambda: self.fail_run(error or RunAbortedError("the run was aborted")))
        self.workers.interrupt()

    @property
    def ended_by(self) -> TransactionAttempt | None:
        """The micro-batch whose failure has ended the run, if one has."""
        return self.loop.ended_by

    @property
    def waiting_for(self) -> str | None:
        """What keeps the run from going on, in words."""
        waits = self._waiting.shown
        return self.loop.stuck or (None if waits is None else f"waiting for {waits}")

    # --- for operators ------------------------------------------------------------------------------

    def fail_run(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def steered(self) -> None:
        self._look_round()

    def question(self, request: Request) -> Callable[[], Judgement] | None:
        if request.kind in (Kind.TREE, Kind.STORY):
            return lambda: Judgement("it tracks tuples, which come in no batches and have no txids", {})
        return None

    # --- the run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take turns until the run ends. Raises the error that ended it."""
        opened = False
        try:
            self._operators.begin()
            if not self._is_ending:  # a standby may be stopped with its leader
                opened = True
                self.loop.open()
            self._turn()
            self._note()
            while self.failure is None and not (self._ends and self._operators.has_finished):
                self.workers.next()()
            if self.failure is not None:
                raise self.failure
            if opened:
                self._close()
        except BaseException as error:
            self.fail_run(error)
            if opened:
                self._close_after_failure()
            raise
        finally:
            self.workers.interrupt()
            self._operators.shut_down()
            self.workers.shut_down()

    @property
    def _is_ending(self) -> bool:
        return self._is_stopped or self._steering.stopped_by is not None

    def _turn(self) -> None:
        """Take one turn, and schedule the next."""
        emitted = self._look_round()
        if self._ends:
            return
        if emitted:
            self._idle_turns = 0
            self.workers.post(self._turn)
        else:
            self._idle_turns += 1
            self.workers.after(_IDLE.after(self._idle_turns), self._turn)

    def _look_round(self) -> bool:
        """Do what there is to do now. Return whether spouts emitted tuples."""
        if self._ends:
            return False
        loop = self.loop
        self._follow()
        emitted = self._is_active and loop.ask()
        self._start()
        loop.expire()
        self._look_for_waits(emitted)
        self._look_for_the_end(emitted)
        return emitted

    def _follow(self) -> None:
        """Keep the spouts active unless the topology is paused, ends, or has other spout tasks soon."""
        now, changing = self.workers.now(), self.loop.changing()
        if not (self._is_ending or changing):
            self._drained_by = None
        elif self._drained_by is None:
            self._drained_by = now + self.loop.topology.message_timeout_seconds
        self._activate(self._steering.paused is None and not self._is_ending and not changing)
        if changing and not self._is_ending:
            names = ", ".join(map(repr, changing))
            because = f"`txstream scale` changes the tasks of {names}"
            self._waiting.begin(_SCALE, "the open trees", "their spout tasks are closed next", because)
            if self._is_drained:
                self.loop.change_tasks()
                self._waiting.end(_SCALE)
                self._follow()

    def _activate(self, wanted: bool) -> None:
        if wanted != self._is_active:
            self._is_active = wanted
            if wanted:
                self.loop.activate()
            else:
                self.loop.deactivate()

    @property
    def _is_drained(self) -> bool:
        """Whether what was open has ended, or had the time for it."""
        late = self._drained_by is not None and self.workers.now() >= self._drained_by
        return self.loop.is_at_rest or late

    def _look_for_waits(self, emitted: bool) -> None:
        """Show what spouts wait for, once they have waited for a while."""
        now = self.workers.now()
        found = self.loop.waiting_for() if self._is_active and not emitted else {}
        for spout in self._waits.keys() - found.keys():
            del self._waits[spout]
            self._waiting.end(f"spout {spout}")
        for spout, what in found.items():
            if now >= self._waits.setdefault(spout, now + _WAIT_SECONDS):
                self._waits[spout] = now + _NOTE_SECONDS  # its words may change at every turn
                self._waiting.begin(f"spout {spout}", shortened(what), "so says its spout")

    def _look_for_the_end(self, emitted: bool) -> None:
        now = self.workers.now()
        if emitted or not self._is_active or self._waits or not self.loop.is_at_rest:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        if self._is_ending:
            self._ends = self._is_drained
        elif self._until_caught_up and self._quiet_since is not None:
            self._ends = self.caught_up = now - self._quiet_since >= _QUIET_SECONDS
        if self._ends:
            document = self._meter.document(now)
            self._operators.finish(lambda: self._store.notes.put(TREES, document))

    # --- micro-batches ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Run the next micro-batch, if there is one."""
        if self.workers.now() < self._not_before:
            return
        cut = self.loop.cut()
        if cut is not None:
            done, failed = partial(self._finished, cut), partial(self._broke, cut)
            work = partial(self.loop.run_batch, cut)
            self.workers.submit(Lane.JOB, work, done, failed, attempt=cut.order.attempt)

    def _finished(self, cut: Cut, result: BatchResult) -> None:
        self._not_before = 0.0
        self.loop.finished(cut, result)
        self._look_round()

    def _broke(self, cut: Cut, error: BaseException) -> None:
        self.loop.broke(cut, error)
        self._not_before = self.workers.now() + self.loop.failures.delay_seconds

    def _note(self) -> None:
        """Store how the run goes, for `txstream status`, now and every few seconds."""
        if not self._ends:
            document = self._meter.document(self.workers.now())
            again = partial(self.workers.after, _NOTE_SECONDS, self._note)
            self._operators.note(lambda: self._store.notes.put(TREES, document), again)

    # --- the end ------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Close the spouts. What they emit meanwhile is processed, but they hear nothing about it."""
        self._activate(False)
        self.loop.close()
        cut = self.loop.cut()
        if cut is not None:
            self.loop.run_batch(cut)

    def _close_after_failure(self) -> None:
        try:
            self.loop.close()
        except Exception as error:  # noqa: BLE001 - what ended the run is raised, not this
            log.warning("a spout could not be closed: %s", error)
