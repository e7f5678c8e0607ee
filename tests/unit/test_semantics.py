"""The value rules as pure functions. The conformance suite checks that stores follow them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.lists import each

from txstream.api.reducers import Max, Min, Reducer, Sum
from txstream.core.errors import TxidRegressionError
from txstream.core.semantics import OpaqueValue, Semantics, TransactionalValue, legal_state_semantics
from txstream.core.transaction import Txid


def add(a: int, b: int) -> int:
    return a + b


Step = tuple[int, int | None]
"""A batch, in the order of commits: its txid, and its delta for the one key, or None without the key."""


@dataclass(frozen=True)
class Case:
    name: str
    semantics: Semantics
    steps: Sequence[Step]
    expected: tuple[Any, ...] | None
    reducer: Reducer = dataclasses.field(default_factory=lambda: Sum("n"))


OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
_WORKED = ((1, 1), (2, 3))  # makes {value 4, prev 1, txid 2}

CASES = (
    Case("worked example, before", OPAQUE, _WORKED, (4, 1, 2)),
    Case("worked example, next txid", OPAQUE, (*_WORKED, (3, 2)), (6, 4, 3)),
    Case("worked example, same txid", OPAQUE, (*_WORKED, (2, 2)), (3, 1, 2)),
    Case("created", OPAQUE, ((1, 5),), (5, None, 1)),
    Case("created again by the same txid", OPAQUE, ((1, 5), (1, 7)), (7, None, 1)),
    Case("created, then not in the replay", OPAQUE, ((1, 5), (1, None)), None),
    Case("created, gone, created", OPAQUE, ((1, 5), (1, None), (1, 2)), (2, None, 1)),
    Case("updated, then not in the replay", OPAQUE, ((1, 5), (2, 3), (2, None)), (5, 5, 2)),
    Case("not in the replay, then in the next", OPAQUE, ((1, 5), (2, 3), (2, None), (3, 1)), (6, 5, 3)),
    Case("not in a later batch", OPAQUE, ((1, 5), (2, None)), (5, None, 1)),
    Case("a batch skipped", OPAQUE, ((1, 5), (4, 2)), (7, 5, 4)),
    Case("a value back at zero keeps its row", OPAQUE, ((1, 5), (2, -5)), (0, 5, 2)),
    Case("replayed three times", OPAQUE, ((1, 1), (2, 1), (2, 10), (2, 100)), (101, 1, 2)),
    Case("minimum, replay with a greater one", OPAQUE, ((1, 9), (2, 2), (2, 5)), (5, 9, 2), Min("n")),
    Case("maximum, replay with a lesser one", OPAQUE, ((1, 1), (2, 9), (2, 4)), (4, 1, 2), Max("n")),
    Case("minimum not in the replay", OPAQUE, ((1, 9), (2, 2), (2, None)), (9, 9, 2), Min("n")),
    Case("created", TRANSACTIONAL, ((1, 5),), (5, 1)),
    Case("next txid", TRANSACTIONAL, ((1, 5), (2, 3)), (8, 2)),
    Case("same txid is skipped", TRANSACTIONAL, ((1, 5), (2, 3), (2, 3)), (8, 2)),
    Case("created, same txid is skipped", TRANSACTIONAL, ((1, 5), (1, 5)), (5, 1)),
    Case("minimum", TRANSACTIONAL, ((1, 5), (2, 3), (3, 4)), (3, 3), Min("n")),
    Case("every time", Semantics.NON_TRANSACTIONAL, ((1, 5), (2, 3), (2, 3)), (11,)),
    Case("any order", Semantics.NON_TRANSACTIONAL, ((2, 5), (1, 3)), (8,)),
    Case("maximum", Semantics.NON_TRANSACTIONAL, ((2, 5), (1, 3)), (5,), Max("n")),
)

REGRESSIONS = (
    Case("older txid", OPAQUE, ((2, 5), (1, 1)), None),
    Case("older txid", TRANSACTIONAL, ((2, 5), (1, 1)), None),
    Case("older than a replayed one", OPAQUE, ((1, 1), (3, 5), (3, 6), (2, 1)), None),
)


def title(case: Case) -> str:
    return f"{case.semantics}: {case.name}"


def run(semantics: Semantics, reducer: Reducer, steps: Sequence[Step]) -> tuple[Any, ...] | None:
    """Return a key's row (value, [prev,] txid), None if there is none. An opaque batch is restored first."""
    combine = reducer.combine
    opaque: OpaqueValue[int] | None = None
    transactional: TransactionalValue[int] | None = None
    plain: int | None = None
    for number, delta in steps:
        txid = Txid(number)
        if semantics is OPAQUE and opaque is not None:
            opaque = opaque.restore(txid)
        if delta is None:
            continue
        if semantics is OPAQUE:
            opaque = (
                OpaqueValue.create(delta, txid) if opaque is None else opaque.update(delta, txid, combine)
            )
        elif semantics is TRANSACTIONAL:
            transactional = (
                TransactionalValue.create(delta, txid)
                if transactional is None
                else transactional.update(delta, txid, combine)
            )
        else:
            plain = delta if plain is None else combine(plain, delta)
    if opaque is not None:
        return (opaque.value, opaque.prev, opaque.txid)
    if transactional is not None:
        return (transactional.value, transactional.txid)
    return None if plain is None else (plain,)


@each("case", CASES, ids=title)
def test_value_rule(case: Case) -> None:
    assert run(case.semantics, case.reducer, case.steps) == case.expected


@each("case", REGRESSIONS, ids=title)
def test_an_older_batch_is_refused(case: Case) -> None:
    with pytest.raises(TxidRegressionError, match="newer"):
        run(case.semantics, case.reducer, case.steps)


def test_worked_example_of_an_opaque_value() -> None:
    stored = OpaqueValue(4, 1, Txid(2))
    assert stored.update(2, Txid(3), add) == OpaqueValue(6, 4, Txid(3))
    assert stored.update(2, Txid(2), add) == OpaqueValue(3, 1, Txid(2))


def test_regression_names_both_txids() -> None:
    with pytest.raises(TxidRegressionError, match=r"txid 4.*txid 3"):
        OpaqueValue(4, 1, Txid(4)).update(1, Txid(3), add)
    with pytest.raises(TxidRegressionError, match=r"txid 4.*txid 3"):
        TransactionalValue(4, Txid(4)).update(1, Txid(3), add)


def test_restore_leaves_rows_of_other_batches_alone() -> None:
    stored = OpaqueValue(4, 1, Txid(2))
    assert stored.restore(Txid(3)) is stored
    assert stored.restore(Txid(2)) == OpaqueValue(1, 1, Txid(2))
    assert OpaqueValue.create(4, Txid(2)).restore(Txid(2)) is None


def test_restore_twice_is_restore_once() -> None:
    once = OpaqueValue(4, 1, Txid(2)).restore(Txid(2))
    assert once is not None
    assert once.restore(Txid(2)) == once


def test_legal_pairs_of_spout_and_state() -> None:
    assert legal_state_semantics(Semantics.TRANSACTIONAL) == (Semantics.TRANSACTIONAL, Semantics.OPAQUE)
    assert legal_state_semantics(Semantics.OPAQUE) == (Semantics.OPAQUE,)
    assert legal_state_semantics(Semantics.NON_TRANSACTIONAL) == (Semantics.NON_TRANSACTIONAL,)
