"""The states of one bolt task in one attempt: opened before `prepare`, written after `finish_batch`.

Invariants. Nothing is written before the task's `finish_batch` has returned. Then there is one transaction
per database, which requires that this attempt is the current one. A state's cache goes back to its process
only when every database has the task's writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from txstream.core.digests import TableDigest, digest_of
from txstream.core.errors import ServiceUnavailableError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import BoltSpec
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.states.bindings import StateBinding
from txstream.engine.states.state_cache import StateCache
from txstream.engine.states.task_map_state import Load, Ownership, TaskMapState
from txstream.engine.states.worker_databases import StorePlace

if TYPE_CHECKING:
    from txstream.state import StateBackend, TableSpec

_Share = tuple[StateBinding, list[tuple["TableSpec", pa.Table]]]


class TaskStates:
    """All states of a task. `committed` is the attempt that was committed last, None if unknown."""

    def __init__(
        self,
        spec: BoltSpec,
        task: int,
        attempt: TransactionAttempt,
        process: WorkerProcess,
        committed: TransactionAttempt | None = None,
    ) -> None:
        self._spec = spec
        self._task = task
        self._attempt = attempt
        self._process = process
        self._bindings: Mapping[str, StateBinding] = process.plan.bindings.get(spec.id, {})
        self._caches: dict[str, StateCache] = {}
        self.states: dict[str, TaskMapState] = {}
        self.open_table: Callable[[], tuple[StateBackend, TableSpec]] | None = None
        for name, binding in self._bindings.items():
            if binding.is_read:
                self.open_table = partial(self._opened, binding)
                continue
            cache = self._take_cache(name, binding, committed)
            ownership = None
            if binding.grouped_by is not None:
                ownership = Ownership(task, spec.tasks, binding.grouped_by)
            self.states[name] = TaskMapState(
                name, binding.state, self._loader(binding), ownership=ownership, cache=cache
            )
        process.left_open += self.states.values()

    def flush(self) -> dict[str, TableDigest]:
        """Close the states and write what the bolt changed in them. Returns the digests of that, by state.

        Raises StaleAttemptError when the attempt is not the current one, and otherwise as
        `TopologyStates.write`.
        """
        written: dict[str, TableDigest] = {}
        shares: dict[StorePlace, _Share] = {}
        for name, state in self.states.items():
            state.close()
            deltas = state.deltas()
            if deltas.num_rows:
                binding = self._bindings[name]
                shares.setdefault(binding.place, (binding, []))[1].append((binding.spec, deltas))
                written[name] = digest_of(deltas, binding.state.key_names)
        for place, (binding, writes) in shares.items():
            with self._naming_the_host():
                store = self._process.stores.get(place, binding.topology)
                states = store.of(binding.topology, binding.uuid, binding.semantics)
                states.write(self._attempt, writes)
        for name, cache in self._caches.items():
            cache.leave(self._attempt, self.states[name].cacheable())
            self._process.state_caches[self._spec.id, name, self._task] = cache
        return written

    def _take_cache(
        self, name: str, binding: StateBinding, committed: TransactionAttempt | None
    ) -> StateCache | None:
        rows = binding.state.cache_rows
        if not rows:
            return None
        cache = self._process.state_caches.pop((self._spec.id, name, self._task), None)
        if cache is None:
            cache = StateCache(rows)
        cache.begin(committed)
        self._caches[name] = cache
        return cache

    def _loader(self, binding: StateBinding) -> Load:
        def load(keys: pa.Table) -> pa.Table:
            with self._naming_the_host():
                store, spec = self._opened(binding)
                return store.read(spec, keys, before=self._attempt.txid)

        return load

    def _opened(self, binding: StateBinding) -> tuple[StateBackend, TableSpec]:
        with self._naming_the_host():
            return binding.opened(self._process.stores)

    @contextlib.contextmanager
    def _naming_the_host(self) -> Iterator[None]:
        """Name this host in the error: the driver may reach a database that this host does not."""
        try:
            yield
        except ServiceUnavailableError as error:
            raise ServiceUnavailableError(f"host {self._process.host}: {error}") from error
