"""A real ZooKeeper that is killed, frozen or cut off, or whose answers are lost on the way."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support.zookeeper_proxy import Proxy

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import FencedError, LeaderExistsError, MetaTooLargeError, ServiceUnavailableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Epoch, Txid, attempt_id
from txstream.core.waiting import WaitStoppedError
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded.zookeeper import EmbeddedZooKeeper
from txstream.zookeeper import Identity, Leadership, ZooKeeper, ZooKeeperProgress

SHORT_SECONDS = 1.5
"""For sessions that must end, or whose end a test waits for."""
LONG_SECONDS = 20.0
"""For sessions that must not end, however slow the machine is."""


@dataclass(frozen=True)
class Range:
    start: int
    end: int


CODEC = MetaCodec(Range)
IDENTITY = Identity.new(Semantics.OPAQUE, "spouts.KafkaSource", {}, ())
METAS = BatchMetas({"lines/0": Range(0, 10)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A server that no test stops."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def proxy(server: EmbeddedZooKeeper) -> Iterator[Proxy]:
    proxy = Proxy(server.address)
    yield proxy
    proxy.close()


@contextmanager
def session(hosts: str, seconds: float = LONG_SECONDS) -> Iterator[ZooKeeper]:
    with ZooKeeper(hosts, session_timeout_seconds=seconds) as zk:
        yield zk


def leader_of(zk: ZooKeeper, topology_id: str) -> ZooKeeperProgress:
    store = ZooKeeperProgress(zk, topology_id, CODEC)
    store.create_identity(IDENTITY)
    store.claim_epoch(Epoch(0))
    store.load()
    return store


def never() -> bool:
    return False


# --- answers lost on the way --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_multi_lost_on_the_way_is_neither_missing_nor_doubled(
    server: EmbeddedZooKeeper, proxy: Proxy, unique: str, what: str
) -> None:
    with session(proxy.address) as zk, session(server.address) as direct:
        store = ZooKeeperProgress(zk, unique, CODEC)
        proxy.lose_next_multi(what)
        assert store.create_identity(IDENTITY) == IDENTITY
        proxy.lose_next_multi(what)
        assert store.claim_epoch(Epoch(0)) == 1
        store.load()
        for txid in (1, 2):
            proxy.lose_next_multi(what)
            assert store.persist(Txid(txid), METAS) == METAS
            proxy.lose_next_multi(what)
            store.advance(Txid(txid), attempt_id(1, txid), None)
        proxy.lose_next_multi(what)
        store.advance(Txid(3), attempt_id(1, 3), METAS)
        assert proxy.lost == 7
        progress = ZooKeeperProgress(direct, unique, CODEC).load()
        assert (progress.current, progress.committed_by) == (4, attempt_id(1, 3))
        assert list(progress.batches) == [3]


def test_a_request_that_the_servers_do_not_take_is_told_and_not_sent_for_ever(
    tmp_path: Path, unique: str
) -> None:
    """A server cuts the connection at what is larger than its `jute.maxbuffer`: it looks like an outage."""
    draw = random.Random(7)
    many = {f"lines/{number}": Range(start := draw.getrandbits(60), start + 1) for number in range(9_000)}
    with (
        EmbeddedZooKeeper(tmp_path, java_options=["-Djute.maxbuffer=65536"]) as small,
        session(small.address) as zk,
    ):
        store = leader_of(zk, unique)
        told = r"5 tries of a request of \d+,\d+ bytes, .* jute.maxbuffer"
        with pytest.raises(MetaTooLargeError, match=told):
            store.persist(Txid(1), BatchMetas(many))
        assert store.persist(Txid(1), METAS) == METAS, "what fits is taken, and nothing else was stored"


def test_a_session_lost_during_an_advance_does_not_stop_it(
    server: EmbeddedZooKeeper, proxy: Proxy, unique: str
) -> None:
    """The answer is lost, the session expires, and the new session finds what the old one has written."""
    with session(proxy.address, SHORT_SECONDS) as zk, ThreadPoolExecutor(1) as pool:
        told: list[str] = []
        store = ZooKeeperProgress(zk, unique, CODEC, waiting=told.append)
        store.create_identity(IDENTITY)
        store.claim_epoch(Epoch(0))
        store.load()
        with session(server.address) as direct:
            standby = ZooKeeperProgress(direct, unique, CODEC)
            proxy.lose_next_multi("answer", stay_cut=True)
            advance = pool.submit(store.advance, Txid(1), attempt_id(1, 1), METAS)
            assert wait_until(lambda: standby.load().current == 2, 60)
            assert wait_until(lambda: bool(told), 60)
            assert not advance.done()
            lead = Leadership(direct, unique)
            lead.acquire(wait=False, should_stop=never)
            proxy.restore()
            advance.result(60)
            assert standby.load().current == 2


# --- ZooKeeper itself killed, frozen, gone ------------------------------------------------------------


def test_an_advance_waits_for_a_killed_zookeeper_and_resumes(
    own_zookeeper: EmbeddedZooKeeper, unique: str
) -> None:
    told: list[str] = []
    stop = threading.Event()
    with ZooKeeper(own_zookeeper.address) as zk, ThreadPoolExecutor(1) as pool:
        lead = Leadership(zk, unique)
        lead.acquire(should_stop=never)
        leader_of(zk, unique)
        store = ZooKeeperProgress(zk, unique, CODEC, waiting=told.append, should_stop=stop.is_set)
        store.claim_epoch(Epoch(0))
        store.load()
        own_zookeeper.kill()
        advance = pool.submit(store.advance, Txid(1), attempt_id(2, 1), METAS)
        assert wait_until(lambda: bool(told), 60)
        assert not advance.done()
        assert told[0].startswith(f"waiting for ZooKeeper at {own_zookeeper.address} since ")
        own_zookeeper.start()
        advance.result(60)
        assert store.load().current == 2
        assert len(told) == 1
        assert lead.held  # ZooKeeper keeps its sessions over a restart

        own_zookeeper.kill()
        advance = pool.submit(store.advance, Txid(2), attempt_id(2, 2), METAS)
        assert wait_until(lambda: len(told) == 2, 60)
        stop.set()
        with pytest.raises(WaitStoppedError):
            advance.result(60)
        # A command does not wait for ever.
        impatient = ZooKeeperProgress(zk, unique, CODEC, deadline_seconds=0.5)
        with pytest.raises(ServiceUnavailableError, match="has not answered for"):
            impatient.load()


def test_a_frozen_zookeeper_is_told_within_the_deadline(own_zookeeper: EmbeddedZooKeeper) -> None:
    identity = own_zookeeper.identity
    assert identity is not None
    os.kill(identity.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        zk = ZooKeeper(own_zookeeper.address, connect_timeout_seconds=0.5)
        with pytest.raises(ServiceUnavailableError, match=r"did not answer within 0\.5 s") as refusal:
            zk.start()
        assert time.monotonic() - started < 8, "ten seconds are the default"
        for remedy in ("--zookeeper", "TXSTREAM_ZOOKEEPER", "txstream up"):
            assert remedy in str(refusal.value)
    finally:
        os.kill(identity.pid, signal.SIGCONT)
    with session(own_zookeeper.address) as zk:
        assert zk.connected


def test_no_zookeeper_is_one_sentence_and_nothing_on_standard_error() -> None:
    """In a process of its own, whose logging nobody has configured; what listens there is no ZooKeeper."""
    script = """
