"""The znode `failing`: why the attempts of a batch fail, written by the leader when one has failed.

It stays after the batch is committed: readers compare its txid with the progress.
"""

from __future__ import annotations

from txstream.api.errors import CorruptStateError
from txstream.failing import FailingBatch
from txstream.metas import to_json
from txstream.transaction import FIRST_TXID, Txid
from txstream.zookeeper.documents import parse_object, take, take_attempt, take_time
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import Tree


def read_failing(tree: Tree, paths: Paths) -> FailingBatch | None:
    """What was written last; None before the first. Raises CorruptStateError."""
    tree.sync()
    node = tree.get(paths.failing)
    return None if node is None else decode_failing(node.data, paths.failing)


def encode_failing(batch: FailingBatch) -> bytes:
    """What is stored of it."""
    document = {"txid": batch.txid, "attempt": batch.attempt, "at": batch.at.isoformat()}
    return to_json({**document, "reasons": dict(batch.reasons)}).encode()


def decode_failing(data: bytes, path: str) -> FailingBatch:
    """The inverse of `encode_failing`. Raises CorruptStateError, naming `path`."""
    document = parse_object(data, path, {"txid", "attempt", "at", "reasons"})
    txid, reasons = take(document, "txid", int, path), take(document, "reasons", dict, path)
    if txid < FIRST_TXID or not all(type(times) is int and times > 0 for times in reasons.values()):
        raise CorruptStateError(f"{path}: txid {txid} cannot have failed so: {reasons!r:.200}")
    return FailingBatch(Txid(txid), take_attempt(document, path), take_time(document, "at", path), reasons)
