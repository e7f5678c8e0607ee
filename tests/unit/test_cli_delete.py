"""`txstream delete` where one id stands for two topologies: neither goes with the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.memory_zookeeper import MemoryZooKeeper
from support.recovering import empty_database
from support.states import Rig, word_table
from support.zookeeper_backends import IDENTITY

from txstream.cli import administration
from txstream.cli.main import main
from txstream.state import StateDatabase

ZOOKEEPERS = IDENTITY.uuid


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "state.db"
    file.write_bytes(empty_database())
    database = StateDatabase(f"sqlite:///{file}")
    made = Rig(database, f"sqlite:///{file}", word_table()).join()
    made.commit(1, {"a": 1})
    yield made
    database.close()


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    found = MemoryZooKeeper()
    found.run_topology("words", driver=False)
    monkeypatch.setattr(administration, "open_zookeeper", found.opened)
    return found


def delete(rig: Rig, *more: str) -> int:
    where = ["--database", rig.url, "--zookeeper", "127.0.0.1:1", "--drop-state", "--yes"]
    return main(["delete", "words", *where, *more])


def test_two_lives_are_not_deleted_at_once(
    rig: Rig, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rig.uuid != ZOOKEEPERS
    assert delete(rig) == 2
    told = capsys.readouterr().err
    assert f"uuid {ZOOKEEPERS} in ZooKeeper, {rig.uuid} in {rig.url}" in told
    assert "--uuid" in told
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
    assert f"no uuid nobody; there is {ZOOKEEPERS} in ZooKeeper" in capsys.readouterr().err
    assert zookeeper.topologies() == ["words"]


def test_what_zookeeper_has_may_be_unreadable(rig: Rig, zookeeper: MemoryZooKeeper) -> None:
    zookeeper.memory.write("/txstream/topologies/words/identity", b"nonsense")
    assert delete(rig) == 0
    assert zookeeper.topologies() == []
    assert rig.database.read_fence("words") is None
