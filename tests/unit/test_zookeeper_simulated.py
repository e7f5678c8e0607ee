"""Drivers that crash, lose answers, wake up late and overlap, over one tree; seeded and deterministic.

The oracle reads the raw znodes after every write. It knows nothing of the store's own bookkeeping.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import FencedError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid, attempt_id, epoch_of
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.zookeeper import Identity, LostAnswerError

BASE = "/txstream/topologies/sim"
LAST_TXID = 6


@dataclass(frozen=True)
class Range:
    start: int
    end: int


CODEC = MetaCodec(Range)


class CrashError(Exception):
    """The driver is gone."""


@dataclass
class Oracle:
    """What must hold after every write, whoever made it."""

    tree: MemoryTree
    transactional: bool
    current: int = 1
    epochs: list[int] = field(default_factory=list)
    plans: dict[int, str] = field(default_factory=dict)
    committed: dict[int, AttemptId] = field(default_factory=dict)

    def check(self) -> None:
        node = self.tree.get(f"{BASE}/coordinator/current")
        if node is None:
            return
        document = json.loads(node.data)
        assert document["txid"] in (self.current, self.current + 1), "current jumped"
        if document["txid"] == self.current + 1:
            self.committed[self.current] = AttemptId(document["attempt"])
        self.current = document["txid"]
        before = self.committed.get(self.current - 1)
        assert document["attempt"] == before, "a commit changed hands after it was stored"
        epochs = [epoch_of(self.committed[txid]) for txid in sorted(self.committed)]
        assert epochs == sorted(epochs), "an older leader committed after a newer one"
        names = sorted(int(name) for name in self.tree.children(f"{BASE}/coordinator/meta") or [])
        first = max(1, self.current - 1)
        assert names == list(range(first, first + len(names)))
        assert self.current == 1 or names, "the metas of the last commit are gone"
        for txid in names:
            meta = self.tree.get(f"{BASE}/coordinator/meta/{txid}")
            assert meta is not None
            plan = json.dumps(json.loads(meta.data)["metas"])
            assert self.plans.setdefault(txid, plan) == plan, f"the stored plan of txid {txid} changed"


@dataclass
class World:
    seed: int
    transactional: bool
    tree: MemoryTree = field(default_factory=MemoryTree)
    lost: int = 0
    crashes: int = 0
    fenced: int = 0
    adopted: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.oracle = Oracle(self.tree, self.transactional)
        self.zombies: list[tuple[Epoch, Callable[[], None]]] = []

    def hook(self, moment: str, write: str) -> None:
        if moment == "before":
            self.wake_one()
            if self.rng.random() < 0.2:
                self.tree.deliver_late()
            if self.rng.random() < 0.1:
                self.tree.delay_next_write()
        self.oracle.check()
        fate = self.rng.random()
        if fate < 0.06:
            self.crashes += 1
            raise CrashError
        if fate < 0.2:
            self.lost += 1
            raise LostAnswerError

    def wake_one(self) -> None:
        """Let a driver that slept through its successor's claim do its next write."""
        present = MemoryProgress(self.tree, "sim", CODEC).read_epoch()
        succeeded = [zombie for zombie in self.zombies if zombie[0] < present]
        if succeeded and self.rng.random() < 0.3:
            zombie = self.rng.choice(succeeded)
            self.zombies.remove(zombie)
            with pytest.raises(FencedError):
                zombie[1]()
            self.fenced += 1

    def run(self) -> None:
        for _ in range(400):
            if self.oracle.current > LAST_TXID:
                return
            try:
                self.drive()
            except CrashError:
                continue
        pytest.fail(f"seed {self.seed}: no progress")

    def drive(self) -> None:
        asleep = threading.Event()

        def hook(moment: str, write: str) -> None:
            if not asleep.is_set():
                self.hook(moment, write)

        store = MemoryProgress(self.tree, "sim", CODEC, hook=hook)
        semantics = Semantics.TRANSACTIONAL if self.transactional else Semantics.OPAQUE
        store.create_identity(Identity.new(semantics, "spout", {}, ()))
        before = store.read_epoch()
        epoch = store.claim_epoch(Epoch(0))
        assert epoch > before
        assert epoch not in self.oracle.epochs, "two leaders got one epoch"
        self.oracle.epochs.append(epoch)
        progress = store.load()
        assert progress.current == self.oracle.current
        assert progress.committed_by == self.oracle.committed.get(progress.current - 1)
        current, stored = progress.current, {txid: b.metas for txid, b in progress.batches.items()}
        sequence = 0
        while current <= LAST_TXID:
            sequence += 1
            attempt = attempt_id(epoch, sequence)
            metas = BatchMetas({"a/0": Range(current, self.rng.randrange(1000))})
            if self.rng.random() < 0.08:
                # Falls asleep here; the next driver takes over, and this one wakes up later.
                write = self.next_write(store, current, attempt, metas, current in stored)
                self.zombies.append((epoch, write))
                asleep.set()  # no more faults for it: it only has to be refused
                return
            if self.transactional:
                kept = store.persist(current, metas)
                if current in stored:
                    assert kept == stored[current]
                    self.adopted += 1
                store.advance(current, attempt, None)
            else:
                store.advance(current, attempt, metas)
            self.oracle.check()
            assert self.oracle.committed[current] == attempt, "an acknowledged commit is not the stored one"
            current = Txid(current + 1)

    def next_write(
        self,
        store: MemoryProgress,
        current: Txid,
        attempt: AttemptId,
        metas: BatchMetas[Range],
        persisted: bool,
    ) -> Callable[[], None]:
        def write() -> None:
            if self.transactional and not persisted:
                store.persist(current, metas)
            else:
                store.advance(current, attempt, None if self.transactional else metas)

        return write


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "opaque"])
def test_whatever_fails_the_order_holds(transactional: bool) -> None:
    worlds = [World(seed, transactional) for seed in range(150)]
    for world in worlds:
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {world.seed}: {error}") from error
    # The faults must have happened, or this proves nothing.
    assert sum(world.lost for world in worlds) > 300
    assert sum(world.crashes for world in worlds) > 100
    assert sum(world.fenced for world in worlds) > 50
    assert sum(world.adopted for world in worlds) > 20 or not transactional
