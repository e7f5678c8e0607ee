"""The commit phase on the driver: merge the deltas of all tasks, then have every database commit them.

The path is chosen per batch and database. *Driver*: one transaction does everything. *Executors*, for many
rows and where bolts write states themselves: the driver begins the commit, tasks write their shares, the
driver ends it.

Invariants.
- When `commit` returns, every database has committed this very attempt. When it raises BatchFailedError or
  ServiceUnavailableError, some may have and some not; a new attempt undoes and redoes them all.
- A batch's dead letters are in the first of its databases, and in no other.
- No task writes into a database before this attempt has begun there, and the attempt ends in no database
  before all tasks have written. It begins at most once in each: the fence refuses it a second time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from txstream.api.bolts import StateCommitter
from txstream.api.retention import late_rows, late_words
from txstream.api.topology import Topology
from txstream.core.batch_metas import Encoded
from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.digests import TableDigest, digest_of
from txstream.core.errors import (
    BatchFailedError,
    FencedError,
    LateRecordError,
    ServiceUnavailableError,
    StateValueError,
    TopologyError,
)
from txstream.core.failing_batch import Wait
from txstream.core.fault_points import Point, Reached
from txstream.core.readings import NOTHING_READ, Reading
from txstream.core.transaction import AttemptId, Epoch, TransactionAttempt, Txid, epoch_of
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.batch.shares import StateWrite, TableDeltas
from txstream.engine.commit.horizon_keepers import HorizonKeepers
from txstream.engine.commit.state_targets import StateTarget, state_targets
from txstream.state import AnswerLostError, Commit, TopologyStates
from txstream.state.folding import new_fold

__all__ = ["BatchCommitter", "Committing", "ProcessedBatch", "StateTarget", "state_targets"]

log = logging.getLogger(__name__)

DRIVER_COMMIT_ROWS = 100_000
"""Both paths are about equally fast here, on two cores beside PostgreSQL (`benchmarks/commit_paths.py`)."""

DRIVER, EXECUTORS = "driver", "executors"

Digests = dict[str, TableDigest]
"""By table."""

_KEPT_WAITS = 10


class StateDeltas(NamedTuple):
    """What a batch adds to a state, every key once, the digest of that for the ledger, and what tasks have
    told beside it."""

    table: pa.Table
    digest: TableDigest
    told: Sequence[Mapping[bytes, bytes]] = ()


Prepared = Mapping[str, StateDeltas]
"""By component."""


@dataclass(frozen=True)
class ProcessedBatch:
    """A batch between the phases. `deltas` are those of the states that are fed in processing. `attempts` are
    the failed ones of its txid, as the ledger keeps them. `timings` are seconds by step, to which every later
    step adds its own, `timings_before` those of the commit of the batch before, if this driver committed it,
    which that batch's own row cannot have. `letters` are the records that its metas leave out, `retried` the
    dead letters that it retries, `lag_records` the records that its plan did not take, None if it did not
    tell, `reading` what it was made from."""

    result: BatchResult
    deltas: Prepared
    planned_at: datetime
    processed_at: datetime
    error: str | None
    attempts: Sequence[Mapping[str, Any]] = ()
    timings: dict[str, float] = field(default_factory=dict)
    letters: Sequence[DeadLetter] = ()
    retried: Sequence[LetterKey] = ()
    lag_records: int | None = None
    timings_before: Mapping[str, float] = field(default_factory=dict)
    reading: Reading = NOTHING_READ


@dataclass(frozen=True, slots=True)
class Committing:
    """A processed batch whose commit has been asked for. `metas` are encoded; `reached` is called at the
    points of the commit; `horizons` are those of the batch before."""

    attempt: TransactionAttempt
    metas: Encoded
    batch: ProcessedBatch
    reached: Reached
    horizons: Mapping[str, Any] = field(default_factory=dict)


class ShareWriter(Protocol):
    """`BatchRunner.write`."""

    def __call__(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]: ...


class BatchCommitter:
    """Commits processed batches. `wait_for` blocks, with backoff, until a check passes or the run ends.
    `committed_by` has the attempt that committed the last txid, according to ZooKeeper. `ended_before` is the
    epoch of the last driver that ended well, if one has noted that; `waits` returns the waits of the run that
    have ended since it was called last. The ledger tells both, for the page's timeline. `keepers` decide the
    horizons."""

    def __init__(
        self,
        topology: Topology,
        uuid: str,
        targets: Sequence[StateTarget],
        *,
        wait_for: Callable[[str, Callable[[], None]], None],
        committed_by: Mapping[Txid, AttemptId | None] | None = None,
        ended_before: Epoch | None = None,
        waits: Callable[[], list[tuple[Wait, datetime]]] = list,
        keepers: HorizonKeepers | None = None,
    ) -> None:
        self.keepers = keepers or HorizonKeepers(topology)
        self._ended_before = ended_before
        self._take_waits = waits
        self._waits: list[tuple[Wait, datetime]] = []  # of no committed batch yet
        self._committed_by = dict(committed_by or {})
        self._map_states = topology.map_states
        self._commit = topology.commit
        self._driver_commit_rows = topology.driver_commit_rows
        self._targets = targets
        self._states = [target.of(topology, uuid) for target in targets]
        self._wait_for = wait_for
        self._bolts = state_committers(topology)
        self._copies = [one.state.table for target in targets for one in target.tables if one.state.copies]
        self._fed_in_commit = {bolt.id for bolt in topology.bolts if bolt.below_committer}
        # With commit="auto": why executors write no more batches, and the last txid that failed there.
        self._executors_cannot: str | None = None
        self._failed_on_executors: Txid | None = None

    def prepare(self, result: BatchResult, *, in_commit: bool = False) -> dict[str, StateDeltas]:
        """Return the deltas to commit for the states that were fed in this phase, by component. May be called
        from any thread: a batch is prepared while the one before it commits. Raises StateValueError for a
        total that its column cannot hold."""
        found = {}
        for component, bolt in self._bolts.items():
            if (component in self._fed_in_commit) is in_commit:
                table = merged_deltas(component, bolt, [result])
                told = [part.schema.metadata or {} for part in result.deltas.get(component, ())]
                found[component] = StateDeltas(table, digest_of(table, bolt.state.key_names), told)
        return found

    def check(self, deltas: Prepared) -> None:
        """Raise StateValueError or StateTableError for what a database refuses before it begins to write."""
        for target in self._targets:
            for spec, component in zip(target.tables, target.components, strict=True):
                if component in deltas:
                    target.database.prepare(spec, deltas[component].table)

    def refuse_late(self, deltas: Prepared, horizons: Mapping[str, Any]) -> None:
        """Raise LateRecordError for a row that is older than its table keeps rows. Bolts have looked already,
        record by record; this is for those that do not."""
        for component, found in deltas.items():
            state = self._bolts[component].state
            horizon = state.keeps_from(horizons.get(state.table))
            if horizon is None or state.keep_on is None:
                continue
            column = found.table.column(state.keep_on)
            if late_rows(column, horizon) is not None:
                error = LateRecordError(late_words(state.table, state.keep_on, column.type, horizon))
                vars(error)["component"] = component
                raise error

    def rehearse(self, attempt: TransactionAttempt, deltas: Prepared) -> None:
        """Raise what a database or a reducer refuses only within the commit; nothing is written. The txid
        before must be committed, so that all see the rows that the commit will see. Raises as `commit`."""
        now, tables = datetime.now(UTC), {component: found.table for component, found in deltas.items()}
        commit = Commit(attempt, {}, {}, 0, now, now, after=self._committed_by.get(Txid(attempt.txid - 1)))
        for target, states in zip(self._targets, self._states, strict=True):
            for table in target.deltas(tables):  # each alone, so that the error's component is known
                try:
                    states.rehearse(replace(commit, deltas={table.spec.state.table: table.deltas}))
                except StateValueError as error:
                    vars(error)["component"] = table.component
                    raise

    @property
    def begins_before_bolts(self) -> bool:
        """Whether bolts of the commit phase write states, so that `begin` must come before they run."""
        return any(target.written_by_bolts for target in self._targets)

    def begin(self, one: Committing) -> frozenset[int]:
        """Begin a commit in the databases into which bolts will write. Returns their
        positions, which `commit` takes as `begun`. Raises as `commit`."""
        found = frozenset(at for at, target in enumerate(self._targets) if target.written_by_bolts)
        for at in sorted(found):
            self._begin(at, one)
        return found

    def commit(
        self,
        one: Committing,
        deltas: Prepared,
        *,
        write: ShareWriter | None = None,
        begun: Collection[int] = (),
        written: Mapping[tuple[str, str], TableDigest] | None = None,
    ) -> None:
        """Commit to every database. `write` has tasks write shares; without it the driver writes everything.
        `deltas` are those of all states; `begun` is what `begin` returned for it; `written` is what
        bolts have written since, by component and state.

        Raises BatchFailedError or ServiceUnavailableError when a new attempt is due, FencedError when a newer
        leader has taken over, BoltError when a task died, another TxstreamError when the data cannot be
        stored.
        """
        attempt, reached = one.attempt, one.reached
        tables = {component: found.table for component, found in deltas.items()}
        own = [target.deltas(tables) for target in self._targets]
        learned = self.keepers.learned(
            one.metas.get("horizons", {}),
            {self._bolts[component].state.table: found.told for component, found in deltas.items()},
        )
        shared: list[int] = []
        if write is not None:
            shared = [at for at, tables in enumerate(own) if self._is_for_executors(attempt, at, tables)]
        for at in shared:
            if at not in begun:
                self._begin(at, one)
        digests = self._digests_of_bolts(written or {})
        keys = Counter(
            {at: sum(digest.rows for digest in found.values()) for at, found in enumerate(digests)}
        )
        if write is not None and shared:
            reached(Point.BEFORE_WRITE)
            keys.update(self._write_shares(one, {at: own[at] for at in shared}, write))
            reached(Point.AFTER_WRITE)
        for at, states in enumerate(self._states):
            if at:
                reached(Point.BETWEEN_COMMITS)
            mine = [] if at in shared else own[at]
            path = EXECUTORS if at in shared or at in begun else DRIVER
            digests[at] |= {table.spec.state.table: deltas[table.component].digest for table in own[at]}
            commit = self._whole(one, path, mine, digests[at], learned)
            if not at and one.batch.letters:
                commit = replace(commit, letters=one.batch.letters)
            try:
                self._finish(states, commit, reached, keys=keys[at], path=path)
            except StateValueError as error:
                # Refused by the only transaction so far.
                vars(error)["wrote_nothing"] = not (at or shared or begun)
                raise
        self._waits = []
        before = Txid(attempt.txid - 1)
        self._committed_by = {before: self._committed_by.get(before), attempt.txid: attempt.attempt}

    # --- which path ---------------------------------------------------------------------------------

    def _is_for_executors(self, attempt: TransactionAttempt, at: int, tables: Sequence[TableDeltas]) -> bool:
        rows: int = sum(table.deltas.num_rows for table in tables)
        target = self._targets[at]
        if rows == 0 or self._commit == DRIVER or target.place is None or not target.database.on_executors:
            return False
        if self._commit == EXECUTORS:
            return True
        if self._executors_cannot is not None or self._failed_on_executors == attempt.txid:
            return False
        if self._driver_commit_rows is not None:
            return rows > self._driver_commit_rows
        return rows > DRIVER_COMMIT_ROWS and not target.one_writer

    # --- the steps ----------------------------------------------------------------------------------

    def _begin(self, at: int, one: Committing) -> None:
        started = time.perf_counter()
        try:
            self._states[at].begin_commit(self._whole(one, EXECUTORS, ()), reached=one.reached)
        except ServiceUnavailableError as error:
            # Whether or not it has begun, this attempt cannot begin again.
            self._outcome(self._states[at], one.attempt, lost=False)
            raise BatchFailedError(f"{one.attempt} was not committed: {error}") from error
        _add(one.batch.timings, "begin", started)
        one.reached(Point.AFTER_BEGIN)

    def _write_shares(
        self, one: Committing, work: Mapping[int, Sequence[TableDeltas]], write: ShareWriter
    ) -> dict[int, int]:
        """Have executors write the deltas of some databases. Returns the number of rows, by database."""
        attempt = one.attempt
        started = time.perf_counter()
        writes = []
        for at, tables in work.items():
            place = self._targets[at].place
            if place is not None:
                writes.append(StateWrite(place, replace(self._states[at].life, tables=()), attempt, tables))
        try:
            rows = write(attempt, writes)
        except FencedError:
            raise
        except Exception as error:
            self._failed_on_executors = attempt.txid
            if isinstance(error, TopologyError) and self._commit == "auto":
                if self._executors_cannot is None:
                    log.warning(
                        "from now on the driver commits large batches too: %s",
                        error,
                        extra={"about": attempt},
                    )
                self._executors_cannot = str(error)
                raise BatchFailedError(f"{attempt} was not committed: {error}") from error
            if isinstance(error, ServiceUnavailableError):
                for at in work:
                    self._outcome(self._states[at], attempt, lost=False)
                raise ServiceUnavailableError(
                    f"{attempt} was not committed: {error}; the driver reaches that database: if executors "
                    f"cannot, open the way for them or build with commit='driver'"
                ) from error
            raise
        _add(one.batch.timings, "write", started)
        return dict(zip(work, rows, strict=True))

    def _finish(
        self,
        states: TopologyStates,
        commit: Commit,
        reached: Reached,
        *,
        keys: int,
        path: str,
    ) -> None:
        """The last transaction of this attempt in one database."""
        attempt = commit.attempt
        try:
            if path == DRIVER:
                states.commit(commit, reached=reached)
            else:
                states.end_commit(commit, keys=keys, reached=reached)
        except ServiceUnavailableError as error:
            if not self._outcome(states, attempt, lost=isinstance(error, AnswerLostError)):
                raise BatchFailedError(f"{attempt} was not committed: {error}") from error

    def _digests_of_bolts(self, written: Mapping[tuple[str, str], TableDigest]) -> list[Digests]:
        """What bolts wrote, by database and table. `written` has it by component and state."""
        return [
            {
                use.state.table: written.get((use.component, use.name), TableDigest())
                for use in self._map_states
                if target.has(use)
            }
            for target in self._targets
        ]

    def _whole(
        self,
        one: Committing,
        path: str,
        tables: Sequence[TableDeltas],
        digests: Digests | None = None,
        learned: Mapping[str, Any] | None = None,
    ) -> Commit:
        attempt, batch = one.attempt, one.batch
        details: dict[str, Any] = {
            "path": path,
            "timings": _rounded(batch.timings),
            "attempts": list(batch.attempts),
        }
        if batch.timings_before:
            details["timings_before"] = _rounded(batch.timings_before)
        after = self._committed_by.get(Txid(attempt.txid - 1))
        if after is None or epoch_of(after) != epoch_of(attempt.attempt):
            details["ended_before"] = self._ended_before
        self._waits = [*self._waits, *self._take_waits()][-_KEPT_WAITS:]
        if self._waits:
            details["waits"] = [
                {"what": wait.what, "since": wait.since.isoformat(), "until": until.isoformat()}
                for wait, until in self._waits
            ]
        if batch.lag_records is not None:
            details["lag_records"] = batch.lag_records
        if batch.reading != NOTHING_READ:
            details["read"] = batch.reading.to_document()
        if learned:
            details["learned"] = dict(learned)
        if self._copies:
            details["copies"] = self._copies
        if digests is not None:
            details["digests"] = {table: digest.to_document() for table, digest in digests.items()}
        return Commit(
            attempt=attempt,
            metas=one.metas,
            deltas={table.spec.state.table: table.deltas for table in tables},
            tuples=batch.result.records,
            planned_at=batch.planned_at,
            processed_at=batch.processed_at,
            error=batch.error,
            details=details,
            after=after,
            retried=batch.retried,
            horizons=one.horizons,
        )

    def _outcome(self, states: TopologyStates, attempt: TransactionAttempt, *, lost: bool) -> bool:
        """Wait until the database answers. Has it committed this attempt? If the answer to the commit was
        `lost`, only the ledger knows; otherwise it has not."""
        committed = False

        def ask() -> None:
            nonlocal committed
            states.store.check()
            committed = lost and states.outcome(attempt)

        self._wait_for(f"database {states.display_url}", ask)
        return committed


def state_committers(topology: Topology) -> dict[str, StateCommitter]:
    """The bolts that fill tables, by component."""
    return {bolt.id: bolt.instance for bolt in topology.bolts if isinstance(bolt.instance, StateCommitter)}


def merged_deltas(component: str, bolt: StateCommitter, results: Iterable[BatchResult]) -> pa.Table:
    """Merge a state's deltas from the results of a batch's phases. The table has every key once."""
    fold = new_fold(bolt)
    for result in results:
        for part in result.deltas.get(component, []):
            if part.num_rows:
                fold.add_partial(part)
    return fold.finish()


def _rounded(timings: Mapping[str, float]) -> dict[str, float]:
    return {step: round(seconds, 6) for step, seconds in timings.items()}


def _add(timings: dict[str, float], step: str, started: float) -> None:
    timings[step] = timings.get(step, 0.0) + time.perf_counter() - started
