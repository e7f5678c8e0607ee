"""The orders of a topic in a Delta table, by a driver that dies, or freezes, at one step."""

from __future__ import annotations

import signal
from typing import Literal

from deltalake import DeltaTable

from support.sink_kills import die_at
from txstream.api.topology import Topology
from txstream.examples import orders_in_lake
from txstream.plugins.delta import bolt
from txstream.plugins.outbox.sending import OutboxFollower
from txstream.state import StateDatabase

DIES: dict[str, tuple[object, str, bool]] = {
    "before-writing": (bolt, "write_files", False),
    "written": (bolt, "write_files", True),
    "before-appending": (DeltaTable, "create_write_transaction", False),
    "appended": (DeltaTable, "create_write_transaction", True),
    "not-noted": (OutboxFollower, "_note", False),
    "noted": (StateDatabase, "drop_used", False),
    "dropped": (StateDatabase, "drop_used", True),
}
"""Steps: a function, before or after whose call of a given number the process is killed."""


def topology(
    topic: str,
    lake: str,
    semantics: Literal["opaque", "transactional"] = "opaque",
    driver_commit_rows: int | None = None,
    dies: str = "",
    freezes: bool = False,
) -> Topology:
    die_at(dies, signal.SIGSTOP if freezes else signal.SIGKILL, DIES)
    return orders_in_lake.topology(
        lake,
        topic,
        semantics=semantics,
        table=topic,
        max_records_per_partition=20,
        driver_commit_rows=driver_commit_rows,
    )
