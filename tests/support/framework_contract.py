"""The framework's own tables on every database: created, checked, upgraded, as the models say."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from support.old_revisions import at_revision
from support.state_contract import CrashError, StateFixtures
from support.states import Rig, word_table
from support.tables import execute, read_rows, table_exists
from txstream.api.errors import CorruptStateError, SchemaRevisionError, TxstreamError
from txstream.state import StateDatabase, open_sql_database
from txstream.state.sql import framework, revisions
from txstream.transaction import attempt_id


def differences(url: str) -> list[Any]:
    """Between the models and what the scripts made."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection,
                opts={
                    "version_table": framework.VERSION_TABLE,
                    "compare_type": True,
                    "include_name": lambda name, kind, parents: (
                        kind != "table" or name.startswith("txstream")
                    ),
                },
            )
            return list(compare_metadata(context, framework.metadata))
    finally:
        engine.dispose()


def definitions(url: str) -> dict[str, Any]:
    """Columns and keys of the framework's tables, in full."""
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    found = {
        name: [
            [{**column, "type": repr(column["type"])} for column in inspector.get_columns(name)],
            inspector.get_pk_constraint(name),
            inspector.get_indexes(name),
        ]
        for name in [*framework.metadata.tables, framework.VERSION_TABLE]
    }
    engine.dispose()
    return found


OLDER = framework.REVISIONS[:-1]


def old_database(database: StateDatabase, url: str, revision: str) -> Rig:
    """A database as `revision` left it, with a topology that has committed a batch."""
    rig = Rig(database, url).join()
    rig.commit(1, {"a": 1, "b": 2})
    at_revision(database, url, revision)
    return rig


class FrameworkContract(StateFixtures):
    """Subclasses have a fixture `url` with an empty database."""

    def test_created_where_there_are_none(self, database: StateDatabase, url: str) -> None:
        execute(
            url,
            "CREATE TABLE alembic_version (version_num VARCHAR(9) PRIMARY KEY)",
            "CREATE TABLE mine (x BIGINT PRIMARY KEY)",
        )
        for _ in range(2):
            database.ensure_framework_tables()
        assert read_rows(url, framework.VERSION_TABLE) == [{"version_num": framework.HEAD}]
        assert read_rows(url, "alembic_version") == []  # the user's own Alembic's

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
        old_database(database, url, revision)
        reads: list[Callable[[], Any]] = [
            database.topologies,
            lambda: database.read_fence("words"),
            lambda: database.batch("words", 1),
            lambda: database.batches("words"),
            lambda: database.last_batch("words"),
        ]
        if revision == "0001":  # later ones have all that this needs
            reads.append(lambda: database.top("word_count", topology="words"))
        for read in reads:
            with pytest.raises(SchemaRevisionError, match=rf"revision {revision}.*`txstream db upgrade`"):
                read()

    @pytest.mark.parametrize("revision", OLDER)
    def test_a_driver_that_runs_meanwhile_goes_on(
        self, database: StateDatabase, url: str, revision: str
    ) -> None:
        """An upgrade only adds, and what it adds may be empty: so what a driver of the older txstream writes,
        with the columns that it knows, is written as before and is read by the new one."""
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
        """What a dry run prints does it, typed into the database's own shell."""
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


class AtomicFrameworkContract(FrameworkContract):
    """Where creating tables is part of a transaction."""

    def test_a_script_that_fails_leaves_nothing(
        self, database: StateDatabase, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second script meets a table of its name: the first one's tables must go with it."""
        execute(url, "CREATE TABLE txstream_table (mine BIGINT PRIMARY KEY)")
        monkeypatch.setattr(revisions, "read_revision", lambda *_: None)
        with contextlib.suppress(Exception):
            database.upgrade()
        assert not table_exists(url, "txstream_fence")
        assert not table_exists(url, framework.VERSION_TABLE)


class StepwiseFrameworkContract(FrameworkContract):
    """Where each table is committed when it is created: the next start goes on from wherever a crash came.
    Subclasses have a fixture `fresh` that makes another empty database."""

    def test_creation_that_was_broken_off_anywhere(self, fresh: Callable[[], str]) -> None:
        for step in itertools.count():
            url = fresh()
            crashed = crash_before(url, step, joined)
            goes_on(url, first_run=True)
            if not crashed:
                assert step > 12  # tables, revisions, rows
                return

    def test_an_upgrade_that_was_broken_off_anywhere(self, fresh: Callable[[], str]) -> None:
        for step in itertools.count():
            url = fresh()
            with contextlib.closing(open_sql_database(url)) as database:
                old_database(database, url, OLDER[-1])
            crashed = crash_before(url, step, lambda database: database.upgrade())
            goes_on(url, first_run=False)
            if not crashed:
                assert step > 4
                return

    def test_a_strangers_table_is_not_taken_for_a_step_that_was_done(
        self, database: StateDatabase, url: str
    ) -> None:
        assert crash_before(url, 5, lambda database: database.ensure_framework_tables())
        assert not table_exists(url, "txstream_table")
        execute(url, "CREATE TABLE txstream_table (mine BIGINT PRIMARY KEY)")
        with pytest.raises(TxstreamError, match=r"txstream_table.*already exists"):
            database.ensure_framework_tables()
        execute(url, "DROP TABLE txstream_table")
        goes_on(url, first_run=True)


DEFINITIONS = ("CREATE", "ALTER", "DROP")
CHANGES = (*DEFINITIONS, "INSERT", "UPDATE", "DELETE")


def joined(database: StateDatabase) -> Rig:
    url = database.sessions.dialect.url.render_as_string(hide_password=False)
    return Rig(database, url, word_table(index_txid=True)).join()


def crash_before(url: str, step: int, work: Callable[[StateDatabase], object]) -> bool:
    """Do something and die before its `step`th statement that changes anything; False when it had fewer. Of a
    definition the server has done the first half then: it commits what was done before it."""
    steps = itertools.count()

    def die(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith(CHANGES) and next(steps) == step:
            if statement.lstrip().startswith(DEFINITIONS):
                connection.connection.commit()
            raise CrashError

    with contextlib.closing(open_sql_database(url)) as database:
        sa.event.listen(database.sessions.engine, "before_cursor_execute", die)
        try:
            work(database)
        except CrashError:
            return True
    return False


def goes_on(url: str, *, first_run: bool) -> None:
    """The next driver starts, or an operator's command is given again, and everything is as it should be."""
    with contextlib.closing(open_sql_database(url)) as database:
        if not first_run:
            database.upgrade()
        rig = Rig(database, url, word_table(index_txid=first_run), epoch=2).join(first_run=first_run)
        rig.join(first_run=False)
        rig.commit(2, {"a": 1})
        assert rig.values()["a"] == (1 if first_run else 2)
        assert [row.topology for row in database.topologies()] == ["words"]
    assert differences(url) == []
