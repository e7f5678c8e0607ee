"""Each txid once for a reader of committed records, whoever dies or freezes at any call: against a model
of a broker that knows transactions, epochs and lost answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from txstream.plugins.outbox.sending import Record
from txstream.spouts.kafka import transactional_topic
from txstream.spouts.kafka.transactional_topic import TransactionalTopic

ROWS: dict[int, list[Record]] = {
    txid: [(b"a", b"%d" % txid, []), (b"b", b"%d" % txid, [])] for txid in range(1, 4)
}
WHOLE = [(key, value) for rows in ROWS.values() for key, value, _ in rows]


class Died(BaseException):
    """The process is gone: nothing that it does from here on reaches the broker."""


class FencedError(Exception):
    pass


class Transaction(SimpleNamespace):
    state: str


class Cluster:
    def __init__(self) -> None:
        self.topics: dict[str, list[tuple[bytes, bytes, Transaction]]] = {"t": [], "t-txids": []}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}

    def end(self, name: str, state: str) -> None:
        if name in self.open:
            self.open.pop(name).state = state

    def committed(self, topic: str) -> list[tuple[bytes, bytes]]:
        """What a reader gets: it stops at the first transaction that is open."""
        found = []
        for key, value, transaction in self.topics[topic]:
            if transaction.state == "open":
                break
            if transaction.state == "committed":
                found.append((key, value))
        return found


class Driver:
    """A process with a connection. `at` is called before and after each call's effect, with its number."""

    def __init__(self, cluster: Cluster, at: Callable[[int], None] = lambda _: None) -> None:
        self.cluster, self._at, self._moments, self._dead = cluster, at, 0, False

    def moment(self) -> None:
        if self._dead:
            raise Died
        self._moments += 1
        try:
            self._at(self._moments)
        except Died:
            self._dead = True
            raise

    def does(self, effect: Callable[[], Any]) -> Any:
        self.moment()
        answer = effect()
        self.moment()
        return answer

    def send(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Connect and send all that is committed in the database."""
        monkeypatch.setattr(transactional_topic, "KafkaAdminClient", lambda **_: Admin(self))
        monkeypatch.setattr(transactional_topic, "KafkaProducer", lambda **given: Producer(self, given))
        monkeypatch.setattr(transactional_topic, "KafkaConsumer", lambda **_: Consumer(self))
        topic = TransactionalTopic("t", "t-txids", "id", "life", "here", {}, 1.0)
        for txid, rows in ROWS.items():
            topic.send_all(rows, txid)


class Admin:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def list_topics(self) -> list[str]:
        return [*self._driver.cluster.topics]

    def close(self) -> None:
        pass


class Producer:
    def __init__(self, driver: Driver, given: Mapping[str, Any]) -> None:
        self._driver, self._cluster, self._id = driver, driver.cluster, given["transactional_id"]
        self._epoch = 0

    def init_transactions(self) -> None:
        def begins() -> None:
            self._cluster.end(self._id, "aborted")
            self._epoch = self._cluster.epochs[self._id] = self._cluster.epochs.get(self._id, 0) + 1

        self._driver.does(begins)

    def _require(self) -> None:
        if self._epoch != self._cluster.epochs[self._id]:
            raise FencedError

    def partitions_for(self, _topic: str) -> set[int]:
        return {0}

    def begin_transaction(self) -> None:
        self._driver.moment()

    def send(self, topic: str, value: bytes, key: bytes, **_: Any) -> Any:
        def appends() -> None:
            self._require()
            one = self._cluster.open.setdefault(self._id, Transaction(state="open"))
            self._cluster.topics[topic].append((key, value, one))

        self._driver.does(appends)
        return SimpleNamespace(succeeded=lambda: True)

    def flush(self, timeout: float) -> None:
        self._driver.moment()

    def _ends(self, state: str) -> None:
        self._require()
        self._cluster.end(self._id, state)

    def commit_transaction(self) -> None:
        self._driver.does(lambda: self._ends("committed"))

    def abort_transaction(self) -> None:
        self._driver.does(lambda: self._ends("aborted"))

    def close(self, timeout: float) -> None:
        pass


class Consumer:
    def __init__(self, driver: Driver) -> None:
        self._driver, self._position = driver, 0

    def assign(self, _places: Sequence[Any]) -> None:
        pass

    def beginning_offsets(self, places: Sequence[Any]) -> dict[Any, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Sequence[Any]) -> dict[Any, int]:
        return {
            place: self._driver.does(lambda: len(self._driver.cluster.committed("t-txids")))
            for place in places
        }

    def seek(self, _place: Any, offset: int) -> None:
        self._position = offset

    def position(self, _place: Any) -> int:
        return self._position

    def poll(self, timeout_ms: int) -> dict[str, list[Any]]:
        found = self._driver.cluster.committed("t-txids")[self._position :]
        self._position += len(found)
        return {"p": [SimpleNamespace(key=key, value=value) for key, value in found]}

    def close(self) -> None:
        pass


def moments() -> Iterator[int]:
    """All moments of a driver that sends everything."""
    reached: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        Driver(Cluster(), reached.append).send(patched)
    assert len(reached) > 30
    return iter(reached)


def dies(last: int | None, moment: int) -> None:
    if moment == last:
        raise Died


def test_who_dies_at_any_call_leaves_each_txid_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for first in moments():
        for second in (*moments(), None):
            cluster = Cluster()

            for last in (first, second):
                with contextlib.suppress(Died):
                    Driver(cluster, partial(dies, last)).send(monkeypatch)
            Driver(cluster).send(monkeypatch)
            assert cluster.committed("t") == WHOLE, (first, second)
            assert not cluster.open


def test_who_freezes_at_any_call_and_wakes_up_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for frozen in moments():
        cluster, stopped, woken = Cluster(), threading.Event(), threading.Event()

        def freezes(moment: int, frozen: int = frozen, stopped: Any = stopped, woken: Any = woken) -> None:
            if moment == frozen:
                stopped.set()
                assert woken.wait(10)

        ended: list[BaseException | None] = []

        def works(cluster: Cluster = cluster, at: Any = freezes, ended: Any = ended) -> None:
            try:
                Driver(cluster, at).send(monkeypatch)
            except FencedError as error:
                ended.append(error)
            else:
                ended.append(None)

        sleeper = threading.Thread(target=works)
        sleeper.start()
        assert stopped.wait(10)
        Driver(cluster).send(monkeypatch)
        assert cluster.committed("t") == WHOLE, frozen
        woken.set()
        sleeper.join(10)
        assert len(ended) == 1
        Driver(cluster).send(monkeypatch)
        assert cluster.committed("t") == WHOLE, frozen
