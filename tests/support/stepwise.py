"""Crashes before any one of the statements that some work executes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from support.states import CrashError
from txstream.state import StateDatabase, open_sql_database

DEFINITIONS = ("CREATE", "ALTER", "DROP")
CHANGES = (*DEFINITIONS, "INSERT", "UPDATE", "DELETE")


def crash_before(url: str, step: int, work: Callable[[StateDatabase], object]) -> bool:
    """Do the work and die before its `step`th statement that changes anything; return False if it has fewer.
    If the statement is a definition, the server does its first half: it commits what was done before it."""
    steps = itertools.count()

    def die(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith(CHANGES) and next(steps) == step:
            if statement.lstrip().startswith(DEFINITIONS):
                connection.connection.commit()
            raise CrashError

    with contextlib.closing(open_sql_database(url)) as database:
        sa.event.listen(database.sessions.engine, "before_cursor_execute", die)
        try:
            work(database)
        except CrashError:
            return True
    return False
