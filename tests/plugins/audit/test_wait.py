"""`inspect.wait_for` and `txstream wait`: until a record's effect is committed, or will never be."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from txstream import DeadLetters, inspect
from txstream.api.bolts import BasicBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.cli.main import main
from txstream.core.dead_letters import LetterKey
from txstream.core.errors import UsageError
from txstream.core.fault_points import Point
from txstream.core.transaction import Txid
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.state import open_database
from txstream.testing import ManualClock, TopologyTest
from txstream.zookeeper import Kind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Parse(BasicBolt):
    """Fails at the words that are in `bad`."""

    output = "word string, at timestamp"
    bad: ClassVar[set[str]] = {"bad"}

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["word"] in self.bad:
            raise ValueError("no word")
        old = timedelta(3650 if tup["word"] == "old" else 0)
        collector.emit((tup["word"], NOW - old))


class Rig:
    """Words are counted in a table in each of two databases, whose rows are kept for a year."""

    def __init__(self, folder: Path, source: MemorySpout, spout: Any) -> None:
        self.files = [folder / f"{name}.db" for name in ("first", "second")]
        self.urls = [f"sqlite:///{file}" for file in self.files]
        self.settings = Settings(database=self.urls[0])
        self.topology = self._topology(spout(source, max_batch_records=4))
        self.test: TopologyTest | None = None

    def _topology(self, spout: Any) -> Topology:
        asked = DeadLetters(max_share=1.0)
        builder = TransactionalTopologyBuilder("words", "words", spout, dead_letters=asked)
        builder.set_bolt("parse", Parse()).shuffle_grouping("words")
        for number, url in enumerate(self.urls):
            state = SqlState(
                f"words_{number}", key="word string, at timestamp", value="n bigint", url=url, keep="365d"
            )
            store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
            store.fields_grouping("parse", "word")
        return builder.build()

    def start(self) -> TopologyTest:
        self.test = TopologyTest(self.topology, database=self.urls[0], clock=ManualClock(NOW.timestamp()))
        self.test.__enter__()
        return self.test

    def fate(self, offset: int, steps: Callable[[], object] | None = None) -> Any:
        """Wait for a record for ten seconds of a clock that only pauses move; `steps` is called in each."""
        now = 0.0

        def pause(seconds: float) -> None:
            nonlocal now
            now += seconds
            if steps is not None:
                steps()

        return inspect.wait_for(
            "words",
            "words",
            0,
            offset,
            self.settings,
            timeout_seconds=10,
            pause=pause,
            clock=lambda: now,
        )

    def words(self, number: int) -> set[str]:
        with sqlite3.connect(self.files[number]) as connection:
            return {word for (word,) in connection.execute(f"SELECT word FROM words_{number}")}


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout("word string", {"words/0": ["a", "bad", "c", "b"]}) as made:
        yield made


@pytest.fixture
def rig(tmp_path: Path, source: MemorySpout, request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(tmp_path, source, getattr(request, "param", OpaqueSpout))
    yield made
    if made.test is not None:
        made.test.close()


def test_a_wait_begins_before_topology_and_record_and_ends_with_the_commit(
    rig: Rig, source: MemorySpout
) -> None:
    def run() -> None:
        assert rig.test is not None
        rig.test.run()

    steps = iter([rig.start, run, lambda: source.append("words/0", "late comer")])

    def step() -> None:
        do: Callable[[], Any] = next(steps, run)
        do()

    found = rig.fate(4, step)
    assert (found.outcome, found.txid, found.reason) == ("committed", 2, None)
    assert "late comer" in rig.words(0) & rig.words(1)
    assert rig.fate(0) == inspect.RecordFate("words", "words", 0, 0, "committed", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("rig", [OpaqueSpout, TransactionalSpout], indirect=True)
def test_one_of_two_databases_is_not_enough(rig: Rig) -> None:
    test = rig.start()
    test.crash(at=Point.BETWEEN_COMMITS, txid=1)
    assert "a" in rig.words(0) ^ rig.words(1), "the driver died when one had committed"
    with pytest.raises(inspect.NotKnownError, match="the first batch of topology 'words'"):
        rig.fate(0)
    test.restart()
    test.run()
    assert rig.fate(0).outcome == "committed"


def test_dead_late_dropped_and_retried_records_are_told(rig: Rig, source: MemorySpout) -> None:
    test = rig.start()
    test.run()
    source.append("words/0", "old")
    test.run()
    dead, late = rig.fate(1), rig.fate(4)
    assert (dead.outcome, dead.txid) == ("dead", 1)
    assert dead.reason is not None
    assert dead.reason.startswith("parse: ValueError")
    assert (late.outcome, late.txid) == ("late", 2)
    database = open_database(rig.urls[0])
    assert database.drop_dead_letters("words", [LetterKey(Txid(2), "words/0@4")]) == 1
    database.close()
    assert (rig.fate(4).outcome, rig.fate(4).reason) == ("left out", "its dead letter was dropped")
    Parse.bad = set()
    try:
        test._control.driver.requests.ask(Kind.RETRY, {})
        test.settle()
        test.commit()
    finally:
        Parse.bad = {"bad"}
    retried = rig.fate(1)
    assert (retried.outcome, retried.txid) == ("committed", 3)
    assert "bad" in rig.words(0) & rig.words(1)


def test_what_is_waited_for_is_named(rig: Rig, tmp_path: Path) -> None:
    told: list[str] = []
    options: Any = {"timeout_seconds": 0, "told": told.append}
    with pytest.raises(inspect.NotKnownError, match="waits for topology 'words' to be run") as raised:
        inspect.wait_for("words", "words", 0, 9, Settings(database=rig.urls[0]), **options)
    assert raised.value.exit_status == 4
    rig.start().run()
    with pytest.raises(inspect.NotKnownError, match="which is at offset 4 there as of txid 1"):
        inspect.wait_for("words", "words", 0, 9, rig.settings, **options)
    with pytest.raises(inspect.NotKnownError, match="which has no place there yet"):
        inspect.wait_for("words", "words", 7, 0, rig.settings, **options)
    away = tmp_path / "away.db"
    rig.files[1].rename(away)
    with pytest.raises(inspect.NotKnownError, match=r"what is away: .*second\.db.* there is no such file"):
        inspect.wait_for("words", "words", 0, 0, rig.settings, **options)
    assert len(told) == 4
    assert rig.fate(0, lambda: away.exists() and away.rename(rig.files[1])).outcome == "committed"
    with pytest.raises(UsageError, match="must be at least 0"):
        inspect.wait_for("words", "words", 0, -1, rig.settings)


def test_a_record_of_a_pruned_batch_is_neither_committed_nor_left_out(rig: Rig, source: MemorySpout) -> None:
    test = rig.start()
    for word in ("c", "d", "e"):
        test.run()
        source.append("words/0", word)
    test.run()
    for file in rig.files:
        with sqlite3.connect(file) as connection:
            connection.execute("DELETE FROM txstream_batch WHERE txid < 3")
    with pytest.raises(inspect.NotKnownError, match=r"begins at txid 3 and no longer has the batch"):
        rig.fate(0)
    assert rig.fate(5).txid == 3


def test_records_that_no_batch_reads_are_left_out(rig: Rig) -> None:
    """As the ledger says it of a topology that began at the end of its log, and of a gap that was skipped."""
    rig.start().run()
    for place, told in (
        ({"partitions": {}, "carried": {"words/0": {"start": 7, "end": 7}}}, "began to read behind it"),
        ({"partitions": {"words/0": {"start": 7, "end": 9, "skipped_from": 3}}}, "gone before"),
    ):
        for file in rig.files:
            with sqlite3.connect(file) as connection:
                connection.execute("UPDATE txstream_batch SET metas = ?", (json.dumps(place),))
        found = rig.fate(6)
        assert (found.outcome, found.txid) == ("left out", 1)
        assert told in (found.reason or "")


def test_places_that_are_no_offsets_are_refused(rig: Rig) -> None:
    rig.start().run()
    for file in rig.files:
        with sqlite3.connect(file) as connection:
            metas = {"partitions": {"words/0": {"file": "a.txt"}}}
            connection.execute("UPDATE txstream_batch SET metas = ?", (json.dumps(metas),))
    with pytest.raises(UsageError, match="the places of words/0 are no offsets"):
        rig.fate(0)


def test_as_a_user_types_it(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start().run()
    words = ("wait", "words", "--topic", "words", "--partition", "0", "--database", rig.urls[0])
    capsys.readouterr()
    assert main([*words, "--offset", "0"]) == 0
    assert capsys.readouterr().out == "offset 0 of words/0 is committed, txid 1\n"
    assert main([*words, "--offset", "1", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["txid"], document["offset"]) == ("dead", 1, 1)
    assert main([*words, "--offset", "9", "--timeout", "0"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "offset 9 of words/0 was not committed within 0 s" in err
