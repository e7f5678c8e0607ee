"""Compares state tables of any declaration and history with folds written without Arrow and SQL.

An example is one table, with key columns and reducers of any types, and a few batches of tuples. Each batch
has attempts that commit, crash, are lost on the way or come too late. The tuples of an attempt are spread
over tasks and chunks and folded as executors and driver fold them. The result is committed by the driver or
written in shares. Then the table must hold exactly what the tuples of the committed attempts give, and a
batch that does not fit must have left nothing.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from support.folds import prepared, to_batch
from support.kinds import KINDS, Kind
from support.states import Rig
from txstream.api.reducers import Count, Last, Max, Min, Reducer, Sum, custom
from txstream.api.state import SqlState
from txstream.api.tuples import Chunk
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import StaleAttemptError, StateValueError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.state import StateBackend, TableSpec
from txstream.state.folding import new_fold

Key = tuple[Any, ...]
Values = list[Any]
Row = tuple[Key, Values, int | None]
"""A tuple: its key, the field of each value column, and its time."""

NAMES = ("order", "Key", "kEY2", "größe", "日本", "a b", "it's", 'q"q', "x.y", ".dot", "%p", "a\\b", "offset")
ORDER = "happened at"
# Not every server keeps decimal(38,38).
_KINDS = [kind for kind in KINDS if kind.ddl not in ("decimal(38,38)",)]
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "decimal(10,2)", "decimal(38,10)")
_FATES = ("commit", "shares", "crash", "begun", "lost", "zombie")


class DoesNotFitError(Exception):
    """A batch would put a value into a row that its table cannot hold."""


class _CrashError(Exception):
    pass


@dataclass(frozen=True)
class Column:
    """A value column, and the fold of its field in Python."""

    name: str
    kind: Kind
    reducer: Reducer
    fold: Callable[[Sequence[tuple[Any, int | None]]], Any]
    merge: Callable[[Any, Any], Any]
    is_sum: bool = False

    @property
    def field(self) -> str:
        return f"given {self.name}"

    def delta(self, given: Sequence[tuple[Any, int | None]]) -> Any:
        """Return the delta of the values of a key's tuples, each given with its time."""
        return self._fitting(self.fold([pair for pair in given if pair[0] is not None]))

    def merged(self, stored: Any, delta: Any) -> Any:
        """Merge a stored value and a delta; if one is null, return the other."""
        if stored is None or delta is None:
            return delta if stored is None else stored
        return self._fitting(self.merge(stored, delta))

    def _fitting(self, value: Any) -> Any:
        if not self.is_sum or value is None:
            return value
        data_type = self.kind.arrow
        if pa.types.is_decimal(data_type):
            if abs(value) >= 10**data_type.precision:
                raise DoesNotFitError(self.name)
        elif not -(1 << (data_type.bit_width - 1)) <= value < 1 << (data_type.bit_width - 1):
            raise DoesNotFitError(self.name)
        return value

    def draw(self, random: Random) -> Any:
        """Return a value of the field. For a sum, decimals are whole numbers of their smallest unit."""
        if random.random() < 0.2:
            return None
        if not self.is_sum:
            return random.choice([edge for edge in self.kind.edges if _is_finite(edge)])
        data_type = self.kind.arrow
        largest = (
            10**data_type.precision - 1
            if pa.types.is_decimal(data_type)
            else (1 << (data_type.bit_width - 1)) - 1
        )
        return random.choice([random.randint(-9, 9), random.randint(-9, 9), largest, -largest])

    def typed(self, value: Any) -> Any:
        """Return the value as Arrow has it."""
        if value is None or not (self.is_sum and pa.types.is_decimal(self.kind.arrow)):
            return value
        digits = tuple(map(int, str(abs(value))))
        return Decimal((int(value < 0), digits, -self.kind.arrow.scale))


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _values(fold: Callable[[list[Any]], Any]) -> Callable[[Sequence[tuple[Any, int | None]]], Any]:
    return lambda given: fold([value for value, _ in given])


def _some(choose: Callable[[list[Any]], Any]) -> Callable[[Sequence[tuple[Any, int | None]]], Any]:
    return _values(lambda values: choose(values) if values else None)


def _last(given: Sequence[tuple[Any, int | None]]) -> Any:
    return max(given, key=lambda pair: (pair[1] is not None, pair[1] or 0, pair[0]))[0] if given else None


def _longest(left: str, right: str) -> str:
    return max(left, right, key=lambda text: (len(text), text))


