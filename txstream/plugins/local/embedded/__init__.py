"""Real ZooKeeper and real Kafka as local child processes, for demo and tests."""

from __future__ import annotations

from txstream.cli.java import Java, find_java
from txstream.plugins.local.embedded.kafka import EmbeddedKafka
from txstream.plugins.local.embedded.services import Services, Stopped, down, embedded, living, running, up
from txstream.plugins.local.embedded.zookeeper import EmbeddedZooKeeper

__all__ = [
    "EmbeddedKafka",
    "EmbeddedZooKeeper",
    "Java",
    "Services",
    "Stopped",
    "down",
    "embedded",
    "find_java",
    "living",
    "running",
    "up",
]
