"""The small parts: waits, kazoo's answers, candidates and election, addresses, the tree in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import KazooState
from support.lists import each
from support.memory_zookeeper import MemoryZooKeeper

from txstream.core.errors import LeaderExistsError, ServiceUnavailableError, UsageError
from txstream.core.waiting import Waiting, WaitStoppedError
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.zookeeper import Leadership, LostAnswerError, ZooKeeper
from txstream.zookeeper.candidates import candidate_data, in_order
from txstream.zookeeper.kazoo_tree import raise_refusal
from txstream.zookeeper.tree import Check, Create, Delete, Node, Operation, Refusal, RefusedError, SetData

OPERATIONS: list[Operation] = [Check("/epoch", 3), Create("/new", b"x"), Delete("/old", 0)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_is_told_once_and_the_next_one_again() -> None:
    clock, told = Clock(), list[str]()
    patience = Waiting(lambda _: False, report=told.append, quiet_seconds=1, clock=clock)
    for _ in range(3):
        patience.turn("the service")
        assert told == []
        clock.now += 0.4
    patience.turn("the service")
    clock.now += 50
    patience.turn("the service")
    assert len(told) == 1
    assert told[0].startswith("waiting for the service since ")
    patience.end("the service")
    patience.turn("the service")
    clock.now += 1
    patience.turn("the service")
    assert len(told) == 2


def test_patience_ends_at_its_deadline_counted_from_the_beginning_of_the_outage() -> None:
    clock = Clock()
    patience = Waiting(lambda _: False, deadline_seconds=5, clock=clock)
    patience.turn("the service")
    clock.now += 4
    patience.end("the service")
    patience.turn("the service")
    clock.now += 4.9
    patience.turn("the service")
    clock.now += 0.1
    with pytest.raises(ServiceUnavailableError, match="the service has not answered for 5 s"):
        patience.turn("the service")


def test_patience_stops_when_asked() -> None:
    answers = iter([False, True])
    patience = Waiting(lambda _: next(answers), stopped=WaitStoppedError)
    patience.turn("the service")
    with pytest.raises(WaitStoppedError):
        patience.turn("the service")


def test_a_transaction_without_exceptions_is_accepted() -> None:
    raise_refusal([True, "/new", True], OPERATIONS)


@each(
    ("results", "path", "refusal"),
    [
        ([BadVersionError(), RuntimeInconsistency(), RuntimeInconsistency()], "/epoch", Refusal.BAD_VERSION),
        ([RolledBackError(), NodeExistsError(), RuntimeInconsistency()], "/new", Refusal.NODE_EXISTS),
        ([RolledBackError(), RolledBackError(), NoNodeError()], "/old", Refusal.NO_NODE),
    ],
)
def test_any_exception_in_a_transactions_results_is_raised(
    results: list[Exception], path: str, refusal: Refusal
) -> None:
    with pytest.raises(RefusedError) as refused:
        raise_refusal(results, OPERATIONS)
    assert (refused.value.path, refused.value.refusal) == (path, refusal)


def test_a_transaction_that_is_not_permitted_is_no_version_conflict() -> None:
    with pytest.raises(ServiceUnavailableError, match="/new: NoAuthError"):
        raise_refusal([RolledBackError(), NoAuthError(), RuntimeInconsistency()], OPERATIONS)


def test_a_short_result_list_is_a_lost_answer() -> None:
    with pytest.raises(LostAnswerError):
        raise_refusal([True, "/new"], OPERATIONS)


@each(
    ("answer", "told"),
    [
        (ConnectionLoss(), LostAnswerError),
        (SessionExpiredError(), LostAnswerError),
        (OperationTimeoutError(), LostAnswerError),
        (SessionMovedError(), LostAnswerError),
        (NoAuthError(), ServiceUnavailableError),
        (BadVersionError(), BadVersionError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KazooException) else None,
)
def test_an_answer_that_was_lost_is_no_refusal(answer: KazooException, told: type[Exception]) -> None:
    """A refused write was not applied. One whose answer was lost may have been, and must be looked for."""
    zk = ZooKeeper("127.0.0.1:1")
    result = zk.client.handler.async_result()
    result.set_exception(answer)
    with pytest.raises(told):
        zk.request(lambda: result, zk.patience())


class Electing(MemoryZooKeeper):
    """Candidates are kept in memory; their znodes far outlive their sessions."""

    stood = 0

    def request(self, send: Any, patience: Any) -> Any:
        def create(path: str, data: bytes, **_: object) -> None:
            self.stood += 1
            self.memory.write(f"{path}{self.stood:010}", data)

        self.client.create_async = create
        return send()

    def candidates(self) -> list[str]:
        return self.memory.children(f"{self.root}/t/leader") or []


def test_a_lead_ends_with_its_session() -> None:
    zk = Electing()
    leadership = Leadership(zk, "t")
    leadership.acquire()
    assert leadership.held
    (first,) = zk.candidates()
    zk._state_changed(KazooState.LOST)
    assert not leadership.held
    other = Leadership(zk, "t")
    with pytest.raises(LeaderExistsError, match="is run by"):
        other.acquire(wait=False)
    leadership.acquire(wait=False)
    assert leadership.held
    assert set(zk.candidates()).isdisjoint({first}), "its znode of the session that was lost goes"


def test_a_driver_is_no_rival_of_its_own() -> None:
    """It asks for a znode in one session, and hears of that session's end after the next one has made it."""

    class HearsLate(Electing):
        def request(self, send: Any, patience: Any) -> Any:
            answer = super().request(send, patience)
            if not self.sessions_lost:
                self._state_changed(KazooState.LOST)
            return answer

    zk = HearsLate()
    leadership = Leadership(zk, "t")
    leadership.acquire(wait=False)
    assert leadership.held
    assert len(zk.candidates()) == 1


