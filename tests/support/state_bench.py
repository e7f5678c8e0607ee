"""Runs attempts of batches by hand: a committer's tasks with states, in worker processes that a test chooses.

A batch is given as amounts by account, and every task adds those of its own accounts. Driver and tasks make
the same calls as in a run. The test decides what happens between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from support.inmemory import CONTEXT, MemoryLog, MemorySource
from txstream.api.bolts import BatchBolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.stable_hash import task_of
from txstream.api.state import SqlState
from txstream.api.tuples import Tuple
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.batch.state_tasks import TaskStates
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.commit.state_targets import map_bindings, state_targets
from txstream.engine.states.task_map_state import TaskMapState
from txstream.state import Commit, open_database

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BALANCES = SqlState("balances", key="account string", value="balance bigint")
UUID = "0" * 32
SPOUTS: Mapping[Semantics, Any] = {
    Semantics.OPAQUE: OpaqueSpout,
    Semantics.TRANSACTIONAL: TransactionalSpout,
    Semantics.NON_TRANSACTIONAL: NonTransactionalSpout,
}

Batch = Mapping[str, int]


class Keeper(BatchBolt, Committer):
    def __init__(self, state: SqlState) -> None:
        self.states = {"balances": state}

    def execute(self, tup: Tuple) -> None: ...


class Bench:
    """A topology with one committer of `tasks` tasks, and `processes` worker processes."""

    def __init__(
        self,
        url: str,
        semantics: Semantics = Semantics.OPAQUE,
        *,
        state: SqlState = BALANCES,
        tasks: int = 2,
        processes: int = 2,
        **options: Any,
    ) -> None:
        log = MemorySource(MemoryLog({}), "account string, amount bigint")
        builder = TransactionalTopologyBuilder("bank", "lines", SPOUTS[semantics](log))
        bolt = Keeper(replace(state, semantics=semantics, **options))
        keeper = builder.set_bolt("keeper", bolt, tasks)
        keeper.fields_grouping("lines", "account")
        topology = builder.build()
        targets = state_targets(topology, url, open_database)
        plan = compile_topology(topology, CONTEXT, url, bindings=map_bindings(topology, UUID, targets))
        self.semantics = semantics
        self.spec = plan.bolt("keeper")
        self.database = targets[0].database
        self.tables = targets[0].tables
        self.processes = [WorkerProcess(plan) for _ in range(processes)]
        self.committed: TransactionAttempt | None = None
        self._sequence = itertools.count(1)
        self.database.ensure_framework_tables()
        self.database.of("bank", UUID, semantics, self.tables).join(first_run=True)

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.database.close()

    # --- the driver ---------------------------------------------------------------------------------

    def begin(self, txid: int) -> TransactionAttempt:
        """Return a new attempt, begun in the database."""
        attempt = TransactionAttempt(Txid(txid), attempt_id(1, next(self._sequence)))
        self.database.of("bank", UUID, self.semantics, self.tables).begin_commit(_commit(attempt))
        return attempt

    def end(self, attempt: TransactionAttempt) -> None:
        self.database.of("bank", UUID, self.semantics, self.tables).end_commit(_commit(attempt))
        self.committed = attempt

    def commit(self, txid: int, batch: Batch, places: Sequence[int] = (0, 0)) -> TransactionAttempt:
        """Commit an attempt that meets no trouble."""
        attempt = self.begin(txid)
        for task in range(self.spec.tasks):
            self.work(attempt, task, batch, places[task])
        self.end(attempt)
        return attempt

    # --- the tasks ----------------------------------------------------------------------------------

    def open(self, attempt: TransactionAttempt, task: int, place: int = 0) -> TaskStates:
        return TaskStates(self.spec, task, attempt, self.processes[place], self.committed)

    def add(self, states: TaskStates, task: int, batch: Batch) -> dict[str, int]:
        """Do what the bolt does; return the new balances."""
        mine = {account: amount for account, amount in batch.items() if self.task_of(account) == task}
        state: TaskMapState = states.states["balances"]
        updaters = [lambda old, amount=amount: (old or 0) + amount for amount in mine.values()]
        return dict(zip(mine, state.multi_update(list(mine), updaters), strict=True))

    def work(self, attempt: TransactionAttempt, task: int, batch: Batch, place: int = 0) -> dict[str, int]:
        """Run a whole task; return the new balances."""
        states = self.open(attempt, task, place)
        seen = self.add(states, task, batch)
        states.flush()
        return seen

    def task_of(self, account: str) -> int:
        return task_of([account], self.spec.tasks)

    # --- the table ----------------------------------------------------------------------------------

    def balances(self) -> dict[str, int]:
        rows = self.database.top("balances", topology="bank", n=1000)
        return {row["account"]: row["balance"] for row in rows}


def _commit(attempt: TransactionAttempt) -> Commit:
    return Commit(attempt, {}, {}, 0, NOW, NOW)
