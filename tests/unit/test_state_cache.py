"""Rows of a state that a task keeps: only for the batch after the very attempt that left them."""

from __future__ import annotations

from support.lists import each

from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.states.state_cache import StateCache

MINE = TransactionAttempt(Txid(7), attempt_id(2, 1))


@each(
    ("committed", "kept"),
    [
        (MINE, True),
        (TransactionAttempt(Txid(7), attempt_id(3, 1)), False),  # another driver committed the txid
        (TransactionAttempt(Txid(7), attempt_id(2, 2)), False),
        (TransactionAttempt(Txid(8), attempt_id(2, 1)), False),
        (None, False),
    ],
)
def test_rows_are_kept_only_after_the_very_attempt_that_left_them(
    committed: TransactionAttempt | None, *, kept: bool
) -> None:
    cache = StateCache(rows=10)
    cache.leave(MINE, [("word", 1)])
    cache.begin(committed)
    assert ("word" in cache) is kept
