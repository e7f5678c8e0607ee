"""`TrackedTest`: a topology of tracked tuples run step by step, as far as the test says, without Spark or on
it.

Spouts, micro-batches, ledger and timeouts are those of every run; time passes when the test moves the clock.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from txstream.api.errors import UsageError
from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId
from txstream.api.tracked_builder import TopologyBuilder, TrackedTopology
from txstream.api.tuples import DEFAULT_STREAM
from txstream.engine.batch.plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner import Emitted, FedRunner
from txstream.engine.tracked.loop import TrackedLoop
from txstream.settings import Settings
from txstream.testing.clock import ManualClock
from txstream.testing.inprocess import InProcessRunner
from txstream.transaction import Epoch

if TYPE_CHECKING:
    from txstream.engine.tracked.spouts import SpoutTask

_MOST_STEPS = 10_000


class TrackedTest:
    """A topology of tracked tuples under control of the test. Use it as a context manager, from one thread.

    topology: what is tested, or a builder. clock: what message timeouts go by; it stands at 0 until the test
    moves it. A tree times out in the next step. width: how many Spark tasks each micro-batch is spread over;
    None as Spark would. settings: addresses and deadlines for the spouts, as for a run. runner: what runs
    micro-batches, made from the plan; None runs them in this process.

    `loop` is the engine's own. Steps raise what ends a run: an error in a spout or bolt, misuse of a
    collector.
    """

    def __init__(
        self,
        topology: TrackedTopology | TopologyBuilder,
        *,
        clock: ManualClock | None = None,
        width: int | None = None,
        settings: Settings | None = None,
        runner: Callable[[ExecutionPlan], FedRunner] = InProcessRunner,
    ) -> None:
        self.topology = topology if isinstance(topology, TrackedTopology) else topology._build(stacklevel=3)
        self.clock = clock or ManualClock()
        addresses = (settings or Settings()).addresses()
        context = SpoutContext(self.topology.id, self.topology.components[0].id, addresses)
        plan = compile_topology(self.topology, context, uuid.uuid4().hex, capture=True)
        self._runner = runner(plan)
        self.loop = TrackedLoop(self.topology, plan, self._runner, context, self.clock, Epoch(1), width=width)
        self._emitted: list[Emitted] = []

    def __enter__(self) -> Self:
        self.loop.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Deactivate and close the spouts. What they emit meanwhile is processed."""
        try:
            self.loop.deactivate()
            self.loop.close()
            self._process()
        finally:
            self._runner.close()

    # --- steps --------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Ask each spout task for tuples once, run what was emitted as a micro-batch, end its trees and those
        whose time is over; did anything happen?"""
        loop = self.loop
        before = self._ended()
        for spout in loop.spouts:
            if loop.has_room(spout):
                spout.next_tuple()
        processed = self._process()
        loop.expire()
        return processed or self._ended() != before

    def _process(self) -> bool:
        """Run what was emitted as a micro-batch; was there anything?"""
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

    def run(self) -> None:
        """Step until nothing happens any more."""
        for _ in range(_MOST_STEPS):
            if not self.step():
                return
        raise UsageError(f"topology {self.topology.id!r} has not come to rest in {_MOST_STEPS:,} steps")

    def fail(self, component: str, message_id: MessageId) -> None:
        """Fail the open tree of this message, as a bolt would. Raises UsageError when none is open."""
        for spout in self._tasks(component):
            if message_id in spout.open_messages():
                spout.fail_message(message_id)
                return
        raise UsageError(f"no tree of {component!r} with message id {message_id!r} is open")

    def lose_acker(self, acker: int = 0) -> None:
        """Have an acker forget its trees, as its death does."""
        if self.loop.ackers is None:
            raise UsageError(f"topology {self.topology.id!r} has no ackers")
        self.loop.ackers.lose(acker)

    # --- what is there ------------------------------------------------------------------------------

    def spout(self, component: str, task: int = 0) -> Any:
        """The instance of a spout task, as it runs: a copy of what the topology was built with."""
        return self._tasks(component)[task].spout

    def open_messages(self, component: str) -> set[MessageId]:
        """The message ids whose trees are open."""
        return {one for spout in self._tasks(component) for one in spout.open_messages()}

    def emitted(self, component: str, stream: str = DEFAULT_STREAM) -> list[tuple[Any, ...]]:
        """What a bolt has emitted to a stream so far, in micro-batches that did not fail."""
        return [
            tuple(row.values())
            for emitted in self._emitted
            if (emitted.component, emitted.stream) == (component, stream)
            for row in emitted.tuples.to_pylist()
        ]

    @property
    def reasons(self) -> Counter[str]:
        """Why trees failed, and how many for each reason."""
        return self.loop.counts.reasons

    def _tasks(self, component: str) -> list[SpoutTask]:
        found = [spout for spout in self.loop.spouts if spout.spec.id == component]
        if not found:
            raise UsageError(f"topology {self.topology.id!r} has no spout {component!r}")
        return found

    def _ended(self) -> int:
        return sum(spout.acked + spout.failed + spout.timed_out for spout in self.loop.spouts)
