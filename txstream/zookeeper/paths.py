"""Where a topology's progress is kept."""

from __future__ import annotations

from dataclasses import dataclass

from txstream.api.names import validate_topology_id
from txstream.transaction import Txid

ROOT = "/txstream/topologies"


@dataclass(frozen=True, slots=True)
class Paths:
    """The znodes of one topology. `root` is ROOT, below the chroot if there is one.

    Raises TopologyError for an id that cannot be one.
    """

    root: str
    topology_id: str

    def __post_init__(self) -> None:
        validate_topology_id(self.topology_id)

    @property
    def base(self) -> str:
        return f"{self.root}/{self.topology_id}"

    @property
    def identity(self) -> str:
        return f"{self.base}/identity"

    @property
    def leader(self) -> str:
        return f"{self.base}/leader"

    @property
    def epoch(self) -> str:
        return f"{self.base}/epoch"

    @property
    def coordinator(self) -> str:
        return f"{self.base}/coordinator"

    @property
    def current(self) -> str:
        return f"{self.base}/coordinator/current"

    @property
    def metas(self) -> str:
        return f"{self.base}/coordinator/meta"

    def meta(self, txid: Txid) -> str:
        return f"{self.metas}/{txid}"

    @property
    def requests(self) -> str:
        return f"{self.base}/requests"

    @property
    def scale(self) -> str:
        return f"{self.requests}/scale"

    @property
    def scaled(self) -> str:
        return f"{self.requests}/scaled"

    @property
    def assignment(self) -> str:
        return f"{self.base}/assignment"

    @property
    def failing(self) -> str:
        return f"{self.base}/failing"
