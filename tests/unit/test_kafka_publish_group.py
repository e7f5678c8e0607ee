"""A consumer group that gets committed places: an outage delays them, and the newest come first."""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar

import kafka.errors as kafka_errors
import pytest
from support.kafka_topics import wait_until

from txstream import KafkaSource, TopologyError
from txstream.core.backoff import Backoff
from txstream.spouts.kafka import publish_group as module
from txstream.spouts.kafka.publish_group import PublishGroup


class Admin:
    """Stands for a cluster, which is away at first."""

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {}
    away: ClassVar[threading.Event]
    asked: ClassVar[threading.Event]
    stored: ClassVar[list[dict[str, int]]]

    def __init__(self, **options: Any) -> None: ...

    def alter_group_offsets(self, group: str, offsets: Any) -> dict[Any, Any]:
        Admin.asked.set()
        if Admin.away.is_set():
            raise kafka_errors.KafkaConnectionError("away")
        stored = {f"{place.topic}/{place.partition}": one.offset for place, one in offsets.items()}
        Admin.stored.append(stored)
        return dict.fromkeys(offsets, kafka_errors.NoError)

    def close(self) -> None: ...


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> PublishGroup:
    Admin.away, Admin.asked, Admin.stored = threading.Event(), threading.Event(), []
    monkeypatch.setattr(module, "KafkaAdminClient", Admin)
    monkeypatch.setattr(module, "_BACKOFF", Backoff(0.001, 0.001))
    return PublishGroup("127.0.0.1:1", {}, "counts", client_id="test")


def test_a_lost_broker_delays_only(group: PublishGroup, caplog: pytest.LogCaptureFixture) -> None:
    Admin.away.set()
    with caplog.at_level(logging.WARNING, "txstream"):
        group.put({"lines/0": 1})
        assert Admin.asked.wait(60)
        group.put({"lines/0": 2})
        group.put({"lines/0": 3})
        Admin.away.clear()
        wait_until(lambda: Admin.stored, "the newest places are published")
        group.close()
    assert Admin.stored[-1] == {"lines/0": 3}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the committed places cannot be published to consumer group 'counts', which delays only its figures",
        "consumer group 'counts' has the committed places again",
    ]


def test_what_was_put_last_is_published_at_the_end(group: PublishGroup) -> None:
    group.put({"lines/0": 7})
    group.close()
    assert Admin.stored == [{"lines/0": 7}]


def test_an_end_during_an_outage_does_not_wait(group: PublishGroup) -> None:
    Admin.away.set()
    group.put({"lines/0": 7})
    group.close()
    assert Admin.stored == []


def test_a_group_is_a_name() -> None:
    with pytest.raises(TopologyError, match="it is a consumer group's name"):
        KafkaSource("lines", publish_group=" ")
