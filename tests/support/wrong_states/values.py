"""Stores that keep wrong values, or return wrong ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from support.wrong_states.commits import with_rules
from support.wrong_states.registry import breaks
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Transaction
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.plugins.proof.stores.merging import Key, RowRules, RowValues, Values
from txstream.state import TableSpec, TopologyLife, TopologyStates
from txstream.state.declarations import Owner


class Overwriting(RowRules):
    """The last batch's delta becomes the value."""

    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        values, prev, txid = super().written(stored, delta, attempt, key)
        return (values if self.spec.semantics is Semantics.NON_TRANSACTIONAL else delta), prev, txid


breaks("opaque-rules")(with_rules(Overwriting))


class RestoresOneColumn(RowRules):
    def restored(self, stored: RowValues, txid: Txid) -> RowValues | None:
        left = super().restored(stored, txid)
        return None if left is None else ((left[0][0], *stored[0][1:]), left[1], left[2])


breaks("several-columns-are-one-row")(with_rules(RestoresOneColumn))


class NullIsZero(RowRules):
    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        return super().written(stored, tuple(value or 0 for value in delta), attempt, key)


breaks("nulls-change-nothing")(with_rules(NullIsZero))


class NullsAreFine(RowRules):
    """An opaque row may begin with a null."""

    def _refuse_null(self, values: Values, attempt: TransactionAttempt, key: Key) -> None:
        return


breaks("nulls-change-nothing")(with_rules(NullsAreFine))


