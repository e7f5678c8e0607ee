"""Checks of values: the rules of exactly-once per key, and what comes back of what was written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from txstream.api.errors import StateTableError, StateValueError
from txstream.api.reducers import Count, Max, Min, Put, Reducer, Sum
from txstream.semantics import OpaqueValue, Semantics, TransactionalValue
from txstream.testing.spout_harness import NotApplicableError
from txstream.testing.state_life import Life
from txstream.testing.state_trial import FENCED, StateTrial, promise, tell
from txstream.transaction import Txid

LARGEST = 2**63 - 1

Step = tuple[int, int | None]
"""A batch: its txid, and its delta of the one key; None when the key is not in it."""

_HISTORIES: tuple[Sequence[Step], ...] = (
    ((1, 5),),
    ((1, 1), (2, 3), (3, 2)),
    ((1, 1), (2, 3), (2, 2)),
    ((1, 5), (1, 7)),
    ((1, 5), (1, None), (1, 2)),
    ((1, 5), (2, 3), (2, None), (3, 1)),
    ((1, 5), (4, 2), (4, -2), (5, -5), (6, 1)),
    ((1, 1), (2, 1), (2, 10), (2, 100), (2, None)),
)
_REDUCERS: tuple[Reducer, ...] = (Sum("n"), Min("n"), Max("n"), Put())


def _combine(reducer: Reducer, stored: int, delta: int) -> int:
    match reducer.merge:
        case "sum":
            return stored + delta
        case "min":
            return min(stored, delta)
        case "max":
            return max(stored, delta)
        case _:
            return delta


@promise(
    "opaque-rules",
    "An opaque row follows `txstream.semantics.OpaqueValue`: a newer batch adds to the value, the same batch "
    "starts again from the value before it.",
    "keep value, prev and txid for each key; prev is null exactly where this txid created the row",
)
def opaque_rules(trial: StateTrial) -> None:
    for reducer in _REDUCERS:
        # A sum tells the most of what may go wrong; the others differ in how they merge alone.
        for steps in _HISTORIES if reducer.merge == "sum" else _HISTORIES[1::4]:
            life, stored = trial.life(reducers={"n": reducer}), None
            life.keys["k"] = None
            for number, delta in steps:
                txid = Txid(number)
                life.commit(txid, None if delta is None else {"k": delta})
                stored = None if stored is None else stored.restore(txid)
                if delta is not None:
                    stored = (
                        OpaqueValue.create(delta, txid)
                        if stored is None
                        else stored.update(delta, txid, lambda a, b, r=reducer: _combine(r, a, b))  # type: ignore[misc]
                    )
                how = f"of {reducer} after {list(steps)!r} up to txid {txid}"
                now = {} if stored is None else {"k": stored.value}
                trial.require(f"the values {how}", now, life.values())
                before = {} if stored is None else {"k": stored.value}
                if stored is not None and stored.txid == txid:
                    before = {} if stored.prev is None else {"k": stored.prev}
                trial.require(f"the values before it {how}", before, life.values(txid))


@promise(
    "transactional-rules",
    "A transactional row follows `txstream.semantics.TransactionalValue`: a newer batch adds to the value, "
    "the same batch is skipped.",
    "keep value and txid for each key",
)
def transactional_rules(trial: StateTrial) -> None:
    for reducer in _REDUCERS:
        life, stored = trial.life(Semantics.TRANSACTIONAL, reducers={"n": reducer}), None
        for number, delta in ((1, 5), (2, 3), (2, 3), (3, 4), (7, -1), (7, -1)):
            txid = Txid(number)
            life.commit(txid, {"k": delta})
            stored = (
                TransactionalValue.create(delta, txid)
                if stored is None
                else stored.update(delta, txid, lambda a, b, r=reducer: _combine(r, a, b))  # type: ignore[misc]
            )
            trial.require(f"the values of {reducer} after txid {txid}", {"k": stored.value}, life.values())
            trial.require("the values as `read` gives them before it", {"k": stored.value}, life.values(txid))


_MARKS = (
    "",
    " ",
    ",",
    ";",
    ":",
    "::",
    "|",
    "/",
    "-",
    "_",
    ".",
    "#",
    "\t",
    "\n",
    "\x01",
    "\x1f",
    "', '",
    '","',
)


@promise(
    "several-columns-are-one-row",
    "Several key columns are one key; several value columns are merged each by its reducer, and undone "
    "together.",
    "all prevs are set when the row's txid changes, also of a value that stays the same",
)
def several_columns_are_one_row(trial: StateTrial) -> None:
    life = trial.life(
        key="word string, day bigint",
        value="n bigint, least bigint, most bigint",
        reducers={"n": Count(), "least": Min("x"), "most": Max("x")},
    )
    life.commit(1, {("a", 1): (3, 5, 5), ("a", 2): (1, 1, 1)})
    life.commit(2, {("a", 1): (1, 9, 4)})  # neither the minimum nor the maximum changes
    trial.require("the values", {("a", 1): (4, 5, 5), ("a", 2): (1, 1, 1)}, life.values())
    life.commit(2, {("a", 1): (2, 4, 9), ("b", 1): (1, 0, 0)})
    expected = {("a", 1): (5, 4, 9), ("a", 2): (1, 1, 1), ("b", 1): (1, 0, 0)}
    trial.require("the values after a replay", expected, life.values())
    life.commit(2, None)
    trial.require("the values when it is undone", {("a", 1): (3, 5, 5), ("a", 2): (1, 1, 1)}, life.values())
    # Whatever a store puts between the columns of a key, text may have it.
    alike = trial.life(key="a string, b string")
    pairs = [key for mark in _MARKS for key in ((f"a{mark}b", "c"), ("a", f"b{mark}c"))]
    rows = {key: number for number, key in enumerate([*pairs, ("", "x"), ("x", "")])}
    alike.commit(1, rows)
    trial.require("the values of keys whose columns, side by side, look the same", rows, alike.values())


@promise(
    "nulls-change-nothing",
    "A null delta leaves the value as it is, and begins a value where the other side has one; an opaque row "
    "cannot begin with nulls in one column alone; a key of nothing but nulls is no row.",
    "null is the identity of every reducer",
)
def nulls_change_nothing(trial: StateTrial) -> None:
    options: dict[str, Any] = {
        "value": "n bigint, least bigint",
        "reducers": {"n": Sum("n"), "least": Min("x")},
    }
    life = trial.life(**options)
    life.commit(1, {"a": (1, 5), "b": (1, 5)})
    life.commit(2, {"a": (1, None), "b": (None, None), "c": (None, None)})
    trial.require("the values of an opaque table", {"a": (2, 5), "b": (1, 5)}, life.values())
    life.commit(2, {"a": (None, 3)})
    trial.require("the values after a replay", {"a": (1, 3), "b": (1, 5)}, life.values())
    with life.unchanged("a row that cannot begin"):
        trial.refused(
            "a new row of an opaque table has a null in one column",
            StateValueError,
            lambda: life.committing(life.next(3), {"d": (3, None)}),
        )
    life.keys.pop("d")
    plain = trial.life(Semantics.TRANSACTIONAL, **options)
    plain.commit(1, {"a": (3, None)})
    plain.commit(2, {"a": (1, 5)})
    plain.commit(3, {"a": (1, None)})
    trial.require("the values of a transactional table", {"a": (5, 5)}, plain.values())


@promise(
    "keys-come-once-and-whole",
    "A null in a key and two deltas of one key in one batch are refused.",
    "raise StateValueError: one of the two would be lost",
)
def keys_come_once_and_whole(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    twice = pa.concat_tables([life.table_of({"b": 1, "a": 1}), life.table_of({"b": 2})])
    name = life.spec.state.table
    with life.unchanged("a batch with a bad key"):
        trial.refused(
            "two deltas of one key come in one batch",
            StateValueError,
            lambda: life.committing(life.next(2), None, more={name: twice}),
        )
        trial.refused(
            "a key is null", StateValueError, lambda: life.committing(life.next(2), {"b": 1, None: 1})
        )
        life.keys.pop(None, None)


@promise(
    "overflow-is-refused",
    "A sum that its column cannot hold is refused, and measured from the value before the batch.",
    "raise StateValueError; never wrap, clip or widen",
)
def overflow_is_refused(trial: StateTrial) -> None:
    for kind, largest in (("bigint", LARGEST), ("int", 2**31 - 1), ("tinyint", 127)):
        for semantics in Semantics:
            life = trial.life(semantics, value=f"n {kind}")
            life.commit(1, {"a": 1, "b": largest})
            with life.unchanged(f"a sum beyond {kind}"):
                trial.refused(
                    f"a sum does not fit {kind}",
                    StateValueError,
                    partial(life.committing, life.next(2), {"a": 1, "b": 1}),
                )
    life = trial.life()
    life.commit(1, {"a": LARGEST - 1})
    life.commit(2, {"a": 1})
    life.commit(2, {"a": 1})
    trial.require("the values after a replay that fits", {"a": LARGEST}, life.values())


_TYPES: tuple[tuple[str, list[Any]], ...] = (
    ("string", ["", " ", "a", "a ", "A", "á", "a\u0301", "NULL", '"', "\\", "'", "🦀", "a\nb\t", "%s"]),
    ("binary", [b"", b"\0", b"\0\0", b"a", bytes(range(256))]),
    ("boolean", [False, True]),
    ("tinyint", [-128, 0, 127]),
    ("smallint", [-(2**15), 2**15 - 1]),
    ("int", [-(2**31), 2**31 - 1]),
    ("bigint", [-(2**63), -1, 0, 2**53 + 1, LARGEST]),
    ("decimal(38,10)", [Decimal("-9999999999999999999999999999.0000000001"), Decimal("0.1000000000")]),
    ("date", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (
        "timestamp",
        [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, 1, UTC)],
    ),
    ("timestamp_ntz", [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    ("double", [-1.5e300, 0.1, 5e-324, 1.7976931348623157e308]),
    ("float", [-3.4028234663852886e38, 0.5]),
)  # fmt: skip


@promise(
    "values-come-back",
    "Keys and values of every type that the store accepts come back as they were written; a type that it "
    "cannot keep exactly is refused when the topology joins, a key that is too long when it is written.",
    "raise StateTableError in `join` for a type that would be changed, and StateValueError for a long key",
)
def values_come_back(trial: StateTrial) -> None:
    trial.life()  # so that the store is ready
    for kind, values in _TYPES:
        valued = trial.stranger(value=f"v {kind}", reducers={"v": Put()})
        if _accepted(trial, valued):
            rows = {f"{number:03}": value for number, value in enumerate(values)}
            valued.commit(1, rows)
            trial.require(f"values of type {kind}", rows, valued.values())
            valued.commit(2, dict.fromkeys(rows, values[0]))
            trial.require(f"values of type {kind} before a batch", rows, valued.values(2))
            valued.commit(2, None)
            trial.require(f"values of type {kind} when it is undone", rows, valued.values())
        keyed = trial.stranger(key=f"k {kind}, l string")
        if _accepted(trial, keyed):
            keys = {(value, "x"): number for number, value in enumerate(values)}
            for txid in (1, 2):
                keyed.commit(txid, keys)
            expected = {key: 2 * number for key, number in keys.items()}
            trial.require(f"keys of type {kind}", expected, keyed.values())
    long_keys: tuple[tuple[str, Any, Any], ...] = (("string", "x", "y"), ("binary", b"x", b"y"))
    for kind, begin, end in long_keys:
        for size in (100, 1000, 5000):
            keyed = trial.life(key=f"k {kind}")
            rows = {begin * size: 1, begin * (size - 1): 2, begin * (size - 1) + end: 3}
            what = f"the answer to keys of type {kind} and length {size}"
            found = trial.outcome(what, partial(keyed.committing, keyed.next(1), rows))
            if found is None:
                trial.require(f"{what}, of which only the end differs", rows, keyed.values())
            elif not isinstance(found, StateValueError):
                trial.fail(f"none, or StateValueError: {what}", tell(found))


def _accepted(trial: StateTrial, life: Life) -> bool:
    found = trial.outcome("a topology joins", life.joining)
    if found is not None and not isinstance(found, StateTableError):
        trial.fail("no error or StateTableError when a topology joins", f"{found!r:.300}")
    return found is None


@promise(
    "types-that-cannot-be-are-refused",
    "A column of a type that no store can keep, as an array, is refused when the topology joins.",
    "raise StateTableError in `join`, with nothing made",
)
def types_that_cannot_be_are_refused(trial: StateTrial) -> None:
    trial.life()
    for kind in ("array<bigint>", "struct<a: bigint>"):
        life = trial.stranger(value=f"v {kind}", reducers={"v": Put()})
        trial.refused(f"a value column is {kind}", StateTableError, life.joining)
        found = trial.ask("a fence is read", trial.store.read_fence, life.topology)
        trial.require("the fence after a refused join", None, found)


@promise(
    "read-finds-what-is-there",
    "`read` gives key and value columns of the keys that exist, each once, as declared, and an empty table "
    "for none.",
    "leave out keys without a row; keep columns and types for an empty answer too",
)
def read_finds_what_is_there(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        trial.require("an empty table", {}, life.read(["a"]))
        life.commit(1, {f"k{n}": n for n in range(3000)})
        asked = [f"k{n}" for n in range(0, 6000, 2)]
        trial.require("the keys found", {f"k{n}": n for n in range(0, 3000, 2)}, life.read(asked))
        trial.require("the answer to no keys", {}, life.read([]))


@promise(
    "reading-does-not-wait",
    "`read`, and what is asked of fence and ledger, answer while a commit is open, with what was committed "
    "before it.",
    "readers take no lock that a writer holds until its end",
)
def reading_does_not_wait(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    other = life.at(trial.open())
    before = other.everything()
    seen = []

    def look(_point: str) -> None:
        beside = trial.beside(lambda: other.store.read_fence(life.topology))
        if not beside.ended(trial.terms.deadline_seconds / 2):
            trial.fail("an answer of another opening while a commit is open", "none")
        seen.append(other.everything())

    life.commit(2, {"a": 5}, reached=look)
    trial.require("what was read while a commit was open", [before], seen)


_ELSEWHERE = """
import sys
from txstream.semantics import Semantics
from txstream.state import open_database
from txstream.testing.state_life import by_key, keys_table, table
from txstream.transaction import Txid
url, name, expected = sys.argv[1:]
store = open_database(url)
spec = table(name)
print(by_key(spec, store.read(spec, keys_table(spec, ["a"]), before=Txid(2**62))) == {"a": int(expected)})
store.close()
"""


@promise(
    "other-processes-see-it",
    "A store with `on_executors` is opened by another process by its URL, and has there what was committed "
    "here.",
    "executors do not know what was registered in this process: declare the entry point of the package "
    "(`txstream.state_backends`), or set on_executors = False",
)
def other_processes_see_it(trial: StateTrial) -> None:
    url = trial.terms.url
    if not trial.store.on_executors:
        raise NotApplicableError("other processes cannot open the store (on_executors is False)")
    if url is None:
        raise NotApplicableError("the store was given as a function; give its URL to try other processes")
    life = trial.life()
    life.commit(1, {"a": 41})
    life.commit(2, {"a": 1})
    command = [sys.executable, "-c", _ELSEWHERE, url, life.spec.state.table, "42"]
    seconds = trial.terms.deadline_seconds
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode != 0 or done.stdout.strip() != "True":
        told = (done.stderr.strip().splitlines() or ["the values differ"])[-1]
        trial.fail("the committed values in another process", told[:300])


CHECKS = (
    opaque_rules,
    transactional_rules,
    several_columns_are_one_row,
    nulls_change_nothing,
    keys_come_once_and_whole,
    overflow_is_refused,
    values_come_back,
    types_that_cannot_be_are_refused,
    read_finds_what_is_there,
    reading_does_not_wait,
    other_processes_see_it,
)
