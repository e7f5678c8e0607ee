"""A topology: its source can be opened, and its id, tables and databases fit what is stored."""

from __future__ import annotations

import contextlib
from typing import Any

from txstream.api.topology import Topology
from txstream.core.batch_metas import MetaCodec
from txstream.engine.commit.committer import state_targets
from txstream.engine.start.run_services import source_context
from txstream.engine.start.takeover import check_identity
from txstream.inspect.databases import open_zookeeper
from txstream.plugins.tracked.builder import TrackedTopology
from txstream.plugins.tracked.tier import NoMeta
from txstream.settings import Settings
from txstream.state import StateBackend, open_database


def look_at_source(topology: Topology, settings: Settings) -> str:
    """Open the source as a run does and ask for its end. Raises what a run would raise."""
    if isinstance(topology, TrackedTopology):
        return "spouts of tracked tuples are opened by a run alone, since a queue gives its messages away"
    source = topology.spout.source
    coordinator = source.coordinator(source_context(topology, settings))
    try:
        ends = coordinator.targets()
    finally:
        coordinator.close()
    return f"{type(source).__name__} can be opened; it has {len(ends)} partition(s) now"


def look_at_identity(topology: Topology, settings: Settings) -> str:
    """Ask what a start asks before it writes (`takeover.check_identity`), and raise what that raises."""
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(open_zookeeper(settings))

        def opened(url: str) -> StateBackend:
            database = open_database(url, connect_timeout_seconds=settings.connect_timeout_seconds)
            stack.callback(database.close)
            return database

        targets = state_targets(
            topology,
            settings.database_url(),
            opened,
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )
        there = [target for target in targets if _is_there(target.database)]
        is_tracked = isinstance(topology, TrackedTopology)
        codec: MetaCodec[Any] = MetaCodec(NoMeta if is_tracked else topology.spout.source.meta_type)
        store = zookeeper.progress(topology.id, codec)
        check_identity(topology, store, there)
        leader = zookeeper.leader(topology.id)
        stored = store.read_identity()
    if leader is not None:
        return f"{leader} runs it now; another driver would stand by"
    return (
        "a run would go on with what is stored" if stored is not None else "nothing is stored under this id"
    )


def _is_there(database: StateBackend) -> bool:
    dialect = getattr(database, "_dialect", None)
    return dialect is None or bool(dialect.is_there())
