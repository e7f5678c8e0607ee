"""Dead letters in a store: written, undone and retried with the batch, read, dropped, deleted.

The stores here are SQLite and memory; the tests of each server run the same class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.states import Rig, word_table

from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import CorruptStateError, TxstreamError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.plugins.proof.stores.memory import forget
from txstream.state.stored_letters import PLACE_LENGTH, place_of

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LARGE = 3_000_000


def letter(offset: int, component: str = "parse", value: bytes | None = b"{") -> DeadLetter:
    return DeadLetter(
        source=f"orders/3@{offset}",
        topic="orders",
        partition=3,
        offset=offset,
        timestamp_ms=1_767_000_000_000 + offset,
        key=b"\x00\xff",
        value=value,
        headers=b'[["trace", "AP8="]]',
        component=component,
        exception="ValueError",
        message="no JSON",
        traceback="Traceback\n  ValueError: no JSON",
    )


def write(
    rig: Rig, txid: int, letters: Sequence[DeadLetter], under: TransactionAttempt | None = None
) -> None:
    """Commit only the dead letters of a batch."""
    under = under or rig.next(txid)
    with rig.database.begin(rig.states.life, "a test") as here:
        here.write_dead_letters(under, letters, WHEN)


def undo(rig: Rig, txid: int) -> None:
    with rig.database.begin(rig.states.life, "a test") as here:
        here.undo_dead_letters(Txid(txid))


def retried(rig: Rig, keys: Sequence[tuple[int, int]], txid: int) -> None:
    """Mark the rows of these (txid, offset) as retried in a batch."""
    with rig.database.begin(rig.states.life, "a test") as here:
        here.mark_retried([LetterKey(Txid(of), place_of(f"orders/3@{at}")) for of, at in keys], Txid(txid))


def kept(rig: Rig) -> list[tuple[int, int | None, str]]:
    found = rig.database.dead_letters(rig.topology)
    return [(one.txid, one.letter.offset, one.status) for one in found]


class TestDeadLetterRows:
    """What holds in every store that keeps them."""

    def test_what_is_written_is_read(self, rig: Rig) -> None:
        empty = replace(letter(8, value=b""), key=None, headers=None, timestamp_ms=None)
        strange = replace(letter(9), topic=None, partition=None, offset=None, source="file.csv, line 3")
        under = rig.next(5)
        write(rig, 5, [letter(7), empty, strange], under)
        found = rig.database.dead_letters(rig.topology)
        assert [one.letter for one in found] == [strange, letter(7), empty]
        assert {(one.topology, one.uuid, one.txid, one.attempt, one.status, one.when) for one in found} == {
            (rig.topology, rig.uuid, 5, under.attempt, "dead", WHEN)
        }

    def test_the_bytes_come_only_if_they_are_asked_for(self, rig: Rig) -> None:
        write(rig, 5, [letter(7), letter(8)])
        (whole,) = rig.database.dead_letters(rig.topology, key=LetterKey(Txid(5), "orders/3@8"))
        assert whole.letter == letter(8)
        light = rig.database.dead_letters(rig.topology, whole=False)
        assert [one.letter.message for one in light] == ["no JSON"] * 2
        assert rig.database.dead_letters(rig.topology, key=LetterKey(Txid(6), "orders/3@8")) == []

    def test_a_record_has_one_row(self, rig: Rig) -> None:
        write(rig, 5, [letter(7)])
        with pytest.raises(TxstreamError):
            write(rig, 5, [letter(8), letter(7)])
        assert kept(rig) == [(5, 7, "dead")]

    def test_large_and_strange_records_fit(self, rig: Rig) -> None:
        large = replace(letter(7), value=bytes(range(256)) * (LARGE // 256), key=b"k" * LARGE)
        words = replace(
            letter(8), message="nul \0 and \ud800", traceback="x" * 100_000, source=f"{'é' * 500}\0"
        )
        write(rig, 5, [large, words])
        by_offset = {one.letter.offset: one for one in rig.database.dead_letters(rig.topology)}
        assert by_offset[7].letter == large
        assert by_offset[8].letter.message == "nul \\x00 and \\ud800"
        assert "characters left out" in by_offset[8].letter.traceback
        assert len(by_offset[8].place) == PLACE_LENGTH

    def test_undoing_touches_its_batch_only(self, rig: Rig) -> None:
        other = replace(rig, topology="other", spec=word_table("other_count")).join()
        for one in (rig, other):
            write(one, 5, [letter(7)])
            write(one, 6, [letter(8)])
        undo(rig, 6)
        assert (kept(rig), kept(other)) == ([(5, 7, "dead")], [(5, 7, "dead"), (6, 8, "dead")])

    def test_a_retry_changes_the_status_and_undoing_it_changes_it_back(self, rig: Rig) -> None:
        write(rig, 5, [letter(7), letter(8)])
        retried(rig, [(5, 7)], 9)
        assert kept(rig) == [(5, 7, "retried in txid 9"), (5, 8, "dead")]
        assert rig.database.dead_letter_counts(rig.topology) == {(5, "retried in txid 9"): 1, (5, "dead"): 1}
        undo(rig, 9)
        assert kept(rig) == [(5, 7, "dead"), (5, 8, "dead")]

    def test_late_ones_are_counted_as_long_as_they_are_dead(self, rig: Rig) -> None:
        write(rig, 5, [letter(7), *(replace(letter(at), exception="LateRecordError") for at in (8, 9, 10))])
        retried(rig, [(5, 9)], 9)
        assert rig.database.late_letters(rig.topology) == 2
        assert rig.database.late_letters("other") == 0

    def test_a_record_is_not_retried_twice(self, rig: Rig) -> None:
        write(rig, 5, [letter(7), letter(8)])
        retried(rig, [(5, 7)], 9)
        with pytest.raises(CorruptStateError, match="retried in txid 9"):
            retried(rig, [(5, 8), (5, 7)], 10)
        assert kept(rig) == [(5, 7, "retried in txid 9"), (5, 8, "dead")]
        retried(rig, [(5, 99)], 10)  # dropped meanwhile

    def test_dropping(self, rig: Rig) -> None:
        write(rig, 5, [letter(7), letter(8)])
        keys = [LetterKey(Txid(5), "orders/3@7"), LetterKey(Txid(5), "gone")]
        assert rig.database.drop_dead_letters(rig.topology, keys) == 1
        assert kept(rig) == [(5, 8, "dead")]

    def test_deleting_the_topology_deletes_them(self, rig: Rig) -> None:
        other = replace(rig, topology="other", spec=word_table("other_count")).join()
        for one in (rig, other):
            write(one, 5, [letter(7)])
        rig.database.delete(rig.topology, drop_state=False, uuid="another life")
        assert kept(rig) == [(5, 7, "dead")]
        rig.database.delete(rig.topology, drop_state=False)
        assert (kept(rig), kept(other)) == ([], [(5, 7, "dead")])

    def test_pruning_leaves_them(self, rig: Rig) -> None:
        for txid in range(1, 6):
            rig.commit(txid, {"a": 1})
        write(rig, 1, [letter(7)])
        later = datetime.now(UTC) + timedelta(days=365)
        rig.database.prune(rig.topology, committed_before=later, newest=1, rows=100)
        assert rig.database.batch(rig.topology, 1) is None
        assert kept(rig) == [(1, 7, "dead")]

    def test_what_fails_leaves_no_row(self, rig: Rig) -> None:
        with contextlib.suppress(KeyError), rig.database.begin(rig.states.life, "a test") as here:
            here.write_dead_letters(rig.next(5), [letter(7)], WHEN)
            raise KeyError
        assert kept(rig) == []


class TestInMemory(TestDeadLetterRows):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        yield "memory://dead-letters"
        forget("dead-letters")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.mark.parametrize("again", [[letter(8)], []])
def test_a_non_transactional_replay_leaves_the_letters_that_it_left_out_last(
    rig: Rig, again: list[DeadLetter]
) -> None:
    """Its ledger row is overwritten, too. It undoes nothing else, since it has no fence."""
    plain = replace(rig, topology="plain", spec=word_table("plain", Semantics.NON_TRANSACTIONAL)).join()
    for letters in ([letter(7), letter(8)], [letter(7), letter(9)]):
        plain.states.commit(replace(plain.whole(plain.next(1), {"a": 1}), letters=letters))
    assert kept(plain) == [(1, 7, "dead"), (1, 9, "dead")]
    plain.states.commit(replace(plain.whole(plain.next(2), {"a": 1}), letters=again))
    assert kept(plain)[:2] == [(1, 7, "dead"), (1, 9, "dead")]
