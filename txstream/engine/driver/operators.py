"""What operators ask of a running topology, and what they are shown: other slots, where its tasks ran, why
a batch fails, what is waited for.

Invariants.
- Slots change in one step: the runner gets another mapping, which every attempt reads once, when it starts.
  So an attempt in flight ends with the slots that it began with.
- A request is judged once, the oldest first, and answered after its slots are in force. An answer that
  could not be stored is given again.
- The store is asked on the pool of ZooKeeper's writes only, and `Slots` is used by one thread at a time: by
  the one that starts the run, then by that pool's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from txstream.api.errors import CorruptStateError, ServiceUnavailableError, UsageError
from txstream.api.topology import Topology
from txstream.engine.batch.runner import BatchRunner
from txstream.engine.driver.batches import Batches
from txstream.engine.driver.scaling import check_scale, fitting_scale
from txstream.engine.driver.waiting import Waiting
from txstream.engine.driver.workers import Lane
from txstream.failing import FailingBatch, Wait
from txstream.placement import Assignment
from txstream.zookeeper import ProgressStore, Scale, ScaleRequest

log = logging.getLogger(__name__)

ASSIGNMENT_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# All is committed by then; a ZooKeeper that is away must not keep a run from ending.
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a request: `refused` says why not, `before` has the slots until then."""

    refused: str | None
    before: Mapping[str, int]


class Slots:
    """The slots of a topology's components: as declared, and as operators have changed them since.

    `changed` is replaced, never modified: whoever holds it keeps what was in force then.
    """

    def __init__(self, topology: Topology) -> None:
        self.changed: Mapping[str, int] = {}
        self._declared = {component.id: component.parallelism for component in topology.components}
        self._tasks = {component.id: component.tasks for component in topology.components}
        self._spout = topology.components[0].id
        self._judged: dict[str, Judgement] = {}

    def restore(self, scale: Scale) -> None:
        """Begin with the stored slots, as far as this code can have them, and with what waits to be asked."""
        self.changed, ignored = fitting_scale(scale.slots, self._now(), spout=self._spout)
        for sentence in ignored:
            log.warning("%s", sentence)
        for request in scale.waiting:
            self.judge(request)
        for component, count in sorted(self.changed.items()):
            declared = self._declared[component]
            if count != declared:
                log.warning(
                    "component %r has %d slots, as asked by `txstream scale`, not its parallelism of %d",
                    component,
                    count,
                    declared,
                )

    def judge(self, request: ScaleRequest) -> Judgement:
        """Put the slots of a request into force, or refuse it. Asked again, it answers the same."""
        judgement = self._judged.get(request.request_id)
        if judgement is None:
            judgement = self._judged[request.request_id] = self._apply(request)
        return judgement

    def answered(self, request: ScaleRequest) -> None:
        """The judgement is stored, so nobody will ask for it again."""
        self._judged.pop(request.request_id, None)

    def _apply(self, request: ScaleRequest) -> Judgement:
        now = self._now()
        try:
            granted = check_scale(request.slots, now, spout=self._spout)
        except UsageError as error:
            log.info("a request for other slots is refused: %s", error)
            return Judgement(str(error), {})
        self.changed = {**self.changed, **granted}
        before = {component: now[component][0] for component in granted}
        for component, count in sorted(granted.items()):
            log.info("component %r: %d slots, until now %d", component, count, before[component])
        return Judgement(None, before)

    def _now(self) -> dict[str, tuple[int, int]]:
        return {
            component: (self.changed.get(component, slots), self._tasks[component])
            for component, slots in self._declared.items()
        }


class Operators:
    """The operators' side of the event loop; its methods are called on the loop's thread. Without `slots`
    nobody may change any."""

    def __init__(
        self,
        batches: Batches,
        store: ProgressStore,
        runner: BatchRunner,
        slots: Slots | None,
        waiting: Waiting,
    ) -> None:
        self.has_finished = False
        self._batches = batches
        self._store = store
        self._runner = runner
        self._slots = slots
        self._waiting = waiting
        self._told_waits: tuple[Wait, ...] = ()
        self._stop_watch: Callable[[], None] | None = None
        self._newest: Assignment | None = None
        self._written: Assignment | None = None
        self._pauses = False

    def begin(self) -> None:
        """Before the first batch: put the slots into force, and hear of requests and waits from now on."""
        self._waiting.changed = lambda: self._batches.workers.post(lambda: self._write(self._tell_waits))
        if self._slots is not None:
            self._runner.slots = self._slots.changed
            self._stop_watch = self._store.watch_scale(lambda: self._batches.workers.post(self._look))

    def advanced(self, assignment: Assignment | None) -> None:
        """A batch is committed and stored; its tasks ran there."""
        self._newest = assignment
        if not self._pauses:
            self._write_newest()

    def failed(self, batch: FailingBatch) -> None:
        """An attempt failed. Each is stored: attempts wait longer and longer."""
        self._write(lambda: self._store.write_failing(batch))

    def finish(self) -> None:
        """The run ends well: answer what waits, and store where the last tasks ran, then `has_finished`. A
        FencedError ends the run."""

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

        self._batches.workers.after(_END_SECONDS, give_up, is_deadline=True)
        self._batches.workers.submit(Lane.WRITE, self._finish, finished, failed)

    def shut_down(self) -> None:
        """Hear of nothing any more. What is not answered stays for the next leader."""
        if self._stop_watch is not None:
            self._stop_watch()

    def _tell_waits(self) -> None:
        """Store what is waited for by now; many a short wait is over before its turn comes."""
        waits = self._waiting.waits
        if waits != self._told_waits:
            self._told_waits = waits
            self._store.write_waiting(waits)

    # --- slots ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._batches.workers.submit(Lane.WRITE, self._carry_out, None, self._not_carried_out)

    def _carry_out(self) -> None:
        if self._slots is None:
            return
        try:
            for request in self._store.read_scale().waiting:
                judgement = self._slots.judge(request)
                self._runner.slots = self._slots.changed
                self._store.answer_scale(request, judgement.refused, judgement.before)
                self._slots.answered(request)
        except CorruptStateError as error:
            # It concerns what comes next, not the batches; a start would end with it.
            log.error("slots cannot be changed now: %s", error)

    def _not_carried_out(self, error: BaseException) -> None:
        if isinstance(error, ServiceUnavailableError):
            log.warning("a request for other slots is not answered yet: %s", error)
            self._batches.workers.after(_RETRY_SECONDS, self._look)
        else:
            self._batches.fail_run(error)

    # --- where tasks ran ------------------------------------------------------------------------------

    def _write_newest(self) -> None:
        """Store it, unless it is, and then nothing for a while; what comes meanwhile is stored after that."""
        assignment = self._newest
        if assignment is None or assignment is self._written:
            return
        self._written = assignment
        self._pauses = True
        self._batches.workers.after(ASSIGNMENT_SECONDS, self._pause_is_over)
        self._write(lambda: self._store.write_assignment(assignment))

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

    def _finish(self) -> None:
        self._carry_out()
        if self._newest is not None and self._newest is not self._written:
            self._store.write_assignment(self._newest)
