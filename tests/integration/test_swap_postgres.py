"""Swap in PostgreSQL of what is more than a table: rows behind a view, and rows that leave for a topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.saved_rigs import BOTH
from support.swap_rigs import REMOVABLE, Mirror, removed_rows_and_changes_go_along, running

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
