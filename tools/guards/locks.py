"""Guards of locks and against lost answers (5.4)."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard

LOCKS = (
    Guard(
        "5.4",
        "PostgreSQL: READ COMMITTED, set explicitly",
        sources.POSTGRESQL,
        '            isolation_level="READ COMMITTED",\n',
        "",
        f"{proofs.POSTGRESQL_LOCKS}::test_whoever_waited_for_a_task_undoes_what_it_wrote",
    ),
    Guard(
        "5.4",
        "MySQL and MariaDB: READ COMMITTED, set explicitly",
        sources.MYSQL,
        '            isolation_level="READ COMMITTED",\n',
        "",
        f"{proofs.MYSQL_LOCKS}::test_isolation_is_set_whatever_the_servers_default_is",
    ),
    Guard(
        "5.4",
        "no plain read comes before the fence",
        sources.PROTOCOL,
        sources.RAISE_IN_COMMIT,
        "    " + sources.LOOK + sources.RAISE_IN_COMMIT,
        f"{proofs.SQLITE_LOCKS}::test_the_fence_is_the_first_statement_of_every_transaction",
    ),
    Guard(
        "5.4",
        "PostgreSQL: FOR SHARE",
        "txstream/state/sql/dialect.py",
        ".with_for_update(read=True)",
        ".with_for_update(read=True, key_share=True)",
        f"{proofs.POSTGRESQL_LOCKS}::test_nobody_raises_the_fence_while_a_task_writes",
    ),
    Guard(
        "5.4",
        "a task locks the fence in share mode, not exclusively",
        "txstream/state/sql/dialect.py",
        ".with_for_update(read=True)",
        ".with_for_update()",
        f"{proofs.POSTGRESQL_LOCKS}::test_tasks_of_one_attempt_write_side_by_side",
    ),
    Guard(
        "5.4",
        "MySQL and MariaDB: LOCK IN SHARE MODE, FOR SHARE",
        "txstream/state/sql/dialect.py",
        "            .with_for_update(read=True)\n",
        "",
        f"{proofs.MYSQL_LOCKS}::test_nobody_raises_the_fence_while_a_task_writes",
    ),
    Guard(
        "5.4",
        "SQLite: the Python driver is in autocommit mode",
        sources.SQLITE,
        "        connection.isolation_level = None\n",
        "",
        "tests/unit/test_state_sqlite.py::TestFile::test_every_commit_is_on_disk_before_it_is_acked",
    ),
    Guard(
        "5.4",
        "SQLite: BEGIN IMMEDIATE",
        sources.SQLITE,
        '"BEGIN" if read_only else "BEGIN IMMEDIATE"',
        '"BEGIN"',
        f"{proofs.SQLITE_LOCKS}::test_the_fence_is_the_first_statement_of_every_transaction",
    ),
    Guard(
        "5.4",
        "SQLite: WAL",
        sources.SQLITE,
        "_turn_on_log(connection, self.connect_timeout_seconds)",
        "connection.execute('SELECT 1').close()",
        "tests/unit/test_state_sqlite.py::TestFile::test_every_commit_is_on_disk_before_it_is_acked",
    ),
    Guard(
        "5.4",
        "SQLite: FULL, so that a commit is on disk before it is acked",
        sources.SQLITE,
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        "tests/unit/test_state_sqlite.py::TestFile::test_every_commit_is_on_disk_before_it_is_acked",
    ),
    Guard(
        "5.4",
        "SQLite: a task's check takes the write lock",
        sources.SQLITE,
        "return connection.execute(held).rowcount == 1",
        "connection.exec_driver_sql('COMMIT')\n"
        "        connection.exec_driver_sql('BEGIN')\n"
        "        return connection.exec_driver_sql('SELECT 1 FROM txstream_fence WHERE attempt = ?', "
        "(attempt,)).first() is not None",
        f"{proofs.SQLITE_LOCKS}::test_nobody_raises_the_fence_while_a_task_writes",
    ),
    Guard(
        "5.4",
        "PostgreSQL: a transaction that idles is ended before the message timeout",
        sources.SERVER,
        "self.countable(message_timeout_seconds / 2)",
        "self.countable(message_timeout_seconds * 20)",
        f"{proofs.POSTGRESQL_LOCKS}::test_a_task_that_freezes_loses_its_transaction",
    ),
    Guard(
        "5.4",
        "MySQL and MariaDB: a transaction that idles is ended before the message timeout",
        sources.SERVER,
        "self.countable(message_timeout_seconds / 2)",
        "self.countable(message_timeout_seconds * 20)",
        f"{proofs.MYSQL_LOCKS}::test_a_task_that_freezes_loses_its_transaction",
    ),
    Guard(
        "5.4",
        "PostgreSQL: raising the fence does not wait forever",
        sources.POSTGRESQL,
        "        self._configure(driver, lock_timeout=_milliseconds(seconds))\n",
        "",
        "tests/integration/test_locks_postgres.py::TestLocks::test_a_lock_that_stays_is_told",
    ),
    Guard(
        "5.4",
        "keys are written in one order",
        "txstream/state/values.py",
        '[(place, "ascending") for place in range(keys)]',
        '[(keys, "ascending")]',
        f"{proofs.POSTGRESQL_LOCKS}::test_copies_of_a_share_do_not_deadlock",
    ),
    Guard(
        "5.4",
        "tables are written in one order",
        sources.PROTOCOL,
        "for spec, deltas in sorted(writes, key=_name)]",
        "for spec, deltas in writes]",
        f"{proofs.POSTGRESQL_LOCKS}::test_copies_of_a_share_of_several_tables_do_not_deadlock",
    ),
)
