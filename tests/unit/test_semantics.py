"""The value rules: pure functions and SQLite give the same for the same cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.value_rules import Runner, ValueRules, run_pure, sql_runner

from txstream.api.errors import TxidRegressionError
from txstream.semantics import OpaqueValue, Semantics, TransactionalValue, legal_state_semantics
from txstream.state import open_database
from txstream.transaction import Txid


def add(a: int, b: int) -> int:
    return a + b


class TestPureFunctions(ValueRules):
    @pytest.fixture
    def run(self) -> Runner:
        return run_pure


class TestSQLite(ValueRules):
    @pytest.fixture
    def run(self, sqlite_url: str) -> Iterator[Runner]:
        database = open_database(sqlite_url)
        yield sql_runner(database, sqlite_url)
        database.close()


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
