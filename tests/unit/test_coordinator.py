"""The order rules of the coordinator, each by name."""

from __future__ import annotations

import pytest
from support.coordinators import (
    BOTH,
    OPAQUE,
    TRANSACTIONAL,
    Commands,
    Metas,
    commit,
    filled,
    kinds,
    make,
    metas,
    only,
    plan_and_emit,
)
from support.inmemory import Range

from txstream.core.batch_metas import BatchMetas
from txstream.core.coordinator import (
    Advance,
    BatchPhase,
    Cancel,
    EmitBatch,
    EmitCommit,
    Plan,
)
from txstream.core.errors import CoordinatorError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid

# --- planning --------------------------------------------------------------------------------------


@BOTH
def test_one_plan_at_a_time_and_in_txid_order(semantics: Semantics) -> None:
    coordinator = make(semantics)
    first = only(coordinator.sync(), Plan)
    assert (first.txid, first.last, first.replay) == (1, {}, False)
    assert coordinator.sync() == []
    assert coordinator.wake() == []
    _, commands = plan_and_emit(coordinator, [first], metas(0, 10))
    assert only(commands, Plan).txid == 2


@BOTH
def test_a_plan_starts_from_the_previous_planned_batch_committed_or_not(semantics: Semantics) -> None:
    coordinator = make(semantics)
    commands: Commands = coordinator.sync()
    for number in range(2):
        _, commands = plan_and_emit(coordinator, commands, metas(10 * number, 10 * number + 10))
    assert only(commands, Plan).last == {"p": Range(10, 20)}


@BOTH
def test_no_more_than_max_spout_pending_are_active(semantics: Semantics) -> None:
    coordinator, attempts = filled(semantics, pending=2)
    assert coordinator.sync() == []
    assert [attempt.txid for attempt in attempts] == [1, 2] == list(coordinator.active)
    commands = commit(coordinator, coordinator.ack(attempts[0]))
    assert only(commands, Plan).txid == 3


def test_no_batch_is_emitted_before_its_plan_is_persisted() -> None:
    coordinator = make(TRANSACTIONAL)
    commands = coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10))
    assert kinds(commands) == ["Persist"]
    assert coordinator.sync() == []
    assert coordinator.active == {}
    assert not coordinator.is_idle
    commands = coordinator.persisted(Txid(1), metas(0, 10))
    assert kinds(commands) == ["EmitBatch", "Plan"]
    assert only(commands, EmitBatch).stored


@pytest.mark.parametrize("semantics", [OPAQUE, Semantics.NON_TRANSACTIONAL])
def test_other_semantics_store_metas_only_when_they_commit(semantics: Semantics) -> None:
    coordinator = make(semantics)
    attempt, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    assert not only(commands, EmitBatch).stored
    advance = only(coordinator.ack(only(coordinator.ack(attempt), EmitCommit).attempt), Advance)
    assert (advance.store, advance.metas, advance.attempt) == (True, metas(0, 10), attempt.attempt)


def test_a_plan_found_stored_takes_the_place_of_ours() -> None:
    coordinator = make(TRANSACTIONAL)
    coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10))
    commands = coordinator.persisted(Txid(1), metas(0, 7))
    assert only(commands, EmitBatch).metas == metas(0, 7)
    assert only(commands, Plan).last == {"p": Range(0, 7)}


def test_persisting_another_txid_than_asked_is_an_error() -> None:
    coordinator = make(TRANSACTIONAL)
    with pytest.raises(CoordinatorError, match="txid 1 was persisted, but None was asked for"):
        coordinator.persisted(Txid(1), metas(0, 10))
    coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10))
    with pytest.raises(CoordinatorError, match="txid 2 was persisted, but 1 was asked for"):
        coordinator.persisted(Txid(2), metas(0, 10))


def test_a_plan_that_forgets_a_partition_is_an_error() -> None:
    coordinator = make()
    _, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    with pytest.raises(CoordinatorError, match="the plan of txid 2 lost the place of p"):
        coordinator.planned(only(commands, Plan).ticket, BatchMetas({"q": Range(0, 1)}))


FIRST_PLACES: Metas = BatchMetas(carried={"p": Range(7, 7)}, begun=["p"])


