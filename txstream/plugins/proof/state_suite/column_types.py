"""Promises about types: values come back as written, in order, and what cannot be kept is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from txstream.api.reducers import Last, Max, Min, Put
from txstream.core.errors import StateTableError, StateValueError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.promises import Promises, described
from txstream.plugins.proof.state_suite.life import Life
from txstream.plugins.proof.state_suite.trial import StateCheck, StateTrial, each

CHECKS = Promises(StateCheck)

# Pairs that some collation treats as equal, and some whose order in UTF-16 differs from that of their
# characters.
_TEXTS = [
    "", " ", "  ", "a", "A", "a ", "a  ", " a", "á", "a\u0301", "ß", "ss", "i", "I", "\u0131", "\u0130",
    "NULL", "null", "\\", "\\\\", '"', "'", "''", "{", "}", "{}", ",", "%s", ":x", "?", "\n", "\r\n", "\t",
    "\x01", "\u2028", "\ufeff", "\uffff", "\U0001f980", "\U0010ffff", "日本", "0", "00", "1e0",
]  # fmt: skip
_BYTES = [b"", b"\0", b"\0\0", b" ", b"a", b"A", b"a\0", b"\\x00", b"\\", b'"', b"\xff", bytes(range(256))]
_DOUBLES = [0.0, -1.5, 0.1, 0.30000000000000004, 5e-324, -1.5e300, 1.7976931348623157e308, 2.0**53]
_FLOATS = [0.0, -1.5, 0.10000000149011612, 1.401298464324817e-45, 3.4028234663852886e38]
_LONG: dict[str, list[Any]] = {"string": ["ä🦀" * 50_000], "binary": [_BYTES[-1] * 400]}
_TIMES = [
    datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 3, 29, 2, 30),
    datetime(2026, 3, 29, 1, 30, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
]  # fmt: skip


def _integers(bits: int) -> list[int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return [low, low + 1, -1, 0, 1, high - 1, high]


def scaled(number: int, scale: int) -> Decimal:
    """Return number / 10**scale. Built from digits, because arithmetic would round to 28 of them."""
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _decimals(precision: int, scale: int) -> list[Decimal]:
    largest = 10**precision - 1
    likely = {-largest, largest, -1, 0, 1, -9, 9, -10, 10, 99, largest // 7}
    return [scaled(number, scale) for number in likely if abs(number) <= largest]


_VALUES: dict[str, list[Any]] = {
    "string": _TEXTS,
    "binary": _BYTES,
    "boolean": [False, True],
    **{f"{kind}int": _integers(bits) for kind, bits in (("tiny", 8), ("small", 16), ("", 32), ("big", 64))},
    "float": _FLOATS,
    "double": _DOUBLES,
    **{f"decimal({p},{s})": _decimals(p, s) for p, s in ((1, 0), (10, 2), (38, 0), (38, 10), (38, 38))},
    "date": [date(1, 1, 1), date(999, 2, 3), date(1970, 1, 1), date(9999, 12, 31)],
    "timestamp": [time.replace(tzinfo=UTC) for time in _TIMES],
    "timestamp_ntz": _TIMES,
}
KINDS: dict[str, list[Any]] = {kind: sorted(values) for kind, values in _VALUES.items()}
"""Types, each with the values that are likely to go wrong, in ascending order."""


def _accepted(life: Life) -> bool:
    """Return whether a topology may join with its tables. Only StateTableError is accepted as a refusal."""
    trial = life.trial
    trial.ask("framework tables are ensured", life.store.ensure_framework_tables)
    found = trial.outcome("a topology joins", life.joining)
    if found is not None and not isinstance(found, StateTableError):
        trial.fail("no error, or StateTableError, when a topology joins", described(found))
    return found is None


def _lives(trial: StateTrial, **of_kind: Callable[[str], Any]) -> list[tuple[str, Life]]:
    """Return a topology for each type that the store accepts. Its table is declared from the type's name."""
    made = [(kind, {name: make(kind) for name, make in of_kind.items()}) for kind in KINDS]
    lives = [(kind, trial.stranger(**options)) for kind, options in made]
    return [(kind, life) for kind, life in lives if _accepted(life)]


