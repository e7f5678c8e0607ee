"""Topics and Delta tables are told of a rewind of states in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rewinds_told import check_who_follows_is_told

from txstream.plugins.local.embedded import Services


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("exactly_once", "step"),
    [
        (False, "flushed:1"),
        (True, "flushed-all:1"),
        (True, "ended:1"),
        (False, "restoring:1"),
        (False, "restored:1"),
    ],
)
def test_whoever_follows_is_told(
    services: Services, postgres_url: str, tmp_path: Path, unique: str, exactly_once: bool, step: str
) -> None:
    check_who_follows_is_told(services, postgres_url, tmp_path, unique, exactly_once=exactly_once, step=step)
