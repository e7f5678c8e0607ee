"""Swap in PostgreSQL of what is more than a table, and with a second server that goes away."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres import PostgresServer
from support.saved_rigs import BOTH
from support.swap_rigs import (
    REMOVABLE,
    WORDS,
    Mirror,
    Pair,
    nothing_is_changed_while_one_is_away,
    removed_rows_and_changes_go_along,
    running,
)

from txstream.spouts.memory import MemorySpout


@pytest.mark.soak
@BOTH
@pytest.mark.parametrize("mixed", [False, True])
def test_removed_rows_and_changes_to_a_topic_go_along(
    postgres_url: str, tmp_path: Path, spout: str, mixed: bool
) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with MemorySpout("word string, number bigint, gone boolean", {"words/0": REMOVABLE}) as source:
        pair = Mirror([postgres_url, other] if mixed else [postgres_url] * 2, source)
        with running(pair):
            removed_rows_and_changes_go_along(pair, spout)


@pytest.mark.soak
def test_nothing_is_changed_while_a_database_is_away_and_later_all_is(
    postgres_url: str, own_postgres: PostgresServer, unique: str
) -> None:
    with MemorySpout("word string, number bigint", {"words/0": WORDS}) as source:
        pair = Pair([postgres_url, own_postgres.create_database(unique)], source)
        with running(pair):
            nothing_is_changed_while_one_is_away(pair, own_postgres.stop, own_postgres.start)
