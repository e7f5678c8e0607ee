"""How a test moves a topology: marks say how far each txid may go, and steps wait until it is there.

Invariants.
- Between two steps the topology stands still: a step ends once all that is allowed is done.
- After a failure that the test asked for, that txid and later ones go on only with a new step.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from txstream.api.topology import Topology
from txstream.core.coordinator import BatchPhase
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.fault_points import At, Point
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.plugins.testing.driver import SteppedDriver, World

MOST_FAILURES = 100
_PATIENCE_STEP_SECONDS = 0.01
_PROCESSED = (BatchPhase.PROCESSED, BatchPhase.COMMITTING, BatchPhase.ADVANCING)


class NotReachedError(TxstreamError):
    """A step cannot reach its goal. The message says what it waited for and how the topology stands."""


class Control:
    """The drivers of one topology, one after the other. Used by the test's thread."""

    def __init__(self, world: World, *, patience_seconds: float, deadline_seconds: float) -> None:
        self.history = world.history
        self._world = replace(world, listener=self._reached, failed=self._failed)
        self._patience_seconds = patience_seconds
        self._deadline_seconds = deadline_seconds
        self._driver: SteppedDriver | None = None
        self._open_up_to: float = 0
        # The error to raise at a point of a txid's commit, and the one whose failure lowers the marks.
        self._ambushes: dict[At, BaseException] = {}
        self._awaited: BaseException | None = None
        self._never = threading.Event()

    # --- drivers ------------------------------------------------------------------------------------

    def start(self, topology: Topology) -> None:
        """End the driver before, if any, and start a new one. Raises what a run's start would."""
        self.end()
        self._driver = SteppedDriver(self._world, topology)
        self._open_up_to = self._driver.coordinator.current - 1

    def end(self) -> None:
        """Kill the driver if it is alive."""
        driver = self._driver
        if driver is not None and not driver.end(self._deadline_seconds):
            raise NotReachedError(
                f"the topology did not end within {self._deadline_seconds:g} s; does a bolt still run?"
                f"{_shown(driver)}"
            )

    @property
    def driver(self) -> SteppedDriver:
        """The last driver, dead or alive."""
        if self._driver is None:
            raise UsageError("enter the TopologyTest first: with TopologyTest(topology) as test: ...")
        return self._driver

    @property
    def running(self) -> SteppedDriver:
        """The driver that runs. Raises UsageError when it has ended."""
        driver = self.driver
        if driver.has_ended:
            raise UsageError(f"the topology does not run: {driver.why_ended}; call restart() first")
        return driver

    # --- marks --------------------------------------------------------------------------------------

    def allow(self, *, opened: float = 0, processed: float = 0, committed: float = 0) -> None:
        """Raise the marks as far as asked, and as far as the limit on open batches requires."""
        driver = self.running
        wanted = max(opened, processed, committed)
        if wanted < 1:
            raise UsageError(f"there is no txid {wanted:g}; txids begin at 1")
        workers = driver.workers
        committed = max(committed, workers.commit_up_to, wanted - driver.topology.max_spout_pending)
        processed = max(processed, workers.process_up_to, committed)
        self._open_up_to = max(opened, processed, self._open_up_to)
        workers.allow(process=processed, commit=committed)
        driver.open_up_to(None if self._open_up_to == math.inf else int(self._open_up_to))

    def allow_alone(self, txid: int) -> None:
        """Let one txid be processed, whatever happens to the txids before it."""
        self.allow(opened=txid)
        self.running.workers.allow_one(txid)

    def lower(self, txid: int) -> None:
        """Hold back everything after this txid until a step asks for it."""
        self._open_up_to = min(self._open_up_to, txid)
        self.driver.workers.lower(txid)
        self.driver.open_up_to(int(self._open_up_to))

    def is_open(self, txid: int) -> bool:
        """Whether the txid has been opened and not dropped since."""
        coordinator = self.driver.coordinator
        return txid < coordinator.current or txid in coordinator.active

    def is_processed(self, txid: int) -> bool:
        """Whether the txid is processed or further."""
        coordinator = self.driver.coordinator
        batch = coordinator.active.get(Txid(txid))
        return txid < coordinator.current or (batch is not None and batch.phase in _PROCESSED)

    # --- ambushes -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ambush(self, at: At, error: BaseException) -> Iterator[None]:
        """Raise `error`, once, when the txid gets there. Lower the marks if that fails the attempt."""
        self._ambushes[at] = self._awaited = error
        try:
            yield
        finally:
            self._ambushes.pop(at, None)
            self._awaited = None

    def _reached(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        error = self._ambushes.pop(At(point, txid), None)
        if error is not None:
            raise error

    def _failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Called on the loop's thread, before the attempt is replayed."""
        if error is self._awaited:
            self.lower(attempt.txid - 1)

    # --- steps --------------------------------------------------------------------------------------

    def settle(self, what: str = "the topology to settle", deadline: float | None = None) -> None:
        """Let the topology do what is allowed and needs no waiting. Raises the error that ended it."""
        driver = self.running
        if deadline is None:
            deadline = time.monotonic() + self._deadline_seconds
        quiet = driver.settle(deadline)
        if driver.has_ended:
            self.end()
            if driver.error is not None:
                raise driver.error
        if not quiet:
            raise NotReachedError(
                f"waited {self._deadline_seconds:g} s for {what}, and something still runs"
                f"{_shown(driver)}; {self._describe(driver)}"
            )

    def step(self, what: str, reached: Callable[[], bool], txid: int | None = None) -> None:
        """Let the topology go on until `reached` holds. It is asked only while the topology stands still.

        A wait (between attempts, between questions to the source) is skipped once nothing else is left to do.
        """
        driver = self.running
        loop = driver.loop
        deadline = time.monotonic() + self._deadline_seconds
        patient_until: float | None = None
        failed_before, current = loop.statistics.failed_attempts, driver.coordinator.current
        while True:
            self.settle(what, deadline)
            if reached():
                return
            self._refuse_doomed(driver, what, txid)
            if driver.coordinator.current != current:
                failed_before, current = loop.statistics.failed_attempts, driver.coordinator.current
            failed = loop.statistics.failed_attempts - failed_before
            if failed > MOST_FAILURES:
                raise NotReachedError(
                    f"waited for {what}, but {failed} attempts failed; {self._describe(driver)}"
                )
            before = driver.where()
            if driver.workers.skip_waits():
                self.settle(what, deadline)
                if reached():
                    return
                if driver.where() != before:
                    patient_until = None
                    continue
            now = time.monotonic()
            patient_until = patient_until or now + self._patience_seconds
            if now >= min(patient_until, deadline):
                raise NotReachedError(
                    f"waited for {what}, but the topology stands still: {self._describe(driver)}"
                )
            self._never.wait(_PATIENCE_STEP_SECONDS)  # gives the source time to change

    def _refuse_doomed(self, driver: SteppedDriver, what: str, txid: int | None) -> None:
        error = None if txid is None else driver.loop.failures.doomed(Txid(txid))
        if error is not None:
            raise NotReachedError(
                f"waited for {what}, which will not be: once the txids before it are committed, the topology "
                f"ends with: {error}"
            ) from error

    def _describe(self, driver: SteppedDriver) -> str:
        """Describe how the topology stands, in one line."""
        coordinator = driver.coordinator
        held = set(driver.workers.held_back())
        waits, left_out = driver.loop.waiting.reasons, driver.loop.unreadable.left_out
        parts = [f"txid {coordinator.current} is the next to commit"]
        for batch in list(coordinator.active.values()):
            where = ", held back by the test" if batch.attempt in held else ""
            parts.append(f"{batch.attempt} is {batch.phase}{where}")
        last = max([coordinator.current - 1, *coordinator.active])
        if last < self._open_up_to:
            why = "; ".join(f"{partition} cannot be read: {reason}" for partition, reason in left_out.items())
            why = f" ({why})" if why else ""
            parts.append(f"txid {last + 1} is not open: the source has nothing for it{why}")
        if waits:
            parts.append(f"it waits for {'; '.join(waits)}")
        failure = self.history.last_error()
        if failure is not None:
            parts.append(f"the last failure was: {failure}")
        return "; ".join(parts)


def _shown(driver: SteppedDriver) -> str:
    running = driver.still_running()
    return f": {'; '.join(running)}" if running else ""
