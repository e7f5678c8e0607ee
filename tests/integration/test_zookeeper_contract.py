"""The progress store's contract: the same tests over the tree in memory and over a real ZooKeeper."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.zookeeper_backends import (
    CODEC,
    IDENTITY,
    Backend,
    Fault,
    Hook,
    InMemory,
    Range,
    Real,
    commit,
    leader_of,
    metas,
)

from txstream.core.batch_metas import BatchMetas
from txstream.core.dead_letters import Excluded
from txstream.core.errors import (
    CoordinatorError,
    CorruptStateError,
    FencedError,
    MetaTooLargeError,
    TopologyError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import Epoch, Txid, attempt_id
from txstream.plugins.local.embedded.zookeeper import EmbeddedZooKeeper
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.zookeeper import Identity, LostAnswerError, ProgressStore, StoredBatch, ZooKeeper


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with (
        EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server,
        ZooKeeper(f"{server.address}/some/chroot") as zk,
    ):
        yield zk


@pytest.fixture(params=["memory", "zookeeper"])
def backend(request: pytest.FixtureRequest, unique: str) -> Backend:
    if request.param == "memory":
        return InMemory(unique)
    return Real(unique, request.getfixturevalue("session"))


LOST_BEFORE_OR_AFTER = pytest.mark.parametrize("moment", ["before", "after"])


# --- identity -----------------------------------------------------------------------------------------


def test_an_identity_is_created_once(backend: Backend) -> None:
    store = backend.store()
    assert store.read_identity() is None
    assert store.create_identity(IDENTITY) == IDENTITY
    other = Identity.new(Semantics.OPAQUE, "spouts.Other", {}, ())
    assert backend.store().create_identity(other) == IDENTITY
    assert backend.store().read_identity() == IDENTITY
    progress = backend.store().load()
    assert (progress.current, progress.committed_by, progress.batches) == (1, None, {})


def test_of_two_creators_the_second_gets_the_firsts_identity(backend: Backend) -> None:
    def other_is_faster(moment: str, write: str) -> None:
        if moment == "before":
            backend.store().create_identity(IDENTITY)

    mine = Identity.new(Semantics.OPAQUE, "spouts.Other", {}, ())
    assert backend.store(other_is_faster).create_identity(mine) == IDENTITY


@LOST_BEFORE_OR_AFTER
def test_a_lost_answer_of_create_identity_is_recognised(backend: Backend, moment: str) -> None:
    fault = Fault(moment, "create_identity", LostAnswerError())
    assert backend.store(fault).create_identity(IDENTITY) == IDENTITY
    assert fault.fired == 1
    assert backend.store().load().current == 1


def test_an_identity_can_be_created_after_the_epoch_was_claimed(backend: Backend) -> None:
    store = backend.store()
    assert store.claim_epoch(Epoch(6)) == 7
    store.create_identity(IDENTITY)
    commit_after = store.load()
    assert commit_after.current == 1
    commit(store, 1, attempt_id(7, 1))


def test_a_bad_topology_id_reaches_no_path() -> None:
    with pytest.raises(TopologyError, match="slash"):
        MemoryProgress(MemoryTree(), "../other", CODEC)


# --- epoch --------------------------------------------------------------------------------------------


def test_an_epoch_is_above_the_stored_one_and_above_every_fence(backend: Backend) -> None:
    store = backend.store()
    assert store.read_epoch() == 0
    assert store.claim_epoch(Epoch(0)) == 1
    assert store.claim_epoch(Epoch(0)) == 2
    assert backend.store().claim_epoch(Epoch(41)) == 42
    assert backend.store().claim_epoch(Epoch(5)) == 43
    assert store.read_epoch() == 43


@LOST_BEFORE_OR_AFTER
def test_a_lost_answer_of_claim_epoch_is_recognised_by_its_owner(backend: Backend, moment: str) -> None:
    fault = Fault(moment, "claim_epoch", LostAnswerError())
    store = backend.store(fault)
    assert store.claim_epoch(Epoch(0)) == 1
    assert fault.fired == 1
    store.verify()
    assert json.loads(backend.get("epoch") or b"")["epoch"] == 1


def test_the_loser_of_a_race_claims_again_and_the_winner_is_fenced(backend: Backend) -> None:
    other = backend.store()
    raced: list[Epoch] = []

    def other_is_faster(moment: str, write: str) -> None:
        if moment == "before" and not raced:
            raced.append(other.claim_epoch(Epoch(0)))

    store = backend.store(other_is_faster)
    assert store.claim_epoch(Epoch(0)) == 2
    assert raced == [1]
    store.verify()
    with pytest.raises(FencedError, match="claimed epoch 2 after this driver's 1"):
        other.verify()


def test_a_claim_that_never_wins_is_fenced(backend: Backend) -> None:
    other = backend.store()

    def other_is_always_faster(moment: str, write: str) -> None:
        if moment == "before":
            other.claim_epoch(Epoch(0))

    with pytest.raises(FencedError, match="100 other claims"):
        backend.store(other_is_always_faster).claim_epoch(Epoch(0))


def test_an_epoch_past_31_bits_is_refused(backend: Backend) -> None:
    with pytest.raises(CorruptStateError, match="31 bits"):
        backend.store().claim_epoch(Epoch((1 << 31) - 1))


def test_nothing_is_written_without_a_claim_and_a_load(backend: Backend) -> None:
    store = backend.store()
    store.create_identity(IDENTITY)
    store.load()
    with pytest.raises(CoordinatorError, match="no epoch"):
        store.persist(Txid(1), metas(0))
    store.claim_epoch(Epoch(0))
    with pytest.raises(CoordinatorError, match="not loaded"):
        store.advance(Txid(1), attempt_id(1, 1), metas(0))


# --- two leaders --------------------------------------------------------------------------------------


def test_the_older_of_two_leaders_cannot_write_anything(backend: Backend) -> None:
    older = leader_of(backend)
    commit(older, 1, attempt_id(1, 1))
    older.persist(Txid(2), metas(20))
    newer = leader_of(backend)
    before = backend.store().load()
    forbidden: list[Callable[[], Any]] = [
        lambda: older.persist(Txid(3), metas(30)),
        lambda: older.persist(Txid(2), metas(20)),
        lambda: older.advance(Txid(2), attempt_id(1, 2), None),
        lambda: older.advance(Txid(2), attempt_id(1, 2), metas(20)),
        older.verify,
        older.load,
        older.delete_everything,
    ]
    for write in forbidden:
        with pytest.raises(FencedError):
            write()
    assert backend.store().load() == before
    newer.advance(Txid(2), attempt_id(2, 1), None)
    assert backend.store().load().committed_by == attempt_id(2, 1)


def test_an_older_leader_whose_lost_advance_was_stored_is_fenced_all_the_same(backend: Backend) -> None:
    def succeeded(moment: str, write: str) -> None:
        if (moment, write) == ("after", "advance"):
            leader_of(backend)
            raise LostAnswerError

    older = leader_of(backend, succeeded)
    with pytest.raises(FencedError):
        older.advance(Txid(1), attempt_id(1, 1), metas(10))
    assert backend.store().load().committed_by == attempt_id(1, 1)


# --- progress -----------------------------------------------------------------------------------------


def test_transactional_batches_are_planned_ahead_and_committed_in_order(backend: Backend) -> None:
    store = leader_of(backend)
    for txid in (1, 2, 3):
        assert store.persist(Txid(txid), metas(txid)) == metas(txid)
    store.advance(Txid(1), attempt_id(1, 5), None)
    progress = leader_of(backend).load()
    assert (progress.current, progress.committed_by) == (2, attempt_id(1, 5))
    assert progress.batches == {txid: StoredBatch(metas(txid), None) for txid in (1, 2, 3)}
    after = leader_of(backend)
    after.advance(Txid(2), attempt_id(3, 1), None)
    assert sorted(after.load().batches) == [2, 3]


def test_opaque_batches_are_stored_with_the_attempt_that_committed_them(backend: Backend) -> None:
    store = leader_of(backend)
    for txid in (1, 2, 3):
        store.advance(Txid(txid), attempt_id(1, txid), metas(txid))
    progress = store.load()
    assert (progress.current, progress.committed_by) == (4, attempt_id(1, 3))
    assert progress.batches == {Txid(3): StoredBatch(metas(3), attempt_id(1, 3))}


def test_an_advance_from_a_ledger_may_carry_an_older_leaders_attempt(backend: Backend) -> None:
    leader_of(backend)
    newer = leader_of(backend)
    newer.advance(Txid(1), attempt_id(1, 9), metas(1))
    assert newer.load().committed_by == attempt_id(1, 9)


@pytest.mark.parametrize("partitions", [1, 500])
def test_a_batch_costs_two_round_trips_whatever_the_number_of_partitions(
    backend: Backend, partitions: int
) -> None:
    store = leader_of(backend)
    before = backend.requests()
    for txid in range(1, 11):
        store.persist(Txid(txid), metas(txid, partitions))
        store.advance(Txid(txid), attempt_id(1, txid), None)
    assert backend.requests() - before == 20
    for txid in range(11, 21):
        store.advance(Txid(txid), attempt_id(1, txid), metas(txid, partitions))
    assert backend.requests() - before == 30


@LOST_BEFORE_OR_AFTER
def test_a_lost_answer_of_persist_is_recognised(backend: Backend, moment: str) -> None:
    fault = Fault(moment, "persist", LostAnswerError())
    store = leader_of(backend, fault)
    assert store.persist(Txid(1), metas(1)) == metas(1)
    assert fault.fired == 1
    store.advance(Txid(1), attempt_id(1, 1), None)
    commit(store, 2, attempt_id(1, 2))
    assert store.load().current == 3


@LOST_BEFORE_OR_AFTER
@pytest.mark.parametrize("persisted", [True, False], ids=["transactional", "opaque"])
def test_a_lost_answer_of_advance_is_recognised(backend: Backend, moment: str, persisted: bool) -> None:
    fault = Fault(moment, "advance", LostAnswerError())
    store = leader_of(backend, fault)
    if persisted:
        store.persist(Txid(1), metas(1))
    store.advance(Txid(1), attempt_id(1, 1), None if persisted else metas(1))
    assert fault.fired == 1
    progress = backend.store().load()
    assert (progress.current, progress.committed_by) == (2, attempt_id(1, 1))
    # The versions that it goes on with are right.
    commit(store, 2, attempt_id(1, 2))
    assert store.load().current == 3


def without_a_record(plan: BatchMetas[Any]) -> BatchMetas[Any]:
    return plan.leaving_out(
        [Excluded(min(plan.partitions), next(iter(plan.partitions.values())).start, "b", "E")]
    )


@LOST_BEFORE_OR_AFTER
def test_a_plan_is_amended_until_it_is_known_to_be_stored(backend: Backend, moment: str) -> None:
    fault = Fault(moment, "amend", LostAnswerError())
    store = leader_of(backend, fault)
    store.persist(Txid(1), metas(1))
    store.amend(Txid(1), without_a_record(metas(1)))
    assert fault.fired == 1
    assert backend.store().load().batches == {Txid(1): StoredBatch(without_a_record(metas(1)), None)}
    store.advance(Txid(1), attempt_id(1, 1), None)
    assert backend.store().load().batches == {Txid(1): StoredBatch(without_a_record(metas(1)), None)}


def test_an_older_leader_amends_nothing_and_a_committed_plan_is_not_amended(backend: Backend) -> None:
    older = leader_of(backend)
    older.persist(Txid(1), metas(1))
    newer = leader_of(backend)
    with pytest.raises(FencedError):
        older.amend(Txid(1), without_a_record(metas(1)))
    newer.advance(Txid(1), attempt_id(2, 1), None)
    for txid in (1, 2):
        with pytest.raises(CoordinatorError, match=f"txid {txid} cannot be amended"):
            newer.amend(Txid(txid), without_a_record(metas(1)))
    assert backend.store().load().batches == {Txid(1): StoredBatch(metas(1), None)}


def test_a_plan_that_is_already_stored_is_adopted(backend: Backend) -> None:
    leader_of(backend).persist(Txid(1), metas(1))
    newer = leader_of(backend)
    assert newer.persist(Txid(1), metas(999)) == metas(1)
    newer.advance(Txid(1), attempt_id(2, 1), None)
    assert backend.store().load().batches == {Txid(1): StoredBatch(metas(1), None)}


def test_plans_and_commits_out_of_order_are_refused(backend: Backend) -> None:
    store = leader_of(backend)
    commit(store, 1, attempt_id(1, 1))
    for out_of_order in (
        lambda: store.persist(Txid(1), metas(1)),
        lambda: store.persist(Txid(3), metas(3)),
        lambda: store.advance(Txid(1), attempt_id(1, 2), None),
        lambda: store.advance(Txid(3), attempt_id(1, 2), metas(3)),
        lambda: store.advance(Txid(2), attempt_id(1, 2), None),
    ):
        with pytest.raises(CoordinatorError):
            out_of_order()
    assert store.load().current == 2


@pytest.mark.parametrize("write", ["create_identity", "claim_epoch", "persist", "advance"])
@LOST_BEFORE_OR_AFTER
def test_after_a_crash_at_any_write_the_next_driver_goes_on(
    backend: Backend, moment: str, write: str
) -> None:
    def run(hook: Hook | None) -> ProgressStore:
        store = backend.store(hook)
        store.create_identity(IDENTITY)
        epoch = store.claim_epoch(Epoch(0))
        progress = store.load()
        for txid in range(progress.current, 4):
            assert store.persist(Txid(txid), metas(txid)) == metas(txid)
            store.advance(Txid(txid), attempt_id(epoch, txid), None)
        return store

    fault = Fault(moment, write, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(fault)
    progress = run(None).load()
    assert progress.current == 4
    assert progress.batches == {Txid(3): StoredBatch(metas(3), None)}


def test_progress_is_read_as_of_one_moment_while_a_leader_advances(backend: Backend) -> None:
    store = leader_of(backend)

    def advance() -> None:
        for txid in range(1, 151):
            store.persist(Txid(txid), metas(txid))
            store.advance(Txid(txid), attempt_id(1, txid), None)

    with ThreadPoolExecutor(1) as pool:
        advancing = pool.submit(advance)
        reader = backend.store()
        seen = []
        while not advancing.done():
            progress = reader.load()
            if progress.current > 1:
                last = Txid(progress.current - 1)
                assert progress.committed_by == attempt_id(1, last)
                assert progress.batches[last].metas == metas(last)
            seen.append(progress.current)
        advancing.result()
    assert seen == sorted(seen)
    assert reader.load().current == 151


# --- corrupt data -------------------------------------------------------------------------------------

GOOD_META = json.dumps({"attempt": None, "metas": CODEC.encode(metas(1))}).encode()


@pytest.mark.parametrize(
    ("path", "data", "named"),
    [
        ("coordinator/current", b"", "coordinator/current"),
        ("coordinator/current", b"{", "coordinator/current"),
        ("coordinator/current", b'{"txid":3,"attempt":1,"more":1}', "coordinator/current"),
        ("coordinator/current", b'{"txid":"3","attempt":1}', "coordinator/current"),
        ("coordinator/current", b'{"txid":3,"attempt":null}', "coordinator/current"),
        ("coordinator/current", b'{"txid":2,"attempt":4294967297}', "coordinator/meta"),
        ("coordinator/current", b'{"txid":4,"attempt":4294967297}', "coordinator/meta"),
        ("coordinator/current", b'{"txid":3,"attempt":77}', "coordinator/meta/2"),
        ("coordinator/current", None, "coordinator/current"),
        ("coordinator/meta", None, "coordinator/meta"),
        ("coordinator/meta/2", b"\x78\x9cnonsense", "coordinator/meta/2"),
        ("coordinator/meta/2", b'{"attempt":null}', "coordinator/meta/2"),
        (
            "coordinator/meta/2",
            b'{"attempt":null,"metas":{"partitions":{"l/0":{"x":1}}}}',
            "coordinator/meta/2",
        ),
        ("coordinator/meta/2", None, "coordinator/meta"),
        ("coordinator/meta/1", GOOD_META, "coordinator/meta"),
        ("coordinator/meta/5", GOOD_META, "coordinator/meta"),
        ("coordinator/meta/03", GOOD_META, "coordinator/meta/03"),
        ("coordinator/meta/last", GOOD_META, "coordinator/meta/last"),
        ("coordinator/meta/3", GOOD_META.replace(b"null", b"8"), "coordinator/meta/3"),
    ],
)
def test_corrupt_progress_is_named_and_never_started_afresh(
    backend: Backend, path: str, data: bytes | None, named: str
) -> None:
    store = leader_of(backend)
    for txid in (1, 2):
        store.advance(Txid(txid), attempt_id(1, txid), metas(txid))
    if data is None:
        backend.remove(path)
    else:
        backend.put(path, data)
    with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/{named}"):
        backend.store().load()
    store.verify()  # looking repaired nothing and fenced nobody


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":99}', None])
def test_a_corrupt_identity_is_never_taken_for_none(backend: Backend, data: bytes | None) -> None:
    backend.store().create_identity(IDENTITY)
    if data is None:
        backend.remove("identity")
    else:
        backend.put("identity", data)
    reads: list[Callable[[], object]] = [
        lambda: backend.store().read_identity(),
        lambda: backend.store().create_identity(IDENTITY),
    ]
    for read in reads:
        with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/identity"):
            read()


@pytest.mark.parametrize("data", [b"", b"7", b'{"epoch":7,"owner":null,"driver":null}'])
def test_a_corrupt_epoch_is_never_claimed(backend: Backend, data: bytes) -> None:
    store = leader_of(backend)
    backend.put("epoch", data)
    uses: list[Callable[[], object]] = [
        store.verify,
        store.read_epoch,
        lambda: store.claim_epoch(Epoch(0)),
    ]
    for use in uses:
        with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/epoch"):
            use()
    assert backend.get("epoch") == data


@pytest.mark.parametrize("path", ["coordinator/current", "coordinator/meta/1", "coordinator/meta/2", "epoch"])
def test_what_others_changed_under_a_leader_is_not_overwritten(backend: Backend, path: str) -> None:
    store = leader_of(backend)
    commit(store, 1, attempt_id(1, 1))
    store.persist(Txid(2), metas(2))
    changed = backend.get(path)
    assert changed is not None
    backend.put(path, changed)  # the same data, but another version
    with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/{path}"):
        store.advance(Txid(2), attempt_id(1, 2), None)
    assert json.loads(backend.get("coordinator/current") or b"")["txid"] == 2


# --- sizes --------------------------------------------------------------------------------------------


def random_metas(partitions: int) -> BatchMetas[Range]:
    rng = random.Random(3)
    return BatchMetas({f"{rng.randbytes(120).hex()}/0": Range(0, 1) for _ in range(partitions)})


def test_large_metas_are_stored_compressed(backend: Backend) -> None:
    store = leader_of(backend)
    store.advance(Txid(1), attempt_id(1, 1), metas(1, 20_000))
    data = backend.get("coordinator/meta/1") or b""
    assert len(data) < 200_000 < 600_000 < len(zlib.decompress(data))
    assert store.load().batches[Txid(1)].metas == metas(1, 20_000)


def test_metas_too_large_for_a_request_are_refused_and_the_largest_allowed_are_stored(
    backend: Backend,
) -> None:
    """Against a real server this shows that what is let through really fits."""
    store = leader_of(backend)
    too_large, fits = random_metas(7000), random_metas(6500)
    for write in (
        lambda: store.check_size(too_large),
        lambda: store.persist(Txid(1), too_large),
        lambda: store.advance(Txid(1), attempt_id(1, 1), too_large),
    ):
        with pytest.raises(MetaTooLargeError, match="7000 partitions"):
            write()
    assert backend.get("coordinator/meta/1") is None
    store.check_size(fits)
    store.advance(Txid(1), attempt_id(1, 1), fits)
    assert len(backend.get("coordinator/meta/1") or b"") > 800_000
    store.persist(Txid(2), fits)
    store.advance(Txid(2), attempt_id(1, 2), None)
    assert store.load().batches[Txid(2)].metas == fits


# --- deleting -----------------------------------------------------------------------------------------


def test_a_deleted_topology_starts_afresh(backend: Backend) -> None:
    store = leader_of(backend)
    commit(store, 1, attempt_id(1, 1))
    store.persist(Txid(2), metas(2))
    backend.put("requests/7", b"{}")
    store.delete_everything()
    assert backend.get("") is None
    assert backend.store().read_identity() is None
    assert backend.store().read_epoch() == 0
    leader_of(backend)
    assert backend.store().load().current == 1


def test_a_driver_whose_topology_was_deleted_says_so(backend: Backend) -> None:
    store = leader_of(backend)
    backend.store().delete_everything()
    with pytest.raises(CorruptStateError, match="deleted while this driver ran it"):
        store.persist(Txid(1), metas(1))
    assert backend.get("coordinator") is None


@pytest.mark.parametrize("broken", ["identity", "epoch", "coordinator/current"])
def test_a_damaged_topology_can_be_deleted(backend: Backend, broken: str) -> None:
    leader_of(backend)
    backend.remove(broken)
    backend.put("coordinator/nonsense/deeper", b"x")
    backend.store().delete_everything()
    assert backend.get("") is None


@LOST_BEFORE_OR_AFTER
def test_a_lost_answer_of_a_delete_is_recognised(backend: Backend, moment: str) -> None:
    leader_of(backend)
    fault = Fault(moment, "delete", LostAnswerError())
    backend.store(fault).delete_everything()
    assert fault.fired == 1
    assert backend.get("") is None


# --- writes that arrive late --------------------------------------------------------------------------


def test_writes_that_arrive_late_change_nothing(unique: str) -> None:
    """Only the tree in memory can be told to apply writes late."""
    backend = InMemory(unique)
    store = backend.store()
    store.create_identity(IDENTITY)
    backend.tree.delay_next_write()
    assert store.claim_epoch(Epoch(0)) == 1
    assert backend.tree.deliver_late() == 0
    store.load()
    backend.tree.delay_next_write()
    store.persist(Txid(1), metas(1))
    store.advance(Txid(1), attempt_id(1, 1), None)
    commit(store, 2, attempt_id(1, 2))
    # The late persist of txid 1 comes when its metas have been deleted: they must not come back.
    assert backend.tree.deliver_late() == 0
    assert sorted(store.load().batches) == [2]
    backend.tree.delay_next_write()
    store.advance(Txid(3), attempt_id(1, 3), metas(3))
    assert backend.tree.deliver_late() == 0
    assert store.load().current == 4
