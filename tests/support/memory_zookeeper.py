"""A ZooKeeper in memory for commands: the real class over a tree in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from support.zookeeper_backends import CODEC, IDENTITY
from txstream.core.transaction import Epoch
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.settings import Settings
from txstream.zookeeper import ROOT, Paths, ZooKeeper
from txstream.zookeeper.candidates import candidate_data


class MemoryZooKeeper(ZooKeeper):
    """A client that is never started: every request goes to `memory`."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.memory = MemoryTree()

    def tree(self, patience: object = None) -> Any:
        return self.memory

    @contextlib.contextmanager
    def opened(self, settings: Settings) -> Iterator[ZooKeeper]:
        """Stand in for `open_zookeeper`."""
        settings.require_zookeeper()
        yield self

    def run_topology(
        self, topology_id: str, *, driver: bool = True, uuid: str = IDENTITY.uuid
    ) -> MemoryProgress:
        """Pretend that it runs, or without `driver` that nobody leads any more; return the leader's store."""
        if driver:
            path = f"{Paths(ROOT, topology_id).leader}/{'a' * 32}-0000000001"
            self.memory.write(path, candidate_data())
        store = MemoryProgress(self.memory, topology_id, CODEC)
        store.create_identity(replace(IDENTITY, uuid=uuid))
        store.claim_epoch(Epoch(0))
        store.load()
        return store
