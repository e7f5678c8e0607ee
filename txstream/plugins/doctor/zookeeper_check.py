"""ZooKeeper: a session, the right to create, read, write and delete below the root, and who else has it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from txstream.inspect.databases import open_zookeeper
from txstream.plugins.doctor.checks import WrongError
from txstream.plugins.doctor.clocks import Clocks
from txstream.settings import Settings


def _refuse_open(root: str, acls: Sequence[Any], hosts: str) -> None:
    """Raise WrongError if everybody may do as we may, although we log in."""
    if any(acl.id.scheme == "world" for acl in acls):
        raise WrongError(
            f"everybody may use {root}: it was made before txstream logged in",
            f"zkCli.sh -server {hosts.partition(',')[0]}, then: addauth ..., setAcl -R "
            f"{root.removesuffix('/topologies')} auth::cdrwa",
        )


def look_at_zookeeper(settings: Settings, clocks: Clocks) -> str:
    """Make and remove an ephemeral znode, which would go with the session in any case. No four-letter word is
    needed. Raises ServiceUnavailableError, UsageError, or WrongError."""
    with open_zookeeper(settings) as zookeeper:
        path = f"{zookeeper.root}/.doctor-{uuid.uuid4().hex}"
        client = zookeeper.client
        patience = zookeeper.patience(deadline_seconds=settings.connect_timeout_seconds)
        before = time.time()
        zookeeper.request(lambda: client.create_async(path, b"1", ephemeral=True), patience)
        _, stat = zookeeper.request(lambda: client.get_async(path), patience)
        clocks.compare("ZooKeeper", stat.ctime / 1000, before - 0.001)  # it counts whole milliseconds
        zookeeper.request(lambda: client.set_async(path, b"2"), patience)
        zookeeper.request(lambda: client.delete_async(path), patience)
        if zookeeper.access.auth is not None:
            acls, _ = zookeeper.request(lambda: client.get_acls_async(zookeeper.root), patience)
            _refuse_open(zookeeper.root, acls, zookeeper.hosts)
        who = zookeeper.access.shown
        place = f"{zookeeper.hosts}, which may create, read, write and delete in {zookeeper.root}"
    return f"a session of {who} at {place}"
