"""Pruning of the ledger, on every store that prunes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from support.state_contract import StateFixtures
from support.states import Rig, word_table
from support.tables import is_sql, store_at
from txstream.engine.driver import retention as pruning
from txstream.engine.driver.retention import LedgerPruner
from txstream.retention import Keep
from txstream.semantics import Semantics
from txstream.state import StateDatabase
from txstream.state.sql import framework
from txstream.state.store import layout

DAY = timedelta(days=1)


def committed(rig: Rig, batches: int) -> None:
    """Txid n was committed n days after the first of the year."""
    for txid in range(1, batches + 1):
        rig.commit(txid, {"a": 1})
        set_committed_at(rig.url, txid, day(txid))


def day(number: int) -> datetime:
    return datetime.fromisoformat("2026-01-01T00:00:00+00:00") + number * DAY


def set_committed_at(url: str, txid: int, when: datetime | None) -> None:
    if not is_sql(url):
        with store_at(url).transaction(exclusive=["definitions"]) as here:
            for (topology,), _ in here.scan("fence"):
                ledger = layout.ledger_space(topology)
                row = here.get(ledger, (txid,))
                if row is not None:
                    here.put(ledger, (txid,), {**row, "committed_at": when})
        return
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        batch = framework.batch
        connection.execute(sa.update(batch).where(batch.c.txid == txid).values(committed_at=when))
    engine.dispose()


def txids(rig: Rig) -> list[int]:
    return [row.txid for row in rig.database.batches(rig.topology)]


def pruner(rig: Rig, keep: str, now: datetime) -> LedgerPruner:
    return LedgerPruner(rig.topology, [rig.database], Keep.parse(keep), now=lambda: now, pause_seconds=0.0)


class PruningContract(StateFixtures):
    """Subclasses have a fixture `url` with an empty database."""

    @pytest.mark.parametrize(
        ("keep", "left"),
        [
            ("3", [6, 7, 8]),
            ("4d", [5, 6, 7, 8]),  # on the 9th
            ("4d,3", [6, 7, 8]),
            ("2d,6", [7, 8]),
            ("1s", [7, 8]),  # the last two committed ones stay
            ("1", [7, 8]),
            ("100d,100", [1, 2, 3, 4, 5, 6, 7, 8]),
            ("all", [1, 2, 3, 4, 5, 6, 7, 8]),
        ],
    )
    def test_what_stays(self, rig: Rig, keep: str, left: list[int]) -> None:
        committed(rig, 8)
        assert rig.database.oldest_txid("words") == 1
        assert pruner(rig, keep, day(9)).prune() == 8 - len(left)
        assert txids(rig) == left
        assert rig.database.oldest_txid("words") == left[0]
        assert rig.values() == {"a": 8}
        assert pruner(rig, keep, day(9)).prune() == 0
        rig.commit(8, {"a": 2})  # a replay of the last one still finds that it was written
        assert rig.values() == {"a": 9}

    def test_what_is_being_committed_stays_with_the_last_committed(self, rig: Rig) -> None:
        committed(rig, 3)
        rig.begin(4)
        pruner(rig, "1s,1", day(400)).prune()
        assert [(row.txid, row.status) for row in rig.database.batches("words")] == [
            (2, "committed"),
            (3, "committed"),
            (4, "committing"),
        ]

    def test_an_empty_ledger(self, database: StateDatabase, url: str) -> None:
        rig = Rig(database, url)
        assert database.oldest_txid("words") is None
        assert pruner(rig, "1", day(1)).prune() == 0
        rig.join()
        assert pruner(rig, "1", day(1)).prune() == 0

    def test_other_topologies_keep_theirs(self, rig: Rig) -> None:
        other = Rig(rig.database, rig.url, word_table("theirs"), topology="theirs").join()
        committed(other, 3)
        committed(rig, 3)
        pruner(rig, "1", day(400)).prune()
        assert (txids(rig), txids(other)) == ([2, 3], [1, 2, 3])

    def test_a_clock_that_went_back_leaves_no_gap(self, rig: Rig) -> None:
        committed(rig, 6)
        set_committed_at(rig.url, 2, day(100))
        pruner(rig, "5d", day(100)).prune()
        assert txids(rig) == [2, 3, 4, 5, 6]

    def test_a_topology_without_transactions(self, database: StateDatabase, url: str) -> None:
        rig = Rig(database, url, word_table(semantics=Semantics.NON_TRANSACTIONAL)).join()
        committed(rig, 4)
        pruner(rig, "2", day(100)).prune()
        assert txids(rig) == [3, 4]

    def test_a_commit_has_its_turn_between_two_chunks(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pruning, "CHUNK_ROWS", 2)
        committed(rig, 9)
        seen: list[tuple[int, list[int]]] = []
        prune = rig.database.prune

        def between(topology: str, **options: Any) -> int:
            gone: int = prune(topology, **options)
            txid = 10 + len(seen)
            rig.commit(txid, {"a": 1})
            seen.append((gone, txids(rig)))
            return gone

        monkeypatch.setattr(rig.database, "prune", between)
        assert pruner(rig, "4", day(9)).prune() == 9
        assert seen == [
            (2, [3, 4, 5, 6, 7, 8, 9, 10]),
            (2, [5, 6, 7, 8, 9, 10, 11]),
            (2, [7, 8, 9, 10, 11, 12]),
            (2, [9, 10, 11, 12, 13]),
            (1, [10, 11, 12, 13, 14]),
        ]
        assert rig.values() == {"a": 14}