def _column(random: Random, name: str) -> Column:
    kinds = {kind.ddl: kind for kind in _KINDS}
    field, kind = f"given {name}", random.choice(_KINDS)
    match random.choice(["count", "sum", "sum", "min", "max", "last", "longest", "odd"]):
        case "count":
            return Column(name, kinds["bigint"], Count(field), _values(len), operator.add)
        case "sum":
            kind = kinds[random.choice(_NUMBERS)]
            return Column(name, kind, Sum(field), _values(sum), operator.add, is_sum=True)
        case "min":
            return Column(name, kind, Min(field), _some(min), min)
        case "max":
            return Column(name, kind, Max(field), _some(max), max)
        case "last":
            return Column(name, kind, Last(field, by=ORDER), _last, lambda _, new: new)
        case "longest":
            longest = custom(_longest, None, field=field)
            choose = _some(lambda texts: max(texts, key=lambda text: (len(text), text)))
            return Column(name, kinds["string"], longest, choose, _longest)
        case _:
            odd = custom(operator.xor, False, field=field)
            return Column(
                name, kinds["boolean"], odd, _values(lambda flags: sum(flags) % 2 == 1), operator.xor
            )


class Example:
    """One table and its history, the same in every store."""

    def __init__(self, random: Random, name: str) -> None:
        self.random = random
        self.semantics = random.choice([Semantics.OPAQUE, *Semantics])
        names = random.sample(NAMES, 7)
        self.kinds = [random.choice(_KINDS) for _ in range(random.choice([1, 1, 2, 3]))]
        self.columns = [_column(random, names[3 + place]) for place in range(random.randint(1, 4))]
        self.keys = list(
            dict.fromkeys(
                tuple(random.choice([edge for edge in kind.edges if _is_finite(edge)]) for kind in self.kinds)
                for _ in range(6)
            )
        )
        keys = [pa.field(names[place], kind.arrow) for place, kind in enumerate(self.kinds)]
        values = [pa.field(column.name, column.kind.arrow) for column in self.columns]
        state = SqlState(name, key=pa.schema(keys), value=pa.schema(values))
        self.bolt = SqlStateBolt(state, **{column.name: column.reducer for column in self.columns})
        fields = [pa.field(column.field, column.kind.arrow) for column in self.columns]
        self.schema = pa.schema([*keys, *fields, pa.field(ORDER, pa.int32())])
        prepared(self.bolt, self.schema)
        self.spec = TableSpec(state, self.semantics, self.bolt.reducers)

    def tuples(self) -> list[Row]:
        random = self.random
        return [
            (
                random.choice(self.keys),
                [column.draw(random) for column in self.columns],
                random.choice([None, -1, 0, 1]),
            )
            for _ in range(random.choice([0, 1, 4, 12]))
        ]

    def deltas(self, tuples: Sequence[Row]) -> pa.Table:
        """Fold tuples as tasks and driver do. Raises StateValueError."""
        random, merged = self.random, new_fold(self.bolt)
        tasks: list[list[Row]] = [[], [], []]
        for row in tuples:
            random.choice(tasks).append(row)
        for rows in tasks:
            bolt = copy.copy(self.bolt)
            bolt.fold = new_fold(bolt)
            while rows:
                size = random.randint(1, 4)
                chunk = [self._typed(row) for row in rows[:size]]
                bolt.execute_chunk(Chunk(to_batch(chunk, self.schema), "lines"))
                del rows[:size]
            merged.add_partial(bolt.deltas())
        return merged.finish()

    def _typed(self, row: Row) -> tuple[Any, ...]:
        key, values, at = row
        typed = [column.typed(value) for column, value in zip(self.columns, values, strict=True)]
        return (*key, *typed, at)

    def after(self, before: Mapping[Key, Values], tuples: Sequence[Row]) -> dict[Key, Values]:
        """Return what the table holds once a batch is added. Raises DoesNotFitError."""
        now = dict(before)
        for key in dict.fromkeys(row[0] for row in tuples):
            rows = [(values, at) for found, values, at in tuples if found == key]
            deltas = [
                column.delta([(values[place], at) for values, at in rows])
                for place, column in enumerate(self.columns)
            ]
            is_opaque = self.semantics is Semantics.OPAQUE
            if is_opaque and all(delta is None for delta in deltas):
                continue
            stored = before.get(key) or [None] * len(deltas)
            now[key] = [
                column.merged(old, new) for column, old, new in zip(self.columns, stored, deltas, strict=True)
            ]
            if is_opaque and None in now[key]:
                raise DoesNotFitError("a row of an opaque table has a null")
        return now


