"""Appended rows of every type in PostgreSQL, compared with the digests of their batches."""

from __future__ import annotations

from support.append_types import check_every_type


def test_fsck_reads_every_type_as_it_was_written_to_postgresql(postgres_url: str) -> None:
    check_every_type(postgres_url)
