"""The view of the cluster that is kept beside planning: second looks, brokers left out and found again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka.errors as kafka_errors
import pytest

from txstream.spouts.kafka import cluster_watch as kafka_watch
from txstream.spouts.kafka.cluster_watch import CONFIRM_SECONDS, ClusterView, ClusterWatch
from txstream.spouts.kafka.protocol import Leader, TopicInfo
from txstream.spouts.kafka.topic_selection import TopicSelection


class FakeClient:
    """A client of a cluster whose state the test sets. It counts what it is asked."""

    def __init__(self) -> None:
        self.found: dict[str, TopicInfo] = {"lines": topic("first")}
        self.dead: set[int] = set()
        self.reachable = True
        self.looks = 0
        self.listings = 0
        self.probes: list[float] = []
        self.closed = threading.Event()

    def connect(self, timeout_seconds: float) -> None:
        pass

    def topics(self, names: Iterable[str] | None, timeout_seconds: float) -> dict[str, TopicInfo]:
        """Answer as brokers do: a client that asks for all topics sees only those that it may describe."""
        self.looks += 1
        if not self.reachable:
            raise kafka_errors.KafkaTimeoutError("nobody answers")
        if names is None:
            self.listings += 1
            return {name: info for name, info in self.found.items() if not info.refused}
        return {name: self.found[name] for name in names if name in self.found}

    def alive(self, node: int, timeout_seconds: float) -> Exception | None:
        self.probes.append(time.monotonic())
        return kafka_errors.NodeNotReadyError(str(node)) if node in self.dead else None

    def close(self) -> None:
        self.closed.set()


def topic(topic_id: str, partitions: int = 1, name: str = "lines") -> TopicInfo:
    return TopicInfo(name, topic_id, {number: Leader(1, 0) for number in range(partitions)})


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@contextmanager
def watching(client: FakeClient) -> Iterator[ClusterWatch]:
    make: Any = lambda: client  # noqa: E731
    running = ClusterWatch(make, TopicSelection(("lines",)), 0.1)
    running.start({"lines": topic("first")})
    yield running
    running.close()
    assert client.closed.wait(60)


@pytest.fixture
def watch(client: FakeClient) -> Iterator[ClusterWatch]:
    with watching(client) as running:
        yield running


def until(watch: ClusterWatch, condition: Callable[[ClusterView], bool]) -> ClusterView:
    deadline = time.monotonic() + 60
    view = watch.view()
    while not condition(view):
        assert time.monotonic() < deadline, f"still {view}"
        view = watch.wait_for_look(view.looks, 1)
    return view


def test_what_is_new_is_believed_the_second_time(client: FakeClient) -> None:
    began = time.monotonic()
    with watching(client) as watch:
        first = until(watch, lambda view: view.topics["lines"].confirmed)
        assert first.topics["lines"].info == topic("first")
        assert time.monotonic() - began >= CONFIRM_SECONDS
        for change, expected in (
            (lambda: client.found.update(lines=topic("second")), topic("second")),
            (lambda: client.found.pop("lines"), None),
        ):
            began = time.monotonic()
            change()
            until(watch, lambda view, info=expected: view.topics["lines"].info == info)  # type: ignore[misc]
            until(watch, lambda view: view.topics["lines"].confirmed)
            assert time.monotonic() - began >= CONFIRM_SECONDS


def test_new_partitions_are_found_and_do_not_unsettle_the_topic(
    watch: ClusterWatch, client: FakeClient
) -> None:
    until(watch, lambda view: view.topics["lines"].confirmed)
    client.found["lines"] = topic("first", partitions=3)
    view = until(watch, lambda view: view.topics["lines"].info == topic("first", partitions=3))
    assert view.topics["lines"].confirmed


def test_a_broker_is_left_out_until_it_answers_a_probe(watch: ClusterWatch, client: FakeClient) -> None:
    client.dead.add(1)
    watch.broker_failed(1, "broker 1 does not answer")
    assert watch.view().down == {1: "broker 1 does not answer"}
    until(watch, lambda _: len(client.probes) >= 3)
    assert client.probes[2] - client.probes[0] >= 0.59, "probing backs off: 0.2 s, then 0.4 s"
    assert 1 in watch.view().down
    client.dead.clear()
    until(watch, lambda view: not view.down)


def test_an_unreachable_cluster_keeps_its_last_view(watch: ClusterWatch, client: FakeClient) -> None:
    client.reachable = False
    view = until(watch, lambda view: view.error is not None)
    assert "nobody answers" in str(view.error)
    assert view.topics["lines"].info == topic("first")
    client.reachable = True
    until(watch, lambda view: view.error is None)


def test_looks_are_not_made_as_often_as_they_are_asked_for(watch: ClusterWatch, client: FakeClient) -> None:
    before, began = client.looks, time.monotonic()
    while time.monotonic() - began < 0.3:
        watch.look_again()
    seconds = time.monotonic() - began  # more than 0.3 if the machine is busy
    assert client.looks - before <= seconds / kafka_watch._BETWEEN_LOOKS_SECONDS + 2


# --- topics by a pattern ---------------------------------------------------------------------------------


@pytest.fixture
def pattern_watch(client: FakeClient) -> Iterator[ClusterWatch]:
    """A watch on the topics that match a pattern. None does at first, since internal topics do not count."""
    client.found = {"other": topic("o", name="other"), "__l": topic("i", name="__l")}
    make: Any = lambda: client  # noqa: E731
    running = ClusterWatch(make, TopicSelection(pattern="__l|l.*"), 0.1)
    running.start({})
    yield running
    running.close()
    assert client.closed.wait(60)


def test_nothing_that_matches_is_said_once(
    pattern_watch: ClusterWatch, caplog: pytest.LogCaptureFixture
) -> None:
    view = until(pattern_watch, lambda view: view.looks >= 4)
    assert view.topics == {}
    said = [*caplog.get_records("setup"), *caplog.records]
    assert [record.getMessage() for record in said] == ["no topic matches '__l|l.*' yet"]


def test_topics_come_by_one_listing_each_look(pattern_watch: ClusterWatch, client: FakeClient) -> None:
    client.found |= {"lines": topic("first"), "lanes": topic("second", name="lanes")}
    view = until(pattern_watch, lambda view: bool(view.topics))
    assert {name: known.info for name, known in view.topics.items()} == {
        "lines": topic("first"),
        "lanes": topic("second", name="lanes"),
    }
    pattern_watch.expect(["lines", "lanes"])
    until(pattern_watch, lambda later: later.looks > view.looks + 2)
    assert client.looks == client.listings


def test_a_topic_without_a_place_may_go(
    pattern_watch: ClusterWatch, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.found["lines"] = topic("first")
    until(pattern_watch, lambda view: "lines" in view.topics)
    del client.found["lines"]
    until(pattern_watch, lambda view: not view.topics)
    assert "the topic 'lines', which matched '__l|l.*', is no longer there" in caplog.messages


def test_a_topic_with_a_place_is_missed(pattern_watch: ClusterWatch, client: FakeClient) -> None:
    client.found["lines"] = topic("first")
    until(pattern_watch, lambda view: "lines" in view.topics)
    pattern_watch.expect(["lines", "lanes"])  # "lanes" disappeared while there was no watch
    view = until(pattern_watch, lambda view: "lanes" in view.topics)
    assert view.topics["lanes"].info is None
    assert not view.topics["lanes"].confirmed
    del client.found["lines"]
    view = until(pattern_watch, lambda view: all(known.confirmed for known in view.topics.values()))
    assert {name: known.info for name, known in view.topics.items()} == {"lines": None, "lanes": None}


def test_a_topic_that_may_no_longer_be_described_is_not_taken_for_gone(
    pattern_watch: ClusterWatch, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.found["lines"] = topic("first")
    until(pattern_watch, lambda view: "lines" in view.topics)
    pattern_watch.expect(["lines"])
    client.found["lines"] = TopicInfo("lines", "", refused="TopicAuthorizationFailed")

    def refused(view: ClusterView) -> bool:
        info = view.topics["lines"].info
        return info is not None and info.refused == "TopicAuthorizationFailed"

    until(pattern_watch, refused)
    until(pattern_watch, lambda view: view.topics["lines"].confirmed)
    said = [text for text in caplog.messages if "does not describe" in text]
    assert said == ["Kafka does not describe the topic 'lines': TopicAuthorizationFailed"]
    client.found["lines"] = topic("first")
    until(pattern_watch, lambda view: view.topics["lines"].info == topic("first"))
