"""Pruning of the ledger: the contract on SQLite, how long rows are kept, and the thread that prunes."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from support.lists import each
from support.states import Rig
from support.tables import is_sql, store_at

from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.ledger_retention import Keep
from txstream.engine.loop import ledger_pruning as pruning
from txstream.engine.loop.ledger_pruning import LedgerPruner
from txstream.plugins.proof.stores import layout
from txstream.settings import Settings
from txstream.state.sql import framework_tables as framework

DEADLINE_SECONDS = 20.0


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


DAY = timedelta(days=1)


def committed(rig: Rig, batches: int) -> None:
    """Commit this many batches; txid n is dated n days after the first of the year."""
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


class TestLedger:
    """The contract of every store that prunes."""

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
        rig.commit(8, {"a": 2})  # a replay of the last txid must still find its row
        assert rig.values() == {"a": 9}

    def test_a_clock_that_went_back_leaves_no_gap(self, rig: Rig) -> None:
        committed(rig, 6)
        set_committed_at(rig.url, 2, day(100))
        pruner(rig, "5d", day(100)).prune()
        assert txids(rig) == [2, 3, 4, 5, 6]

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


# --- how long ----------------------------------------------------------------------------------------------


@each(
    ("text", "expected", "shown"),
    [
        ("7d", Keep(604800.0, None), "7d"),
        ("100000", Keep(None, 100_000), "100000"),
        ("7d,100000", Keep(), "7d,100000"),
        ("100_000, 7d", Keep(), "7d,100000"),
        ("90s", Keep(90.0, None), "90s"),
        ("90m", Keep(5400.0, None), "90m"),
        ("36h", Keep(129600.0, None), "36h"),
        ("all", Keep(None, None), "all"),
    ],
)
def test_limits(text: str, expected: Keep, shown: str) -> None:
    assert Keep.parse(text) == expected
    assert str(expected) == shown
    assert Keep.parse(shown) == expected
    assert Settings(ledger_keep=text).keep == expected


@each(
    ("text", "why"),
    [
        ("", "is no limit"),
        ("7", None),
        ("7w", "'7w' is no limit"),
        ("-1", "is no limit"),
        ("7d,", "is no limit"),
        ("1d,2h", "two ages"),
        ("1,2", "two numbers"),
        ("0", "cannot keep 0 batches"),
        ("0d", r"cannot keep 0\.0 seconds"),
        ("all,7d", "'all' is no limit"),
        ("99999999999999999d", "seconds"),
    ],
)
def test_limits_that_cannot_be(text: str, why: str | None) -> None:
    if why is None:
        assert Keep.parse(text).batches == 7
        return
    shown = "--keep-ledger 7d, --keep-ledger 100000, --keep-ledger 7d,100000 or --keep-ledger all"
    with pytest.raises(UsageError, match=f"{why}.*{shown}"):
        Settings(ledger_keep=text)


# --- the thread --------------------------------------------------------------------------------------------


class Rounds:
    """A database that counts the calls of `prune`. The first one raises `error`, if there is one."""

    display_url = "a database"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0
        self.changed = threading.Condition()

    def prune(self, topology: str, **_: Any) -> int:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
            if self.error is not None and self.asked == 1:
                raise self.error
        return 0

    def wait_until_asked(self, times: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= times, DEADLINE_SECONDS)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "FIRST_ROUND_SECONDS", 0.0)
    monkeypatch.setattr(pruning, "ROUND_SECONDS", 0.001)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", [ServiceUnavailableError("it is away"), RuntimeError("a bug")])
def test_a_failure_is_logged_and_tried_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Rounds(error), Rounds()
    databases: Any = [failing, other]
    pruner = LedgerPruner("words", databases, Keep())
    pruner.start()
    failing.wait_until_asked(2)
    other.wait_until_asked(2)
    pruner.stop(DEADLINE_SECONDS)
    assert "stay for now" in caplog.text
    assert str(error) in caplog.text
    asked = failing.asked
    assert not [thread for thread in threading.enumerate() if thread.name == "txstream-prune-words"]
    assert failing.asked == asked


def test_everything_is_kept_without_a_thread() -> None:
    pruner = LedgerPruner("words", [], Keep.parse("all"))
    pruner.start()
    assert not [thread for thread in threading.enumerate() if thread.name == "txstream-prune-words"]
    pruner.stop(DEADLINE_SECONDS)


class TestStopping:
    def test_it_ends_between_two_chunks(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "txstream")
        monkeypatch.setattr(pruning, "CHUNK_ROWS", 1)
        monkeypatch.setattr(pruning, "FIRST_ROUND_SECONDS", 0.0)
        committed(rig, 5)
        began, prune = threading.Event(), rig.database.prune

        def told(topology: str, **options: Any) -> int:
            gone: int = prune(topology, **options)
            began.set()
            return gone

        monkeypatch.setattr(rig.database, "prune", told)
        pruner = LedgerPruner(
            "words", [rig.database], Keep(None, 1), now=datetime.now, pause_seconds=DEADLINE_SECONDS
        )
        pruner.start()
        assert began.wait(DEADLINE_SECONDS)
        pruner.stop(DEADLINE_SECONDS)  # while it pauses
        assert txids(rig) == [2, 3, 4, 5]
        assert "1 old rows" in caplog.text

    def test_a_txid_that_was_pruned_is_told_as_that(
        self, rig: Rig, url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        committed(rig, 5)
        pruner(rig, "2", day(9)).prune()
        assert main(["show", "words", "3", "--database", url]) == 1
        pruned = "has no txid 3; it was pruned (`--keep-ledger`): the ledger begins at txid 4"
        assert pruned in capsys.readouterr().err
        assert main(["show", "words", "9", "--database", url]) == 1
        assert "has no txid 9; it has txid 4 to 5" in capsys.readouterr().err
        assert main(["batches", "words", "--database", url]) == 0
