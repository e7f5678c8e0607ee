"""`txstream delete` asks first. If two topologies share an id, it does not delete one with the other."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa
from support.memory_zookeeper import MemoryZooKeeper
from support.recovering import empty_database
from support.states import Rig, name_databases, word_table
from support.zookeeper_backends import IDENTITY

from txstream import inspect
from txstream.cli.main import main
from txstream.core.errors import FencedError, ServiceUnavailableError
from txstream.plugins.audit import delete_command as delete_room
from txstream.state import StateDatabase

ZOOKEEPERS = IDENTITY.uuid
DATABASES = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "state.db"
    file.write_bytes(empty_database())
    database = StateDatabase(f"sqlite:///{file}")
    made = Rig(database, f"sqlite:///{file}", word_table(), uuid=DATABASES).join()
    made.commit(1, {"a": 1})
    yield made
    database.close()


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    found = MemoryZooKeeper()
    found.run_topology("words", driver=False)
    monkeypatch.setattr(delete_room, "open_zookeeper", found.opened)
    return found


def ask_to_delete(rig: Rig, *more: str) -> int:
    where = ["--database", rig.url, "--zookeeper", "127.0.0.1:1", "--drop-state"]
    return main(["delete", "words", *where, *more])


def delete(rig: Rig, *more: str) -> int:
    return ask_to_delete(rig, "--yes", *more)


# --- asking ----------------------------------------------------------------------------------------


class Terminal:
    """A real terminal, to which any of the standard streams can be connected."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._master, self._slave = pty.openpty()

    def type(self, answer: str) -> None:
        os.write(self._master, answer.encode())

    def becomes(self, *streams: str) -> None:
        for stream in streams:
            end = os.fdopen(os.dup(self._slave), "r" if stream == "stdin" else "w")
            self._monkeypatch.setattr(sys, stream, end)

    def shown(self, end: str) -> str:
        """Read until `end` is shown, since output comes through with a delay; return all that was read."""
        text, deadline = "", time.monotonic() + 30
        while end not in text:
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"{end!r} is not in {text!r}"
            text += os.read(self._master, 65536).decode()
        return text

    def close(self) -> None:
        for end in (self._master, self._slave):
            os.close(end)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    with monkeypatch.context() as patch:
        made = Terminal(patch)
        yield made
    made.close()


@pytest.fixture
def one_life(rig: Rig, zookeeper: MemoryZooKeeper) -> MemoryZooKeeper:
    zookeeper.delete_topology("words")
    zookeeper.run_topology("words", driver=False, uuid=rig.uuid)
    return zookeeper


