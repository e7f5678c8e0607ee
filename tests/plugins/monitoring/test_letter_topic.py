"""Dead letters are sent to their topic: at least once and in order, whatever is away or dies."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kafka_topics import wait_until
from support.states import Rig, word_table

from txstream import (
    Count,
    DeadLetters,
    KafkaSource,
    MemorySpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    TransactionalTopologyBuilder,
)
from txstream.api.spouts import SpoutContext
from txstream.core.dead_letters import DeadLetter, SentLetter
from txstream.core.errors import ServiceUnavailableError, TopologyError
from txstream.core.transaction import Txid
from txstream.engine.start.companions import Leading
from txstream.plugins.monitoring.letter_topic import Letters, follower, letter_topic, record_of
from txstream.plugins.outbox.sending import OutboxFollower
from txstream.state import open_database


class Broker:
    """A topic in memory. It is away for as many sends as `fails`."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.fails = 0
        self.closed = 0

    def send(self, record: SentLetter) -> None:
        if self.fails:
            self.fails -= 1
            raise ServiceUnavailableError("no broker answers")
        self.offsets.append(int(dict(record.headers)["__streams.errors.offset"] or b""))

    def close(self) -> None:
        self.closed += 1


class Notes:
    """The note of how far it has come. With `dies`, the driver dies before it is stored."""

    def __init__(self) -> None:
        self.all: Mapping[str, Txid] = {}
        self.dies = False

    def put(self, sent: Mapping[str, Txid]) -> None:
        if self.dies:
            raise SystemExit
        self.all = dict(sent)

    @property
    def sent(self) -> Txid | None:
        return self.all.get("dead")


def letter(offset: int) -> DeadLetter:
    return DeadLetter(
        f"orders/3@{offset}", "orders", 3, offset, 1_767_000_000_000, b"k", b"{", b'[["own", "eA=="]]',
        "parse", "ValueError", "no JSON", "Traceback ...",
    )  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A database with the letters 9 and 10 of txid 1, and 11 of txid 3."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    opened = open_database(url)
    made = Rig(opened, url, word_table()).join()
    for txid, offsets in ((1, (10, 9)), (2, ()), (3, (11,))):
        whole = made.whole(made.next(txid), {"a": 1})
        made.states.commit(replace(whole, letters=[letter(offset) for offset in offsets]))
    yield made
    opened.close()


def topic_of(rig: Rig, broker: Broker, notes: Notes, current: int) -> OutboxFollower:
    life, store = rig.states.life, rig.states.store
    letters = Letters(life.topology, life.uuid, "dead", [store], lambda: broker)
    return follower(letters, lambda: Txid(current), lambda: notes.all, notes.put)


def test_a_letter_is_its_record_with_the_headers_of_kafka_streams() -> None:
    sent = record_of(letter(9))
    assert (sent.partition, sent.key, sent.value, sent.timestamp_ms) == (3, b"k", b"{", 1_767_000_000_000)
    assert list(sent.headers) == [
        ("own", b"x"),
        ("__streams.errors.exception", b"ValueError"),
        ("__streams.errors.stacktrace", b"Traceback ..."),
        ("__streams.errors.message", b"no JSON"),
        ("__streams.errors.topic", b"orders"),
        ("__streams.errors.partition", b"3"),
        ("__streams.errors.offset", b"9"),
    ]


def test_only_what_is_committed_everywhere_is_sent_in_the_order_of_its_source(rig: Rig) -> None:
    broker, notes = Broker(), Notes()
    topic_of(rig, broker, notes, 1).send_committed()
    assert (broker.offsets, notes.sent) == ([], 0)
    topic_of(rig, broker, notes, 3).send_committed()
    assert (broker.offsets, notes.sent) == ([9, 10], 2)
    topic_of(rig, broker, notes, 4).send_committed()
    assert (broker.offsets, notes.sent) == ([9, 10, 11], 3)


def test_a_record_that_was_sent_as_a_dead_letter_is_not_sent_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    sent = record_of(letter(12)).headers
    headers = json.dumps([(name, base64.b64encode(value or b"").decode()) for name, value in sent])
    whole = rig.whole(rig.next(4), {"a": 1})
    back = [replace(letter(offset), headers=headers.encode()) for offset in (12, 14)]
    rig.states.commit(replace(whole, letters=[*back, letter(13)]))
    broker, notes = Broker(), Notes()
    topic_of(rig, broker, notes, 5).send_committed()
    assert (broker.offsets, notes.sent) == ([9, 10, 11, 13], 4)
    said = [one for one in caplog.messages if "is not sent again" in one]
    assert said == ["orders/3@12 was a dead letter when it was read, so it is not sent again"]


def test_a_broker_that_is_away_delays_them_and_loses_none(rig: Rig) -> None:
    broker, notes = Broker(), Notes()
    topic = topic_of(rig, broker, notes, 4)
    for _ in range(2):
        broker.fails = 1
        with pytest.raises(ServiceUnavailableError):
            topic.send_committed()
    topic.send_committed()
    assert (broker.offsets, notes.sent) == ([9, 10, 11], 3)


