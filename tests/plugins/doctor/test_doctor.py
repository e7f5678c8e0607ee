"""`txstream doctor` without services: deadlines, what is wrong and what mends it, clocks, packages."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import sys
import threading
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pytest

from txstream import (
    Count,
    Decode,
    KafkaSource,
    OpaqueSpout,
    Settings,
    SqlState,
    SqlStateBolt,
    TransactionalTopologyBuilder,
)
from txstream.cli.factory import imported_by
from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.doctor import local
from txstream.plugins.doctor.checks import Check, Task, WrongError, ask_all
from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.database_check import look_at_database
from txstream.plugins.doctor.examination import Examination
from txstream.plugins.doctor.executor_probe import probe


def raising(error: Exception) -> object:
    def look() -> str:
        raise error

    return look


def test_a_silent_service_hides_no_other() -> None:
    waiting = threading.Event()
    given_up: list[str] = []

    def silent() -> str:
        waiting.wait(60.0)
        return "late"

    tasks = [
        Task("silent", silent, "wake it", 0.2, lambda: given_up.append("silent")),
        Task("fine", lambda: "all right", "nothing", 30.0),
        Task("wrong", raising(WrongError("it is red", "paint it")), "other", 30.0),  # type: ignore[arg-type]
        Task("ours", raising(ServiceUnavailableError("it is away; start it")), "other", 30.0),  # type: ignore[arg-type]
        Task("theirs", raising(KeyError("x")), "look at it", 30.0),  # type: ignore[arg-type]
    ]
    try:
        found = ask_all(tasks)
    finally:
        waiting.set()
    assert found == [
        Check("silent", False, "no answer within 0.2 s", "wake it"),
        Check("fine", True, "all right"),
        Check("wrong", False, "it is red", "paint it"),
        Check("ours", False, "it is away", "start it"),
        Check("theirs", False, "KeyError: 'x'", "look at it"),
    ]
    assert given_up == ["silent"]


def test_several_checks_of_one_task() -> None:
    def look() -> Iterator[Check]:
        yield Check("a", True, "x")
        yield Check("b", False, "y", "z")

    assert [check.name for check in ask_all([Task("both", look, "", 30.0)])] == ["a", "b"]


def test_clocks_that_differ_are_named() -> None:
    clocks = Clocks(now=lambda: 1_000.0)
    clocks.compare("ZooKeeper", 999.0, before=998.0)  # within the question
    clocks.compare("database x", 940.0, before=999.5)
    assert clocks.ahead["ZooKeeper"] == 0.0
    [check] = clocks.judge()
    assert not check.ok
    assert "this machine is 59.5 s ahead of that of database x" in check.message
    assert check.remedy is not None
    assert "timedatectl" in check.remedy
    clocks.compare("database x", 1_001.0, before=999.5)
    [check] = clocks.judge()
    assert check.ok
    assert Clocks().judge() == []


def test_a_package_that_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["kazoo>=2.10", "no-such-package>=1.0", "numpy>=999", "pymysql>=1.2; extra == 'mysql'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needs)
    with pytest.raises(WrongError) as caught:
        local.look_at_python()
    assert "kazoo" not in str(caught.value)
    assert caught.value.remedy == f"{sys.executable} -m pip install 'no-such-package>=1.0' 'numpy>=999'"


def test_a_fixed_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        conf = {"spark.driver.port": port, "spark.driver.bindAddress": "127.0.0.1"}
        [(name, look)] = local.fixed_ports(conf)
        assert name == f"port {port} (spark.driver.port)"
        with pytest.raises(WrongError, match="cannot be listened at"):
            look()


def test_what_executors_must_have_is_what_the_formats_of_a_source_import() -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "string"}]}
    source = KafkaSource(
        "orders",
        decode=Decode("avro", order, key_format="json", key_schema="n int"),
        kafka_columns=["key"],
    )  # fmt: skip
    builder = TransactionalTopologyBuilder("orders", "orders", OpaqueSpout(source), commit="executors")
    store = SqlStateBolt(SqlState("sums", key="user string", value="n bigint"), n=Count())
    builder.set_bolt("store", store).fields_grouping("orders", "user")
    asked = Examination(Settings(database="mysql://host/name"), builder.build())._modules()
    assert {"kafka", "fastavro", "sqlalchemy", "pymysql"} <= set(asked)
    assert len(asked) == len(set(asked))


def test_what_executors_must_have_is_what_shipped_modules_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "doctored.py").write_text("import json, requests_like\nimport doctored_more\n")
    (tmp_path / "doctored_more.py").write_text("def f():\n    from other_like.part import x\n")
    assert imported_by("doctored:topology") == {"requests_like", "other_like"}


def test_the_probe_of_an_executor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    [found] = probe(
        {"json": None, "numpy": "numpy", "no_such_module": None}, [("it", "127.0.0.1", closed)], 5.0, []
    )
    assert found["missing"] == ["no_such_module"]
    assert set(found["versions"]) == {"numpy"}
    assert found["unreachable"] == [("it", "127.0.0.1", closed, "Connection refused")]


def test_an_executor_without_a_time_zone_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(key: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    [found] = probe({}, [], 5.0, [])
    assert found["missing"] == ["tzdata"]


def test_everything_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's document and status, with addresses at which nobody listens."""
    monkeypatch.chdir(tmp_path)
    away = ["--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:2", "--connect-timeout", "0.5"]
    database = "postgresql://me:hush-hush@127.0.0.1:3/results"
    monkeypatch.setenv("TXSTREAM_DATABASE", database)
    assert main(["doctor", "--no-spark", "--json", *away]) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert set(document) == {"checks"}
    checks = {check["name"]: check for check in document["checks"]}
    assert all(set(check) == {"name", "ok", "message", "remedy"} for check in checks.values())
    wrong = {name for name, check in checks.items() if not check["ok"]}
    assert wrong == {
        "port 127.0.0.1:1",
        "port 127.0.0.1:2",
        "port 127.0.0.1:3",
        "zookeeper",
        "kafka",
        "database postgresql://me:***@127.0.0.1:3/results",
    }
    assert all(checks[name]["remedy"] for name in wrong)
    assert checks["java"]["ok"]
    assert "hush" not in printed.out + printed.err
    assert list(tmp_path.iterdir()) == []


def test_triggers_of_sqlite_that_may_take_rows_are_named(tmp_path: Path) -> None:
    """Others, of an audit for example, are not."""
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE sums (n INT); CREATE TABLE seen (n INT);"
            "CREATE TRIGGER audit AFTER UPDATE ON sums BEGIN INSERT INTO seen VALUES (new.n); END;"
            "CREATE TRIGGER ignores BEFORE INSERT ON sums BEGIN SELECT RAISE (IGNORE); END;"
            "CREATE TRIGGER deletes AFTER INSERT ON sums BEGIN DELETE FROM sums WHERE n = new.n; END;"
        )
    checks = [*look_at_database(Settings(), f"sqlite:///{path}", ["Sums"], Clocks())]
    assert [
        (check.ok, check.message.partition(", which")[0])
        for check in checks
        if check.name.endswith(": triggers")
    ] == [(True, f"note: table Sums has the trigger {name}") for name in ("deletes", "ignores")]
