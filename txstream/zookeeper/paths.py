"""Where a topology's progress is kept."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from txstream.core.errors import CorruptStateError
from txstream.core.names import validate_topology_id
from txstream.core.transaction import Txid

ROOT = "/txstream/topologies"
_SHOWN = re.compile(
    r"/(requests/.*|assignment|away|edges|ended|failing(_attempts)?|letters_sent|results_sent|trees|waiting)$"
)


@dataclass(frozen=True)
class Paths:
    """The znodes of one topology. `root` is ROOT, below the chroot if there is one.

    Raises TopologyError for an invalid id.
    """

    root: str
    topology_id: str

    def __post_init__(self) -> None:
        validate_topology_id(self.topology_id)

    @functools.cached_property
    def base(self) -> str:
        return f"{self.root}/{self.topology_id}"

    @property
    def identity(self) -> str:
        return f"{self.base}/identity"

    @property
    def leader(self) -> str:
        return f"{self.base}/leader"

    @functools.cached_property
    def epoch(self) -> str:
        return f"{self.base}/epoch"

    @property
    def coordinator(self) -> str:
        return f"{self.base}/coordinator"

    @functools.cached_property
    def current(self) -> str:
        return f"{self.base}/coordinator/current"

    @functools.cached_property
    def metas(self) -> str:
        return f"{self.base}/coordinator/meta"

    def meta(self, txid: Txid) -> str:
        return f"{self.metas}/{txid}"

    @property
    def requests(self) -> str:
        return f"{self.base}/requests"

    @property
    def asked(self) -> str:
        return f"{self.requests}/asked"

    @property
    def answered(self) -> str:
        return f"{self.requests}/answered"

    def note(self, name: str) -> str:
        return f"{self.base}/{name}"


def znode_in(error: Exception) -> str:
    """Return the path with which the message begins if it is about a znode; otherwise its first word."""
    return str(error).partition(": ")[0].partition(" ")[0]


def remedy(path: str, topology_id: str) -> str:
    """Return what helps if the znode `path` cannot be read."""
    if _SHOWN.search(path):
        return (
            f"delete this znode with ZooKeeper's own shell (delete {path}): it is what operators ask or are "
            f"shown, no progress"
        )
    return f"rebuild it by `txstream recover {topology_id} --from-ledger`"


def with_remedy(error: CorruptStateError, topology_id: str) -> CorruptStateError:
    """Return the error, with what helps if it is about a znode."""
    path = znode_in(error)
    if not path.startswith("/"):
        return error
    explained = CorruptStateError(f"{error}; {remedy(path, topology_id)}")
    explained.__cause__ = error
    return explained
