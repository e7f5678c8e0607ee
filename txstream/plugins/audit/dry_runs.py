"""Dry runs of committed batches: exactly the ledger's ranges, through the bolts of the processing phase.

Invariants. A dry run writes nothing of the topology: no fence, no ledger, no table, and nothing in ZooKeeper,
which it does not even read. So it needs no leader, and may run beside one. It does not run bolts of the
commit phase: they may change things outside, and they read states as they were before the batch, which are
not kept anywhere. A table in which rows are looked up is read as it was before the batch if it keeps
versions, otherwise as it is today; who shows a result says which.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from txstream.api.bolts import StateCommitter
from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import BATCHES
from txstream.core.batch_metas import BatchMetas
from txstream.core.digests import TableDigest
from txstream.core.errors import (
    DataLostError,
    PartitionUnavailableError,
    StateTableError,
    TxstreamError,
    UsageError,
)
from txstream.core.readings import NOTHING_READ, Reading
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner_contract import BatchResult, BatchRunner
from txstream.engine.commit.committer import merged_deltas
from txstream.engine.commit.state_targets import map_bindings, state_targets
from txstream.engine.letters.retries import Retries
from txstream.engine.states.bindings import Bindings
from txstream.inspect.databases import Databases, topology_databases, tracks_tuples, with_states_of
from txstream.inspect.ledgers import COMMITTED, no_such_txid
from txstream.inspect.source import asked
from txstream.inspect.tables import place_of_table
from txstream.plugins.audit.past_tables import as_they_were
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.state import BatchRecord, StateBackend

_JOBS_AT_ONCE = 4

Lookups = Literal["today", "then"] | None
"""How the tables were read that rows were looked up in: at least one as it is today, all as they were before
the batch; None if there is none."""


@dataclass(frozen=True)
class DryBatch:
    """A committed batch, from the ledgers. `metas` is what it read; `digests` are by database and table,
    `reading` is what it was made from, as far as the ledger has it."""

    attempt: TransactionAttempt
    metas: BatchMetas[Any]
    records: int
    digests: Mapping[tuple[str, str], TableDigest]
    reading: Reading = NOTHING_READ


@dataclass(frozen=True)
class ReplayedTable:
    """A state table whose deltas a dry run computes."""

    name: str
    component: str
    bolt: StateCommitter
    database: StateBackend | None

    def deltas(self, result: BatchResult) -> pa.Table:
        """Return what a batch adds to the table, every key once."""
        return merged_deltas(self.component, self.bolt, [result])

    def written_in(self, batch: DryBatch) -> TableDigest | None:
        """Return the digest of what the batch added to the table, or None if the ledger has none."""
        if self.database is None:
            return None
        return batch.digests.get((self.database.display_url, self.name))


@dataclass(frozen=True)
class DryRuns:
    """One topology's code, its databases and its source. `left_out` are the tables that the commit phase
    fills. `small` is the runner for parts of a batch, which are not worth a Spark job. `known_since` says, of
    each table that rows are looked up in, from which txid on it can be read as it was before a batch."""

    topology: Topology
    settings: Settings
    databases: Databases
    plan: ExecutionPlan
    runner: BatchRunner
    small: BatchRunner
    coordinator: PartitionCoordinator[Any]
    known_since: Mapping[str, Txid | None]
    jobs_at_once: int = 1

    def tables(self) -> list[ReplayedTable]:
        """Return the state tables whose deltas a dry run computes."""
        several = len(self.databases.opened) > 1
        found = []
        for component, bolt in self._committers(below_committer=False):
            place = self.databases.at(bolt.state.url or self.settings.database_url())
            wanted = place.display_url if several and place is not None else None
            database = None
            # A state of this code may be in a database or table that no run has let join yet.
            with contextlib.suppress(StateTableError):
                if wanted is not None or not several:
                    database = place_of_table(self.topology.id, bolt.state.table, self.databases, wanted)
            found.append(ReplayedTable(bolt.state.table, component, bolt, database))
        return found

    @property
    def left_out(self) -> list[str]:
        below = [bolt.state.table for _, bolt in self._committers(below_committer=True)]
        return sorted([*below, *(use.state.table for use in self.topology.map_states)])

    def _committers(self, *, below_committer: bool) -> Iterator[tuple[str, StateCommitter]]:
        for component in self.topology.bolts:
            bolt = component.instance
            if isinstance(bolt, StateCommitter) and component.below_committer is below_committer:
                yield component.id, bolt

    def looked_up(self, components: Iterable[str]) -> list[str]:
        """Return the tables that rows for components are looked up in, there or above."""
        found, above = set[str](), set(components)
        for one in reversed(self.topology.bolts):
            if one.id in above:
                above.update(given.component for given in one.inputs)
                reader = self.topology.table_readers.get(one.id)
                found.update([] if reader is None else [reader.table.state.table])
        return sorted(found)

    def looked_up_today(self, components: Iterable[str], txid: int) -> list[str]:
        """Return those of them that a dry run of this batch reads as they are today."""
        return [name for name in self.looked_up(components) if txid < (self.known_since[name] or txid + 1)]

    def lookups(self, components: Iterable[str], first: int, last: int) -> tuple[Lookups, list[str]]:
        """Return how dry runs of these batches read the tables that rows are looked up in, and in words."""
        how: Lookups = None
        notes = []
        for name in self.looked_up(components):
            since = self.known_since[name]
            if since is not None and since <= last:
                how = how or "then"
                notes.append(f"rows are looked up in table {name!r} as it was before each batch")
            if since is None or first < since:
                how = "today"
                whose = "" if since is None or last < since else f" of batches before txid {since}"
                notes.append(
                    f"rows{whose} are looked up in table {name!r} as it is today, because earlier rows are "
                    f"not kept"
                )
        return how, notes

    def batch(self, txid: int) -> DryBatch:
        """Return a committed batch. Raises UnknownTxidError for a txid that is not in the ledger, UsageError
        for one that is not committed, and CorruptStateError for ranges that are not of the code's source."""
        rows: dict[str, BatchRecord] = {}
        for database in self.databases.opened:
            row = database.batch(self.topology.id, txid)
            if row is not None:
                rows[database.display_url] = row
        if not rows:
            raise no_such_txid(self.topology.id, txid, self.databases.opened)
        if any(row.status != COMMITTED for row in rows.values()):
            raise UsageError(
                f"txid {txid} is not committed yet, so there is nothing to compare a replay with"
            )
        row = next(iter(rows.values()))
        where = f"ledger of topology {self.topology.id!r}, txid {txid}"
        metas = self.plan.codec.decode(row.metas, where)
        if metas.retried:
            life = self.topology.id, row.uuid, self.topology.semantics
            states = [database.of(*life) for database in self.databases.opened]
            metas = Retries(states, deque()).loaded(metas)
        return DryBatch(
            TransactionAttempt(Txid(txid), row.attempt),
            metas,
            row.tuples,
            {
                (place, table): TableDigest.from_document(document)
                for place, one in rows.items()
                for table, document in one.details.get("digests", {}).items()
            },
            Reading.from_document(row.details.get("read", {})),
        )

    def require(self, batch: DryBatch) -> None:
        """Raise DataLostError if a range of the batch is gone, PartitionUnavailableError if one cannot be
        read now. Call it before a run: a source that skips lost data would not report the loss."""
        answers = asked(batch.metas.partitions, self.coordinator.unreadable)
        txid = batch.attempt.txid
        for answer in answers.values():
            if isinstance(answer, DataLostError):
                raise DataLostError(f"txid {txid} cannot be replayed: {answer}") from answer
        for partition, answer in answers.items():
            raise PartitionUnavailableError(
                f"txid {txid} cannot be replayed now: partition {partition} cannot be read: {answer.reason}"
            )

    def run(self, batch: DryBatch, partitions: Mapping[str, Any] | None = None) -> BatchResult:
        """Process a batch, or only these ranges of it. Raises the error with which an attempt fails."""
        if partitions is None:
            return self.runner.run(batch.attempt, batch.metas)
        return self.small.run(batch.attempt, batch.metas.part(partitions))

    def replayed(self, txids: Iterable[int]) -> Iterator[tuple[DryBatch, BatchResult]]:
        """Run these batches again and yield each with its result, in this order; on Spark several run at
        once. Raises as `batch`, `require` and `run`, after the batches before the failing one were
        yielded."""
        left = iter(txids)
        while chunk := list(itertools.islice(left, self.jobs_at_once)):
            ready: list[DryBatch] = []
            problem: TxstreamError | None = None
            for txid in chunk:
                try:
                    ready.append(self.batch(txid))
                    self.require(ready[-1])
                except TxstreamError as error:
                    problem = error
                    del ready[chunk.index(txid) :]
                    break
            if len(ready) == 1:
                yield ready[0], self.run(ready[0])
            elif ready:
                with ThreadPoolExecutor(len(ready), "txstream-replay") as pool:
                    yield from zip(ready, pool.map(self.run, ready), strict=True)
            if problem is not None:
                raise problem


