"""The example `tracked_orders` from end to end: a real Kafka, a real database, and killed drivers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from support.kafka_topics import Topics, wait_until
from support.runs import Launcher, RunningCommand

_EXAMPLE = "txstream.examples.tracked_orders:topology"


class Orders:
    """A topic of orders, some of which their producer has added twice, and the table that they go to."""

    def __init__(self, launcher: Launcher, topics: Topics, url: str, name: str) -> None:
        self.launcher = replace(launcher, database=url)
        self.topics = topics
        self.name = name
        self.truth: dict[str, tuple[str, Decimal]] = {}
        self.engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    def add(self, first: int, count: int) -> None:
        """Add new orders, and the last of them once more with another amount."""
        orders = [(str(n), f"customer {n % 7}", Decimal(n) / 4) for n in range(first, first + count)]
        values = []
        for number, customer, amount in orders:
            self.truth[number] = (customer, amount)
            values.append({"order_id": number, "customer": customer, "amount": f"{amount:.2f}"})
        values.append({"order_id": number, "customer": "somebody else", "amount": "0.01"})
        self.topics.send(self.name, [json.dumps(value).encode() for value in values])

    @property
    def arguments(self) -> list[str]:
        names = {"topic": self.name, "table": self.name, "max_spout_pending": "50"}
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

    def check(self) -> None:
        """Assert that each order is in the table once, as it was first."""
        rows = self.rows()
        assert len(rows) == len(self.truth)
        found = {row["order_id"]: (row["customer"], Decimal(str(row["amount"]))) for row in rows}
        assert found == self.truth


@pytest.fixture
def orders(launcher: Launcher, sqlite_url: str, unique: str) -> Iterator[Orders]:
    with Topics(launcher.services.kafka) as topics:
        topics.create(unique)
        orders = Orders(launcher.without_spark, topics, sqlite_url, unique)
        yield orders
        orders.engine.dispose()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_driver_that_is_killed_in_the_middle(
    kind: str, orders: Orders, request: pytest.FixtureRequest
) -> None:
    if kind == "postgresql":
        orders = Orders(orders.launcher, orders.topics, request.getfixturevalue("postgres_url"), orders.name)
    orders.topics.send(orders.name, [b'{"customer": "without an id"}', b'{"order_id": "20"}'])
    for first in range(0, 3000, 500):
        orders.add(first, 500)
    running = orders.start()
    wait_until(lambda: 0 < orders.stored() < 3000, "some orders are stored")
    running.kill()
    orders.run()
    orders.check()


@pytest.mark.soak
def test_on_spark(orders: Orders) -> None:
    orders.launcher = replace(orders.launcher, on_spark=True)
    orders.add(0, 300)
    orders.run()
    orders.check()
