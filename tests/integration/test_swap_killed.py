"""Swap over Kafka, with states in PostgreSQL and in SQLite: read all the while, killed between all steps."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.runs import Launcher
from support.texts import create_topic, produce

pytestmark = pytest.mark.timeout(300)

MODULE = """
from txstream import OpaqueSpout, SqlState, SqlStateBolt, Sum, TransactionalTopologyBuilder
from txstream.spouts.kafka import Decode, KafkaSource


def topology(name, other, column, records="20"):
    columns = Decode("json", "word string, n bigint, m bigint")
    source = KafkaSource(name, decode=columns, max_records_per_partition=int(records))
    builder = TransactionalTopologyBuilder(name, "words", OpaqueSpout(source))
    for number, url in enumerate((None, other)):
        state = SqlState(f"{name}_{number}", key="word string", value="n bigint", url=url)
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Sum(column)))
        store.fields_grouping("words", "word")
    return builder.build()
"""
# A command that is killed once it has got to a step.
KILLED = """
import os, signal, sys
from txstream.cli.main import main
from txstream.plugins.change import swapping

def reached(step):
    if step == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

swapping._reached = reached
sys.exit(main(sys.argv[2:]))
"""
STEPS = [
    *("checked", "identity narrowed", "plans dropped", "inside", "database 0 swapped", "database 1 swapped"),
    *("advanced", "identity replaced"),
]


class Desk:
    def __init__(self, launcher: Launcher, postgres: str, sqlite: str, name: str) -> None:
        self.launcher = replace(launcher.without_spark, database=postgres)
        self.postgres, self.sqlite, self.name = postgres.replace("+psycopg", ""), sqlite, name
        (self.launcher.directory / "swapped.py").write_text(MODULE, encoding="utf-8")
        create_topic(self.launcher.services.kafka, name, 2)
        self.words: list[str] = []

    def produce(self, number: int) -> None:
        words = [f"w{one % 7}" for one in range(len(self.words), len(self.words) + number)]
        self.words += words
        values = [json.dumps({"word": word, "n": 1, "m": 3}).encode() for word in words]
        produce(self.launcher.services.kafka, self.name, values, 2)

    def code(self, column: str, records: int = 20) -> tuple[str, ...]:
        given = {"name": self.name, "other": self.sqlite, "column": column, "records": str(records)}
        return "swapped:topology", *(one for name in given for one in ("-p", f"{name}={given[name]}"))

    def run(self, column: str, fork: str | None = None) -> None:
        beside = () if fork is None else ("--as", fork)
        options = ("--until", "caught-up", "--session-timeout", "1", *beside)
        ended = self.launcher.run("run", *self.code(column, 20 if fork is None else 7), *options)
        assert ended.status == 0, ended.stderr

    def fork(self, name: str) -> None:
        """Run newer code beside the topology."""
        made = self.launcher.run("fork", self.name, name, "--code", *self.code("m", 7))
        assert made.status == 0, made.stderr
        self.run("m", name)

    def totals(self) -> list[dict[str, int]]:
        """Return what both databases have, read without us."""
        query = f"SELECT word, n FROM {self.name}_"
        with psycopg.connect(self.postgres) as connection:
            first: dict[str, int] = dict(connection.execute(f"{query}0").fetchall())
        with sqlite3.connect(self.sqlite.removeprefix("sqlite:///")) as file:
            return [first, dict(file.execute(f"{query}1").fetchall())]

    def truth(self, weight: int) -> list[dict[str, int]]:
        return [{word: n * weight for word, n in Counter(self.words).items()}] * 2

    def txids(self) -> list[int]:
        query = "SELECT txid FROM txstream_batch WHERE topology = %s ORDER BY txid"
        with psycopg.connect(self.postgres) as connection:
            return [txid for (txid,) in connection.execute(query, (self.name,)).fetchall()]

    def killed(self, step: str, *arguments: str) -> None:
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, step, *arguments],
            cwd=self.launcher.directory,
            env=self.launcher.variables(),
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()


@contextmanager
def read_all_the_while(desk: Desk) -> Iterator[list[int]]:
    """Ask PostgreSQL for the total, by the table and by a view, until the block ends. It never goes back."""
    totals: list[int] = []
    over, failed = threading.Event(), list[BaseException]()

    def read() -> None:
        queries = [f"SELECT sum(n)::int, count(*) FROM {one}" for one in (f"{desk.name}_0", "everything")]
        try:
            with psycopg.connect(desk.postgres, autocommit=True) as connection:
                while not over.is_set():
                    for query in queries:
                        (found,) = connection.execute(query).fetchall()
                        assert found[1] == 7, found
                        totals.append(found[0])
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield totals
    finally:
        over.set()
        reader.join()
    assert not failed, failed
    assert totals == sorted(totals), "a total has gone back"


@pytest.mark.soak
def test_readers_owners_and_views_follow_the_name(
    launcher: Launcher, postgres_url: str, tmp_path: Path, unique: str
) -> None:
    desk = Desk(launcher, postgres_url, f"sqlite:///{tmp_path / 'other.db'}", unique)
    desk.produce(60)
    desk.run("n")
    fork, table, role = f"{unique}x", f"{unique}_0", f"{unique}_reader"
    with psycopg.connect(desk.postgres, autocommit=True) as connection:
        for statement in (
            f"CREATE ROLE {role}",
            f"GRANT SELECT ON {table} TO {role}",
            f"GRANT UPDATE (n) ON {table} TO PUBLIC",
            f"COMMENT ON TABLE {table} IS 'Words: 100 % ''counted'''",
            f"COMMENT ON COLUMN {table}.n IS 'how often'",
            f"CREATE INDEX {unique}_by_n ON {table} USING btree (n DESC) WHERE n > 1",
            f"CREATE VIEW everything WITH (security_barrier=true) AS SELECT *, '%' AS sign FROM {table}",
            f"GRANT SELECT ON everything TO {role}",
            "CREATE VIEW most AS SELECT max(n) AS n FROM everything",
            f"CREATE MATERIALIZED VIEW frozen AS SELECT * FROM {table}",
        ):
            connection.execute(statement)
    desk.fork(fork)
    desk.produce(10)
    desk.run("n")
    behind = desk.launcher.run("swap", unique, fork, "--yes")
    assert (behind.status, f"is behind '{unique}' in {unique}/0 by 5 records" in behind.stderr) == (2, True)
    desk.run("m", fork)
    refused = desk.launcher.run("swap", unique, fork, "--dry-run")
    assert (refused.status, "materialized view frozen" in refused.stderr) == (2, True), refused.stderr
    with psycopg.connect(desk.postgres, autocommit=True) as connection:
        connection.execute("DROP MATERIALIZED VIEW frozen")

    def hung() -> list[Any]:
        queries = (
            "SELECT grantee, privilege_type FROM information_schema.role_table_grants WHERE table_name = %s",
            "SELECT grantee, privilege_type FROM information_schema.column_privileges WHERE table_name = %s "
            "AND column_name = 'n'",
            "SELECT obj_description(%s::regclass), col_description(%s::regclass, 2)",
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s "
            "AND indexname NOT LIKE '%%pkey%%'",
        )
        with psycopg.connect(desk.postgres) as connection:
            return [
                sorted(connection.execute(query, (table,) * query.count("%s")).fetchall())
                for query in queries
            ]

    before = hung()
    assert len(before[3]) == 1
    with read_all_the_while(desk) as totals:
        done = desk.launcher.run("swap", unique, fork, "--yes", "--json")
    assert (done.status, done.json()["is_done"]) == (0, True), done.stderr
    assert {totals[0], totals[-1]} == {70, 210}
    assert hung() == before
    assert desk.totals() == desk.truth(3)
    with psycopg.connect(desk.postgres) as connection:
        assert connection.execute("SELECT most.n, sign FROM most, everything LIMIT 1").fetchall() == [
            (30, "%")
        ]
        granted = f"SELECT has_table_privilege('{role}', 'everything', 'select')"
        assert connection.execute(granted).fetchall() == [(True,)]
        (options,) = connection.execute(
            "SELECT reloptions FROM pg_class WHERE relname = 'everything'"
        ).fetchall()
        assert options == (["security_barrier=true"],)
    assert fork not in desk.launcher.run("topologies").stdout
    desk.produce(10)
    desk.run("m")
    assert desk.totals() == desk.truth(3)
    checked = desk.launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
    assert desk.launcher.run("swap", unique, fork, "--back", "--yes").status == 0
    assert hung() == before
    desk.run("n")
    assert desk.totals() == desk.truth(1)
    assert desk.txids() == list(range(1, len(desk.txids()) + 1))
    checked = desk.launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
    assert desk.launcher.run("swap", unique, fork, "--drop-kept", "--yes").status == 0
    with psycopg.connect(desk.postgres) as connection:
        assert connection.execute("SELECT to_regclass(%s)", (f"{table}__before_{fork}",)).fetchone() == (
            None,
        )


@pytest.mark.soak
@pytest.mark.parametrize("by", ["run", "command"])
def test_a_killed_swap_is_finished_or_not_begun(
    launcher: Launcher, postgres_url: str, tmp_path: Path, unique: str, by: str
) -> None:
    """With a driver of before that is frozen all the while, and wakes up when all is done."""
    desk = Desk(launcher, postgres_url, f"sqlite:///{tmp_path / 'other.db'}", unique)
    desk.produce(60)
    desk.run("n")
    zombie = desk.launcher.start("run", *desk.code("n"), "--session-timeout", "1")
    weights = {"n": 1, "m": 3}
    try:
        zombie.wait_for_line("is running")
        os.kill(zombie.process.pid, signal.SIGSTOP)
        for number, step in enumerate(STEPS):
            name = f"{unique}x{number}"
            desk.produce(5)
            desk.fork(name)
            before = desk.totals()
            desk.killed(step, "swap", unique, name, "--yes")
            begun = STEPS.index(step) >= STEPS.index("database 0 swapped")
            if not begun:
                assert desk.totals() == before, step
            if by == "command":
                again = desk.launcher.run("swap", unique, name, "--yes")
                assert again.status == 0, again.stderr
                begun = True
            desk.run("m" if begun else "n")
            assert desk.totals() == desk.truth(weights["m" if begun else "n"]), step
            if begun:
                assert name not in desk.launcher.run("topologies").stdout, "nothing is left of the fork"
                back = desk.launcher.run("swap", unique, name, "--back", "--yes")
                assert back.status == 0, back.stderr
                assert desk.totals() == before, step
                desk.run("n")
            assert desk.totals() == desk.truth(1), step
            assert desk.txids() == list(range(1, len(desk.txids()) + 1)), "a txid is never used again"
        totals = desk.totals()
        os.kill(zombie.process.pid, signal.SIGCONT)
        zombie.wait()
        assert desk.totals() == totals, "a driver of before writes nothing"
    finally:
        zombie.kill()
    checked = desk.launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
