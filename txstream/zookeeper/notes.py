"""Notes: znodes that only inform operators, written by the leader now and then. No batch depends on them.

Invariants.
- A write whose answer was lost is not repeated. A leader that was succeeded cannot write.
- A note that is too large is cut; one that cannot be read is a CorruptStateError with its path.
- `failing` and `failing_attempts` stay after the batch is committed: readers compare the txid with the
  progress. `waiting` is there only while the leader waits for something, and means nothing once a newer
  leader has claimed its epoch.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from txstream.core.batch_metas import to_json
from txstream.core.errors import CorruptStateError
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.placement import Assignment, EdgeTuples, TaskPlace
from txstream.core.transaction import FIRST_TXID, Epoch, Txid
from txstream.zookeeper.fenced_tree import FencedTree
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import Create, Delete, LostAnswerError, Operation, SetData
from txstream.zookeeper.znode_values import (
    MAX_DOCUMENT_BYTES,
    StoredEpoch,
    pack,
    parse_object,
    take,
    take_attempt,
    take_time,
    unpack,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES = 3
_LONGEST_ATTEMPTS = 64 * 1024  # bytes, as they are stored
_WITHOUT_RANGES = ("attempt", "error", "failed_at", "traceback", "same_traceback")
_MOST_AWAY = 100
_FIELDS = {"component", "task", "slot", "worker", "host", "seconds", "tuples"}


@dataclass(frozen=True)
class Note(Generic[T]):
    """One kind of note, in the znode `name`. `encode` gets the leader's epoch too, and returns None for a
    note that is to be deleted. `decode` gets the znode's path, and returns None beside a value that stands
    whoever leads, otherwise the epoch of the only leader for whom it does."""

    name: str
    encode: Callable[[T, Epoch], bytes | None]
    decode: Callable[[bytes, str], tuple[Epoch | None, T]]


class Notes:
    """The notes of one topology. After its first write, a note costs one round trip."""

    def __init__(self, fenced: FencedTree, paths: Paths, lock: threading.RLock) -> None:
        self._fenced = fenced
        self._paths = paths
        self._lock = lock
        self._versions: dict[str, int] = {}

    def put(self, note: Note[T], value: T) -> None:
        """Store `value`, under the leader's claim. Raises FencedError, ServiceUnavailableError, and
        CorruptStateError if the topology was deleted."""
        with self._lock:
            self._write(note.name, note.encode(value, self._fenced.require_claim()[0].epoch))

    def get(self, note: Note[T]) -> T | None:
        """Return what a leader wrote last; None if there is nothing. Raises CorruptStateError."""
        with self._lock:
            tree, path = self._fenced.tree, self._paths.note(note.name)
            tree.sync()
            node = tree.get(path)
            if node is None:
                return None
            written_by, value = note.decode(node.data, path)
            if written_by is None:
                return value
            epoch = tree.get(self._paths.epoch)
            led_by = None if epoch is None else StoredEpoch.decode(epoch.data, self._paths.epoch).epoch
            return value if led_by == written_by else None

    def _write(self, name: str, data: bytes | None) -> None:
        path = self._paths.note(name)
        for _ in range(_TRIES):
            operation = self._operation(path, data)
            if operation is None:
                return
            problem = self._fenced.try_multi(f"write_{name}", [operation])
            version = self._versions.pop(path, -1)
            if problem is None:
                if data is not None:
                    self._versions[path] = version + 1
                return
            if isinstance(problem, LostAnswerError) and data is not None:
                log.info("whether %s was written is not known: %s", path, problem)
                return
            self._fenced.verify()
        log.warning("%s was not written, because something else writes there", path)

    def _operation(self, path: str, data: bytes | None) -> Operation | None:
        """Return the write, if there is anything to do."""
        if path not in self._versions:
            node = self._fenced.tree.get(path)
            if node is None:
                return None if data is None else Create(path, data)
            self._versions[path] = node.version
        version = self._versions[path]
        return Delete(path, version) if data is None else SetData(path, data, version)


def _encode_assignment(assignment: Assignment, _: Epoch) -> bytes:
    """Return the part that is stored. Beyond the size of one request, the quickest tasks are left out."""
    tasks = assignment.tasks
    while True:
        left_out = assignment.left_out + len(assignment.tasks) - len(tasks)
        document = {
            "txid": assignment.txid,
            "attempt": assignment.attempt,
            "at": assignment.at.isoformat(),
            "left_out": left_out,
            "by_residents": assignment.by_residents,
            "tasks": [_task_document(place) for place in tasks],
        }
        data = pack(to_json(document).encode())
        if len(data) <= MAX_DOCUMENT_BYTES or not tasks:
            return data
        tasks = tuple(sorted(tasks, key=lambda place: -place.seconds)[: len(tasks) // 2])


def _decode_assignment(data: bytes, path: str) -> tuple[None, Assignment]:
    fields = {"txid", "attempt", "at", "left_out", "by_residents", "tasks"}
    document = {"by_residents": False, **parse_object(unpack(data, path), path)}
    if set(document) != fields:
        raise CorruptStateError(
            f"{path}: expected the fields {', '.join(sorted(fields))}, found {', '.join(sorted(document))}"
        )
    txid, left_out = (take(document, name, int, path) for name in ("txid", "left_out"))
    if txid < FIRST_TXID or left_out < 0:
        raise CorruptStateError(f"{path}: txid {txid} with {left_out} tasks left out cannot be")
    return None, Assignment(
        Txid(txid),
        take_attempt(document, path),
        take_time(document, "at", path),
        tuple(_task_place(task, path) for task in take(document, "tasks", list, path)),
        left_out,
        by_residents=take(document, "by_residents", bool, path),
    )


def _task_document(place: TaskPlace) -> dict[str, Any]:
    return {
        "component": place.component,
        "task": place.task,
        "slot": place.slot,
        "worker": place.worker,
        "host": place.host,
        "seconds": round(float(place.seconds), 6),
        "tuples": place.tuples,
    }


def _task_place(document: Any, path: str) -> TaskPlace:
    if not isinstance(document, dict) or set(document) != _FIELDS:
        raise CorruptStateError(
            f"{path}: expected a task with the fields {', '.join(sorted(_FIELDS))}, found {document!r:.200}"
        )
    place = TaskPlace(
        take(document, "component", str, path),
        take(document, "task", int, path),
        take(document, "slot", int, path),
        take(document, "worker", str, path),
        take(document, "host", str, path),
        take(document, "seconds", float, path),
        take(document, "tuples", int, path),
    )
    if min(place.task, place.slot, place.tuples, place.seconds) < 0 or not math.isfinite(place.seconds):
        raise CorruptStateError(f"{path}: a task cannot have these numbers: {document!r:.200}")
    return place


def _encode_failing(batch: FailingBatch, _: Epoch) -> bytes:
    document = {"txid": batch.txid, "attempt": batch.attempt, "at": batch.at.isoformat()}
    return to_json({**document, "reasons": dict(batch.reasons)}).encode()


def _decode_failing(data: bytes, path: str) -> tuple[None, FailingBatch]:
    document = parse_object(data, path, {"txid", "attempt", "at", "reasons"})
    txid, reasons = take(document, "txid", int, path), take(document, "reasons", dict, path)
    if txid < FIRST_TXID or not all(type(times) is int and times > 0 for times in reasons.values()):
        raise CorruptStateError(f"{path}: txid {txid} cannot have failed so: {reasons!r:.200}")
    return None, FailingBatch(
        Txid(txid), take_attempt(document, path), take_time(document, "at", path), reasons
    )


def _encode_failing_attempts(batch: FailingBatch, _: Epoch) -> bytes:
    """Return the note. Ranges, which a source may make as long as it likes, are left out where they are too
    long; what else there is has a bound."""
    metas, attempts = batch.metas, list(batch.attempts)
    while True:
        document = {"txid": batch.txid, "attempt": batch.attempt, "at": batch.at.isoformat()}
        document |= {"reasons": dict(batch.reasons), "metas": metas, "attempts": attempts}
        data = pack(to_json(document).encode())
        if len(data) <= _LONGEST_ATTEMPTS or not metas:
            return data
        metas = {}
        attempts = [{name: one[name] for name in _WITHOUT_RANGES if name in one} for one in attempts]


def _decode_failing_attempts(data: bytes, path: str) -> tuple[None, FailingBatch]:
    document = parse_object(unpack(data, path), path)
    metas, attempts = take(document, "metas", dict, path), take(document, "attempts", list, path)
    if not all(isinstance(one, dict) for one in attempts):
        raise CorruptStateError(f"{path}: expected failed attempts, found {attempts!r:.200}")
    failing = {name: value for name, value in document.items() if name not in ("metas", "attempts")}
    _, batch = _decode_failing(to_json(failing).encode(), path)
    return None, replace(batch, metas=metas, attempts=tuple(attempts))


def _encode_waiting(waits: Sequence[Wait], epoch: Epoch) -> bytes | None:
    if not waits:
        return None
    listed = [
        {"what": one.what, "since": one.since.isoformat(), "because": one.because, "reason": one.reason}
        for one in waits
    ]
    return to_json({"epoch": epoch, "waits": listed}).encode()


def _decode_waiting(data: bytes, path: str) -> tuple[Epoch, Sequence[Wait]]:
    document = parse_object(data, path, {"epoch", "waits"})
    found = []
    for one in take(document, "waits", list, path):
        if not isinstance(one, dict) or set(one) != {"what", "since", "because", "reason"}:
            raise CorruptStateError(f"{path}: expected what is waited for, found {one!r:.200}")
        what, because, reason = (take(one, name, str, path) for name in ("what", "because", "reason"))
        found.append(Wait(what, take_time(one, "since", path), because, reason))
    return Epoch(take(document, "epoch", int, path)), tuple(found)


def _encode_away(since: Mapping[str, datetime], epoch: Epoch) -> bytes | None:
    if not since:
        return None
    first = sorted(since.items(), key=lambda one: one[1])[:_MOST_AWAY]
    return to_json({"epoch": epoch, "since": {name: at.isoformat() for name, at in first}}).encode()


def _decode_away(data: bytes, path: str) -> tuple[Epoch, Mapping[str, datetime]]:
    document = parse_object(data, path, {"epoch", "since"})
    since = take(document, "since", dict, path)
    return Epoch(take(document, "epoch", int, path)), {name: take_time(since, name, path) for name in since}


def _take_sent(data: bytes, path: str) -> dict[str, Txid]:
    found = take(parse_object(data, path, {"sent"}), "sent", dict, path)
    return {table: Txid(take(found, table, int, path)) for table in found}


def _decode_ended(data: bytes, path: str) -> tuple[None, Epoch]:
    return None, Epoch(take(parse_object(data, path, {"epoch"}), "epoch", int, path))


def _decode_edges(data: bytes, path: str) -> tuple[None, Assignment]:
    document = parse_object(data, path, {"txid", "attempt", "at", "edges"})
    edges: list[EdgeTuples] = []
    for one in take(document, "edges", list, path):
        if not (isinstance(one, list) and _is_edge(one)):
            raise CorruptStateError(f"{path}: expected what passed on an edge, found {one!r:.200}")
        edges.append(EdgeTuples(*one))
    return None, Assignment(
        Txid(take(document, "txid", int, path)),
        take_attempt(document, path),
        take_time(document, "at", path),
        (),
        edges=tuple(edges),
    )


def _is_edge(row: list[Any]) -> bool:
    """Are these an edge's names, its tuples and its seconds? Drivers of before wrote no seconds."""
    return (
        len(row) in (4, 6)
        and [*map(type, row[:4])] == [str, str, str, int]
        and all(seconds is None or type(seconds) is float for seconds in row[4:])
        and all(number is None or 0 <= number < math.inf for number in row[3:])
    )


