"""Tasks that stop while they hold the fence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from support.states import Rig
from txstream.state import open_sql_database
from txstream.state.sql.database import SqlTransaction

PATIENCE_SECONDS = 30


class Held:
    """Stops tasks inside their transaction, after they have taken the fence and before their first delta."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside = threading.Semaphore(0)
        self.go_on = threading.Event()
        write = SqlTransaction.write

        def wait_and_write(here: SqlTransaction, *arguments: Any) -> None:
            if threading.current_thread().name.startswith("task"):
                self.inside.release()
                assert self.go_on.wait(PATIENCE_SECONDS)
            write(here, *arguments)

        monkeypatch.setattr(SqlTransaction, "write", wait_and_write)

    def wait_for(self, tasks: int) -> None:
        for _ in range(tasks):
            assert self.inside.acquire(timeout=PATIENCE_SECONDS)


@contextmanager
def another(rig: Rig, message_timeout_seconds: float = 10.0) -> Iterator[Rig]:
    """Yield the same topology over other connections."""
    database = open_sql_database(
        rig.url, connect_timeout_seconds=5.0, message_timeout_seconds=message_timeout_seconds
    )
    yield Rig(database, rig.url, rig.spec, rig.topology, rig.uuid, sequence=rig.sequence)
    database.close()


def tasks(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="task")
