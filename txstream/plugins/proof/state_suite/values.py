"""Promises about values: the exactly-once rules per key, what is refused, and what readers see."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from txstream.api.reducers import Count, Last, Max, Min, Put, Reducer, Sum, custom
from txstream.core.errors import StateTableError, StateValueError
from txstream.core.semantics import OpaqueValue, Semantics, TransactionalValue
from txstream.core.transaction import Txid
from txstream.plugins.proof.promises import NotApplicableError, Promises
from txstream.plugins.proof.state_suite.life import Life
from txstream.plugins.proof.state_suite.trial import FENCED, StateCheck, StateTrial, each

CHECKS = Promises(StateCheck)

Step = tuple[int, int | None]
"""A batch: its txid, and its delta of the one key; None when the key is not in it."""

_HISTORIES: tuple[Sequence[Step], ...] = (
    ((1, 5),),
    ((1, 1), (2, 3), (3, 2)),
    ((1, 1), (2, 3), (2, 2)),
    ((1, 5), (1, 7)),
    ((1, 5), (1, None), (1, 2)),
    ((1, 5), (2, 3), (2, None), (3, 1)),
    ((1, 5), (2, None), (3, None), (4, 2), (4, -2), (5, -3), (6, 1)),
    ((1, 1), (2, 1), (2, 10), (2, 100), (2, None)),
)
_REDUCERS: tuple[Reducer, ...] = (
    Sum("n"),
    Min("n"),
    Max("n"),
    Put(),
    Last("n", by="t"),
    custom(operator.mul, 1),
)


@CHECKS.promise(
    "opaque-rules",
    "An opaque row follows `txstream.core.semantics.OpaqueValue`: a newer batch adds to the value, and the "
    "same batch starts again from the value before it.",
    "keep value, prev and txid for each key; prev is null exactly where this txid created the row",
)
def opaque_rules(trial: StateTrial) -> None:
    for reducer in _REDUCERS:
        # A sum shows most of what may go wrong. The other reducers differ only in how they merge.
        for steps in _HISTORIES if reducer.merge == "sum" else _HISTORIES[1::4]:
            life, stored = trial.life(reducers={"n": reducer}), None
            life.keys["k"] = None
            for number, delta in steps:
                txid = Txid(number)
                life.commit(txid, None if delta is None else {"k": delta})
                stored = None if stored is None else stored.restore(txid)
                if delta is not None and stored is not None:
                    stored = stored.update(delta, txid, reducer.combine)
                elif delta is not None:
                    stored = OpaqueValue.create(delta, txid)
                how = f"of {reducer} after {list(steps)!r} up to txid {txid}"
                now = {} if stored is None else {"k": stored.value}
                trial.require(f"the values {how}", now, life.values())
                if stored is not None and stored.txid == txid:
                    now = {} if stored.prev is None else {"k": stored.prev}
                trial.require(f"the values before this batch {how}", now, life.values(txid))


@CHECKS.promise(
    "transactional-rules",
    "A transactional row follows `txstream.core.semantics.TransactionalValue`: a newer batch adds to the "
    "value, and the same batch is skipped.",
    "keep value and txid for each key",
)
def transactional_rules(trial: StateTrial) -> None:
    for reducer in _REDUCERS:
        life = trial.life(Semantics.TRANSACTIONAL, reducers={"n": reducer})
        stored = TransactionalValue.create(5, Txid(1))
        for number, delta in ((1, 5), (1, 5), (2, 3), (2, 3), (3, 4), (4, -1), (4, -1)):
            txid = Txid(number)
            life.commit(txid, {"k": delta})
            stored = stored.update(delta, txid, reducer.combine)
            trial.require(f"the values of {reducer} after txid {txid}", {"k": stored.value}, life.values())
            trial.require("the values that `read` gives before it", {"k": stored.value}, life.values(txid))


def _choosy(stored: int, delta: int) -> Any:
    if delta == 13:
        raise ZeroDivisionError("by hand")
    return {0: None, 7: "seven", 8: 1 << 70, 9: 0.5}.get(delta, stored + delta)


@CHECKS.promise(
    "functions-are-tried-on-every-row",
    "If a user's reducer (`custom`) raises, or returns what its column cannot hold, the batch is refused "
    "and nothing of it is written.",
    "`Reducer.combine` raises StateValueError; check its result as a delta is checked",
)
@each(*Semantics)
def functions_are_tried_on_every_row(life: Life) -> None:
    life = life.trial.life(
        life.semantics, value="m bigint, n bigint", reducers={"m": Sum("m"), "n": custom(_choosy, None)}
    )
    life.commit(1, {"a": (1, 5), "b": (1, 5)})
    for delta in (13, 0, 7, 8, 9):
        rows = {"a": (1, 1), "b": (1, delta)}
        what = f"a custom reducer raises, or returns what cannot be stored, for {delta}"
        life.refuses(what, StateValueError, life.committing, life.next(2), rows)
    life.commit(2, {"a": (1, 1)})
    life.holds({"a": (2, 6), "b": (1, 5)}, "after a batch that can be stored")


_MARKS = (*" ,;:|/-_.#\t\n\x01\x1f", "", "::", "', '", '","')
_BASE = ("a", b"\0", True, -1, 0.5, Decimal("-0.05"), date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC))
_OTHER = ("A", b"", False, 1, -0.5, Decimal("0.05"), date(2026, 1, 2), datetime(2026, 1, 1, 0, 0, 0, 1, UTC))


@CHECKS.promise(
    "several-columns-are-one-row",
    "Several key columns form one key; each value column is merged by its own reducer, and all are undone "
    "together.",
    "when the row's txid changes, set every prev, even for a value that stays the same",
)
def several_columns_are_one_row(trial: StateTrial) -> None:
    life = trial.life(
        key="word string, day bigint",
        value="n bigint, least bigint, most bigint",
        reducers={"n": Count(), "least": Min("x"), "most": Max("x")},
    )
    life.commit(1, {("a", 1): (3, 5, 5), ("a", 2): (1, 1, 1)})
    life.commit(2, {("a", 1): (1, 9, 4)})  # neither the minimum nor the maximum changes
    life.holds({("a", 1): (4, 5, 5), ("a", 2): (1, 1, 1)}, "after a batch")
    before = {("a", 1): (3, 5, 5), ("a", 2): (1, 1, 1)}
    trial.require("the values before that batch", before, life.values(2))
    life.commit(2, {("a", 1): (2, 4, 9), ("b", 1): (1, 0, 0)})
    life.holds({("a", 1): (5, 4, 9), ("a", 2): (1, 1, 1), ("b", 1): (1, 0, 0)}, "after a replay")
    life.commit(2, None)
    life.holds(before, "when it is undone")
    # Any separator that a store puts between the columns of a key may also occur in the text.
    alike = trial.life(key="a string, b string")
    pairs = [key for mark in _MARKS for key in ((f"a{mark}b", "c"), ("a", f"b{mark}c"))]
    rows: dict[Any, int] = {key: number for number, key in enumerate([*pairs, ("", "x"), ("x", "")])}
    alike.commit(1, rows)
    alike.holds(rows, "of keys whose joined columns look the same")
    mixed = trial.life(
        key="s string, b binary, t boolean, i int, f double, d decimal(10,2), a date, z timestamp"
    )
    differing = [(*_BASE[:place], value, *_BASE[place + 1 :]) for place, value in enumerate(_OTHER)]
    rows = {key: number for number, key in enumerate([_BASE, _OTHER, *differing])}
    for txid in (1, 2):
        mixed.commit(txid, rows)
    mixed.holds({key: 2 * number for key, number in rows.items()}, "of keys that differ in one column")


@CHECKS.promise(
    "nulls-change-nothing",
    "A null delta leaves the value as it is, and a delta replaces a null value; a new opaque row with "
    "nulls in only some columns is refused; a new key with only null deltas gets no row.",
    "treat null as the identity of every reducer",
)
def nulls_change_nothing(trial: StateTrial) -> None:
    options: dict[str, Any] = {
        "value": "n bigint, least bigint",
        "reducers": {"n": Sum("n"), "least": Min("x")},
    }
    life = trial.life(**options)
    life.commit(1, {"a": (1, 5), "b": (1, 5)})
    life.commit(2, {"a": (1, None), "b": (None, None), "c": (None, None)})
    life.holds({"a": (2, 5), "b": (1, 5)}, "of an opaque table")
    life.commit(2, {"a": (None, 3)})
    life.holds({"a": (1, 3), "b": (1, 5)}, "after a replay")
    what = "a new row of an opaque table has a null in one column"
    life.refuses(what, StateValueError, life.committing, life.next(3), {"b": (1, 1), "d": (3, None)})
    for semantics in (Semantics.TRANSACTIONAL, Semantics.NON_TRANSACTIONAL):
        plain = trial.life(semantics, **options)
        plain.commit(1, {"a": (3, None)})
        plain.holds({"a": (3, None)}, f"of a {semantics} table")
        plain.commit(2, {"a": (1, 5)})
        plain.commit(3, {"a": (1, None)})
        plain.holds({"a": (5, 5)}, f"of a {semantics} table after more batches")


@CHECKS.promise(
    "keys-come-once-and-whole",
    "A batch with a null in a key, or with two deltas for one key, is refused; 0.0 and -0.0 are one key.",
    "raise StateValueError: one of the two would be lost",
)
def keys_come_once_and_whole(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    name = life.spec.state.table
    for what, rows in (
        ("one batch has two deltas for one key", {"word": ["b", "a", "b"], "n": [1, 1, 2]}),
        ("a key is null", {"word": ["b", None], "n": [1, 1]}),
    ):
        life.refuses(what, StateValueError, life.committing, life.next(2), pa.table(rows))
    table = pa.table({"wrong": ["a"], "n": [1]})
    life.refuses(f"deltas lack columns of {name!r}", StateTableError, life.committing, life.next(2), table)
    for kind in ("float", "double"):
        zeros = trial.life(key=f"k {kind}, j bigint")
        for txid, zero in enumerate((-0.0, 0.0, -0.0), 1):
            zeros.commit(txid, {(zero, 1): 1})
        zeros.holds({(0.0, 1): 3}, f"of both zeros of type {kind}")
        both = pa.table(
            {"k": pa.array([0.0, -0.0], zeros.spec.state.key_schema.field(0).type), "j": [1, 1], "n": [1, 2]}
        )
        what = "one batch has both zeros"
        zeros.refuses(what, StateValueError, zeros.committing, zeros.next(4), both)


# --- reading -----------------------------------------------------------------------------------------------


@CHECKS.promise(
    "read-finds-what-is-there",
    "`read` returns the declared key and value columns of the keys that exist, each key once, and an empty "
    "table if none exists.",
    "leave out keys without a row; keep columns and types even in an empty answer",
)
@each(*FENCED)
def read_finds_what_is_there(life: Life) -> None:
    require = life.trial.require
    require("an empty table", {}, life.read(["a"]))
    life.commit(1, {f"k{n}": n for n in range(3000)})
    asked = [f"k{n}" for n in range(0, 6000, 2)]
    require("the keys found", {f"k{n}": n for n in range(0, 3000, 2)}, life.read(asked))
    require("the answer to no keys", {}, life.read([]))


@CHECKS.promise(
    "reading-does-not-wait",
    "While a commit is open, `read` and queries of fence and ledger answer with what was committed before "
    "it.",
    "readers must take no lock that a writer holds until it ends",
)
def reading_does_not_wait(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    other = life.at(trial.open())
    before = other.everything()
    seen = []

    def look(_point: str) -> None:
        beside = trial.beside(lambda: other.store.read_fence(life.topology))
        if not beside.ended(trial.deadline_seconds / 2):
            trial.fail("an answer from another opening while a commit is open", "none")
        seen.append(other.everything())

    life.commit(2, {"a": 5}, reached=look)
    trial.require("what was read while a commit was open", [before], seen)


_ELSEWHERE = """
import sys
from txstream.core.semantics import Semantics
from txstream.state import open_database
from txstream.plugins.proof.state_suite.life import by_key, table, to_table
from txstream.core.transaction import Txid
url, name, expected = sys.argv[1:]
store = open_database(url)
spec = table(name)
keys = to_table(spec, {"a": ()}).select(["word"])
print(by_key(spec, store.read(spec, keys, before=Txid(2**62))) == {"a": int(expected)})
store.close()
"""


@CHECKS.promise(
    "other-processes-see-it",
    "If a store has `on_executors`, another process can open it by its URL and sees what was committed here.",
    "executors do not know what this process registered: declare the package's entry point "
    "(`txstream.state_backends`), or set on_executors = False",
)
def other_processes_see_it(trial: StateTrial) -> None:
    url = trial.terms.url
    if not trial.store.on_executors:
        raise NotApplicableError("other processes cannot open the store (on_executors is False)")
    if url is None:
        raise NotApplicableError("the store was given as a function; give its URL to check other processes")
    life = trial.life()
    life.commit(1, {"a": 41})
    life.commit(2, {"a": 1})
    command = [sys.executable, "-c", _ELSEWHERE, url, life.spec.state.table, "42"]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=trial.deadline_seconds)
    done = trial.ask("another process reads", run)
    if done.returncode != 0 or done.stdout.strip() != "True":
        problem = (done.stderr.strip().splitlines() or ["the values differ"])[-1]
        trial.fail("the committed values in another process", problem[:300])
