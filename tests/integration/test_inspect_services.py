"""Inspection, fsck and recover over real services: Kafka, ZooKeeper, SQLite and PostgreSQL."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support.guide import DOCS, load
from support.kafka_topics import Topics, wait_until
from support.server_readings import ServerReadings
from support.tables import read_counts
from support.texts import count_words, fill_topic, make_lines, produce

import txstream
from txstream import inspect
from txstream.cli.main import main
from txstream.core.fault_points import Point
from txstream.core.transaction import Txid
from txstream.examples import word_count
from txstream.plugins.local.embedded import Services
from txstream.state import StateDatabase
from txstream.testing import CrashError, InProcessRunner
from txstream.zookeeper import Leadership, ZooKeeper


class Desk:
    """The word count over one topic, run without Spark, and the commands that inspect it."""

    def __init__(
        self, services: Services, url: str, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.services, self.url, self.name, self._capsys = services, url, name, capsys
        self.settings = txstream.Settings(
            zookeeper=services.zookeeper, kafka=services.kafka, database=url, data_dir=folder
        )
        self.truth = fill_topic(services.kafka, name, make_lines(300), partitions=2)

    def topology(self, semantics: Any) -> txstream.Topology:
        made = word_count.topology(self.name, semantics, self.name, max_records_per_partition=40)
        return made.with_id(self.name)

    def run(self, semantics: Any, **until: Any) -> None:
        txstream.start(
            self.topology(semantics),
            settings=self.settings,
            runner_factory=InProcessRunner,
            **(until or {"until": "caught-up"}),
        ).wait(60)

    def command(self, *arguments: str) -> tuple[int, str, str]:
        addresses = ["--zookeeper", self.services.zookeeper, "--kafka", self.services.kafka]
        self._capsys.readouterr()
        status = main([*arguments, *addresses, "--database", self.url])
        out, err = self._capsys.readouterr()
        return status, out, err

    def codes(self, *more: str) -> tuple[int, list[str]]:
        status, out, _ = self.command("fsck", self.name, "--json", *more)
        return status, [finding["code"] for finding in json.loads(out)["findings"]]


@pytest.fixture
def make_desk(
    services: Services,
    tmp_path: Path,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda url: Desk(services, url, tmp_path, unique, capsys)


@pytest.mark.parametrize("semantics", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_zookeeper_is_wiped_recovered_and_the_word_count_stays_exact(
    make_desk: Any, postgres_url: str, semantics: Any
) -> None:
    desk: Desk = make_desk(postgres_url)
    desk.run(semantics, until_txid=2)
    status, out, err = desk.command("fsck", desk.name)
    assert (status, out) == (0, f"{desk.name}: all is well\n")
    assert "checked source: stored plans and next places" in err
    with ZooKeeper(desk.services.zookeeper) as zookeeper:
        zookeeper.client.delete(f"{zookeeper.root}/{desk.name}", recursive=True)
    assert desk.codes() == (1, ["zookeeper-missing"])
    status, _, err = desk.command("status", desk.name)
    assert status == 1
    assert f"is not in ZooKeeper, but {desk.url} has been filled by it; `txstream fsck {desk.name}`" in err
    with pytest.raises(inspect.UnknownTopologyError, match="has been filled by it"):
        inspect.status(desk.name, desk.settings)
    with pytest.raises(txstream.ProgressMismatchError, match="--from-ledger"):
        desk.run(semantics)
    assert desk.command("recover", desk.name)[0] == 2
    status, out, err = desk.command("recover", desk.name, "--from-ledger", "--yes")
    assert status == 0, err
    assert "goes on with txid 3" in out
    assert desk.codes() == (0, [])
    desk.run(semantics)
    assert read_counts(desk.url, desk.name) == desk.truth
    status, out, _ = desk.command("recover", desk.name, "--from-ledger")
    assert status == 0
    assert "nothing is wrong" in out


@pytest.mark.parametrize("semantics", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_a_database_restored_beneath_a_running_driver_is_not_built_upon(
    make_desk: Any, postgres_url: str, semantics: Any
) -> None:
    """The fence is as old as the rest. Once ZooKeeper follows it, what came after the copy counts once."""
    desk: Desk = make_desk(postgres_url)
    desk.run(semantics, until_txid=1)
    tables = (desk.name, "txstream_batch", "txstream_fence")
    engine = sa.create_engine(desk.url)
    with engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f'CREATE TABLE "{table}_copy" AS SELECT * FROM "{table}"')
    more = make_lines(100, seed=7)
    run = txstream.start(desk.topology(semantics), settings=desk.settings, runner_factory=InProcessRunner)
    try:
        wait_until(lambda: read_counts(desk.url, desk.name) == desk.truth, "the end of the log")
        with engine.begin() as connection:
            for table in tables:
                connection.exec_driver_sql(f'DELETE FROM "{table}"')
                connection.exec_driver_sql(f'INSERT INTO "{table}" SELECT * FROM "{table}_copy"')
        copy = read_counts(desk.url, desk.name)
        produce(desk.services.kafka, desk.name, more, 2)
        with pytest.raises(
            txstream.ProgressMismatchError, match=r"says that it is missing; the database was res"
        ):
            run.wait(60)
    finally:
        run.stop()
    assert read_counts(desk.url, desk.name) == copy
    engine.dispose()
    status, out, err = desk.command("recover", desk.name, "--from-ledger", "--yes")
    assert status == 0, err
    assert "goes on with txid 2" in out
    desk.run(semantics)
    assert read_counts(desk.url, desk.name) == Counter(desk.truth) + Counter(count_words(more))


def test_an_old_copy_of_zookeeper_is_recovered(make_desk: Any, sqlite_url: str) -> None:
    desk: Desk = make_desk(sqlite_url)
    desk.run("opaque", until_txid=1)
    with ZooKeeper(desk.services.zookeeper) as zookeeper:
        base = f"{zookeeper.root}/{desk.name}"
        paths = ("epoch", "coordinator/current", "coordinator/meta/1")
        copy = {path: zookeeper.client.get(f"{base}/{path}")[0] for path in paths}
        desk.run("opaque", until_txid=3)
        zookeeper.client.delete(f"{base}/coordinator/meta/3")
        zookeeper.client.create(f"{base}/coordinator/meta/1", copy.pop("coordinator/meta/1"))
        for path, data in copy.items():
            zookeeper.client.set(f"{base}/{path}", data)
        assert desk.codes() == (1, ["progress-mismatch", "epoch-behind"])
        recovered = inspect.recover(desk.name, desk.settings)
        assert (recovered.current_txid, recovered.again) == (4, False)
        node = zookeeper.tree().get(f"{base}/epoch")
        assert node is not None
        assert node.version > recovered.epoch
    desk.run("opaque")
    assert read_counts(desk.url, desk.name) == desk.truth
    assert desk.codes() == (0, [])


def test_half_a_topology_is_deleted_on_purpose_only(make_desk: Any, sqlite_url: str, tmp_path: Path) -> None:
    """First with another ZooKeeper, then with another database, then each of the two alone."""
    desk: Desk = make_desk(sqlite_url)
    desk.run("opaque", until_txid=1)
    with ZooKeeper(desk.services.zookeeper) as zookeeper:
        uuid = zookeeper.identity(desk.name).uuid  # type: ignore[union-attr]
    own, other = desk.services, replace(desk.services, zookeeper=f"{desk.services.zookeeper}/{desk.name}")
    everything = ["delete", desk.name, "--yes", "--drop-state"]
    desk.services = other
    status, _, err = desk.command(*everything)
    assert status == 2
    assert f"uuid {uuid} in {sqlite_url}, nothing in ZooKeeper at {other.zookeeper}. Give" in err
    desk.services = own
    assert desk.codes() == (0, [])
    desk.run("opaque")
    assert read_counts(desk.url, desk.name) == desk.truth
    desk.services = other
    status, out, _ = desk.command(*everything, "--uuid", uuid)
    assert (status, out.splitlines()[0]) == (0, f"deleted {desk.name} from {sqlite_url}")
    desk.services = own
    status, _, err = desk.command("recover", desk.name, "--from-ledger", "--yes")
    assert status == 1
    assert "is in ZooKeeper, but" in err
    assert f"`txstream delete {desk.name}`" in err
    assert desk.command(*everything)[0] == 2
    status, out, _ = desk.command(*everything, "--uuid", uuid)
    assert (status, out) == (0, f"deleted {desk.name} from ZooKeeper at {own.zookeeper}\n")
    assert desk.command(*everything)[0] == 1


def test_recover_refuses_while_a_driver_leads(make_desk: Any, sqlite_url: str) -> None:
    desk: Desk = make_desk(sqlite_url)
    desk.run("opaque", until_txid=1)
    with ZooKeeper(desk.services.zookeeper) as zookeeper:
        leadership = Leadership(zookeeper, desk.name)
        leadership.acquire()
        zookeeper.client.delete(f"{zookeeper.root}/{desk.name}/identity")
        with pytest.raises(txstream.LeaderExistsError, match="stop that driver first"):
            inspect.recover(desk.name, desk.settings)
        leadership.release()
    (listed,) = [one for one in inspect.topologies(desk.settings) if one.id == desk.name]
    assert (listed.txid, listed.semantics) == (1, "opaque"), "as the ledger has it"
    assert f"`txstream fsck {desk.name}`" in str(listed.note)
    assert f"`txstream fsck {desk.name}`" in desk.command("status", desk.name)[2]
    assert inspect.recover(desk.name, desk.settings).current_txid == 2
    desk.run("opaque")
    assert read_counts(desk.url, desk.name) == desk.truth


def test_offsets_that_kafka_has_no_more(
    make_desk: Any, sqlite_url: str, services: Services, unique: str
) -> None:
    """Offsets of the next position and of a stored plan; `--topology` asks the user's own source."""
    desk: Desk = make_desk(sqlite_url)
    desk.run("transactional", until_txid=1)

    def crash(point: Point, txid: Txid, _: dict[Txid, str]) -> None:
        if (point, txid) == (Point.BEFORE_COMMIT, 2):
            raise CrashError("the test ended the run before it committed what it has planned")

    with pytest.raises(CrashError):
        desk.run("transactional", until_txid=2, listener=crash)
    assert desk.codes() == (0, [])
    with Topics(services.kafka) as topics:
        for partition in range(2):
            topics.delete_before(unique, partition, 145)
    status, codes = desk.codes()
    assert status == 1
    assert set(codes) == {"plan-lost", "position-lost"}
    code = ["--topology", "txstream.examples.word_count:topology", "-p", f"topic={unique}"]
    status, codes = desk.codes(*code, "-p", "semantics=transactional", "-p", f"table={unique}")
    assert (status, set(codes)) == (1, {"plan-lost", "position-lost"})


