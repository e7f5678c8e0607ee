"""The turns of a topology of tracked tuples: ask the spouts, run a micro-batch, end trees.

The loop does nothing by itself and knows no threads: a run calls it from one thread, and `run_batch` from
another; a test calls it step by step.

Invariants. One micro-batch runs at a time, so a task sees its tuples in the order in which they were sent. A
spout's `next_tuple` is called only while fewer than `max_spout_pending` of its task's trees are open. The
acker's ledger may be lost at any time: the spout tasks have their own list of the open trees, and end each
when its time is over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from txstream.api.spouts import SpoutContext
from txstream.core.errors import BatchTimeoutError
from txstream.core.transaction import AttemptSequence, Epoch, TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.messages import WorkOrder
from txstream.engine.batch.runner_contract import BatchResult, FedRunner
from txstream.engine.letters.retry_policy import (
    AttemptTime,
    TxidFailures,
    Verdict,
    count_reason,
    judge,
    reason_of,
)
from txstream.plugins.tracked.acker.ackers import Ackers
from txstream.plugins.tracked.acker.ids import FIRST_GENERATION
from txstream.plugins.tracked.acker.ledger import DEFAULT_BUCKETS, Ended, Tasks, Trees
from txstream.plugins.tracked.anchors import AckLog
from txstream.plugins.tracked.builder import TrackedTopology
from txstream.plugins.tracked.outlet import Outlet
from txstream.plugins.tracked.spouts import SpoutTask

if TYPE_CHECKING:
    from txstream.plugins.tracked.acker.ids import Roots

log = logging.getLogger(__name__)

# Limits, so that events get their turn and a micro-batch stays small enough for a few Spark tasks.
_MOST_CALLS_A_TURN = 1_000
_MOST_TUPLES = 100_000


class MicroBatch(TransactionAttempt):
    """One of a run's micro-batches, counted from 1."""

    def __str__(self) -> str:
        return f"micro-batch {self.txid}"


@dataclass(eq=False)
class Cut:
    """A micro-batch to be run: what goes to the first stage, and the trees that begin with it."""

    order: WorkOrder
    messages: Sequence[bytes]
    roots: Sequence[Roots]
    began: float
    tuples: int


@dataclass
class Counts:
    """What has happened so far, by component. `failed` counts tuples that a bolt failed, `held` those that it
    neither acked nor failed. `reasons` says why trees failed."""

    received: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    timed_out: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    micro_batches: int = 0
    failed_micro_batches: int = 0
    tuples: int = 0


