"""Operators' requests and the assignment in a real ZooKeeper, and a watch whose connection is cut."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.requests import Told, answer_all, slots, waiting
from support.zookeeper_backends import Real, leader_of
from support.zookeeper_proxy import Proxy
from unit.test_zookeeper_assignment import TestShown as TestShown
from unit.test_zookeeper_requests import TestRequests as TestRequests

from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import Services
from txstream.zookeeper import Kind, Leadership, ProgressStore, ZooKeeper


@pytest.fixture(scope="module")
def session(services: Services) -> Iterator[ZooKeeper]:
    with ZooKeeper(f"{services.zookeeper}/requests") as zk:
        yield zk


@pytest.fixture
def backend(session: ZooKeeper, unique: str) -> Real:
    return Real(unique, session)


@pytest.fixture
def proxy(services: Services) -> Iterator[Proxy]:
    proxy = Proxy(services.zookeeper)
    yield proxy
    proxy.close()


@pytest.fixture
def session_seconds() -> float:
    """So long that no session ends, however slow the machine is."""
    return 20.0


@pytest.fixture
def cut_off(proxy: Proxy, unique: str, session_seconds: float) -> Iterator[Real]:
    """The leader's session, which goes through the proxy."""
    with ZooKeeper(f"{proxy.address}/requests", session_timeout_seconds=session_seconds) as zk:
        yield Real(unique, zk)


def asking_is_told(told: Told, backend: Real, store: ProgressStore, asked: dict[str, int]) -> bool:
    heard = told.times
    backend.operator().ask(Kind.SCALE, asked)
    return told.wait(heard + 1) and asked in waiting(store.read_requests())


def test_a_watch_survives_a_cut_connection(backend: Real, cut_off: Real, proxy: Proxy) -> None:
    store, told = leader_of(cut_off), Told()
    store.watch_requests(told)
    assert told.wait(1)
    proxy.cut()
    backend.operator().ask(Kind.SCALE, {"count": 3})
    assert told.times == 1
    proxy.restore()
    assert told.wait(2), "what was asked during the cut"
    assert waiting(store.read_requests()) == [{"count": 3}]
    assert cut_off.zk.sessions_lost == 0
    assert asking_is_told(told, backend, store, {"split": 2})


@pytest.mark.parametrize("session_seconds", [1.5])
def test_a_watch_survives_a_lost_session(backend: Real, cut_off: Real, proxy: Proxy) -> None:
    store, told = leader_of(cut_off), Told()
    Leadership(cut_off.zk, cut_off.topology_id).acquire(wait=False)
    store.watch_requests(told)
    assert told.wait(1)
    proxy.cut()
    # Only once the session has ended on the server is it let through again.
    assert wait_until(lambda: backend.zk.leader(backend.topology_id) is None, 60)
    proxy.restore()
    assert told.wait(2)
    assert cut_off.zk.sessions_lost == 1
    assert asking_is_told(told, backend, store, {"count": 3})


def test_an_operator_whose_connection_is_cut_gets_its_answer(
    backend: Real, cut_off: Real, proxy: Proxy
) -> None:
    store = leader_of(backend)
    with ThreadPoolExecutor(1) as pool:
        proxy.lose_next_multi("answer")
        request_id = cut_off.operator().ask(Kind.SCALE, {"count": 3})
        assert proxy.lost == 1
        assert [request.request_id for request in store.read_requests().waiting] == [request_id]
        answer = pool.submit(cut_off.operator().wait_answer, request_id, 60)
        proxy.cut()
        answer_all(store)
        proxy.restore()
        found = answer.result(60)
    assert found is not None
    assert found.refused is None


@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_leaders_answer_lost_on_the_way_is_given_once(
    backend: Real, cut_off: Real, proxy: Proxy, what: str
) -> None:
    store = leader_of(cut_off)
    backend.operator().ask(Kind.SCALE, {"count": 3})
    proxy.lose_next_multi(what)
    answer_all(store)
    assert proxy.lost == 1
    assert backend.store().read_requests() == slots(count=3)
