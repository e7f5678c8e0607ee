"""Operators' requests to a running topology: asked by commands, answered by the leader.

Invariants.
- Operators write `requests/scale` by compare-and-set, so that of several who ask at once none is lost. They
  claim no epoch, and write nothing else.
- An answer is one fenced multi over both znodes (see `scale`): only the newest leader answers, once, and the
  slots in force change with the answer or not at all.
- What nobody has answered is kept over restarts, for the next leader.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from txstream.api.errors import CorruptStateError, ServiceUnavailableError, UsageError
from txstream.zookeeper.fenced import MAX_RACES, FencedTree, Hook
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.scale import Scale, ScaleAnswer, ScaleRequest, StoredRequests, StoredScale
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


class ScaleZnodes:
    """Both znodes as they are now, each with its version, None where there is none."""

    def __init__(self, tree: Tree, paths: Paths) -> None:
        self._tree = tree
        self._paths = paths

    def requests(self) -> tuple[StoredRequests, int | None]:
        node = self._tree.get(self._paths.scale)
        if node is None:
            return StoredRequests(), None
        return StoredRequests.decode(node.data, self._paths.scale), node.version

    def scaled(self) -> tuple[StoredScale, int | None]:
        node = self._tree.get(self._paths.scaled)
        if node is None:
            return StoredScale(), None
        return StoredScale.decode(node.data, self._paths.scaled), node.version

    def read(self) -> Scale:
        """Raises CorruptStateError."""
        self._tree.sync()
        # In this order, a request that is answered between the two reads is seen as answered.
        requests, _ = self.requests()
        scaled, _ = self.scaled()
        waiting = [r for r in requests.requests if scaled.answer_to(r.request_id) is None]
        return Scale(scaled.slots, tuple(waiting))


class LeaderRequests:
    """The leader's side, under its claim."""

    def __init__(self, fenced: FencedTree, paths: Paths) -> None:
        self._fenced = fenced
        self._paths = paths
        self._znodes = ScaleZnodes(fenced.tree, paths)

    def read_scale(self) -> Scale:
        return self._znodes.read()

    def watch_scale(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._fenced.tree.watch(self._paths.scale, changed)

    def answer_scale(
        self, request: ScaleRequest, refused: str | None = None, before: Mapping[str, int] | None = None
    ) -> None:
        problem: RefusedError | LostAnswerError | None = None
        for failures in range(1, MAX_RACES):
            requests, requests_version = self._znodes.requests()
            scaled, scaled_version = self._znodes.scaled()
            if scaled.answer_to(request.request_id) is not None:  # only its own answer was lost
                return
            answered = scaled.answered(request, refused, before or {}, datetime.now(UTC))
            operations = [_put(self._paths.scaled, answered.encode(), scaled_version)]
            if requests.has(request.request_id):
                left = requests.without(request.request_id)
                operations.append(_put(self._paths.scale, left.encode(), requests_version))
            problem = self._fenced.try_multi("answer_scale", operations)
            if problem is None:
                return
            self._fenced.verify()
            if isinstance(problem, LostAnswerError):
                self._fenced.tree.back_off(failures)
        raise ServiceUnavailableError(f"{self._paths.scaled} keeps changing while it is written ({problem})")


class OperatorRequests:
    """A command's side. `hook` is called as a store's is, with the write `ask_scale`."""

    def __init__(self, tree: Tree, paths: Paths, hook: Hook | None = None) -> None:
        self._tree = tree
        self._paths = paths
        self._hook = hook
        self._znodes = ScaleZnodes(tree, paths)

    def read_scale(self) -> Scale:
        """The slots in force and the requests that wait. Raises CorruptStateError."""
        return self._znodes.read()

    def ask_scale(self, slots: Mapping[str, int]) -> str:
        """Store the wish for so many slots for each of these components; its id, to wait for the answer.

        Raises UsageError for slots that cannot be, and for a topology that is not there;
        ServiceUnavailableError when too much waits for an answer already.
        """
        request = ScaleRequest(uuid.uuid4().hex, _checked(slots), datetime.now(UTC))
        problem: RefusedError | LostAnswerError | None = None
        for failures in range(1, MAX_RACES):
            self._tree.sync()
            stored, version = self._znodes.requests()
            if problem is not None and (stored.has(request.request_id) or self._is_answered(request)):
                return request.request_id  # only its answer was lost
            data = StoredRequests((*stored.requests, request)).encode()
            if len(data) > _MAX_WAITING_BYTES:
                raise ServiceUnavailableError(
                    f"{self._paths.scale} has no room for one more request: {len(stored.requests)} wait for "
                    f"the driver of topology {self._paths.topology_id!r}; check that it runs"
                )
            try:
                self._write(_put(self._paths.scale, data, version))
            except LostAnswerError as lost:
                problem = lost
                self._tree.back_off(failures)
            except RefusedError as refused:
                if version is None and refused.refusal is Refusal.NO_NODE:
                    raise self._missing() from refused
                problem = refused
            else:
                return request.request_id
        raise ServiceUnavailableError(f"{self._paths.scale} keeps changing while it is written ({problem})")

    def wait_scale_answer(self, request_id: str, deadline_seconds: float) -> ScaleAnswer | None:
        """The leader's answer; None when there is none within `deadline_seconds`."""
        deadline = time.monotonic() + deadline_seconds
        changed = threading.Event()
        stop = self._tree.watch(self._paths.scaled, changed.set)
        try:
            while True:
                changed.clear()
                answer = self._znodes.scaled()[0].answer_to(request_id)
                rest_seconds = deadline - time.monotonic()
                if answer is not None or rest_seconds <= 0:
                    return answer
                changed.wait(rest_seconds)
        finally:
            stop()

    def _is_answered(self, request: ScaleRequest) -> bool:
        return self._znodes.scaled()[0].answer_to(request.request_id) is not None

    def _write(self, operation: Operation) -> None:
        if self._hook is not None:
            self._hook("before", "ask_scale")
        self._tree.multi([operation])
        if self._hook is not None:
            self._hook("after", "ask_scale")

    def _missing(self) -> Exception:
        if self._tree.get(self._paths.identity) is None:
            return UsageError(
                f"topology {self._paths.topology_id!r} was not run yet, or was deleted; start it first"
            )
        return CorruptStateError(f"{self._paths.requests} is missing, so somebody has deleted it")


def _put(path: str, data: bytes, version: int | None) -> Operation:
    return Create(path, data) if version is None else SetData(path, data, version)


def _checked(slots: Mapping[str, int]) -> dict[str, int]:
    if not slots:
        raise UsageError("no component was named; say which, for example count=3")
    for component, count in slots.items():
        if not component or not component.isprintable():
            raise UsageError(f"{component!a} cannot be a component's name")
        if type(count) is not int or count < 1:
            raise UsageError(f"{component}={count!r}: a component has a whole number of slots, 1 or more")
    return dict(slots)