@CHECKS.promise(
    "values-come-back",
    "Values of every accepted type are read back as they were written, the current ones and those before a "
    "batch; `join` refuses a type that the store cannot keep exactly.",
    "raise StateTableError in `join` for a type whose values would change",
)
def values_come_back(trial: StateTrial) -> None:
    for kind, life in _lives(trial, value=lambda kind: f"v {kind}", reducers=lambda _: {"v": Put()}):
        values = [*KINDS[kind], *_LONG.get(kind, [])]
        rows = {f"{number:03}": value for number, value in enumerate(values)}
        turned = dict(zip(rows, reversed(values), strict=True))
        life.commit(1, rows)
        life.holds(rows, f"of type {kind}")
        life.commit(2, turned)
        life.holds(turned, f"of type {kind} after another batch")
        trial.require(f"values of type {kind} before a batch", rows, life.values(2))
        life.commit(2, None)
        life.holds(rows, f"of type {kind} when it is undone")


@CHECKS.promise(
    "keys-are-told-apart",
    "Keys of every accepted type are found again, and no two are confused, even if they differ only in "
    "case, blanks or accents; a key that is too long is refused when it is written.",
    "compare keys byte by byte; raise StateValueError for a key that is too long, and never truncate it",
)
def keys_are_told_apart(trial: StateTrial) -> None:
    for kind, life in _lives(trial, key=lambda kind: f"k {kind}"):
        keys = {key: number for number, key in enumerate(KINDS[kind])}
        first = {key: number for key, number in keys.items() if number}
        life.commit(1, first)
        trial.require(f"keys of type {kind}, of which one was not written", first, life.read(list(keys)))
        life.commit(2, keys)
        life.holds({key: 2 * number for key, number in keys.items()}, f"of keys of type {kind}")
        trial.require(f"keys of type {kind} before a batch", first, life.values(2))
    ends: tuple[tuple[str, Any, Any], ...] = (("string", "x", "y"), ("binary", b"x", b"y"))
    for kind, begin, end in ends:
        for size in (100, 300, 1000, 5000):
            rows = {begin * size: 1, begin * (size - 1): 2, begin * (size - 1) + end: 3}
            _kept_or_refused(trial.life(key=f"k {kind}"), rows, f"keys of type {kind} and length {size}")


def _kept_or_refused(life: Life, rows: dict[Any, Any], what: str) -> None:
    found = life.trial.outcome(what, life.committing, life.next(1), rows)
    if found is None:
        life.holds(rows, f"of {what}")
    elif not isinstance(found, StateValueError):
        life.trial.fail(f"no error, or StateValueError, for {what}", described(found))


@CHECKS.promise(
    "order-is-pythons",
    "`Min` and `Max` order the values of every type as Python does, and `Last` takes the later batch's "
    "value.",
    "order text by its characters, binary by its bytes, and False before True",
)
def order_is_pythons(trial: StateTrial) -> None:
    for kind, life in _lives(
        trial,
        key=lambda _: "i int, j int",
        value=lambda kind: f"least {kind}, most {kind}, newest {kind}",
        reducers=lambda _: {"least": Min("x"), "most": Max("x"), "newest": Last("x", by="t")},
    ):
        values = KINDS[kind]
        pairs = list(itertools.product(range(len(values)), repeat=2))
        life.commit(1, {(i, j): (values[i],) * 3 for i, j in pairs})
        life.commit(2, {(i, j): (values[j],) * 3 for i, j in pairs})
        expected = {(i, j): (values[min(i, j)], values[max(i, j)], values[j]) for i, j in pairs}
        life.holds(expected, f"of type {kind}: the least, the greatest, the last")


_SUMS: tuple[tuple[str, Any, Any], ...] = (
    ("tinyint", 127, 1),
    ("smallint", -(2**15), -1),
    ("int", 2**31 - 1, 1),
    ("bigint", 2**63 - 1, 1),
    ("bigint", -(2**63), -1),
    ("decimal(10,2)", Decimal("99999999.99"), Decimal("0.01")),
    ("decimal(38,38)", Decimal("-0." + "9" * 38), Decimal("-1E-38")),
    ("decimal(38,0)", Decimal("9" * 38), Decimal(1)),
    ("double", 1.7e308, 1.7e308),
    ("float", -(1.5 * 2.0**127), -(2.0**127)),
)