class TrackedLoop:
    """See the module. `clock` returns seconds."""

    def __init__(
        self,
        topology: TrackedTopology,
        plan: ExecutionPlan,
        runner: FedRunner,
        context: SpoutContext,
        clock: Callable[[], float],
        epoch: Epoch,
        *,
        warm_up_seconds: float = 0.0,
        width: int | None = None,
    ) -> None:
        self.topology = topology
        self.counts = Counts()
        self.running: Cut | None = None
        self.ackers = Ackers(topology.ackers) if topology.ackers else None
        self.stuck: str | None = None
        self.ended_by: TransactionAttempt | None = None
        self._plan = plan
        self._runner = runner
        self._context = context
        self._clock = clock
        self._attempts = AttemptSequence(epoch)
        self._log = AckLog([int(plan.run_id, 16), 0, 0, 0]) if plan.tracks else None
        self._outlet = Outlet(plan, self._log, width)
        self._time = AttemptTime(topology.message_timeout_seconds, warm_up_seconds)
        self.spouts = self._tasks_wanted()
        # By root: the component whose task neither acked nor failed a tuple of the tree.
        self._holders: dict[int, str] = {}
        self._rotated = clock()
        self.failures = TxidFailures()
        # When a tree last ended, and how many had ended by then.
        self._last_progress = clock()
        self._ended = 0

    # --- spouts -------------------------------------------------------------------------------------

    def slots(self) -> dict[str, int]:
        """Return the slots of each component as operators want them; a spout's are its tasks."""
        changed = self._runner.slots
        return self._plan.slots(changed) | {
            spec.id: changed.get(spec.id, spec.tasks) for spec in self._plan.fed
        }

    def _tasks_wanted(self, first_generation: int = FIRST_GENERATION) -> list[SpoutTask]:
        slots = self.slots()
        places = [(spec, task) for spec in self._plan.fed for task in range(slots[spec.id])]
        return [
            SpoutTask(spec, task, number, len(places), self._outlet, self._clock, first_generation)
            for number, (spec, task) in enumerate(places)
        ]

    def changing(self) -> list[str]:
        """Return the spouts that have other tasks than operators want."""
        slots, there = self.slots(), self._tasks_there()
        return [spout for spout, tasks in there.items() if tasks != slots[spout]]

    def _tasks_there(self) -> Counter[str]:
        return Counter(spout.spec.id for spout in self.spouts)

    def change_tasks(self) -> None:
        """Close the spout tasks, and open as many as operators want. What is still open comes again from its
        source: the new tasks know nothing of it, and never use a root that the old ones had."""
        former = self.spouts
        self.close()
        self.spouts = self._tasks_wanted(1 + max(spout.generation for spout in former))
        self._holders.clear()
        for spout in former:
            next(one for one in self.spouts if one.spec.id == spout.spec.id).follow(spout)
        self.open()

    def open(self) -> None:
        """Open every spout task. Nothing is asked of them before `activate`."""
        there = self._tasks_there()
        for spout in self.spouts:
            context = replace(
                self._context,
                component=spout.spec.id,
                task_index=spout.task,
                task_count=there[spout.spec.id],
                task_id=spout.spec.task_ids[spout.task],
                task_ids=self._plan.task_ids,
                settings=self.topology.settings,
            )
            spout.start(context)
            spout.ack_untracked()

    def ask(self) -> bool:
        """Ask the spouts for tuples, as far as there is room. Return whether there was one."""
        emitted = False
        for _ in range(_MOST_CALLS_A_TURN):
            if self._waiting_tuples >= _MOST_TUPLES:
                break
            # A list, so that every task is asked before `any` looks.
            asked = [spout.next_tuple() for spout in self.spouts if self.has_room(spout)]
            emitted |= any(asked)
            if not any(asked):
                break
        return emitted

    def has_room(self, spout: SpoutTask) -> bool:
        """Return whether this task may open another tree."""
        return spout.open < self.topology.max_spout_pending

    def waiting_for(self) -> dict[str, str]:
        """Return, by spout, what its tasks wait for before they can say that their sources have nothing."""
        found: dict[str, list[str]] = {}
        for spout in self.spouts:
            text = spout.waiting_for()
            if text is not None and text not in (texts := found.setdefault(spout.spec.id, [])):
                texts.append(text)
        return {
            spout: f"{texts[0]}{f', and {len(texts) - 1} more' if len(texts) > 1 else ''} ({spout})"
            for spout, texts in found.items()
        }

    @property
    def _waiting_tuples(self) -> int:
        return sum(spout.emitted for spout in self.spouts) - self.counts.tuples

    @property
    def open_trees(self) -> int:
        return sum(spout.open for spout in self.spouts)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way."""
        return self.running is None and not self._waiting_tuples and not self.open_trees

    # --- micro-batches ------------------------------------------------------------------------------

    def cut(self) -> Cut | None:
        """Return all that was emitted as the next micro-batch; None if there is nothing or one is running."""
        if self.running is not None or not self._waiting_tuples:
            return None
        roots: list[Roots] = []
        numbers = []
        with self._outlet.lock:  # what a spout's own threads emit meanwhile is for the next one
            for number, spout in enumerate(self.spouts):
                spout.flush()
                begun, spout.begun = spout.begun, []
                roots += begun
                numbers += [np.full(len(some), number, np.int32) for some in begun]
            tuples = self._outlet.tuples
            txid = Txid(self.counts.micro_batches + self.counts.failed_micro_batches + 1)
            order, messages = self._outlet.cut(MicroBatch(txid, self._attempts.next()), self._runner.slots)
            begins = None if self._log is None else self._log.folded(roots)
        self.counts.tuples += tuples
        self.running = cut = Cut(order, messages, roots, self._clock(), tuples)
        if begins is not None and self.ackers is not None and roots:
            self._settle(self.ackers.init(*begins, _tasks_of(begins[0], roots, numbers)))
        return cut

    def run_batch(self, cut: Cut) -> BatchResult:
        """Have a micro-batch processed. From any thread. Raises what `FedRunner.feed` raises."""
        return self._runner.feed(cut.order, cut.messages)

    def finished(self, cut: Cut, result: BatchResult) -> None:
        """End the trees that are complete or have failed, now that a micro-batch was processed."""
        if cut is not self.running:
            return  # its time was over: its trees have failed
        self.running = None
        self.failures = TxidFailures()
        self._time.ended()
        counts = self.counts
        counts.micro_batches += 1
        for place in result.places:
            counts.received[place.component] += place.tuples
        for tracked in result.tracked:
            counts.acked += tracked.acked
            counts.failed += tracked.failed
            for (component, reason), times in tracked.reasons.items():
                count_reason(self.counts.reasons, f"component {component!r}: {reason}", times)
            for component, held in tracked.held.items():
                self._hold(cut, component, np.concatenate(held))
        if self.ackers is None:
            return
        for tracked in result.tracked:  # failures first: a tree that failed and is complete has failed
            for roots in tracked.failed_roots:
                self._settle(self.ackers.fail(roots))
        for tracked in result.tracked:
            if tracked.acks is not None:
                self._settle(self.ackers.ack(*tracked.acks))

    def broke(self, cut: Cut, error: BaseException) -> None:
        """Fail the trees of a micro-batch that could not be processed. Raises the error if it is fatal, or a
        bug after `max_attempts` failures in a row."""
        if cut is not self.running:
            return
        self.running = None
        self._time.ended(error)
        self.counts.failed_micro_batches += 1
        self.failures.add(error)
        verdict = judge(error)
        if verdict is Verdict.FATAL or (
            verdict is Verdict.BUG and self.failures.attempts >= self.topology.max_attempts
        ):
            self.ended_by = cut.order.attempt
            raise error
        roots = np.concatenate(cut.roots) if cut.roots else np.empty(0, np.uint64)
        count_reason(self.counts.reasons, reason_of(error), len(roots))
        log.warning(
            "%s failed, and with it %s, which are replayed: %s",
            cut.order.attempt, counted(len(roots), "tree"), error,
        )  # fmt: skip
        if self.ackers is not None:
            self.ackers.fail(roots)
        for spout in self.spouts:
            spout.fail(roots, timed_out=isinstance(error, BatchTimeoutError))

    # --- time ---------------------------------------------------------------------------------------

    def expire(self) -> None:
        """End what has taken too long."""
        timeout, now, running = self._time.seconds, self._clock(), self.running
        if running is not None and now - running.began >= timeout:
            self._runner.cancel(running.order.attempt)
            self.broke(running, self._time.is_over(running.order.attempt, "processed", timeout))
        if self.ackers is not None and now - self._rotated >= timeout / (DEFAULT_BUCKETS - 1):
            self._rotated = now
            self.ackers.rotate()  # its answer is ignored: the spout tasks know better
        for spout in self.spouts:
            roots = spout.overdue(timeout)
            if len(roots):
                self._time_out(spout, roots)
        self._look_at_windows(now)

    def _time_out(self, spout: SpoutTask, roots: Roots) -> None:
        holders = Counter(self._holders.get(root) for root in roots.tolist())
        ended = counted(spout.fail(roots, timed_out=True), "tree")
        holder, trees = holders.most_common(1)[0]
        if holder is None:
            why = "no component holds them: their tuples were lost on the way, or their acker was"
        else:
            self.counts.timed_out[holder] += trees
            why = (
                f"component {holder!r} holds most of them ({trees:,}): it neither acked nor failed their "
                f"tuples in the micro-batch that brought them"
            )
        log.warning("%s of %r timed out and will be replayed: %s", ended, spout.spec.id, why)
        count_reason(self.counts.reasons, f"timed out: {why}", len(roots))
        for root in roots.tolist():
            self._holders.pop(root, None)

    def _look_at_windows(self, now: float) -> None:
        """Set `stuck`, and warn once, if a pending window stays full and no tree ends."""
        ended = sum(spout.acked + spout.failed + spout.timed_out for spout in self.spouts)
        full = [spout for spout in self.spouts if not self.has_room(spout)]
        if not full or self.running is not None or ended != self._ended:
            self._ended, self._last_progress, self.stuck = ended, now, None
        elif now - self._last_progress >= self.topology.message_timeout_seconds / 3 and self.stuck is None:
            holder = Counter(self._holders.values()).most_common(1)
            most = f"; component {holder[0][0]!r} holds most of them" if holder else ""
            self.stuck = (
                f"the pending window of {full[0].spec.id!r} is full: {counted(full[0].open, 'open tree')}, "
                f"and none ends before it times out{most}"
            )
            log.warning("%s", self.stuck)

    # --- trees --------------------------------------------------------------------------------------

    def _hold(self, cut: Cut, component: str, roots: Roots) -> None:
        log.warning(
            "component %r ended %s without having acked or failed tuples of %s: nobody can ack them later, "
            "so they time out",
            component, cut.order.attempt, counted(len(np.unique(roots)), "tree"),
        )  # fmt: skip
        self.counts.held[component] += len(roots)
        self._holders.update(dict.fromkeys(roots.tolist(), component))

    def _settle(self, ended: Ended) -> None:
        for trees, is_acked in ((ended.completed, True), (ended.failed, False)):
            for spout, roots in self._by_spout(trees):
                if is_acked:
                    spout.ack(roots)
                else:
                    spout.fail(roots)
            if self._holders and not is_acked:
                for root in trees.roots.tolist():
                    self._holders.pop(root, None)

    def _by_spout(self, trees: Trees) -> list[tuple[SpoutTask, Roots]]:
        # Tasks that were closed hear nothing, and their successors do not know their roots.
        tasks = [task for task in np.unique(trees.tasks) if task < len(self.spouts)]
        return [(self.spouts[task], trees.roots[trees.tasks == task]) for task in tasks]

    # --- the end ------------------------------------------------------------------------------------

    def activate(self) -> None:
        for spout in self.spouts:
            spout.activate()

    def deactivate(self) -> None:
        for spout in self.spouts:
            spout.deactivate()

    def close(self) -> None:
        """Close every spout task, even if closing one of them fails; then raise the first error."""
        errors = []
        for spout in self.spouts:
            try:
                spout.close()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                errors.append(error)
        if errors:
            raise errors[0]


def _tasks_of(folded: Roots, roots: Sequence[Roots], numbers: Sequence[Tasks]) -> Tasks:
    """Return the spout task of each folded root."""
    known, tasks = np.concatenate(roots), np.concatenate(numbers)
    order = np.argsort(known)
    found: Tasks = tasks[order][np.searchsorted(known[order], folded)]
    return found
