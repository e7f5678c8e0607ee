"""`fsck` with damaged framework tables in a database: one cause gives one finding, with its remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.recovering import Site

from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.cli.main import main
from txstream.core.errors import CorruptStateError, ProgressMismatchError, StateTableError
from txstream.inspect.databases import open_databases
from txstream.inspect.records import Finding, FsckReport, Severity
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.settings import Settings
from txstream.state import StateDatabase
from txstream.state.sql.errors import Failure, Kind, to_error


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Any]:
    made: list[Site] = []

    def make(databases: int = 2, spout: Any = OpaqueSpout, txid: int = 3) -> Site:
        site = Site(tmp_path, spout, databases)
        made.append(site)
        site.test.commit(txid)
        site.test.crash()
        return site

    yield make
    for site in made:
        site.close()


def opened(site: Site) -> FsckReport:
    """Check as the command does: open the run's database and also those that its fence names."""
    settings = Settings(database=site.urls[0])
    with open_databases(settings, "words", strict=False) as databases:
        return fsck_in(
            "words", site.store, databases.opened, settings,
            topology=site.topology, missing=databases.missing,
        )  # fmt: skip


def only(report: FsckReport, code: str) -> Finding:
    """Return the report's only finding, which must be an error with this code."""
    found = [(one.code, one.where) for one in report.findings]
    assert [one.code for one in report.findings] == [code], found
    assert report.findings[0].severity is Severity.ERROR
    return report.findings[0]


@pytest.mark.parametrize("table", ["txstream_batch", "txstream_table"])
def test_a_table_of_the_framework_that_was_dropped(make_site: Any, table: str) -> None:
    site = make_site()
    site.execute(1, f"DROP TABLE {table}")
    finding = only(opened(site), "framework-damaged")
    assert finding.where.endswith("1.db")
    assert table in finding.what
    assert "backup" in finding.remedy


@pytest.mark.parametrize("table", ["txstream_fence", "txstream_alembic_version"])
def test_a_dropped_table_without_which_nothing_is_read(make_site: Any, table: str) -> None:
    site = make_site()
    site.execute(0, f"DROP TABLE {table}")
    report = opened(site)
    assert {one.code for one in report.findings} <= {"database-missing", "framework-damaged"}
    assert table in report.findings[0].what
    assert "backup" in report.findings[0].remedy


def test_a_file_that_is_no_database(make_site: Any) -> None:
    site = make_site(databases=1)
    Path(site.urls[0].removeprefix("sqlite:///")).write_bytes(b"nothing of ours" * 100)
    finding = only(opened(site), "database-missing")
    assert "is damaged" in finding.what
    assert "backup" in finding.remedy


def test_an_identity_that_is_no_json_is_mended_as_it_is_told(make_site: Any) -> None:
    site = make_site(databases=1)
    site.execute(0, "UPDATE txstream_fence SET identity = 'nonsense'")
    finding = only(opened(site), "database-missing")
    assert "set it to NULL, and the next `txstream run` writes it again" in finding.what
    site.execute(0, "UPDATE txstream_fence SET identity = NULL")
    site.finish()
    site.test.crash()
    assert opened(site).findings == ()


def test_tables_of_an_older_revision(make_site: Any) -> None:
    site = make_site(databases=1)
    site.execute(0, "UPDATE txstream_alembic_version SET version_num = '0002'")
    finding = only(opened(site), "database-missing")
    assert "`txstream db upgrade" in finding.remedy
    assert site.urls[0] in finding.remedy


@pytest.mark.parametrize("column", ["planned_at", "committed_at"])
def test_a_time_that_is_none(make_site: Any, column: str) -> None:
    site = make_site()
    site.execute(1, f"UPDATE txstream_batch SET {column} = 'yesterday' WHERE txid = 2")
    finding = only(opened(site), "ledger-unreadable")
    assert "yesterday" in finding.what
    with pytest.raises(CorruptStateError, match=r"topology 'words'.*yesterday"):
        site.databases[1].batch("words", 2)


def test_a_lost_fence_hides_the_databases_that_it_names(make_site: Any) -> None:
    """The test then does what the finding says: its exact command, with the database that it asks for."""
    site = make_site()
    site.execute(0, "DELETE FROM txstream_fence")
    finding = only(opened(site), "fence-missing")
    assert "--state-database URL (the database of words_1)" in finding.remedy
    assert finding.command is not None
    assert finding.command.endswith("--state-database URL")
    site.recover()
    assert opened(site).findings == ()
    site.finish()


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
@pytest.mark.parametrize("databases", [1, 2])
def test_a_ledger_older_than_its_tables_is_not_built_upon(make_site: Any, spout: Any, databases: int) -> None:
    """Otherwise what the rows hold of the txid that the ledger lacks would be neither undone nor known."""
    site = make_site(databases=databases, spout=spout)
    (row,) = rows = site.query(0, "SELECT * FROM txstream_batch WHERE txid = 3")
    site.execute(0, "DELETE FROM txstream_batch WHERE txid = 3")
    before = site.copy_zookeeper()
    findings = {one.code: one for one in opened(site).findings}
    assert set(findings) == {"row-too-new", "progress-mismatch"}
    assert findings["progress-mismatch"].command is None
    assert "restore" in findings["progress-mismatch"].remedy
    for lose in (lambda: None, site.lose_zookeeper):
        lose()
        with pytest.raises(ProgressMismatchError, match=r"words_0.* carries txid 3.* ends with txid 2"):
            site.recover()
    site.restore_zookeeper(before)
    site.execute(0, f"INSERT INTO txstream_batch VALUES ({', '.join('?' * len(row))})", row)
    assert rows == site.query(0, "SELECT * FROM txstream_batch WHERE txid = 3")
    site.recover()
    site.finish()


def test_tables_that_may_not_be_read(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not taken for missing tables."""
    site = make_site(databases=1)
    denied = to_error(Failure(Kind.DENIED, "permission denied"), "db", "the state", at_commit=False)

    def read_state(*_: Any) -> Any:
        raise denied

    monkeypatch.setattr(StateDatabase, "read_state", read_state)
    finding = only(site.fsck(), "database-missing")
    assert "permission denied" in finding.what
    assert finding.remedy.startswith("grant its account")
    site.lose_zookeeper()
    with pytest.raises(StateTableError, match="permission denied"):
        site.recover()


def test_a_fence_that_may_not_be_read(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(databases=1)
    denied = to_error(Failure(Kind.DENIED, "permission denied"), "db", "the fence", at_commit=False)

    def read_fence(*_: Any) -> Any:
        raise denied

    monkeypatch.setattr(StateDatabase, "read_fence", read_fence)
    assert only(opened(site), "database-missing").remedy.startswith("grant its account")


@pytest.mark.parametrize(
    ("statement", "note"),
    [
        ("DROP TABLE words_0", "table words_0 is gone; `txstream fsck`"),
        ("ALTER TABLE words_0 DROP COLUMN prev_n", "is not as declared: column 'prev_n' is missing"),
    ],
)
def test_a_damaged_table_does_not_hide_the_others(
    make_site: Any, capsys: pytest.CaptureFixture[str], statement: str, note: str
) -> None:
    site = make_site()
    site.execute(0, statement)
    assert main(["state", "list", "words", "--json", "--database", site.urls[0]]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["table"], first["rows"], second["table"], second["rows"]) == ("words_0", None, "words_1", 4)
    assert note in first["notes"][0]
    assert main(["state", "list", "words", "--database", site.urls[0]]) == 0
    assert note in capsys.readouterr().err
