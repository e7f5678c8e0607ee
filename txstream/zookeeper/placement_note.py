"""The znode `assignment`: where the tasks of a recent batch ran, written by the leader now and then.

It only informs operators (see `notes`), so a document that is too large is cut, and an unreadable one is
reported.
"""

from __future__ import annotations

import math
from typing import Any

from txstream.api.errors import CorruptStateError
from txstream.batch_metas import to_json
from txstream.placement import Assignment, TaskPlace
from txstream.transaction import FIRST_TXID, Txid
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import Tree
from txstream.zookeeper.znode_size import MAX_DOCUMENT_BYTES, pack, unpack
from txstream.zookeeper.znode_values import (
    parse_object,
    take,
    take_attempt,
    take_time,
)

_FIELDS = {"component", "task", "slot", "worker", "host", "seconds", "tuples"}


def read_assignment(tree: Tree, paths: Paths) -> Assignment | None:
    """Return what was written last; None before the first. Raises CorruptStateError."""
    tree.sync()
    node = tree.get(paths.assignment)
    return None if node is None else decode_assignment(node.data, paths.assignment)


def encode_assignment(assignment: Assignment) -> bytes:
    """Return the part that is stored. Beyond the size of one request, the quickest tasks are left out."""
    tasks = assignment.tasks
    while True:
        left_out = assignment.left_out + len(assignment.tasks) - len(tasks)
        document = {
            "txid": assignment.txid,
            "attempt": assignment.attempt,
            "at": assignment.at.isoformat(),
            "left_out": left_out,
            "tasks": [_task_document(place) for place in tasks],
        }
        data = pack(to_json(document).encode())
        if len(data) <= MAX_DOCUMENT_BYTES or not tasks:
            return data
        tasks = tuple(sorted(tasks, key=lambda place: -place.seconds)[: len(tasks) // 2])


def decode_assignment(data: bytes, path: str) -> Assignment:
    """The inverse of `encode_assignment`. Raises CorruptStateError, naming `path`."""
    document = parse_object(unpack(data, path), path, {"txid", "attempt", "at", "left_out", "tasks"})
    txid, left_out = (take(document, name, int, path) for name in ("txid", "left_out"))
    if txid < FIRST_TXID or left_out < 0:
        raise CorruptStateError(f"{path}: txid {txid} with {left_out} tasks left out cannot be")
    return Assignment(
        Txid(txid),
        take_attempt(document, path),
        take_time(document, "at", path),
        tuple(_task_place(task, path) for task in take(document, "tasks", list, path)),
        left_out,
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
