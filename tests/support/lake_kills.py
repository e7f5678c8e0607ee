"""The orders of a topic in a Delta table, by a driver that dies, or freezes, at one step."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable

from support.sink_kills import die_at
from txstream.api.topology import Topology
from txstream.examples import orders_in_lake
from txstream.plugins.delta import bolt
from txstream.plugins.delta.bolt import DeltaTableBolt
from txstream.plugins.delta.place import Place
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


class DyingBolt(DeltaTableBolt):
    """A bolt whose worker process is killed in the middle of a file, and another one when its files are
    written: once each, as the folder `died` tells."""

    def __init__(self, *given: Any, died: Path, **named: Any) -> None:
        super().__init__(*given, **named)
        self.died = died

    def deltas(self) -> pa.Table:
        if self._parts and is_first(self.died / "in-a-file"):
            whole = Place.files

            def half(place: Place) -> Any:
                handler = whole(place)._handler
                opened = SimpleNamespace(
                    open_output_stream=lambda path: Half(handler.open_output_stream(path))
                )
                return SimpleNamespace(_handler=opened)

            Place.files = half  # type: ignore[assignment,method-assign]  # this process ends
        found = super().deltas()
        if self._parts and is_first(self.died / "behind-its-files"):
            os.kill(os.getpid(), signal.SIGKILL)
        return found


class Half:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, content: bytes) -> None:
        self._stream.write(content[: len(content) // 2])
        self._stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def topology(
    topic: str,
    lake: str,
    semantics: Literal["opaque", "transactional"] = "opaque",
    driver_commit_rows: int | None = None,
    dies: str = "",
    freezes: bool = False,
    workers_died: str = "",
) -> Topology:
    if workers_died:
        orders_in_lake.DeltaTableBolt = partial(DyingBolt, died=Path(workers_died))  # type: ignore[attr-defined,assignment]
    die_at(dies, signal.SIGSTOP if freezes else signal.SIGKILL, DIES)
    return orders_in_lake.topology(
        lake,
        topic,
        semantics=semantics,
        table=topic,
        max_records_per_partition=20,
        driver_commit_rows=driver_commit_rows,
    )