@pytest.mark.parametrize("streams", [[], ["stdin"], ["stderr"]])
def test_nothing_is_deleted_where_nobody_can_be_asked(
    rig: Rig,
    one_life: MemoryZooKeeper,
    terminal: Terminal,
    streams: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`echo n | txstream delete ...`, and `txstream delete ... 2>/dev/null` at a terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    terminal.becomes(*streams)
    assert ask_to_delete(rig) == 2
    told = terminal.shown("--yes") if "stderr" in streams else capsys.readouterr().err
    assert "Nothing was changed" in told
    assert "--yes" in told
    assert one_life.topologies() == ["words"]
    assert rig.values() == {"a": 1}
    assert rig.fence() == rig.last().attempt


def test_no_is_a_status_of_1(
    rig: Rig, one_life: MemoryZooKeeper, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.type("n\n")
    terminal.becomes("stdin", "stderr")
    assert ask_to_delete(rig, "--json") == 1
    told = terminal.shown("txstream: nothing was changed\r\n")
    assert f"Delete words from ZooKeeper at 127.0.0.1:1 and {rig.url}: its progress and its" in told
    assert capsys.readouterr().out.strip() == ""
    assert one_life.topologies() == ["words"]
    assert rig.values() == {"a": 1}


def test_yes_deletes(rig: Rig, one_life: MemoryZooKeeper, terminal: Terminal) -> None:
    terminal.type("y\n")
    terminal.becomes("stdin", "stderr")
    assert ask_to_delete(rig) == 0
    assert one_life.topologies() == []


def test_recover_asks_as_well(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def recover(*_: Any, confirm: Callable[[str], bool], **__: Any) -> NoReturn:
        assert confirm("it is gone\ntxid 4 will be next")
        raise FencedError("it was rebuilt")

    monkeypatch.setattr(inspect, "recover", recover)
    command = ["recover", "words", "--from-ledger"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith("it is gone\ntxid 4 will be next\n")
    assert "Nothing was changed" in told
    assert "--yes" in told
    assert main([*command, "--yes"]) == FencedError.exit_status
    terminal.type("n\n")
    terminal.becomes("stdin", "stderr")
    assert main(command) == 1
    told = terminal.shown("txstream: nothing was changed\r\n")
    assert "Rebuild words in ZooKeeper from its ledgers? [y/N]" in told


# --- two lives -------------------------------------------------------------------------------------


def test_two_lives_are_not_deleted_at_once(
    rig: Rig, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rig.uuid != ZOOKEEPERS
    assert delete(rig) == 2
    told = capsys.readouterr().err
    assert f"uuid {ZOOKEEPERS} in ZooKeeper at 127.0.0.1:1, uuid {rig.uuid} in {rig.url}. Give" in told
    assert f"`--uuid {ZOOKEEPERS}` or `--uuid {rig.uuid}` deletes" in told
    assert zookeeper.topologies() == ["words"]
    assert rig.values() == {"a": 1}


def test_the_life_in_zookeeper_goes_alone(
    rig: Rig, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert delete(rig, "--uuid", ZOOKEEPERS, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["databases"], document["dropped_tables"]) == ([], [])
    assert zookeeper.topologies() == []
    assert rig.values() == {"a": 1}
    assert rig.fence() == rig.last().attempt


def test_the_life_in_the_database_goes_alone(
    rig: Rig, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert delete(rig, "--uuid", rig.uuid) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"deleted words from {rig.url}\n")
    assert "dropped word_count" in told
    assert zookeeper.topologies() == ["words"]
    assert rig.database.read_fence("words") is None


@pytest.mark.parametrize("more", [[], ["--uuid", "its own"]])
def test_one_life_goes_as_a_whole(rig: Rig, zookeeper: MemoryZooKeeper, more: list[str]) -> None:
    zookeeper.delete_topology("words")
    zookeeper.run_topology("words", driver=False, uuid=rig.uuid)
    assert delete(rig, *(rig.uuid if one == "its own" else one for one in more)) == 0
    assert zookeeper.topologies() == []
    assert rig.database.read_fence("words") is None


def test_an_unknown_life_is_refused(
    rig: Rig, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert delete(rig, "--uuid", "nobody") == 2
    told = capsys.readouterr().err
    assert f"no uuid nobody here; there is uuid {ZOOKEEPERS} in ZooKeeper at 127.0.0.1:1, uuid" in told
    assert zookeeper.topologies() == ["words"]
    assert rig.values() == {"a": 1}


# --- a part of one life ----------------------------------------------------------------------------


def test_another_zookeeper_takes_nothing_away(
    rig: Rig, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """`TXSTREAM_ZOOKEEPER=<another> txstream delete words -y` is refused. If the topology's own ZooKeeper is
    lost for good, `--uuid` deletes it on purpose."""
    zookeeper.delete_topology("words")
    assert delete(rig) == 2
    told = capsys.readouterr().err
    assert f"uuid {rig.uuid} in {rig.url}, nothing in ZooKeeper at 127.0.0.1:1. Give the right" in told
    assert f"`--uuid {rig.uuid}` deletes" in told
    assert rig.values() == {"a": 1}
    assert rig.fence() == rig.last().attempt
    assert delete(rig, "--uuid", rig.uuid, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["zookeeper"], document["databases"]) == (None, [rig.url])
    assert document["dropped_tables"] == ["word_count"]
    assert rig.database.read_fence("words") is None


@pytest.mark.parametrize("file", ["other.db", "none.db"])
def test_another_database_takes_nothing_away(
    rig: Rig, zookeeper: MemoryZooKeeper, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.db").write_bytes(empty_database())
    other = ["--database", f"sqlite:///{tmp_path / file}"]
    assert delete(rig, *other) == 2
    told = capsys.readouterr().err
    assert f"uuid {ZOOKEEPERS} in ZooKeeper at 127.0.0.1:1, nothing in " in told
    assert f"{file}" in told
    assert zookeeper.topologies() == ["words"]
    assert delete(rig, *other, "--uuid", ZOOKEEPERS) == 0
    assert capsys.readouterr().out == "deleted words from ZooKeeper at 127.0.0.1:1\n"
    assert zookeeper.topologies() == []
    assert not (tmp_path / "none.db").exists()
    assert rig.values() == {"a": 1}


def test_a_database_that_the_others_name_and_that_has_nothing(
    rig: Rig, one_life: MemoryZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was deleted half-way, or restored from an earlier copy."""
    (tmp_path / "second.db").write_bytes(empty_database())
    second = f"sqlite:///{tmp_path / 'second.db'}"
    assert delete(rig, "--state-database", second, "--drop-state") == 0, "it has never had to do with it"
    rig.join().commit(1, {"a": 1})
    one_life.run_topology("words", driver=False, uuid=rig.uuid)
    name_databases(rig, [rig.url, second])
    assert delete(rig) == 2
    assert f"nothing in {second}. Give" in capsys.readouterr().err
    assert one_life.topologies() == ["words"]
    assert delete(rig, "--uuid", rig.uuid) == 0
    assert one_life.topologies() == []


def test_a_delete_that_was_ended_half_way_is_typed_again(
    rig: Rig,
    one_life: MemoryZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It dies before each database. The given database goes last, and names the other until then."""
    (tmp_path / "second.db").write_bytes(empty_database())
    second = StateDatabase(f"sqlite:///{tmp_path / 'second.db'}")
    joined = Rig(second, second.display_url, word_table("totals"), uuid=rig.uuid).join()
    joined.commit(1, {"b": 1})
    name_databases(rig, [rig.url, joined.url])
    calls = count()
    usual = StateDatabase.delete

    def dying(database: StateDatabase, *arguments: Any, **options: Any) -> list[str]:
        if next(calls) in (0, 2):
            raise ServiceUnavailableError("the test has killed it")
        return usual(database, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StateDatabase, "delete", dying)
        assert delete(rig) == 1
        assert one_life.topologies() == []
        assert delete(rig) == 2
        assert f"`--uuid {rig.uuid}`" in capsys.readouterr().err
        assert delete(rig, "--uuid", rig.uuid) == 1
        assert second.read_fence("words") is None
        assert delete(rig, "--uuid", rig.uuid) == 0
    assert "dropped word_count" in capsys.readouterr().out
    assert (rig.database.read_fence("words"), second.read_fence("words")) == (None, None)
    second.close()


def test_a_fence_that_is_gone_is_known_by_its_ledger(rig: Rig, one_life: MemoryZooKeeper) -> None:
    with sa.create_engine(rig.url).begin() as connection:
        connection.exec_driver_sql("DELETE FROM txstream_fence")
    assert delete(rig) == 0
    assert one_life.topologies() == []


def test_tables_of_an_earlier_life_stay_until_it_is_named(
    rig: Rig, one_life: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be the results of something else. The error that refuses a run names this command."""
    rig.database.delete("words", drop_state=False)
    now = Rig(rig.database, rig.url, word_table("totals"), uuid=ZOOKEEPERS).join()
    now.commit(1, {"a": 5})
    one_life.delete_topology("words")
    one_life.run_topology("words", driver=False)
    assert delete(rig, "--uuid", rig.uuid) == 0
    assert capsys.readouterr().out == f"deleted words from {rig.url}\ndropped word_count\n"
    assert one_life.topologies() == ["words"]
    assert now.values() == {"a": 5}
    assert delete(rig) == 0
    assert "dropped totals" in capsys.readouterr().out


def test_what_zookeeper_has_may_be_unreadable(
    rig: Rig, one_life: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then nobody knows whose it is until `--uuid` says so."""
    one_life.memory.write("/txstream/topologies/words/identity", b"nonsense")
    assert delete(rig) == 2
    told = capsys.readouterr().err
    assert "what cannot be read (/txstream/topologies/words/identity: expected JSON" in told
    assert delete(rig, "--uuid", rig.uuid) == 0
    assert one_life.topologies() == []
    assert rig.database.read_fence("words") is None


def test_an_epoch_that_cannot_be_read_goes_too(rig: Rig, one_life: MemoryZooKeeper) -> None:
    one_life.memory.write("/txstream/topologies/words/epoch", b"nonsense")
    assert delete(rig) == 0
    assert one_life.topologies() == []


def test_what_is_unreadable_in_zookeeper_alone_goes(rig: Rig, one_life: MemoryZooKeeper) -> None:
    one_life.memory.write("/txstream/topologies/words/identity", b"nonsense")
    rig.database.delete("words", drop_state=True)
    assert delete(rig) == 0
    assert one_life.topologies() == []
