"""The example `tracked_orders` from end to end: a real Redis, a real database, and killed drivers."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from redis.exceptions import ResponseError
from redis_server import PASSWORD, RedisServer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from support.kafka_topics import wait_until
from support.runs import Launcher, RunningCommand

from txstream.examples.tracked_orders import topology
from txstream.settings import Settings
from txstream.testing import TrackedTest

_EXAMPLE = "txstream.examples.tracked_orders:topology"


class Orders:
    """A stream of orders, some of which their producer has added twice, and the table that they go to."""

    def __init__(self, launcher: Launcher, server: RedisServer, url: str, name: str) -> None:
        self.launcher = replace(launcher, database=url, environment={"TXSTREAM_REDIS": server.url})
        self.redis = server.client()
        self.name = name
        self.truth: dict[str, tuple[str, Decimal]] = {}
        self.engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    def add(self, first: int, count: int) -> None:
        """Add new orders, and the last of them once more with another amount."""
        orders = [(str(n), f"customer {n % 7}", Decimal(n) / 4) for n in range(first, first + count)]
        pipeline = self.redis.pipeline(transaction=False)
        for number, customer, amount in orders:
            self.truth[number] = (customer, amount)
            pipeline.xadd(self.name, {"order_id": number, "customer": customer, "amount": f"{amount:.2f}"})
        pipeline.xadd(self.name, {"order_id": number, "customer": "somebody else", "amount": "0.01"})
        pipeline.execute()

    @property
    def arguments(self) -> list[str]:
        names = {"stream": self.name, "table": self.name, "max_spout_pending": "50"}
        parameters = [word for name, value in names.items() for word in ("-p", f"{name}={value}")]
        return ["run", _EXAMPLE, *parameters, "--id", self.name, "--session-timeout", "2"]

    def start(self) -> RunningCommand:
        return self.launcher.start(*self.arguments)

    def run(self) -> str:
        """Run until everything is acknowledged; return what the run printed."""
        ended = self.launcher.run(*self.arguments, "--until", "caught-up")
        assert ended.status == 0, ended.stderr
        return ended.stdout + ended.stderr

    def rows(self) -> list[Mapping[str, Any]]:
        with self.engine.connect() as connection:
            found = connection.execute(text(f"SELECT order_id, customer, amount FROM {self.name}"))
            return [dict(row) for row in found.mappings()]

    def stored(self) -> int:
        try:
            return len(self.rows())
        except DBAPIError:
            return 0  # the table does not exist yet

    @property
    def pending(self) -> int:
        try:
            return int(self.redis.xpending(self.name, self.name)["pending"])
        except ResponseError:
            return 0  # nor does the group

    def check(self) -> None:
        """Assert that each order is in the table once, as it was first, and nothing is left in Redis."""
        rows = self.rows()
        assert len(rows) == len(self.truth)
        found = {row["order_id"]: (row["customer"], Decimal(str(row["amount"]))) for row in rows}
        assert found == self.truth
        assert self.pending == 0


@pytest.fixture
def orders(launcher: Launcher, own_redis: RedisServer, sqlite_url: str, unique: str) -> Iterator[Orders]:
    orders = Orders(launcher.without_spark, own_redis, sqlite_url, unique)
    yield orders
    orders.engine.dispose()
    orders.redis.close()


def test_step_by_step(own_redis: RedisServer, orders: Orders) -> None:
    orders.add(0, 20)
    orders.redis.xadd(orders.name, {"customer": "without an id"})
    orders.redis.xadd(orders.name, {"order_id": "20", "amount": "much"})
    settings = Settings(redis=own_redis.url, database=str(orders.engine.url))
    name = orders.name
    with TrackedTest(topology(stream=name, table=name), settings=settings) as test:
        test.run()
    assert int(orders.redis.xpending(name, "tracked-orders")["pending"]) == 0
    assert {row["order_id"] for row in orders.rows()} == set(orders.truth)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_driver_that_is_killed_in_the_middle(
    kind: str, orders: Orders, launcher: Launcher, request: pytest.FixtureRequest
) -> None:
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_url")
        server = request.getfixturevalue("own_redis")
        orders = Orders(launcher.without_spark, server, url, orders.name)
    for first in range(0, 3000, 500):
        orders.add(first, 500)
    running = orders.start()
    wait_until(lambda: 0 < orders.stored() < 3000, "some orders are stored")
    running.kill()
    assert orders.pending > 0
    said = orders.run()
    orders.check()
    assert PASSWORD not in said


def test_a_driver_that_is_killed_between_the_commit_and_the_acknowledgement(
    orders: Orders, own_redis: RedisServer
) -> None:
    orders.add(0, 1)
    orders.run()  # now the table exists
    database = sqlite3.connect(str(orders.engine.url.database), isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    orders.add(1, 30)
    running = orders.start()
    wait_until(lambda: orders.pending == 31, "the orders are read")
    assert own_redis._process is not None
    own_redis._process.send_signal(signal.SIGSTOP)
    try:
        database.execute("ROLLBACK")
        wait_until(lambda: orders.stored() == 31, "the orders are stored")
        running.kill()
    finally:
        own_redis._process.send_signal(signal.SIGCONT)
    assert orders.pending == 31
    orders.run()
    orders.check()


def test_a_redis_that_is_frozen_is_waited_for_and_has_no_end_meanwhile(
    orders: Orders, own_redis: RedisServer
) -> None:
    for first in range(0, 2000, 500):
        orders.add(first, 500)
    running = orders.launcher.start(*orders.arguments, "--until", "caught-up")
    wait_until(lambda: 0 < orders.stored() < 2000, "some orders are stored")
    assert own_redis._process is not None
    own_redis._process.send_signal(signal.SIGSTOP)
    try:
        assert "trees open" in running.wait_for_line("failed or timed out, waiting for the stream")
        waits = f"waiting for the stream '{orders.name}' at redis://127.0.0.1:{own_redis.port}/0, which does"

        def status_shows() -> bool:
            return waits in " ".join(orders.launcher.run("status", orders.name).stdout.split())

        wait_until(status_shows, "status says so")
        assert running.process.poll() is None
    finally:
        own_redis._process.send_signal(signal.SIGCONT)
    ended = running.wait()
    assert ended.status == 0, ended.stderr
    orders.check()


@pytest.mark.soak
def test_on_spark(launcher: Launcher, orders: Orders) -> None:
    orders.launcher = replace(orders.launcher, on_spark=True)
    orders.add(0, 300)
    orders.run()
    orders.check()
