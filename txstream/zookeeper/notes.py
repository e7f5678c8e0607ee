"""Znodes that only inform operators, written by the leader now and then: no decision depends on them.

So a write whose answer was lost is not repeated. A leader that was succeeded cannot write them.
"""

from __future__ import annotations

import logging

from txstream.zookeeper.fenced_tree import FencedTree
from txstream.zookeeper.tree import Create, Delete, LostAnswerError, Operation, SetData

log = logging.getLogger(__name__)

_TRIES = 3


class NoteWriter:
    """Writes one such znode, under the leader's claim. After the first, a write is one round trip."""

    def __init__(self, fenced: FencedTree, path: str, name: str) -> None:
        self._fenced = fenced
        self._path = path
        self._name = name
        self._version: int | None = None

    def write(self, data: bytes | None) -> None:
        """Store `data`; None deletes the znode. Raises FencedError, ServiceUnavailableError."""
        for _ in range(_TRIES):
            operation, version = self._operation(data)
            if operation is None:
                return
            problem = self._fenced.try_multi(self._name, [operation])
            if problem is None:
                self._version = version
                return
            self._version = None
            if isinstance(problem, LostAnswerError) and data is not None:
                log.info("whether %s was written is not known: %s", self._path, problem)
                return
            self._fenced.verify()
        log.warning("%s was not written, because something else writes there", self._path)

    def _operation(self, data: bytes | None) -> tuple[Operation | None, int | None]:
        """Return the write, if there is anything to do, and the version that the znode has after it."""
        if self._version is None:
            node = self._fenced.tree.get(self._path)
            if node is None:
                return (None, None) if data is None else (Create(self._path, data), 0)
            self._version = node.version
        if data is None:
            return Delete(self._path, self._version), None
        return SetData(self._path, data, self._version), self._version + 1