# --- a moment on a server --------------------------------------------------------------------------


class TestPostgreSQL(ServerReadings):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


# --- two databases ---------------------------------------------------------------------------------


def test_a_topology_over_two_databases(
    make_desk: Any, sqlite_url: str, postgres_url: str, services: Services, unique: str
) -> None:
    """It is shown from either one and deleted from both. PostgreSQL is found: its URL has no password."""
    desk: Desk = make_desk(sqlite_url)
    topology = two_tables(unique, postgres_url).with_id(unique)
    txstream.start(topology, settings=desk.settings, until="caught-up", runner_factory=InProcessRunner).wait(
        60
    )
    status, out, err = desk.command("state", "list", unique, "--json")
    assert (status, err) == (0, "")
    assert {table["database"] for table in json.loads(out)} == {sqlite_url, postgres_url}
    (listed,) = [one for one in inspect.topologies(desk.settings) if one.id == unique]
    assert set(listed.databases) == {sqlite_url, postgres_url}
    assert desk.codes() == (0, [])
    status, out, _ = desk.command("show", unique, "1", "--json")
    assert {row["database"] for row in json.loads(out)["databases"]} == {sqlite_url, postgres_url}
    status, out, _ = desk.command("delete", unique, "--drop-state", "--yes", "--json")
    assert status == 0
    assert set(json.loads(out)["dropped_tables"]) == {unique, f"{unique}_2"}
    for url in (sqlite_url, postgres_url):
        assert StateDatabase(url).read_fence(unique) is None


