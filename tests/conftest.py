"""Real services for the whole run: each is started once, when the first test asks for it.

No test stops `services` and `postgres`. A test may stop, kill and freeze `own_zookeeper`, `own_postgres`,
`own_kafka` and `cluster`: they too are started once, and are whole again for the next test.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import psutil
import pytest
from mysql_servers import MariaDBServer, MissingServerError, MySQLFamilyServer, MySQLServer
from postgres import PostgresServer
from registry_server import RegistryServer
from support.bare_python import make_bare_python
from support.inmemory import MemoryLog
from support.runs import SPARK_STARTS_SOONER, Launcher, keep_sparks_classes
from support.spark_standalone import SparkStandalone
from support.states import Rig

from txstream.plugins.local.embedded import EmbeddedKafka, EmbeddedZooKeeper, Services, embedded
from txstream.state import StateBackend, open_database

pytest_plugins = ("support.processes", "support.run_report", "support.skips")

FamilyServer = TypeVar("FamilyServer", bound=MySQLFamilyServer | RegistryServer)

for _name, _value in SPARK_STARTS_SOONER.items():
    os.environ.setdefault(_name, _value)

# Databases and servers wait for the disk at every commit, for longer than the tests compute, and no test is
# about a power failure. So their files are kept in memory if it is plentiful and programs may run from there.
MEMORY, PLENTY = Path("/dev/shm"), 8 << 30
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and min(psutil.disk_usage(str(MEMORY)).free, psutil.virtual_memory().available) > PLENTY
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# A shell starts background jobs with SIGINT ignored, and commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No test has a time limit: several processes share the cores.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


# PostgreSQL is the server of the gate.
SECOND_SERVERS = frozenset(
    ("mariadb", "mysql", "mysql_server", "contract_server", "own_mariadb", "own_mysql", "own_registry")
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what needs a second kind of server to the long lane."""
    for item in items:
        uses = getattr(item, "fixturenames", ())
        if item.path.name.endswith("_mysql.py") or not SECOND_SERVERS.isdisjoint(uses):
            item.add_marker(pytest.mark.soak)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Archive Spark's classes before anything starts Java. What was imported and collected stays: no
    collection of garbage shall go through it again."""
    gc.collect()
    gc.freeze()
    without_java = ("tests/unit/", "tests/plugins/", "tests/simulation/")
    if not (
        session.config.option.collectonly
        or all(item.nodeid.startswith(without_java) for item in session.items)
    ):
        keep_sparks_classes()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, for topics, topology ids and tables."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def log() -> MemoryLog:
    """Two partitions of lines, which make three batches of two records."""
    return MemoryLog({"a": ["the cat", "the dog", None, "a cat"], "b": ["the end", "of the cat"]})


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no simulation begin with a new process that runs the bolts again: what they do is known."""
    monkeypatch.setattr("txstream.plugins.proof.simulation.runs.check_determinism", lambda *_: None)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def database(url: str) -> Iterator[StateBackend]:
    """The store at the `url` that a test file gives."""
    database = open_database(url, connect_timeout_seconds=5.0, message_timeout_seconds=10.0)
    yield database
    database.close()


@pytest.fixture
def rig(database: StateBackend, url: str) -> Rig:
    """An opaque word count in `database`."""
    return Rig(database, url).join()


# --- what no test stops -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """An embedded ZooKeeper and a Kafka broker."""
    with embedded(tmp_path_factory.mktemp("services")) as running:
        yield running


@pytest.fixture
def launcher(services: Services, tmp_path: Path, sqlite_url: str) -> Launcher:
    """`txstream` commands against the shared services and a database of this test."""
    return Launcher(services, tmp_path, sqlite_url)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """A MariaDB server."""
    yield from _started(MariaDBServer)


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQLServer]:
    """A MySQL server."""
    yield from _started(MySQLServer)


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def mysql_server(request: pytest.FixtureRequest) -> MySQLFamilyServer:
    """MariaDB and MySQL, one after the other."""
    server: MySQLFamilyServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="session", params=["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def contract_server(request: pytest.FixtureRequest) -> MySQLFamilyServer:
    """MariaDB, and in a soak MySQL too: for contracts in which the two do not differ."""
    server: MySQLFamilyServer = request.getfixturevalue(request.param)
    return server


def _started(kind: type[FamilyServer]) -> Iterator[FamilyServer]:
    try:
        server = kind()
    except MissingServerError as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer, unique: str) -> str:
    """An empty database of this test."""
    return postgres.create_database(unique)


