"""What a batch was made from: digests that do not depend on how it was read; what no replay may change."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from support.lists import each

from txstream.core.errors import InputChangedError
from txstream.core.readings import NOTHING_READ, Reading, sum_of
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.loop.read_before import ReadBefore
from txstream.state.records import BatchRecord

Row = tuple[int, bytes | None, bytes | None]
ROWS: list[Row] = [(at, [None, b"k", b""][at % 3], b"value %d" % at) for at in range(50)]


def digest(rows: Sequence[Row]) -> int:
    return sum_of(np.array([one[0] for one in rows], np.int64), [r[1] for r in rows], [r[2] for r in rows])


def reading(*rows: Row, **fetched: str) -> Reading:
    return Reading({"t/0": (len(rows), digest(rows))}, fetched)


def test_a_digest_depends_on_neither_order_nor_parts() -> None:
    mixed = random.Random(7).sample(ROWS, len(ROWS))
    assert digest(mixed) == digest(ROWS)
    parts = [reading(*mixed[at : at + 9]) for at in range(0, len(mixed), 9)]
    assert sum(parts, NOTHING_READ) == reading(*ROWS)


@each(
    "other",
    [
        (5, b"k", b"value 6"), (6, b"k", b"value 5"), (5, b"value 5", b"k"), (5, None, b"value 5"),
        (5, b"k", None), (5, b"k", b""), (5, b"", b"value 5"), (5, b"kvalue 5", b""),
    ],
)  # fmt: skip
def test_a_digest_depends_on_offset_key_and_value(other: Row) -> None:
    assert digest([other]) != digest([(5, b"k", b"value 5")])


def test_what_is_left_out_is_subtracted() -> None:
    whole = reading(*ROWS, schema="a")
    left = [(name, *row) for name, row in (("t/0", ROWS[3]), ("t/0", ROWS[40]), ("other/1", ROWS[1]))]
    assert whole.without(left) == reading(*ROWS[:3], *ROWS[4:40], *ROWS[41:], schema="a")


def test_a_reading_can_be_stored_and_names_what_differs() -> None:
    whole = reading(*ROWS, schema="a")
    assert Reading.from_document(whole.to_document()) == whole
    assert whole.differences(whole) == []
    (words, schema) = whole.differences(reading(*ROWS[1:], schema="b"))
    assert words.startswith("partition t/0 had 50 records (digest ")
    assert " and has 49 now (digest " in words
    assert schema == "schema had the fingerprint a and has b now"
    assert whole.differences(Reading())[0].startswith("partition t/0 had 50 records")
    assert Reading().differences(whole) == [], "a row of an older version has no digests"


class Ledger:
    """One database: its last row, and which txids it has."""

    def __init__(self, txid: int | None = None, read: Reading | None = None) -> None:
        self._row = None if txid is None else row(txid, read)

    def last_batch(self) -> BatchRecord | None:
        return self._row

    def batch(self, txid: int) -> BatchRecord | None:
        return self._row if self._row is not None and self._row.txid == txid else None


def row(txid: int, read: Reading | None) -> BatchRecord:
    now = datetime.now(UTC)
    details = {} if read is None else {"read": read.to_document()}
    return BatchRecord(
        "t", "u", Txid(txid), AttemptId(1), Semantics.TRANSACTIONAL, "committing", {}, 0, 0, now, now, None,
        None, details,
    )  # fmt: skip


def check(
    before: ReadBefore, found: Reading, txid: int = 7, *, asked: bool, planned: int | None = None
) -> Any:
    attempt = TransactionAttempt(Txid(txid), AttemptId(2))
    return before.check(attempt, found, may_be_committed=asked, planned=planned)


def known(*ledgers: Any) -> ReadBefore:
    return ReadBefore(ledgers)


def test_a_replay_of_what_may_be_committed_must_read_the_same() -> None:
    for ledgers in ([Ledger(7, reading(*ROWS)), Ledger(6)], [Ledger(7, reading(*ROWS))]):
        before = known(*ledgers)
        assert check(before, reading(*ROWS), asked=True) == reading(*ROWS)
        with pytest.raises(
            InputChangedError, match=r"txid 7 may be committed.*t/0 had 50 records.*has 49 now"
        ):
            check(before, reading(*ROWS[:-1]), asked=True)
    assert check(known(Ledger(7), Ledger(6)), reading(*ROWS), asked=True), "an old row has no reading"


def test_in_one_run_two_databases_must_get_the_same(caplog: pytest.LogCaptureFixture) -> None:
    before = known(Ledger(6), Ledger(6))
    check(before, reading(*ROWS), asked=False)
    with pytest.raises(InputChangedError, match="txid 7 may be committed"):
        check(before, reading(*ROWS[1:]), asked=True)


def test_what_no_database_has_goes_on_and_says_that_records_are_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    for ledgers, asked in (([Ledger(6), Ledger(6)], False), ([Ledger(6)], True)):
        before = known(*ledgers)
        check(before, reading(*ROWS), asked=False)
        assert not caplog.records
        assert check(before, reading(*ROWS[1:]), asked=asked) == reading(*ROWS[1:])
        assert "records of it are gone since it was read before: partition t/0 had 50 records" in caplog.text
        caplog.clear()
    check(known(Ledger(6)), reading(*ROWS), asked=False, planned=60)
    assert "of its 60 offsets, 50 have a record" in caplog.text


def test_an_id_means_the_same_schema_for_ever() -> None:
    before = known(Ledger(6, Reading({}, {"schema 1": "a", "schema 2": "b"})))
    kept = check(before, Reading({}, {"schema 3": "c", "schema 1": "a"}), asked=False)
    assert kept.fetched == {"schema 2": "b", "schema 3": "c", "schema 1": "a"}
    for later, name in ((8, "schema 2"), (9, "schema 3")):
        with pytest.raises(InputChangedError, match=f"txid {later} .*{name} had the fingerprint"):
            check(before, Reading({}, {name: "x"}), later, asked=False)