class Wrapping(RowRules):
    """A sum that is too large wraps around to the lowest number."""

    def _merged(self, place: int, old: Any, new: Any, attempt: TransactionAttempt, key: Key) -> Any:
        data_type = self.spec.state.value_schema.field(place).type
        reducer = self.spec.reducers[self.spec.state.value_names[place]]
        if reducer.merge == "sum" and pa.types.is_integer(data_type) and None not in (old, new):
            size = 2**data_type.bit_width
            return (old + new + size // 2) % size - size // 2
        return super()._merged(place, old, new, attempt, key)


breaks("overflow-is-refused")(with_rules(Wrapping))


@breaks("overflow-is-refused")
class NoRestoreBeforeSums(MemoryBackend):
    def _restore(self, here: Transaction, txid: Txid, spec: TableSpec) -> None:
        rows = layout.rows_space(spec.state.table)
        for key, stored in list(here.scan(rows)):
            here.put(rows, key, (stored[0], stored[1], stored[2] - 1))


@breaks("values-come-back")
class Milliseconds(MemoryBackend):
    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        found = super().read(spec, keys, before=before)
        rows = [{name: self.rounded(value) for name, value in row.items()} for row in found.to_pylist()]
        return pa.Table.from_pylist(rows, schema=found.schema)

    def rounded(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(microsecond=value.microsecond // 1000 * 1000)
        return value


@breaks("keys-are-told-apart")
class Collating(TopologyStates):
    """Takes keys that differ only in case for the same key."""

    def commit(self, commit: Any, **options: Any) -> None:
        for spec in self.life.tables:
            name = spec.state.table
            deltas: pa.Table | None = commit.deltas.get(name)
            if deltas is not None and spec.state.key_names == ("k",) and pa.types.is_string(deltas["k"].type):
                folded = deltas.set_column(0, deltas.schema.field(0), pc.utf8_lower(deltas["k"]))
                rows: Mapping[str, Any] = {row["k"]: row for row in folded.to_pylist()}
                commit.deltas[name] = pa.Table.from_pylist(list(rows.values()), schema=deltas.schema)
        super().commit(commit, **options)


class _OtherKeys:
    """A transaction that changes the keys of rows."""

    def __init__(self, here: Transaction, other: Callable[[Key], Key]) -> None:
        self._here = here
        self._other = other
        self.scan = here.scan

    def _key(self, space: str, key: Key) -> Key:
        return self._other(key) if space.startswith("rows/") else key

    def get(self, space: str, key: Key) -> Any:
        return self._here.get(space, self._key(space, key))

    def put(self, space: str, key: Key, value: Any) -> None:
        self._here.put(space, self._key(space, key), value)


class OtherKeys(MemoryBackend):
    def other(self, key: Key) -> Key:
        raise NotImplementedError

    @contextlib.contextmanager
    def transaction(self, **options: Any) -> Iterator[Transaction]:
        with super().transaction(**options) as here:
            yield _OtherKeys(here, self.other)


@breaks("several-columns-are-one-row")
class JoinsItsKeys(OtherKeys):
    """A key of several texts becomes one text, with a separator between them."""

    def other(self, key: Key) -> Key:
        if not all(isinstance(part, str) for part in key):
            return key
        return ("/".join(key), *[""] * (len(key) - 1))


@breaks("keys-are-told-apart")
class ShortKeys(OtherKeys):
    """Only the beginning of a long key is kept."""

    def other(self, key: Key) -> Key:
        return tuple(part[:250] if isinstance(part, str) else part for part in key)


@breaks("types-that-cannot-be-are-refused")
class TakesAnyType(MemoryBackend):
    def join(self, life: TopologyLife, **options: Any) -> None:
        super().join(replace(life, tables=()), **options)
        with self.transaction(exclusive=["definitions"]) as here:
            for spec in life.tables:
                declared = spec.state.declaration(spec.semantics)
                layout.put_owner(here, Owner(spec.state.table, life.topology, life.uuid, declared))


@breaks("read-finds-what-is-there")
class NullsForWhatIsNot(MemoryBackend):
    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        found = super().read(spec, keys, before=before)
        if found.num_rows or not keys.num_rows:
            return found
        nulls = [pa.nulls(keys.num_rows, field.type) for field in spec.state.value_schema]
        return pa.Table.from_arrays([*keys.columns, *nulls], schema=found.schema)


@breaks("read-finds-what-is-there")
class TheFirstThousand(MemoryBackend):
    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        return super().read(spec, keys.slice(0, 1000), before=before)


@breaks("reading-does-not-wait")
class ReadersWait(MemoryBackend):
    def transaction(
        self, *, exclusive: Sequence[str] = (), shared: Sequence[str] = (), **options: Any
    ) -> Any:
        if not exclusive and not shared:
            return super().transaction(shared=["all"], timeout_seconds=0.2)
        return super().transaction(exclusive=[*exclusive, *shared, "all"], **options)


@breaks("reading-does-not-wait")
class DirtyReads(TopologyStates):
    """Readers see what is not committed."""

    def commit(self, commit: Any, **options: Any) -> None:
        reached = options.pop("reached")
        super().commit(commit, **options)
        reached("inside-commit")


@breaks("other-processes-see-it")
class SaysItIsThere(MemoryBackend):
    """Claims to work on executors, but another process that opens the URL gets another store."""

    on_executors: ClassVar[bool] = True


class FunctionsAreTrusted(RowRules):
    """A function's result is clipped to what the column can hold."""

    def _merged(self, place: int, old: Any, new: Any, attempt: TransactionAttempt, key: Key) -> Any:
        reducer = self.spec.reducers[self.spec.state.value_names[place]]
        merged = reducer.combine(old, new) if None not in (old, new) else None
        if reducer.merge == "custom" and isinstance(merged, int):
            return min(merged, 2**63 - 1)
        return super()._merged(place, old, new, attempt, key)


breaks("functions-are-tried-on-every-row")(with_rules(FunctionsAreTrusted))


class NoCaseInOrder(RowRules):
    """Texts are compared as by a collation that ignores case."""

    def _merged(self, place: int, old: Any, new: Any, attempt: TransactionAttempt, key: Key) -> Any:
        if self.spec.state.value_names[place] == "least" and isinstance(old, str) and isinstance(new, str):
            return min(old, new, key=str.lower)
        return super()._merged(place, old, new, attempt, key)


breaks("order-is-pythons")(with_rules(NoCaseInOrder))


@breaks("what-not-every-store-keeps-is-refused")
class KeepsAnything(MemoryBackend):
    def prepare(self, spec: TableSpec, deltas: pa.Table) -> pa.Table:
        return deltas
