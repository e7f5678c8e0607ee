"""Fork, savepoint, rewind and swap over Kafka, by commands that die of SIGKILL at each of their steps, in
each kind of database, with a driver of before that is frozen all the while and wakes up when all is done.

The fixture `urls` of those who run these tests tells the databases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, inspect, text

from support.kafka_topics import wait_until
from support.runs import Launcher, Outcome
from support.texts import create_topic, produce

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
__all__ = [
    "desk",
    "pytestmark",
    "test_a_killed_fork_is_there_or_is_made_by_the_same_command",
    "test_a_killed_rewind_is_finished_or_not_begun",
    "test_a_killed_savepoint_is_whole_or_dropped",
    "test_a_killed_swap_is_finished_or_not_begun",
]

MODULE = """
from txstream import OpaqueSpout, SqlState, SqlStateBolt, Sum, TransactionalTopologyBuilder
from txstream.spouts.kafka import Decode, KafkaSource


def topology(name, other, column):
    columns = Decode("json", "word string, n bigint, m bigint")
    source = KafkaSource(name, decode=columns, max_records_per_partition=20)
    builder = TransactionalTopologyBuilder(name, "words", OpaqueSpout(source))
    for number, url in enumerate((None, other)):
        state = SqlState(f"{name}_{number}", key="word string", value="n bigint", url=url)
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Sum(column)))
        store.fields_grouping("words", "word")
    return builder.build()
"""
# A command that is killed once it has got to a step.
KILLED = """
import importlib, os, signal, sys
from txstream.cli.main import main

