"""What ZooKeeper holds of a topology under test, for a test to read and to damage."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from txstream.zookeeper import ROOT, MemoryTree, Paths


class StoredProgress(MutableMapping[str, str]):
    """The nodes' texts, by path below the topology's, such as "coordinator/current". Folders hold none.

    Setting or deleting an entry changes it under the driver, as a person with a ZooKeeper shell would.
    `dict()` makes a copy that `update` restores. `clear` loses everything.
    """

    def __init__(self, tree: MemoryTree, topology_id: str) -> None:
        self._tree = tree
        self._base = Paths(ROOT, topology_id).base

    def __getitem__(self, path: str) -> str:
        node = self._tree.get(self._full(path))
        if node is None:
            raise KeyError(path)
        return node.data.decode()

    def __setitem__(self, path: str, text: str) -> None:
        self._tree.write(self._full(path), text.encode())

    def __delitem__(self, path: str) -> None:
        """Delete a node with everything below it."""
        if path not in self:
            raise KeyError(path)
        self._tree.remove(self._full(path))

    def __iter__(self) -> Iterator[str]:
        return (path.removeprefix(f"{self._base}/") for path in self._tree.below(self._base))

    def __len__(self) -> int:
        return len(self._tree.below(self._base))

    def clear(self) -> None:
        self._tree.remove(self._base)

    def _full(self, path: str) -> str:
        return f"{self._base}/{path}"
