"""Rewind: all states back to an earlier txid, under a txid of its own, finished or not begun."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.saved_rigs import BOTH, SPOUTS, Check, SavedRig
from support.windows import FIELDS, graph, metas, query, rows

from txstream import (
    ClosedBolt,
    DeadLetters,
    SqlAppendBolt,
    SqlTable,
    TransactionalTopologyBuilder,
    inspect,
)
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import CorruptStateError, StaleAttemptError, UsageError
from txstream.core.fault_points import Point
from txstream.engine.start.driver import Driver
from txstream.plugins.change import rewinding, savepoints
from txstream.plugins.change.rewind_command import settle
from txstream.plugins.change.rewinding import Rewound, rewind_in
from txstream.plugins.change.savepoints import create_savepoint, drop_savepoint, opened
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.plugins.testing import driver as testing_driver
from txstream.settings import Settings
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.testing import ManualClock, TopologyTest
from txstream.zookeeper import Kind


class Died(BaseException):
    """As when the process is killed."""


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SavedRig]:
    monkeypatch.setattr(testing_driver, "Driver", partial(Driver, settlers=[settle]))
    with MemorySpout("word string, number bigint", {"words/0": [("a", 1), ("b", 2), ("a", 3)]}) as source:
        made = SavedRig(tmp_path, source)
        yield made
        if made.test is not None:
            made.test.close()


def go_back(rig: SavedRig, to: str, hook: Callable[[str, str], None] | None = None) -> Rewound:
    """Rewind while nothing runs the topology. `hook` is called before and after each write to ZooKeeper."""
    assert rig.test is not None
    with contextlib.suppress(UsageError):  # it does not run
        rig.test.crash()
    codec = MetaCodec(MemoryRange)
    store = MemoryProgress(rig.test._control.driver._world.tree, "words", codec, hook=hook)
    identity = store.read_identity()
    assert identity is not None
    with opened("words", rig.settings) as databases:
        return rewind_in("words", to, identity, store, databases, codec)


def totals(rig: SavedRig, number: int) -> dict[str, int]:
    return {row[0]: row[1] for row in rig.rows(number, f"words_{number}")}


def ledger(rig: SavedRig, number: int) -> list[tuple[int, str, dict[str, Any]]]:
    with sqlite3.connect(rig.files[number]) as connection:
        rows = connection.execute("SELECT txid, status, details FROM txstream_batch ORDER BY txid").fetchall()
    return [(txid, status, json.loads(details or "{}").get("rewind")) for txid, status, details in rows]


def more(rig: SavedRig) -> None:
    rig.source.append("words/0", ("c", 4), ("a", 5), ("d", 6))
    assert rig.test is not None
    rig.test.run()


def truth(*, without: str = "") -> dict[str, int]:
    return dict(Counter(word for word in "abacad" if word not in without))


@BOTH
@pytest.mark.parametrize("folder", [False, True])
def test_the_states_are_as_they_were_and_the_records_since_are_read_again(
    rig: SavedRig, tmp_path: Path, spout: str, folder: bool
) -> None:
    test = rig.start(SPOUTS[spout])
    test.run()
    before = rig.all_rows()
    create_savepoint("words", "monday", rig.settings, to=tmp_path / "saved" if folder else None)
    more(rig)
    assert totals(rig, 0) == totals(rig, 1) == truth()
    done = go_back(rig, "monday")
    assert (done.to, done.savepoint, done.txid, done.undone) == (2, "monday", 5, (3, 4))
    assert rig.all_rows() == before
    for number in (0, 1):
        assert ledger(rig, number)[-1] == (5, "committed", {"to": 2, "savepoint": "monday", "last": 4})
    test.restart()
    test.run()
    assert totals(rig, 0) == totals(rig, 1) == truth(), "each record counts once"
    txids = [txid for txid, _, _ in ledger(rig, 0)]
    assert txids == list(range(1, 8)), "a txid is never used again"
    assert {row[0] for row in rig.rows(1, "kept")} == set("abcd")
    again = go_back(rig, "monday")
    assert (again.txid, rig.all_rows()) == (8, before), "as often as one likes"


def folded(changes: list[dict[str, Any]], into: dict[str, int]) -> dict[str, int]:
    """What a reader of these changes has, after what it had."""
    for one in sorted(changes, key=lambda one: one["txid"]):
        if one["txstream_gone"]:
            into.pop(one["word"], None)
        else:
            into[one["word"]] = one.get("n") or one["number"]
    return into


@pytest.mark.parametrize(
    ("spout", "to", "dies"),
    [
        ("opaque", "monday", ""),
        ("transactional", "monday", "database 0 put back"),
        pytest.param("opaque", "monday", "database 1 put back", marks=pytest.mark.soak),
        ("opaque", "3", "database 0 put back"),
    ],
)
def test_who_follows_a_table_is_told_what_was_put_back(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch, spout: str, to: str, dies: str
) -> None:
    test = rig.start(SPOUTS[spout], tells=True)
    tables = {"words_0": 0, "words_1": 1, "kept": 1}

    def changes(since: int) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for table, number in tables.items():
            with sqlite3.connect(rig.files[number]) as connection:
                connection.row_factory = sqlite3.Row
                rows = connection.execute(f"SELECT * FROM {table}_changes WHERE txid >= {since}")
                found[table] = [dict(row) for row in rows]
        return found

    def shown() -> dict[str, dict[str, int]]:
        return {
            table: {row[0]: row[1] for row in rig.rows(number, table)} for table, number in tables.items()
        }

    test.run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    readers = {table: folded(rows, {}) for table, rows in changes(0).items()}
    assert readers == shown()
    with monkeypatch.context() as patch, contextlib.suppress(Died):
        patch.setattr(rewinding, "_reached", partial(die_at, dies))
        go_back(rig, to)
    test.restart()
    assert ledger(rig, 0)[-1][0] == ledger(rig, 1)[-1][0] == 5
    told = changes(5)
    assert all(told.values())
    readers = {table: folded(rows, readers[table]) for table, rows in told.items()}
    assert readers == shown()
    keys = [(table, row["word"]) for table, rows in told.items() for row in rows]
    assert len(keys) == len(set(keys)), "a txid has one row of each key"
    unchanged = {("words_0", "b"), ("words_1", "b"), ("kept", "b")}
    assert unchanged.isdisjoint(keys)
    test.run()
    assert {table: folded(rows, readers[table]) for table, rows in changes(6).items()} == shown()


def die_at(step: str, reached: str) -> None:
    if step == reached:
        raise Died


def test_dead_letters_are_as_they_were_so_that_no_record_counts_twice(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Check, "bad", {"b", "d"})
    test = rig.start(letters=DeadLetters(max_share=1.0))
    test.run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)

    def letters() -> list[tuple[str, str]]:
        with sqlite3.connect(rig.files[0]) as connection:
            return sorted(connection.execute("SELECT place, status FROM txstream_dead_letter"))

    def retry() -> None:
        test._control.driver.requests.ask(Kind.RETRY, {})
        test.settle()
        test.commit()

    assert letters() == [("words/0@1", "dead"), ("words/0@5", "dead")]
    monkeypatch.setattr(Check, "bad", set())
    retry()
    assert totals(rig, 0) == totals(rig, 1) == truth()
    go_back(rig, "monday")
    assert letters() == [("words/0@1", "dead")], "that of a batch since is gone, and what was retried is dead"
    test.restart()
    test.run()
    assert totals(rig, 0) == totals(rig, 1) == truth(without="b")
    retry()
    assert totals(rig, 0) == totals(rig, 1) == truth()


def test_a_savepoint_of_what_was_undone_is_refused_once_its_dead_letters_are_gone(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Check, "bad", {"d"})
    test = rig.start(letters=DeadLetters(max_share=1.0))
    test.run()
    create_savepoint("words", "monday", rig.settings)
    rig.source.append("words/0", ("c", 4), ("a", 5))
    test.run()
    create_savepoint("words", "tuesday", rig.settings)
    tuesday = totals(rig, 0)
    rig.source.append("words/0", ("d", 6))
    test.run()
    create_savepoint("words", "wednesday", rig.settings)
    go_back(rig, "monday")
    assert go_back(rig, "tuesday").to == 3
    assert totals(rig, 0) == totals(rig, 1) == tuesday, "forward again"
    with pytest.raises(UsageError, match="the dead letters of txid 4 went with it when txid 5 undid it"):
        go_back(rig, "wednesday")
    assert totals(rig, 0) == tuesday
    test.restart()
    test.run()
    assert totals(rig, 0) == totals(rig, 1) == truth(without="d")


def test_a_late_write_that_drops_plans_does_not_drop_the_rewind(rig: SavedRig) -> None:
    test = rig.start(SPOUTS["transactional"])
    test.run()
    create_savepoint("words", "monday", rig.settings)
    rig.source.append("words/0", ("c", 4), ("a", 5), ("d", 6))
    test.crash(at=Point.BEFORE_COMMIT, txid=4)
    tree, late = test._control.driver._world.tree, list[str]()

    def is_late(when: str, write: str) -> None:
        if (when, write, late) == ("before", "rebuild", []):
            late.append(write)
            tree.delay_next_write()

    assert go_back(rig, "monday", is_late).txid == 4
    assert late, "there was a plan"
    tree.deliver_late()
    test.restart()
    test.run()
    assert totals(rig, 0) == totals(rig, 1) == truth()


def test_a_savepoint_of_an_attempt_that_was_undone_is_refused(rig: SavedRig) -> None:
    test = rig.start()
    test.run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    with contextlib.suppress(UsageError):
        test.crash()
    # Its answer was lost, and the batch was committed again by a later attempt.
    for file in rig.files:
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE txstream_batch SET attempt = attempt + 1 WHERE txid = 2")
    rows = rig.all_rows()
    with pytest.raises(UsageError, match="has what an attempt of txid 2 has committed that was undone"):
        go_back(rig, "monday")
    assert rig.all_rows() == rows


def test_those_who_look_back_do_not_see_what_was_undone(rig: SavedRig) -> None:
    test = rig.start()
    test.run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    go_back(rig, "monday")
    options: Any = {"settings": rig.settings, "timeout_seconds": 0}
    with pytest.raises(inspect.NotKnownError, match="is at offset 3 there as of txid 5"):
        inspect.wait_for("words", "words", 0, 4, **options)
    assert inspect.wait_for("words", "words", 0, 0, **options).txid == 1
    test.restart()
    test.run()
    assert inspect.wait_for("words", "words", 0, 4, **options).txid == 6
    found = inspect.why(test.topology, "words_0", ["a"], rig.settings)
    assert {(part.txid, part.offset) for part in found.parts} == {(1, 0), (2, 2), (6, 4)}
    assert found.is_complete
    assert inspect.replay(test.topology, 6, rig.settings, last=7).same


@BOTH
@pytest.mark.parametrize("step", ["plans dropped", "inside", "database 0 put back", "database 1 put back"])
def test_a_rewind_that_dies_is_finished_or_not_begun_at_the_next_start(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch, spout: str, step: str
) -> None:
    test = rig.start(SPOUTS[spout])
    test.run()
    before = rig.all_rows()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    after = rig.all_rows()

    def reached(name: str) -> None:
        if name == step:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(rewinding, "_reached", reached)
        with pytest.raises(Died):
            go_back(rig, "monday")
    begun = step.startswith("database")
    if step == "database 0 put back":
        assert ledger(rig, 0)[-1][0] == 5
        assert ledger(rig, 1)[-1][0] == 4, "the databases are apart"
        with pytest.raises(UsageError, match="being rewound to savepoint 'monday'"):
            drop_savepoint("words", "monday", rig.settings)
    test.restart()
    assert rig.all_rows() == (before if begun else after)
    test.run()
    assert totals(rig, 0) == totals(rig, 1) == truth()
    rewinds = [[txid for txid, _, told in ledger(rig, number) if told] for number in (0, 1)]
    assert rewinds == ([[5], [5]] if begun else [[], []])


def test_windows_close_after_a_rewind_when_they_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing_driver, "Driver", partial(Driver, settlers=[settle]))
    file, settings = tmp_path / "state.db", Settings(database=f"sqlite:///{tmp_path / 'state.db'}")

    def watermarks() -> dict[int, Any]:
        return {txid: one["horizons"]["clicks"]["watermark"] for txid, one in metas(file).items()}

    with (
        MemorySpout(FIELDS, {"p0": rows("p0", 0, 30)}) as source,
        TopologyTest(graph(source), database=settings.database, clock=ManualClock(2e9)) as test,
    ):
        test.run()
        create_savepoint("t", "monday", settings)
        source.append("p0", *rows("p0", 200, 260))
        test.run()
        first = watermarks()[2]
        assert first is not None, "by what batch 1 has told"
        test.crash()
        store = MemoryProgress(test._control.driver._world.tree, "t", MetaCodec(MemoryRange))
        identity = store.read_identity()
        assert identity is not None
        with opened("t", settings) as databases:
            done = rewind_in("t", "monday", identity, store, databases, MetaCodec(MemoryRange))
        test.restart()
        test.run()
    assert watermarks()[done.txid + 1] == first


@pytest.mark.parametrize("commit", ["auto", pytest.param("executors", marks=pytest.mark.soak)])
def test_windows_that_are_open_again_are_emitted_again_when_they_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Any
) -> None:
    """Back to where a window is closed and not emitted yet, and then to before it closed. A table that takes
    no window twice gets each once."""
    monkeypatch.setattr(testing_driver, "Driver", partial(Driver, settlers=[settle]))
    file, settings = tmp_path / "state.db", Settings(database=f"sqlite:///{tmp_path / 'state.db'}")

    def emitting(builder: TransactionalTopologyBuilder) -> None:
        builder.set_bolt("closed", ClosedBolt("count")).local_or_shuffle_grouping("clicks")
        final = SqlTable("final", "n bigint", key="page string, window_start timestamp")
        builder.set_bolt("final", SqlAppendBolt(final)).global_grouping("closed", stream="closed")

    def emitted() -> list[int]:
        return [n for (n,) in query(file, "SELECT n FROM final ORDER BY window_start")]

    with (
        MemorySpout(FIELDS, {"p0": rows("p0", 0, 30)}) as source,
        TopologyTest(
            graph(source, below=emitting, commit=commit), database=settings.database, clock=ManualClock(2e9)
        ) as test,
    ):

        def come(*minutes: float) -> None:
            """Each in a batch of its own."""
            for one in minutes:
                source.append("p0", *rows("p0", one))
                test.run()

        def back(to: str) -> None:
            test.crash()
            store = MemoryProgress(test._control.driver._world.tree, "t", MetaCodec(MemoryRange))
            identity = store.read_identity()
            assert identity is not None
            with opened("t", settings) as databases:
                rewind_in("t", to, identity, store, databases, MetaCodec(MemoryRange))
            test.restart()
            test.run()

        test.run()
        come(75)
        create_savepoint("t", "open", settings)
        come(76)  # closes 12:00
        create_savepoint("t", "closed", settings)
        assert emitted() == []
        come(77, 140, 141)  # emits it, and closes 13:00
        come(142)
        assert emitted() == [2, 3]
        back("closed")
        assert emitted() == [2]  # by the batch that reads all the others again
        come(143, 144)
        assert emitted() == [2, 3]
        back("open")
        assert emitted() == []
        come(145)
        assert emitted() == [2]
        come(146)
        assert emitted() == [2, 3]


def test_a_driver_of_before_writes_nothing_into_a_rewound_table(rig: SavedRig) -> None:
    test = rig.start()
    test.run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    old = rig.all_rows()
    with opened("words", rig.settings) as databases:
        fences = [one.read_fence("words") for one in databases]
    go_back(rig, "monday")
    rewound = rig.all_rows()
    assert rewound != old
    with opened("words", rig.settings) as databases:
        for database, fence in zip(databases, fences, strict=True):
            assert fence is not None
            states = database.of("words", fence.uuid, test.topology.semantics)
            with pytest.raises(StaleAttemptError):
                states.raise_fence(fence.attempt)
    assert rig.all_rows() == rewound


@pytest.mark.soak
def test_a_rewind_that_somebody_has_overtaken_puts_nothing_back(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = rig.start()
    test.run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    rows = rig.all_rows()

    def overtake(step: str) -> None:
        if step == "plans dropped":
            test.restart()

    monkeypatch.setattr(rewinding, "_reached", overtake)
    with pytest.raises(StaleAttemptError):
        go_back(rig, "monday")
    assert (rig.all_rows(), len(ledger(rig, 0))) == (rows, 4)


def test_the_last_batch_of_an_opaque_topology_is_undone_without_a_savepoint(rig: SavedRig) -> None:
    test = rig.start()
    test.run()
    rig.source.append("words/0", ("c", 4), ("a", 5))
    before = {name: [row[:2] for row in rows] for name, rows in rig.all_rows().items()}
    test.run()
    done = go_back(rig, "2")
    assert (done.to, done.savepoint, done.txid) == (2, None, 4)
    assert {name: [row[:2] for row in rows] for name, rows in rig.all_rows().items()} == before
    test.restart()
    test.run()
    assert totals(rig, 0) == totals(rig, 1) == dict(Counter("abaca"))


def test_what_cannot_be_gone_back_to_is_refused_with_what_would_work(rig: SavedRig) -> None:
    test = rig.start()
    test.run()
    create_savepoint("words", "monday", rig.settings)
    with pytest.raises(UsageError, match="is at txid 2: it can go back to an earlier one, not to 2"):
        go_back(rig, "monday")
    test.restart()
    more(rig)
    rows = rig.all_rows()
    for to, told in {
        "1": r"rows of words_0 know only what .*; what would work: savepoint monday \(txid 2\), txid 3",
        "4": "is at txid 4: it can go back to an earlier one, not to 4",
        "9": "not to 9",
        "sunday": "has no savepoint 'sunday'; it has monday",
        "0": "has no txid 0 in its ledger",
    }.items():
        with pytest.raises(UsageError, match=told):
            go_back(rig, to)
    assert rig.all_rows() == rows
    test.restart()
    go_back(rig, "2")
    with pytest.raises(UsageError, match=r"txid 5 is a rewind itself; what would work: savepoint monday"):
        go_back(rig, "4")


def test_a_savepoint_is_dropped_before_a_rewind_to_it_begins_or_after_it_is_done(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = rig.start()
    test.run()
    for name in ("monday", "tuesday"):
        create_savepoint("words", name, rig.settings)
    before = rig.all_rows()
    more(rig)
    rows, read, looks = rig.all_rows(), savepoints.saved_in, list[str]()

    def drop(step: str) -> None:
        """Begin to drop it, and die."""
        if step == "plans dropped":
            with pytest.raises(Died):
                drop_savepoint("words", "monday", rig.settings)

    def look(*of: Any) -> Any:
        """Look at what is to be dropped; a rewind to it begins before it is."""
        found = read(*of)
        looks.append("")
        if len(looks) == 3:  # once for each database to find it, then before it is dropped
            with pytest.raises(Died):
                go_back(rig, "tuesday")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(rewinding, "_reached", drop)
        patch.setattr(savepoints, "_reached", partial(die_at, "marked"))
        with pytest.raises(UsageError, match=r"'monday' of txid 2 of topology 'words' is not in .* any more"):
            go_back(rig, "monday")
    assert (rig.all_rows(), len(ledger(rig, 0))) == (rows, 4), "nothing was changed"
    with monkeypatch.context() as patch:
        patch.setattr(rewinding, "_reached", partial(die_at, "database 0 put back"))
        patch.setattr(savepoints, "saved_in", look)
        with pytest.raises(UsageError, match="is being rewound to savepoint 'tuesday'"):
            drop_savepoint("words", "tuesday", rig.settings)
    test.restart()
    assert rig.all_rows() == before, "the next start finishes it"


def test_a_transactional_topology_needs_a_savepoint(rig: SavedRig) -> None:
    rig.start(SPOUTS["transactional"]).run()
    with pytest.raises(UsageError, match="is transactional and keeps no earlier values; what would work"):
        go_back(rig, "1")


def test_a_batch_that_is_committed_in_part_is_finished_first(rig: SavedRig) -> None:
    test = rig.start()
    test.run()
    create_savepoint("words", "monday", rig.settings)
    rig.source.append("words/0", ("c", 4), ("a", 5))
    test.crash(at=Point.BETWEEN_COMMITS, txid=3)
    with pytest.raises(UsageError, match="txid 3 is committed in part; let `txstream run` finish it"):
        go_back(rig, "monday")


def test_a_file_that_is_not_what_was_saved_is_refused_before_anything_is_written(
    rig: SavedRig, tmp_path: Path
) -> None:
    rig.start().run()
    create_savepoint("words", "monday", rig.settings, to=tmp_path / "saved")
    more(rig)
    rows = rig.all_rows()
    file = next((tmp_path / "saved").glob("*words_1.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptStateError, match="has another digest than the manifest"):
        go_back(rig, "monday")
    assert rig.all_rows() == rows