# --- what a test may stop ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _own_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name has a blank and an accent, as a home directory may."""
    return tmp_path_factory.mktemp("Josés services")


@pytest.fixture(scope="session")
def _zookeeper(_own_folder: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(_own_folder) as server:
        yield server


@pytest.fixture
def own_zookeeper(_zookeeper: EmbeddedZooKeeper) -> EmbeddedZooKeeper:
    """A ZooKeeper that the test may stop."""
    if not _zookeeper.alive():
        _zookeeper.start()
    return _zookeeper


@pytest.fixture(scope="session")
def _postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("own-postgres"))
    yield server
    server.close()


@pytest.fixture
def own_postgres(_postgres: PostgresServer) -> PostgresServer:
    """A PostgreSQL server that the test may stop."""
    _postgres.start()
    return _postgres


@pytest.fixture(scope="session")
def _mariadb() -> Iterator[MariaDBServer]:
    yield from _started(MariaDBServer)


@pytest.fixture
def own_mariadb(_mariadb: MariaDBServer) -> MariaDBServer:
    """A MariaDB server that the test may stop."""
    _mariadb.start()
    return _mariadb


@pytest.fixture(scope="session")
def _mysql() -> Iterator[MySQLServer]:
    yield from _started(MySQLServer)


@pytest.fixture(scope="session")
def _registry() -> Iterator[RegistryServer]:
    yield from _started(RegistryServer)


@pytest.fixture
def own_registry(_registry: RegistryServer) -> RegistryServer:
    """A schema registry that the test may stop."""
    _registry.start()
    return _registry


@pytest.fixture
def own_mysql(_mysql: MySQLServer) -> MySQLServer:
    """A MySQL server that the test may stop."""
    _mysql.start()
    return _mysql


@pytest.fixture(scope="session")
def _brokers(_own_folder: Path) -> Iterator[EmbeddedKafka]:
    # The brokers must start over what a killed formatting left behind.
    unfinished = _own_folder / "kafka" / "node-1.formatting"
    unfinished.mkdir(parents=True)
    (unfinished / "meta.properties").write_text("version=1\ncluster.id=half-written")
    with EmbeddedKafka(_own_folder, brokers=2) as kafka:
        yield kafka


@pytest.fixture
def own_kafka(_brokers: EmbeddedKafka) -> EmbeddedKafka:
    """A Kafka with brokers 1 and 2, which the test may stop."""
    for node in _brokers.nodes:
        if not _brokers.alive(node):
            _brokers.start_broker(node)
    return _brokers


@pytest.fixture(scope="session")
def steady_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A Kafka with brokers 1 and 2, whole when a test ends. A frozen broker stays leader for 20 s."""
    folder = tmp_path_factory.mktemp("steady")
    with EmbeddedKafka(folder, brokers=2, overrides={"broker.session.timeout.ms": "20000"}) as running:
        yield running


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has what executors need (pyarrow, kafka-python, a CRC) but not txstream."""
    return make_bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def _standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkStandalone]:
    folder = tmp_path_factory.mktemp("cluster")
    with SparkStandalone(folder, workers=2, worker_env={"FOR_WORKERS": "yes"}) as cluster:
        yield cluster


@pytest.fixture
def cluster(_standalone: SparkStandalone) -> SparkStandalone:
    """A Spark cluster of two worker daemons with one core each, which the test may kill or stop."""
    if _standalone.registered_workers() != 2:
        _standalone.stop()
        _standalone.start()
    return _standalone
