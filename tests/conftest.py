"""Real services for the whole run: each is started once, when the first test asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres import PostgresServer
from support.runs import Launcher

from txstream.embedded import EmbeddedKafka, EmbeddedZooKeeper, Services, embedded


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """An embedded ZooKeeper and a Kafka broker that no test stops."""
    with embedded(tmp_path_factory.mktemp("services")) as running:
        yield running


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, for topics, topology ids and tables."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server that no test stops."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer, unique: str) -> str:
    """An empty database of this test."""
    return postgres.create_database(unique)


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL server that the test may stop."""
    server = PostgresServer(tmp_path / "postgres")
    yield server
    server.close()


@pytest.fixture
def launcher(services: Services, tmp_path: Path, sqlite_url: str) -> Launcher:
    """`txstream` commands against the shared services and a database of this test."""
    return Launcher(services, tmp_path, sqlite_url)


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper that the test may stop."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Callable[[int], EmbeddedKafka]]:
    """Makes a Kafka of its own with so many brokers, which the test may stop."""
    started: list[EmbeddedKafka] = []

    def start(brokers: int) -> EmbeddedKafka:
        kafka = EmbeddedKafka(tmp_path / "kafka", brokers=brokers)
        kafka.start()
        started.append(kafka)
        return kafka

    yield start
    for kafka in started:
        kafka.stop()