import socket, threading
from txstream.core.errors import ServiceUnavailableError
from txstream.zookeeper import ZooKeeper
def answer(listener):
    while True:
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n")
        connection.close()
stranger, silent = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
threading.Thread(target=answer, args=(stranger,), daemon=True).start()
for port in (1, stranger.getsockname()[1], silent.getsockname()[1]):
    try:
        ZooKeeper(f"127.0.0.1:{port}", connect_timeout_seconds=0.5).start()
    except ServiceUnavailableError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("ZooKeeper at 127.0.0.1:") for line in lines)


def test_a_closed_session_says_so(server: EmbeddedZooKeeper, unique: str) -> None:
    with session(server.address) as zk:
        store = leader_of(zk, unique)
    with pytest.raises(ServiceUnavailableError, match="was closed"):
        store.advance(Txid(1), attempt_id(1, 1), METAS)


# --- leadership ---------------------------------------------------------------------------------------


def test_candidates_lead_one_after_the_other_in_order_of_arrival(
    server: EmbeddedZooKeeper, unique: str
) -> None:
    order: list[int] = []
    told: list[list[str]] = [[], [], []]

    def lead(number: int, zk: ZooKeeper) -> None:
        leadership = Leadership(zk, unique)
        leadership.acquire(should_stop=never, waiting=told[number].append)
        assert leadership.held
        order.append(number)
        leadership.release()
        assert not leadership.held

    with session(server.address) as first, session(server.address) as second, ThreadPoolExecutor(3) as pool:
        present = Leadership(first, unique)
        present.acquire(wait=False, should_stop=never)
        runs = []
        for number in range(3):
            runs.append(pool.submit(lead, number, second))
            heard = told[number]
            assert wait_until(partial(bool, heard), 60)
        here = f"{socket.gethostname()}:{os.getpid()}"
        assert told[0] == [f"topology {unique!r} is run by {here}; standing by to take over"]
        assert first.leader(unique) == here
        present.release()
        for run in runs:
            run.result(60)
    assert order == [0, 1, 2]


