"""`txstream db upgrade`, and what commands that read say about a database that needs it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from support.old_revisions import OLDER, old_database
from support.states import Rig

from txstream.cli.main import main
from txstream.state import open_sql_database
from txstream.state.sql import framework_tables as framework


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
        ["dead-letters", "list", "words"],
        ["dead-letters", "show", "words", "p", "0"],
        ["dead-letters", "export", "words", "--out", "dead.jsonl"],
        ["dead-letters", "drop", "words", "--yes"],
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


@pytest.mark.parametrize("revision", OLDER)
def test_a_dry_run_prints_the_statements_which_are_the_upgrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], revision: str
) -> None:
    url, _ = database_of(tmp_path, "old.db", revision)
    file = tmp_path / "old.db"
    other, _ = database_of(tmp_path, "other.db", revision)
    before = schema(file)
    assert main(["db", "upgrade", "--dry-run", "--database", url]) == 0
    printed, said = capsys.readouterr()
    assert printed.startswith(f"-- {url}: from revision {revision} to {framework.HEAD}\n")
    assert "nothing was changed" in said
    assert schema(file) == before
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(printed)
    assert main(["db", "upgrade", "--database", other]) == 0
    assert schema(file) == schema(tmp_path / "other.db")
    database = open_sql_database(url)
    assert database.upgrade() == (framework.HEAD, framework.HEAD)
    database.close()


def test_a_dry_run_over_several_databases_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = database_of(tmp_path, "first.db", "0002")
    second, _ = database_of(tmp_path, "second.db", "0002")
    assert main(["db", "upgrade", "--database", second]) == 0
    capsys.readouterr()
    command = ["db", "upgrade", "--dry-run", "--json", "--database", first, "--state-database", second]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["from"], document["to"]) == ("0002", framework.HEAD)
    assert "ALTER TABLE txstream_fence ADD COLUMN identity" in document["sql"]
    (other,) = document["state_databases"]
    assert (other["from"], other["sql"]) == (framework.HEAD, "")


def test_a_dry_run_where_nothing_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run creates no file."""
    assert main(["db", "upgrade", "--dry-run"]) == 1
    assert "no such file" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.db"))
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    assert main(["db", "upgrade", "--dry-run", "--database", f"sqlite:///{tmp_path / 'empty.db'}"]) == 0
    printed = capsys.readouterr().out
    assert "from nothing to" in printed
    assert "CREATE TABLE txstream_fence" in printed


def schema(file: Path) -> list[tuple[str, str]]:
    """The columns of all tables, and the framework's revision."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        columns = [
            (name, str(sorted(connection.execute(f"PRAGMA table_info({name})").fetchall())))
            for name in sorted(names)
        ]
        revision = str(connection.execute(f"SELECT version_num FROM {framework.VERSION_TABLE}").fetchall())
    return [*columns, ("revision", revision)]
