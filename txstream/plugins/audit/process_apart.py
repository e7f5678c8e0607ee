"""Batches of dry runs in a process of their own: what ends it, as a fault in C ends the process that decodes
a record, ends no command.

Invariant. The process is a copy of this one, made before a batch is read. It is told work orders, gives what
Spark tasks answer, and ends when this process does, or closes it.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BoltError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.messages import ANSWER, Element, WorkOrder
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.batch.sizing import work_order
from txstream.plugins.local.local_runner import InProcessRunner

_CLOSING_SECONDS = 5.0


class RunnerApart(InProcessRunner):
    """Runs the processing phase of one batch at a time in another process. Once that has ended by itself,
    each further batch fails as that one."""

    def __init__(self, plan: ExecutionPlan) -> None:
        super().__init__(plan)
        # A copy, because the rows and classes of a notebook are in this process alone.
        apart = multiprocessing.get_context("fork")
        self._asked, served = apart.Pipe()
        self._copy = apart.Process(target=self._serve, args=(served,), name="txstream-dry-run", daemon=True)
        self._copy.start()
        served.close()

    def _run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int) -> BatchResult:
        started = time.perf_counter()
        order = work_order(attempt, metas, self.plan, self.slots, known=self.fetched, spare=spare)
        try:
            self._asked.send(order.to_json())
            answers: list[Element] = self._asked.recv()
        except (EOFError, ConnectionError):
            self._copy.join()
            raise self._end_of(attempt) from None
        return self._collected(order, answers, started)

    def _end_of(self, attempt: TransactionAttempt) -> BoltError:
        how, code = "it has ended itself", self._copy.exitcode
        if code is not None and code < 0:
            how = f"signal {-code} ({signal.strsignal(-code)})"
        error = BoltError(f"{attempt}: its worker process ended: {how}")
        error.without_data = f"its worker process ended: {how}"
        return error

    def close(self) -> None:
        """End the other process."""
        self._asked.close()
        self._copy.join(_CLOSING_SECONDS)
        self._copy.kill()  # nobody waits for user code that hangs
        super().close()

    def _serve(self, asked: Connection) -> None:
        """Process what is asked for, until nobody is there who could ask."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a terminal's Ctrl-C reaches this process, too
        self._asked.close()
        while True:
            try:
                order = WorkOrder.from_json(asked.recv())
            except EOFError:
                super().close()
                return
            asked.send([one for one in self._processed(order) if one[0] == ANSWER])