ASSIGNMENT = Note("assignment", _encode_assignment, _decode_assignment)
"""Where the tasks of a recent batch ran."""
AWAY = Note[Mapping[str, datetime]]("away", _encode_away, _decode_away)
"""Since when the leader plans without partitions that cannot be read; without any, the znode is deleted."""
EDGES = Note[Assignment](
    "edges",
    lambda seen, _: to_json(
        {"txid": seen.txid, "attempt": seen.attempt, "at": seen.at.isoformat(), "edges": list(seen.edges)}
    ).encode(),
    _decode_edges,
)
"""How many tuples passed between the components of that batch, and in what time; its tasks are in
`ASSIGNMENT`, which drivers of before read, too."""
ENDED = Note[Epoch | None]("ended", lambda _, epoch: to_json({"epoch": epoch}).encode(), _decode_ended)
"""The epoch of the last leader that ended well, which writes None."""
FAILING = Note("failing", _encode_failing, _decode_failing)
"""Why a batch fails."""
FAILING_ATTEMPTS = Note("failing_attempts", _encode_failing_attempts, _decode_failing_attempts)
"""The same, with its latest attempts; `FAILING` is what drivers of before read, too."""
WAITING = Note("waiting", _encode_waiting, _decode_waiting)
"""What the leader waits for, or did when it ended; without waits, the znode is deleted."""
SENT = Note[Mapping[str, Txid]](
    "results_sent",
    lambda sent, _: to_json({"sent": dict(sent)}).encode(),
    lambda data, path: (None, _take_sent(data, path)),
)
"""By a table whose rows leave for elsewhere, the last txid whose rows are all there; 0 before the first."""
TREES = Note[Mapping[str, Any]](
    "trees",
    lambda document, _: to_json(document).encode(),
    lambda data, path: (None, parse_object(data, path)),
)
"""How a topology of tracked tuples is doing."""
