"""Savepoints: all states of all databases as of one txid, beside a topology that goes on."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.saved_rigs import BOTH, SPOUTS, SavedRig

from txstream.api.spouts import NonTransactionalSpout, TransactionalSpout
from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.fault_points import Point
from txstream.inspect.databases import UnknownTopologyError
from txstream.plugins.change import savepoints
from txstream.plugins.change.savepoints import create_savepoint, drop_savepoint
from txstream.spouts.memory import MemorySpout


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SavedRig]:
    with MemorySpout("word string, number bigint", {"words/0": [("a", 1), ("b", 2), ("a", 3)]}) as source:
        made = SavedRig(tmp_path, source)
        yield made
        if made.test is not None:
            made.test.close()


@BOTH
def test_a_savepoint_keeps_every_column_of_every_table_as_of_one_txid(rig: SavedRig, spout: str) -> None:
    test = rig.start(SPOUTS[spout])
    test.run()
    before = rig.all_rows()
    made = create_savepoint("words", "monday", rig.settings)
    assert made.txid == 2
    rig.source.append("words/0", ("c", 4), ("a", 5))
    test.run()
    assert rig.all_rows() != before
    copies = {
        name: rig.rows(number, f"{name}__sp_monday")
        for number, name in ((0, "words_0"), (1, "words_1"), (1, "kept"))
    }
    assert copies == before
    assert [row["word"] for row in test.rows("words_0")] == ["a", "b", "c"], "the topology went on"
    (listed,) = savepoints.savepoints("words", rig.settings)
    assert (listed.name, listed.txid, listed.is_whole, listed.bytes) == ("monday", 2, True, made.bytes)
    assert made.bytes > 0
    drop_savepoint("words", "monday", rig.settings)
    assert not [name for number in (0, 1) for name in rig.tables(number) if "__sp_" in name]
    assert savepoints.savepoints("words", rig.settings) == []


def test_a_folder_has_parquet_files_and_their_digests(rig: SavedRig, tmp_path: Path) -> None:
    rig.start().run()
    folder = tmp_path / "saved"
    made = create_savepoint("words", "monday", rig.settings, to=folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["txid"], manifest["name"], manifest["semantics"]) == (2, "monday", "opaque")
    found = {}
    for tables in manifest["databases"].values():
        for one in tables:
            data = (folder / one["copy"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == one["sha256"]
            rows = pq.read_table(folder / one["copy"]).to_pylist()
            assert len(rows) == one["rows"]
            found[one["table"]] = sorted(tuple(row.values()) for row in rows)
    assert found == rig.all_rows()
    files = [one for one in folder.iterdir() if one.suffix == ".parquet"]
    assert made.bytes == sum(one.stat().st_size for one in files)
    with pytest.raises(UsageError, match="is not empty"):
        create_savepoint("words", "tuesday", rig.settings, to=folder)
    drop_savepoint("words", "monday", rig.settings)
    assert not folder.exists()


def test_while_executors_commit_an_opaque_savepoint_is_as_of_the_batch_before(rig: SavedRig) -> None:
    test = rig.start(commit="executors")
    test.run()
    before = rig.all_rows()
    rig.source.append("words/0", ("c", 4), ("a", 5))
    test.crash(at=Point.INSIDE_COMMIT, txid=3)
    assert rig.all_rows() != before, "the driver died when shares were written"
    made = create_savepoint("words", "before", rig.settings)
    assert made.txid == 2
    for number, name in ((0, "words_0"), (1, "words_1")):
        saved = {word: n for word, n, *_ in rig.rows(number, f"{name}__sp_before")}
        assert saved == {word: n for word, n, *_ in before[name]} == {"a": 2, "b": 1}
    assert [row[:2] for row in rig.rows(1, "kept__sp_before")] == [row[:2] for row in before["kept"]]
    saved_rows = rig.rows(0, "words_0__sp_before")
    assert all(None not in (n, txid) and txid <= 2 for _, n, _, txid in saved_rows)
    assert [prev for word, _, prev, _ in saved_rows if word == "a"] == [2], "what it held before is not known"


def test_there_is_no_moment_while_databases_are_apart_or_a_transactional_batch_is_half_written(
    rig: SavedRig,
) -> None:
    test = rig.start(TransactionalSpout)
    test.run()
    rig.source.append("words/0", ("c", 4), ("a", 5))
    test.crash(at=Point.BETWEEN_COMMITS, txid=3)
    with pytest.raises(ServiceUnavailableError, match="have committed txid 2 to 3"):
        create_savepoint("words", "never", rig.settings, timeout_seconds=0)
    test.restart()
    test.run()
    assert create_savepoint("words", "later", rig.settings).txid == 3


def test_a_transactional_batch_of_executors_is_waited_for(rig: SavedRig) -> None:
    test = rig.start(TransactionalSpout, commit="executors")
    test.run()
    rig.source.append("words/0", ("c", 4), ("a", 5))
    test.crash(at=Point.INSIDE_COMMIT, txid=3)
    with pytest.raises(ServiceUnavailableError, match="executors are committing txid 3"):
        create_savepoint("words", "never", rig.settings, timeout_seconds=0)
    assert savepoints.savepoints("words", rig.settings) == []


def test_what_could_be_removed_only_in_part_is_half_made(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.start().run()
    removed = savepoints.remove

    def goes_away(step: str) -> None:
        if step == "database 0 made":
            raise ServiceUnavailableError("the second is away")

    def remove(database: Any, *of: Any) -> None:
        if database.display_url == rig.urls[0]:
            raise ServiceUnavailableError("the first is away, too")
        removed(database, *of)

    monkeypatch.setattr(savepoints, "_reached", goes_away)
    monkeypatch.setattr(savepoints, "remove", remove)
    with pytest.raises(ServiceUnavailableError, match="second"):
        create_savepoint("words", "half", rig.settings)
    (left,) = savepoints.savepoints("words", rig.settings)
    assert not left.is_whole


def test_what_is_half_made_is_told_and_removed(
    rig: SavedRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.start().run()

    def dies(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(savepoints, "_into_table", dies)
        with pytest.raises(KeyboardInterrupt):
            create_savepoint("words", "half", rig.settings)
        assert savepoints.savepoints("words", rig.settings) == [], "what fails is removed again"
        patch.setattr(savepoints, "remove", lambda *_: None)  # as when the process is killed
        with pytest.raises(KeyboardInterrupt):
            create_savepoint("words", "half", rig.settings)
    (half,) = savepoints.savepoints("words", rig.settings)
    assert not half.is_whole
    with pytest.raises(UsageError, match="half made at txid 2 already; choose another name, or"):
        create_savepoint("words", "half", rig.settings)
    away = ("--database", rig.urls[0])
    capsys.readouterr()
    assert main(["savepoint", "list", "words", *away]) == 0
    assert "half is half made; `txstream savepoint drop words half` removes it" in capsys.readouterr().err
    assert main(["savepoint", "list", "words", *away, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["savepoints"] == []
    assert main(["savepoint", "drop", "words", "half", *away, "--yes"]) == 0
    assert not [name for number in (0, 1) for name in rig.tables(number) if "__sp_" in name]
    assert create_savepoint("words", "half", rig.settings).is_whole


def test_names_that_are_refused_or_taken_and_a_database_that_is_away(rig: SavedRig) -> None:
    with pytest.raises(UnknownTopologyError):
        create_savepoint("words", "monday", rig.settings)
    rig.start().run()
    for name in ("", "Monday", "a b", "1a", "a" * 33, 'a"; DROP TABLE x'):
        with pytest.raises(UsageError, match="a savepoint cannot be named"):
            create_savepoint("words", name, rig.settings)
    with sqlite3.connect(rig.files[1]) as connection:
        connection.execute("CREATE TABLE words_1__sp_mine (x)")
    with pytest.raises(UsageError, match="has a table 'words_1__sp_mine', which is none of a savepoint"):
        create_savepoint("words", "mine", rig.settings)
    create_savepoint("words", "monday", rig.settings)
    with pytest.raises(UsageError, match="has a savepoint 'monday' of txid 2 already"):
        create_savepoint("words", "monday", rig.settings)
    with pytest.raises(UsageError, match="has no savepoint 'other'; it has monday"):
        drop_savepoint("words", "other", rig.settings)
    rig.files[1].rename(rig.files[1].with_suffix(".away"))
    with pytest.raises(ServiceUnavailableError, match=r"second\.db"):
        create_savepoint("words", "away", rig.settings)
    assert rig.rows(0, "words_0__sp_monday")
    assert "words_0__sp_away" not in rig.tables(0)


def test_a_topology_without_txids_is_refused(rig: SavedRig) -> None:
    rig.start(NonTransactionalSpout).run()
    with pytest.raises(UsageError, match="non-transactional"):
        create_savepoint("words", "monday", rig.settings)


def test_as_a_user_types_it(rig: SavedRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start().run()
    away = ("--database", rig.urls[0])
    capsys.readouterr()
    assert main(["savepoint", "create", "words", "monday", *away]) == 0
    assert capsys.readouterr().out == (
        "savepoint monday of words is as of txid 2: words_0__sp_monday, kept__sp_monday, words_1__sp_monday\n"
    )
    assert main(["savepoint", "list", "words", *away, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["savepoints"]
    assert set(listed) == {"name", "txid", "at", "bytes"}
    assert (listed["name"], listed["txid"]) == ("monday", 2)
    assert main(["savepoint", "drop", "words", "monday", *away]) == 2, "there is no terminal to ask at"
    capsys.readouterr()
    assert main(["savepoint", "list", "words", *away]) == 0
    assert "monday" in capsys.readouterr().out
