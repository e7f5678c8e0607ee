"""Progress stores under test, over a tree in memory and a real ZooKeeper, and what tests do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.zookeeper import (
    ROOT,
    Identity,
    OperatorRequests,
    Paths,
    ProgressStore,
    ZooKeeper,
    ZooKeeperProgress,
)

Hook = Callable[[str, str], None]


@dataclass(frozen=True)
class Range:
    start: int
    end: int


CODEC = MetaCodec(Range)
IDENTITY = Identity.new(Semantics.TRANSACTIONAL, "spouts.KafkaSource", {"topics": ["lines"]}, ("words",))


def metas(start: int, partitions: int = 2) -> BatchMetas[Range]:
    return BatchMetas({f"lines/{n}": Range(start, start + 10) for n in range(partitions)})


class Backend(Protocol):
    """One kind of store, and the raw znodes below it."""

    topology_id: str

    def store(self, hook: Hook | None = None) -> ProgressStore: ...
    def operator(self, hook: Hook | None = None) -> OperatorRequests: ...
    def get(self, path: str) -> bytes | None: ...
    def put(self, path: str, data: bytes) -> None: ...
    def remove(self, path: str) -> None: ...
    def requests(self) -> int: ...


class InMemory:
    def __init__(self, topology_id: str) -> None:
        self.topology_id = topology_id
        self.tree = MemoryTree()
        self.base = f"{ROOT}/{topology_id}"

    def store(self, hook: Hook | None = None) -> ProgressStore:
        return MemoryProgress(self.tree, self.topology_id, CODEC, hook=hook)

    def operator(self, hook: Hook | None = None) -> OperatorRequests:
        return OperatorRequests(self.tree, Paths(ROOT, self.topology_id), hook)

    def get(self, path: str) -> bytes | None:
        node = self.tree.get(f"{self.base}/{path}".rstrip("/"))
        return None if node is None else node.data

    def put(self, path: str, data: bytes) -> None:
        self.tree.write(f"{self.base}/{path}", data)

    def remove(self, path: str) -> None:
        self.tree.remove(f"{self.base}/{path}")

    def requests(self) -> int:
        return self.tree.requests


class Real:
    def __init__(self, topology_id: str, zk: ZooKeeper) -> None:
        self.topology_id = topology_id
        self.zk = zk
        self.base = f"{zk.root}/{topology_id}"

    def store(self, hook: Hook | None = None) -> ProgressStore:
        return ZooKeeperProgress(self.zk, self.topology_id, CODEC, hook=hook, deadline_seconds=20)

    def operator(self, hook: Hook | None = None) -> OperatorRequests:
        return OperatorRequests(self.zk.tree(), Paths(self.zk.root, self.topology_id), hook)

    def get(self, path: str) -> bytes | None:
        node = f"{self.base}/{path}".rstrip("/")
        return self.zk.client.get(node)[0] if self.zk.client.exists(node) else None

    def put(self, path: str, data: bytes) -> None:
        self.zk.client.ensure_path(f"{self.base}/{path}")
        self.zk.client.set(f"{self.base}/{path}", data)

    def remove(self, path: str) -> None:
        self.zk.client.delete(f"{self.base}/{path}", recursive=True)

    def requests(self) -> int:
        return self.zk.round_trips


def leader_of(backend: Backend, hook: Hook | None = None) -> ProgressStore:
    """Return the store of a driver that has done all that a leader does before its first write."""
    store = backend.store(hook)
    store.create_identity(IDENTITY)
    store.claim_epoch(Epoch(0))
    store.load()
    return store


def commit(store: ProgressStore, txid: int, attempt: AttemptId) -> None:
    """Commit one transactional batch."""
    store.persist(Txid(txid), metas(txid * 10))
    store.advance(Txid(txid), attempt, None)


class Fault:
    """A hook that raises once, at the given moment of the given write."""

    def __init__(self, moment: str, write: str, error: BaseException) -> None:
        self.place = (moment, write)
        self.error = error
        self.fired = 0

    def __call__(self, moment: str, write: str) -> None:
        if (moment, write) == self.place and not self.fired:
            self.fired += 1
            raise self.error
