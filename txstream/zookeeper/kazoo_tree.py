"""The real tree: turns operations into kazoo's requests and kazoo's answers into refusals; watches that last.

Invariants of a watch.
- `changed` is called after the watch was set again, never before, so that a read in `changed` sees every
  change that came while no watch was set.
- ZooKeeper forgets a watch once it has fired, and kazoo forgets all when the connection is cut. So a watch is
  set again after each firing and after each new connection.
- All of this runs in kazoo's own threads, so nothing here blocks or raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, KazooState

from txstream.core.errors import MetaTooLargeError, ServiceUnavailableError
from txstream.core.waiting import Waiting
from txstream.zookeeper.tree import (
    Check,
    Create,
    LostAnswerError,
    Node,
    Operation,
    Refusal,
    RefusedError,
    SetData,
)

log = logging.getLogger(__name__)


class KazooWatch:
    """Calls `changed` once when it is set, and after every change of `path`, which need not exist."""

    def __init__(self, client: Any, path: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._path = path
        self._changed = changed
        self._stopped = False

    def start(self) -> None:
        self._client.add_listener(self._state_changed)
        self._set()

    def stop(self) -> None:
        """Stop calling. The server forgets the watch at the znode's next change, or with our session."""
        self._stopped = True
        self._client.remove_listener(self._state_changed)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._set()

    def _fired(self, event: Any) -> None:
        # An event without a type says that the connection was cut; the next connection sets the watch.
        if event.type != EventType.NONE:
            self._set()

    def _set(self) -> None:
        if not self._stopped:
            # Setting a watcher twice does no harm: to kazoo it is one, because bound methods compare equal.
            self._client.exists_async(self._path, self._fired).rawlink(self._was_set)

    def _was_set(self, result: Any) -> None:
        # If it failed, the connection was cut or closed.
        if self._stopped or not result.successful():
            return
        try:
            self._changed()
        except Exception:
            log.exception("the listener to changes of %s failed", self._path)


REFUSALS = {
    NodeExistsError: Refusal.NODE_EXISTS,
    NoNodeError: Refusal.NO_NODE,
    BadVersionError: Refusal.BAD_VERSION,
    NotEmptyError: Refusal.NOT_EMPTY,
}

# Hands a request to kazoo, and returns its asynchronous result.
Send = Callable[[], Any]


class Session(Protocol):
    """What the tree needs of `client.ZooKeeper`."""

    client: Any
    root: str
    round_trips: int

    def request(self, send: Send, patience: Waiting) -> Any: ...
    def read(self, send: Send, patience: Waiting) -> Any: ...
    def back_off(self, failures: int, patience: Waiting) -> None: ...


SMALL_BYTES = 32 << 10
"""A request of fewer bytes is taken by every server, whatever its `jute.maxbuffer` in practice."""
MOST_TRIES = 5


class KazooTree:
    """A `Tree` over a session. With `counted`, its requests count as the session's round trips.

    A server cuts the connection at a request that is larger than its `jute.maxbuffer`, which looks like an
    outage. So a large write that is lost again and again, while reads between are answered, is told as such.
    """

    def __init__(self, session: Session, patience: Waiting, *, counted: bool = False) -> None:
        self._session = session
        self._client = session.client
        self._patience = patience
        self._counted = counted
        self._tries_lost = 0
        self._is_answered = True  # since the last large write was lost

    def sync(self) -> None:
        self._read(lambda: self._client.sync_async(self._session.root))

    def get(self, path: str) -> Node | None:
        try:
            data, stat = self._read(lambda: self._client.get_async(path))
        except NoNodeError:
            return None
        return Node(data, stat.version)

    def children(self, path: str) -> list[str] | None:
        try:
            return list(self._read(lambda: self._client.get_children_async(path)))
        except NoNodeError:
            return None

    def ensure(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self.put_if_absent("/" + "/".join(parts[:depth]), b"")

    def put_if_absent(self, path: str, data: bytes) -> Node:
        while True:
            # Read first: a client without the right to create it may still find it.
            node = self.get(path)
            if node is not None:
                return node
            try:
                self._read(lambda: self._client.create_async(path, data))
            except NodeExistsError:
                continue

    def multi(self, operations: Sequence[Operation]) -> None:
        def send() -> Any:
            transaction = self._client.transaction()
            for operation in operations:
                _add(transaction, operation)
            return transaction.commit_async()

        self._count()
        try:
            results = self._session.request(send, self._patience)
        except LostAnswerError as lost:
            self._refuse_too_large(_size(operations), lost)
            raise
        self._tries_lost = 0
        raise_refusal(results, operations)

    def _refuse_too_large(self, size: int, lost: LostAnswerError) -> None:
        """Raise MetaTooLargeError if the servers take no write of this size, as far as can be known."""
        if size < SMALL_BYTES or not self._is_answered:
            return
        self._tries_lost += 1
        self._is_answered = False
        if self._tries_lost == MOST_TRIES:
            raise MetaTooLargeError(
                f"ZooKeeper cuts the connection at each of {MOST_TRIES} tries of a request of {size:,} "
                "bytes, and answers smaller ones: its jute.maxbuffer is below that. Raise it on every server "
                "(SERVER_JVMFLAGS=-Djute.maxbuffer=4194304), or read fewer partitions in one topology"
            ) from lost

    def discard(self, path: str) -> bool:
        try:
            self._read(lambda: self._client.delete_async(path))
        except NotEmptyError:
            return False
        except NoNodeError:
            return True
        return True

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        watch = KazooWatch(self._client, path, changed)
        watch.start()
        return watch.stop

    def back_off(self, failures: int) -> None:
        self._session.back_off(failures, self._patience)

    def _read(self, send: Send) -> Any:
        self._count()
        answer = self._session.read(send, self._patience)
        self._is_answered = True
        return answer

    def _count(self) -> None:
        if self._counted:
            self._session.round_trips += 1


def raise_refusal(results: Sequence[Any], operations: Sequence[Operation]) -> None:
    """Raise the exceptions in a kazoo transaction's results, which `commit` returns instead of raising."""
    failures = [(r, o) for r, o in zip(results, operations, strict=False) if isinstance(r, Exception)]
    if not failures:
        if len(results) != len(operations):
            raise LostAnswerError(f"{len(operations)} operations were sent, {len(results)} were answered")
        return
    # The operations around the refused one carry placeholders that only say "not this one".
    causes = [f for f in failures if not isinstance(f[0], (RolledBackError, RuntimeInconsistency))]
    cause, operation = (causes or failures)[0]
    for kind, refusal in REFUSALS.items():
        if isinstance(cause, kind):
            raise RefusedError(operation.path, refusal) from cause
    raise ServiceUnavailableError(
        f"ZooKeeper refuses a write to {operation.path}: {type(cause).__name__} {cause}"
    ) from cause


def _size(operations: Sequence[Operation]) -> int:
    return sum(len(one.path) + len(getattr(one, "data", b"")) for one in operations)


def _add(transaction: Any, operation: Operation) -> None:
    match operation:
        case Check():
            transaction.check(operation.path, operation.version)
        case Create():
            transaction.create(operation.path, operation.data)
        case SetData():
            transaction.set_data(operation.path, operation.data, operation.version)
        case _:
            transaction.delete(operation.path, operation.version)
