"""The znodes `failing` and `waiting`: why a batch is not committed, written by the leader for people.

`failing` stays after the batch is committed: readers compare its txid with the progress. `waiting` is there
only while the leader waits for something, and means nothing once a newer leader has claimed its epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from txstream.api.errors import CorruptStateError
from txstream.batch_metas import to_json
from txstream.failing_batch import FailingBatch, Wait
from txstream.transaction import FIRST_TXID, Epoch, Txid
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import Tree
from txstream.zookeeper.znode_values import StoredEpoch, parse_object, take, take_attempt, take_time


def read_failing(tree: Tree, paths: Paths) -> FailingBatch | None:
    """Return what was written last; None before the first. Raises CorruptStateError."""
    tree.sync()
    node = tree.get(paths.failing)
    return None if node is None else decode_failing(node.data, paths.failing)


def encode_failing(batch: FailingBatch) -> bytes:
    """Return the batch as it is stored."""
    document = {"txid": batch.txid, "attempt": batch.attempt, "at": batch.at.isoformat()}
    return to_json({**document, "reasons": dict(batch.reasons)}).encode()


def decode_failing(data: bytes, path: str) -> FailingBatch:
    """The inverse of `encode_failing`. Raises CorruptStateError, naming `path`."""
    document = parse_object(data, path, {"txid", "attempt", "at", "reasons"})
    txid, reasons = take(document, "txid", int, path), take(document, "reasons", dict, path)
    if txid < FIRST_TXID or not all(type(times) is int and times > 0 for times in reasons.values()):
        raise CorruptStateError(f"{path}: txid {txid} cannot have failed so: {reasons!r:.200}")
    return FailingBatch(Txid(txid), take_attempt(document, path), take_time(document, "at", path), reasons)


def read_waiting(tree: Tree, paths: Paths) -> tuple[Wait, ...]:
    """Return what the newest leader waits for, or did when it ended. Raises CorruptStateError."""
    tree.sync()
    node, epoch = tree.get(paths.waiting), tree.get(paths.epoch)
    if node is None or epoch is None:
        return ()
    written_by, waits = decode_waiting(node.data, paths.waiting)
    return waits if written_by == StoredEpoch.decode(epoch.data, paths.epoch).epoch else ()


def encode_waiting(epoch: Epoch, waits: Sequence[Wait]) -> bytes:
    """Return the waits as they are stored."""
    listed = [
        {"what": one.what, "since": one.since.isoformat(), "because": one.because, "reason": one.reason}
        for one in waits
    ]
    return to_json({"epoch": epoch, "waits": listed}).encode()


def decode_waiting(data: bytes, path: str) -> tuple[Epoch, tuple[Wait, ...]]:
    """The inverse of `encode_waiting`. Raises CorruptStateError, naming `path`."""
    document = parse_object(data, path, {"epoch", "waits"})
    found = []
    for one in take(document, "waits", list, path):
        if not isinstance(one, dict) or set(one) != {"what", "since", "because", "reason"}:
            raise CorruptStateError(f"{path}: expected what is waited for, found {one!r:.200}")
        what, because, reason = (take(one, name, str, path) for name in ("what", "because", "reason"))
        found.append(Wait(what, take_time(one, "since", path), because, reason))
    return Epoch(take(document, "epoch", int, path)), tuple(found)
