"""What a fork is: a topology beside another, over shadow tables, as the znode `fork` below its root says.

Invariants. The znode is the first thing that a fork has, and goes with everything else of it. A fork is there
once it has an identity too: until then it is half made, everything made carries `uuid`, and the same command
makes it again. A state table `t` of the original is `t__NEW` in the fork NEW, whatever the original is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from txstream.cli.beside import shadow as shadow
from txstream.core.batch_metas import to_json
from txstream.core.transaction import Txid
from txstream.core.wording import counted
from txstream.inspect.ledgers import part_of
from txstream.inspect.plain_metas import PlainCodec, position, positions
from txstream.inspect.standing import Remark
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.znode_values import parse_object, take

if TYPE_CHECKING:
    from txstream.inspect.snapshot import Snapshot
    from txstream.state import BatchRecord
    from txstream.zookeeper import Progress, ZooKeeper

ZNODE: Final = "fork"


@dataclass(frozen=True, slots=True)
class Fork:
    """The topology `name`, of uuid `uuid`, is a fork of the topology `of`, whose uuid was `of_uuid` then.

    `tables` has the shadow table of each state table of the original, by its name; a state of newer code that
    the original has not is none of them. `began` says where: "savepoint NAME", "earliest", a time in ISO
    8601, or "txid N". `at` is when it was made, in ISO 8601.
    """

    of: str
    of_uuid: str
    name: str
    uuid: str
    tables: Mapping[str, str]
    began: str
    at: str

    def to_document(self) -> dict[str, Any]:
        """Return the fork as JSON values."""
        return asdict(self)

    def encode(self) -> bytes:
        return to_json(self.to_document()).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Fork:
        """The inverse of `encode`. Raises CorruptStateError, naming `path`."""
        document = parse_object(data, path, set(cls.__dataclass_fields__))
        words = [name for name in cls.__dataclass_fields__ if name != "tables"]
        texts = {name: take(document, name, str, path) for name in words}
        return cls(**texts, tables=take(document, "tables", dict, path))


def znode(zookeeper: ZooKeeper, topology_id: str) -> str:
    """Return where it is stored what a topology is a fork of."""
    return Paths(zookeeper.root, topology_id).note(ZNODE)


def fork_of(zookeeper: ZooKeeper, topology_id: str) -> Fork | None:
    """Return what a topology is a fork of, half made or not; None if it is no fork. Raises
    CorruptStateError."""
    path = znode(zookeeper, topology_id)
    tree = zookeeper.tree()
    tree.sync()
    node = tree.get(path)
    return None if node is None else Fork.decode(node.data, path)


def forks_about(zookeeper: ZooKeeper, topology_id: str) -> list[Fork]:
    """Return the forks of a topology, and what it is itself if it is one; none that is half made. Raises
    CorruptStateError."""
    tree = zookeeper.tree()
    found = []
    for name in zookeeper.topologies():
        node = tree.get(znode(zookeeper, name))
        if node is None:
            continue
        fork = Fork.decode(node.data, znode(zookeeper, name))
        if topology_id in (fork.of, fork.name) and zookeeper.identity(name) is not None:
            found.append(fork)
    return found


def places_of(row: BatchRecord) -> dict[str, Any]:
    """Return where each partition stands after a batch, as far as the source tells it by a number."""
    metas = {**part_of(row.metas, "carried"), **part_of(row.metas, "partitions")}
    return {name: position(one) for name, one in metas.items()}


def behind(original: Mapping[str, Any], fork: Mapping[str, Any]) -> int:
    """Return how many records the places of a fork are behind those of the original, over the partitions in
    which they are. Of places that are no numbers, each that is another one counts as one record."""
    found = 0
    for name, place in original.items():
        other = fork.get(name, 0)
        if isinstance(place, int) and isinstance(other, int):
            found += max(0, place - other)
        else:
            found += place != other
    return found


def remark(zookeeper: ZooKeeper, snapshot: Snapshot) -> list[Remark]:
    """Say of a fork what it is a fork of, and how far it is behind the original."""
    found = fork_of(zookeeper, snapshot.topology)
    if found is None:
        return []
    told, lag, ours = f"of {found.of}, from {found.began}", None, _places(snapshot.progress)
    original = zookeeper.progress(found.of, PlainCodec())
    stored = original.read_identity()
    if stored is None or stored.uuid != found.of_uuid:
        told += f"; {found.of} was deleted since"
    elif (theirs := _places(original.load())) is not None and (
        ours := _places(snapshot.progress)
    ) is not None:
        lag, ahead = behind(theirs, ours), behind(ours, theirs)
        told += f"; {counted(lag, 'record')} behind it" if lag else "; as far as it"
        told += f", {counted(ahead, 'record')} ahead" if ahead else ""
    return [Remark(ZNODE, told, {"of": found.of, "began": found.began, "behind_records": lag})]


def _places(progress: Progress | None) -> dict[str, Any] | None:
    """Return where each partition stands; None before the first commit."""
    last = None if progress is None else progress.batches.get(Txid(progress.current - 1))
    return None if last is None else positions(last.metas)