def test_without_waiting_a_second_driver_is_refused_in_one_sentence(
    server: EmbeddedZooKeeper, unique: str
) -> None:
    with session(server.address) as first, session(server.address) as second:
        present = Leadership(first, unique)
        present.acquire(wait=False, should_stop=never)
        other = Leadership(second, unique)
        with pytest.raises(
            LeaderExistsError, match=f"is run by {socket.gethostname()}:{os.getpid()}.*--no-wait"
        ):
            other.acquire(wait=False, should_stop=never)
        assert not other.held
        present.release()
        assert second.leader(unique) is None  # the refused one is no longer a candidate
        other.acquire(wait=False, should_stop=never)
        assert other.held


def test_a_standby_can_be_stopped(server: EmbeddedZooKeeper, unique: str) -> None:
    stop = threading.Event()
    told = threading.Event()
    with session(server.address) as first, session(server.address) as second, ThreadPoolExecutor(1) as pool:
        present = Leadership(first, unique)
        present.acquire(should_stop=never)
        standby = Leadership(second, unique)
        waiting = pool.submit(standby.acquire, should_stop=stop.is_set, waiting=lambda _: told.set())
        assert told.wait(60)
        stop.set()
        waiting.result(60)
        assert not standby.held
        present.release()
        assert first.leader(unique) is None


def test_a_leader_that_was_cut_off_is_succeeded_and_fenced(
    server: EmbeddedZooKeeper, proxy: Proxy, unique: str
) -> None:
    with (
        session(proxy.address, SHORT_SECONDS) as cut_off,
        session(server.address) as direct,
        ThreadPoolExecutor(1) as pool,
    ):
        old = Leadership(cut_off, unique)
        old.acquire(should_stop=never)
        old_store = leader_of(cut_off, unique)
        standby = Leadership(direct, unique)
        taking_over = pool.submit(standby.acquire, should_stop=never)
        proxy.cut()
        taking_over.result(60)
        new_store = leader_of(direct, unique)
        assert old.held  # it cannot know yet
        proxy.restore()
        assert wait_until(lambda: not old.held, 60)
        with pytest.raises(FencedError, match="newer leader"):
            old_store.advance(Txid(1), attempt_id(1, 1), METAS)
        new_store.advance(Txid(1), attempt_id(2, 1), METAS)
        assert new_store.load().committed_by == attempt_id(2, 1)

        # To stand again it needs a new znode, after that of the present leader.
        with pytest.raises(LeaderExistsError):
            old.acquire(wait=False, should_stop=never)
        standby.release()
        old.acquire(wait=False, should_stop=never)
        assert old.held


