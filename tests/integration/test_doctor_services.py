"""`txstream doctor` finds each kind of wrongness in a real service, and leaves nothing behind."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from kazoo.client import KazooClient
from kazoo.security import make_acl
from psycopg.sql import SQL, Identifier
from support.kafka_topics import Topics
from support.postgres_tools import administrator, host_of
from support.runs import Launcher

from txstream import (
    Count,
    DeadLetters,
    KafkaSource,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    TransactionalTopologyBuilder,
)
from txstream.examples.mirror import topology as mirror_topology
from txstream.examples.word_count import topology
from txstream.plugins.doctor.checks import Check
from txstream.plugins.doctor.examination import Examination
from txstream.plugins.local.embedded import Services
from txstream.settings import Settings
from txstream.state import open_sql_database


def examine(services: Services, database: str, topic: str | None = None) -> dict[str, Check]:
    """Return the checks by name; with `topic`, those of the word count over it, whose table has that name."""
    settings = Settings(zookeeper=services.zookeeper, kafka=services.kafka, database=database)
    code = None if topic is None else topology(topic=topic, table=topic).with_id(topic)
    return {check.name: check for check in Examination(settings, code, with_spark=False).ask()}


def wrong(checks: dict[str, Check]) -> dict[str, Check]:
    return {name: check for name, check in checks.items() if not check.ok}


def tables(url: str) -> list[str]:
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def views_of(url: str) -> list[str]:
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).get_view_names()
    finally:
        engine.dispose()


def znodes(services: Services) -> list[str]:
    with contextlib.closing(KazooClient(services.zookeeper)) as client:
        client.start()
        try:
            return [name for name in client.get_children("/txstream/topologies") if "doctor" in name]
        finally:
            client.stop()


def test_all_is_well_and_nothing_stays(services: Services, postgres_url: str, unique: str) -> None:
    with Topics(services.kafka) as topics:
        topics.create(unique)
        topics.send(unique, [b"a b", b"c"])
    checks = examine(services, postgres_url, unique)
    assert wrong(checks) == {}
    assert checks[f"kafka topic {unique}"].message == "1 partition, readable"
    assert "database" in checks["clocks"].message
    assert "ZooKeeper" in checks["clocks"].message
    [grants] = [check for name, check in checks.items() if name.endswith(": grants")]
    assert "may create, read and write tables" in grants.message
    assert tables(postgres_url) == []
    assert znodes(services) == []


def test_a_table_whose_rows_may_go_needs_a_view(services: Services, postgres_url: str, unique: str) -> None:
    with Topics(services.kafka) as topics:
        topics.create(unique)
    settings = Settings(zookeeper=services.zookeeper, kafka=services.kafka, database=postgres_url)
    mirror = mirror_topology(topic=unique, table=unique).with_id(unique)
    checks = {check.name: check for check in Examination(settings, mirror, with_spark=False).ask()}
    assert wrong(checks) == {}
    [views] = [check for name, check in checks.items() if name.endswith(": views")]
    assert "may create views" in views.message
    assert tables(postgres_url) == []
    assert views_of(postgres_url) == []


def test_groups_and_the_topic_of_dead_letters(services: Services, sqlite_url: str, unique: str) -> None:
    letters = f"{unique}-letters"
    source = KafkaSource(unique, publish_group=f"{unique}-group")
    builder = TransactionalTopologyBuilder(
        unique, "lines", OpaqueSpout(source), dead_letters=DeadLetters(topic=letters)
    )
    state = SqlState(unique, key="value string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("lines", "value")
    settings = Settings(zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url)
    examination = Examination(settings, builder.build(), with_spark=False)
    with Topics(services.kafka) as topics:
        topics.create(unique)
        found = {check.name: check for check in examination.ask()}
        assert set(wrong(found)) == {f"kafka topic {letters}"}
        assert found[f"kafka group {unique}-group"].message == "may be used; it is not there yet"
        topics.create(letters)
        found = {check.name: check for check in examination.ask()}
    assert wrong(found) == {}


def test_no_topic(launcher: Launcher, unique: str) -> None:
    words = ["doctor", "txstream.examples.word_count:topology", "-p", f"topic={unique}", "--no-spark"]
    done = launcher.run(*words, "--json")
    assert done.status == 1
    checks = {check["name"]: check for check in done.json()["checks"]}
    assert {name for name, check in checks.items() if not check["ok"]} == {f"kafka topic {unique}", "source"}
    assert checks[f"kafka topic {unique}"]["remedy"] == f"txstream topic create {unique}"
    # What it says mends it.
    assert launcher.run("topic", "create", unique).status == 0
    done = launcher.run(*words)
    assert done.status == 0, done.stdout
    assert "all is well" in done.stdout


@pytest.mark.parametrize("revision", ["0001", "9999"])
def test_a_wrong_revision(services: Services, postgres_url: str, revision: str) -> None:
    database = open_sql_database(postgres_url)
    database.ensure_framework_tables()
    database.close()
    with _inside(postgres_url) as connection:
        connection.execute("UPDATE txstream_alembic_version SET version_num = %s", (revision,))
    [(name, check)] = wrong(examine(services, postgres_url)).items()
    assert name.endswith(": revision")
    assert revision in check.message
    assert check.remedy is not None
    assert ("txstream db upgrade --database" if revision == "0001" else "newer txstream") in check.remedy


def test_an_account_without_grants(services: Services, postgres_url: str, unique: str) -> None:
    url = sa.make_url(postgres_url)
    with administrator(postgres_url) as connection:
        connection.execute(SQL("CREATE ROLE {}").format(Identifier(unique)) + SQL(" LOGIN"))
    mine = url.set(username=unique).render_as_string(hide_password=False)
    [(name, check)] = wrong(examine(services, mine)).items()
    assert name.endswith(": grants")
    assert check.remedy == f"GRANT CREATE, USAGE ON SCHEMA public TO {unique};"
    # The tables are there, and belong to somebody else.
    database = open_sql_database(postgres_url)
    database.ensure_framework_tables()
    database.close()
    with _inside(postgres_url) as connection:
        connection.execute(SQL("GRANT SELECT ON txstream_alembic_version TO {}").format(Identifier(unique)))
        [(name, check)] = wrong(examine(services, mine)).items()
        assert name.endswith(": grants")
        while check.remedy is not None and check.remedy.startswith("GRANT"):
            connection.execute(check.remedy.encode())  # what it says mends it
            [check] = [one for one in examine(services, mine).values() if one.name == name]
    assert check.ok
    assert "which are all there, but create none" in check.message


def test_znodes_that_belong_to_others(services: Services, sqlite_url: str, unique: str) -> None:
    with contextlib.closing(KazooClient(services.zookeeper)) as client:
        client.start()
        client.create(f"/{unique}/txstream/topologies", b"", makepath=True)
        only_read = make_acl("world", "anyone", read=True, admin=True)
        client.set_acls(f"/{unique}/txstream/topologies", [only_read])
        settings = Settings(
            zookeeper=f"{services.zookeeper}/{unique}", kafka=services.kafka, database=sqlite_url
        )
        found = {check.name: check for check in Examination(settings, with_spark=False).ask()}
        client.stop()
    assert set(wrong(found)) == {"zookeeper"}
    assert "does not allow nobody" in found["zookeeper"].message


def _inside(url: str) -> psycopg.Connection[Any]:
    """Connect to this very database, as its administrator."""
    name = sa.make_url(url).database
    return psycopg.connect(host=host_of(url), user="postgres", dbname=name, autocommit=True)
