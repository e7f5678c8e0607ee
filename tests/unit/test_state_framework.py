"""The framework's own tables: created, checked, upgraded, as the models say.

The database here is SQLite; the tests of each server run the same classes.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from support.old_revisions import OLDER, at_revision, definitions, differences, old_database
from support.states import Rig, word_table
from support.tables import execute, read_rows, table_exists

import txstream
from tracked_wheel import packaged_files
from txstream.core.errors import CorruptStateError, SchemaRevisionError
from txstream.core.transaction import attempt_id
from txstream.state import StateDatabase, open_database, open_sql_database
from txstream.state.sql import framework_tables as framework, framework_tables as revisions

IMPORTS = """
import sys
import txstream.state
print([name for name in ("alembic", "psycopg", "pyspark", "kafka", "kazoo") if name in sys.modules])
"""

CHECK = """
import sys
from txstream.state import open_database, open_sql_database
from txstream.core.errors import TxstreamError
import txstream
print(txstream.__file__)
for work in ("ensure_framework_tables", "upgrade"):
    try:
        getattr(open_database(sys.argv[1]), work)()
        print("fine")
    except TxstreamError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestFramework:
    """What holds on every SQL database."""

    def test_created_where_there_are_none(self, database: StateDatabase, url: str) -> None:
        execute(
            url,
            "CREATE TABLE alembic_version (version_num VARCHAR(9) PRIMARY KEY)",
            "CREATE TABLE mine (x BIGINT PRIMARY KEY)",
        )
        for _ in range(2):
            database.ensure_framework_tables()
        assert read_rows(url, framework.VERSION_TABLE) == [{"version_num": framework.HEAD}]
        assert read_rows(url, "alembic_version") == []  # it belongs to the user's own Alembic

    def test_scripts_and_models_agree(self, database: StateDatabase, url: str) -> None:
        """Whether a database is new or comes from the first revision, its tables are the same."""
        database.ensure_framework_tables()
        created = definitions(url)
        assert (differences(url), read_rows(url, framework.VERSION_TABLE)) == (
            [],
            [{"version_num": framework.HEAD}],
        )
        at_revision(database, url, framework.HEAD)
        assert (differences(url), definitions(url)) == ([], created)

    def test_the_comparison_notices_a_difference(self, database: StateDatabase, url: str) -> None:
        database.ensure_framework_tables()
        execute(url, "ALTER TABLE txstream_batch ADD COLUMN note BIGINT")
        assert [change[0] for change in differences(url)] == ["remove_column"]

    @pytest.mark.parametrize("revision", OLDER)
    def test_older_revision_names_the_command(self, database: StateDatabase, url: str, revision: str) -> None:
        old_database(database, url, revision)
        told = rf"revision {revision}.*needs {framework.HEAD}.*`txstream db upgrade`"
        with pytest.raises(SchemaRevisionError, match=told):
            database.ensure_framework_tables()
        assert read_rows(url, framework.VERSION_TABLE) == [{"version_num": revision}]

    @pytest.mark.parametrize("revision", OLDER)
    def test_upgrade_keeps_what_is_there(self, database: StateDatabase, url: str, revision: str) -> None:
        rig = old_database(database, url, revision)
        before = [read_rows(url, "txstream_fence"), read_rows(url, "txstream_batch")]
        assert database.upgrade() == (revision, framework.HEAD)
        after = [read_rows(url, "txstream_fence"), read_rows(url, "txstream_batch")]
        for old_rows, new_rows in zip(before, after, strict=True):
            assert [old.items() <= new.items() for old, new in zip(old_rows, new_rows, strict=True)] == [True]
        assert (rig.values(), rig.last().txid, rig.fence()) == ({"a": 1, "b": 2}, 1, rig.last().attempt)
        assert differences(url) == []
        assert database.upgrade() == (framework.HEAD, framework.HEAD)
        Rig(database, url, word_table("other"), topology="new").join().commit(1, {"a": 1})

    @pytest.mark.parametrize("revision", OLDER)
    def test_reading_an_older_revision_names_the_command(
        self, database: StateDatabase, url: str, revision: str
    ) -> None:
        """Reading is refused only where the revision lacks what is read."""
        old_database(database, url, revision)
        reads: list[Callable[[], Any]] = [
            lambda: database.dead_letters("words"),
            lambda: database.dead_letter_counts("words"),
            lambda: database.late_letters("words"),
        ]
        if revision < "0003":
            reads += [
                database.topologies,
                lambda: database.read_fence("words"),
                lambda: database.batch("words", 1),
                lambda: database.batches("words"),
                lambda: database.last_batch("words"),
            ]
        if revision == "0001":
            reads.append(lambda: database.top("word_count", topology="words"))
        for read in reads:
            with pytest.raises(SchemaRevisionError, match=rf"revision {revision}.*`txstream db upgrade`"):
                read()

    @pytest.mark.parametrize("revision", OLDER)
    def test_a_driver_that_runs_meanwhile_goes_on(
        self, database: StateDatabase, url: str, revision: str
    ) -> None:
        """An upgrade only adds, and what it adds may be empty. So a driver of the older txstream writes as
        before, with the columns that it knows, and the new one reads what it wrote."""
        rig = old_database(database, url, revision)
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            fence, batch = (
                sa.Table(name, sa.MetaData(), autoload_with=connection)
                for name in ("txstream_fence", "txstream_batch")
            )
            row = dict(connection.execute(sa.select(batch)).mappings().one())
        database.upgrade()
        with engine.begin() as connection:
            connection.execute(fence.update().values(attempt=attempt_id(1, 7)))
            connection.execute(batch.insert().values(row | {"txid": 2, "attempt": attempt_id(1, 7)}))
        engine.dispose()
        assert (rig.fence(), rig.last().txid, rig.last().details) == (attempt_id(1, 7), 2, {})

    def test_upgrade_of_an_empty_database(self, database: StateDatabase, url: str) -> None:
        assert database.upgrade() == (None, framework.HEAD)
        assert Rig(database, url).join().rows() == []

    @pytest.mark.parametrize("revision", [None, *OLDER])
    def test_its_statements_are_the_upgrade(
        self, database: StateDatabase, url: str, revision: str | None
    ) -> None:
        """The statements of a dry run do the upgrade when typed into the database's own shell."""
        if revision is not None:
            old_database(database, url, revision)
        before, after, sql = database.upgrade_sql()
        assert (before, after) == (revision, framework.HEAD)
        assert database.upgrade_sql() == (before, after, sql), "nothing was changed"
        lines = [line for line in sql.splitlines() if not line.startswith("--")]
        execute(url, *(one for one in "\n".join(lines).split(";") if one.strip()))
        assert database.upgrade_sql() == (framework.HEAD, framework.HEAD, "")
        assert differences(url) == []

    def test_newer_revision_names_what_is_needed(self, database: StateDatabase, url: str) -> None:
        database.ensure_framework_tables()
        execute(url, f"UPDATE {framework.VERSION_TABLE} SET version_num = '9999'")
        for refused in (database.ensure_framework_tables, database.upgrade, database.upgrade_sql):
            with pytest.raises(SchemaRevisionError, match=r"revision 9999.*use a newer txstream"):
                refused()
        with pytest.raises(SchemaRevisionError, match="9999"):
            database.delete("words", drop_state=True)

    @pytest.mark.parametrize(
        "statement",
        [
            f"DROP TABLE {framework.VERSION_TABLE}",
            f"DELETE FROM {framework.VERSION_TABLE}",
            f"INSERT INTO {framework.VERSION_TABLE} VALUES ('0001')",
        ],
    )
    def test_tables_without_one_revision(self, database: StateDatabase, url: str, statement: str) -> None:
        database.ensure_framework_tables()
        execute(url, statement)
        with pytest.raises(CorruptStateError, match=framework.VERSION_TABLE):
            database.ensure_framework_tables()