def test_a_connection_that_cannot_be_closed_is_given_up(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Broker):
        def close(self) -> None:
            raise ServiceUnavailableError("it still waits for an answer")

    broker, notes = Stuck(), Notes()
    broker.fails = 1
    topic = topic_of(rig, broker, notes, 4)
    topic.start()
    wait_until(lambda: notes.sent == 3, "they are sent by the next connection")
    topic.stop(60)
    assert broker.offsets == [9, 10, 11]
    assert "dead letters wait to be sent to their topic: no broker answers" in caplog.text


def test_a_driver_that_dies_before_its_note_has_the_next_one_send_them_again(rig: Rig) -> None:
    broker, notes = Broker(), Notes()
    notes.dies = True
    with pytest.raises(SystemExit):
        topic_of(rig, broker, notes, 4).send_committed()
    notes.dies = False
    topic_of(rig, broker, notes, 4).send_committed()
    assert (broker.offsets, notes.sent) == ([9, 10, 11, 9, 10, 11], 3)


def test_a_run_that_ends_sends_what_is_committed(rig: Rig) -> None:
    broker, notes = Broker(), Notes()
    topic = topic_of(rig, broker, notes, 4)
    topic.start()
    topic.stop(60)
    assert (broker.offsets, notes.sent, broker.closed) == ([9, 10, 11], 3, 1)


def test_a_run_that_ends_before_the_broker_answers_says_that_letters_wait(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    class Silent(Broker):
        def send(self, record: SentLetter) -> None:
            answers.wait(60)
            super().send(record)

    broker, notes = Silent(), Notes()
    topic = topic_of(rig, broker, notes, 4)
    topic.start()
    topic.stop(0.01)
    assert "dead letters wait" in caplog.text
    answers.set()
    topic.stop(60)
    assert (broker.offsets, notes.sent) == ([9, 10, 11], 3)


def test_what_was_noted_of_another_topic_does_not_count(rig: Rig) -> None:
    """A topology that names no topic has nobody who sends."""
    broker, noted = Broker(), [("another", Txid(9))]
    source = SimpleNamespace(letter_topic=lambda topic, *_: broker if topic == "dead" else None)
    topology = SimpleNamespace(
        id=rig.topology, dead_letters=SimpleNamespace(topic="dead"), spout=SimpleNamespace(source=source)
    )
    notes = SimpleNamespace(get=lambda _: noted[-1], put=lambda _, note: noted.append(note))
    store = SimpleNamespace(notes=notes, read_identity=lambda: SimpleNamespace(uuid=rig.uuid))
    given: Any = (topology, SpoutContext("t", "w", {}), [rig.database], store, lambda: Txid(4))
    for expected in ([9, 10, 11], []):  # once more it is noted, and nothing is to be sent
        broker.offsets.clear()
        topic = letter_topic(Leading(*given))
        assert topic is not None
        topic.send_committed()
        assert broker.offsets == expected
    assert noted[1:] == [("dead", 3), ("dead", 3)]
    topology.dead_letters = None
    assert letter_topic(Leading(*given)) is None


def test_a_source_without_topics_is_refused() -> None:
    with (
        MemorySpout("word string", {"p": []}) as source,
        pytest.raises(TopologyError, match="MemorySpout has none; leave topic='dead' out"),
    ):
        TransactionalTopologyBuilder("t", "w", OpaqueSpout(source), dead_letters=DeadLetters(topic="dead"))


def counting(source: KafkaSource, topic: str) -> TransactionalTopologyBuilder:
    letters = DeadLetters(topic=topic)
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(source), dead_letters=letters)
    store = SqlStateBolt(SqlState("counts", key="value string", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("lines", "value")
    return builder


def test_the_topic_is_not_one_that_the_source_reads() -> None:
    """Each letter would be read as input, fail, and be sent again."""
    for names in ("lines", ["lines", "other"]):
        with pytest.raises(TopologyError, match="reads the topic 'lines', to which the topology would write"):
            counting(KafkaSource(names), "lines").build()
    named = KafkaSource(["lines", "other"])
    assert counting(named, "lines-dead").build().spout.source is named
    pattern = KafkaSource(topic_pattern="lines.*")
    assert counting(pattern, "dead-lines").build().spout.source is pattern
    topology = counting(pattern, "lines-dead").build()
    source = topology.spout.source
    assert isinstance(source, KafkaSource)
    read = [name for name in ("lines", "lines-dead", "lines-dead2") if source.selection.reads(name)]
    assert read == ["lines", "lines-dead2"]
    assert source.identity() == pattern.identity()
    assert pattern.selection.reads("lines-dead"), "the user's own source is as it was"


def test_a_topic_has_a_name_that_kafka_takes() -> None:
    with pytest.raises(TopologyError, match="must be the name of a topic"):
        DeadLetters(topic="no topic")
