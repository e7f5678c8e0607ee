"""Dead letters in the commit protocol: with the batch or not at all, on both paths, in every store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.states import CrashError, Rig, word_table

from txstream.core.dead_letters import DeadLetter
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.proof.stores.memory import forget
from txstream.state.registry import open_database

WHOLE = DeadLetter(
    "orders/3@0", "orders", 3, 0, 1_767_000_000_000, b"k", b"{", None, "parse", "ValueError", "no JSON", ""
)
STORES = ("sqlite", "memory")
SEMANTICS = (Semantics.OPAQUE, Semantics.TRANSACTIONAL)
PATHS = ("driver", "executors")


@pytest.fixture(params=[(store, semantics) for store in STORES for semantics in SEMANTICS], ids=str)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    store, semantics = request.param
    url = "memory://letters" if store == "memory" else f"sqlite:///{tmp_path / 'state.db'}"
    opened = open_database(url)
    try:
        yield Rig(opened, url, word_table(semantics=semantics)).join()
    finally:
        opened.close()
        if store == "memory":
            forget("letters")


def commit(rig: Rig, path: str, attempt: TransactionAttempt, *offsets: int, dies: bool = False) -> None:
    def reached(point: str) -> None:
        if dies and point == Point.INSIDE_COMMIT:
            raise CrashError

    whole = replace(
        rig.whole(attempt, {"a": 1}),
        letters=[replace(WHOLE, source=f"orders/3@{at}", offset=at) for at in offsets],
    )
    if path == "driver":
        rig.states.commit(whole, reached=reached)
        return
    rig.states.begin_commit(whole)
    rig.states.end_commit(whole, reached=reached)


def dead(rig: Rig) -> list[tuple[int, str]]:
    return [(one.txid, one.place) for one in rig.database.dead_letters(rig.topology)]


@pytest.mark.parametrize("path", PATHS)
def test_a_dead_letter_is_there_with_its_batch_and_never_without(rig: Rig, path: str) -> None:
    with pytest.raises(CrashError):
        commit(rig, path, rig.next(1), 7, dies=True)
    assert dead(rig) == []
    commit(rig, path, rig.next(1), 7, 9)
    commit(rig, path, rig.next(2), 11)
    assert dead(rig) == [(1, "orders/3@7"), (1, "orders/3@9"), (2, "orders/3@11")]
    batch = rig.states.batch(2)
    assert batch is not None
    assert rig.database.dead_letters(rig.topology)[-1].attempt == batch.attempt


@pytest.mark.parametrize("first", PATHS)
@pytest.mark.parametrize("then", PATHS)
def test_the_rows_of_an_attempt_that_is_undone_are_gone(rig: Rig, first: str, then: str) -> None:
    commit(rig, first, rig.next(1), 7, 9)
    commit(rig, then, rig.next(1), 9)
    assert dead(rig) == [(1, "orders/3@9")]
    commit(rig, then, rig.next(1))
    assert dead(rig) == []
