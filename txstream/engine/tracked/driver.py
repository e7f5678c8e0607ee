"""One driver of a topology of tracked tuples: it is elected, opens the spouts, and takes turns until a stop.

It stores no progress: what was open when a driver dies comes again from its source. ZooKeeper has the
election, so that one driver at a time runs a topology; the topology's identity; what operators ask; and a
note of how the run goes.

Invariants. Only the thread that calls `run` calls the spouts and changes the ledger. Micro-batches run in
another thread, and come back as events. What operators have asked is obeyed before the first tuple is asked
for. A run has caught up only if nothing is under way, no spout task waits for anything, the topology is not
paused, and all that has been so for a while.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from txstream.api.errors import IdentityMismatchError, ServiceUnavailableError, TopologyError
from txstream.api.tracked_builder import TrackedTopology
from txstream.batch_metas import MetaCodec
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.batch.runner_contract import BatchResult, FedRunner
from txstream.engine.loop.workers import Lane
from txstream.engine.report import RunProgress, TreeCounts
from txstream.engine.start.run_services import RunServices
from txstream.engine.tracked.loop import Cut, TrackedLoop
from txstream.engine.tracked.report import Meter, TrackedReport, report_of
from txstream.semantics import Semantics
from txstream.transaction import Epoch
from txstream.waiting import BACKOFF, RunAbortedError
from txstream.zookeeper import TREES, Identity, Kind, ProgressStore, Request, Requests

log = logging.getLogger(__name__)

_IDLE_FIRST_SECONDS = 0.001
_IDLE_LONGEST_SECONDS = 0.05
_NOTE_SECONDS = 2.0
_LAST_NOTE_SECONDS = 5.0
# A source without an end has caught up once it has had nothing for this long.
_QUIET_SECONDS = 1.0


@dataclass(frozen=True)
class _NoMeta:
    """The meta of a topology without partitions: no positions are stored."""


class TrackedDriver:
    """One driver's turn. `run` is called once; `stop`, `abort` and the rest may be called from any thread."""

    def __init__(
        self,
        topology: TrackedTopology,
        services: RunServices,
        *,
        until_caught_up: bool = False,
        warm_up_seconds: float = 0.0,
    ) -> None:
        self.topology = topology
        self.loop: TrackedLoop | None = None
        self._services = services
        self._until_caught_up = until_caught_up
        self._warm_up_seconds = warm_up_seconds
        self._stopped = threading.Event()
        self._fatal: BaseException | None = None
        self._paused: Request | None = None
        self._too_old: set[str] = set()
        self._active = False
        self._waits: str | None = None
        self._waits_since: datetime | None = None
        self._stopped_by: str | None = None
        self._drained_by: float | None = None
        self._done = False
        self._idle_seconds = _IDLE_FIRST_SECONDS
        self._not_before = 0.0
        self._quiet_since: float | None = None
        self._note_at = 0.0
        self._note_is_under_way = False

    @property
    def state(self) -> str:
        """What the driver is doing, for people."""
        return self._services.state

    @property
    def is_told_to_stop(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Ask for no more tuples, let what is open end, and close the spouts."""
        self._stopped.set()
        if self.loop is None:
            self._services.workers.interrupt()
        else:
            self._services.workers.post(self._react)

    def abort(self, error: BaseException | None = None) -> None:
        """End at once, as a crash would: what is open comes again from its source."""
        self._fatal = self._fatal or error or RunAbortedError(f"topology {self.topology.id!r} was stopped")
        self.stop()

    def progress(self, seconds: float) -> RunProgress:
        """Return a snapshot of the run, which has taken `seconds` so far."""
        loop = self.loop
        if loop is None:
            return RunProgress(self.topology.id, 0, {}, 0, 0, 0, seconds, self.state, None)
        ended = sum(spout.failed + spout.timed_out for spout in loop.spouts)
        return RunProgress(
            topology=self.topology.id,
            committed_txid=0,
            active={},
            batches=loop.counts.micro_batches,
            records=sum(spout.emitted for spout in loop.spouts),
            failed_attempts=loop.counts.failed_micro_batches,
            seconds=seconds,
            waiting_for=loop.stuck or self._waits,
            lag_records=None,
            trees=TreeCounts(loop.open_trees, sum(spout.acked for spout in loop.spouts), ended),
        )

    def run(self) -> TrackedReport | None:
        """Run the whole turn. Return None if stopped before its first micro-batch. Raises what ended it."""
        with self._services as services:
            services.connect()
            before = services.asked_before()
            context = services.context()
            plan = compile_topology(self.topology, context, uuid.uuid4().hex)
            store = self._store = services.lead(MetaCodec(_NoMeta), plan)
            self._too_old = {request.request_id for request in before.waiting}
            if self.is_told_to_stop:
                return None
            identity = self._claim(store)
            stopped = store.read_requests().in_force.stopped
            if stopped is not None and stopped != before.in_force.stopped:
                return TrackedReport.of_standby(self.topology, identity.uuid, stopped.asked_by)
            epoch = store.claim_epoch(Epoch(0))
            runner = services.keep(services.start_engine()(plan))
            if not isinstance(runner, FedRunner):
                raise TopologyError(f"{type(runner).__name__} cannot run tracked tuples")
            if self.is_told_to_stop:
                return None
            loop = TrackedLoop(
                self.topology,
                plan,
                runner,
                context,
                time.monotonic,
                epoch,
                warm_up_seconds=self._warm_up_seconds,
            )
            self.loop = loop
            self._meter = Meter(loop, time.monotonic())
            started = time.monotonic()
            with services.beside(self):
                self._go(loop, store)
            seconds = time.monotonic() - started
            return report_of(
                loop,
                identity.uuid,
                epoch,
                seconds,
                caught_up=self._until_caught_up and not self._stopped.is_set(),
                stopped_by=self._stopped_by,
            )

    def _claim(self, store: ProgressStore) -> Identity:
        spouts = {spout.id: type(spout.instance).__qualname__ for spout in self.topology.spouts}
        first = type(self.topology.spouts[0].instance)
        name = f"{first.__module__}.{first.__qualname__}"
        # Tracked tuples promise what this semantics does: at least once, and nothing is stored.
        mine = Identity.new(Semantics.NON_TRANSACTIONAL, name, {"tracked": spouts}, ())
        stored = store.create_identity(mine)
        if differences := stored.differences(mine):
            raise IdentityMismatchError(
                f"topology {self.topology.id!r} was first run with other code: {'; '.join(differences)}. Run "
                f"it under another id (--id), or start afresh with `txstream delete {self.topology.id}`"
            )
        return stored

    # --- turns --------------------------------------------------------------------------------------

    def _go(self, loop: TrackedLoop, store: ProgressStore) -> None:
        workers = self._services.workers
        stop_watch = store.watch_requests(lambda: workers.post(self._look))
        opened = False
        try:
            self._judge(store.read_requests())
            loop.open()
            opened = True
            self._services.state = "running"
            self._turn()
            while not self._done:
                workers.next()()
            self._write_last_note()
            self._close(loop)
        except BaseException:
            if opened:
                self._close_after_failure(loop)
            raise
        finally:
            stop_watch()
            workers.shut_down()

    def _turn(self) -> None:
        """Take one turn, and schedule the next."""
        busy = self._look_round()
        if self._done:
            return
        if busy:
            self._idle_seconds = _IDLE_FIRST_SECONDS
            self._services.workers.post(self._turn)
        else:
            self._services.workers.after(self._idle_seconds, self._turn)
            self._idle_seconds = min(2 * self._idle_seconds, _IDLE_LONGEST_SECONDS)

    def _react(self) -> None:
        """Look round, because something has happened."""
        self._look_round()

    def _look_round(self) -> bool:
        """Do what there is to do now. Return whether spouts emitted tuples."""
        loop = self.loop
        assert loop is not None  # events come only once it is there
        if self._fatal is not None:
            raise self._fatal
        now = time.monotonic()
        self._follow(loop)
        emitted = self._active and loop.ask()
        self._start(loop)
        loop.expire()
        self._look_for_waits(loop, emitted)
        if now >= self._note_at:
            self._note_at = now + _NOTE_SECONDS
            self._write_note()
        rests = loop.is_at_rest
        if emitted or not rests or self._waits is not None:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        if self._stopped.is_set():
            late = self._drained_by is not None and now >= self._drained_by
            self._done = rests or late
        elif self._until_caught_up and self._quiet_since is not None:
            self._done = now - self._quiet_since >= _QUIET_SECONDS
        return emitted

    def _follow(self, loop: TrackedLoop) -> None:
        """Keep the spouts active unless the topology is paused or stops."""
        if self._stopped.is_set() and self._drained_by is None:
            self._services.state = "stopping"
            self._drained_by = time.monotonic() + self.topology.message_timeout_seconds
        wanted = self._paused is None and not self._stopped.is_set()
        if wanted != self._active:
            self._active = wanted
            if wanted:
                loop.activate()
            else:
                loop.deactivate()

    def _look_for_waits(self, loop: TrackedLoop, emitted: bool) -> None:
        """Set what the run waits for, with the time since when it has waited for something."""
        if self._stopped.is_set() or emitted:
            found = None
        elif self._paused is not None:
            found = f"waiting for `txstream resume {self.topology.id}`, paused {self._paused.shown}"
        else:
            found = loop.waiting_for()
        if found is None:
            self._waits = self._waits_since = None
        elif self._paused is not None:
            self._waits = found
        else:
            self._waits_since = self._waits_since or datetime.now()
            self._waits = f"{found} since {self._waits_since:%H:%M:%S}"

    def _start(self, loop: TrackedLoop) -> None:
        """Run the next micro-batch, if there is one."""
        if time.monotonic() < self._not_before:
            return
        cut = loop.cut()
        if cut is None:
            return

        def finished(result: BatchResult) -> None:
            self._not_before = 0.0
            loop.finished(cut, result)
            self._react()

        self._services.workers.submit(
            Lane.JOB, lambda: loop.run_batch(cut), finished, lambda error: self._broke(cut, error)
        )

    def _broke(self, cut: Cut, error: BaseException) -> None:
        loop = self.loop
        assert loop is not None
        loop.broke(cut, error)
        self._not_before = time.monotonic() + BACKOFF.after(loop.failures_in_a_row)

    # --- the end ------------------------------------------------------------------------------------

    def _close(self, loop: TrackedLoop) -> None:
        """Close the spouts. What they emit meanwhile is processed, but they hear nothing about it."""
        if self._active:
            loop.deactivate()
        loop.close()
        cut = loop.cut()
        if cut is not None:
            loop.run_batch(cut)

    def _close_after_failure(self, loop: TrackedLoop) -> None:
        try:
            loop.close()
        except Exception as error:  # noqa: BLE001 - what ended the run is raised, not this
            log.warning("a spout could not be closed: %s", error)

    # --- operators ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the requests, because operators may have asked for something."""
        self._services.workers.submit(Lane.WRITE, self._store.read_requests, self._judge, self._not_read)

    def _judge(self, requests: Requests) -> None:
        self._paused = requests.in_force.paused
        for request in requests.waiting:
            told: dict[str, Any] = {"after": None, "already": self._paused is not None}
            refused = self._grant(request, told)
            answer = partial(self._store.answer_request, request, refused, told)
            self._services.workers.submit(Lane.WRITE, answer, failed=self._not_read)

    def _grant(self, request: Request, told: dict[str, Any]) -> str | None:
        """Do what is asked. Return why not if it is refused. `told` is filled in for whoever asked."""
        paused = self._paused or (request if request.kind == Kind.PAUSE else None)
        told["since"] = None if paused is None else paused.asked_at.isoformat(timespec="seconds")
        told["by"] = None if paused is None else paused.asked_by
        if request.kind == Kind.PAUSE:
            self._paused = paused
        elif request.kind == Kind.RESUME:
            self._paused = None
        elif request.kind == Kind.STOP and request.request_id in self._too_old:
            return "the driver that was to stop has ended; this one was started after it"
        elif request.kind == Kind.STOP and request.at is None:
            self._stopped_by = request.asked_by
            self._stopped.set()
        elif request.kind == Kind.STOP:
            return "it tracks tuples, which have no txids; leave --at out"
        elif request.kind == Kind.TREE:
            return "it tracks tuples: it has no batches"
        else:
            return f"tracked tuples know no {request.kind}; stop the topology and run it with other slots"
        return None

    def _write_note(self) -> None:
        """Store how the run goes, for `txstream status`. Nothing depends on it."""
        if self._note_is_under_way:
            return
        self._note_is_under_way = True
        document = self._meter.document(time.monotonic(), self._waits)

        def written(_: Any) -> None:
            self._note_is_under_way = False

        def failed(error: BaseException) -> None:
            self._note_is_under_way = False
            self._not_read(error)

        self._services.workers.submit(
            Lane.WRITE, lambda: self._store.notes.put(TREES, document), written, failed
        )

    def _write_last_note(self) -> None:
        """As `_write_note`, but wait for the write: at the end, queued work is dropped."""
        document = self._meter.document(time.monotonic(), self._waits)
        written = threading.Event()

        def work() -> None:
            try:
                self._store.notes.put(TREES, document)
            finally:
                written.set()

        self._services.workers.submit(Lane.WRITE, work)
        written.wait(_LAST_NOTE_SECONDS)

    def _not_read(self, error: BaseException) -> None:
        if not isinstance(error, ServiceUnavailableError):
            raise error
        log.info("ZooKeeper is away: %s", error)
