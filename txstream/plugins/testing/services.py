"""The services of a driver in a test: ZooKeeper in memory, real databases, any runner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, Self

from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import Topology
from txstream.core.batch_metas import MetaCodec
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.commit.committer import StateTarget, state_targets
from txstream.engine.loop.workers import Workers
from txstream.engine.start.driver import RunnerFactory
from txstream.engine.start.run_services import source_context
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.settings import Settings
from txstream.state import FenceLockedError, StateBackend, open_database
from txstream.zookeeper import ROOT, OperatorRequests, Paths, ProgressStore, Requests


class MemoryServices:
    """`Services` without a server. Whatever outlives a driver is in `tree` and in the databases. `hook` is
    called before and after each write to `tree`. `in_this_process` says that bolts run here."""

    def __init__(
        self,
        topology: Topology,
        tree: MemoryTree,
        database_url: str,
        runner_factory: RunnerFactory,
        workers: Workers,
        *,
        settings: Settings | None = None,
        in_this_process: bool = True,
        hook: Callable[[str, str], None] | None = None,
        open_database: Callable[..., StateBackend] = open_database,
    ) -> None:
        self.workers = workers
        self.state = "starting"
        self.targets: Sequence[StateTarget] = ()
        self._topology = topology
        self._tree = tree
        self._database_url = database_url
        self._runner_factory = runner_factory
        self._settings = settings or Settings()
        self._in_this_process = in_this_process
        self._hook = hook
        self._open = open_database
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.close()

    def connect(self) -> Sequence[StateTarget]:
        self.targets = state_targets(
            self._topology,
            self._database_url,
            self._open_database,
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
            in_this_process=self._in_this_process,
        )
        return self.targets

    def asked_before(self) -> Requests:
        return OperatorRequests(self._tree, Paths(ROOT, self._topology.id)).read()

    def lead(self, codec: MetaCodec[Any], plan: ExecutionPlan) -> ProgressStore:
        self.store = MemoryProgress(
            self._tree,
            self._topology.id,
            codec,
            hook=self._hook,
            should_stop=lambda: self.workers.is_interrupted,
        )
        return self.store

    def context(self) -> SpoutContext:
        return source_context(self._topology, self._settings)

    def open_source(self, context: SpoutContext) -> PartitionCoordinator[Any]:
        spout = self._topology.spout.source.coordinator(context)
        self._stack.callback(spout.close)
        return spout

    def start_engine(self) -> RunnerFactory:
        return self._runner_factory

    def keep(self, runner: BatchRunner) -> BatchRunner:
        self._stack.callback(runner.close)
        return runner

    def locked(self, error: FenceLockedError) -> None:
        raise error

    def beside(self, loop: object) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def _open_database(self, url: str) -> StateBackend:
        database = self._open(
            url,
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
            message_timeout_seconds=self._topology.message_timeout_seconds,
        )
        self._stack.callback(database.close)
        database.check()
        return database


class StoredProgress(MutableMapping[str, str]):
    """The nodes' texts, by path below the topology's, such as "coordinator/current". Folders hold none.

    Setting or deleting an entry changes it under the driver, as a person with a ZooKeeper shell would.
    `dict()` makes a copy that `update` restores. `clear` loses everything.
    """

    def __init__(self, tree: MemoryTree, topology_id: str) -> None:
        self._tree = tree
        self._base = Paths(ROOT, topology_id).base

    def __getitem__(self, path: str) -> str:
        node = self._tree.get(self._full(path))
        if node is None:
            raise KeyError(path)
        return node.data.decode()

    def __setitem__(self, path: str, text: str) -> None:
        self._tree.write(self._full(path), text.encode())

    def __delitem__(self, path: str) -> None:
        """Delete a node with everything below it."""
        if path not in self:
            raise KeyError(path)
        self._tree.remove(self._full(path))

    def __iter__(self) -> Iterator[str]:
        return (path.removeprefix(f"{self._base}/") for path in self._tree.below(self._base))

    def __len__(self) -> int:
        return len(self._tree.below(self._base))

    def clear(self) -> None:
        self._tree.remove(self._base)

    def _full(self, path: str) -> str:
        return f"{self._base}/{path}"