def two_tables(name: str, second_url: str) -> txstream.Topology:
    builder = txstream.TransactionalTopologyBuilder(
        "two", "lines", txstream.OpaqueSpout(txstream.KafkaSource(name, max_records_per_partition=40))
    )
    builder.set_bolt("split", word_count.SplitLine()).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", txstream.CountBolt("word")).fields_grouping("split", "word")
    for table, url in ((name, None), (f"{name}_2", second_url)):
        state = txstream.SqlState(table, key="word string", value="n bigint", url=url)
        store = txstream.SqlStateBolt(state, n=txstream.Sum("n"))
        builder.set_committer_bolt(f"store_{table}", store).fields_grouping("count", "word")
    return builder.build()


# --- the guide -------------------------------------------------------------------------------------


def test_the_guides_code_runs(
    services: Services,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    zookeeper = f"{services.zookeeper}/{unique}"
    for name, value in (("ZOOKEEPER", zookeeper), ("KAFKA", services.kafka), ("DATABASE", sqlite_url)):
        monkeypatch.setenv(f"TXSTREAM_{name}", value)
    monkeypatch.chdir(tmp_path)
    truth = fill_topic(services.kafka, unique, make_lines(300), partitions=2)
    txstream.start(
        word_count.topology(unique, max_records_per_partition=40),
        until="caught-up",
        runner_factory=InProcessRunner,
    ).wait(60)
    load(DOCS / "inspection.md", tmp_path)
    out = capsys.readouterr().out
    assert f"word_count {len(truth)} rows as of txid 4" in out
    assert str(max(truth.values())) in out


def test_every_command_of_the_guide_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "inspection.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:\$ )?txstream ((?:state )?[a-z]+)", text, re.M))
    commands = {"batches", "show", "state list", "state get", "state top", "state diff", "fsck", "recover"}
    assert commands <= named
    for command in sorted(commands):
        assert main([*command.split(), "--help"]) == 0
        assert "--json" in capsys.readouterr().out