def test_a_leader_alone_that_was_cut_off_leads_again_under_its_epoch(
    server: EmbeddedZooKeeper, proxy: Proxy, unique: str
) -> None:
    with session(proxy.address, SHORT_SECONDS) as zk, session(server.address) as direct:
        lead = Leadership(zk, unique)
        lead.acquire(should_stop=never)
        store = leader_of(zk, unique)
        first = set(zk.client.get_children(f"{zk.root}/{unique}/leader"))
        proxy.cut()
        # Only once the session has ended on the server is it let through again.
        assert wait_until(lambda: direct.leader(unique) is None, 60)
        proxy.restore()
        assert wait_until(lambda: not lead.held, 60)
        store.verify()
        lead.acquire(should_stop=never)
        assert lead.held
        again = set(zk.client.get_children(f"{zk.root}/{unique}/leader"))
        assert len(again) == 1
        assert not again & first
        store.advance(Txid(1), attempt_id(1, 1), METAS)


def test_a_standby_takes_over_from_a_process_that_was_killed(
    server: EmbeddedZooKeeper, unique: str, tmp_path: Path
) -> None:
    script = f"""
from txstream.zookeeper import Leadership, ZooKeeper
zk = ZooKeeper({server.address!r}, session_timeout_seconds={SHORT_SECONDS})
zk.start()
lead = Leadership(zk, {unique!r})
lead.acquire(should_stop=lambda: False)
print("leads", flush=True)
input()
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "leads\n", (tmp_path / "stderr").read_text()
        with session(server.address) as zk, ThreadPoolExecutor(1) as pool:
            assert zk.leader(unique) == f"{socket.gethostname()}:{driver.pid}"
            standby = Leadership(zk, unique)
            told = threading.Event()
            waiting = pool.submit(standby.acquire, should_stop=never, waiting=lambda _: told.set())
            assert told.wait(60)
            driver.kill()
            waiting.result(60)
            assert standby.held
            assert zk.leader(unique) == f"{socket.gethostname()}:{os.getpid()}"
    finally:
        driver.kill()
        driver.communicate()


# --- topologies ---------------------------------------------------------------------------------------


def test_topologies_are_listed_and_deleted_unless_they_are_led(
    server: EmbeddedZooKeeper, unique: str
) -> None:
    with session(f"{server.address}/{unique}/deep") as zk:
        assert zk.topologies() == []
        assert zk.delete_topology("a") is False
        leads: list[Leadership] = []
        for name in ("b", "a"):
            leads.append(Leadership(zk, name))
            leads[-1].acquire(should_stop=never)
            assert name not in zk.topologies()  # a candidate alone does not make a topology
            leader_of(zk, name)
        assert zk.topologies() == ["a", "b"]
        with pytest.raises(LeaderExistsError, match="stop that driver before deleting it"):
            zk.delete_topology("a")
        assert zk.delete_topology("a", force=True) is True
        assert zk.topologies() == ["b"]
        leads[0].release()
        assert zk.delete_topology("b") is True
        assert zk.topologies() == []
        assert zk.delete_topology("b") is False


def test_a_standby_survives_that_its_topology_is_deleted(server: EmbeddedZooKeeper, unique: str) -> None:
    with session(server.address) as first, session(server.address) as second, ThreadPoolExecutor(1) as pool:
        present = Leadership(first, unique)
        present.acquire(should_stop=never)
        leader_of(first, unique)
        told = threading.Event()
        standby = Leadership(second, unique)
        taking_over = pool.submit(standby.acquire, should_stop=never, waiting=lambda _: told.set())
        assert told.wait(60)
        assert first.delete_topology(unique, force=True)
        # Drivers that lead or stand by keep `leader` there; a person with a shell may delete it all the same.
        base = f"{first.root}/{unique}"
        transaction = first.client.transaction()
        for name in first.client.get_children(f"{base}/leader"):
            transaction.delete(f"{base}/leader/{name}")
        transaction.delete(f"{base}/leader")
        transaction.delete(base)
        assert transaction.commit() == [True] * 4
        taking_over.result(60)
        assert standby.held
        leader_of(second, unique)
