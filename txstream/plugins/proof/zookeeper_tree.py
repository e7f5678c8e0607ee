"""The progress store in memory: the real store's rules over a tree that lives only in this process.

For tests and for simulation. Versions, atomic multis and refusals are ZooKeeper's; one test suite runs over
this tree and over a real server.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from txstream.core.batch_metas import MetaCodec
from txstream.core.waiting import WaitStoppedError
from txstream.zookeeper.fenced_tree import Hook
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.progress import ProgressStore
from txstream.zookeeper.tree import (
    Check,
    Create,
    Delete,
    LostAnswerError,
    Node,
    Operation,
    Refusal,
    RefusedError,
    SetData,
)

log = logging.getLogger(__name__)


class MemoryTree:
    """Znodes in memory, shared by any number of `MemoryProgress` (two leaders, a restarted driver).

    `requests` counts the calls. `delay_next_write` loses the next write's answer and makes the write itself
    late: it is applied, or refused because of its versions, when `deliver_late` is called.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self._lock = threading.RLock()
        self._delay = False
        self._late: list[Sequence[Operation]] = []
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self.requests = 0

    def sync(self) -> None:
        self.requests += 1

    def get(self, path: str) -> Node | None:
        with self._lock:
            self.requests += 1
            return self._nodes.get(path)

    def children(self, path: str) -> list[str] | None:
        with self._lock:
            self.requests += 1
            return _names_below(self._nodes, path) if path in self._nodes else None

    def ensure(self, path: str) -> None:
        with self._changing():
            self.requests += 1
            _ensure(self._nodes, path)

    def put_if_absent(self, path: str, data: bytes) -> Node:
        with self._changing():
            self.requests += 1
            if path not in self._nodes:
                _apply(self._nodes, Create(path, data))
            return self._nodes[path]

    def multi(self, operations: Sequence[Operation]) -> None:
        with self._changing():
            self.requests += 1
            if self._delay:
                self._delay = False
                self._late.append(tuple(operations))
                raise LostAnswerError("the write is late")
            self._apply_all(operations)

    def discard(self, path: str) -> bool:
        with self._changing():
            self.requests += 1
            if path in self._nodes and not _names_below(self._nodes, path):
                del self._nodes[path]
            return path not in self._nodes

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """As the real one, but the thread that changes `path` calls `changed`, once the change is done."""
        watch = (path, changed)
        with self._lock:
            self._watches.append(watch)
        _notify(*watch)

        def stop() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._watches.remove(watch)

        return stop

    def back_off(self, failures: int) -> None:
        """Do nothing: in memory the next try is answered."""

    # --- for tests ------------------------------------------------------------------------------------

    def delay_next_write(self) -> None:
        with self._lock:
            self._delay = True

    def deliver_late(self) -> int:
        """Apply the late writes, in order, if their versions still allow it. Return how many were applied."""
        applied = 0
        with self._changing():
            late, self._late = self._late, []
            for operations in late:
                try:
                    self._apply_all(operations)
                except RefusedError:
                    continue
                applied += 1
        return applied

    def write(self, path: str, data: bytes) -> None:
        """Set `path` whatever its version, as a person with a ZooKeeper shell would."""
        with self._changing():
            node = self._nodes.get(path)
            if node is None:
                _ensure(self._nodes, path.rpartition("/")[0] or "/")
            self._nodes[path] = Node(data, 0 if node is None else node.version + 1)

    def below(self, path: str) -> list[str]:
        """Return all paths below `path`."""
        with self._lock:
            return sorted(name for name in self._nodes if name.startswith(f"{path}/"))

    def remove(self, path: str) -> None:
        """Delete `path` and everything below it."""
        with self._changing():
            for name in [p for p in self._nodes if p == path or p.startswith(f"{path}/")]:
                del self._nodes[name]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock for a change. Afterwards, without the lock, call the watches of what changed."""
        with self._lock:
            before = [self._nodes.get(path) for path, _ in self._watches]
            yield
            after = [self._nodes.get(path) for path, _ in self._watches]
            changed = [w for w, b, a in zip(self._watches, before, after, strict=True) if b != a]
        for watch in changed:
            _notify(*watch)

    def _apply_all(self, operations: Sequence[Operation]) -> None:
        nodes = dict(self._nodes)
        for operation in operations:
            _apply(nodes, operation)
        self._nodes = nodes


class MemoryProgress(ProgressStore):
    """A topology's progress in memory. `hook` is called before and after each write and may raise."""

    def __init__(
        self,
        tree: MemoryTree,
        topology_id: str,
        codec: MetaCodec[Any],
        *,
        hook: Hook | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(_Stoppable(tree, should_stop), Paths(ROOT, topology_id), codec, hook=hook)


class _Stoppable:
    """One driver's view of a shared tree, which ends its repeats when `should_stop` returns True."""

    def __init__(self, tree: MemoryTree, should_stop: Callable[[], bool] | None) -> None:
        self._should_stop = should_stop
        self.sync = tree.sync
        self.get = tree.get
        self.children = tree.children
        self.ensure = tree.ensure
        self.put_if_absent = tree.put_if_absent
        self.multi = tree.multi
        self.discard = tree.discard
        self.watch = tree.watch

    def back_off(self, failures: int) -> None:
        if self._should_stop is not None and self._should_stop():
            raise WaitStoppedError("stopped while a write was being repeated")


def _notify(path: str, changed: Callable[[], None]) -> None:
    try:
        changed()
    except Exception:
        log.exception("the listener to changes of %s failed", path)


def _apply(nodes: dict[str, Node], operation: Operation) -> None:
    path = operation.path
    node = nodes.get(path)
    if isinstance(operation, Create):
        if node is not None:
            raise RefusedError(path, Refusal.NODE_EXISTS)
        if (path.rpartition("/")[0] or "/") not in nodes:
            raise RefusedError(path, Refusal.NO_NODE)
        nodes[path] = Node(operation.data, 0)
        return
    if node is None:
        raise RefusedError(path, Refusal.NO_NODE)
    if node.version != operation.version:
        raise RefusedError(path, Refusal.BAD_VERSION)
    match operation:
        case SetData():
            nodes[path] = Node(operation.data, node.version + 1)
        case Delete():
            if _names_below(nodes, path):
                raise RefusedError(path, Refusal.NOT_EMPTY)
            del nodes[path]
        case Check():
            pass


def _names_below(nodes: dict[str, Node], path: str) -> list[str]:
    prefix = f"{path.rstrip('/')}/"
    rests = (name[len(prefix) :] for name in nodes if name.startswith(prefix))
    return [rest for rest in rests if rest and "/" not in rest]


def _ensure(nodes: dict[str, Node], path: str) -> None:
    parts = path.strip("/").split("/") if path != "/" else []
    for depth in range(1, len(parts) + 1):
        nodes.setdefault("/" + "/".join(parts[:depth]), Node(b"", 0))
