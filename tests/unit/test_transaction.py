"""The numbers of a batch: 31 bits of epoch, 32 of sequence, and an order that restarts cannot break."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from support.lists import each

from txstream.core.transaction import (
    AttemptId,
    AttemptSequence,
    Epoch,
    TransactionAttempt,
    Txid,
    attempt_id,
    epoch_of,
    sequence_of,
)

EPOCHS = st.integers(0, (1 << 31) - 1)
SEQUENCES = st.integers(0, (1 << 32) - 1)


@given(EPOCHS, SEQUENCES)
def test_an_attempt_id_is_its_epoch_and_sequence_in_63_bits(epoch: int, sequence: int) -> None:
    attempt = attempt_id(epoch, sequence)
    assert 0 <= attempt < 1 << 63
    assert (epoch_of(attempt), sequence_of(attempt)) == (epoch, sequence)


@given(EPOCHS, SEQUENCES, EPOCHS, SEQUENCES)
def test_attempt_ids_are_ordered_by_epoch_then_sequence(e1: int, s1: int, e2: int, s2: int) -> None:
    assert (attempt_id(e1, s1) < attempt_id(e2, s2)) == ((e1, s1) < (e2, s2))


@each(
    ("epoch", "sequence", "message"),
    [
        (1 << 31, 0, "epoch 2147483648 does not fit 31 bits"),
        (-1, 0, "epoch -1 does not fit 31 bits"),
        (0, 1 << 32, "attempt sequence 4294967296 does not fit 32 bits"),
        (0, -1, "attempt sequence -1 does not fit 32 bits"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(epoch: int, sequence: int, message: str) -> None:
    with pytest.raises(OverflowError, match=message):
        attempt_id(epoch, sequence)


def test_a_sequence_only_grows_and_stays_above_what_a_new_leader_raises_fences_to() -> None:
    attempts = AttemptSequence(Epoch(7))
    given_out = [attempts.next() for _ in range(5)]
    assert given_out == sorted(set(given_out))
    assert given_out[0] > attempt_id(7, 0)
    assert given_out[-1] < attempt_id(8, 0)


def test_an_attempt_shows_its_txid_epoch_and_sequence() -> None:
    shown = TransactionAttempt(Txid(5), AttemptId(3 << 32 | 2))
    assert str(shown) == "txid 5 attempt 3.2"
    assert shown < TransactionAttempt(Txid(6), AttemptId(1))