@CHECKS.promise(
    "overflow-is-refused",
    "A sum is computed from the value before the batch, and is refused if its column cannot hold it.",
    "raise StateValueError; never wrap, clip or widen",
)
@each(*Semantics)
def overflow_is_refused(life: Life) -> None:
    for kind, largest, delta in _SUMS:
        summed = life.trial.stranger(life.semantics, value=f"n {kind}")
        if _accepted(summed):
            nothing = largest - largest
            summed.commit(1, {"a": delta, "b": largest, "c": delta})
            too_much = {"a": nothing, "b": delta, "c": nothing}
            committing = summed.committing, summed.next(2), too_much
            summed.refuses(f"a sum does not fit {kind}", StateValueError, *committing)
    if life.semantics is Semantics.OPAQUE:
        life.commit(1, {"a": 2**63 - 2})
        for _ in range(2):
            life.commit(2, {"a": 1})
        life.holds({"a": 2**63 - 1}, "after a replay that fits")


_LATE = {
    "date": pa.array([10_000_000], pa.date32()),
    "timestamp": pa.array([10**18], pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.array([10**18], pa.timestamp("us")),
}
_NOT_KEPT: tuple[tuple[str, pa.Array], ...] = (
    ("string", pa.array(["a\0b"])),
    ("double", pa.array([math.nan])),
    ("float", pa.array([math.nan], pa.float32())),
    *_LATE.items(),
)


@CHECKS.promise(
    "what-not-every-store-keeps-is-refused",
    "NUL in text, NaN and a year after 9999 are refused, even in keys that are looked up, and so is "
    "infinity in a sum; infinity elsewhere is kept or refused.",
    "`txstream.state.values.prepare` does this: raise StateValueError and write nothing",
)
def what_not_every_store_keeps_is_refused(trial: StateTrial) -> None:
    refused = StateValueError
    for kind, bad in _NOT_KEPT:
        keyed = trial.life(key=f"k {kind}")
        rows = pa.table({"k": bad, "n": [1]})
        keyed.refuses(f"a key of type {kind} has {bad}", refused, keyed.committing, keyed.next(1), rows)
        asking = trial.store.read, keyed.spec, rows.select(["k"])
        trial.refused(f"a key of type {kind} is looked up: {bad}", refused, *asking, before=1)
        reducers = {"least": Min("x"), "most": Max("x"), "newest": Last("x", by="t"), "n": Put()}
        valued = trial.life(value=", ".join(f"{name} {kind}" for name in reducers), reducers=reducers)
        for name in reducers:
            rows = pa.table(
                {"word": ["b"], **{n: bad if n == name else pa.nulls(1, bad.type) for n in reducers}}
            )
            valued.refuses(
                f"a value of type {kind} is {bad}", refused, valued.committing, valued.next(1), rows
            )
    for kind, infinite in itertools.product(("float", "double"), (math.inf, -math.inf)):
        for bad in (math.nan, infinite):
            summed = trial.life(value=f"n {kind}")
            summed.commit(1, {"a": 1.0})
            summed.refuses(f"a sum gets {bad}", refused, summed.committing, summed.next(2), {"a": bad})
        _kept_or_refused(trial.life(key=f"k {kind}"), {infinite: 1}, f"infinity as a key of type {kind}")
        valued = trial.life(value=f"n {kind}", reducers={"n": Max("n")})
        _kept_or_refused(valued, {"a": infinite}, f"infinity as a value of type {kind}")


_NO_COLUMN = (
    pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.uint64(),
    pa.duration("us"), pa.time64("us"), pa.timestamp("ns"), pa.timestamp("ms"),
    pa.timestamp("us", "Europe/Berlin"), pa.large_string(), pa.large_binary(), pa.decimal128(10, -2),
)  # fmt: skip


@CHECKS.promise(
    "types-that-cannot-be-are-refused",
    "`join` refuses a column of a type that no store can keep, such as an array.",
    "raise StateTableError in `join`, and create nothing",
)
def types_that_cannot_be_are_refused(trial: StateTrial) -> None:
    trial.life()  # so that the store is ready
    for kind in _NO_COLUMN:
        column = pa.schema([("x", kind)])
        for what, options in (
            ("key", {"key": column}),
            ("value", {"value": column, "reducers": {"x": Put()}}),
        ):
            life = trial.stranger(**options)
            trial.refused(f"a {what} column is {kind}", StateTableError, life.joining)
            life.is_unknown("after a refused join")