@BOTH
def test_first_places_are_stored_and_committed_before_anything_behind_them_is_planned(
    semantics: Semantics,
) -> None:
    coordinator = make(semantics)
    commands: Commands = coordinator.planned(only(coordinator.sync(), Plan).ticket, FIRST_PLACES)
    assert kinds(commands) == ["Persist"], "also of a spout that is not transactional"
    commands = coordinator.persisted(Txid(1), FIRST_PLACES)
    assert kinds(commands) == ["EmitBatch"]
    assert only(commands, EmitBatch).stored
    commands = coordinator.ack(only(commands, EmitBatch).attempt)
    assert kinds(commands) == ["EmitCommit"]
    advance = only(coordinator.ack(only(commands, EmitCommit).attempt), Advance)
    assert coordinator.sync() == []
    plan = only(coordinator.advanced(advance.txid), Plan)
    assert (plan.txid, plan.last) == (2, {"p": Range(7, 7)})


@BOTH
def test_first_places_that_fail_are_not_looked_up_again(semantics: Semantics) -> None:
    coordinator = make(semantics)
    coordinator.planned(only(coordinator.sync(), Plan).ticket, FIRST_PLACES)
    first = only(coordinator.persisted(Txid(1), FIRST_PLACES), EmitBatch)
    commands = coordinator.fail(first.attempt)
    assert kinds(commands) == ["Cancel", "EmitBatch"]
    again = only(commands, EmitBatch)
    assert again.metas == FIRST_PLACES
    assert again.attempt > first.attempt


@BOTH
def test_first_places_that_an_earlier_leader_has_stored_are_committed(semantics: Semantics) -> None:
    stored: Metas = BatchMetas(carried={"p": Range(7, 7)})
    for replays in (frozenset[Txid](), frozenset([Txid(1)])):
        coordinator = make(semantics, stored={Txid(1): stored}, replays=replays)
        assert kinds(commands := coordinator.sync()) == ["EmitBatch"]
        assert only(commands, EmitBatch).metas == stored


def test_first_places_behind_an_open_batch_go_with_it_when_it_fails() -> None:
    """They hold places that its replay may not reach."""
    coordinator = make(OPAQUE)
    attempt, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    places: Metas = BatchMetas(carried={"p": Range(0, 10), "q": Range(7, 7)}, begun=["q"])
    commands = coordinator.planned(only(commands, Plan).ticket, places)
    assert kinds(commands) == ["EmitBatch"], "stored when it commits"
    commands = coordinator.fail(attempt)
    assert (only(commands, Plan).txid, coordinator.stored_txids()) == (1, [])
    attempt, commands = plan_and_emit(coordinator, commands, metas(0, 4))
    assert only(commands, Plan).last == {"p": Range(0, 4)}


def test_a_new_txid_with_nothing_in_it_is_an_error() -> None:
    coordinator = make()
    with pytest.raises(CoordinatorError, match="txid 1 was planned with nothing in it"):
        coordinator.planned(only(coordinator.sync(), Plan).ticket, BatchMetas())


@BOTH
def test_a_transaction_with_nothing_in_it_is_not_opened_and_asked_for_again_only_after_wake(
    semantics: Semantics,
) -> None:
    coordinator = make(semantics)
    first = only(coordinator.sync(), Plan)
    assert coordinator.is_planning(first.ticket)
    assert coordinator.nothing_to_plan(first.ticket) == []
    assert coordinator.is_idle
    assert coordinator.sync() == []
    second = only(coordinator.wake(), Plan)
    assert second.txid == 1
    assert second.ticket != first.ticket
    assert not coordinator.is_idle


def test_nothing_to_plan_does_not_hold_up_what_is_active() -> None:
    coordinator = make()
    attempt, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    coordinator.nothing_to_plan(only(commands, Plan).ticket)
    commands = commit(coordinator, coordinator.ack(attempt))
    assert commands == []
    assert coordinator.current == 2
    assert only(coordinator.wake(), Plan).last == {"p": Range(0, 10)}


# --- committing ------------------------------------------------------------------------------------


@BOTH
def test_only_the_current_txid_commits_and_only_when_processed(semantics: Semantics) -> None:
    coordinator, (first, second, third) = filled(semantics)
    assert coordinator.ack(third) == []
    assert coordinator.ack(second) == []
    assert coordinator.active[second.txid].phase is BatchPhase.PROCESSED
    commands = coordinator.ack(first)
    assert kinds(commands) == ["EmitCommit"]
    assert only(commands, EmitCommit).attempt == first


