"""The progress store while others read and write beside it: servers that lag, leaders that go on, trees that
were made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from support.zookeeper_backends import CODEC, IDENTITY, InMemory, commit, leader_of, metas

from txstream.core.errors import CorruptStateError, FencedError
from txstream.core.transaction import Epoch, Txid, attempt_id
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.zookeeper.tree import Operation
from txstream.zookeeper.znode_values import StoredBatch


@pytest.fixture
def backend(unique: str) -> InMemory:
    return InMemory(unique)


class Follower(MemoryTree):
    """A server of the same ensemble, whose data is as of its last sync."""

    def __init__(self, ensemble: MemoryTree) -> None:
        super().__init__()
        self._ensemble = ensemble
        self.sync()

    def sync(self) -> None:
        self._nodes = dict(self._ensemble._nodes)

    def multi(self, operations: Sequence[Operation]) -> None:
        self._ensemble.multi(operations)
        self.sync()


def test_progress_is_read_as_of_now_from_a_server_that_lags(backend: InMemory) -> None:
    leader = leader_of(backend)
    reader = MemoryProgress(Follower(backend.tree), backend.topology_id, CODEC)
    commit(leader, 1, attempt_id(1, 1))
    assert reader.load().current == 2


def test_a_leader_is_fenced_though_its_server_lags(backend: InMemory) -> None:
    leader_of(backend)
    leader = MemoryProgress(Follower(backend.tree), backend.topology_id, CODEC)
    leader.claim_epoch(Epoch(0))
    backend.store().claim_epoch(Epoch(0))
    with pytest.raises(FencedError, match="has a newer leader"):
        leader.verify()


def test_progress_is_of_one_moment_though_a_leader_goes_on_while_it_is_read(
    backend: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader goes on between the reads of `current` and of the metas. At no moment was txid 1 current and
    txid 2 planned."""
    leader = leader_of(backend)
    leader.persist(Txid(1), metas(1))
    children = backend.tree.children
    steps: list[Callable[[], object]] = [
        lambda: leader.advance(Txid(1), attempt_id(1, 1), None),
        lambda: leader.persist(Txid(2), metas(2)),
    ]

    def goes_on(path: str) -> list[str] | None:
        while steps:
            steps.pop(0)()
        return children(path)

    monkeypatch.setattr(backend.tree, "children", goes_on)
    progress = backend.store().load()
    assert (progress.current, [*progress.batches]) == (2, [1, 2])


def test_a_plan_that_was_changed_is_not_committed(backend: InMemory) -> None:
    leader = leader_of(backend)
    leader.persist(Txid(1), metas(1))
    backend.put("coordinator/meta/1", backend.get("coordinator/meta/1") or b"")
    with pytest.raises(CorruptStateError, match="coordinator/meta/1"):
        leader.advance(Txid(1), attempt_id(1, 1), None)
    assert backend.store().load().current == 1


def test_a_leader_is_known_by_its_owner_id_not_by_its_number(backend: InMemory) -> None:
    """In a tree that was lost and made again, the same epochs and versions come again."""
    leader = leader_of(backend)
    backend.tree.remove(backend.base)
    backend.store().create_identity(IDENTITY)
    assert backend.store().claim_epoch(Epoch(0)) == 1
    with pytest.raises(FencedError, match="has a newer leader"):
        leader.verify()


def test_a_plan_that_carries_an_attempt_is_not_emitted(backend: InMemory) -> None:
    """Its batch is committed, or somebody writes there: either way it must not run as a plan."""
    leader = leader_of(backend)
    backend.put("coordinator/meta/1", StoredBatch(metas(10), attempt_id(1, 1)).encode(CODEC))
    with pytest.raises(CorruptStateError, match="meta/1: a plan that is yet to be emitted carries attempt"):
        leader.persist(Txid(1), metas(10))
