"""Savepoints and rewind over Kafka, with states in PostgreSQL and in SQLite: kill -9 between all steps."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.runs import Launcher
from support.texts import create_topic, produce

from txstream.zookeeper import ZooKeeper

pytestmark = pytest.mark.timeout(300)

MODULE = """
from txstream import (
    Count, OpaqueSpout, SqlState, SqlStateBolt, TransactionalSpout, TransactionalTopologyBuilder
)
from txstream.spouts.kafka import Decode, KafkaSource


def topology(name, other, spout="OpaqueSpout"):
    source = KafkaSource(name, decode=Decode("json", "word string"), max_records_per_partition=20)
    builder = TransactionalTopologyBuilder(name, "words", globals()[spout](source))
    for number, url in enumerate((None, other)):
        state = SqlState(f"{name}_{number}", key="word string", value="n bigint", url=url)
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
        store.fields_grouping("words", "word")
    return builder.build()
"""
# A command that is killed once it has got to a step.
KILLED = """
import os, signal, sys
from txstream.cli.main import main
from txstream.plugins.change import rewinding

def reached(step):
    if step == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

rewinding._reached = reached
sys.exit(main(sys.argv[2:]))
"""
STEPS = ["plans dropped", "inside", "database 0 put back", "database 1 put back"]


class Desk:
    def __init__(self, launcher: Launcher, postgres: str, sqlite: str, name: str, spout: str) -> None:
        self.launcher = replace(launcher.without_spark, database=postgres)
        self.postgres, self.sqlite, self.name = postgres, sqlite, name
        (self.launcher.directory / "going_back.py").write_text(MODULE, encoding="utf-8")
        create_topic(self.launcher.services.kafka, name, 2)
        self.code = (
            "going_back:topology",
            "-p",
            f"name={name}",
            "-p",
            f"other={sqlite}",
            "-p",
            f"spout={spout}",
        )
        self.words: list[str] = []

    def produce(self, first: int, last: int) -> None:
        words = [f"w{number % 7}" for number in range(first, last)]
        self.words += words
        produce(self.launcher.services.kafka, self.name, [json.dumps({"word": w}).encode() for w in words], 2)

    def run(self) -> None:
        ended = self.launcher.run("run", *self.code, "--until", "caught-up", "--session-timeout", "1")
        assert ended.status == 0, ended.stderr

    def totals(self) -> list[dict[str, int]]:
        """Return what both databases have, read without us."""
        query = f"SELECT word, n FROM {self.name}_"
        with psycopg.connect(self.postgres.replace("postgresql+psycopg", "postgresql")) as connection:
            first: dict[str, int] = dict(connection.execute(f"{query}0").fetchall())
        with sqlite3.connect(self.sqlite.removeprefix("sqlite:///")) as file:
            return [first, dict(file.execute(f"{query}1").fetchall())]

    def ledgers(self) -> list[list[tuple[int, Any]]]:
        query = "SELECT txid, details FROM txstream_batch ORDER BY txid"
        with psycopg.connect(self.postgres.replace("postgresql+psycopg", "postgresql")) as connection:
            first = connection.execute(query).fetchall()
        with sqlite3.connect(self.sqlite.removeprefix("sqlite:///")) as file:
            rows = [first, file.execute(query).fetchall()]
        return [[(txid, json.loads(details or "{}").get("rewind")) for txid, details in one] for one in rows]

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


@pytest.mark.soak
@pytest.mark.parametrize("spout", ["OpaqueSpout", "TransactionalSpout"])
def test_a_killed_rewind_is_finished_or_not_begun_by_the_next_run(
    launcher: Launcher, postgres_url: str, tmp_path: Path, unique: str, spout: str
) -> None:
    desk = Desk(launcher, postgres_url, f"sqlite:///{tmp_path / 'other.db'}", unique, spout)
    desk.produce(0, 60)
    desk.run()
    made = desk.launcher.run("savepoint", "create", unique, "monday", "--json")
    assert made.status == 0, made.stderr
    monday, saved = made.json()["txid"], desk.totals()
    assert saved == [dict(Counter(desk.words))] * 2
    for step in STEPS:
        desk.produce(len(desk.words), len(desk.words) + 25)
        desk.run()
        before, ledgers = desk.totals(), desk.ledgers()
        desk.killed(step, "rewind", unique, "monday", "--yes")
        decided = step.startswith("database")
        if not decided:
            assert (desk.totals(), desk.ledgers()) == (before, ledgers), step
        # The next start settles it; it ends before any record is read again.
        desk.run()
        assert desk.totals() == [dict(Counter(desk.words))] * 2, step
        rewinds = [
            [told for txid, told in one if told and txid > ledgers[0][-1][0]] for one in desk.ledgers()
        ]
        last = ledgers[0][-1][0]
        told = [{"to": monday, "savepoint": "monday", "last": last}] if decided else []
        assert rewinds == [told, told], step
        txids = [txid for txid, _ in desk.ledgers()[0]]
        assert txids == list(range(1, len(txids) + 1)), "a txid is never used again"
    done = desk.launcher.run("rewind", unique, "monday", "--yes")
    assert (done.status, "is as of savepoint monday" in done.stdout) == (0, True), done.stderr
    assert desk.totals() == saved
    checked = desk.launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
    # ZooKeeper loses the topology right after the rewind: its ledger row has the places.
    with ZooKeeper(launcher.services.zookeeper) as zookeeper:
        zookeeper.client.delete(f"{zookeeper.root}/{unique}", recursive=True)
    recovered = desk.launcher.run("recover", unique, "--from-ledger", "--yes")
    assert (recovered.status, f"goes on with txid {desk.ledgers()[0][-1][0] + 1}" in recovered.stdout) == (
        0,
        True,
    ), recovered.stderr
    assert desk.totals() == saved
    desk.run()
    assert desk.totals() == [dict(Counter(desk.words))] * 2
    txids = [txid for txid, _ in desk.ledgers()[0]]
    assert txids == list(range(1, len(txids) + 1)), "a txid is never used again"


@pytest.mark.soak
def test_a_rewind_is_refused_while_a_driver_runs_and_a_savepoint_is_not(
    launcher: Launcher, postgres_url: str, tmp_path: Path, unique: str
) -> None:
    desk = Desk(launcher, postgres_url, f"sqlite:///{tmp_path / 'other.db'}", unique, "OpaqueSpout")
    desk.produce(0, 60)
    desk.run()
    assert desk.launcher.run("savepoint", "create", unique, "first").status == 0
    running = desk.launcher.start("run", *desk.code, "--session-timeout", "1")
    try:
        for number in range(3):
            desk.produce(len(desk.words), len(desk.words) + 30)
            waited = desk.launcher.run(
                "wait", unique, "--topic", unique, "--partition", "0", "--offset", str(44 + 15 * number)
            )
            assert waited.status == 0, waited.stderr
            made = desk.launcher.run("savepoint", "create", unique, f"live{number}", "--json")
            assert made.status == 0, made.stderr
        before = desk.totals()
        refused = desk.launcher.run("rewind", unique, "first", "--yes")
        assert (refused.status, "is run by" in refused.stderr) == (1, True), refused.stderr
        assert desk.totals() == before
    finally:
        assert desk.launcher.run("stop", unique).status == 0
        running.wait()
    listed = desk.launcher.run("savepoint", "list", unique, "--json").json()["savepoints"]
    assert [one["name"] for one in listed] == ["first", "live0", "live1", "live2"]
    with psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql")) as connection:
        queries = [f"SELECT sum(n) FROM {unique}_0__sp_{one['name']}" for one in listed]
        sums = [connection.execute(query).fetchall()[0] for query in queries]
    assert sums[0] == (60,)
    assert [one for (one,) in sums] == sorted(one for (one,) in sums), "each is a whole txid's"
    refused = desk.launcher.run("rewind", unique, "first")
    assert (refused.status, "there is no terminal to ask at" in refused.stderr) == (2, True), refused.stderr
    assert desk.totals() == [dict(Counter(desk.words))] * 2
