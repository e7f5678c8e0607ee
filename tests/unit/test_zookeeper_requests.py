"""Operators' requests and the assignment over the tree in memory, which can be told to be late."""

from __future__ import annotations

import json

import pytest
from support.requests_contract import RequestsContract, answer_all, assignment, slots, waiting
from support.zookeeper_backends import InMemory, leader_of

from txstream.zookeeper import Kind


@pytest.fixture
def backend(unique: str) -> InMemory:
    return InMemory(unique)


class TestInMemory(RequestsContract):
    pass


def test_writes_that_arrive_late_change_nothing(backend: InMemory) -> None:
    store = leader_of(backend)
    backend.tree.delay_next_write()
    backend.operator().ask(Kind.SCALE, {"count": 3})
    assert backend.tree.deliver_late() == 0
    assert waiting(store.read_requests()) == [{"count": 3}]
    backend.tree.delay_next_write()
    answer_all(store)
    assert backend.tree.deliver_late() == 0
    assert store.read_requests() == slots(count=3)
    assert len(json.loads(backend.get("requests/answered") or b"")["answers"]) == 1


def test_a_late_assignment_does_not_replace_a_newer_one(backend: InMemory) -> None:
    store = leader_of(backend)
    store.write_assignment(assignment())
    backend.tree.delay_next_write()
    store.write_assignment(assignment(txid=2))
    store.write_assignment(assignment(txid=3))
    assert backend.tree.deliver_late() == 0
    assert store.read_assignment() == assignment(txid=3)


def test_only_the_newest_answers_are_kept(backend: InMemory) -> None:
    store, operator = leader_of(backend), backend.operator()
    asked = []
    for number in range(1, 50):
        asked.append(operator.ask(Kind.SCALE, {"count": number}))
        answer_all(store)
    stored = json.loads(backend.get("requests/answered") or b"")
    assert [answer["request"] for answer in stored["answers"]] == asked[-40:]
    assert stored["in_force"]["slots"] == {"count": 49}
