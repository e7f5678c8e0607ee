"""ZooKeeper: a session, the right to create, read, write and delete below the root, and who else has it."""

from __future__ import annotations

import time
import uuid

from txstream.doctor.clocks import Clocks
from txstream.inspect.databases import open_zookeeper
from txstream.settings import Settings


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
    return f"a session at {zookeeper.hosts}, which may create, read, write and delete in {zookeeper.root}"