def play(random: Random, name: str, stores: Mapping[str, StateBackend]) -> None:
    """Play one example in every store; `stores` are by URL."""
    example = Example(random, name)
    rigs = [Rig(store, url, example.spec, topology=name).join() for url, store in stores.items()]
    held: dict[Key, Values] = {}
    for txid in range(1, random.randint(3, 5)):
        fates = [*random.choices(_FATES, k=random.choice([0, 1, 2])), random.choice(["commit", "shares"])]
        if example.semantics is Semantics.NON_TRANSACTIONAL:
            fates = fates[-1:]
        tuples, after = example.tuples(), None
        for fate in fates:
            if example.semantics is Semantics.OPAQUE:
                tuples = example.tuples()
            after = _attempt(example, rigs, txid, held, tuples, fate)
            if after is None and example.semantics is not Semantics.OPAQUE:
                break  # later attempts hold the same and would be refused too
        if after is None:  # a user filtered all of it out
            after = _attempt(example, rigs, txid, held, [], "commit")
            assert after is not None
        held = after


def _attempt(
    example: Example,
    rigs: Sequence[Rig],
    txid: int,
    held: dict[Key, Values],
    tuples: Sequence[Row],
    fate: str,
) -> dict[Key, Values] | None:
    """Play one attempt in every store; return what the table then holds, None if the batch does not fit."""
    try:
        after: dict[Key, Values] | None = example.after(held, tuples)
    except DoesNotFitError:
        after = None
    try:
        deltas = example.deltas(tuples)
    except StateValueError:
        assert after is None, "the fold refused what fits"
        return None
    for rig in rigs:
        if after is None:
            by_shares = fate == "shares" and example.semantics is Semantics.OPAQUE
            try:
                _FATE["shares" if by_shares else "commit"](rig, txid, deltas)
            except StateValueError:
                _check(example, rig, txid, held)
                continue
            raise AssertionError(f"{rig.url} took what does not fit")
        under = _FATE[fate](rig, txid, deltas)
        _check(example, rig, txid, held, only=example.semantics is Semantics.OPAQUE)
        if fate in ("commit", "shares"):
            _check(example, rig, txid + 1, after)
            last = rig.last()
            assert (last.txid, last.attempt, last.status) == (txid, under.attempt, "committed")
    return after


def _check(
    example: Example, rig: Rig, before: int, expected: Mapping[Key, Values], *, only: bool = True
) -> None:
    if not only:
        return
    state = example.spec.state
    columns = [pa.array([key[at] for key in example.keys], f.type) for at, f in enumerate(state.key_schema)]
    asked = pa.Table.from_arrays(columns, schema=state.key_schema)
    found = rig.database.read(example.spec, asked, before=Txid(before))
    width = len(state.key_names)
    rows = [tuple(row.values()) for row in found.to_pylist()]
    wanted = {
        key: tuple(column.typed(value) for column, value in zip(example.columns, values, strict=True))
        for key, values in expected.items()
    }
    assert {row[:width]: row[width:] for row in rows} == wanted, (rig.url, before)
    assert len(rows) == len(wanted)


# --- fates -------------------------------------------------------------------------------------------------


def _commit(rig: Rig, txid: int, deltas: pa.Table) -> TransactionAttempt:
    return rig.commit(txid, deltas)


def _crash(rig: Rig, txid: int, deltas: pa.Table) -> TransactionAttempt:
    def die(_point: str) -> None:
        raise _CrashError

    under = rig.next(txid)
    try:
        rig.commit(txid, deltas, under=under, reached=die)
    except _CrashError:
        return under
    raise AssertionError("the commit did not get to the point inside of it")


def _zombie(rig: Rig, txid: int, deltas: pa.Table) -> TransactionAttempt:
    under = rig.next(txid)
    rig.states.raise_fence(rig.next(txid).attempt)
    try:
        rig.commit(txid, deltas, under=under)
    except StaleAttemptError:
        return under
    raise AssertionError("the fence let an older attempt through")


def _begun(rig: Rig, txid: int, deltas: pa.Table) -> TransactionAttempt:
    return rig.begin(txid)


def _lost(rig: Rig, txid: int, deltas: pa.Table) -> TransactionAttempt:
    """Write the first half of the rows; then the driver dies."""
    under = rig.begin(txid)
    rig.write(under, deltas.slice(0, deltas.num_rows // 2))
    return under


def _shares(rig: Rig, txid: int, deltas: pa.Table) -> TransactionAttempt:
    """Write the second half first, and once more at the end where that must not count."""
    under, half = rig.begin(txid), deltas.num_rows // 2
    shares = [deltas.slice(half), deltas.slice(0, half)]
    if rig.spec.semantics is not Semantics.NON_TRANSACTIONAL:
        shares.append(deltas.slice(half))
    for share in shares:
        rig.write(under, share)
    rig.end(under)
    return under


_FATE: Mapping[str, Callable[[Rig, int, pa.Table], TransactionAttempt]] = {
    "commit": _commit,
    "shares": _shares,
    "crash": _crash,
    "begun": _begun,
    "lost": _lost,
    "zombie": _zombie,
}
