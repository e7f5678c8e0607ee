"""`txstream db upgrade`, and what the commands that read say of a database that needs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.framework_contract import OLDER, old_database
from support.states import Rig

from txstream.cli.main import main
from txstream.state import open_sql_database
from txstream.state.sql import framework


def database_of(directory: Path, name: str, revision: str) -> tuple[str, Rig]:
    url = f"sqlite:///{directory / name}"
    database = open_sql_database(url)
    rig = old_database(database, url, revision)
    return url, rig


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)


@pytest.mark.parametrize("revision", OLDER)
@pytest.mark.parametrize(
    "command",
    [
        ["batches", "words"],
        ["show", "words", "1"],
        ["state", "list", "words"],
        ["state", "top", "words", "word_count"],
        ["state", "get", "words", "word_count", "a"],
    ],
    ids=" ".join,
)
def test_commands_that_read_name_the_upgrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], revision: str, command: list[str]
) -> None:
    url, _ = database_of(tmp_path, "old.db", revision)
    assert main([*command, "--database", url]) == 1
    told = capsys.readouterr().err
    assert f"are of revision {revision}, this txstream needs {framework.HEAD}" in told
    assert "`txstream db upgrade`" in told


def test_several_databases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, rig = database_of(tmp_path, "first.db", "0002")
    second, _ = database_of(tmp_path, "second.db", "0001")
    command = ["db", "upgrade", "--database", first, "--state-database", second]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["from"], document["to"]) == ("0002", framework.HEAD)
    (other,) = document["state_databases"]
    assert (other["from"], other["to"]) == ("0001", framework.HEAD)
    assert other["database"].endswith("second.db")
    assert rig.values() == {"a": 1, "b": 2}
    assert main(command) == 0
    assert capsys.readouterr().out.count(f"is at revision {framework.HEAD} already") == 2


def test_a_database_that_fails_does_not_hide_what_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = database_of(tmp_path, "first.db", "0002")
    missing = f"sqlite:///{tmp_path / 'none' / 'second.db'}"
    assert main(["db", "upgrade", "--database", first, "--state-database", missing]) == 1
    out, err = capsys.readouterr()
    assert f"first.db: upgraded from 0002 to revision {framework.HEAD}" in out
    assert "no folder" in err
