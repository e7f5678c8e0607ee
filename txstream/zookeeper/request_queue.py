"""Operators' requests to a running topology: asked by commands, answered by the leader.

Invariants.
- Operators write `requests/asked` by compare-and-set, so that no request is lost when several ask at once.
  They claim no epoch, and write nothing else.
- An answer is one fenced multi over both znodes (see `requests`): only the newest leader answers, once, and
  what is in force changes with the answer or not at all.
- Unanswered requests survive restarts, for the next leader.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from txstream.core.errors import CorruptStateError, ServiceUnavailableError, UsageError
from txstream.zookeeper.fenced_tree import MAX_RACES, FencedTree, Hook
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.requests import Answer, Answered, Asked, Kind, Request, Requests
from txstream.zookeeper.tree import (
    Create,
    LostAnswerError,
    Operation,
    Refusal,
    RefusedError,
    SetData,
    Tree,
)

# Far below what one request to ZooKeeper carries, even with as many answers as are kept.
_MAX_WAITING_BYTES = 16 * 1024


class RequestZnodes:
    """Both znodes as they are now, each with its version, which is None if there is no such znode."""

    def __init__(self, tree: Tree, paths: Paths) -> None:
        self._tree = tree
        self._paths = paths

    def asked(self) -> tuple[Asked, int | None]:
        node = self._tree.get(self._paths.asked)
        if node is None:
            return Asked(), None
        return Asked.decode(node.data, self._paths.asked), node.version

    def answered(self) -> tuple[Answered, int | None]:
        node = self._tree.get(self._paths.answered)
        if node is None:
            return Answered(), None
        return Answered.decode(node.data, self._paths.answered), node.version

    def read(self) -> Requests:
        """Return what is in force and the requests that wait. Raises CorruptStateError."""
        self._tree.sync()
        known = {self._paths.asked, self._paths.answered}
        for name in self._tree.children(self._paths.requests) or ():
            path = f"{self._paths.requests}/{name}"
            if path not in known:
                raise CorruptStateError(
                    f"{path}: an earlier txstream wrote it and this one does not go by it, so what was asked "
                    f"there has to be asked again"
                )
        # In this order, a request that is answered between the two reads is seen as answered.
        asked, _ = self.asked()
        answered, _ = self.answered()
        waiting = [r for r in asked.requests if answered.answer_to(r.request_id) is None]
        return Requests(answered.in_force, tuple(waiting))


class LeaderRequests:
    """The leader's side, under its claim."""

    def __init__(self, fenced: FencedTree, paths: Paths) -> None:
        self._fenced = fenced
        self._paths = paths
        self._znodes = RequestZnodes(fenced.tree, paths)

    def read(self) -> Requests:
        return self._znodes.read()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._fenced.tree.watch(self._paths.asked, changed)

    def answer(self, request: Request, refused: str | None, told: Mapping[str, Any]) -> None:
        problem: RefusedError | LostAnswerError | None = None
        for failures in range(1, MAX_RACES):
            asked, asked_version = self._znodes.asked()
            answered, answered_version = self._znodes.answered()
            if answered.answer_to(request.request_id) is not None:  # only its own answer was lost
                return
            following = answered.answered(request, refused, told, datetime.now(UTC))
            operations = [_put(self._paths.answered, following.encode(), answered_version)]
            if asked.has(request.request_id):
                left = asked.without(request.request_id)
                operations.append(_put(self._paths.asked, left.encode(), asked_version))
            problem = self._fenced.try_multi("answer_request", operations)
            if problem is None:
                return
            self._fenced.verify()
            if isinstance(problem, LostAnswerError):
                self._fenced.tree.back_off(failures)
        raise ServiceUnavailableError(
            f"{self._paths.answered} keeps changing while it is written ({problem})"
        )


class OperatorRequests:
    """A command's side. `hook` is called as a store's hook is, with the write `ask_request`."""

    def __init__(self, tree: Tree, paths: Paths, hook: Hook | None = None) -> None:
        self._tree = tree
        self._paths = paths
        self._hook = hook
        self._znodes = RequestZnodes(tree, paths)

    def read(self) -> Requests:
        """Return what is in force and the requests that wait. Raises CorruptStateError."""
        return self._znodes.read()

    def ask(self, kind: Kind, body: Mapping[str, Any], by: str | None = None) -> str:
        """Store a request. Return its id, to wait for the answer. `by` says who asks, by default user@host.

        Raises UsageError if there is no such topology, ServiceUnavailableError if too much already waits for
        an answer.
        """
        request = Request(uuid.uuid4().hex, kind, body, datetime.now(UTC), by or this_operator())
        problem: RefusedError | LostAnswerError | None = None
        for failures in range(1, MAX_RACES):
            self._tree.sync()
            stored, version = self._znodes.asked()
            if problem is not None and (stored.has(request.request_id) or self._is_answered(request)):
                return request.request_id  # only its answer was lost
            data = Asked((*stored.requests, request)).encode()
            if len(data) > _MAX_WAITING_BYTES:
                raise ServiceUnavailableError(
                    f"{self._paths.asked} has no room for one more request: {len(stored.requests)} wait for "
                    f"the driver of topology {self._paths.topology_id!r}; check that it runs"
                )
            try:
                self._write(_put(self._paths.asked, data, version))
            except LostAnswerError as lost:
                problem = lost
                self._tree.back_off(failures)
            except RefusedError as refused:
                if version is None and refused.refusal is Refusal.NO_NODE:
                    raise self._missing() from refused
                problem = refused
            else:
                return request.request_id
        raise ServiceUnavailableError(f"{self._paths.asked} keeps changing while it is written ({problem})")

    def wait_answer(self, request_id: str, deadline_seconds: float) -> Answer | None:
        """Return the leader's answer; None if there is none within `deadline_seconds`."""
        deadline = time.monotonic() + deadline_seconds
        changed = threading.Event()
        stop = self._tree.watch(self._paths.answered, changed.set)
        try:
            while True:
                changed.clear()
                answer = self._znodes.answered()[0].answer_to(request_id)
                rest_seconds = deadline - time.monotonic()
                if answer is not None or rest_seconds <= 0:
                    return answer
                changed.wait(rest_seconds)
        finally:
            stop()

    def _is_answered(self, request: Request) -> bool:
        return self._znodes.answered()[0].answer_to(request.request_id) is not None

    def _write(self, operation: Operation) -> None:
        if self._hook is not None:
            self._hook("before", "ask_request")
        self._tree.multi([operation])
        if self._hook is not None:
            self._hook("after", "ask_request")

    def _missing(self) -> Exception:
        if self._tree.get(self._paths.identity) is None:
            return UsageError(
                f"topology {self._paths.topology_id!r} was not run yet, or was deleted; start it first"
            )
        return CorruptStateError(f"{self._paths.requests} is missing, so somebody has deleted it")


def _put(path: str, data: bytes, version: int | None) -> Operation:
    return Create(path, data) if version is None else SetData(path, data, version)


def this_operator() -> str:
    """Return user@host, for those who ask who it was."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