@contextlib.contextmanager
def dry_runs(
    topology: Topology, settings: Settings | None, *, capture: bool = False, on_spark: bool = False
) -> Iterator[DryRuns]:
    """Open what dry runs need. Batches run in a copy of this process, which is ready at once, unless
    `on_spark` or a DataFrame bolt asks for Spark. With `capture`, results have the tuples of all components.

    Raises UnknownTopologyError, ServiceUnavailableError.
    """
    if topology.tier != BATCHES:
        raise tracks_tuples(topology.id)
    settings = with_states_of((settings or Settings()).resolve(), topology)
    context = SpoutContext(
        topology_id=topology.id,
        component=topology.components[0].id,
        addresses=settings.addresses(),
        fetch_timeout_seconds=settings.fetch_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
    )
    with contextlib.ExitStack() as stack:
        databases = stack.enter_context(topology_databases(settings, topology.id))
        bindings: Bindings = {}
        since: Mapping[str, Txid | None] = {}
        if topology.table_readers:
            targets = state_targets(topology, settings.database_url(), databases.require)
            bindings, since = as_they_were(map_bindings(topology, "", targets), targets)
        plan = compile_topology(topology, context, uuid.uuid4().hex, capture=capture, bindings=bindings)
        needs_spark = any(bolt.is_dataframe for bolt in plan.bolts)
        small = None if needs_spark else _without_spark(topology, plan)
        if small is not None:
            stack.callback(small.close)
        coordinator = topology.spout.source.coordinator(context)
        stack.callback(coordinator.close)
        runner = _on_spark(topology, settings, plan, stack) if on_spark or small is None else None
        if runner is not None:
            small = small or runner
            several = _JOBS_AT_ONCE
            yield DryRuns(topology, settings, databases, plan, runner, small, coordinator, since, several)
        elif small is not None:
            yield DryRuns(topology, settings, databases, plan, small, small, coordinator, since)


def _without_spark(topology: Topology, plan: ExecutionPlan) -> BatchRunner:
    """Rows that are in this process alone are run in it; what a source decodes may end the process."""
    if not topology.spout.source.other_process:
        from txstream.plugins.local.local_runner import InProcessRunner

        return InProcessRunner(plan)
    from txstream.plugins.audit.process_apart import RunnerApart

    return RunnerApart(plan)


def _on_spark(
    topology: Topology, settings: Settings, plan: ExecutionPlan, stack: contextlib.ExitStack
) -> BatchRunner:
    from txstream.engine.spark.engine import SparkEngine, check_source
    from txstream.engine.spark.log import writable_spark_log

    check_source(topology)
    log_file = settings.spark_log or writable_spark_log(settings.log_dir, f"replay-{topology.id}")
    settings = replace(settings, spark_log=log_file)
    engine = SparkEngine(
        settings, f"txstream replay {topology.id}", settings.spark_conf, pause=threading.Event().wait
    )
    runner = stack.enter_context(engine).create_runner(plan)
    stack.callback(runner.close)
    return runner
