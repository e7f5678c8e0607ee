"""Runs the topology in this process: no Kafka, no ZooKeeper, no Spark."""

from __future__ import annotations

from ${name} import build
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest


def test_counts_every_word_once() -> None:
    lines = MemorySpout("value string", {"p0": ["the cat", "The dog"], "p1": ["a cat"]})
    with lines, TopologyTest(build(lines)) as test:
        test.run()
        assert test.table("${table}") == {"the": 2, "cat": 2, "dog": 1, "a": 1}


def test_a_crash_counts_nothing_twice() -> None:
    lines = MemorySpout("value string", {"p0": ["the cat", "the dog"]})
    with lines, TopologyTest(build(lines)) as test:
        test.process()
        test.crash()
        test.restart()
        test.run()
        assert test.table("${table}") == {"the": 2, "cat": 1, "dog": 1}
