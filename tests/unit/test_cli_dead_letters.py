"""`txstream dead-letters`, `inspect.dead_letters`, and what other commands say about dead letters."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.memory_zookeeper import MemoryZooKeeper
from support.states import Rig, word_table
from unit.test_dead_letter_rows import WHEN, letter, retried, write

from txstream import inspect
from txstream.cli import letter_commands, status
from txstream.cli.main import main
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.transaction import Txid
from txstream.inspect import source
from txstream.inspect.source import SourceNow
from txstream.settings import Settings
from txstream.state import StateDatabase, open_database
from txstream.state.stored_letters import retried_in

Tell = Callable[..., str]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def bad(rig: Rig) -> Rig:
    """Two batches. The first left out three records, of which txid 2 has retried one."""
    rig.commit(1, {"a": 1})
    typo = replace(
        letter(9), component="count", exception="KeyError", value=b"\xff\x00", message="KeyError: 'id'"
    )
    write(rig, 1, [letter(7), letter(8), typo])
    rig.commit(2, {"a": 1})
    retried(rig, [(1, 7)], 2)
    return rig


@pytest.fixture
def tell(bad: Rig, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Runs a command on the database, and returns what it prints."""

    def told(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main([*words, "--database", bad.url]) == status
        out, err = capsys.readouterr()
        return out if status == 0 else err

    return told


def test_list_groups_by_component_and_exception(tell: Tell) -> None:
    lines = [line.split() for line in tell("dead-letters", "list", "words").splitlines() if line.strip()]
    assert lines[0] == ["component", "exception", "dead", "retried", "newest", "when", "message"]
    assert [line[:5] for line in lines[2:]] == [
        ["count", "KeyError", "1", "0", "orders/3@9"],
        ["parse", "ValueError", "1", "1", "orders/3@8"],
    ]


def test_list_for_scripts(tell: Tell) -> None:
    found = json.loads(tell("dead-letters", "list", "words", "--json"))
    shared = {"txid": 1, "topic": "orders", "partition": 3}
    parse = shared | {"component": "parse", "exception": "ValueError", "message": "no JSON"}
    count = shared | {"component": "count", "exception": "KeyError", "message": "KeyError: 'id'"}
    assert found == {
        "dead_letters": [
            parse | {"offset": 7, "status": "retried in txid 2"},
            parse | {"offset": 8, "status": "dead"},
            count | {"offset": 9, "status": "dead"},
        ]
    }


@pytest.mark.parametrize(
    ("chosen", "offsets"),
    [
        (["--component", "count"], [9]),
        (["--component", "count", "--component", "parse"], [7, 8, 9]),
        (["--since", WHEN.isoformat()], [7, 8, 9]),
        (["--since", (WHEN + timedelta(seconds=1)).isoformat()], []),
    ],
)
def test_list_takes_some(tell: Tell, chosen: list[str], offsets: list[int]) -> None:
    found = json.loads(tell("dead-letters", "list", "words", "--json", *chosen))
    assert [one["offset"] for one in found["dead_letters"]] == offsets


def test_a_topology_without_any(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.commit(1, {"a": 1})
    assert main(["dead-letters", "list", "words", "--database", rig.url]) == 0
    assert capsys.readouterr() == ("", "words has no dead letter\n")
    assert main(["dead-letters", "list", "nobody", "--database", rig.url]) == 1


@pytest.mark.parametrize("partition", ["3", "orders/3"])
def test_show(tell: Tell, partition: str) -> None:
    told = tell("dead-letters", "show", "words", partition, "8")
    lines = dict(line.split(maxsplit=1) for line in told.splitlines()[:7])
    assert lines["record"] == "orders/3@8 of words"
    assert lines["status"].startswith("dead, left out by txid 1")
    assert (lines["key"], lines["value"]) == ("hex 00ff", "{")
    assert lines["error"] == "ValueError: no JSON"
    assert told.endswith("Traceback\n  ValueError: no JSON\n")
    (headers,) = (json.loads(lines["headers"]),)
    assert base64.b64decode(headers[0][1]) == b"\x00\xff"


def test_show_names_the_exception_once(tell: Tell) -> None:
    assert "error      KeyError: 'id'\n" in tell("dead-letters", "show", "words", "3", "9")


def test_list_cuts_long_messages(rig: Rig, tell: Tell) -> None:
    write(rig, 2, [replace(letter(10), component="last", message=f"begins {'x' * 500} ends")])
    (line,) = (line for line in tell("dead-letters", "list", "words").splitlines() if "last" in line)
    assert "begins" in line
    assert line.rstrip().endswith("ends")
    assert len(line) < 300


def test_show_for_scripts(tell: Tell) -> None:
    found = json.loads(tell("dead-letters", "show", "words", "orders/3", "9", "--json"))
    assert (found["value"], found["when"], found["status"]) == ("ff00", WHEN.isoformat(), "dead")


@pytest.mark.parametrize("asked", [("orders/3", "1"), ("orders/4", "8"), ("4", "8")])
def test_show_what_is_not_there(tell: Tell, asked: tuple[str, str]) -> None:
    assert "has no dead letter" in tell("dead-letters", "show", "words", *asked, status=1)


def test_show_names_the_partitions_that_fit(bad: Rig, tell: Tell) -> None:
    write(bad, 3, [replace(letter(8), source="refunds/3@8", topic="refunds")])
    assert "orders/3@8, refunds/3@8" in tell("dead-letters", "show", "words", "3", "8", status=2)


def test_export(tell: Tell, bad: Rig, tmp_path: Path) -> None:
    said = tell("dead-letters", "export", "words", "--out", "dead.parquet")
    assert said == "wrote 3 dead letters to dead.parquet\n"
    assert pq.read_table(tmp_path / "dead.parquet").equals(inspect.dead_letters("words", at(bad)))
    said = tell("dead-letters", "export", "words", "--out", "dead.jsonl", "--component", "count", "--json")
    assert json.loads(said) == {"path": "dead.jsonl", "dead_letters": 1}
    (row,) = map(json.loads, (tmp_path / "dead.jsonl").read_text().splitlines())
    assert (row["key"], row["value"], row["timestamp"]) == ("00ff", "ff00", letter(9).timestamp_ms)


@pytest.mark.parametrize("out", ["dead.csv", "nowhere/dead.jsonl"])
def test_export_refuses(tell: Tell, out: str) -> None:
    assert f"--out {out}" in tell("dead-letters", "export", "words", "--out", out, status=2)


def test_drop(tell: Tell, bad: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(letter_commands, "open_zookeeper", zookeeper.opened)
    assert "there is no terminal to ask at" in tell("dead-letters", "drop", "words", status=2)
    assert bad.database.dead_letters("words")
    assert "ZooKeeper" in tell("dead-letters", "drop", "words", "--yes", status=2)
    assert bad.database.dead_letters("words")
    known = ("--zookeeper", "127.0.0.1:1")
    said = tell("dead-letters", "drop", "words", "--component", "parse", "--yes", *known)
    assert said == "deleted 2 dead letters of words\n"
    assert [one.letter.offset for one in bad.database.dead_letters("words")] == [9]
    assert json.loads(tell("dead-letters", "drop", "words", "-y", "--json", *known)) == {
        "topology": "words",
        "dropped": 1,
    }


def test_as_arrow(bad: Rig) -> None:
    found = inspect.dead_letters("words", at(bad))
    assert found.schema == inspect.dead_letters("words", at(bad), component="nobody").schema
    first = found.to_pylist()[0]
    assert (first["status"], first["when"]) == (retried_in(Txid(2)), WHEN)
    given = DeadLetter(
        source=first["place"],
        timestamp_ms=first["timestamp"],
        **{
            name: first[name]
            for name in DeadLetter.__dataclass_fields__
            if name not in ("source", "timestamp_ms")
        },
    )
    assert given == letter(7)
    light = inspect.dead_letters("words", at(bad), whole=False)
    assert "value" not in light.column_names
    assert isinstance(light, pa.Table)
    with pytest.raises(UsageError, match="time zone"):
        inspect.dead_letters("words", at(bad), since=datetime(2026, 1, 1))
    assert inspect.dead_letters("words", at(bad), since=datetime.now(UTC)).num_rows == 0


def test_those_of_every_database(bad: Rig, tmp_path: Path) -> None:
    """Code that changes may put another database first."""
    other = f"sqlite:///{tmp_path / 'other.db'}"
    database = open_database(other)
    second = Rig(database, other, word_table("other_count")).join()
    write(second, 2, [letter(1)])
    database.close()
    found = inspect.dead_letters("words", replace(at(bad), state_databases=(other,)))
    assert found.column("offset").to_pylist() == [7, 8, 9, 1]
    assert found.column("database").to_pylist()[-1] == other


def test_batches_and_show_say_how_many(tell: Tell) -> None:
    rows = [line.split() for line in tell("batches", "words").splitlines() if line.strip()]
    assert rows[0][:5] == ["txid", "status", "tuples", "dead", "letters"]
    assert [row[:4] for row in rows[2:]] == [["1", "committed", "7", "3"], ["2", "committed", "7", "0"]]
    assert [one["dead_letters"] for one in json.loads(tell("batches", "words", "--json"))] == [3, 0]
    assert "dead       3 records left out; `txstream dead-letters list words`" in tell("show", "words", "1")
    assert "left out" not in tell("show", "words", "2")
    assert json.loads(tell("show", "words", "1", "--json"))["dead_letters"] == 3


def test_status_says_how_many_are_dead(
    bad: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    monkeypatch.setattr(source, "source_now", lambda *_: SourceNow(1))
    zookeeper.run_topology("words")

    def told(*more: str) -> str:
        assert main(["status", "words", "--database", bad.url, "--zookeeper", "127.0.0.1:1", *more]) == 0
        return capsys.readouterr().out

    assert "dead       2 records left out; `txstream dead-letters list words` says why\n" in told()
    document: dict[str, Any] = json.loads(told("--json"))
    assert (document["dead_letters"], document["late_records"]) == (2, 0)
    late = [replace(letter(at), exception="LateRecordError") for at in (11, 12, 13)]
    write(bad, 2, late)
    retried(bad, [(2, 11)], 3)
    assert "dead       4 records left out, 2 of them late; `txstream dead-letters list words` sa" in told()
    document = json.loads(told("--json"))
    assert (document["dead_letters"], document["late_records"]) == (4, 2)
    retried(bad, [(1, 8), (1, 9), (2, 12), (2, 13)], 3)
    assert "left out" not in told()
    document = json.loads(told("--json"))
    assert (document["dead_letters"], document["late_records"]) == (0, 0)
    monkeypatch.setattr(
        "txstream.inspect.databases.databases_of", lambda _: [f"sqlite:///{bad.topology}.gone.db"]
    )
    document = json.loads(told("--json"))
    assert document["dead_letters"] is document["late_records"] is None, "what was not looked at is not known"

    def away(database: StateDatabase) -> None:
        raise ServiceUnavailableError(f"database {database.display_url} does not answer")

    monkeypatch.setattr(StateDatabase, "check", away)
    assert "tables     words in a database that could not be looked at\n" in told()


def at(rig: Rig) -> Settings:
    return Settings(database=rig.url)
