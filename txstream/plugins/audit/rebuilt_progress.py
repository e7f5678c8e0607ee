"""Writes a topology's progress again, as its ledgers have it: what `txstream recover` does.

Invariant: everything changes in one multi under the epoch that this driver has claimed, and every operation
carries the version that was read. Reading back settles what became of a lost answer.
"""

from __future__ import annotations

from typing import Any

from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import CorruptStateError
from txstream.zookeeper.fenced_tree import MAX_RACES, FencedTree
from txstream.zookeeper.identity import Identity
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import Create, Delete, LostAnswerError, Operation, SetData, Tree
from txstream.zookeeper.znode_values import Progress, StoredCurrent


def rebuild(
    codec: MetaCodec[Any], identity: Identity, progress: Progress, fenced: FencedTree, paths: Paths
) -> None:
    """Make `identity` and `progress` all that is stored, beside what operators asked. Repeated until it is
    known to be stored. Raises FencedError."""
    wanted = {
        paths.identity: identity.encode(),
        paths.current: StoredCurrent(progress.current, progress.committed_by).encode(),
        **{paths.meta(txid): batch.encode(codec) for txid, batch in progress.batches.items()},
    }
    problem: Exception | None = None
    for failures in range(1, MAX_RACES):
        fenced.verify()
        operations = _operations(fenced.tree, paths, wanted)
        if not operations:
            return
        problem = fenced.try_multi("rebuild", operations)
        if isinstance(problem, LostAnswerError):
            fenced.tree.back_off(failures)
    raise CorruptStateError(
        f"{paths.base} keeps changing while it is rebuilt ({problem}): something other than txstream writes "
        "there"
    )


def _operations(tree: Tree, paths: Paths, wanted: dict[str, bytes]) -> list[Operation]:
    """Return the operations that turn the present tree into the wanted one, parents first."""
    operations: list[Operation] = [
        Create(folder, b"")
        for folder in (paths.coordinator, paths.metas, paths.requests)
        if tree.get(folder) is None
    ]
    for path, data in wanted.items():
        node = tree.get(path)
        if node is None:
            operations.append(Create(path, data))
        elif node.data != data:
            operations.append(SetData(path, data, node.version))
    for name in tree.children(paths.metas) or []:
        path = f"{paths.metas}/{name}"
        node = None if path in wanted else tree.get(path)
        if node is not None:
            operations.append(Delete(path, node.version))
    return operations
