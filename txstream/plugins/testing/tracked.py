"""`TrackedTest`: runs a topology of tracked tuples step by step, with or without Spark. `TopologyTest`
returns one for such a topology.

Spouts, micro-batches, ledger and timeouts are those of every run. Time passes when the test moves the clock.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.errors import UsageError
from txstream.core.transaction import Epoch
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner_contract import Emitted, FedRunner
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.plugins.testing.clock import ManualClock
from txstream.plugins.testing.topology import TopologyTest
from txstream.plugins.tracked.builder import TopologyBuilder, TrackedTopology
from txstream.plugins.tracked.loop import TrackedLoop
from txstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.plugins.tracked.spouts import SpoutTask

_MOST_STEPS = 10_000


class TrackedTest(TopologyTest):
    """A topology of tracked tuples under control of the test. Use it as a context manager, from one thread.

    topology: the topology to test, or its builder.
    spark: a SparkSession to run micro-batches on. None runs them on what `runner` makes from the plan, by
        default in this process.
    settings: addresses and deadlines for the spouts, as for a run.
    clock: the clock of the message timeouts. It stands at 0 until the test moves it; a tree times out in the
        next step.
    width: how many Spark tasks each micro-batch is spread over; None as Spark would.

    `loop` is the engine's own. Steps raise what ends a run: an error in a spout or bolt, misuse of a
    collector.
    """

    topology: TrackedTopology

    def __init__(
        self,
        topology: TrackedTopology | TopologyBuilder,
        *,
        spark: SparkSession | None = None,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
        width: int | None = None,
        runner: Callable[[ExecutionPlan], FedRunner] = InProcessRunner,
    ) -> None:
        self.topology = topology if isinstance(topology, TrackedTopology) else topology._build(stacklevel=3)
        self.clock = clock or ManualClock()
        addresses = (settings or Settings()).addresses()
        context = SpoutContext(self.topology.id, self.topology.components[0].id, addresses)
        plan = compile_topology(self.topology, context, uuid.uuid4().hex, capture=True)
        self._runner = runner(plan) if spark is None else _on_spark(spark, plan)
        self.loop = TrackedLoop(self.topology, plan, self._runner, context, self.clock, Epoch(1), width=width)
        self._emitted: list[Emitted] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse the attributes that drive batches, which the inherited methods about batches need."""
            raise AttributeError(
                "a test of tracked tuples has no txids, attempts and tables; it has step(), run(), "
                "fail(component, message_id), spout(), open_messages() and emitted()"
            )

    def __enter__(self) -> Self:
        self.loop.open()
        self.loop.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Deactivate and close the spouts. Tuples that they emit meanwhile are processed."""
        try:
            self.loop.deactivate()
            self.loop.close()
            self._process()
        finally:
            self._runner.close()

    # --- steps --------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Ask each spout task for tuples once, run them as a micro-batch, and end its trees and those that
        have timed out. Returns whether anything happened."""
        loop = self.loop
        before = self._ended()
        for spout in loop.spouts:
            if loop.has_room(spout):
                spout.next_tuple()
        processed = self._process()
        loop.expire()
        return processed or self._ended() != before

    def _process(self) -> bool:
        """Run the emitted tuples as a micro-batch. Returns whether there were any."""
        loop = self.loop
        cut = loop.cut()
        if cut is None:
            return False
        try:
            result = loop.run_batch(cut)
        except Exception as error:  # noqa: BLE001 - the loop judges it
            loop.broke(cut, error)
        else:
            self._emitted += result.emitted
            loop.finished(cut, result)
        return True

    def run(self) -> None:  # type: ignore[override]  # trees end, nothing is committed
        """Step until nothing happens any more."""
        for _ in range(_MOST_STEPS):
            if not self.step():
                return
        raise UsageError(f"topology {self.topology.id!r} has not come to rest in {_MOST_STEPS:,} steps")

    def fail(self, component: str, message_id: MessageId) -> None:  # type: ignore[override]  # no txid
        """Fail the open tree of this message, as a bolt would. Raises UsageError when it has none."""
        for spout in self._tasks(component):
            if message_id in spout.open_messages():
                spout.fail_message(message_id)
                return
        raise UsageError(f"no tree of {component!r} with message id {message_id!r} is open")

    def lose_acker(self, acker: int = 0) -> None:
        """Make an acker forget its trees, as its death would."""
        if self.loop.ackers is None:
            raise UsageError(f"topology {self.topology.id!r} has no ackers")
        self.loop.ackers.lose(acker)

    # --- what is there ------------------------------------------------------------------------------

    def spout(self, component: str, task: int = 0) -> Any:
        """Return the running instance of a spout task, a copy of the one that the topology was built with."""
        return self._tasks(component)[task].spout

    def open_messages(self, component: str) -> set[MessageId]:
        """Return the message ids whose trees are open."""
        return {one for spout in self._tasks(component) for one in spout.open_messages()}

    def emitted(  # type: ignore[override]  # of all micro-batches
        self, component: str, stream: str = DEFAULT_STREAM
    ) -> list[tuple[Any, ...]]:
        """Return what a bolt has emitted to a stream so far, in micro-batches that did not fail."""
        return [
            tuple(row.values())
            for emitted in self._emitted
            if (emitted.component, emitted.stream) == (component, stream)
            for row in emitted.tuples.to_pylist()
        ]

    @property
    def reasons(self) -> Counter[str]:
        """How many trees failed, by reason."""
        return self.loop.counts.reasons

    def _tasks(self, component: str) -> list[SpoutTask]:
        found = [spout for spout in self.loop.spouts if spout.spec.id == component]
        if not found:
            raise UsageError(f"topology {self.topology.id!r} has no spout {component!r}")
        return found

    def _ended(self) -> int:
        return sum(spout.acked + spout.failed + spout.timed_out for spout in self.loop.spouts)


def _on_spark(spark: SparkSession, plan: ExecutionPlan) -> FedRunner:
    from txstream.engine.spark.spark_runner import SparkRunner

    return SparkRunner(spark.sparkContext, plan)