class TestAtomicFramework:
    """What holds where creating tables is part of a transaction."""

    def test_a_script_that_fails_leaves_nothing(
        self, database: StateDatabase, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second script finds its table's name taken. Then the first one's tables must go, too."""
        execute(url, "CREATE TABLE txstream_table (mine BIGINT PRIMARY KEY)")
        monkeypatch.setattr(revisions, "read_revision", lambda *_: None)
        with contextlib.suppress(Exception):
            database.upgrade()
        assert not table_exists(url, "txstream_fence")
        assert not table_exists(url, framework.VERSION_TABLE)


def test_every_script_is_known_without_reading_it() -> None:
    config = Config()
    config.set_main_option("script_location", str(revisions._script_folder()))
    scripts = ScriptDirectory.from_config(config)
    in_order = [script.revision for script in scripts.walk_revisions()][::-1]
    assert tuple(in_order) == framework.REVISIONS
    assert scripts.get_heads() == [framework.HEAD]


def test_nothing_is_said_while_tables_are_made(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger("alembic").setLevel(logging.NOTSET)
    root = logging.getLogger()
    handler = logging.StreamHandler()
    root.addHandler(handler)
    monkeypatch.setattr(root, "level", logging.INFO)
    try:
        open_database(url).ensure_framework_tables()
    finally:
        root.removeHandler(handler)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_importing_state_is_cheap() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_new_database_needs_no_script_but_an_older_one_does(tmp_path: Path, url: str) -> None:
    """Executors and clusters get the framework as a zip, from which no script can be read."""
    database = open_sql_database(url)
    database.ensure_framework_tables()
    at_revision(database, url, framework.REVISIONS[0])
    new = f"sqlite:///{tmp_path}/new.db"
    archive = tmp_path / "framework.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for source, installed in packaged_files().items():
            out.write(Path(txstream.__file__).parents[1] / source, str(installed))

    def from_the_archive(database: str) -> list[str]:
        command = [sys.executable, "-c", CHECK, database]
        env = {"PYTHONPATH": str(archive)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
        return done.stdout.splitlines()

    loaded_from, created, upgraded = from_the_archive(new)
    assert loaded_from.startswith(str(archive))
    assert (created, upgraded) == ("fine", "fine")
    _, checked, upgraded = from_the_archive(url)
    assert "txstream db upgrade" in checked
    assert upgraded.startswith("SchemaRevisionError")
    assert "`txstream db upgrade` where it is installed" in upgraded
