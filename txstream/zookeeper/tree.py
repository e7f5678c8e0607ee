"""What the progress store needs of ZooKeeper, as data: operations, refusals, lost answers.

There are two trees, the real one (`kazoo_tree.KazooTree`) and one in memory (`memory.MemoryTree`). The rules
of the progress store are written once, and work over either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Check:
    """Refuse the whole write unless `path` has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Refuse the whole write if `path` exists; the new znode has version 0."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SetData:
    """Refuse the whole write unless `path` has this version; it grows by one."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Refuse the whole write unless `path` has this version and no children."""

    path: str
    version: int


Operation = Check | Create | SetData | Delete


class Node(NamedTuple):
    """A znode as read."""

    data: bytes
    version: int


class Refusal(StrEnum):
    """Why ZooKeeper refused a write. Nothing of it was applied."""

    NODE_EXISTS = "it exists already"
    NO_NODE = "it does not exist"
    BAD_VERSION = "it has another version"
    NOT_EMPTY = "it has children"


class RefusedError(Exception):
    """ZooKeeper refused the write because of `path`: nothing was applied. Never leaves this package."""

    def __init__(self, path: str, refusal: Refusal) -> None:
        super().__init__(f"{path}: {refusal}")
        self.path = path
        self.refusal = refusal


class LostAnswerError(Exception):
    """Nobody knows whether the write was or will be applied: read back, and repeat it with the same versions.
    Never leaves this package; a fault hook raises it to simulate a lost answer."""


class Tree(Protocol):
    """A session's view of ZooKeeper. Reads are repeated until answered, so only writes can lose an answer.

    Any method may raise ServiceUnavailableError (a deadline, a closed session) or WaitStoppedError.
    """

    def sync(self) -> None:
        """Make later reads at least as new as every write acknowledged to any client before this call."""

    def get(self, path: str) -> Node | None:
        """Return the znode, or None if there is none."""

    def children(self, path: str) -> list[str] | None:
        """Return the names below `path` in any order, or None if there is no such znode."""

    def ensure(self, path: str) -> None:
        """Create `path` and its parents, empty, if they do not exist."""

    def put_if_absent(self, path: str, data: bytes) -> Node:
        """Create `path` if it does not exist. Return the node that is there afterwards."""

    def multi(self, operations: Sequence[Operation]) -> None:
        """Apply all of it or nothing. Raises RefusedError or LostAnswerError."""

    def discard(self, path: str) -> bool:
        """Delete `path` if it is there and has no children. Return whether it is gone now."""

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` soon, and again after every change of `path`, which need not exist; several
        changes may cause one call, and a call may come without a change. A read after a call misses nothing.
        Returns a function that ends the watch.

        `changed` is called from another thread and must return at once; what it raises is logged.
        """

    def back_off(self, failures: int) -> None:
        """Wait a little before the write is repeated for the `failures`-th time."""
