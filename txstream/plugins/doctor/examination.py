"""All checks of one call of `txstream doctor`: which there are for these settings and this topology."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from txstream.api.bolts import DataFrameBolt
from txstream.api.topology import BATCHES, Topology
from txstream.engine.spark.master import Master
from txstream.engine.spark.session import DEFAULT_MASTER, worker_settings
from txstream.engine.start.run_services import source_context
from txstream.inspect.databases import with_states_of, without_password
from txstream.plugins.doctor.checks import Check, Task, ask_all
from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.kafka_check import kafka_sources, look_at_brokers, look_at_topics
from txstream.plugins.doctor.local import Place, fixed_ports, look_at_java, look_at_port, look_at_python
from txstream.plugins.doctor.topology_check import look_at_identity, look_at_source
from txstream.plugins.doctor.zookeeper_check import look_at_zookeeper
from txstream.settings import Settings
from txstream.state.sql.urls import dialect_behind

_SLACK_SECONDS = 10.0
_SPARK_SECONDS = 120.0
_ENDING_SECONDS = 15.0  # for Spark
_ON_EXECUTORS = ("txstream", "pyspark", "pyarrow", "numpy")
_OF_KAFKA = ("kafka", "crc32c")


@dataclass
class Examination:
    """What is to be looked at. `imported` are the packages that the topology's own modules import."""

    settings: Settings
    topology: Topology | None = None
    imported: Sequence[str] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    with_spark: bool = True
    spark_seconds: float = _SPARK_SECONDS
    clocks: Clocks = field(default_factory=Clocks)

    def ask(self) -> list[Check]:
        """Ask everything, side by side, and return all answers."""
        places = list(self._places())
        tasks = [
            Task("java", look_at_java, "install Java 17 or 21", 60.0),
            Task("python", look_at_python, "pip install txstream", 60.0),
            *self._ports(places),
            self._task(
                "zookeeper",
                partial(look_at_zookeeper, self.settings, self.clocks),
                "start ZooKeeper (`txstream up` starts one here), or correct --zookeeper",
            ),
            *self._kafka(),
            *self._databases(),
            *self._topology(),
            *self._spark(places),
        ]
        found = ask_all(tasks)
        return [*found, *self.clocks.judge()]

    def _task(self, name: str, look: object, remedy: str) -> Task:
        # Several requests, each with a deadline of its own, that together must not take for ever.
        seconds = 2 * self.settings.connect_timeout_seconds + _SLACK_SECONDS
        return Task(name, look, remedy, seconds)  # type: ignore[arg-type]

    # --- what there is --------------------------------------------------------------------------------

    @property
    def _urls(self) -> list[str]:
        settings = with_states_of(self.settings, self.topology)
        return list(dict.fromkeys([settings.database_url(), *settings.state_databases]))

    def _places(self) -> Iterator[Place]:
        settings, topology = self.settings, self.topology
        if settings.zookeeper:
            yield from _listed("ZooKeeper", settings.zookeeper.partition("/")[0], 2181)
        brokers = {settings.kafka} if settings.kafka else set()
        for source, _ in kafka_sources(topology).values():
            brokers |= {source.bootstrap} if source.bootstrap else set()
        for bootstrap in sorted(brokers):
            yield from _listed("Kafka", bootstrap, 9092, for_executors=True)
        for url in self._urls:
            yield from _database_place(url)
        for host, port in Master(settings.master or DEFAULT_MASTER)._addresses:
            yield Place("the Spark master", host, port)

    def _ports(self, places: Iterable[Place]) -> Iterator[Task]:
        for place in dict.fromkeys(places):
            yield self._task(f"port {place.shown}", partial(look_at_port, place), f"start {place.what}")
        for name, look in fixed_ports(self.spark_conf):
            yield self._task(name, look, "give it another port")

    def _kafka(self) -> Iterator[Task]:
        sources = kafka_sources(self.topology)
        if sources and self.topology is not None:
            letters = None if self.topology.dead_letters is None else self.topology.dead_letters.topic
            context = source_context(self.topology, self.settings)
            for component, (source, group) in sources.items():
                yield self._task(
                    f"kafka source {component}",
                    partial(look_at_topics, source, group, context, letters),
                    "start Kafka, or correct --kafka",
                )
        elif self.settings.kafka or self.topology is None:
            yield self._task(
                "kafka", partial(look_at_brokers, self.settings), "start Kafka, or correct --kafka"
            )

    def _databases(self) -> Iterator[Task]:
        from txstream.plugins.doctor.database_check import look_at_database

        tables: dict[str, list[str]] = {url: [] for url in self._urls}
        views: dict[str, list[str]] = {url: [] for url in self._urls}
        if self.topology is not None:
            states = [bolt.state for bolt, _ in self.topology.states]
            for state in [*states, *(use.state for use in self.topology.map_states)]:
                url = state.url or self.settings.database_url()
                tables[url].append(state.stored_table)
                views[url] += [state.table] * (state.table != state.stored_table)
        for url, names in tables.items():
            yield self._task(
                f"database {without_password(url)}",
                partial(
                    look_at_database, self.settings, url, sorted(set(names)), self.clocks, views=views[url]
                ),
                "start or repair it, or correct --database",
            )

    def _topology(self) -> Iterator[Task]:
        if self.topology is not None:
            yield self._task(
                "source", partial(look_at_source, self.topology, self.settings), "correct the source"
            )
            yield self._task(
                "topology",
                partial(look_at_identity, self.topology, self.settings),
                f"txstream fsck {self.topology.id}",
            )

    def _spark(self, places: Sequence[Place]) -> Iterator[Task]:
        if not self.with_spark:
            return
        from txstream.plugins.doctor.spark_check import SparkCheck

        conf = dict(self.spark_conf)
        if self.topology is not None:
            slots = max(component.parallelism for component in self.topology.components)
            conf = {**worker_settings(self.topology.workers, slots, self.settings.master), **conf}
        patience = self.spark_seconds - _ENDING_SECONDS
        check = SparkCheck(self.settings, conf, self._modules(), places, self.clocks, patience)
        yield Task(
            "spark",
            check.look,
            "look into the log of Spark in the data directory; are there workers with free cores?",
            self.spark_seconds,
            check.stop,
        )

    def _modules(self) -> list[str]:
        """Return what executors import: what the framework needs there for this topology, and what its own
        modules import, as far as it can be imported here."""
        names = [*_ON_EXECUTORS]
        for source, _ in kafka_sources(self.topology).values():
            names += _OF_KAFKA
            for read_as in (source.value_schema, source.key_schema):
                if read_as is not None:
                    names += [type(read_as).__module__.partition(".")[0], *read_as.libraries]
        if self.topology is not None:
            if self.topology.commit != "driver" or self.topology.map_states:
                for url in self._urls:
                    names += _drivers(url)
            bolts = self.topology.bolts if self.topology.tier == BATCHES else ()
            if any(isinstance(bolt.instance, DataFrameBolt) for bolt in bolts):
                names.append("pandas")
        names += [name for name in self.imported if importlib.util.find_spec(name) is not None]
        return list(dict.fromkeys(names))


def _listed(what: str, addresses: str, default: int, *, for_executors: bool = False) -> Iterator[Place]:
    for address in addresses.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not colon or not port.isdecimal():
            host, port = address.strip(), str(default)
        yield Place(what, host.strip("[]"), int(port), for_executors)


def _database_place(url: str) -> Iterator[Place]:
    try:
        parsed = make_url(url)
    except ArgumentError:
        return  # its own check says what is wrong
    dialect = dialect_behind(url)
    port = parsed.port or (None if dialect is None else dialect.port)
    if parsed.host and port and "host" not in parsed.query:
        yield Place(f"the database {parsed.database}", parsed.host, port, for_executors=True)


def _drivers(url: str) -> list[str]:
    """Return what executors need to write shares of a batch: SQLAlchemy and the database's driver."""
    dialect = dialect_behind(url)
    return [] if dialect is None or dialect.port is None else ["sqlalchemy", dialect.driver]