# --- a database with a password --------------------------------------------------------------------


def test_a_database_whose_password_is_not_known_is_named_and_found_when_it_is_given(
    make_desk: Any, sqlite_url: str, postgres: PostgresServer, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk: Desk = make_desk(sqlite_url)
    open_url = postgres.create_database(unique)
    postgres.create_account(unique, "pass:w@rd", owns=unique)
    secret = sa.make_url(open_url).set(username=unique, password="pass:w@rd")
    url = secret.render_as_string(hide_password=False)
    txstream.start(
        two_tables(unique, url).with_id(unique),
        settings=desk.settings,
        until="caught-up",
        runner_factory=InProcessRunner,
    ).wait(60)
    status, out, err = desk.command("state", "list", unique, "--json")
    assert [table["table"] for table in json.loads(out)] == [unique]
    assert "--state-database" in err
    assert "pass" not in err.replace("password", "")
    assert desk.codes()[0] == 1
    assert "database-missing" in desk.codes()[1]
    assert desk.command("delete", unique)[0] == 1
    with ZooKeeper(desk.services.zookeeper) as zookeeper:
        zookeeper.client.delete(f"{zookeeper.root}/{unique}", recursive=True)
    status, _, err = desk.command("recover", unique, "--from-ledger")
    assert status == 1
    assert "--state-database" in err
    assert desk.codes("--state-database", url) == (1, ["zookeeper-missing"])
    assert desk.command("recover", unique, "--from-ledger", "--yes", "--state-database", url)[0] == 0
    monkeypatch.setenv("TXSTREAM_STATE_DATABASES", url)
    assert desk.codes() == (0, [])
    status, out, err = desk.command("state", "list", unique, "--json")
    assert (len(json.loads(out)), err) == (2, "")
