"""The value rules as cases: one suite over the pure functions and over every database."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from support.states import Rig, word_table
from txstream.api.errors import TxidRegressionError
from txstream.api.reducers import Max, Min, Reducer, Sum
from txstream.semantics import OpaqueValue, Semantics, TransactionalValue
from txstream.state import StateBackend, open_database
from txstream.transaction import Txid

Step = tuple[int, int | None]
"""A batch, in the order of commits: its txid and its delta of the one key; None: the key is not in it."""

Runner = Callable[[Semantics, Reducer, Sequence[Step]], tuple[Any, ...] | None]
"""Runs the steps and answers with the key's row without the key: value, [prev,] txid; None: no row."""


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


class ValueRules:
    """Subclasses have a fixture `run`, a Runner."""

    @pytest.mark.parametrize("case", CASES, ids=title)
    def test_value_rule(self, case: Case, run: Runner) -> None:
        assert run(case.semantics, case.reducer, case.steps) == case.expected

    @pytest.mark.parametrize("case", REGRESSIONS, ids=title)
    def test_an_older_batch_is_refused(self, case: Case, run: Runner) -> None:
        with pytest.raises(TxidRegressionError, match="newer"):
            run(case.semantics, case.reducer, case.steps)


_COMBINE: dict[type[Reducer], Callable[[int, int], int]] = {Sum: lambda a, b: a + b, Min: min, Max: max}


def run_pure(semantics: Semantics, reducer: Reducer, steps: Sequence[Step]) -> tuple[Any, ...] | None:
    """The steps by `txstream.semantics`. Each opaque batch is restored first, as a commit does."""
    combine = _COMBINE[type(reducer)]
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


class StoreValueRules(ValueRules):
    """Subclasses have a fixture `url` with an empty store."""

    @pytest.fixture
    def run(self, url: str) -> Iterator[Runner]:
        database = open_database(url)
        yield sql_runner(database, url)
        database.close()


def sql_runner(database: StateBackend, url: str) -> Runner:
    """The steps as commits to a table of a fresh database."""

    def run(semantics: Semantics, reducer: Reducer, steps: Sequence[Step]) -> tuple[Any, ...] | None:
        rig = Rig(database, url, word_table(semantics=semantics, reducers={"n": reducer})).join()
        for txid, delta in steps:
            rig.commit(txid, {} if delta is None else {"key": delta})
            assert rig.last().txid == max(number for number, _ in steps[: rig.sequence])
        rows = rig.rows()
        assert len(rows) <= 1
        return rows[0][1:] if rows else None

    return run
