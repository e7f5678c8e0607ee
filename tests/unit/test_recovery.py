"""What a new leader does first: the order of its steps, and every decision between progress and ledgers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from support.inmemory import Range

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import CorruptStateError, FencedError, ProgressMismatchError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid, attempt_id
from txstream.engine.start.recovery import (
    AdoptPlan,
    AdvanceFirst,
    Decision,
    Resume,
    decide,
    recover,
    take_over,
)
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.state import BatchRecord, FenceLockedError, FenceRow
from txstream.zookeeper import FORMAT, Identity, Progress, StoredBatch

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
BOTH = pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL])
CODEC: MetaCodec[Any] = MetaCodec(Range)
OLD, NEW, NEWER = attempt_id(1, 4), attempt_id(1, 5), attempt_id(1, 6)

Metas = BatchMetas[Any]


def metas(start: int, end: int) -> Metas:
    return BatchMetas({"p": Range(start, end)})


def row(
    txid: int, attempt: AttemptId, batch: Metas, status: Any = "committed", semantics: Semantics = OPAQUE
) -> BatchRecord:
    now = datetime.now(UTC)
    return BatchRecord(
        "t", "u", Txid(txid), attempt, semantics, status, CODEC.encode(batch), 0, 0, now, now, now, None
    )


def progress(current: int, committed_by: AttemptId | None, batches: Mapping[int, Metas]) -> Progress:
    stored = {
        Txid(txid): StoredBatch(batch, committed_by if txid < current else None)
        for txid, batch in batches.items()
    }
    return Progress(Txid(current), committed_by, stored)


def decided(
    semantics: Semantics, where: Progress, *rows: BatchRecord | None, codec: MetaCodec[Any] = CODEC
) -> Decision:
    ledgers = {f"db{number}": row for number, row in enumerate(rows, 1)}
    return decide("t", semantics, where, ledgers, codec)


# --- decisions ---------------------------------------------------------------------------------------

BEGIN = progress(1, None, {})
AT_3 = progress(3, OLD, {2: metas(10, 20)})
AT_3_PLANNED = progress(3, OLD, {2: metas(10, 20), 3: metas(20, 30), 4: metas(30, 40)})
DONE_2 = row(2, OLD, metas(10, 20))


@BOTH
def test_nothing_ran_yet(semantics: Semantics) -> None:
    assert decided(semantics, BEGIN, None, None) == Resume(BEGIN)


@BOTH
def test_every_ledger_is_at_the_last_committed_batch(semantics: Semantics) -> None:
    assert decided(semantics, AT_3, DONE_2, DONE_2) == Resume(AT_3)


def test_stored_plans_ahead_of_the_ledgers_are_normal() -> None:
    assert decided(TRANSACTIONAL, AT_3_PLANNED, DONE_2) == Resume(AT_3_PLANNED)


def test_every_ledger_has_committed_the_current_txid_by_one_attempt() -> None:
    ahead = row(3, NEW, metas(20, 25))
    expected = AdvanceFirst(Txid(3), NEW, metas(20, 25))
    assert decided(OPAQUE, AT_3, ahead) == expected
    assert decided(OPAQUE, AT_3, ahead, ahead) == expected
    planned = row(3, NEW, metas(20, 30))
    assert decided(TRANSACTIONAL, AT_3_PLANNED, planned) == AdvanceFirst(Txid(3), NEW, metas(20, 30))


@pytest.mark.parametrize(
    "rows",
    [
        (row(3, NEW, metas(20, 30)), DONE_2),
        (DONE_2, row(3, NEW, metas(20, 30))),
        (row(3, NEW, metas(20, 30)), row(3, NEWER, metas(20, 30))),
        (row(3, NEW, metas(20, 30), "committing"),),
        (row(3, NEW, metas(20, 30), "committing"), DONE_2),
        (row(3, NEW, metas(20, 30), "committing"), row(3, NEW, metas(20, 30))),
    ],
    ids=[
        "first only",
        "second only",
        "by two attempts",
        "committing",
        "committing one",
        "committing one of two",
    ],
)
@BOTH
def test_a_txid_that_is_committed_in_part_is_replayed_in_every_database(
    semantics: Semantics, rows: tuple[BatchRecord, ...]
) -> None:
    where = AT_3_PLANNED if semantics is TRANSACTIONAL else AT_3
    assert decided(semantics, where, *rows) == Resume(where, frozenset({Txid(3)}))


def test_the_first_txid_may_be_committed_in_part_too() -> None:
    assert decided(OPAQUE, BEGIN, None, row(1, NEW, metas(0, 5))) == Resume(BEGIN, frozenset({Txid(1)}))


@pytest.mark.parametrize("status", ["committing", "committed"])
def test_a_plan_that_only_a_ledger_has_is_adopted(status: str) -> None:
    found = row(3, NEW, metas(20, 30), status)
    assert decided(TRANSACTIONAL, AT_3, found, DONE_2) == AdoptPlan(Txid(3), metas(20, 30))


def test_a_plan_that_differs_from_the_one_in_a_ledger_is_a_mismatch() -> None:
    with pytest.raises(ProgressMismatchError, match="the stored plan differs from the one committed"):
        decided(TRANSACTIONAL, AT_3_PLANNED, row(3, NEW, metas(20, 29)))


@pytest.mark.parametrize(
    ("where", "rows", "message"),
    [
        (
            AT_3,
            (None,),
            "topology 't': ZooKeeper says that txid 2 was committed last, the ledger of db1 says no batch at "
            "all; they may be at most one batch apart",
        ),
        (AT_3, (row(1, OLD, metas(0, 10)),), "the ledger of db1 says txid 1 \\(committed\\)"),
        (AT_3, (row(4, OLD, metas(0, 10)),), "the ledger of db1 says txid 4 \\(committed\\)"),
        (BEGIN, (row(2, OLD, metas(0, 10)),), "ZooKeeper says that txid 0 was committed last"),
        (AT_3, (DONE_2, row(1, OLD, metas(0, 10))), "the ledger of db2 says txid 1"),
        (AT_3, (row(3, NEW, metas(20, 30)), row(1, OLD, metas(0, 10))), "the ledger of db2 says txid 1"),
        (AT_3, (row(2, OLD, metas(10, 20), "committing"),), "its last batch was never committed"),
        (
            AT_3,
            (row(2, NEW, metas(10, 20)),),
            f"ZooKeeper has attempt {OLD} for it, the ledger {NEW}",
        ),
        (AT_3, (row(2, OLD, metas(10, 21)),), "they hold different ranges for that batch"),
    ],
)
@BOTH
def test_anything_else_is_a_mismatch_that_names_both_figures(
    semantics: Semantics, where: Progress, rows: tuple[BatchRecord | None, ...], message: str
) -> None:
    with pytest.raises(ProgressMismatchError, match=message) as caught:
        decided(semantics, where, *rows)
    assert "start afresh with `txstream delete t --drop-state`" in str(caught.value)


@dataclass(frozen=True)
class RangeWithLeader(Range):
    """What a newer version stores: one more field, with a default."""

    leader_epoch: int | None = None


def test_a_ledger_row_of_an_older_version_is_the_same_batch() -> None:
    codec: MetaCodec[Any] = MetaCodec(RangeWithLeader)
    now_known = BatchMetas({"p": RangeWithLeader(10, 20)})
    assert decided(OPAQUE, progress(3, OLD, {2: now_known}), DONE_2, codec=codec)


def test_a_ledger_row_that_cannot_be_read_is_corrupt() -> None:
    broken = row(2, OLD, metas(10, 20))
    broken.metas["partitions"] = {"p": {"start": "x"}}
    with pytest.raises(CorruptStateError, match="ledger of db1, txid 2, partition 'p'"):
        decided(OPAQUE, AT_3, broken)


# --- the steps ---------------------------------------------------------------------------------------


@dataclass
class Database:
    """Records what is asked of it."""

    display_url: str
    steps: list[str]
    fence: AttemptId | None = None
    last: BatchRecord | None = None
    on_last_batch: Any = None
    raised_to: list[AttemptId] = field(default_factory=list)

    def read_fence(self) -> FenceRow | None:
        self.steps.append(f"read fence of {self.display_url}")
        return None if self.fence is None else FenceRow("t", "u", self.fence)

    def raise_fence(self, attempt: AttemptId) -> None:
        self.steps.append(f"raise fence of {self.display_url}")
        self.raised_to.append(attempt)

    def last_batch(self) -> BatchRecord | None:
        self.steps.append(f"read ledger of {self.display_url}")
        if self.on_last_batch is not None:
            self.on_last_batch()
        return self.last


class Store(MemoryProgress):
    """Records what is asked of it."""

    def __init__(self, tree: MemoryTree, steps: list[str]) -> None:
        super().__init__(tree, "t", CODEC)
        self.shared = tree
        self.steps = steps
        self.create_identity(Identity("6fb0f6b4-0c26-4ac1-a9a4-7f8a7a1e4f11", FORMAT, OPAQUE, "spout"))

    def claim_epoch(self, at_least: Epoch) -> Epoch:
        self.steps.append("claim epoch")
        return super().claim_epoch(at_least)

    def load(self) -> Progress:
        self.steps.append("read progress")
        return super().load()

    def advance(self, txid: Txid, attempt: AttemptId, metas: Metas | None) -> None:
        self.steps.append(f"advance {txid}")
        super().advance(txid, attempt, metas)

    def persist(self, txid: Txid, metas: Metas) -> Metas:
        self.steps.append(f"persist {txid}")
        return super().persist(txid, metas)


def set_up(*last: BatchRecord | None) -> tuple[Store, list[Database], list[str]]:
    steps: list[str] = []
    databases = [Database(f"db{number}", steps, last=row) for number, row in enumerate(last, 1)]
    return Store(MemoryTree(), steps), databases, steps


def test_every_fence_is_raised_before_anything_is_read_that_the_decision_depends_on() -> None:
    store, databases, steps = set_up(None, None)
    epoch = take_over(store, databases)
    recover("t", OPAQUE, store, databases, CODEC)
    assert steps == [
        "read fence of db1",
        "read fence of db2",
        "claim epoch",
        "raise fence of db1",
        "raise fence of db2",
        "read progress",
        "read ledger of db1",
        "read ledger of db2",
    ]
    assert [database.raised_to for database in databases] == [[attempt_id(epoch, 0)]] * 2


def test_a_leader_that_was_succeeded_does_not_wait_for_a_fence_any_longer() -> None:
    store, (database,), steps = set_up(None)
    waits: list[FenceLockedError] = []

    def raise_fence(*_: object) -> None:
        assert not waits, "it asked for the fence again"
        raise FenceLockedError("another session holds the fence")

    def succeeded(error: FenceLockedError) -> None:
        waits.append(error)
        Store(store.shared, steps).claim_epoch(Epoch(0))

    database.raise_fence = raise_fence  # type: ignore[assignment]
    with pytest.raises(FencedError, match="has a newer leader"):
        take_over(store, [database], locked=succeeded)


def test_the_epoch_is_above_zookeepers_and_every_fences() -> None:
    store, databases, _ = set_up(None, None)
    assert take_over(store, databases) == 1
    databases[1].fence = attempt_id(7, 3)
    assert take_over(store, databases) == 8
    databases[0].fence = attempt_id(2, 0)
    assert take_over(store, databases) == 9


def test_a_committed_batch_is_advanced_and_nothing_runs_again() -> None:
    store, databases, steps = set_up(row(1, NEW, metas(0, 10)))
    take_over(store, databases)
    resume = recover("t", OPAQUE, store, databases, CODEC)
    assert "advance 1" in steps
    assert (resume.progress.current, resume.progress.committed_by, resume.replays) == (2, NEW, frozenset())
    assert resume.progress.batches[Txid(1)].metas == metas(0, 10)


def test_an_adopted_plan_is_stored_before_it_is_decided_on_again() -> None:
    store, databases, steps = set_up(row(1, NEW, metas(0, 10)), None)
    take_over(store, databases)
    resume = recover("t", TRANSACTIONAL, store, databases, CODEC)
    assert "persist 1" in steps
    assert resume.replays == {1}
    assert resume.progress.batches[Txid(1)].metas == metas(0, 10)
    assert recover("t", TRANSACTIONAL, store, databases, CODEC) == resume


def test_an_adopted_plan_that_is_committed_everywhere_is_stored_and_advanced() -> None:
    store, databases, steps = set_up(row(1, NEW, metas(0, 10)), row(1, NEW, metas(0, 10)))
    take_over(store, databases)
    resume = recover("t", TRANSACTIONAL, store, databases, CODEC)
    assert steps.index("persist 1") < steps.index("advance 1")
    assert (resume.progress.current, resume.replays) == (2, frozenset())


def test_a_non_transactional_topology_asks_no_ledger() -> None:
    store, databases, steps = set_up(row(9, NEW, metas(0, 10)))
    take_over(store, databases)
    steps.clear()
    assert recover("t", Semantics.NON_TRANSACTIONAL, store, databases, CODEC).progress.current == 1
    assert steps == ["read progress"]


def test_a_mismatch_seen_by_a_leader_that_was_succeeded_is_the_end_of_its_turn() -> None:
    store, databases, steps = set_up(None)
    take_over(store, databases)

    def succeeded() -> None:
        """Between our reading of progress and of the ledger, another leader commits two batches."""
        other = Store(store.shared, steps)
        other.claim_epoch(Epoch(0))
        databases[0].last = row(2, NEW, metas(10, 20))

    databases[0].on_last_batch = succeeded
    with pytest.raises(FencedError, match="has a newer leader"):
        recover("t", OPAQUE, store, databases, CODEC)


def test_a_mismatch_seen_by_the_leader_itself_is_told() -> None:
    store, databases, _ = set_up(row(5, NEW, metas(0, 10)))
    take_over(store, databases)
    with pytest.raises(ProgressMismatchError, match="the ledger of db1 says txid 5"):
        recover("t", OPAQUE, store, databases, CODEC)


def test_every_state_of_two_ledgers_is_resumed_or_refused() -> None:
    """No state makes the leader guess: it resumes only what the rules explain."""
    states: list[BatchRecord | None] = [
        None,
        *(
            row(txid, attempt, metas(10 * txid - 10, 10 * txid), status)
            for txid, attempt, status in itertools.product(
                (1, 2, 3, 4), (OLD, NEW), ("committed", "committing")
            )
        ),
    ]
    explained = 0
    for first, second in itertools.product(states, states):
        try:
            decision = decided(OPAQUE, AT_3, first, second)
        except ProgressMismatchError:
            continue
        explained += 1
        rows = [first, second]
        assert all(r is not None and r.txid in (2, 3) for r in rows)
        behind = [r for r in rows if r is not None and r.txid == 2]
        assert all(r.attempt == OLD and r.status == "committed" for r in behind)
        if isinstance(decision, AdvanceFirst):
            assert first is not None
            assert second is not None
            assert not behind
            assert first.attempt == second.attempt
            assert first.status == second.status == "committed"
        else:
            assert isinstance(decision, Resume)
            assert decision.replays == (frozenset() if len(behind) == 2 else {3})
    assert explained == 25
