"""The commit phase on the driver: merge the deltas of all tasks, then one transaction per database.

Invariant: when `commit` returns, every database has committed this very attempt. When it raises
BatchFailedError, some may have and some not; a new attempt undoes and redoes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from txstream.api.bolts import StateCommitter
from txstream.api.errors import BatchFailedError, ServiceUnavailableError, TopologyError
from txstream.api.topology import Topology
from txstream.bolts.sql import new_fold
from txstream.engine.runner import BatchResult
from txstream.semantics import Semantics
from txstream.state import AnswerLostError, Commit, StateBackend, TableSpec, place_of
from txstream.transaction import TransactionAttempt


@dataclass(frozen=True)
class StateTarget:
    """One database and the tables of this topology in it; `components` fill them, in the same order."""

    database: StateBackend
    tables: tuple[TableSpec, ...]
    components: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessedBatch:
    """A batch between the phases."""

    result: BatchResult
    planned_at: datetime
    processed_at: datetime
    error: str | None


def state_targets(
    topology: Topology, default_url: str, open_database: Callable[[str], StateBackend]
) -> list[StateTarget]:
    """The topology's states by database; a state without a url lives in `default_url`.

    A topology without any state has its fence and ledger in `default_url`. Raises TopologyError when two
    states fill one table, which `build` cannot tell where one has no url.
    """
    found: dict[str, list[tuple[TableSpec, str]]] = {}
    spelled: dict[str, str] = {}  # the first URL that means a place
    owners: dict[tuple[str, str], str] = {}
    components = [c.id for c in topology.bolts if isinstance(c.instance, StateCommitter)]
    for (bolt, semantics), component in zip(topology.states, components, strict=True):
        state = bolt.state
        url = state.url or default_url
        url = spelled.setdefault(place_of(url), url)
        owner = owners.setdefault((url, state.table.lower()), component)
        if owner != component:
            raise TopologyError(
                f"components {owner!r} and {component!r} both write table {state.table!r} of one database, "
                f"which they name differently or which is the run's default; give each a table of its own"
            )
        found.setdefault(url, []).append((TableSpec(state, semantics, bolt.reducers), component))
    if not found:
        found[default_url] = []
    return [
        StateTarget(open_database(url), tuple(t for t, _ in tables), tuple(c for _, c in tables))
        for url, tables in found.items()
    ]


class Committer:
    """Commits processed batches. `wait_for` blocks, with backoff, until a check passes or the run ends."""

    def __init__(
        self,
        topology: Topology,
        uuid: str,
        targets: Sequence[StateTarget],
        *,
        wait_for: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._topology = topology.id
        self._semantics: Semantics = topology.semantics
        self._uuid = uuid
        self._targets = targets
        self._wait_for = wait_for
        self._bolts: dict[str, StateCommitter] = {
            component.id: component.instance
            for component in topology.bolts
            if isinstance(component.instance, StateCommitter)
        }

    def merge(self, *results: BatchResult) -> dict[str, pa.Table]:
        """Each state's deltas by component, every key once: of what was processed, and what committed."""
        merged: dict[str, pa.Table] = {}
        for component, bolt in self._bolts.items():
            fold = new_fold(bolt)
            for result in results:
                for part in result.deltas.get(component, []):
                    if part.num_rows:
                        fold.add_partial(part)
            merged[component] = fold.finish()
        return merged

    def commit(
        self,
        attempt: TransactionAttempt,
        metas: Mapping[str, Any],
        batch: ProcessedBatch,
        deltas: Mapping[str, pa.Table],
        reached: Callable[[str], None],
    ) -> None:
        """Commit to every database, one after the other.

        Raises BatchFailedError when a new attempt is due, FencedError when a newer leader has taken over,
        another TxstreamError when the data cannot be stored.
        """
        for target in self._targets:
            commit = Commit(
                attempt=attempt,
                metas=metas,
                deltas={
                    table.state.table: deltas[component]
                    for table, component in zip(target.tables, target.components, strict=True)
                },
                tuples=batch.result.records,
                planned_at=batch.planned_at,
                processed_at=batch.processed_at,
                error=batch.error,
            )
            database = target.database
            try:
                database.commit(
                    self._topology,
                    self._uuid,
                    target.tables,
                    commit,
                    semantics=self._semantics,
                    reached=reached,
                )
            except ServiceUnavailableError as error:
                if not self._outcome(database, attempt, lost=isinstance(error, AnswerLostError)):
                    raise BatchFailedError(f"{attempt} was not committed: {error}") from error

    def _outcome(self, database: StateBackend, attempt: TransactionAttempt, *, lost: bool) -> bool:
        """Has the database committed this attempt? Lost may mean committed: only the ledger knows, and only
        once the database answers."""
        committed = False

        def ask() -> None:
            nonlocal committed
            database.check()
            committed = lost and database.outcome(self._topology, attempt)

        self._wait_for(f"database {database.url_for_people}", ask)
        return committed
