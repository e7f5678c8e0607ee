"""The engine's `MapState`: what one task reads and writes in one attempt, folded in memory.

Invariants. A key is read at most once; from then on the bolt sees its present value. The database is not
written here: the task's flush writes `written`, each key once, with its last value. After `close` nothing
changes any more, so that a bolt that keeps a state cannot write into a later batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txstream.api.map_state import MapState, Updater
from txstream.api.stable_hash import task_of
from txstream.api.state import SqlState
from txstream.core.errors import StateValueError, UsageError
from txstream.core.wording import counted
from txstream.engine.states.state_cache import StateCache
from txstream.engine.states.state_cells import Cells, UnfitCellError

Load = Callable[[pa.Table], pa.Table]
"""Takes key columns, without duplicates; returns the key and value columns of the rows that exist."""


@dataclass(frozen=True)
class Ownership:
    """Which of several tasks owns a key. The key columns `fields` decide; without any, it is task 0."""

    task: int
    tasks: int
    fields: Sequence[str]

    def owner(self, parts: Sequence[Any]) -> int:
        """The task that owns a key; `parts` are the values of `fields`."""
        return task_of(parts, self.tasks) if self.fields else 0


class TaskMapState(MapState[Any, Any]):
    """One state of one task and attempt. Without `ownership` the task owns every key."""

    def __init__(
        self,
        name: str,
        state: SqlState,
        load: Load,
        *,
        ownership: Ownership | None = None,
        cache: StateCache | None = None,
    ) -> None:
        self._name = name
        self._state = state
        self._load = load
        self._ownership = ownership
        self._cache = cache
        self._keys = Cells(state.key_schema, are_keys=True)
        self._values = Cells(state.value_schema, are_keys=False)
        self._present: dict[Any, Any] = {}  # None for a key without a row
        self._written: set[Any] = set()
        self._is_open = True

    # --- for the bolt -------------------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        wanted = self._fit_keys(keys)
        self._read(wanted)
        return [self._present[key] for key in wanted]

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        wanted, given = self._fit_keys(keys), self._listed("values", values)
        if len(wanted) != len(given):
            raise UsageError(
                f"{self._who()}: {counted(len(wanted), 'key')} put with {counted(len(given), 'value')}"
            )
        for key, value in zip(wanted, given, strict=True):
            self._put(key, value)

    def multi_update(self, keys: Sequence[Any], updaters: Updater[Any] | Sequence[Updater[Any]]) -> list[Any]:
        wanted = self._fit_keys(keys)
        if callable(updaters):
            chosen: Sequence[Updater[Any]] = [updaters] * len(wanted)
        else:
            chosen = self._listed("updaters", updaters)
            if len(chosen) != len(wanted):
                raise UsageError(
                    f"{self._who()}: {counted(len(wanted), 'key')} with {counted(len(chosen), 'updater')}"
                )
            wrong = next((updater for updater in chosen if not callable(updater)), None)
            if wrong is not None:
                raise UsageError(
                    f"{self._who()}: an updater is a function of the present value, not {wrong!r:.200}"
                )
        self._read(wanted)
        return [
            self._put(key, updater(self._present[key])) for key, updater in zip(wanted, chosen, strict=True)
        ]

    # --- for the engine -----------------------------------------------------------------------------

    @property
    def written(self) -> Mapping[Any, Any]:
        """Each key that was written, with its last value."""
        return {key: self._present[key] for key in self._written}

    def deltas(self) -> pa.Table:
        """`written` as a table: key columns, then value columns."""
        written = self.written
        columns = [*self._keys.columns(list(written)), *self._values.columns(list(written.values()))]
        schema = pa.schema([*self._state.key_schema, *self._state.value_schema]).remove_metadata()
        return pa.Table.from_arrays(columns, schema=schema)

    def cacheable(self) -> Iterable[tuple[Any, Any]]:
        """What this attempt knows of the keys that no other task writes."""
        return [(key, value) for key, value in self._present.items() if self._other_owner(key) is None]

    def close(self) -> None:
        """Refuse what the bolt reads or writes from now on."""
        self._is_open = False

    # --- inside -------------------------------------------------------------------------------------

    def _fit_keys(self, keys: Sequence[Any]) -> list[Any]:
        self._refuse_closed()
        fitted = []
        for key in self._listed("keys", keys):
            try:
                fitted.append(self._keys.fit(key))
            except UnfitCellError as error:
                raise self._unfit(key, error) from error
        return fitted

    def _listed(self, what: str, given: Iterable[Any]) -> list[Any]:
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise UsageError(f"{self._who()}: expected a list of {what}, found {given!r:.200}")
        return list(given)

    def _read(self, keys: Sequence[Any]) -> None:
        present = self._present
        missing = [key for key in dict.fromkeys(keys) if key not in present]
        if self._cache is not None:
            asked, missing = missing, []
            for key in asked:
                if key in self._cache:
                    present[key] = self._cache[key]
                else:
                    missing.append(key)
        if not missing:
            return
        found = self._load(self._keys.table(missing))
        rows = dict(zip(self._keys.read(found), self._values.read(found), strict=True))
        for key in missing:
            present[key] = rows.pop(key, None)
        if rows:
            raise StateValueError(
                f"{self._who()}: the store answered with key {self._keys.show(next(iter(rows)))}, which was "
                f"not asked for; does it compare keys in another way, by a collation?"
            )

    def _put(self, key: Any, value: Any) -> Any:
        if key not in self._written:
            self._refuse_foreign(key)
        try:
            fitted = self._values.fit(value)
        except UnfitCellError as error:
            raise self._unfit(key, error) from error
        self._written.add(key)
        self._present[key] = fitted
        return fitted

    def _other_owner(self, key: Any) -> int | None:
        """The task that owns a key, if it is not this one."""
        mine = self._ownership
        if mine is None:
            return None
        owner = mine.owner(self._keys.parts(key, mine.fields))
        return None if owner == mine.task else owner

    def _refuse_foreign(self, key: Any) -> None:
        owner = self._other_owner(key)
        if owner is not None:
            raise self._unfit(
                key,
                f"its tuples come to task {owner}, so another task must not write it, or one of two updates "
                f"would be lost; group the input by what the key is made of, or let the bolt have one task",
            )

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise UsageError(
                f"{self._who()} was used outside of its attempt; take it by context.state({self._name!r}) in "
                f"prepare, and use it up to the end of finish_batch"
            )

    def _unfit(self, key: Any, why: object) -> StateValueError:
        shown = self._keys.show(key)
        return StateValueError(f"{self._who()}, key {shown}: {why}").of_row(self._state.table, shown)

    def _who(self) -> str:
        return f"state {self._name!r} (table {self._state.table!r})"