@BOTH
def test_the_next_commit_begins_only_after_advance_was_answered(semantics: Semantics) -> None:
    coordinator, (first, second, third) = filled(semantics)
    coordinator.ack(second)
    coordinator.ack(third)
    coordinator.ack(first)
    commands = coordinator.ack(first)
    assert kinds(commands) == ["Advance"]
    assert coordinator.sync() == []
    commands = coordinator.advanced(Txid(1))
    assert kinds(commands) == ["Plan", "EmitCommit"]
    assert only(commands, EmitCommit).attempt == second


@BOTH
def test_advance_keeps_its_txids_metas_and_drops_those_before(semantics: Semantics) -> None:
    coordinator, attempts = filled(semantics)
    for attempt in attempts[:2]:
        commands = coordinator.ack(attempt)
        advance = only(coordinator.ack(attempt), Advance)
        assert (advance.txid, advance.attempt) == (attempt.txid, attempt.attempt)
        assert advance.store == (semantics is not TRANSACTIONAL)
        commands = coordinator.advanced(advance.txid)
    assert coordinator.current == 3
    assert coordinator.stored_txids() == [2, 3]
    assert coordinator.committed_metas() == metas(10, 20) == coordinator.metas(Txid(2))
    assert commands == [], "the plan of txid 4, asked for before, is still out"


@BOTH
def test_advanced_without_an_advance_is_an_error(semantics: Semantics) -> None:
    coordinator, (first, second, _) = filled(semantics)
    for txid in (1, 2):
        with pytest.raises(CoordinatorError, match=f"txid {txid} was advanced, but txid 1 is current"):
            coordinator.advanced(Txid(txid))
    coordinator.ack(first)
    coordinator.ack(second)
    with pytest.raises(CoordinatorError, match="txid 1 was advanced"):
        coordinator.advanced(Txid(1))


def test_a_second_ack_of_a_processed_attempt_is_an_error() -> None:
    coordinator, (_, second, _) = filled(OPAQUE)
    coordinator.ack(second)
    with pytest.raises(CoordinatorError, match=r"txid 2 attempt 1\.2 was acked while processed"):
        coordinator.ack(second)


# --- failing ---------------------------------------------------------------------------------------


def test_a_transactional_failure_drops_all_later_ones_and_emits_the_stored_plans_again() -> None:
    coordinator, (first, second, third) = filled(TRANSACTIONAL)
    coordinator.ack(third)
    commands: Commands = coordinator.fail(second)
    assert commands[:2] == [Cancel(second), Cancel(third)]
    emits = [command for command in commands[2:] if isinstance(command, EmitBatch)]
    assert [(emit.attempt.txid, emit.metas, emit.stored) for emit in emits] == [
        (2, metas(10, 20), True),
        (3, metas(20, 30), True),
    ]
    assert min(emit.attempt.attempt for emit in emits) > third.attempt
    assert coordinator.active[first.txid].attempt == first
    assert coordinator.active[third.txid].phase is BatchPhase.PROCESSING


def test_stored_plans_are_emitted_again_whether_or_not_the_spout_is_ready() -> None:
    coordinator, (first, second, _) = filled(TRANSACTIONAL)
    coordinator.wake()
    commands = commit(coordinator, coordinator.ack(first))
    assert coordinator.nothing_to_plan(only(commands, Plan).ticket) == []
    emits = [c for c in coordinator.fail(second) if isinstance(c, EmitBatch)]
    assert [emit.attempt.txid for emit in emits] == [2, 3]


def test_an_opaque_failure_drops_all_later_ones_and_plans_them_anew_one_from_the_other() -> None:
    coordinator, (_, second, third) = filled(OPAQUE)
    commands: Commands = coordinator.fail(second)
    assert commands[:2] == [Cancel(second), Cancel(third)]
    plan = only(commands, Plan)
    assert (plan.txid, plan.last, plan.replay) == (2, {"p": Range(0, 10)}, True)
    assert kinds(commands) == ["Cancel", "Cancel", "Plan"]
    # The replay shrinks, so the next batch must start where the replay ends.
    replayed, commands = plan_and_emit(coordinator, commands, metas(10, 13))
    assert replayed.attempt > third.attempt
    plan = only(commands, Plan)
    assert (plan.txid, plan.last, plan.replay) == (3, {"p": Range(10, 13)}, True)