@pytest.mark.parametrize("behind", [False, True])
def test_a_standby_says_that_the_leader_has_ended_and_when_its_turn_comes(behind: bool) -> None:
    class Standing(Electing):
        def read(self, send: Any, patience: Any) -> None:
            """Set no watch: the test ends the wait."""

    zk = Standing()
    ended = json.loads(candidate_data("cold", 4.0))
    ended["process"]["started"] -= 1
    for number, data in enumerate([json.dumps(ended).encode(), *([candidate_data()] if behind else [])]):
        zk.memory.write(f"{zk.root}/t/leader/{number:032x}-{number - 9:011d}", data)
    told: list[str] = []
    Leadership(zk, "t").acquire(waiting=told.append, should_stop=lambda: bool(told))
    leader = f"topology 't' was run by {ended['driver']}, which has ended; its session ends within 4 s"
    assert told == [leader + ("; standing by to take over" if behind else ", then this run takes over")]
    with pytest.raises(LeaderExistsError, match=r"has ended; .* run this again then"):
        Leadership(zk, "t").acquire(wait=False)


def test_candidates_are_ordered_by_arrival_not_by_name() -> None:
    first, second, third = ("f" * 32 + "-0000000009", "0" * 32 + "-0000000010", "a" * 32 + "-2147483648")
    assert in_order([third, "lock", second, first, "x-0000000001"]) == [first, second, third]


@each("hosts", ["", "  ", "host:port", "a:1,,b:2", "a:1/x//y", "a:1/..", ":2181"])
def test_an_address_that_cannot_be_is_refused(hosts: str) -> None:
    with pytest.raises(UsageError):
        ZooKeeper(hosts)


@each(
    ("hosts", "servers", "root"),
    [
        ("a:1", "a:1", "/txstream/topologies"),
        ("a:1,b:2/", "a:1,b:2", "/txstream/topologies"),
        ("a:1,b:2/app/x", "a:1,b:2", "/app/x/txstream/topologies"),
    ],
)
def test_an_address_may_have_a_chroot(hosts: str, servers: str, root: str) -> None:
    zk = ZooKeeper(hosts)
    assert (zk.hosts, zk.root) == (servers, root)


def test_the_tree_in_memory_applies_all_of_a_write_or_nothing() -> None:
    tree = MemoryTree()
    tree.ensure("/a/b")
    with pytest.raises(RefusedError, match="/a: it has children"):
        tree.multi([Create("/a/c", b"1"), SetData("/a/b", b"2", 0), Delete("/a", 0)])
    assert tree.children("/a") == ["b"]
    assert tree.get("/a/b") == Node(b"", 0)
    tree.multi([Create("/a/c", b"1"), SetData("/a/c", b"2", 0), Check("/a/c", 1), Delete("/a/b", 0)])
    assert tree.children("/a") == ["c"]
    assert tree.get("/a/c") == Node(b"2", 1)


def test_a_late_write_is_applied_only_as_far_as_its_versions_allow() -> None:
    tree = MemoryTree()
    tree.ensure("/a")
    tree.delay_next_write()
    with pytest.raises(LostAnswerError):
        tree.multi([SetData("/a", b"late", 0)])
    assert tree.get("/a") == Node(b"", 0)
    tree.multi([SetData("/a", b"repeated", 0)])
    assert tree.deliver_late() == 0
    assert tree.get("/a") == Node(b"repeated", 1)