def reached(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

importlib.import_module(f"txstream.plugins.change.{sys.argv[1]}")._reached = reached
sys.exit(main(sys.argv[3:]))
"""
FORK = [
    *("znode", "database 0 joined", "database 1 joined", "fences raised", "inside", "database 0 begun"),
    *("database 1 begun", "done"),
]
SAVEPOINT = ["database 0 begun", "database 1 begun", "copied", "database 0 made", "database 1 made"]
DROP = ["marked", "database 0 removed", "database 1 removed"]
REWIND = ["plans dropped", "inside", "database 0 put back", "database 1 put back"]
SWAP = [
    *("checked", "identity narrowed", "plans dropped", "inside", "database 0 swapped", "database 1 swapped"),
    *("advanced", "identity replaced"),
]
# Where each renaming commits by itself.
SWAP_LATER = [
    *(
        "checked",
        "identity narrowed",
        "plans dropped",
        "prepared",
        "inside",
        "database 0 recorded",
        "renamed",
    ),
    *("indexes dropped", "database 0 swapped", "database 1 recorded", "database 1 swapped", "advanced"),
    "identity replaced",
]
# The transactions that are open in a database.
_OPEN = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND state LIKE 'idle in transaction%'",
    **dict.fromkeys(
        ("mysql", "mariadb"),
        "SELECT p.id FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
        "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()",
    ),
}


class Desk:
    """Words counted in two databases, with a driver that is frozen."""

    def __init__(self, launcher: Launcher, urls: list[str], name: str) -> None:
        self.launcher, self.urls, self.name = replace(launcher.without_spark, database=urls[0]), urls, name
        self.engines: list[Engine] = [create_engine(url, poolclass=NullPool) for url in urls]
        (self.launcher.directory / "changed.py").write_text(MODULE, encoding="utf-8")
        create_topic(self.launcher.services.kafka, name, 2)
        self.words: list[str] = []
        self.produce(60)
        self.run("n")
        self.zombie = self.launcher.start("run", *self.code("n"), "--session-timeout", "1")
        self.zombie.wait_for_line("is running")
        wait_until(self._is_frozen, "the driver is frozen outside of a transaction", 60)
        self.run("n")  # once the session of the frozen one has ended; commands do not wait for that

    def _is_frozen(self) -> bool:
        """Freeze the driver, unless it is in a transaction, whose locks would stay."""
        os.kill(self.zombie.process.pid, signal.SIGSTOP)
        query = _OPEN.get(self.engines[0].dialect.name)
        if query is None or not any(self.asked(number, query) for number in (0, 1)):
            return True
        os.kill(self.zombie.process.pid, signal.SIGCONT)
        return False

    def produce(self, number: int) -> None:
        words = [f"w{one % 7}" for one in range(len(self.words), len(self.words) + number)]
        self.words += words
        values = [json.dumps({"word": word, "n": 1, "m": 3}).encode() for word in words]
        produce(self.launcher.services.kafka, self.name, values, 2)

    def code(self, column: str) -> tuple[str, ...]:
        given = {"name": self.name, "other": self.urls[1], "column": column}
        return "changed:topology", *(one for name in given for one in ("-p", f"{name}={given[name]}"))

    def run(self, column: str, *more: str) -> None:
        ended = self.launcher.run(
            "run", *self.code(column), "--until", "caught-up", "--session-timeout", "1", *more
        )
        assert ended.status == 0, ended.stderr

    def done(self, *arguments: str) -> Outcome:
        ended = self.launcher.run(*arguments)
        assert ended.status == 0, ended.stderr
        return ended

    def killed(self, module: str, step: str, *arguments: str) -> None:
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, module, step, *arguments],
            cwd=self.launcher.directory,
            env=self.launcher.variables(),
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert killed.returncode == -signal.SIGKILL, f"{step}: {killed.stdout!r} {killed.stderr!r}"

    def asked(self, number: int, query: str) -> list[Any]:
        """Ask a database, without us."""
        with self.engines[number].connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def totals(self, suffix: str = "") -> list[dict[str, int]]:
        queries = [f"SELECT word, n FROM {self.name}_{number}{suffix}" for number in (0, 1)]
        return [{word: int(n) for word, n in self.asked(at, query)} for at, query in enumerate(queries)]

    def truth(self, weight: int = 1, first: int | None = None) -> list[dict[str, int]]:
        return [{word: n * weight for word, n in Counter(self.words[:first]).items()}] * 2

    def txids(self) -> list[list[int]]:
        query = f"SELECT txid FROM txstream_batch WHERE topology = '{self.name}' ORDER BY txid"
        return [[txid for (txid,) in self.asked(number, query)] for number in (0, 1)]

    def tables(self) -> list[str]:
        return [name for engine in self.engines for name in inspect(engine).get_table_names()]

    def wake(self) -> None:
        """Wake the driver of before up. It writes nothing more."""
        before = self.totals(), self.txids()
        os.kill(self.zombie.process.pid, signal.SIGCONT)
        assert self.zombie.wait().status != 0
        assert (self.totals(), self.txids()) == before
        txids = before[1]
        assert txids == [list(range(1, len(txids[0]) + 1))] * 2, "a txid is never used again"
        self.done("fsck", self.name)


@pytest.fixture
def desk(launcher: Launcher, urls: list[str], unique: str) -> Iterator[Desk]:
    made = Desk(launcher, urls, unique)
    try:
        yield made
    finally:
        made.zombie.kill()


def test_a_killed_fork_is_there_or_is_made_by_the_same_command(desk: Desk) -> None:
    desk.done("savepoint", "create", desk.name, "monday")
    for number, step in enumerate(FORK):
        name = f"{desk.name}x{number}"
        fork = ("fork", desk.name, name, "--at", "monday", "--code", *desk.code("n"))
        before = desk.totals(), desk.txids()
        desk.killed("forking", step, *fork)
        assert (desk.totals(), desk.txids()) == before, "the topology is only read"
        again = desk.launcher.run(*fork)
        assert (again.status, "already" in again.stderr) == ((2, True) if step == "done" else (0, False)), (
            step,
            again.stderr,
        )
        desk.produce(3)
        desk.run("n", "--as", name)
        assert desk.totals(f"__{name}") == desk.truth(), step
    desk.run("n")
    assert desk.totals() == desk.truth()
    desk.wake()


def test_a_killed_savepoint_is_whole_or_dropped(desk: Desk) -> None:
    saved = len(desk.words)
    for number, step in enumerate(SAVEPOINT):
        name, before = f"s{number}", (desk.totals(), desk.txids())
        desk.killed("savepoints", step, "savepoint", "create", desk.name, name)
        assert (desk.totals(), desk.txids()) == before, "it never moves the live place"
        if step == SAVEPOINT[-1]:
            assert desk.totals(f"__sp_{name}") == desk.truth(first=saved)
            desk.produce(5)
            desk.run("n")
            desk.done("rewind", desk.name, name, "--yes")
            assert desk.totals() == desk.truth(first=saved)
        else:
            refused = desk.launcher.run("rewind", desk.name, name, "--yes")
            assert (refused.status, "half made" in refused.stderr) == (2, True), refused.stderr
            desk.done("savepoint", "drop", desk.name, name, "--yes")
            desk.done("savepoint", "create", desk.name, name)
            assert desk.totals(f"__sp_{name}") == desk.truth(first=saved)
    for number, step in enumerate(DROP):
        desk.killed("savepoints", step, "savepoint", "drop", desk.name, f"s{number}", "--yes")
        refused = desk.launcher.run("rewind", desk.name, f"s{number}", "--yes")
        assert refused.status == 2, refused.stdout
        left = desk.launcher.run("savepoint", "drop", desk.name, f"s{number}", "--yes")
        assert left.status == (2 if step == DROP[-1] else 0), left.stderr
        assert not [table for table in desk.tables() if table.endswith(f"__sp_s{number}")]
    desk.run("n")
    assert desk.totals() == desk.truth()
    desk.wake()


def test_a_killed_rewind_is_finished_or_not_begun(desk: Desk) -> None:
    desk.done("savepoint", "create", desk.name, "monday")
    for number, step in enumerate(REWIND):
        desk.produce(5)
        desk.run("n")
        before, txids, saved = desk.totals(), desk.txids(), desk.truth(first=60)
        desk.killed("rewinding", step, "rewind", desk.name, "monday", "--yes")
        if not step.startswith("database"):
            assert (desk.totals(), desk.txids()) == (before, txids), step
        if number % 2:
            desk.done("rewind", desk.name, "monday", "--yes")
            assert desk.totals() == saved, step
        desk.run("n")
        assert desk.totals() == desk.truth(), step
    desk.wake()


@contextmanager
def read_all_the_while(desk: Desk) -> Iterator[None]:
    """Ask both databases for the total until the block ends. It is always there, and never goes back."""
    over, failed, asked = threading.Event(), list[BaseException](), Counter[int]()

    def read(number: int) -> None:
        query, last = text(f"SELECT sum(n), count(*) FROM {desk.name}_{number}"), 0
        try:
            with desk.engines[number].connect() as connection:
                while not over.is_set() or not asked[number]:
                    total, rows = connection.execute(query).one()
                    connection.commit()  # a transaction that stays open would keep the name
                    assert rows == 7, rows
                    assert total >= last, f"the total was {last} and is {total}"
                    last, asked[number] = int(total), asked[number] + 1
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failed.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in (0, 1)]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert not failed, failed


def test_a_killed_swap_is_finished_or_not_begun(desk: Desk) -> None:
    later = desk.engines[0].dialect.name in ("mysql", "mariadb")
    steps, weights = SWAP_LATER if later else SWAP, {"n": 1, "m": 3}
    decides = steps.index("database 0 recorded" if later else "database 0 swapped")
    finish: list[Callable[[str], object]] = [
        lambda _: None,
        lambda name: desk.done("swap", desk.name, name, "--yes"),
    ]
    for number, step in enumerate(steps):
        name = f"{desk.name}x{number}"
        desk.produce(5)
        desk.done("fork", desk.name, name, "--code", *desk.code("m"))
        desk.run("m", "--as", name)
        desk.run("n")
        before = desk.totals()
        with read_all_the_while(desk):
            desk.killed("swapping", step, "swap", desk.name, name, "--yes")
            if steps.index(step) < decides:
                assert desk.totals() == before, step
            finish[number % 2](name)
            column = "m" if number % 2 or steps.index(step) >= decides else "n"
            desk.run(column)
        assert desk.totals() == desk.truth(weights[column]), step
        if column == "m":
            desk.done("swap", desk.name, name, "--back", "--yes")
            desk.run("n")
            desk.done("swap", desk.name, name, "--drop-kept", "--yes")
        assert desk.totals() == desk.truth(), step
        assert not [table for table in desk.tables() if table.startswith("txstream_swap")], step
    desk.wake()