def test_an_opaque_replay_may_have_nothing_in_it_and_still_commits() -> None:
    coordinator, (first, _, _) = filled(OPAQUE)
    coordinator.ack(first)
    plan = only(coordinator.fail(first), Plan)
    with pytest.raises(CoordinatorError, match="the replay of txid 1 must be planned"):
        coordinator.nothing_to_plan(plan.ticket)
    coordinator, (first, _, _) = filled(OPAQUE)
    coordinator.ack(first)
    commands: Commands = coordinator.fail(first)
    nothing: Metas = BatchMetas(unavailable={"p": "no leader"})
    replay, _ = plan_and_emit(coordinator, commands, nothing)
    commit(coordinator, coordinator.ack(replay))
    assert coordinator.current == 2
    assert coordinator.committed_metas() == nothing


@BOTH
def test_a_failed_commit_is_processed_again_under_a_new_attempt(semantics: Semantics) -> None:
    coordinator, (first, second, third) = filled(semantics)
    coordinator.ack(first)
    assert coordinator.active[first.txid].phase is BatchPhase.COMMITTING
    commands: Commands = coordinator.fail(first)
    assert commands[:3] == [Cancel(first), Cancel(second), Cancel(third)]
    if semantics is not TRANSACTIONAL:
        _, commands = plan_and_emit(coordinator, commands, metas(0, 10))
    emitted = [c.attempt for c in commands if isinstance(c, EmitBatch)]
    assert emitted[0].txid == 1
    assert emitted[0].attempt > third.attempt
    assert coordinator.current == 1


@BOTH
def test_a_late_fail_during_the_commit_of_a_newer_attempt_changes_nothing(semantics: Semantics) -> None:
    coordinator, (first, _, third) = filled(semantics)
    commands: Commands = coordinator.fail(first)
    if semantics is not TRANSACTIONAL:
        _, commands = plan_and_emit(coordinator, commands, metas(0, 10))
    newer = next(c.attempt for c in commands if isinstance(c, EmitBatch))
    assert kinds(coordinator.ack(newer)) == ["EmitCommit"]
    for stale in (first, third):
        assert coordinator.fail(stale) == []
        assert coordinator.ack(stale) == []
    assert coordinator.active[newer.txid].phase is BatchPhase.COMMITTING
    assert kinds(coordinator.ack(newer)) == ["Advance"]


@BOTH
def test_once_its_commit_is_acked_an_attempt_can_no_longer_fail(semantics: Semantics) -> None:
    coordinator, (first, _, _) = filled(semantics)
    coordinator.ack(first)
    coordinator.ack(first)
    assert coordinator.fail(first) == []
    assert coordinator.active[first.txid].phase is BatchPhase.ADVANCING
    coordinator.advanced(Txid(1))
    assert coordinator.fail(first) == []
    assert coordinator.ack(first) == []
    assert coordinator.current == 2


@BOTH
def test_a_failure_of_a_later_batch_leaves_the_advance_of_an_earlier_one_alone(semantics: Semantics) -> None:
    coordinator, (first, second, _) = filled(semantics)
    coordinator.ack(first)
    coordinator.ack(first)
    coordinator.fail(second)
    assert coordinator.active[first.txid].phase is BatchPhase.ADVANCING
    coordinator.advanced(Txid(1))
    assert coordinator.current == 2


def test_answers_to_a_superseded_plan_change_nothing() -> None:
    coordinator, (first, second, _) = filled(OPAQUE)
    commands = commit(coordinator, coordinator.ack(first))
    stale = only(commands, Plan)
    assert stale.txid == 4
    newer = only(coordinator.fail(second), Plan)
    assert not coordinator.is_planning(stale.ticket)
    assert coordinator.planned(stale.ticket, metas(30, 40)) == []
    assert coordinator.nothing_to_plan(stale.ticket) == []
    assert coordinator.stored_txids() == [1]
    assert coordinator.is_planning(newer.ticket)
    assert coordinator.planned(99, metas(0, 1)) == []


def test_a_plan_that_is_being_stored_survives_the_failure_of_an_earlier_batch() -> None:
    coordinator, (first, second, _) = filled(TRANSACTIONAL)
    commands = commit(coordinator, coordinator.ack(first))
    assert kinds(coordinator.planned(only(commands, Plan).ticket, metas(30, 40))) == ["Persist"]
    emits = [c.attempt.txid for c in coordinator.fail(second) if isinstance(c, EmitBatch)]
    assert emits == [2, 3]
    assert only(coordinator.persisted(Txid(4), metas(30, 40)), EmitBatch).attempt.txid == 4
