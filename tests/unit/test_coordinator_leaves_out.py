"""The coordinator, where an attempt finds records that its batch must leave out."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators import (
    BOTH,
    OPAQUE,
    TRANSACTIONAL,
    Metas,
    commit,
    filled,
    kinds,
    make,
    metas,
    only,
    plan_and_emit,
)

from txstream.core.coordinator import Advance, Amend, Cancel, Coordinator, EmitBatch, EmitCommit, Plan
from txstream.core.dead_letters import Excluded
from txstream.core.errors import CoordinatorError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid


def without(batch: Metas, *offsets: int) -> Metas:
    return batch.leaving_out(Excluded("p", offset, "parse", "ValueError") for offset in offsets)


def test_a_stored_plan_is_amended_before_its_commit() -> None:
    coordinator, (first, *_) = filled(TRANSACTIONAL, pending=1)
    smaller = without(metas(0, 10), 3)
    amend = only(coordinator.leave_out(first, smaller), Amend)
    assert (amend.txid, amend.metas) == (1, smaller)
    assert kinds(coordinator.ack(first)) == []
    coordinator.check()
    committing = only(coordinator.amended(Txid(1)), EmitCommit)
    assert committing.metas == smaller
    assert only(coordinator.ack(first), Advance).metas == smaller


def test_an_opaque_batch_commits_without_them_and_decides_anew_in_a_replay() -> None:
    coordinator, (first, *_) = filled(OPAQUE, pending=1)
    smaller = without(metas(0, 10), 3)
    assert coordinator.leave_out(first, smaller) == []
    assert only(coordinator.ack(first), EmitCommit).metas == smaller
    commands = coordinator.fail(first)
    again, answers = plan_and_emit(coordinator, [only(commands, Plan)], metas(0, 10))
    assert only(answers, EmitBatch).metas.excluded == ()
    assert coordinator.may_leave_out(again)


def test_a_replay_of_a_stored_plan_leaves_out_the_same_records() -> None:
    coordinator, (first, *_) = filled(TRANSACTIONAL, pending=1)
    smaller = without(metas(0, 10), 3)
    coordinator.leave_out(first, smaller)
    again = only(coordinator.fail(first), EmitBatch)
    assert again.metas == smaller
    # The amendment of the attempt before is not stored yet, so this one does not commit either.
    assert kinds(coordinator.ack(again.attempt)) == []
    assert kinds(coordinator.amended(Txid(1))) == ["EmitCommit"]


def test_a_plan_that_is_amended_twice_commits_after_the_second() -> None:
    coordinator, (first, *_) = filled(TRANSACTIONAL, pending=1)
    coordinator.leave_out(first, without(metas(0, 10), 3))
    again = only(coordinator.fail(first), EmitBatch)
    coordinator.leave_out(again.attempt, without(metas(0, 10), 3, 5))
    coordinator.ack(again.attempt)
    assert kinds(coordinator.amended(Txid(1))) == []
    assert only(coordinator.amended(Txid(1)), EmitCommit).metas == without(metas(0, 10), 3, 5)


def test_a_plan_that_may_be_committed_in_part_leaves_out_nothing_more() -> None:
    coordinator, (first, *_) = filled(TRANSACTIONAL, pending=1)
    assert coordinator.may_leave_out(first)
    coordinator.ack(first)
    again = only(coordinator.fail(first), EmitBatch)
    assert not coordinator.may_leave_out(again.attempt)
    with pytest.raises(CoordinatorError, match="cannot leave out further records"):
        coordinator.leave_out(again.attempt, without(metas(0, 10), 3))


def test_a_plan_that_an_earlier_leader_may_have_committed_leaves_out_nothing_more() -> None:
    stored = {Txid(1): metas(0, 10)}
    asked = make(TRANSACTIONAL, stored=stored, replays=frozenset([Txid(1)]))
    only_planned = make(TRANSACTIONAL, stored=stored)
    assert not asked.may_leave_out(only_first(asked))
    assert only_planned.may_leave_out(only_first(only_planned))


def test_a_plan_whose_only_commit_was_refused_and_wrote_nothing_may_leave_out_more() -> None:
    coordinator, (first, *_) = filled(TRANSACTIONAL, pending=1)
    coordinator.ack(first)
    coordinator.wrote_nothing(first)
    second = only(coordinator.fail(first), EmitBatch).attempt
    assert coordinator.may_leave_out(second)
    coordinator.leave_out(second, without(metas(0, 10), 3))
    coordinator.amended(Txid(1))
    coordinator.ack(second)
    # The commit of the second attempt may have been applied, though its answer is lost.
    third = only(coordinator.fail(second), EmitBatch).attempt
    assert not coordinator.may_leave_out(third)
    coordinator.ack(third)
    coordinator.wrote_nothing(third)
    assert not coordinator.may_leave_out(only(coordinator.fail(third), EmitBatch).attempt)


def test_a_refused_commit_says_nothing_of_what_an_earlier_leader_has_written() -> None:
    asked = make(TRANSACTIONAL, stored={Txid(1): metas(0, 10)}, replays=frozenset([Txid(1)]))
    first = only_first(asked)
    asked.ack(first)
    asked.wrote_nothing(first)
    assert not asked.may_leave_out(only(asked.fail(first), EmitBatch).attempt)


def only_first(coordinator: Coordinator[Any]) -> TransactionAttempt:
    return next(one for one in coordinator.sync() if isinstance(one, EmitBatch)).attempt


@BOTH
def test_a_superseded_attempt_leaves_out_nothing(semantics: Semantics) -> None:
    coordinator, (first, *_) = filled(semantics, pending=1)
    assert only(coordinator.fail(first), Cancel).attempt == first
    assert not coordinator.may_leave_out(first)
    assert coordinator.leave_out(first, without(metas(0, 10), 3)) == []


def test_the_next_txid_is_free_to_leave_out_records() -> None:
    coordinator, (first, second) = filled(TRANSACTIONAL, pending=2)
    commit(coordinator, coordinator.ack(first))
    assert coordinator.may_leave_out(second)
    only(coordinator.leave_out(second, without(metas(10, 20), 12)), Amend)
