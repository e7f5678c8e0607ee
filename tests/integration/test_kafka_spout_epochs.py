"""A broker whose log was taken away or exchanged while it was down, and has grown past our place again.

The topic's id is the same all along, and so are the offsets: only leader epochs tell one log from the other.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import Topics, attempt, ranges, wait_until

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import DataLostError, ShortReadError
from txstream.plugins.local.embedded import EmbeddedKafka
from txstream.spouts.kafka import KafkaOptions, KafkaRange, KafkaSource

ATTEMPT = attempt()
CONTEXT = SpoutContext("epochs", "lines", {})
MANY = 1_000_000
Places = Mapping[str, KafkaRange]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("cut")) as running:
        yield running


class Log:
    """The logs of a topic's partitions, whose directories are exchanged while their broker is down."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, spare: Path, partitions: int = 1) -> None:
        self.kafka, self.topic, self.name = kafka, topic, f"{topic}/0"
        self.folder = kafka.data_dir / "kafka" / "node-1" / f"{topic}-0"
        self.spare = spare
        with Topics(kafka.address) as topics:
            topics.create(topic, partitions)

    def grow(self, values: str, partition: int = 0) -> None:
        with Topics(self.kafka.address) as topics:
            topics.send(self.topic, [value.encode() for value in values], partition)

    def restart(self, *changes: Callable[[], object]) -> None:
        self.kafka.stop_broker(1)
        for change in changes:
            change()
        self.kafka.start_broker(1)

    def keep(self, name: str) -> None:
        shutil.copytree(self.folder, self.spare / name)

    def put_back(self, name: str) -> None:
        self.take_away()
        shutil.copytree(self.spare / name, self.folder)

    def take_away(self) -> None:
        shutil.rmtree(self.folder)

    def plan(self, last: Places, limit: int = MANY, **options: Any) -> dict[str, KafkaRange]:
        """What is planned once all partitions can be read again."""
        found: dict[str, KafkaRange | Unavailable] = {}

        def planned() -> bool:
            found.clear()
            found.update(coordinator.plan(last, limit))
            return not any(isinstance(one, Unavailable) for one in found.values())

        with closing(self.source(**options).coordinator(CONTEXT)) as coordinator:
            wait_until(planned, "the partitions are planned")
        return ranges(found)

    def check_plan(self, planned: Places) -> None:
        """What a driver does before it repeats a stored plan, and `txstream replay` before it runs one."""
        with closing(self.source().coordinator(CONTEXT)) as coordinator:
            wait_until(lambda: not coordinator.unreadable(planned), "the ranges can be read")

    def read(self, planned: Places, **options: Any) -> str:
        with closing(self.source(**options).emitter(CONTEXT)) as emitter:
            batches = [batch for _, batch in emitter.emit_many(ATTEMPT, planned)]
            return "".join(value for batch in batches for value in batch.column("value").to_pylist())

    def source(self, **options: Any) -> KafkaSource:
        options = {"kafka_columns": ["value"], "client": KafkaOptions({}, 0.2), **options}
        return KafkaSource(self.topic, self.kafka.address, **options)


def after(last: Places, plan: Places) -> Places:
    return BatchMetas.from_plan(last, plan).positions()


def only(name: str, places: Places) -> Places:
    return {name: places[name]}


@pytest.mark.soak
def test_a_log_that_was_cut_back_and_has_grown_past_our_place(
    kafka: EmbeddedKafka, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = Log(kafka, unique, tmp_path, 2), f"{unique}/1"
    for partition in (0, 1):
        log.grow("abcde", partition)
    first = log.plan({}, 6)
    last = after({}, first)
    second = log.plan(last)
    end = after(last, second)
    assert {meta.end for meta in end.values()} == {5}

    log.restart(log.take_away)
    log.grow("ABCDEFGHIJ")
    log.grow("f", 1)
    for place in (last, end):
        at = place[log.name].end
        with pytest.raises(
            DataLostError,
            match=f"{log.name} cannot go on at offset {at}: its last record was written in leader epoch 0, "
            f"which now ends at offset 0; .* has gone on in epoch [1-9][0-9]*, to offset 10",
        ):
            log.plan(place)
    with pytest.raises(DataLostError, match=r"cannot be read again from offset 3 to 5.*leader epoch 0"):
        log.check_plan(second)
    with pytest.raises(DataLostError, match="offset 4 was planned in leader epoch 0 and is now one of epoch"):
        log.read(only(log.name, second))
    with pytest.raises(ShortReadError, match="planned in leader epoch 0"):
        log.read(only(log.name, second), on_data_loss="skip")
    with caplog.at_level(logging.WARNING, "txstream"):  # as with a broker that does not report its epochs
        old = log.plan(end, client=KafkaOptions({"api_version": (2, 2)}, 0.2))
    assert [(old[name].start, old[name].leader_epoch) for name in (log.name, other)] == [(5, None), (5, None)]
    assert caplog.text.count("does not report leader epochs") == 1
    # A new leader alone loses nothing.
    log.check_plan(only(other, second))
    assert log.read(only(other, second)) == "de"
    skipping = log.plan(end, on_data_loss="skip")
    assert sorted(log.read(skipping)) == list("ABCDEFGHIJf")
    behind = skipping[log.name]
    assert (behind.start, behind.end, behind.skipped_from) == (0, 10, 5)
    assert skipping[other].skipped_from is None
    assert log.plan(after(end, skipping)) == {}, "the place behind the gap is sound"


@pytest.mark.soak
def test_another_replicas_log_that_reaches_past_our_place(
    kafka: EmbeddedKafka, unique: str, tmp_path: Path
) -> None:
    """An older leader comes back with records that nobody had copied: its epoch ends past our place."""
    log = Log(kafka, unique, tmp_path)
    log.grow("abc")
    log.restart(lambda: log.keep("short"))
    log.grow("DEFG")
    log.restart(lambda: log.keep("long"), lambda: log.put_back("short"))
    log.grow("de")
    last = log.plan({})
    assert log.read(last) == "abcde"
    log.restart(lambda: log.put_back("long"))
    log.grow("H")
    with pytest.raises(DataLostError, match=r"at offset 5: .*offset 4 is now one of epoch"):
        log.plan(last)
    with pytest.raises(DataLostError, match=r"cannot be read again from offset 0 to 5.*epoch"):
        log.check_plan(last)
    with pytest.raises(DataLostError, match="planned in leader epoch"):
        log.read(last)
